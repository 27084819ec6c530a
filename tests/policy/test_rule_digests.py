"""The digest of the rule that decided: it changes with that rule's meaning and with nothing else."""

import random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.policy.test_policy_properties import calls, decided, rule_lists, rules
from toolgate.core.enums import Level
from toolgate.core.tools import Caller, JsonValue, ToolRequest
from toolgate.policy.compile import compile_policy, default_allow_policy
from toolgate.policy.decide import decide, decide_by_ref
from toolgate.policy.file import load_policy
from toolgate.policy.model import (
    ALLOWLIST_MATCH,
    DEFAULT_ALLOW,
    DEFAULT_DENY,
    EVALUATION_ERROR,
    HOSTNAME_CHECK,
    LIMIT_REACHED,
    POLICY_NOT_FOUND,
    SIGNING_ASKS,
    URL_VALIDATION,
    Decision,
    Effect,
    fixed_digest,
)
from toolgate.policy.shell_parser import TreeSitterShellParser

PARSE = TreeSitterShellParser()
ARGS: dict[str, JsonValue] = {"command": "git push", "n": 5, "path": "docs/x"}
CALL = ToolRequest("r", "shell", ARGS, caller=Caller(role="dev"))
RULE: dict[str, Any] = {
    "id": "a",
    "ask": ["shell", "web.fetch"],
    "match": {"command": ["git push", "git pull"], "path": "docs/**"},
    "for": {"role": ["dev"]},
    "when": {"args.n": "> 1"},
    "reason": "why",
}


def document(rule: dict[str, Any], *others: JsonValue, **more: JsonValue) -> Any:
    return {"version": 1, "rules": [rule, *others], **more}


def decision_of(
    given_document: Any, call: ToolRequest = CALL, level: Level = Level.READ
) -> Decision:
    return decide(compile_policy(given_document, name="p"), call, level=level, parse_shell=PARSE)


def test_a_digest_is_32_hex_digits() -> None:
    digest = decision_of(document(RULE)).rule_digest
    assert len(digest) == 32
    assert int(digest, 16)


@pytest.mark.parametrize(
    "edited",
    [
        {**RULE, "id": "b"},
        {**RULE, "reason": "why not"},
        {**RULE, "ask": ["shell"]},
        {**{key: value for key, value in RULE.items() if key != "ask"}, "deny": ["shell"]},
        {**RULE, "match": {"command": ["git push"], "path": "docs/**"}},
        {**RULE, "match": {"command": ["git push", "git pull"], "path": "docs/*"}},
        {**RULE, "match": {"command": ["git push", "git pull"]}},
        {**RULE, "for": {"role": ["dev", "ops"]}},
        {**RULE, "when": {"args.n": "> 2"}},
        {**RULE, "when": {"args.n": ["> 1", "< 9"]}},
    ],
)
def test_an_edit_of_the_rule_changes_its_digest(edited: dict[str, Any]) -> None:
    before, after = decision_of(document(RULE)), decision_of(document(edited))
    assert (before.rule_id, after.rule_id) == ("a", edited["id"])
    assert before.rule_digest != after.rule_digest


@pytest.mark.parametrize(
    "edited",
    [
        document({**RULE, "tests": [{"args": ARGS, "as": {"role": "dev"}}]}),
        document({**RULE, "ask": ["web.fetch", "shell"]}),
        document(RULE, {"id": "z", "allow": "*", "match": "any", "reason": "others"}),
        document(RULE, description="the policy of the team"),
        document(
            {**RULE, "match": {"command": "$c", "path": "docs/**"}},
            groups={"c": ["git push", "git pull"]},
        ),
    ],
)
def test_what_leaves_the_meaning_of_the_rule_leaves_its_digest(edited: Any) -> None:
    assert decision_of(edited).rule_digest == decision_of(document(RULE)).rule_digest


def test_a_member_of_a_group_that_the_rule_uses_is_part_of_its_meaning() -> None:
    rule: dict[str, Any] = {**RULE, "match": {"command": "$c"}}
    before = decision_of(document(rule, groups={"c": ["git push"]}))
    after = decision_of(document(rule, groups={"c": ["git push", "git log"]}))
    assert before.rule_digest != after.rule_digest


def test_a_comment_leaves_the_digest_as_it_is() -> None:
    text = "version: 1\nrules:\n  - {id: a, allow: echo, match: any, reason: It only echoes}\n"
    plain, commented = (
        load_policy(each, parse_shell=PARSE) for each in (text, f"# ours\n{text}# end\n")
    )
    assert plain.rules[0].decision.rule_digest == commented.rules[0].decision.rule_digest


@given(given_rules=rule_lists, call=calls(), extra=rules(), seed=st.integers())
def test_other_rules_and_their_order_leave_the_digest_as_it_is(
    given_rules: list[dict[str, Any]], call: ToolRequest, extra: dict[str, Any], seed: int
) -> None:
    numbered: list[Any] = [{"id": f"r{n}", **rule} for n, rule in enumerate(given_rules)]
    shuffled = [*numbered, {"id": "extra", **extra}]
    random.Random(seed).shuffle(shuffled)
    before, after = (
        {
            rule.id: (rule.decision.rule_digest, rule.signing.rule_digest)
            for rule in compile_policy({"version": 1, "rules": each}, name="p").rules
        }
        for each in (numbered, shuffled)
    )
    assert before.items() <= after.items()
    assert len(set(after.values())) == len(after)
    decision = decided(given_rules, call)
    known = before.get(decision.rule_id)
    fixed = fixed_digest(decision.rule_id, decision.effect)
    assert decision.rule_digest == (known[0] if known else fixed)


ALLOWLIST: JsonValue = {"tools": ["echo", "http.fetch"], "http_fetch_hosts": ["a.test"]}


@pytest.mark.parametrize(
    ("tool", "args", "rule_id", "effect"),
    [
        ("none", {}, DEFAULT_DENY, Effect.DENY),
        ("pay", {"n": "x"}, EVALUATION_ERROR, Effect.DENY),
        ("shell", {"command": "ls;" * 400_000}, LIMIT_REACHED, Effect.DENY),
        ("http.fetch", {"url": "https://b.test/"}, HOSTNAME_CHECK, Effect.DENY),
        ("http.fetch", {"url": "nonsense"}, URL_VALIDATION, Effect.DENY),
        ("http.fetch", {"url": "https://a.test/"}, ALLOWLIST_MATCH, Effect.ALLOW),
        ("echo", {}, ALLOWLIST_MATCH, Effect.ALLOW),
    ],
)
def test_a_decision_of_no_written_rule_has_the_digest_of_its_id_and_effect(
    tool: str, args: dict[str, JsonValue], rule_id: str, effect: Effect
) -> None:
    pay: JsonValue = {"id": "pay", "deny": "pay", "when": {"args.n": "> 1"}, "reason": "Money"}
    run: JsonValue = {
        "id": "run",
        "allow": "shell",
        "match": {"command": "ls"},
        "reason": "It reads",
    }
    given_document: Any = {"version": 1, "rules": [pay, run], "allowlist": ALLOWLIST}
    decision = decision_of(given_document, ToolRequest("r", tool, args))
    assert (decision.rule_id, decision.effect) == (rule_id, effect)
    assert decision.rule_digest == fixed_digest(rule_id, effect)


def test_a_policy_that_is_not_found_has_a_digest_too() -> None:
    decision = decide_by_ref(lambda _: None, CALL, level=Level.READ, parse_shell=PARSE)
    assert decision.rule_digest == fixed_digest(POLICY_NOT_FOUND, Effect.DENY)


def test_what_signs_has_a_digest_of_the_rule_that_would_allow_it() -> None:
    allow: dict[str, Any] = {"id": "a", "allow": "shell", "match": "any", "reason": "why"}
    allowed = decision_of(document(allow))
    asked = decision_of(document(allow), level=Level.SIGN)
    other = decision_of(document({**allow, "reason": "why not"}), level=Level.SIGN)
    assert (asked.effect, asked.rule_id, asked.reason) == (Effect.ASK, "a", SIGNING_ASKS)
    assert len({allowed.rule_digest, asked.rule_digest, other.rule_digest, ""}) == 4


def test_the_policy_that_allows_everything_has_a_digest() -> None:
    decision = decide(default_allow_policy(name="p"), CALL, level=Level.READ, parse_shell=PARSE)
    assert decision.rule_id == DEFAULT_ALLOW
    assert decision.rule_digest


def test_a_decision_of_0_1_0_is_read_without_a_digest() -> None:
    stored = b'["ask","a","why","sha256:1","policy.default","git push"]'
    decision = msgspec.json.decode(stored, type=Decision)
    assert decision == (Effect.ASK, "a", "why", "sha256:1", "policy.default", "git push", "", False)
