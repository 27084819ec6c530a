"""What holds of every policy, whatever its rules and the call."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from toolgate.core.enums import Level
from toolgate.core.tools import Caller, ToolRequest
from toolgate.policy.compile import compile_policy
from toolgate.policy.decide import decide
from toolgate.policy.explain import explain
from toolgate.policy.model import Decision, Effect, Policy
from toolgate.policy.shell_parser import TreeSitterShellParser

PARSE = TreeSitterShellParser()
TOOLS = ["shell", "web.fetch", "file.read"]
COMMANDS = ["ls", "ls *", "git log", "rm -rf *", "cat *"]
TEXTS = ["ls", "ls -la", "ls; rm -rf /", "git log | cat", "cat $X", "rm $(ls)", "$X", "ls '"]
HOSTS = ["a.test", "*.b.test", "b.test", "*"]
URLS = ["https://a.test/", "http://x.b.test", "https://b.test:8443", "nonsense", "https://u@a.test"]
PATHS = ["docs/**", "**/.env", "/etc/**", "*"]
PLACES = ["docs/x", "docs/../.env", "../x", "/etc/passwd", "a"]


def some(values: list[str]) -> st.SearchStrategy[list[str]]:
    return st.lists(st.sampled_from(values), max_size=3)


matches = st.one_of(
    st.just("any"),
    st.fixed_dictionaries({"command": some(COMMANDS)}),
    st.fixed_dictionaries({"url": st.fixed_dictionaries({"host": some(HOSTS)})}),
    st.fixed_dictionaries({"path": some(PATHS)}),
    st.fixed_dictionaries({"arguments": st.just({"n": [1, 2]})}),
    st.fixed_dictionaries({"level": some(["read", "write"])}),
)


@st.composite
def rules(draw: st.DrawFn) -> dict[str, Any]:
    effect = draw(st.sampled_from(["allow", "ask", "deny"]))
    rule: dict[str, Any] = {
        effect: draw(st.sampled_from([*TOOLS, "*", "web.*"])),
        "match": draw(matches),
        "reason": "why",
    }
    if effect == "ask" and draw(st.booleans()):
        rule["match"] = "otherwise"
    if draw(st.booleans()):
        rule["for"] = {"role": draw(some(["dev", "ops"]))}
    if draw(st.booleans()):
        rule["when"] = {"args.n": draw(st.sampled_from(["> 1", "!= 2", "in [1, 3]", "exists"]))}
    return rule


@st.composite
def calls(draw: st.DrawFn) -> ToolRequest:
    args: dict[str, Any] = {}
    for name, values in (("command", TEXTS), ("url", URLS), ("path", PLACES)):
        if draw(st.booleans()):
            args[name] = draw(st.sampled_from(values))
    if draw(st.booleans()):
        args["n"] = draw(st.sampled_from([1, 2, 3, "x"]))
    role = draw(st.sampled_from(["", "dev", "ops"]))
    return ToolRequest("r", draw(st.sampled_from(TOOLS)), args, caller=Caller(role=role))


rule_lists = st.lists(rules(), max_size=6)


def compiled(given_rules: list[dict[str, Any]]) -> Policy:
    numbered: Any = [{"id": f"r{n}", **rule} for n, rule in enumerate(given_rules)]
    return compile_policy({"version": 1, "rules": numbered}, name="p")


def decided(given_rules: list[dict[str, Any]], call: ToolRequest) -> Decision:
    return decide(compiled(given_rules), call, level=Level.READ, parse_shell=PARSE)


@given(given_rules=rule_lists, call=calls(), random=st.randoms())
def test_the_order_of_the_rules_does_not_matter(
    given_rules: list[dict[str, Any]], call: ToolRequest, random: Any
) -> None:
    shuffled = list(given_rules)
    random.shuffle(shuffled)
    before, after = decided(given_rules, call), decided(shuffled, call)
    assert before.effect is after.effect


@given(given_rules=rule_lists, call=calls(), extra=rules())
def test_another_allow_never_turns_a_deny_of_a_rule_into_anything_else(
    given_rules: list[dict[str, Any]], call: ToolRequest, extra: dict[str, Any]
) -> None:
    before = decided(given_rules, call)
    if "allow" in extra and before.effect is Effect.DENY and before.rule_id.startswith("r"):
        assert decided([*given_rules, extra], call).rule_id == before.rule_id


@given(given_rules=rule_lists, call=calls(), extra=rules())
def test_another_deny_never_lets_more_through(
    given_rules: list[dict[str, Any]], call: ToolRequest, extra: dict[str, Any]
) -> None:
    if "deny" in extra:
        before, after = decided(given_rules, call), decided([*given_rules, extra], call)
        assert after.effect in {before.effect, Effect.DENY}


@given(given_rules=rule_lists, call=calls())
def test_nothing_is_allowed_but_by_an_allow(
    given_rules: list[dict[str, Any]], call: ToolRequest
) -> None:
    decision = decided(given_rules, call)
    if decision.effect is not Effect.DENY:
        assert decision.effect.value in given_rules[int(decision.rule_id[1:])]
    if not any("allow" in rule for rule in given_rules):
        assert decision.effect is not Effect.ALLOW


@given(given_rules=rule_lists, call=calls())
def test_an_explanation_agrees_with_the_decision(
    given_rules: list[dict[str, Any]], call: ToolRequest
) -> None:
    explanation = explain(compiled(given_rules), call, level=Level.READ, parse_shell=PARSE)
    decision = explanation.decision
    if decision.rule_id.startswith("r"):
        traces = {trace.rule_id: trace for trace in explanation.traces}
        assert traces[decision.rule_id].matched
    elif decision.rule_id == "default_deny":
        fired = [t for t in explanation.traces if t.matched and t.effect is not Effect.ALLOW]
        assert not fired
