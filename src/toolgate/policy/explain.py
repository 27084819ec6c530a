"""Why a policy decided as it did: each rule that names the tool, and what did or did not hold."""

from dataclasses import dataclass
from typing import Final

from toolgate.core.enums import Level
from toolgate.core.tools import ToolRequest
from toolgate.policy.decide import decide, has_known_env, spell
from toolgate.policy.inputs import EvaluationError, Facts, LimitReached
from toolgate.policy.model import (
    YES,
    Answer,
    Decision,
    Effect,
    Policy,
    Rule,
    in_order,
    rules_name,
)
from toolgate.policy.shell import ParseShell, TooComplex

SPELLED: Final = 200  # characters of a command


@dataclass(frozen=True, slots=True)
class RuleTrace:
    rule_id: str
    effect: Effect
    matched: bool
    why: str


@dataclass(frozen=True, slots=True)
class Explanation:
    decision: Decision
    traces: tuple[RuleTrace, ...]  # in the order that counts: deny, ask, allow, ask otherwise


def explain(
    policy: Policy, call: ToolRequest, *, level: Level, parse_shell: ParseShell
) -> Explanation:
    """The decision with a trace of every rule that names the tool."""
    candidates = policy.candidates(rules_name(call))
    facts = Facts(call, level=level, parse_shell=parse_shell)
    traces = [
        _trace(rule, facts)
        for rules in (candidates.deny, candidates.ask, candidates.allow, candidates.otherwise)
        for rule in in_order((*rules.plain, *rules.hosted))
    ]
    decision = decide(policy, call, level=level, parse_shell=parse_shell)
    return Explanation(decision, tuple(traces))


def _trace(rule: Rule, facts: Facts) -> RuleTrace:
    try:
        matched, why = _conditions(rule, facts)
        if matched and rule.commands is not None:
            matched, why = _commands(rule, facts)
    except (EvaluationError, LimitReached, TooComplex) as error:
        matched, why = False, f"cannot be applied: {error}"
    return RuleTrace(rule.id, rule.effect, matched, why)


def _conditions(rule: Rule, facts: Facts) -> tuple[bool, str]:
    held: list[str] = []
    for condition in rule.conditions:
        answer = condition.check(facts)
        if answer is Answer.NO:
            return False, f"not {condition.says}"
        if answer is Answer.MAYBE and rule.effect is Effect.ALLOW:
            return False, f"cannot be sure of {condition.says}"
        held.append(condition.says if answer is YES else f"perhaps {condition.says}")
    return True, "; ".join(held) or ("what no allow matches" if rule.otherwise else "any call")


def _commands(rule: Rule, facts: Facts) -> tuple[bool, str]:
    assert rule.commands is not None
    if rule.effect is not Effect.ALLOW:
        parts = [spell(each)[:SPELLED] for each in facts.commands if rule.commands.may_cover(each)]
        return bool(parts), f"command {parts[0]}" if parts else "none of its commands"
    argvs = facts.script.argvs
    if argvs is None:
        return False, f"the command is not plain: {facts.script.obstacle}"
    if not has_known_env(rule, facts):
        return False, "the call sets an environment"
    covered = [spell(argv)[:SPELLED] for argv in argvs if rule.commands.covers(argv)]
    if not covered:
        return False, "none of its commands"
    left = len(argvs) - len(covered)
    return True, f"command {', '.join(covered)}" + (
        f" ({left} left to other rules)" if left else ""
    )
