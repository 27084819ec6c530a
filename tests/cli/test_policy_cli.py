"""`toolgate policy`, in the process and as the installed program."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from toolgate.cli.main import main

GOOD = """
version: 1
rules:
  - id: reading
    allow: shell
    match: {command: ["ls *", "git log"]}
    for: {role: dev}
    reason: It only reads
    tests:
      - {args: {command: "ls -la"}, as: {role: dev}}
  - {id: pay, ask: pay, when: {args.amount: "> 100"}, reason: Money needs a person}
tests:
  - {call: shell, args: {command: "rm x"}, as: {role: dev}, expect: deny}
"""
PROGRAM = Path(sys.executable).with_name("toolgate")


def run(*arguments: str, text: str | None = None) -> Result:
    return CliRunner().invoke(main, ["policy", *arguments], input=text)


def answered(result: Result) -> Any:
    return json.loads(result.stdout)


@pytest.fixture
def good(tmp_path: Path) -> str:
    path = tmp_path / "policy.yaml"
    path.write_text(GOOD)
    return str(path)


@pytest.fixture
def bad(tmp_path: Path) -> str:
    path = tmp_path / "bad.yaml"
    path.write_text(GOOD.replace("id: pay", "id: reading").replace("> 100", "lots"))
    return str(path)


@pytest.fixture
def failing(tmp_path: Path) -> str:
    path = tmp_path / "failing.yaml"
    path.write_text(GOOD.replace("expect: deny", "expect: ask"))
    return str(path)


def test_check_says_that_a_file_is_well_and_which_version_it_is(good: str) -> None:
    result = run("check", good)
    assert result.exit_code == 0
    assert "2 rules, 2 tests pass" in result.stdout
    facts = answered(run("check", good, "--json"))
    assert facts["ok"] is True
    assert facts["version"] in result.stdout.replace("\n", "")


def test_check_without_a_file_checks_the_shipped_policy() -> None:
    assert answered(run("check", "--json"))["ok"] is True


def test_check_names_every_problem_of_a_bad_file(bad: str) -> None:
    result = run("check", bad)
    assert result.exit_code == 1
    assert "already that of rules[0]" in " ".join(result.stderr.split())
    facts = answered(run("check", bad, "--json"))
    assert facts["ok"] is False
    assert len(facts["problems"]) == 2


def test_check_refuses_a_file_whose_tests_fail(failing: str) -> None:
    result = run("check", failing, "--json")
    assert result.exit_code == 1
    assert answered(result)["problems"] == [
        "tests[0]: shell expected ask, got deny by default_deny"
    ]


@pytest.mark.parametrize("command", ["check", "test"])
def test_a_file_that_is_not_there_is_wrong_usage(command: str) -> None:
    assert run(command, "nowhere.yaml").exit_code == 2


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "binary"
    path.write_bytes(b"\xff\xfe\x00")
    assert run("check", str(path)).exit_code == 1


def test_test_shows_each_test_and_whether_it_passed(good: str, failing: str) -> None:
    assert run("test", good).exit_code == 0
    result = run("test", failing)
    assert result.exit_code == 1
    assert "FAIL" in result.stdout
    assert "1 passed, 1 failed" in result.stdout
    facts = answered(run("test", failing, "--json"))
    assert [(test["expect"], test["effect"], test["passed"]) for test in facts["tests"]] == [
        ("ask", "deny", False),
        ("allow", "allow", True),
    ]


def explain_ls(good: str, *more: str) -> Result:
    return run("explain", good, "--tool", "shell", "--args", '{"command": "ls"}', *more)


def test_explain_says_what_is_decided_and_why(good: str) -> None:
    result = explain_ls(good, "--as", "role=dev")
    assert result.exit_code == 0
    assert "allow It only reads [rule reading]" in result.stdout
    denied = answered(explain_ls(good, "--json"))
    assert (denied["effect"], denied["rule_id"]) == ("deny", "default_deny")
    assert denied["rules"] == [
        {"rule_id": "reading", "effect": "allow", "matched": False, "why": "not for role [dev]"}
    ]
    assert denied["policy_version"].startswith("sha256:")


def test_explain_can_expect_a_decision(good: str) -> None:
    assert explain_ls(good, "--expect", "deny").exit_code == 0
    assert explain_ls(good, "--expect", "allow").exit_code == 1


def test_explain_takes_the_tools_level() -> None:
    asked = ["explain", "--tool", "mcp.x.y", "--expect"]
    assert run(*asked, "allow", "--level", "read").exit_code == 0
    assert run(*asked, "ask", "--level", "write").exit_code == 0


BY_LEVEL = """
version: 1
rules:
  - {id: reads, allow: "*", match: {level: read}, reason: It only reads}
  - {id: writes, ask: "*", match: otherwise, reason: It may change something}
"""


def test_a_tools_level_is_its_own_and_write_where_nobody_knows_it(tmp_path: Path) -> None:
    """As the pipeline has it: an answer that is kinder than the gate would mislead."""
    policy = tmp_path / "by-level.yaml"
    policy.write_text(BY_LEVEL)
    levels = {
        "kv.get": "allow",
        "kv.set": "ask",
        "mcp.docs.search": "ask",
        "web.search": "allow",
        "file.write": "ask",
        "browser.list_task_runs": "allow",
        "browser.screenshot_page": "allow",
        "browser.submit_and_verify": "ask",
        "browser.task": "ask",
    }
    for tool, effect in levels.items():
        assert run("explain", str(policy), "--tool", tool, "--expect", effect).exit_code == 0, tool
        call = lines([{"tool": tool, "effect": effect}])
        assert run("simulate", str(policy), "--calls", "-", text=call).exit_code == 0, tool


def test_explain_of_a_tool_that_no_rule_names_says_so(good: str) -> None:
    result = run("explain", good, "--tool", "nuclear.launch")
    assert "No rule names nuclear.launch" in result.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ["--args", "{"],
        ["--args", "[]"],
        ["--args", '{"a":' * 2000 + "1" + "}" * 2000],
        ["--as", "role"],
        ["--as", "rank=high"],
        ["--as", "level=root"],
        ["--level", "root"],
    ],
)
def test_explain_of_what_is_no_call_is_wrong_usage(good: str, arguments: list[str]) -> None:
    assert run("explain", good, "--tool", "shell", *arguments).exit_code == 2


CALLS = [
    {"tool": "shell", "args": {"command": "ls"}, "caller": {"role": "dev"}, "effect": "allow"},
    {"tool": "shell", "args": {"command": "rm x"}, "effect": "allow", "rule_id": "old"},
    {"tool": "pay", "args": {"amount": 500}, "level": "sign", "effect": "deny"},
]


def lines(calls: list[dict[str, Any]]) -> str:
    return "\n".join(json.dumps(call) for call in calls) + "\n\n"


def test_simulate_shows_what_would_be_decided_otherwise(good: str) -> None:
    result = run("simulate", good, "--calls", "-", text=lines(CALLS))
    assert result.exit_code == 1
    assert "3 calls, 2 changed, 1 of them loosened" in result.stdout
    facts = answered(run("simulate", good, "--calls", "-", "--json", text=lines(CALLS)))
    assert facts["calls"] == 3
    assert [
        (c["was"]["effect"], c["would_be"]["effect"], c["loosens"]) for c in facts["changes"]
    ] == [
        ("allow", "deny", False),
        ("deny", "ask", True),
    ]


def test_simulate_of_calls_that_stay_as_they_were_is_well(good: str) -> None:
    assert run("simulate", good, "--calls", "-", text=lines(CALLS[:1])).exit_code == 0
    against = ["--against", good]
    assert run("simulate", good, "--calls", "-", *against, text=lines(CALLS)).exit_code == 0


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "[]",
        "{}",
        '{"tool": "x", "effect": "no"}',
        '{"tool": 5, "effect": "ask"}',
        '{"tool": "x", "effect": "ask", "rule_id": 7}',
        "[" * 2000,
    ],
)
def test_simulate_names_a_line_that_is_no_call(good: str, line: str) -> None:
    result = run("simulate", good, "--calls", "-", text=line)
    assert result.exit_code == 2
    assert "line 1" in result.stderr


def test_simulate_of_calls_that_are_no_text_is_wrong_usage(good: str, tmp_path: Path) -> None:
    calls = tmp_path / "calls"
    calls.write_bytes(b"\xff\xfe")
    result = run("simulate", good, "--calls", str(calls))
    assert result.exit_code == 2, (result.output, result.exception)
    assert "--calls" in result.stderr


@pytest.mark.parametrize(("more", "shown"), [([], "<U+D800>"), (["--json"], "\\ud800")])
def test_half_a_character_in_a_call_is_shown_and_not_stumbled_over(
    good: str, more: list[str], shown: str
) -> None:
    """As JSON may have it; a terminal and a file have no letter for it."""
    args = '{"command": "mkfs \\ud800"}'
    explained = run("explain", "--tool", "shell", "--args", args, *more)
    assert (explained.exit_code, shown in explained.stdout) == (0, True), explained.exception
    call = f'{{"tool": "shell", "args": {args}, "effect": "allow"}}'
    simulated = run("simulate", good, "--calls", "-", *more, text=call)
    assert (simulated.exit_code, shown in simulated.stdout) == (1, True), simulated.exception


def test_the_installed_program_says_by_its_code_whether_a_file_is_well(good: str, bad: str) -> None:
    for file, code in ((good, 0), (bad, 1)):
        command = [str(PROGRAM), "policy", "check", file]
        ended = subprocess.run(command, capture_output=True, timeout=60, check=False)
        assert ended.returncode == code, ended.stderr


def test_the_shipped_policy_is_explained_where_no_file_is_named(good: str) -> None:
    asked = ("explain", "--tool", "shell", "--args", '{"command": "rm -rf /"}', "--json")
    assert answered(run(*asked))["rule_id"] == "never-destroy"
    assert run("explain", good).exit_code == 2  # of which tool?


def test_a_file_is_named_as_it_is_called(tmp_path: Path) -> None:
    path = tmp_path / "a[b]:key:[x].yaml"
    path.write_text(GOOD)
    shown = run("check", str(path))
    assert shown.exit_code == 0
    assert path.name in shown.stdout.replace("\n", "")


@pytest.mark.parametrize("command", [["check"], ["test"], ["explain", "--tool", "shell"]])
def test_a_strangers_policy_cannot_steer_the_terminal(tmp_path: Path, command: list[str]) -> None:
    texts = (
        GOOD.replace("It only reads", r'"\e[2J\u202e"'),
        GOOD.replace("allow: shell", r'"\e[2J\u202e": shell'),
        GOOD.replace("call: shell", r'call: "\e[2J\u202e"'),
    )
    for number, text in enumerate(texts):
        path = tmp_path / f"{number}.yaml"
        path.write_text(text)
        shown = run(command[0], str(path), *command[1:])
        assert isinstance(shown.exception, SystemExit | None)
        assert "\x1b" not in shown.output
        assert "\u202e" not in shown.output
