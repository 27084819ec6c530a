"""What holds for every command: JSON where there is an answer, exit codes, calm errors."""

import asyncio
import json
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import click
import pytest
import pytest_asyncio
from click.testing import CliRunner

from tests.cli.terminals import in_a_terminal
from tests.e2e import forked
from tests.e2e.harness import PATIENCE, PROGRAM, Program, environment, running
from toolgate.cli.doctor import check_disk, check_policy
from toolgate.cli.main import COMMANDS, EXIT_CODES, main
from toolgate.cli.terminal import plain, through
from toolgate.settings import Settings

# They have no answer to put so: five serve, and print their one line of JSON once they are ready;
# the last two print a program for a shell, and a JSON Schema.
SERVING = {"up", "ingress", "orchestrator", "runner", "browser"}
WITHOUT_JSON = SERVING | {"completion", "policy schema"}
PAST = '{"tool": "shell", "args": {"command": "ls"}, "effect": "allow"}\n' * 50


def leaves(command: click.Command, name: str) -> Iterator[tuple[str, click.Command]]:
    if not isinstance(command, click.Group):
        yield name, command
        return
    context = click.Context(command, info_name=name)
    for child in command.list_commands(context):
        found = command.get_command(context, child)
        assert found is not None
        yield from leaves(found, f"{name} {child}".strip())


ALL = dict(leaves(main, ""))


@pytest.mark.parametrize("name", sorted(ALL))
def test_every_command_can_answer_in_json(name: str) -> None:
    options = {option for parameter in ALL[name].params for option in parameter.opts}
    assert ("--json" in options) is (name not in WITHOUT_JSON)


@pytest.mark.parametrize("name", sorted(ALL))
def test_every_command_and_each_of_its_options_says_what_it_is_for(name: str) -> None:
    assert ALL[name].help
    options = [one for one in ALL[name].params if isinstance(one, click.Option)]
    assert [one.name for one in options if not one.help] == []


def test_the_help_names_every_command_and_every_exit_code() -> None:
    shown = CliRunner().invoke(main, ["--help"]).stdout
    assert all(name in shown for name in COMMANDS)
    assert all(f"{code} " in shown for code in EXIT_CODES)


def toolgate(*arguments: str, **given: str) -> subprocess.CompletedProcess[str]:
    return forked.toolgate(*arguments, env=environment(given))


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["policy", "check"], 0),
        (["evidence", "verify", "--home", "/nowhere"], 1),
        (["audit", "query", "--home", "/nowhere"], 1),
        (["console", "-s", "OPERATOR_TOKEN=x", "-s", "GATEWAY_PORT=1"], 1),
        (["chat", "-s", "WS_PORT=1", "hello"], 1),
        (["settings", "--nonsense"], 2),
        (["nonsense"], 2),
        (["devices", "--home", "/nowhere"], 2),
        (["chat", "--url", "http://127.0.0.1", "hello"], 2),
        (["up", "-s", "WS_PORT=many"], 2),
        (["policy", "explain", "--tool", "shell", "--args", "[]"], 2),
    ],
)
def test_a_command_ends_with_the_code_that_is_documented_and_says_why(
    arguments: list[str], code: int, tmp_path: Path
) -> None:
    ended = toolgate(*arguments, TOOLGATE_HOME=str(tmp_path))
    assert ended.returncode == code
    assert code in EXIT_CODES
    assert "Traceback" not in ended.stderr
    assert bool(ended.stderr) is (code != 0)


UNREADABLE = "x" * 300  # no file system lets a name of that length be looked at, not even for root


@pytest.mark.parametrize(
    "arguments",
    [
        ["console"],
        ["demo", "--running"],
        ["policy", "show"],
        ["audit", "query"],
        ["evidence", "verify"],
        ["artifact", "put", "/proc/self/mem", "-s", "EXECUTOR_TOKEN=x"],
    ],
    ids=lambda arguments: " ".join(arguments[:2]),
)
def test_a_home_or_a_file_that_cannot_be_looked_at_is_told_in_one_line(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOOLGATE_HOME", f"/tmp/{UNREADABLE}")
    ended = CliRunner().invoke(main, arguments)
    assert ended.exit_code in {1, 2}, (ended.output, ended.exception)
    assert isinstance(ended.exception, SystemExit)
    assert ended.stderr.startswith("toolgate: ")
    assert ended.stderr.count("\n") == 1


def test_the_doctor_goes_on_where_a_home_cannot_be_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TOOLGATE_HOME", f"/tmp/{UNREADABLE}")
    ended = CliRunner().invoke(main, ["doctor", "--json"])
    assert ended.exit_code == 1, (ended.output, ended.exception)
    found = {finding["name"]: finding for finding in json.loads(ended.stdout)}
    assert found["python"]["ok"]
    assert not found["policy"]["ok"]
    assert not found["disk"]["ok"]


def test_the_doctor_sees_that_a_home_cannot_be_made() -> None:
    ended = CliRunner().invoke(main, ["doctor", "--json", "--home", "/dev/null/home"])
    found = {finding["name"]: finding for finding in json.loads(ended.stdout)}
    assert ended.exit_code == 1
    assert not found["disk"]["ok"]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def program(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Program]:
    home = tmp_path_factory.mktemp("commands") / "home"
    async with running(home, HEARTBEAT="@every 1s") as started:
        yield started


async def test_chat_tells_a_program_each_event_as_json_and_reads_messages_from_stdin(
    program: Program,
) -> None:
    chat = await forked.fork(
        "chat",
        "--json",
        "--agent=script",
        f"--url={program.urls['ingress_ws']}",
        env=environment({}),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    said = b'sum [[tool:math.add {"a": 2, "b": 40}]]\n\nbroken [[tool:math.add {oops}]]\n'
    told, _ = await asyncio.wait_for(chat.communicate(said), PATIENCE)
    events = [json.loads(line) for line in told.splitlines()]
    kinds = [event["type"] for event in events]
    assert kinds.count("run_started") == 2
    assert kinds[-1] == "error"
    assert "42" in "".join(event.get("text", "") for event in events)
    assert chat.returncode == 1  # the second run did not end well


@pytest.mark.parametrize("options", [[], ["--json"]], ids=["for people", "as json"])
async def test_chat_says_on_stderr_why_a_run_did_not_end_well(
    options: list[str], program: Program
) -> None:
    asked = ("chat", *options, "--agent=nobody", f"--url={program.urls['ingress_ws']}", "hello")
    ended = await asyncio.to_thread(toolgate, *asked)
    assert ended.returncode == 1
    assert ended.stderr.startswith("toolgate: ")
    assert "nobody" in ended.stderr
    assert ended.stderr.count("\n") == 1


async def test_ctrl_c_ends_a_command_without_a_word_of_python(program: Program) -> None:
    events = await asyncio.create_subprocess_exec(
        PROGRAM,
        "events",
        "--since=0",
        f"--home={program.home}",
        f"--url={program.urls['gateway']}",
        env=environment({}),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert events.stdout is not None
    assert await asyncio.wait_for(events.stdout.readline(), PATIENCE)
    events.send_signal(signal.SIGINT)
    _, said = await asyncio.wait_for(events.communicate(), PATIENCE)
    assert events.returncode == 130
    assert b"Traceback" not in said


def test_the_policy_in_force_is_meant_where_none_is_named(tmp_path: Path) -> None:
    ours = "version: 1\nrules:\n  - {id: ours, deny: shell, match: any, reason: Ours}\n"
    asked = ("policy", "explain", "--tool", "shell", "--args", '{"command": "ls"}', "--json")
    home = tmp_path / "home"
    home.mkdir()
    shipped = json.loads(toolgate(*asked, TOOLGATE_HOME=str(home)).stdout)
    assert shipped["rule_id"] == "read-only-commands"
    (home / "policy.yaml").write_text(ours)  # as the console leaves it
    kept = json.loads(toolgate(*asked, TOOLGATE_HOME=str(home)).stdout)
    assert kept["rule_id"] == "ours"
    other = tmp_path / "other.yaml"
    other.write_text(ours.replace("ours", "other"))
    given = json.loads(toolgate(*asked, TOOLGATE_HOME=str(home), POLICY_FILE=str(other)).stdout)
    assert given["rule_id"] == "other"


def test_long_work_shows_a_bar_in_a_terminal_and_nowhere_else(tmp_path: Path) -> None:
    past, policy = tmp_path / "past.jsonl", tmp_path / "policy.yaml"
    past.write_text(PAST)
    policy.write_text("version: 1\nrules: []\n")
    asked = ("policy", "simulate", str(policy), f"--calls={past}")
    shown = in_a_terminal(*asked)
    assert "Deciding them again" in shown
    assert "50/50" in shown
    ended = toolgate(*asked)
    assert "Deciding" not in ended.stdout + ended.stderr
    assert "50 calls, 50 changed" in ended.stdout


def test_what_a_stranger_wrote_cannot_steer_a_terminal() -> None:
    hostile = "a\x1b[31mred\x9b2J\u202egpj.exe\r\nb\tc\x07"
    assert plain(hostile) == "a␛[31mred<U+009B>2J<U+202E>gpj.exe\nb\tc␇"
    assert plain("汉字 ünï — fine\n") == "汉字 ünï — fine\n"


def test_a_bar_hands_on_every_item() -> None:
    assert list(through(range(7), "counting", total=7)) == list(range(7))


def test_an_empty_home_on_the_command_line_is_refused_and_does_not_mean_here() -> None:
    ended = CliRunner().invoke(main, ["doctor", "--home", ""])
    assert ended.exit_code == 2
    assert "TOOLGATE_HOME on the command line must not be empty" in ended.output


def test_the_doctor_tells_of_a_home_that_it_cannot_look_into() -> None:
    settings = Settings(home=Path("a" * 300))
    for finding in (check_disk(settings), check_policy(settings)):
        assert not finding.ok
        assert "File name too long" in finding.detail


def test_a_token_that_cannot_be_read_is_named_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "operator.token").mkdir()
    ended = CliRunner().invoke(main, ["console", "--home", str(tmp_path / "operator.token" / "x")])
    assert "operator.token is not there" in ended.output
    ended = CliRunner().invoke(main, ["console", "--home", "a" * 300])
    assert ended.exit_code == 2
    assert "operator.token cannot be read (File name too long)" in ended.output


@pytest.mark.parametrize("command", [("pair",), ("token", "make")])
def test_help_says_what_each_right_is_for_and_not_its_name_again(command: tuple[str, ...]) -> None:
    told = CliRunner().invoke(main, [*command, "--help"]).stdout
    for right in ("system commands", "MCP servers", "talk to agents", "approve calls"):
        assert right in told
    assert "[default: read]" in told


async def test_ctrl_d_leaves_the_shell_a_line_of_its_own(program: Program) -> None:
    chat = await forked.fork(
        "chat",
        f"--url={program.urls['ingress_ws']}",
        env=environment({}),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    told, _ = await asyncio.wait_for(chat.communicate(b"hi\n"), PATIENCE)
    assert (chat.returncode, told) == (0, b"> hi\n> \n")
