"""The decision: deny before ask before allow, and deny where nothing speaks, whatever the order.

An ask that says `match: otherwise` comes after the allows: it speaks for what none of them matches.
Whatever goes wrong while deciding is a deny with its own rule id; nothing is raised.
"""

from collections.abc import Callable, Mapping, Sequence

from toolgate.core.enums import Level
from toolgate.core.tools import Caller, ToolRequest
from toolgate.policy.inputs import EvaluationError, Facts, LimitReached
from toolgate.policy.model import (
    DEFAULT_DENY,
    DENIAL_DIGESTS,
    EVALUATION_ERROR,
    HOSTNAME_CHECK,
    HTTP_FETCH,
    LIMIT_REACHED,
    NO,
    POLICY_NOT_FOUND,
    URL_VALIDATION,
    YES,
    Decision,
    Effect,
    EffectRules,
    Policy,
    Rule,
    in_order,
    rules_name,
)
from toolgate.policy.shell import Argv, Command, ParseShell, Script, TooComplex, Unknown
from toolgate.secrets.redaction import without_flagged

FindPolicy = Callable[[str], Policy | None]


def decide(
    policy: Policy,
    call: ToolRequest,
    *,
    level: Level,
    parse_shell: ParseShell,
    can_be_clean: bool = True,
) -> Decision:
    """The policy's decision on one call; `level` is the tool's own.

    No rule allows a command by its words where it cannot run clean.
    """
    try:
        candidates = policy.candidates(rules_name(call))
        facts = Facts(call, level=level, parse_shell=parse_shell, can_be_clean=can_be_clean)
        return (
            _fired(candidates.deny, facts)
            or _fired(candidates.ask, facts)
            or _allowed(candidates.allow, facts)
            or _fired(candidates.otherwise, facts)
            or no_rule_allows(policy, candidates.allow, facts)
        )
    except (LimitReached, TooComplex) as limit:
        return _refusal(policy, LIMIT_REACHED, f"Limit reached: {limit}")
    except EvaluationError as error:
        return _refusal(policy, EVALUATION_ERROR, f"The policy cannot be applied: {error}")
    except Exception as error:  # noqa: BLE001 - a gate that breaks must be shut
        return _refusal(
            policy, EVALUATION_ERROR, f"The policy cannot be applied: {type(error).__name__}"
        )


def may_pass(policy: Policy, tool: str, *, caller: Caller, level: Level) -> bool:
    """Check that some call of this tool by this caller could be allowed or asked about.

    For showing an agent its tools: what depends on the arguments is left open.
    """
    candidates = policy.candidates(tool)
    facts = Facts(ToolRequest("", tool, {}, caller=caller), level=level, parse_shell=_no_shell)

    def applies(rule: Rule) -> bool:
        return all(check(facts) is YES for check in rule.standing)

    always_denied = any(
        rule.commands is None and rule.checks == rule.standing and applies(rule)
        for rule in candidates.deny.plain
    )
    return not always_denied and any(
        applies(rule)
        for rules in (candidates.allow, candidates.ask, candidates.otherwise)
        for rule in (*rules.plain, *rules.hosted)
    )


def _no_shell(_: str) -> Script:
    raise EvaluationError("there is no command yet")


def _fired(rules: EffectRules, facts: Facts) -> Decision | None:
    """The first that fires; the rest are looked at too, since an error in any of them denies."""
    decision: Decision | None = None
    for rule in firing_candidates(rules, facts):
        part = fires(rule, facts)
        if part is not None and decision is None:
            decision = _decision(rule, facts.call, part)
            if decision.effect is Effect.DENY:
                break
    return decision


def firing_candidates(rules: EffectRules, facts: Facts) -> Sequence[Rule]:
    """The deny or ask rules worth looking at: of those about hosts, only this call's hosts'."""
    if not rules.hosted:
        return rules.plain
    urls = facts.urls
    if None in urls:
        return in_order((*rules.plain, *rules.hosted))
    if len(urls) == 1 and urls[0] is not None:
        return rules.about(urls[0].host)
    about = {rule for url in urls if url is not None for rule in rules.about(url.host)}
    return in_order(about.union(rules.plain))


def allowing_candidates(rules: EffectRules, facts: Facts) -> Sequence[Rule]:
    """The allow rules worth looking at: every URL must match, so those of the first are enough."""
    if not rules.hosted:
        return rules.plain
    urls = facts.urls
    first = urls[0] if urls else None
    return rules.plain if first is None else rules.about(first.host)


def fires(rule: Rule, facts: Facts) -> str | None:
    """For a deny or an ask: the part of the call that it fires on ("" for the whole), or None."""
    for check in rule.checks:
        if check(facts) is NO:
            return None
    if rule.commands is None:
        return ""
    may_cover = rule.commands.may_cover
    for command in facts.commands:
        if may_cover(command):
            return spell(command)
    return None


def _allowed(rules: EffectRules, facts: Facts) -> Decision | None:
    """An allow of the whole call, or allows that cover each of its commands between them.

    One that cannot be applied does not allow; where no other does, its error is the answer.
    """
    coverage: _Coverage | None = None
    error: Exception | None = None
    for rule in allowing_candidates(rules, facts):
        try:
            if not permits(rule, facts):
                continue
            if rule.commands is None:
                return _allowed_by(rule, facts)
            coverage = coverage or _Coverage(facts)
            if coverage.complete_with(rule):
                return _allowed_by(coverage.first or rule, facts)
        except (EvaluationError, LimitReached, TooComplex) as problem:
            error = error or problem
    if error is not None:
        raise error
    return None


def _allowed_by(rule: Rule, facts: Facts) -> Decision:
    """The rule's allow; a tool that signs asks a person, whatever allows it (gateway contract)."""
    return rule.signing if facts.level is Level.SIGN else _decision(rule, facts.call, "")


class _Coverage:
    """The commands of a call that no allow has matched yet."""

    __slots__ = ("_facts", "_left", "first")

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._left: Sequence[Argv] | None = None
        self.first: Rule | None = None  # to match any of them

    def complete_with(self, rule: Rule) -> bool:
        facts = self._facts
        argvs = facts.argvs if facts.can_be_clean else None
        if argvs is None or rule.commands is None or not has_known_env(rule, facts):
            return False
        before = argvs if self._left is None else self._left
        covers = rule.commands.covers
        self._left = [argv for argv in before if not covers(argv)]
        if self.first is None and len(self._left) < len(before):
            self.first = rule
        return self.first is not None and not self._left


def permits(rule: Rule, facts: Facts) -> bool:
    """For an allow: whether everything but its commands holds, for certain."""
    for check in rule.checks:  # noqa: SIM110 - all() costs a generator on the hot path
        if check(facts) is not YES:
            return False
    return True


def has_known_env(rule: Rule, facts: Facts) -> bool:
    """An environment changes what a command does, so a rule about commands must speak of all of it."""
    env = facts.args.get("env")
    return not env or (isinstance(env, Mapping) and env.keys() <= rule.env_names)


def no_rule_allows(policy: Policy, rules: EffectRules, facts: Facts) -> Decision:
    """The default, with the reason that helps most (the texts are the executor contract's)."""
    tool = facts.call.tool
    if tool == HTTP_FETCH and rules.hosted:
        urls = facts.urls
        if not urls or None in urls:
            return _refusal(policy, URL_VALIDATION, "The URL is not valid")
        host = next(url.host for url in urls if url is not None)
        if len(rules.about(host)) == len(rules.plain):
            return _refusal(policy, HOSTNAME_CHECK, f"Hostname {host} not in allowlist")
    detail = ""
    if facts.args.get("command") is not None or facts.args.get("cmd") is not None:
        why = facts.script.obstacle
        detail = f"the command is not plain: {why}" if why else "no rule allows every command"
        if not facts.can_be_clean:
            detail = "its target does not promise to run it clean"
    return _refusal(policy, DEFAULT_DENY, f"Tool {tool} not in allowlist (default deny)", detail)


def decide_by_ref(
    find: FindPolicy,
    call: ToolRequest,
    *,
    level: Level,
    parse_shell: ParseShell,
    can_be_clean: bool = True,
) -> Decision:
    """The decision of the policy that the call refers to; a ref that names none is a deny."""
    policy = find(call.policy_ref)
    if policy is None:
        reason = f"Policy {call.policy_ref} not found"
        digest = DENIAL_DIGESTS[POLICY_NOT_FOUND]
        return Decision(
            Effect.DENY, POLICY_NOT_FOUND, reason, "", call.policy_ref, rule_digest=digest
        )
    return decide(policy, call, level=level, parse_shell=parse_shell, can_be_clean=can_be_clean)


def _refusal(policy: Policy, rule_id: str, reason: str, detail: str = "") -> Decision:
    return Decision(
        Effect.DENY,
        rule_id,
        reason,
        policy.version,
        policy.name,
        detail,
        DENIAL_DIGESTS[rule_id],
    )


def _decision(rule: Rule, call: ToolRequest, detail: str) -> Decision:
    made = rule.decision
    if not detail and not rule.per_tool:
        return made
    reason = made.reason.replace("{tool}", call.tool) if rule.per_tool else made.reason
    return Decision(
        made.effect,
        made.rule_id,
        reason,
        made.policy_version,
        made.policy_ref,
        detail,
        made.rule_digest,
    )


def spell(command: Command) -> str:
    """A command for people to read; `…` is what only the shell knows.

    All of it: to be cut short after secrets were looked for, lest half of one be left.
    """
    words = [f"{word.prefix}…" if isinstance(word, Unknown) else word for word in command]
    return " ".join(without_flagged(words))
