"""`toolgate approvals` and `toolgate runs`, against a running installation and in a terminal."""

import asyncio
import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import termios
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from click.testing import CliRunner, Result

from tests.cli.test_operator_answers import answering
from tests.e2e import forked
from tests.e2e.harness import PATIENCE, Program, environment, running
from toolgate.cli.main import main
from toolgate.cli.terminal import exact, one_line

WAITS = {
    "approvalId": "apr_1",
    "tool": "shell",
    "argsSummary": "shell touch x",
    "status": "PENDING",
    "createdAt": 1_795_000_000_000,
    "expiresAt": 1_795_000_600_000,
    "askedBy": "service:ci",
    "reason": "It may change something",
    "ruleId": "other-commands",
    "tenantId": "t_default",
    "workspaceId": "w_default",
}


class Gateway:
    """A running installation, with a script's token that asks for calls."""

    def __init__(self, program: Program) -> None:
        self.at = ("--home", str(program.home), "--url", program.urls["gateway"])
        self.url = program.urls["gateway"]
        self.asked = 0
        self.token = self.run("token", "make", "ci", "--tools=write", "--agent").stdout.strip()

    def run(self, *words: str, code: int = 0) -> Result:
        ended = CliRunner().invoke(main, [*words, *self.at])
        assert ended.exit_code == code, (ended.output, ended.exception)
        return ended

    def post(self, path: str, payload: Any) -> Any:
        self.asked += 1
        request = urllib.request.Request(
            self.url + path,
            data=json.dumps({"payload": payload, "idempotencyKey": f"k{self.asked}"}).encode(),
            headers={"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            return json.loads(answer.read())["data"]

    def ask(self, value: Any) -> str:
        """Let the script ask for a call; its approval."""
        payload = {"name": "kv.set", "args": {"key": "k", "value": value}}
        return str(self.post("/command/tool", payload)["approvalId"])


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def program(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Program]:
    async with running(tmp_path_factory.mktemp("approvals") / "home") as started:
        yield started


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(program: Program) -> Gateway:
    return await asyncio.to_thread(Gateway, program)


def test_a_call_is_listed_shown_whole_approved_once_and_listed_as_approved(
    gateway: Gateway,
) -> None:
    name = gateway.ask("a\u200bb\x1b[2J\u202e")
    (listed,) = map(json.loads, gateway.run("approvals", "list", "--json").stdout.splitlines())
    assert listed["approvalId"] == name
    shown = gateway.run("approvals", "show", name).stdout
    facts = dict(line.split(maxsplit=1) for line in shown.splitlines() if not line.startswith(" "))
    assert facts["approval"] == name
    assert facts["tool"] == "kv.set"
    assert facts["rule"] == listed["ruleId"]
    assert facts["place"].startswith("tenant t_default, workspace w_default")
    assert "service:ci" in facts["asked"] or "service:ci" in shown
    assert not set(shown) & set("\u200b\x1b\u202e")
    at = " ".join(gateway.at)
    assert f"  toolgate approvals approve {name} {at}" in shown.splitlines()
    assert f"  toolgate approvals reject {name} {at}" in shown.splitlines()
    assert (
        gateway.run("approvals", "approve", name, "--reason=fine").stdout == f"{name} is approved\n"
    )
    assert "approved already" in gateway.run("approvals", "approve", name, code=1).stderr
    assert "no approvals" in gateway.run("approvals", "list").stdout
    assert name in gateway.run("approvals", "list", "--status=approved").stdout
    closed = gateway.run("approvals", "show", name).stdout
    assert "toolgate approvals approve" not in closed
    assert "not found" in gateway.run("approvals", "show", "nope", code=1).stderr


def test_a_run_says_what_it_waits_for_and_is_cancelled_once(gateway: Gateway) -> None:
    assert "no runs" in gateway.run("runs", "list").stdout
    say = '[[tool:kv.set {"key": "a", "value": 1}]]'
    payload = {"agentId": "script", "message": say, "mode": "async"}
    run_id = gateway.post("/command/agent", payload)["runId"]
    shown = ""
    for _ in range(200):
        shown = gateway.run("runs", "show", run_id).stdout
        if "approvals show" in shown:
            break
    (name,) = re.findall(r"toolgate approvals show (\S+)", shown)
    assert run_id in gateway.run("approvals", "show", name).stdout
    assert f"  toolgate runs cancel {run_id} {' '.join(gateway.at)}" in shown.splitlines()
    (line,) = gateway.run("runs", "list", "--json").stdout.splitlines()
    assert json.loads(line)["status"] == "PAUSED_WAITING_APPROVAL"
    cancelled = gateway.run("runs", "cancel", run_id, "--reason", "not now").stdout
    assert cancelled == f"{run_id} is cancelled\n"
    after = gateway.run("runs", "show", run_id).stdout
    assert "not now" in after
    assert "toolgate runs cancel" not in after
    assert "ended already" in gateway.run("runs", "cancel", run_id, code=1).stderr


def test_an_empty_result_says_so_and_what_to_do(gateway: Gateway) -> None:
    for words, text in (
        (("devices",), "toolgate pair DEVICE_ID"),
        (("pair",), "no device waits"),
        (("mcp", "list"), "toolgate capabilities register"),
        (("task", "list"), "toolgate task run"),
    ):
        assert text in gateway.run(*words).stdout
        listed = gateway.run(*words, "--json").stdout
        assert listed in ("[]\n", "")


def test_a_page_says_where_the_next_one_begins(gateway: Gateway) -> None:
    names = [gateway.ask(number) for number in range(3)]
    first = gateway.run("approvals", "list", "--limit=2", "--json")
    found = [json.loads(line)["approvalId"] for line in first.stdout.splitlines()]
    cursor = first.stderr.removeprefix("more: --cursor ").strip()
    rest = gateway.run("approvals", "list", "--limit=2", "--json", "--cursor", cursor)
    found += [json.loads(line)["approvalId"] for line in rest.stdout.splitlines()]
    assert found == names[::-1]
    assert rest.stderr == ""
    for name in names:
        gateway.run("approvals", "reject", name)


class Terminal:
    """A command whose input and outputs are a terminal."""

    def __init__(self, ours: int, process: ForkServerProcess) -> None:
        self.ours, self.process, self.shown = ours, process, ""

    def until(self, pattern: str) -> None:
        """Read until the pattern is on the screen; it is looked for after what was found before."""
        while not (found := re.search(pattern, self.shown)):
            ready = select.select([self.ours], [], [], PATIENCE)[0]
            assert ready, f"{pattern} never came: {self.shown}"
            self.shown += os.read(self.ours, 65536).decode()
        self.shown = self.shown[found.end() :]

    def type(self, text: str) -> None:
        os.write(self.ours, text.encode())


@contextmanager
def watching(*words: str) -> Iterator[Terminal]:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 300, 0, 0))
    given = environment({"TERM": "xterm"})
    process = forked.start(("approvals", "watch", *words), given, None, (theirs, theirs, theirs))
    os.close(theirs)
    try:
        yield Terminal(ours, process)
    finally:
        process.kill()
        process.join(PATIENCE)
        os.close(ours)


def test_a_person_at_a_terminal_answers_each_call_as_it_comes(gateway: Gateway) -> None:
    first, second, third = (gateway.ask(number) for number in range(3))
    with watching(*gateway.at) as terminal:
        terminal.until(rf"(?s){first}.*approve\?[^:]*: ")
        terminal.type("maybe\n")
        terminal.until(r"approve\?[^:]*: ")
        terminal.type("y\n")
        terminal.until(rf"(?s){second}.*approve\?[^:]*: ")
        gateway.run("approvals", "reject", second)  # elsewhere, while the person thinks
        terminal.until(rf"(?s){third}.*approve\?[^:]*: ")
        terminal.type("n\n")
        for name, status in ((first, "approved"), (second, "rejected"), (third, "rejected")):
            terminal.until(f"{name} is {status} by operator")
        fourth = gateway.ask(4)
        terminal.until(rf"(?s){fourth}.*approve\?[^:]*: ")
        terminal.type("s\n")
        fifth = gateway.ask(5)
        terminal.until(rf"(?s){fifth}.*approve\?[^:]*: ")
        assert terminal.process.pid is not None
        os.kill(terminal.process.pid, signal.SIGINT)  # a test's terminal sends no signals
        terminal.process.join(PATIENCE)
        assert terminal.process.exitcode == 130
    waiting = gateway.run("approvals", "list", "--json").stdout.splitlines()
    assert [json.loads(line)["approvalId"] for line in waiting] == [fifth, fourth]
    for name in (fourth, fifth):
        gateway.run("approvals", "reject", name)


async def test_a_program_that_watches_gets_a_line_for_each_change(gateway: Gateway) -> None:
    watch = await forked.fork(
        *("approvals", "watch", "--json", *gateway.at),
        env=environment({}),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert watch.stdout is not None
    name = await asyncio.to_thread(gateway.ask, 1)
    begun = json.loads(await asyncio.wait_for(watch.stdout.readline(), PATIENCE))
    await asyncio.to_thread(gateway.run, "approvals", "approve", name)
    ended = json.loads(await asyncio.wait_for(watch.stdout.readline(), PATIENCE))
    assert [(one["approvalId"], one["status"]) for one in (begun, ended)] == [
        (name, "PENDING"),
        (name, "APPROVED"),
    ]
    watch.send_signal(signal.SIGINT)
    _, said = await asyncio.wait_for(watch.communicate(), PATIENCE)
    assert watch.returncode == 130
    assert b"Traceback" not in said


def shown(tmp_path: Path, *options: str, **members: Any) -> str:
    body = json.dumps({"ok": True, "data": {**WAITS, **members}}).encode()
    with answering(200, body) as operator:
        words = ["approvals", "show", "apr_1", *options, "--url", operator.url]
        ended = CliRunner().invoke(
            main, [*words, "--home", str(tmp_path), "-s", "OPERATOR_TOKEN=x"]
        )
    assert ended.exit_code == 0, ended.output
    return ended.stdout


def test_arguments_are_printed_whole_with_every_unseen_character_escaped(tmp_path: Path) -> None:
    unseen = "\u200bx\u00a0y\x7f\ufe0f\U000e0041"
    args = {
        "command": f"touch {unseen}\n" + "z" * 50_000,
        "名": "汉字 — ü",
    }
    printed = shown(tmp_path, args=args)
    block = printed[printed.index("{") : printed.index("\nplace")]
    escapes = "<U+200B>x<U+00A0>y<U+007F><U+FE0F><U+E0041>"
    assert json.loads(block) == {**args, "command": args["command"].replace(unseen, escapes)}
    assert "汉字 — ü" in printed
    assert not set(printed) & set("\u200b\u00a0\x7f\ufe0f\U000e0041")


def test_a_summary_that_was_cut_says_so(tmp_path: Path) -> None:
    assert "cut short" in shown(tmp_path, argsSummary="shell xxx… [cut: 400 characters more]")
    assert "cut short" not in shown(tmp_path)


def test_hidden_characters_are_revealed_before_the_commands_that_approve(tmp_path: Path) -> None:
    before = shown(tmp_path, args={"command": "[hidden]"}, hidden=7)
    assert "7 characters are hidden" in before
    assert "toolgate approvals show apr_1 --reveal" in before
    assert "toolgate approvals approve" not in before
    after = shown(tmp_path, "--reveal", args={"command": "plain"}, hidden=7, revealed=True)
    assert "toolgate approvals approve apr_1" in after
    assert "are hidden" not in after


def test_a_row_shows_what_cannot_be_seen() -> None:
    assert one_line("a\u200b\u00a0b\n\x1bc") == "a<U+200B><U+00A0>b␊<U+001B>c"
    assert exact("a\\u200b\u200b") == '"a\\\\u200b<U+200B>"'
