"""The decision: deny before ask before allow, and deny where nothing speaks, whatever the order.

An ask that says `match: otherwise` comes after the allows: it speaks for what none of them matches.
Whatever goes wrong while deciding is a deny with its own rule id; nothing is raised.
"""

from collections.abc import Callable, Sequence
from typing import Final

from toolgate.domain.policy.facts import EvaluationError, Facts, LimitReached
from toolgate.domain.policy.model import (
    DEFAULT_DENY,
    EVALUATION_ERROR,
    HOSTNAME_CHECK,
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
)
from toolgate.domain.shell import Argv, Command, ParseShell, TooComplex, Unknown
from toolgate.domain.tools import Level, ToolRequest

HTTP_FETCH: Final = "http.fetch"
FindPolicy = Callable[[str], Policy | None]


def decide(policy: Policy, call: ToolRequest, *, level: Level, parse_shell: ParseShell) -> Decision:
    """What the policy says of one call; `level` is the tool's own."""
    try:
        candidates = policy.candidates(call.tool)
        facts = Facts(call, level=level, parse_shell=parse_shell)
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


def _fired(rules: EffectRules, facts: Facts) -> Decision | None:
    for rule in firing_candidates(rules, facts):
        part = fires(rule, facts)
        if part is not None:
            return _decision(rule, facts.call, part)
    return None


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
    if not rules.hosted or not facts.urls:
        return rules.plain
    first = facts.urls[0]
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
    """An allow of the whole call, or allows that cover each of its commands between them."""
    uncovered: Sequence[Argv] | None = None
    first: Rule | None = None
    for rule in allowing_candidates(rules, facts):
        if not permits(rule, facts):
            continue
        if rule.commands is None:
            return _decision(rule, facts.call, "")
        static = facts.script.argvs
        if static is None or not has_known_env(rule, facts):
            continue
        before = static if uncovered is None else uncovered
        covers = rule.commands.covers
        uncovered = [command for command in before if not covers(command)]
        if first is None and len(uncovered) < len(before):
            first = rule
        if first is not None and not uncovered:
            return _decision(first, facts.call, "")
    return None


def permits(rule: Rule, facts: Facts) -> bool:
    """For an allow: whether everything but its commands holds, for certain."""
    for check in rule.checks:  # noqa: SIM110 - all() costs a generator on the hot path
        if check(facts) is not YES:
            return False
    return True


def has_known_env(rule: Rule, facts: Facts) -> bool:
    """An environment changes what a command does, so a rule about commands must speak of it."""
    return rule.accepts_env or not facts.args.get("env")


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
    return _refusal(policy, DEFAULT_DENY, f"Tool {tool} not in allowlist (default deny)", detail)


def decide_by_ref(
    find: FindPolicy, call: ToolRequest, *, level: Level, parse_shell: ParseShell
) -> Decision:
    """What the policy that the call refers to says; a ref that names none is a deny."""
    policy = find(call.policy_ref)
    if policy is None:
        reason = f"Policy {call.policy_ref} not found"
        return Decision(Effect.DENY, POLICY_NOT_FOUND, reason, "", call.policy_ref)
    return decide(policy, call, level=level, parse_shell=parse_shell)


def _refusal(policy: Policy, rule_id: str, reason: str, detail: str = "") -> Decision:
    return Decision(Effect.DENY, rule_id, reason, policy.version, policy.name, detail)


def _decision(rule: Rule, call: ToolRequest, detail: str) -> Decision:
    made = rule.decision
    if not detail and not rule.per_tool:
        return made
    reason = made.reason.replace("{tool}", call.tool) if rule.per_tool else made.reason
    return Decision(made.effect, made.rule_id, reason, made.policy_version, made.policy_ref, detail)


def spell(command: Command) -> str:
    """A command for people to read; `…` is what only the shell knows."""
    words = [f"{word.prefix}…" if isinstance(word, Unknown) else word for word in command]
    return " ".join(words)[:200]
