"""Two approvals at once: each question has its own answer."""

import asyncio
import queue
import threading
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from toolgate.cli import chat
from toolgate.contracts import ingress_v1 as wire
from toolgate.core.errors import Unavailable


class Slow:
    """A person who answers the second question only after it was asked."""

    def __init__(self) -> None:
        self.may = threading.Event()

    def readline(self, *_: object) -> str:
        self.may.wait(5)
        return "y\n"


def asked(tool: str, summary: str = "") -> wire.ApprovalRequired:
    return wire.ApprovalRequired(
        ts=1, run_id="r", approval_id=tool, tool_call_id=tool, tool_name=tool,
        args_summary=summary, reason="", deadline_ts=9,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("summary", "is_whole"),
    [
        ("shell {}", True),
        ("shell {aaaa…", False),
        ("shell {aaaa… [cut: 7 more characters]", False),  # as the pipeline cuts
    ],
)
async def test_who_is_asked_is_told_where_the_rest_of_a_call_is(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    summary: str,
    *,
    is_whole: bool,
) -> None:
    person = Slow()
    person.may.set()
    monkeypatch.setattr("sys.stdin", person)
    assert await asyncio.wait_for(chat._decide(asked("shell", summary)), 5)
    assert ("cut short" not in capsys.readouterr().out) == is_whole


@pytest.mark.parametrize("summary", ['kv.set {"key": "a"}', '{"key": "a"}'])
async def test_a_call_that_is_asked_for_is_named_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], summary: str
) -> None:
    person = Slow()
    person.may.set()
    monkeypatch.setattr("sys.stdin", person)
    await asyncio.wait_for(chat._decide(asked("kv.set", summary)), 5)
    assert '? kv.set {"key": "a"}' in capsys.readouterr().out


async def test_a_second_approval_is_asked_for_only_after_the_first_was_answered(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    person = Slow()
    monkeypatch.setattr("sys.stdin", person)
    both = [asyncio.create_task(chat._decide(asked(tool))) for tool in ("pay", "wipe")]
    for _ in range(10):
        await asyncio.sleep(0)
    shown = capsys.readouterr().out
    person.may.set()
    assert await asyncio.wait_for(asyncio.gather(*both), 5) == [True, True]
    assert ("pay" in shown, "wipe" in shown) == (True, False)


class Typing:
    """A person who types when they are told to."""

    def __init__(self) -> None:
        self.lines: queue.Queue[str] = queue.Queue()

    def readline(self) -> str:
        return self.lines.get(timeout=5)


async def test_an_answer_is_to_the_approval_that_is_asked_for_at_the_prompt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    person = Typing()
    monkeypatch.setattr("sys.stdin", person)
    message = asyncio.create_task(chat._line("> "))
    await asyncio.sleep(0)
    decision = asyncio.create_task(chat._decide(asked("pay")))
    await asyncio.sleep(0)
    person.lines.put("y\n")
    assert await asyncio.wait_for(decision, 5)
    person.lines.put("hello\n")
    assert await asyncio.wait_for(message, 5) == "hello\n"


def test_no_word_of_an_agent_can_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    steering = "own\x1b]0;owned\x07\u202e"
    chat._show(wire.State(ts=1, run_id="r", state=steering))
    chat._show(wire.Error(ts=1, run_id="r", code=steering, message=steering))
    chat._show(wire.Delta(ts=1, run_id="r", text=steering))
    shown = "".join(capsys.readouterr())
    assert shown.count("owned") == 4
    assert not {"\x1b", "\x07", "\u202e"} & set(shown)


def test_what_an_agent_takes_back_is_told_so(capsys: pytest.CaptureFixture[str]) -> None:
    chat._show(wire.Delta(ts=1, run_id="r", text="half an ans"))
    taken_back = {wire.RETRACTED: 11, "resumed": True}
    chat._show(wire.State(ts=1, run_id="r", state="RUNNING", detail=taken_back))
    chat._show(wire.State(ts=1, run_id="r", state="RUNNING", detail=None))
    shown = capsys.readouterr().out
    assert shown.splitlines() == [
        "half an ans", "[running: it starts again, the last 11 characters do not count]", "",
        "[running]",
    ]  # fmt: skip


def test_a_user_without_a_name_can_chat(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def nobody(uid: int) -> None:
        raise KeyError(f"getpwuid(): uid not found: {uid}")  # as in a container with any uid

    monkeypatch.setattr("pwd.getpwuid", nobody)
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    home = {"TOOLGATE_HOME": str(tmp_path)}
    told = CliRunner().invoke(chat.command, ["--url", "ws://127.0.0.1:1/ws", "hi"], env=home)
    assert isinstance(told.exception, Unavailable), told.exception


async def test_an_answer_nobody_waits_for_any_more_is_the_next_thing_that_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    typed: queue.Queue[str] = queue.Queue()
    monkeypatch.setattr("sys.stdin", SimpleNamespace(readline=partial(typed.get, timeout=5)))
    question = asyncio.create_task(chat._decide(asked("pay")))
    for _ in range(10):
        await asyncio.sleep(0)
    question.cancel()  # decided by another door
    await asyncio.wait([question])
    next_line = asyncio.create_task(chat._line("> "))
    for _ in range(10):
        await asyncio.sleep(0)
    typed.put("hello\n")
    assert await asyncio.wait_for(next_line, 5) == "hello\n"
    typed.put("more\n")
    assert await asyncio.wait_for(chat._line("> "), 5) == "more\n"
