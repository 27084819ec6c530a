"""Documents that are no policy, and what is said about them."""

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolgate.core.enums import Level
from toolgate.core.tools import Caller
from toolgate.policy.compile import compile_policy
from toolgate.policy.document import schema_text, shape_problems
from toolgate.policy.file import default_policy_text, parse_document
from toolgate.policy.model import Effect, InvalidPolicy

ALLOW: dict[str, Any] = {"id": "a", "allow": "t", "match": "any", "reason": "why"}


def problems(document: Any) -> str:
    with pytest.raises(InvalidPolicy) as refused:
        compile_policy(document, name="policy.default")
    return "\n".join(refused.value.problems)


def rule(**changes: Any) -> dict[str, Any]:
    changed = {**ALLOW, **changes}
    return {"version": 1, "rules": [{k: v for k, v in changed.items() if v is not None}]}


@pytest.mark.parametrize(
    ("document", "where", "what"),
    [
        ([], "", "not a mapping"),
        ({}, "version", "must be 1"),
        ({"version": 2}, "version", "must be 1"),
        ({"version": "1"}, "version", "must be 1"),
        ({"version": True}, "version", "must be 1"),
        ({"version": 1, "default": "allow"}, "default", "only legal value is deny"),
        ({"version": 1, "rule": []}, "rule", "unknown key"),
        ({"version": 1, "rules": {}}, "rules", "must be a list"),
        ({"version": 1, "rules": ["x"]}, "rules[0]", "must be a mapping"),
        (
            {"version": 1, "rules": [ALLOW, ALLOW]},
            "rules[1]",
            "the id a is already that of rules[0]",
        ),
        ({"version": 1, "groups": []}, "groups", "must be a mapping"),
        ({"version": 1, "groups": {"g": "x"}}, "groups.g", "must be a list"),
        ({"version": 1, "groups": {"g": ["$h"]}}, "groups.g", "cannot hold another group"),
        ({"version": 1, "groups": {"G!": []}}, "groups.G!", "lower case"),
        ({"version": 1, "tests": [{"call": "t"}]}, "tests[0].expect", "must be allow, ask or deny"),
        ({"version": 1, "tests": [{"expect": "deny"}]}, "tests[0].call", "must name a tool"),
        (
            {"version": 1, "tests": [{"call": "t", "expect": "deny", "rule": "nope"}]},
            "tests[0].rule",
            "there is no rule nope",
        ),
        (
            {"version": 1, "tests": [{"call": "t", "expect": "deny", "as": {"rank": "x"}}]},
            "tests[0].as.rank",
            "unknown key",
        ),
        ({"version": 1, "allowlist": {"tool": []}}, "allowlist.tool", "unknown key"),
        (
            {"version": 1, "allowlist": {"http_fetch_hosts": ["a b"]}},
            "allowlist.http_fetch_hosts",
            "not a name",
        ),
        (rule(id=None), "rules[0].id", "letters, digits"),
        (rule(id="a b"), "rules[0].id", "letters, digits"),
        (rule(id="default_deny"), "rules[0].id", "Toolgate's own"),
        (rule(allow=None), "rules[0] (a)", "exactly one of allow, ask, deny"),
        (rule(deny="t"), "rules[0] (a)", "exactly one of allow, ask, deny"),
        (rule(alow="t"), "rules[0] (a).alow", "unknown key"),
        (rule(reason=None), "rules[0] (a)", "needs a reason"),
        (rule(reason=5), "rules[0] (a).reason", "must be text"),
        (rule(allow=5), "rules[0] (a).allow", "must be text"),
        (rule(allow="a tool"), "rules[0] (a).allow", "not a tool's name"),
        (rule(match=None), "rules[0] (a)", "matches everything; say `match: any`"),
        (rule(match=None, **{"for": {"role": "x"}}), "rules[0] (a)", "say `match: any`"),
        (rule(match={}), "rules[0] (a).match", "is empty"),
        (rule(match="all"), "rules[0] (a).match", "must be a mapping"),
        (rule(match="otherwise"), "rules[0] (a).match", "only an ask"),
        (rule(match={"comand": "ls"}), "rules[0] (a).match.comand", "unknown key"),
        (rule(match={"command": "ls*"}), "rules[0] (a).match.command", "must name its program"),
        (rule(match={"command": "*"}), "rules[0] (a).match.command", "must name its program"),
        (rule(match={"command": "? x"}), "rules[0] (a).match.command", "must name its program"),
        (rule(match={"command": "** x"}), "rules[0] (a).match.command", "must name its program"),
        (rule(match={"command": "sudo *"}), "rules[0] (a).match.command", "must give them all"),
        (rule(match={"command": "bash -c*"}), "rules[0] (a).match.command", "must give them all"),
        (rule(match={"command": "/usr/bin/env *"}), "rules[0] (a).match.command", "give them all"),
        (rule(match={"command": "xargs ?"}), "rules[0] (a).match.command", "give them all"),
        (rule(match={"command": "find . -name *"}), "rules[0] (a).match.command", "give them all"),
        (rule(match={"command": "ls '"}), "rules[0] (a).match.command", "No closing quotation"),
        (rule(match={"command": "''"}), "rules[0] (a).match.command", "names no program"),
        (rule(match={"command": 5}), "rules[0] (a).match.command", "must be text"),
        (rule(match={"command": "$none"}), "rules[0] (a).match.command", "no group $none"),
        (rule(match={"url": {}}), "rules[0] (a).match.url", "is empty"),
        (rule(match={"url": "a.test"}), "rules[0] (a).match.url", "must be a mapping"),
        (rule(match={"url": {"hosts": "x"}}), "rules[0] (a).match.url.hosts", "unknown key"),
        (rule(match={"url": {"host": "a.*"}}), "rules[0] (a).match.url.host", "not a name"),
        (rule(match={"url": {"host": "http://a"}}), "rules[0] (a).match.url.host", "not a"),
        (rule(match={"url": {"port": "80"}}), "rules[0] (a).match.url.port", "numbers of ports"),
        (rule(match={"url": {"port": 70000}}), "rules[0] (a).match.url.port", "numbers of ports"),
        (rule(match={"url": {"public": "yes"}}), "rules[0] (a).match.url.public", "true or false"),
        (rule(match={"url": {"public": None}}), "rules[0] (a).match.url.public", "true or false"),
        (rule(match={"url": {"scheme": None}}), "rules[0] (a).match.url.scheme", "must be text"),
        (rule(match={"url": {"method": None}}), "rules[0] (a).match.url.method", "must be text"),
        (rule(match={"path": "../x"}), "rules[0] (a).match.path", "climbs out"),
        (rule(match={"cwd": ""}), "rules[0] (a).match.cwd", "must be text"),
        (rule(match={"level": "admin"}), "rules[0] (a).match.level", "read, write, sign"),
        (rule(match={"arguments": {}}), "rules[0] (a).match.arguments", "is empty"),
        (rule(match={"arguments": {"a..b": 1}}), "rules[0] (a).match.arguments.a..b", "name of an"),
        (rule(match={"arguments": {"a": {}}}), "rules[0] (a).match.arguments.a", "must be text"),
        (rule(**{"for": {"rank": "x"}}), "rules[0] (a).for.rank", "unknown key"),
        (rule(**{"for": {"level": "root"}}), "rules[0] (a).for.level", "read, write, sign"),
        (rule(when={"amount": "> 1"}), "rules[0] (a).when.amount", "args.<name>"),
        (rule(when={"args.n": "1"}), "rules[0] (a).when.args.n", "must be an operator"),
        (rule(when={"args.n": "=> 1"}), "rules[0] (a).when.args.n", "must be an operator"),
        (rule(when={"args.n": "> x"}), "rules[0] (a).when.args.n", "compares numbers"),
        (rule(when={"args.n": ">> 1"}), "rules[0] (a).when.args.n", "must be an operator"),
        (rule(when={"args.n": "insert"}), "rules[0] (a).when.args.n", "must be an operator"),
        (rule(when={"args.n": "in-progress"}), "rules[0] (a).when.args.n", "must be an operator"),
        (rule(when={"args.n": "contains:x"}), "rules[0] (a).when.args.n", "must be an operator"),
        (rule(when={"args.n": "not internal"}), "rules[0] (a).when.args.n", "must be an operator"),
        (rule(when={"args.n": {"in": "x"}}), "rules[0] (a).when.args.n", "needs a list"),
        (rule(match=None, when={"args.n": []}), "rules[0] (a).when.args.n", "must be an operator"),
        (rule(when={"args.n": "in $none"}), "rules[0] (a).when.args.n", "no group $none"),
        (rule(when={"args.n": {"like": "x"}}), "rules[0] (a).when.args.n", "must be an operator"),
        (rule(when={"args.n": "=="}), "rules[0] (a).when.args.n", "needs a text"),
        (rule(when={"args.n": 5}), "rules[0] (a).when.args.n", "must be an operator"),
        (rule(tests=[{"args": []}]), "rules[0] (a).tests[0].args", "must be a mapping"),
        (rule(tests=[{"level": "x"}]), "rules[0] (a).tests[0].level", "read, write, sign"),
    ],
)
def test_a_broken_document_is_refused_with_the_place_and_the_problem(
    document: Any, where: str, what: str
) -> None:
    said = problems(document)
    assert any(line.startswith(where) and what in line for line in said.splitlines()), said


NAMES = """
    version name default groups rules allowlist tests id allow ask deny match for when reason command
    cwd path url arguments level scheme host port method public role call args as expect rule tools
    http_fetch_hosts g args.x in > x
"""
KEYS = st.sampled_from(NAMES.split())
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 70_000),
    st.floats(allow_nan=False),
    st.sampled_from(
        ["any", "otherwise", "$g", "*", "**", "ls *", "'", "> 1", "in", "a.test", "", "/"]
    ),
    st.text(max_size=5),
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(KEYS, inner, max_size=5)),
    max_leaves=25,
)


@given(rules=st.lists(st.dictionaries(KEYS, VALUES, max_size=6), max_size=3), rest=VALUES)
def test_whatever_a_document_says_it_is_a_policy_or_refused_and_nothing_breaks(
    rules: Any, rest: Any
) -> None:
    for document in (
        rest,
        {"version": 1, "rules": rules},
        {"version": 1, "rules": [], "tests": rest},
    ):
        with contextlib.suppress(InvalidPolicy):
            compile_policy(document, name="p")


def test_every_problem_is_told_at_once() -> None:
    said = problems({"version": 3, "default": "ask", "rules": [{"id": "x", "permit": "y"}]})
    assert len(said.splitlines()) >= 4


def test_more_rules_than_a_policy_may_have_are_refused() -> None:
    rules = [{**ALLOW, "id": f"r{number}"} for number in range(10_001)]
    assert "more than 10000" in problems({"version": 1, "rules": rules})


@pytest.mark.parametrize(
    "command", ["git log*", "ls *", "sudo systemctl status x", "make", "docker ? ps", "git ** x"]
)
def test_an_allow_may_name_a_program_and_leave_its_words_open(command: str) -> None:
    compile_policy(rule(match={"command": command}), name="p")


def test_a_deny_may_leave_everything_open() -> None:
    document = rule(
        allow=None, match={"command": ["*", "sudo *", "mkfs*", "** --force*"]}, deny="t"
    )
    compile_policy(document, name="p")
    compile_policy(rule(allow=None, match=None, deny="*"), name="p")


def test_the_schema_names_what_the_program_knows() -> None:
    """An enum or a field that is added in code is added in the schema, too."""
    schema = json.loads(schema_text())
    parts, callers = schema["$defs"], set(Caller.__struct_fields__)
    assert parts["callers"]["properties"].keys() == callers
    assert parts["test"]["properties"]["as"]["properties"].keys() == callers
    assert parts["level"]["enum"] == list(Level)
    assert parts["test"]["properties"]["expect"]["enum"] == list(Effect)
    assert shape_problems(parse_document(default_policy_text(), name="default")) == []
