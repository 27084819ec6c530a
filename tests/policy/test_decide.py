"""What a policy decides, rule by rule."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from toolgate.core.enums import Level
from toolgate.core.globs import Glob
from toolgate.core.tools import Caller, JsonValue, ToolRequest
from toolgate.policy.compile import (
    compile_policy,
    default_allow_policy,
)
from toolgate.policy.decide import decide, decide_by_ref, may_pass
from toolgate.policy.explain import explain
from toolgate.policy.inputs import COMMAND_TOOLS
from toolgate.policy.model import Decision, Effect, Policy
from toolgate.policy.shell_parser import TreeSitterShellParser
from toolgate.policy.simulate import RecordedCall, simulate

PARSE = TreeSitterShellParser()
ALLOW, ASK, DENY = Effect.ALLOW, Effect.ASK, Effect.DENY


def policy(*rules: Mapping[str, JsonValue], **document: JsonValue) -> Policy:
    numbered: Any = [
        {"id": f"r{number}", "reason": "why", **rule} for number, rule in enumerate(rules)
    ]
    return compile_policy({"version": 1, "rules": numbered, **document}, name="policy.default")


def allow_only(tools: Sequence[str], hosts: Sequence[str] = ()) -> Policy:
    given: Any = {"tools": list(tools), "http_fetch_hosts": list(hosts)}
    return compile_policy({"version": 1, "allowlist": given}, name="p")


def decided(
    by: Policy,
    tool: str,
    args: Mapping[str, JsonValue] | None = None,
    *,
    level: Level = Level.READ,
    **caller: Any,
) -> Decision:
    call = ToolRequest("r", tool, args or {}, caller=Caller(**caller))
    return decide(by, call, level=level, parse_shell=PARSE)


def effect(by: Policy, tool: str, args: Any = None, **more: Any) -> tuple[Effect, str]:
    decision = decided(by, tool, args, **more)
    return decision.effect, decision.rule_id


@pytest.mark.requirement("003/policy/default-deny")
def test_a_tool_that_no_rule_names_is_denied_by_default() -> None:
    decision = decided(policy(), "kv.get")
    assert (decision.effect, decision.rule_id) == (DENY, "default_deny")
    assert decision.reason == "Tool kv.get not in allowlist (default deny)"


@pytest.mark.requirement("003/policy/allowlist-match")
def test_a_tool_on_the_allow_list_is_allowed_with_the_contracts_text() -> None:
    decision = decided(allow_only(["kv.get"]), "kv.get")
    assert (decision.effect, decision.rule_id) == (ALLOW, "tool_allowlist_match")
    assert decision.reason == "Tool kv.get is in allowlist"
    assert decision.policy_ref == "p"


def test_the_allow_list_can_be_written_in_a_file_beside_rules() -> None:
    by = policy(
        {"deny": "kv.get", "match": {"arguments": {"key": "secret*"}}},
        allowlist={"tools": ["kv.get", "http.fetch"], "http_fetch_hosts": ["a.test"]},
    )
    assert effect(by, "kv.get", {"key": "x"}) == (ALLOW, "tool_allowlist_match")
    assert effect(by, "kv.get", {"key": "secrets"}) == (DENY, "r0")
    assert effect(by, "kv.set") == (DENY, "default_deny")
    assert effect(by, "http.fetch", {"url": "http://a.test/"}) == (ALLOW, "tool_allowlist_match")


@pytest.mark.requirement("003/policy/hostname")
def test_a_host_that_is_not_listed_is_denied_with_the_contracts_text() -> None:
    by = allow_only(["http.fetch"], ["a.test", "*.b.test"])
    decision = decided(by, "http.fetch", {"url": "https://evil.test/a.test"})
    assert (decision.effect, decision.rule_id) == (DENY, "http_fetch_hostname_check")
    assert decision.reason == "Hostname evil.test not in allowlist"
    assert effect(by, "http.fetch", {"url": "https://x.b.test"})[0] is ALLOW


@pytest.mark.requirement("003/policy/bad-url")
@pytest.mark.parametrize(
    "url", ["", "a.test", "https://a.test\\@evil.test", 5, None, "http://[", []]
)
def test_a_url_that_cannot_be_read_is_denied(url: JsonValue) -> None:
    by = allow_only(["http.fetch"], ["a.test"])
    assert effect(by, "http.fetch", {"url": url}) == (DENY, "http_fetch_url_validation")


def test_only_http_is_fetched_from_a_listed_host() -> None:
    by = allow_only(["http.fetch"], ["a.test"])
    assert effect(by, "http.fetch", {"url": "file://a.test/etc/passwd"})[0] is DENY
    assert effect(by, "http.fetch", {"url": "http://user:pass@a.test/"})[0] is DENY


@pytest.mark.requirement("003/policy/empty-hosts")
def test_an_empty_host_list_means_no_host() -> None:
    by = allow_only(["http.fetch"], [])
    decision = effect(by, "http.fetch", {"url": "https://a.test/"})
    assert decision == (DENY, "http_fetch_hostname_check")


@pytest.mark.requirement("003/policy/default-allow")
def test_the_default_allow_policy_says_so() -> None:
    decision = decided(default_allow_policy(name="policy.open"), "anything.at.all")
    assert (decision.effect, decision.rule_id) == (ALLOW, "default_allow")
    assert decision.reason == "Default allow policy"


@pytest.mark.requirement("003/deny/unknown-policy-ref")
def test_a_ref_that_names_no_policy_is_a_deny() -> None:
    policies = {"policy.default": default_allow_policy(name="policy.default")}
    known, unknown = ToolRequest("r", "x", {}), ToolRequest("r", "x", {}, policy_ref="nowhere")
    assert decide_by_ref(policies.get, known, level=Level.READ, parse_shell=PARSE).effect is ALLOW
    decision = decide_by_ref(policies.get, unknown, level=Level.READ, parse_shell=PARSE)
    assert (decision.effect, decision.rule_id) == (DENY, "policy_not_found")
    assert decision.policy_ref == "nowhere"


def test_deny_comes_before_ask_before_allow_and_ask_otherwise_last() -> None:
    allow: dict[str, JsonValue] = {"allow": "t", "match": {"arguments": {"x": [1, 2, 3]}}}
    ask: dict[str, JsonValue] = {"ask": "t", "match": {"arguments": {"x": [2, 3]}}}
    deny: dict[str, JsonValue] = {"deny": "t", "match": {"arguments": {"x": 3}}}
    rest: dict[str, JsonValue] = {"ask": "t", "match": "otherwise"}
    by = policy(rest, allow, ask, deny)
    assert effect(by, "t", {"x": 1}) == (ALLOW, "r1")
    assert effect(by, "t", {"x": 2}) == (ASK, "r2")
    assert effect(by, "t", {"x": 3}) == (DENY, "r3")
    assert effect(by, "t", {"x": 4}) == (ASK, "r0")


def test_of_rules_with_one_effect_the_first_in_the_file_gives_its_name() -> None:
    by = policy({"deny": "t*"}, {"deny": "t"}, {"deny": "*"})
    assert effect(by, "t") == (DENY, "r0")
    assert effect(by, "u") == (DENY, "r2")


def test_tools_are_named_by_globs_and_lists() -> None:
    by = policy({"allow": ["browser.*", "kv.get"], "match": "any"})
    assert effect(by, "browser.open")[0] is ALLOW
    assert effect(by, "browser")[0] is DENY
    assert effect(by, "kv.get")[0] is ALLOW
    assert effect(by, "kv.getx")[0] is DENY


@pytest.mark.parametrize("tool", ["browser.run_task_template", "browser.run_*"])
def test_a_rule_for_the_tool_that_runs_templates_covers_every_template(tool: str) -> None:
    by = policy({"deny": tool}, {"allow": "*", "match": "any"})
    assert effect(by, "browser.screenshot_page") == (DENY, "r0")
    assert effect(by, "browser.task", {"goal": "Read"}) == (DENY, "r0")
    assert effect(by, "browser.get_task_run") == (ALLOW, "r1")
    for template in ("screenshot_page", "get_task_run", 5):
        assert effect(by, "browser.run_task_template", {"templateId": template}) == (DENY, "r0")


def test_a_rule_for_a_template_covers_the_tool_that_runs_it() -> None:
    by = policy({"deny": "browser.pdf_page"}, {"allow": "browser.*", "match": "any"})
    run = "browser.run_task_template"
    assert effect(by, run, {"templateId": "pdf_page"}) == (DENY, "r0")
    assert effect(by, run, {"templateId": "screenshot_page"}) == (ALLOW, "r1")
    assert effect(by, "browser.pdf_page") == (DENY, "r0")


@pytest.mark.parametrize(
    "key", ["tenant", "workspace", "device", "user", "role", "agent", "session"]
)
def test_a_rule_can_be_for_some_callers_only(key: str) -> None:
    by = policy({"allow": "t", "match": "any", "for": {key: ["alpha", "team-*"]}})
    assert effect(by, "t", **{key: "alpha"})[0] is ALLOW
    assert effect(by, "t", **{key: "team-7"})[0] is ALLOW
    assert effect(by, "t", **{key: "beta"})[0] is DENY
    without = policy({"allow": "t", "match": "any", "for": {key: ["", "alpha"]}})
    assert effect(without, "t", **{key: ""})[0] is ALLOW
    assert effect(without, "t", **{key: "alpha"})[0] is ALLOW
    assert effect(without, "t", **{key: "beta"})[0] is DENY
    assert effect(by, "t")[0] is DENY


def test_a_rule_can_be_for_callers_of_a_level_or_for_tools_of_one() -> None:
    by = policy(
        {"allow": "a", "match": "any", "for": {"level": ["write", "sign"]}},
        {"allow": "b", "match": {"level": "read"}},
    )
    assert effect(by, "a", level=Level.READ)[0] is DENY
    call = ToolRequest("r", "a", {}, caller=Caller(level=Level.WRITE))
    assert decide(by, call, level=Level.READ, parse_shell=PARSE).effect is ALLOW
    assert effect(by, "b", level=Level.READ)[0] is ALLOW
    assert effect(by, "b", level=Level.WRITE)[0] is DENY


@pytest.mark.parametrize("match", ["any", {"level": "sign"}, {"command": "git push"}])
def test_what_signs_asks_a_person_whatever_allows_it(match: JsonValue) -> None:
    by = policy({"id": "mine", "allow": "pay", "match": match, "reason": "Ours"})
    call = ToolRequest("r", "pay", {"command": "git push"})
    decision = decide(by, call, level=Level.SIGN, parse_shell=PARSE)
    assert (decision.effect, decision.rule_id) == (ASK, "mine")
    never = policy({"allow": "pay", "match": match}, {"deny": "pay"})
    assert decide(never, call, level=Level.SIGN, parse_shell=PARSE).effect is DENY


@pytest.mark.parametrize("kind", ["role", "tool", "command", "path", "host", "arguments"])
def test_an_empty_list_matches_nothing(kind: str) -> None:
    rule: dict[str, JsonValue] = {"deny": "t"}
    match kind:
        case "role":
            rule["for"] = {"role": []}
        case "tool":
            rule["deny"] = []
        case "host":
            rule["match"] = {"url": {"host": []}}
        case "arguments":
            rule["match"] = {"arguments": {"command": []}}
        case _:
            rule["match"] = {kind: []}
    by = policy(rule, {"allow": "t", "match": "any"})
    args = {"command": "ls", "path": "x", "url": "http://a.test"}
    assert effect(by, "t", args) == (ALLOW, "r1")
    assert effect(by, "t", {"path": "..", "url": "//", "command": "$X"}) == (ALLOW, "r1")


@pytest.mark.parametrize(
    ("condition", "value", "holds"),
    [
        ("> 100", 101, True),
        ("> 100", 100, False),
        (">= 100", 100, True),
        ("< 1.5", 1.2, True),
        ("<= 100", 101, False),
        ("== 5", 5, True),
        ("== EUR", "EUR", True),
        ("== true", True, True),
        ("!= EUR", "USD", True),
        ("!= EUR", "EUR", False),
        ("in EUR, USD", "USD", True),
        ("in EUR, USD", "GBP", False),
        ("not in [1, 2]", 3, True),
        ("not in [1, 2]", 2, False),
        ("contains drop", "drop table", True),
        ("contains drop", "select", False),
        ("contains x", ["x", "y"], True),
        ("contains x", ["y"], False),
        ("exists", 0, True),
        ("exists", None, False),
        ("exists false", None, True),
        ({"in": ["a", "b"]}, "a", True),
        ({">": 1, "<": 5}, 3, True),
        ({">": 1, "<": 5}, 7, False),
        (["> 1", "< 5"], 3, True),
        ("> 100", None, False),
        ("== x", None, False),
    ],
)
def test_a_rule_can_compare_arguments(condition: JsonValue, value: JsonValue, holds: bool) -> None:
    by = policy({"allow": "pay", "when": {"args.order.amount": condition}})
    args: dict[str, JsonValue] = {"order": {"amount": value}}
    assert effect(by, "pay", args)[0] is (ALLOW if holds else DENY)


@pytest.mark.parametrize("value", ["lots", True, [1], {"a": 1}, "100"])
def test_an_evaluation_error_in_a_deny_rule_is_a_deny_of_its_own(value: JsonValue) -> None:
    by = policy({"allow": "pay", "match": "any"}, {"deny": "pay", "when": {"args.amount": "> 100"}})
    assert effect(by, "pay", {"amount": 5}) == (ALLOW, "r0")
    assert effect(by, "pay", {"amount": 500}) == (DENY, "r1")
    assert effect(by, "pay", {"amount": value}) == (DENY, "evaluation_error")


def test_a_parser_that_breaks_shuts_the_gate() -> None:
    def broken(_: str) -> Any:
        raise RuntimeError("out of order")

    by = policy({"allow": "shell", "match": {"command": "ls *"}})
    call = ToolRequest("r", "shell", {"command": "ls"})
    decision = decide(by, call, level=Level.READ, parse_shell=broken)
    assert (decision.effect, decision.rule_id) == (DENY, "evaluation_error")


@pytest.mark.parametrize("command", [5, True, {"a": 1}, [], ["ls", 5]])
def test_a_command_that_is_no_text_is_an_evaluation_error(command: JsonValue) -> None:
    by = policy({"deny": "shell", "match": {"command": "rm *"}}, {"allow": "shell", "match": "any"})
    assert effect(by, "shell", {"command": command}) == (DENY, "evaluation_error")


def test_more_values_than_a_policy_looks_at_is_a_limit() -> None:
    by = policy({"allow": "t", "match": {"url": {"host": "a.test"}}})
    urls: JsonValue = ["http://a.test/"] * 1001
    assert effect(by, "t", {"urls": urls}) == (DENY, "limit_reached")
    assert effect(by, "t", {"urls": ["http://a.test/"] * 1000}) == (ALLOW, "r0")


def test_an_allow_that_cannot_be_applied_does_not_allow_and_does_not_hinder_another() -> None:
    broken: dict[str, JsonValue] = {"allow": "t", "when": {"args.n": "> 1"}}
    sound: dict[str, JsonValue] = {"allow": "t", "match": {"arguments": {"m": 1}}}
    rest: dict[str, JsonValue] = {"ask": "t", "match": "otherwise"}
    for by in (policy(broken, sound, rest), policy(rest, sound, broken)):
        assert effect(by, "t", {"n": "x", "m": 1})[0] is ALLOW
        assert effect(by, "t", {"n": "x", "m": 2}) == (DENY, "evaluation_error")
        assert effect(by, "t", {"n": 1, "m": 2})[0] is ASK


def test_an_absent_argument_may_be_anything_to_a_deny_that_says_not() -> None:
    by = policy(
        {"deny": "deploy", "when": {"args.to": "!= staging"}}, {"allow": "deploy", "match": "any"}
    )
    assert effect(by, "deploy", {"to": "staging"}) == (ALLOW, "r1")
    assert effect(by, "deploy", {"to": "production"}) == (DENY, "r0")
    assert effect(by, "deploy", {}) == (DENY, "r0")


def test_every_url_of_a_call_must_match_an_allow_and_any_a_deny() -> None:
    by = policy(
        {"allow": "t", "match": {"url": {"host": ["a.test", "b.test"]}}},
        {"deny": "t", "match": {"url": {"host": "bad.test"}}},
    )
    good, other, bad = "https://a.test/", "https://c.test/", "https://bad.test/"
    assert effect(by, "t", {"urls": [good, "https://b.test"]}) == (ALLOW, "r0")
    assert effect(by, "t", {"urls": [good, other]}) == (DENY, "default_deny")
    assert effect(by, "t", {"urls": [other, good]}) == (DENY, "default_deny")
    assert effect(by, "t", {"urls": [good, bad]}) == (DENY, "r1")
    assert effect(by, "t", {"url": good, "inputs": {"startUrl": bad}}) == (DENY, "r1")
    assert effect(by, "t", {"url": good, "urls": [other]}) == (DENY, "default_deny")
    assert effect(by, "t", {"url": "http://bad.test\\x"}) == (DENY, "r1")
    assert effect(by, "t", {"url": "https://x@bad.test"}) == (DENY, "r1")
    assert effect(by, "t", {}) == (DENY, "default_deny")


@pytest.mark.parametrize(
    ("url", "extra", "expected"),
    [
        ("https://a.test/", {}, ALLOW),
        ("https://a.test/", {"method": "get"}, ALLOW),
        ("https://a.test/", {"method": "POST"}, DENY),
        ("http://a.test/", {}, DENY),
        ("https://a.test:8443/", {}, ALLOW),
        ("https://a.test:9/", {}, DENY),
        ("https://A.TEST.:443/", {}, ALLOW),
    ],
)
def test_scheme_method_and_port_are_compared(
    url: str, extra: dict[str, JsonValue], expected: Effect
) -> None:
    wanted: JsonValue = {
        "scheme": "https",
        "host": "a.test",
        "method": ["GET"],
        "port": [443, 8443],
    }
    by = policy({"allow": "web.fetch", "match": {"url": wanted}})
    assert effect(by, "web.fetch", {"url": url, **extra})[0] is expected


@pytest.mark.parametrize("tools", ["http.*", "*", ["kv.get", "*.fetch"], ["*", "http.fetch"]])
def test_a_glob_on_the_allow_list_does_not_free_http_fetch_of_its_hosts(tools: JsonValue) -> None:
    allowlist: JsonValue = {"tools": tools, "http_fetch_hosts": ["a.test"]}
    by = policy(allowlist=allowlist)
    fetch = decided(by, "http.fetch", {"url": "https://a.test/"})
    assert (fetch.effect, fetch.rule_id) == (ALLOW, "tool_allowlist_match")
    elsewhere = decided(by, "http.fetch", {"url": "https://b.test/"})
    assert (elsewhere.effect, elsewhere.rule_id) == (DENY, "http_fetch_hostname_check")
    none = allow_only(["http.*"])
    assert effect(none, "http.fetch", {"url": "https://a.test/"})[0] is DENY
    assert effect(none, "http.other", {"url": "https://a.test/"})[0] is ALLOW


def test_the_addresses_that_a_goal_names_are_addresses_of_the_call() -> None:
    by = policy(
        {"deny": "browser.*", "match": {"url": {"host": "evil.test"}}},
        {"allow": "browser.*", "match": {"url": {"host": ["a.test", "evil.test"]}}},
    )
    goal = {"goal": "Read https://a.test/x, please"}
    assert effect(by, "browser.task", goal) == (ALLOW, "r1")
    assert effect(by, "browser.task", {"goal": "Read <http://evil.test/>"}) == (DENY, "r0")
    assert effect(by, "browser.task", {"goal": "Read it"}) == (DENY, "default_deny")
    elsewhere: dict[str, JsonValue] = {"goal": "See https://b.test/", "url": "https://a.test/"}
    assert effect(by, "browser.task", elsewhere) == (DENY, "default_deny")
    many = {"goal": "https://a.test/ " * 1001}
    assert effect(by, "browser.task", many) == (DENY, "limit_reached")


def test_paths_are_compared_by_component_and_those_that_cannot_be_told_only_serve_a_deny() -> None:
    by = policy(
        {"allow": "file.read", "match": {"path": "docs/**"}},
        {"deny": "file.read", "match": {"path": ["**/.env"]}},
    )
    assert effect(by, "file.read", {"path": "docs/a/../b.md"}) == (ALLOW, "r0")
    assert effect(by, "file.read", {"path": "docs/../src/x"}) == (DENY, "default_deny")
    assert effect(by, "file.read", {"path": "docs/.env"}) == (DENY, "r1")
    assert effect(by, "file.read", {"path": "/x/.env"}) == (DENY, "r1")
    assert effect(by, "file.read", {"path": "../docs/x"}) == (DENY, "r1")
    assert effect(by, "file.read", {"path": "docs/\x00"}) == (DENY, "r1")
    assert effect(by, "file.read", {"path": ["docs/a", "docs/.env"]}) == (DENY, "r1")
    assert effect(by, "file.read", {"path": 7}) == (DENY, "r1")


def test_a_deny_is_not_got_around_by_spelling_out_where_the_workspace_is() -> None:
    by = policy(
        {"deny": "file.*", "match": {"path": "secrets/**"}},
        {"deny": "bash.exec", "match": {"cwd": "secrets"}},
        {"allow": "*", "match": "any"},
    )
    assert effect(by, "file.read", {"path": "/workspace/secrets/key"}) == (DENY, "r0")
    assert effect(by, "file.read", {"path": "/workspace/notes/x"}) == (ALLOW, "r2")
    assert effect(by, "bash.exec", {"cmd": "ls", "cwd": "/workspace/secrets"}) == (DENY, "r1")


def test_the_directory_that_a_command_runs_in_is_compared() -> None:
    by = policy({"allow": "shell", "match": {"command": "make", "cwd": ["build/**", "."]}})
    assert effect(by, "shell", {"command": "make", "cwd": "build/x"})[0] is ALLOW
    assert effect(by, "shell", {"command": "make", "cwd": "."})[0] is ALLOW
    assert effect(by, "shell", {"command": "make", "cwd": "src"})[0] is DENY
    assert effect(by, "shell", {"command": "make", "cwd": "build/../.."})[0] is DENY
    assert effect(by, "shell", {"command": "make", "cwd": ["build"]})[0] is DENY


@pytest.mark.parametrize("cwd", [{}, {"cwd": ""}, {"cwd": None}])
@pytest.mark.parametrize("command", [{"command": "make"}, {"cmd": "make"}, {"code": "make()"}])
def test_a_command_that_does_not_say_where_it_runs_may_run_where_a_deny_is_about(
    command: dict[str, JsonValue], cwd: dict[str, JsonValue]
) -> None:
    """A session goes on in the directory that an earlier command, `cd`, has left it in."""
    anywhere: dict[str, JsonValue] = {"allow": "*", "match": "any"}
    by = policy(anywhere, {"deny": "*", "match": {"cwd": "production/**"}})
    assert effect(by, "bash.exec", {**command, **cwd}) == (DENY, "r1")
    assert effect(by, "bash.exec", {**command, "cwd": "build"}) == (ALLOW, "r0")
    assert effect(by, "kv.get", {"key": "a", **cwd}) == (ALLOW, "r0")
    here = policy({"allow": "*", "match": {"cwd": "."}})
    assert effect(here, "bash.exec", {**command, **cwd})[0] is DENY


def test_arguments_are_matched_by_pattern_or_equality() -> None:
    by = policy(
        {
            "allow": "kv.get",
            "match": {"arguments": {"key": ["public/*", "name"], "deep.flag": True}},
        }
    )
    assert effect(by, "kv.get", {"key": "public/x", "deep": {"flag": True}})[0] is ALLOW
    assert effect(by, "kv.get", {"key": "name", "deep": {"flag": 1}})[0] is DENY
    assert effect(by, "kv.get", {"key": "private", "deep": {"flag": True}})[0] is DENY
    assert effect(by, "kv.get", {"key": ["name"], "deep": {"flag": True}})[0] is DENY
    assert effect(by, "kv.get", {"key": "name"})[0] is DENY


def test_an_argument_of_another_kind_may_be_what_a_deny_is_about() -> None:
    by = policy(
        {"deny": "kv.get", "match": {"arguments": {"key": "secret*"}}},
        {"allow": "kv.get", "match": "any"},
    )
    assert effect(by, "kv.get", {"key": ["secret"]}) == (DENY, "r0")
    assert effect(by, "kv.get", {"key": 5}) == (DENY, "r0")
    assert effect(by, "kv.get", {"key": "x"}) == (ALLOW, "r1")


@pytest.mark.parametrize(
    ("wanted", "given"),
    [
        (7, 7.0),
        (7.0, 7),
        (True, 1),
        (1, True),
        (False, 0),
        (7, "7"),
        (True, "true"),
        ([7, "x"], 7.0),
    ],
)
def test_a_number_is_the_same_however_it_is_written(wanted: JsonValue, given: JsonValue) -> None:
    by = policy(
        {"deny": "pay", "match": {"arguments": {"account": wanted}}},
        {"allow": "pay", "match": "any"},
    )
    assert effect(by, "pay", {"account": given}) == (DENY, "r0")


def test_another_number_is_not_what_a_deny_is_about() -> None:
    by = policy(
        {"deny": "pay", "match": {"arguments": {"account": [7, 9.5]}}},
        {"allow": "pay", "match": "any"},
    )
    assert effect(by, "pay", {"account": 8})[0] is ALLOW
    assert effect(by, "pay", {"account": 7.5})[0] is ALLOW


def test_a_list_contains_a_number_however_it_is_written() -> None:
    by = policy(
        {"deny": "pay", "when": {"args.accounts": "contains 7"}}, {"allow": "pay", "match": "any"}
    )
    assert effect(by, "pay", {"accounts": [1, 7.0]}) == (DENY, "r0")
    assert effect(by, "pay", {"accounts": [True, 8]}) == (ALLOW, "r1")


@pytest.mark.parametrize(
    "blocked", ["in $blocked", {"in": ["$blocked"]}, {"in": ["x", "$blocked"]}]
)
def test_a_group_stands_for_its_members_in_a_comparison_too(blocked: JsonValue) -> None:
    by = policy(
        {"deny": "pay", "when": {"args.to": blocked}},
        {"allow": "pay", "when": {"args.to": "not in $blocked"}},
        groups={"blocked": ["eve", "mallory"]},
    )
    assert effect(by, "pay", {"to": "mallory"}) == (DENY, "r0")
    assert effect(by, "pay", {"to": "bob"}) == (ALLOW, "r1")


def test_a_number_may_be_one_of_a_list_that_holds_texts_as_well() -> None:
    by = policy({"allow": "pay", "when": {"args.to": {"in": ["main", 7]}}})
    assert effect(by, "pay", {"to": 7})[0] is ALLOW
    assert effect(by, "pay", {"to": "main"})[0] is ALLOW
    assert effect(by, "pay", {"to": 8}) == (DENY, "default_deny")
    assert effect(by, "pay", {"to": True}) == (DENY, "evaluation_error")


READING: JsonValue = {"command": ["git status *", "git log"]}


@pytest.mark.parametrize("payment", [[{"amount": 500}], '{"amount": 500}'])
def test_what_lies_in_a_list_or_a_text_may_be_what_a_deny_is_about(payment: JsonValue) -> None:
    allow: dict[str, JsonValue] = {"allow": "pay", "match": "any"}
    abouts: list[dict[str, JsonValue]] = [
        {"match": {"arguments": {"payment.amount": 500}}},
        {"when": {"args.payment.amount": "> 100"}},
        {"when": {"args.payment.amount": "exists"}},
    ]
    for about in abouts:
        by = policy(allow, {"deny": "pay", **about})
        assert effect(by, "pay", {"payment": payment}) == (DENY, "r1")
        assert effect(by, "pay", {"payment": {"amount": 500}}) == (DENY, "r1")
        assert effect(by, "pay", {"payment": {"currency": "EUR"}}) == (ALLOW, "r0")
        assert effect(by, "pay", {"payment": None}) == (ALLOW, "r0")
    unforced = policy({"allow": "pay", "when": {"args.payment.amount": "exists false"}})
    assert effect(unforced, "pay", {"payment": payment}) == (DENY, "default_deny")


def test_rules_can_cover_the_commands_of_one_text_between_them() -> None:
    by = policy(
        {"allow": "shell", "match": READING},
        {"allow": "shell", "match": {"command": "head *"}, "for": {"role": "dev"}},
    )
    assert effect(by, "shell", {"command": "git log | head -3"}, role="dev") == (ALLOW, "r0")
    assert effect(by, "shell", {"command": "head x; git log"}, role="dev") == (ALLOW, "r0")
    assert effect(by, "shell", {"command": "git log | head -3"}) == (DENY, "default_deny")


def test_an_allow_of_any_call_gives_its_own_name() -> None:
    by = policy({"allow": "shell", "match": READING}, {"allow": "shell", "match": "any"})
    assert effect(by, "shell", {"command": "git log; make"}) == (ALLOW, "r1")


def test_a_command_given_as_words_is_matched_without_a_shell() -> None:
    by = policy({"allow": "exec", "match": {"command": ["git log", "echo *"]}})

    def tried(args: dict[str, JsonValue]) -> Effect:
        return effect(by, "exec", args)[0]

    assert tried({"command": "git", "params": ["log"]}) is ALLOW
    assert tried({"command": "echo", "params": ["$(rm -rf /)", "; rm"]}) is ALLOW
    assert tried({"command": "git", "params": ["log", ";", "x"]}) is DENY
    assert tried({"command": "git", "params": []}) is DENY
    assert tried({"command": "git log", "params": []}) is DENY
    assert tried({"command": "git log"}) is DENY
    assert tried({"command": "echo x/../../tmp/evil"}) is DENY  # a path, were there a "echo x"
    assert tried({"command": "echo"}) is ALLOW
    assert tried({"command": "echo", "params": "x"}) is DENY
    assert tried({"command": "echo", "params": ["a\x00b"]}) is DENY
    assert tried({"cmd": "git log"}) is ALLOW
    assert tried({"cmd": "git log; echo x"}) is DENY
    assert tried({"cmd": "git log", "command": "echo x"}) is DENY


def test_a_deny_fires_on_the_one_word_of_a_command_without_a_shell_as_well() -> None:
    by = policy(
        {"allow": "exec", "match": "any"}, {"deny": "exec", "match": {"command": "rm -rf *"}}
    )
    assert effect(by, "exec", {"command": "rm -rf /"})[0] is DENY
    assert effect(by, "exec", {"command": "rm"})[0] is ALLOW


def test_a_shell_that_is_given_parameters_beside_its_text_is_not_plain() -> None:
    by = policy({"allow": "shell", "match": {"command": "echo *"}})
    assert effect(by, "shell", {"command": "echo", "params": ["x"]})[0] is DENY


def test_an_environment_stands_in_the_way_of_an_allow_that_does_not_speak_of_it() -> None:
    silent = policy({"allow": "exec", "match": {"command": "ls *"}})
    speaking = policy(
        {"allow": "exec", "match": {"command": "ls *", "arguments": {"env.LANG": "C"}}}
    )
    args: dict[str, JsonValue] = {"cmd": "ls", "env": {"LANG": "C"}}
    assert effect(silent, "exec", args)[0] is DENY
    assert effect(silent, "exec", {"cmd": "ls", "env": {}})[0] is ALLOW
    assert effect(speaking, "exec", args)[0] is ALLOW


def test_an_allow_that_speaks_of_one_variable_does_not_take_another() -> None:
    match: JsonValue = {"command": "ls *", "arguments": {"env.LANG": "C", "env.TZ": "*"}}
    by = policy({"allow": "bash.exec", "match": match})

    def tried(env: JsonValue) -> Effect:
        return effect(by, "bash.exec", {"cmd": "ls", "env": env})[0]

    assert tried({"LANG": "C", "TZ": "UTC"}) is ALLOW
    assert tried({"LANG": "C", "TZ": "UTC", "LD_PRELOAD": "./evil.so"}) is DENY
    assert tried({"LANG": "C", "TZ": "UTC", "PATH": "."}) is DENY
    assert tried(["LANG=C"]) is DENY


def test_a_wrapper_is_allowed_only_word_for_word() -> None:
    by = policy(
        {"allow": "shell", "match": {"command": ["sudo systemctl status nginx", "sh -c 'make x'"]}}
    )
    assert effect(by, "shell", {"command": "sudo systemctl status nginx"})[0] is ALLOW
    assert effect(by, "shell", {"command": "sh -c 'make x'"})[0] is ALLOW
    assert effect(by, "shell", {"command": "sudo systemctl status sshd"})[0] is DENY
    assert effect(by, "shell", {"command": "sh -c 'make y'"})[0] is DENY


def test_a_tool_may_pass_where_some_call_of_it_is_not_simply_denied() -> None:
    by = policy(
        {"allow": "reads", "match": {"path": "docs/**"}},
        {"ask": "rest", "match": "otherwise"},
        {"allow": "devs", "match": "any", "for": {"role": "dev"}},
        {"allow": "levels", "match": {"level": "read"}},
        {"allow": "gone", "match": "any"},
        {"deny": "gone"},
        {"allow": "partly", "match": {"url": {"host": "a.test"}}},
        {"deny": "partly", "match": {"url": {"host": "b.test"}}},
        {"allow": "kept", "match": "any"},
        {"deny": "kept", "for": {"role": "guest"}},
    )

    def passes(tool: str, level: Level = Level.READ, **caller: Any) -> bool:
        return may_pass(by, tool, caller=Caller(**caller), level=level)

    assert passes("reads")
    assert passes("rest")
    assert passes("devs", role="dev")
    assert not passes("devs")
    assert passes("levels")
    assert not passes("levels", Level.WRITE)
    assert not passes("gone")
    assert passes("partly")
    assert passes("kept")
    assert not passes("kept", role="guest")
    assert not passes("unheard.of")


def test_a_deny_shows_the_part_that_it_fired_on() -> None:
    by = policy({"deny": "shell", "match": {"command": "rm -rf *"}})
    assert decided(by, "shell", {"command": "ls && rm -rf $HOME"}).detail == "rm -rf …"


def test_every_decision_carries_the_version_of_the_rules_that_made_it() -> None:
    first = policy({"allow": "t", "match": "any"})
    same = compile_policy(
        {
            "rules": [{"reason": "why", "match": "any", "allow": ["t"], "id": "r0"}],
            "tests": [{"call": "t", "expect": "allow"}],
            "description": "laid out otherwise",
            "version": 1,
        },
        name="policy.default",
    )
    other = policy({"allow": "t", "match": {"level": "read"}})
    assert decided(first, "t").policy_version == first.version == same.version
    assert decided(first, "u").policy_version == first.version
    assert first.version != other.version
    assert first.version.startswith("sha256:")


@pytest.mark.parametrize(
    "changed",
    [
        {"groups": {"g": ["a.test", "b.test"]}},
        {"reason": "another"},
        {"match": {"url": {"host": "$g", "scheme": "https"}}},
        {"for": {"role": "dev"}},
        {"when": {"args.x": "> 1"}},
        {"allow": "u"},
    ],
)
def test_another_meaning_has_another_version(changed: dict[str, JsonValue]) -> None:
    def version(change: dict[str, JsonValue]) -> str:
        rule: dict[str, JsonValue] = {"allow": "t", "match": {"url": {"host": "$g"}}}
        groups = change.get("groups", {"g": ["a.test"]})
        parts = {key: value for key, value in change.items() if key != "groups"}
        return policy({**rule, **parts}, groups=groups).version

    assert version({}) == version({"groups": {"g": ["A.test"]}})
    assert version({}) != version(changed)


def test_an_explanation_says_of_each_rule_why_it_matched_or_not() -> None:
    by = policy(
        {"allow": "shell", "match": {"command": "ls *"}, "for": {"role": "dev"}},
        {"deny": "shell", "match": {"command": "rm *"}},
        {"ask": "shell", "when": {"args.timeout_ms": "> 1000"}},
        {"allow": "other", "match": "any"},
    )
    call = ToolRequest(
        "r", "shell", {"command": "ls; rm x", "timeout_ms": 5}, caller=Caller(role="dev")
    )
    explanation = explain(by, call, level=Level.READ, parse_shell=PARSE)
    assert explanation.decision.rule_id == "r1"
    assert [(trace.rule_id, trace.matched) for trace in explanation.traces] == [
        ("r1", True),
        ("r2", False),
        ("r0", True),
    ]
    deny, ask, allow = (trace.why for trace in explanation.traces)
    assert "rm x" in deny
    assert "args.timeout_ms > 1000" in ask
    assert "1 left" in allow


def test_an_explanation_of_a_rule_that_cannot_be_applied_says_so() -> None:
    by = policy({"deny": "t", "when": {"args.n": "> 1"}})
    call = ToolRequest("r", "t", {"n": "x"})
    explanation = explain(by, call, level=Level.READ, parse_shell=PARSE)
    assert explanation.decision.rule_id == "evaluation_error"
    assert "cannot be applied" in explanation.traces[0].why


def test_a_simulation_shows_only_what_would_be_decided_otherwise() -> None:
    candidate = policy({"allow": "a", "match": "any"}, {"ask": "b"})
    recorded = [
        RecordedCall(ToolRequest(name, name, {}), Level.READ, then, "old")
        for name, then in (("a", DENY), ("b", ALLOW), ("c", DENY), ("a", ALLOW))
    ]
    changes = list(simulate(recorded, candidate, parse_shell=PARSE))
    assert [(c.recorded.call.tool, c.decision.effect, c.loosens) for c in changes] == [
        ("a", ALLOW, True),
        ("b", ASK, False),
    ]


def test_what_is_no_number_is_neither_more_nor_less_and_so_denied() -> None:
    by = policy({"allow": "pay", "match": "any"}, {"ask": "pay", "when": {"args.amount": "> 100"}})
    assert effect(by, "pay", {"amount": 5})[0] is ALLOW
    assert effect(by, "pay", {"amount": float("inf")})[0] is Effect.ASK
    assert effect(by, "pay", {"amount": float("nan")})[0] is DENY


@pytest.mark.parametrize(
    "condition",
    [
        {"match": {"path": "secrets/**"}},
        {"match": {"path": []}},
        {"match": {"arguments": {"path": "secrets/*"}}},
        {"match": {"arguments": {"paths": "secrets/*"}}},
        {"when": {"args.path": "contains secrets"}},
    ],
)
@pytest.mark.parametrize("effect_of_it", list(Effect))
def test_a_rule_that_looks_at_a_path_makes_its_tools_go_by_path(
    condition: dict[str, Any], effect_of_it: Effect
) -> None:
    rules = policy({effect_of_it.value: ["file.*", "other"], **condition})
    assert rules.candidates("file.read").by_path
    assert rules.candidates("other").by_path
    assert not rules.candidates("shell").by_path


@pytest.mark.parametrize(
    "condition",
    [
        {"match": {"cwd": "secrets/**"}},
        {"match": {"arguments": {"cwd": "secrets/*"}}},
        {"when": {"args.cwd": "contains secrets"}},
    ],
)
@pytest.mark.parametrize("effect_of_it", list(Effect))
def test_a_rule_that_looks_at_where_a_command_runs_makes_its_tools_go_by_that(
    condition: dict[str, Any], effect_of_it: Effect
) -> None:
    rules = policy({effect_of_it.value: ["*.exec", "exec"], **condition})
    assert rules.candidates("bash.exec").by_cwd
    assert rules.candidates("exec").by_cwd
    others = effect_of_it is not Effect.ALLOW  # a deny or an ask is about every name of the tool
    assert rules.candidates("shell").by_cwd is others
    assert not rules.candidates("exec").by_path


def test_a_rule_about_anything_else_does_not() -> None:
    rules = policy(
        {"allow": "file.*", "match": "any"},
        {"deny": "file.*", "match": {"cwd": "secrets"}},
        {"deny": "exec", "match": {"path": "secrets"}},
        {"deny": "file.*", "match": {"arguments": {"content": "x"}}, "when": {"args.limit": "> 5"}},
        {"ask": "file.*", "match": "otherwise"},
    )
    assert not rules.candidates("file.read").by_path
    assert not rules.candidates("exec").by_cwd


COMMAND_ARGS: Mapping[str, Mapping[str, JsonValue]] = {
    "shell": {"command": "ls"},
    "bash.exec": {"cmd": "ls"},
    "exec": {"command": "ls"},
    "system.exec": {"command": "ls"},
}


@pytest.mark.requirement("000/commands/deny-covers-names", "000/commands/allow-lists")
def test_a_deny_or_an_ask_of_one_name_of_the_command_tool_is_of_all_and_an_allow_is_not() -> None:
    assert COMMAND_ARGS.keys() == COMMAND_TOOLS
    words: Any = {"match": {"command": ["ls"]}}
    for named in (*COMMAND_ARGS, "bash.*", "s*"):
        listed = {tool for tool in COMMAND_ARGS if Glob(named).matches(tool)}
        for tool, args in COMMAND_ARGS.items():
            allowed = decided(policy({"allow": named, **words}), tool, args)
            assert (allowed.effect is Effect.ALLOW) is (tool in listed), (named, tool)
            for effect in (Effect.DENY, Effect.ASK):
                rules = policy({effect.value: named, **words}, {"allow": "*", "match": "any"})
                assert decided(rules, tool, args).effect is effect, (named, tool)
            rules = policy({"ask": named, "match": "otherwise"})
            assert decided(rules, tool, args).effect is Effect.ASK, (named, tool)


@pytest.mark.requirement("000/commands/clean")
def test_no_rule_allows_a_command_by_its_words_where_it_cannot_run_clean() -> None:
    by_words: Any = {"allow": "shell", "match": {"command": ["ls"]}}
    asks: Any = {"ask": "shell", "match": "otherwise"}
    call = ToolRequest("r", "shell", {"command": "ls"})
    for rules, effect in (
        (policy(by_words), Effect.DENY),
        (policy(by_words, asks), Effect.ASK),
        (policy(by_words, {"allow": "shell", "match": "any"}), Effect.ALLOW),
    ):
        decision = decide(rules, call, level=Level.WRITE, parse_shell=PARSE, can_be_clean=False)
        assert (decision.effect, decision.clean) == (effect, False)
