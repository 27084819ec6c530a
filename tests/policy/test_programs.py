"""Allowed words: builtins that bash evaluates, options before git's subcommand, paths, warnings."""

from typing import Any

import pytest

from tests.support.policies import PARSE
from toolgate.core.enums import Level
from toolgate.core.tools import JsonValue, ToolRequest
from toolgate.policy.compile import compile_policy
from toolgate.policy.decide import decide
from toolgate.policy.lint import warnings
from toolgate.policy.model import Decision, Effect, InvalidPolicy, Policy
from toolgate.policy.policies import Policies
from toolgate.policy.programs import RUNS_OTHERS


def policy_of(effect: str, *commands: str, tools: Any = ("shell", "exec")) -> Policy:
    match: JsonValue = {"command": list(commands)}
    rule: JsonValue = {"id": "r", effect: list(tools), "match": match, "reason": "why"}
    return compile_policy({"version": 1, "rules": [rule]}, name="policy.default")


def decided(policy: Policy, *words: str) -> Decision:
    """A text for the shell; several words are a call of `exec`."""
    args: dict[str, JsonValue] = {"command": words[0]}
    if len(words) > 1:
        args["params"] = list(words[1:])
    call = ToolRequest("r", "exec" if len(words) > 1 else "shell", args)
    return decide(policy, call, level=Level.WRITE, parse_shell=PARSE)


@pytest.mark.parametrize(
    "command",
    ["test -v 'a[$(id)]'", "[ -v 'a[$(id)]' ]", "printf -v 'a[$(id)]' x", "let 'a[$(id)]'",
     "read 'a[$(id)]'", "declare 'a[$(id)]=1'", "export x=1", "unset x", "hash -p x ls"],
)  # fmt: skip
def test_an_allow_matches_no_builtin_whose_words_bash_evaluates(command: str) -> None:
    program = command.split()[0]
    policy = policy_of("allow", f"{program} *")
    assert decided(policy, command).effect is Effect.DENY
    assert "not plain" in decided(policy, command).detail
    assert decided(policy, program, "-v", "a[$(id)]").effect is Effect.ALLOW  # no shell reads it


@pytest.mark.parametrize("command", ["echo 'a[$(id)]'", "true", "cd src", "pwd"])
def test_an_allow_matches_the_builtins_that_evaluate_nothing(command: str) -> None:
    policy = policy_of("allow", "echo *", "true", "cd *", "pwd")
    assert decided(policy, command).effect is Effect.ALLOW


@pytest.mark.parametrize(
    "options",
    ["-c core.fsmonitor=x", "-C /tmp", "--git-dir=/tmp", "--exec-path=/tmp", "--work-tree /tmp", "-p"],
)  # fmt: skip
@pytest.mark.parametrize("pattern", ["git *", "git **", "git ** status", "git ? ? status"])
def test_no_pattern_with_gaps_matches_options_before_a_subcommand(
    pattern: str, options: str
) -> None:
    assert decided(policy_of("allow", pattern), f"git {options} status").effect is Effect.DENY
    assert decided(policy_of("deny", pattern), f"git {options} x status").effect is Effect.DENY


def test_an_allow_names_git_without_a_path() -> None:
    with pytest.raises(InvalidPolicy):
        policy_of("allow", "/usr/bin/git status")
    assert decided(policy_of("deny", "/usr/bin/git status"), "ls").effect is Effect.DENY


def test_an_author_may_spell_an_option_before_a_subcommand() -> None:
    policy = policy_of("allow", "git --version", "git --no-pager log -1", "git *")
    for command in ("git --version", "git --no-pager log -1", "git status -s"):
        assert decided(policy, command).effect is Effect.ALLOW, command


@pytest.mark.parametrize(
    "word",
    ["//proc/self/environ", "/./proc/self/environ", "/proc//self/environ", "../proc/self/environ",
     "x/../../proc/self/environ", "/a/../proc/self/environ", "../../../proc/self/environ",
     "/workspace/../proc/self/environ", "''//proc/self/environ"],
)  # fmt: skip
def test_a_deny_or_ask_of_a_path_matches_its_other_spellings(word: str) -> None:
    for effect in (Effect.DENY, Effect.ASK):
        policy = policy_of(effect.value, "cat /proc/*")
        assert decided(policy, f"cat {word}").effect is effect, word
        assert decided(policy, f"cat '{word}'").effect is effect, word
        assert decided(policy, "cat", word.replace("''", "")).effect is effect, word


def test_a_deny_or_ask_of_a_file_matches_it_in_the_workspace_and_in_options() -> None:
    policy = policy_of("ask", "cat secrets/key", "grep --file=secrets/key *", "sh -c *", "cat ./x")
    for command in (
        "cat ./secrets/key",
        "cat /workspace/secrets/key",
        "cat docs/../secrets//key",
        "grep --file=./secrets/key x",
        "cat x",
        "echo $(cat secrets/./key)",
        "sudo cat secrets/../secrets/key",
    ):
        assert decided(policy, command).effect is Effect.ASK, command


def test_an_allow_of_a_directory_does_not_match_a_path_that_leaves_it() -> None:
    policy = policy_of("allow", "cat docs/*", "ls src/", "python3 ./tool.py *")
    for command in ("cat docs/../.env", "cat docs/x/../../.env", "cat docs/../../etc/passwd"):
        assert decided(policy, command).effect is Effect.DENY, command
    for command in (
        "cat docs/a",
        "cat docs/./a",
        "cat docs/x/../a",
        "ls src/",
        "python3 ./tool.py -v",
    ):
        assert decided(policy, command).effect is Effect.ALLOW, command


def test_an_allow_by_words_is_clean_and_an_allow_of_any_command_is_not() -> None:
    assert decided(policy_of("allow", "ls *"), "ls -la").clean
    assert not decided(policy_of("ask", "ls *"), "ls -la").clean
    rule: JsonValue = {"id": "r", "allow": "shell", "match": "any", "reason": "why"}
    any_command = compile_policy({"version": 1, "rules": [rule]}, name="policy.default")
    assert decided(any_command, "ls -la").effect is Effect.ALLOW
    assert not decided(any_command, "ls -la").clean


@pytest.mark.parametrize(
    "pattern",
    ["awk *", "sed -n *", "tar *", "git *", "python3 *", "python3 tool.py", "make", "make test",
     "vim *", "docker ps *", "npm run ?", "printf *", "test *", "/usr/bin/awk *", "scp ? ?",
     "timeout 5 git status"],
)  # fmt: skip
def test_check_warns_of_an_allow_whose_program_runs_others(pattern: str) -> None:
    [warning] = warnings(policy_of("allow", pattern))
    assert pattern in warning
    assert warnings(policy_of("ask", pattern)) == warnings(policy_of("deny", pattern)) == []


@pytest.mark.parametrize("pattern", ["ls *", "git status", "git log *", "cat *", "tar --version"])
def test_check_does_not_warn_of_an_allow_that_starts_nothing(pattern: str) -> None:
    assert warnings(policy_of("allow", pattern)) == []


def test_the_table_names_the_programs_that_people_allow_by_mistake() -> None:
    named = "awk sed tar git python make find xargs vim docker".split()  # noqa: SIM905
    assert set(named) <= RUNS_OTHERS.keys()


@pytest.mark.parametrize(
    ("args", "named"),
    [
        ({"command": "sh s.sh"}, {"s.sh"}),
        ({"command": "sudo -u x bash -x ./s.sh a"}, {"./s.sh"}),
        ({"command": "./s.sh"}, {"./s.sh"}),
        ({"command": "cat s.sh | sh"}, {"s.sh"}),
        ({"command": "bash < s.sh"}, {"s.sh"}),
        ({"command": "cd d && . s.sh"}, {"s.sh"}),
        ({"command": "make --file=x.mk all"}, {"x.mk"}),
        ({"command": "python3 t.py data.csv"}, {"t.py", "data.csv"}),
        ({"command": "bash -c 'sh s.sh'"}, {"s.sh"}),
        ({"command": "sh", "params": ["s.sh"]}, {"s.sh"}),
        ({"cmd": "node s.js"}, {"s.js"}),
    ],
)
def test_the_files_that_a_command_runs_are_among_its_words(
    args: dict[str, JsonValue], named: set[str]
) -> None:
    policies = Policies(lambda _: None, PARSE, lambda _: Level.WRITE)
    tool = "exec" if "params" in args else "shell"
    assert named <= set(policies.files_run(ToolRequest("r", tool, args)))


@pytest.mark.parametrize(
    "args", [{"command": "cp a b"}, {"command": "rm x"}, {"url": "x"}, {"command": 1}]
)
def test_a_command_that_runs_no_file_names_none(args: dict[str, JsonValue]) -> None:
    policies = Policies(lambda _: None, PARSE, lambda _: Level.WRITE)
    assert policies.files_run(ToolRequest("r", "shell", args)) == []
