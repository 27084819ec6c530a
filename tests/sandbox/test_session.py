"""The host's end against an agent that lies, babbles, or says nothing."""

import asyncio
import marshal
from typing import Any

import pytest

from toolgate.sandbox import agent
from toolgate.sandbox.sandbox import (
    Command,
    FileRefused,
    Limits,
    Lost,
    NotStarted,
    SessionKey,
    SessionSpec,
    Stream,
)
from toolgate.sandbox.session import AgentSession

SPEC = SessionSpec(SessionKey("t", "w", "s"))
QUICK = Limits(wall_seconds=0.05, drain_seconds=0.05)


class Inside:
    """The agent's side of a session, spoken by the test."""

    def __init__(self, limits: Limits = QUICK) -> None:
        self.destroyed = 0
        self.asked: list[dict[str, Any]] = []
        self.heard = asyncio.Event()
        self.session = AgentSession(limits=limits, destroy=self._destroy)
        self.session.send = self._hear

    async def _destroy(self) -> None:
        self.destroyed += 1

    def _hear(self, data: bytes) -> None:
        self.asked.append(marshal.loads(data[agent.LENGTH.size :]))
        self.heard.set()

    def say(self, kind: int, payload: bytes = b"", *, number: int | None = None) -> None:
        request = self.asked[-1]["id"] if number is None else number
        self.session.receive(agent.FRAME.pack(kind, request, len(payload)) + payload)

    async def begin(self) -> None:
        task = asyncio.create_task(self.session.begin(SPEC, env={}))
        await asyncio.sleep(0)
        self.say(agent.READY, b"1", number=0)
        await self.heard.wait()
        self.say(agent.DONE)
        await task

    async def start(self) -> "asyncio.Task[Any]":
        self.heard.clear()
        task = asyncio.create_task(self.session.exec(Command("x")))
        await self.heard.wait()
        return task


def end(code: int = 0, flags: int = 0, out: int = 0, err: int = 0) -> bytes:
    return agent.END.pack(code, flags, out, err)


@pytest.fixture
async def inside() -> Inside:
    inside = Inside()
    await inside.begin()
    return inside


async def test_a_command_s_output_and_end_arrive_in_any_pieces(inside: Inside) -> None:
    task = await inside.start()
    number = inside.asked[-1]["id"]
    whole = b"".join(
        agent.FRAME.pack(kind, number, len(payload)) + payload
        for kind, payload in ((agent.OUT, b"ab"), (agent.ERR, b"c"), (agent.ENDED, end(7, 0, 2, 1)))
    )
    for byte in whole:
        inside.session.receive(bytes([byte]))
    done = await task
    assert (done.exit_code, done.stdout, done.stderr) == (7, b"ab", b"c")


@pytest.mark.parametrize(
    "lie",
    [
        lambda inside: inside.say(agent.OUT, b"x", number=99),
        lambda inside: inside.say(99, b""),
        lambda inside: inside.say(agent.ENDED, b"short"),
        lambda inside: inside.say(agent.DONE, b"as if it were a file"),
        lambda inside: inside.say(agent.OUT, b"x" * 300_000),
        lambda inside: [inside.say(agent.OUT, b"x" * 60_000) for _ in range(5)],
        lambda inside: inside.session.receive(agent.FRAME.pack(agent.OUT, 2, 2**31)),
        lambda inside: inside.session.receive(b"HTTP/1.1 200 OK\r\n\r\n"),
    ],
    ids=[
        "other-id",
        "kind",
        "short-end",
        "other-end",
        "long-frame",
        "too-much",
        "huge-length",
        "garbage",
    ],
)
async def test_an_agent_that_lies_is_destroyed_and_the_command_is_lost(
    inside: Inside, lie: Any
) -> None:
    task = await inside.start()
    lie(inside)
    with pytest.raises(Lost):
        await asyncio.wait_for(task, 5)
    assert inside.destroyed == 1
    assert not inside.session.alive


async def test_a_frame_that_nobody_asked_for_ends_the_session(inside: Inside) -> None:
    inside.say(agent.OUT, b"x", number=5)
    await inside.session.close()
    assert inside.destroyed == 1


async def test_an_agent_that_goes_silent_is_destroyed(inside: Inside) -> None:
    task = await inside.start()
    with pytest.raises(Lost):
        await asyncio.wait_for(task, 5)
    assert inside.destroyed == 1


async def test_an_agent_that_dies_under_a_command_loses_it(inside: Inside) -> None:
    task = await inside.start()
    inside.session.lost()
    with pytest.raises(Lost):
        await task
    with pytest.raises(NotStarted):
        await inside.session.exec(Command("x"))


async def test_an_agent_that_does_not_die_when_told_is_destroyed(inside: Inside) -> None:
    task = await inside.start()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, 5)
    assert inside.asked[-1]["op"] == "kill"
    assert inside.destroyed == 1


async def test_a_command_that_is_cancelled_twice_is_dead_before_the_next_begins(
    inside: Inside,
) -> None:
    task = await inside.start()
    number = inside.asked[-1]["id"]
    for _ in range(2):
        task.cancel()
        await asyncio.sleep(0)
    following = asyncio.create_task(inside.session.exec(Command("y")))
    await asyncio.sleep(0)
    assert inside.asked[-1]["op"] == "kill"
    inside.heard.clear()
    inside.say(agent.ENDED, end(137, agent.KILLED), number=number)
    with pytest.raises(asyncio.CancelledError):
        await task
    await inside.heard.wait()
    inside.say(agent.ENDED, end())
    assert (await following).exit_code == 0
    assert inside.destroyed == 0


async def test_a_file_operation_that_is_cancelled_does_not_cost_the_session(
    inside: Inside,
) -> None:
    inside.heard.clear()
    task = asyncio.create_task(inside.session.files.read("x", limit=10))
    await inside.heard.wait()
    task.cancel()
    await asyncio.sleep(0)
    following = asyncio.create_task(inside.session.files.read("y", limit=10))
    await asyncio.sleep(0)
    inside.heard.clear()
    inside.say(agent.DONE, b"of x")
    with pytest.raises(asyncio.CancelledError):
        await task
    await inside.heard.wait()
    inside.say(agent.DONE, b"of y")
    assert await following == b"of y"
    assert inside.destroyed == 0


async def test_an_agent_that_does_not_end_a_cancelled_file_operation_is_destroyed(
    inside: Inside,
) -> None:
    inside.heard.clear()
    task = asyncio.create_task(inside.session.files.read("x", limit=10))
    await inside.heard.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, 5)
    assert inside.destroyed == 1


async def test_a_file_answer_larger_than_asked_for_ends_the_session(inside: Inside) -> None:
    inside.heard.clear()
    task = asyncio.create_task(inside.session.files.read("x", limit=10))
    await inside.heard.wait()
    inside.say(agent.DONE, b"x" * 5000)
    with pytest.raises(Lost):
        await task
    assert inside.destroyed == 1


async def test_a_listing_of_nonsense_is_no_listing(inside: Inside) -> None:
    inside.heard.clear()
    task = asyncio.create_task(inside.session.files.list("x", recursive=False, limit=3))
    await inside.heard.wait()
    inside.say(agent.DONE, b"file\0not-a-number\0name\0trailing")
    assert [(each.path, each.size) for each in await task] == [("name", 0)]


async def test_a_refused_file_says_why_and_the_session_goes_on(inside: Inside) -> None:
    inside.heard.clear()
    task = asyncio.create_task(inside.session.files.read("x", limit=3))
    await inside.heard.wait()
    inside.say(agent.FAILED, b"No such file")
    with pytest.raises(FileRefused, match="No such file"):
        await task
    assert inside.session.alive


async def test_a_session_that_never_becomes_ready_says_what_its_program_said() -> None:
    async def destroy() -> None:
        pass

    session = AgentSession(limits=QUICK, destroy=destroy, explain=lambda: "bwrap: no such thing")
    task = asyncio.create_task(session.begin(SPEC, env={}))
    await asyncio.sleep(0)
    session.lost()
    with pytest.raises(NotStarted, match="no such thing"):
        await task


async def test_a_session_whose_opening_is_cancelled_is_destroyed() -> None:
    inside = Inside()
    opening = asyncio.create_task(inside.session.begin(SPEC, env={}))
    await asyncio.sleep(0)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    assert inside.destroyed == 1


def test_the_agent_keeps_the_head_and_the_tail_of_a_stream() -> None:
    stream = agent.Stream(0, agent.OUT, 10)
    sent = stream.take(b"abc") + stream.take(b"defgh") + stream.take(b"ijklmnopqrstuvwxyz" * 3)
    assert sent == b"abcde"
    assert bytes(stream.tail[-stream.tail_size :]) == b"vwxyz"
    assert stream.total == 62
    assert Stream.STDOUT.value == "stdout"
