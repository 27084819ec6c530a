"""One connection, driven by hand: a transport that writes down, an orchestrator that waits."""

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest
from picows import WSMsgType

from tests.support.ids import CountingIds
from tests.support.people import keyed
from tests.support.seal import PlainSeal
from toolgate.contracts.ingress_v1 import CloseCode
from toolgate.core.clock import Clock
from toolgate.core.errors import Unavailable
from toolgate.core.tools import Tool
from toolgate.journal.journal import Append, Event, NewEvent
from toolgate.journal.local_bus import LocalBus
from toolgate.runs.deliveries import Delivery
from toolgate.runs.orchestrator import Accepted, Invocation
from toolgate.runs.originals import Originals
from toolgate.surfaces.ingress.connection import INBOX, Connection, Options
from toolgate.surfaces.ingress.hub import Hub
from toolgate.surfaces.ingress.sessions import Sessions, stream_of
from toolgate.testing.clock import FakeClock
from toolgate.testing.journal import MemoryJournal

OPTIONS = Options(max_message_bytes=65_536, write_wait_ms=60_000)


class Wire:
    """Stands for picows' transport, and for the one below it."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []
        self.pongs: list[bytes] = []
        self.close_code = 0
        self.is_close_frame_sent = False
        self.underlying_transport = self

    def send(self, kind: Any, message: bytes) -> None:
        if kind.name == "CLOSE":
            self.close_code = int.from_bytes(message[:2], "big")
            self.is_close_frame_sent = True
        else:
            self.sent.append(json.loads(message))

    def send_pong(self, payload: bytes) -> None:
        self.pongs.append(payload)

    def get_extra_info(self, _name: str) -> None: ...

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def disconnect(self, _graceful: bool = True) -> None: ...

    def kinds(self) -> list[str]:
        return [str(one["type"]) for one in self.sent]


@dataclass
class Slow:
    """An orchestrator that does each thing only once it is let."""

    may: asyncio.Event = field(default_factory=asyncio.Event)
    begun: list[str] = field(default_factory=list)
    done: list[str] = field(default_factory=list)
    tools: list[set[str]] = field(default_factory=list)
    is_slow: bool = False

    async def _do(self, what: str) -> None:
        self.begun.append(what)
        await self.may.wait()
        self.done.append(what)

    async def invoke(self, invocation: Invocation) -> str:
        await self._do(f"invoke {invocation.content}")
        return "run_1"

    async def cancel(self, run_id: str, *, session_id: str, reason: str) -> Accepted:
        await self._do(f"cancel {run_id}")
        return Accepted(run_id, "CANCELLED")

    async def register_tools(self, session_id: str, tools: Sequence[Tool]) -> None:
        self.tools.append({tool.name for tool in tools})
        await self._do("tools")

    async def snapshot(self, session_id: str) -> list[Delivery]:
        return []

    async def open_runs(self, _: str) -> list[tuple[str, str]]:
        return []


@dataclass
class Door:
    """What the connections of a test share."""

    options: Options = OPTIONS
    clock: Clock = field(default_factory=FakeClock)
    bus: LocalBus = field(default_factory=LocalBus)
    slow: Slow = field(default_factory=Slow)

    def __post_init__(self) -> None:
        self.journal: Any = MemoryJournal(clock=self.clock, bus=self.bus)
        self.hub = Hub(
            self.bus, self.clock, Originals(self.journal, PlainSeal()), resume_window_ms=60_000
        )
        self.authenticator = keyed()
        self.sessions = Sessions(self.journal, self.clock, CountingIds())
        self.orchestrator: Any = self.slow

    def joined(self, connection: Connection) -> None: ...

    def left(self, connection: Connection) -> None: ...

    def refused(self, address: str, path: str) -> None: ...

    def connect(self) -> tuple[Connection, Wire]:
        connection, wire = Connection(self), Wire()
        connection.on_ws_connected(cast("Any", wire))
        return connection, wire

    async def open(self, **hello: Any) -> tuple[Connection, Wire]:
        connection, wire = self.connect()
        say(connection, "hello", user_id="u", api_key="k", **hello)
        await until(lambda: "hello_ack" in wire.kinds())
        return connection, wire


def say(connection: Connection, kind: str, **members: Any) -> None:
    connection.take(json.dumps({"type": kind, "ts": 1, **members}).encode(), binary=False)


def invoke(connection: Connection, content: str) -> None:
    message = {"role": "user", "content": content}
    say(connection, "agent_invoke", request_id=content, agent_id="echo", message=message)


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not holds():
            await asyncio.sleep(0)


def leave(connection: Connection, wire: Wire) -> None:
    connection.on_ws_disconnected(cast("Any", wire))


async def test_what_a_client_said_before_it_left_is_done_to_its_end() -> None:
    door = Door()
    connection, wire = await door.open()
    invoke(connection, "one")
    say(connection, "cancel_run", run_id="run_0")
    await until(lambda: door.slow.begun == ["invoke one"])
    leave(connection, wire)
    door.slow.may.set()
    await until(lambda: door.slow.done == ["invoke one", "cancel run_0"])
    door.hub.close()


async def test_a_command_at_work_is_done_to_its_end_though_the_connection_is_closed() -> None:
    door = Door()
    connection, wire = await door.open()
    invoke(connection, "one")
    await until(lambda: door.slow.begun == ["invoke one"])
    connection.close(CloseCode.SLOW_CONSUMER, "too slow")
    leave(connection, wire)
    door.slow.may.set()
    await until(lambda: door.slow.done == ["invoke one"])
    door.hub.close()


@pytest.mark.requirement("001/handshake/hello-in-time")
async def test_who_does_not_read_what_it_is_told_must_still_say_hello_in_time() -> None:
    door = Door(options=replace(OPTIONS, hello_wait_ms=50))
    connection, wire = door.connect()
    connection.pause_writing()
    connection.resume_writing()
    await until(lambda: wire.close_code == CloseCode.UNAUTHENTICATED)
    door.hub.close()


async def test_devices_that_come_at_once_are_all_known_by_their_tools() -> None:
    door = Door()
    first, wire = door.connect()
    say(first, "hello", user_id="u", api_key="k")
    await until(lambda: bool(wire.sent))
    session_id = wire.sent[0]["session_id"]
    for tool in ("phone.ring", "desk.look"):
        connection, _ = door.connect()
        meta = {"tools": [tool]}
        say(connection, "hello", user_id="u", api_key="k", session_id=session_id, client_meta=meta)
    await until(lambda: len(door.slow.begun) == 2)
    assert door.slow.tools[-1] == {"phone.ring", "desk.look"}
    door.slow.may.set()
    await until(lambda: door.hub.count(session_id) == 3)
    door.hub.close()


async def test_a_device_whose_tools_cannot_be_taken_may_say_hello_again() -> None:
    door = Door()

    async def refuse(*_: Any) -> None:
        raise Unavailable("not now")

    door.orchestrator.register_tools = refuse
    connection, wire = door.connect()
    say(connection, "hello", user_id="u", api_key="k", client_meta={"tools": ["desk.look"]})
    await until(lambda: wire.kinds() == ["error"])
    assert door.hub.count_of_user("u") == 0
    say(connection, "hello", user_id="u", api_key="k")
    await until(lambda: wire.kinds() == ["error", "hello_ack"])
    assert door.hub.count_of_user("u") == 1
    door.hub.close()


class Failing(MemoryJournal):
    """Cannot read a stream, once it is told so."""

    fails = False

    async def read(
        self, stream: str, *, after: int = 0, limit: int = 1000, subject: str = ""
    ) -> list[Event]:
        if self.fails:
            raise Unavailable("the disk does not answer")
        return await super().read(stream, after=after, limit=limit, subject=subject)


@pytest.mark.parametrize("what", ["events", "snapshot"])
async def test_who_cannot_be_given_what_it_missed_is_closed_and_may_come_back(what: str) -> None:
    door = Door()
    door.journal = door.sessions.journal = Failing(clock=door.clock, bus=door.bus)
    first, wire = await door.open()
    session_id = wire.sent[0]["session_id"]
    leave(first, wire)
    if what == "events":
        event = NewEvent("delta", b'{"run_id":"r","text":"x"}', "r")
        await door.journal.commit(Append(stream_of(session_id), [event]))
        door.journal.fails = True
        seen: dict[str, Any] = {"last_seq": 0}
    else:

        async def fail(_: str) -> list[Delivery]:
            raise Unavailable("the disk does not answer")

        door.orchestrator.snapshot = fail
        seen = {"last_seq": 9}  # more than there is
    _, wire = await door.open(session_id=session_id, **seen)
    await until(lambda: wire.close_code == CloseCode.INTERNAL_ERROR)
    door.hub.close()


@pytest.mark.parametrize("forgotten", [4, 5], ids=["in part", "all of it"])
async def test_who_missed_what_is_not_kept_any_more_is_closed_and_not_given_the_rest(
    forgotten: int,
) -> None:
    door = Door()
    connection, wire = await door.open()
    stream = stream_of(wire.sent[0]["session_id"])

    async def told(count: int) -> None:
        for _ in range(count):
            event = NewEvent("state", b'{"run_id":"r","state":"x"}', "r")
            await door.journal.commit(Append(stream, [event]))

    await told(2)
    connection.pause_writing()
    await told(3)
    await door.journal.forget(stream, through=forgotten)  # as retention does, now and then
    connection.resume_writing()
    await until(lambda: wire.close_code == CloseCode.SLOW_CONSUMER)
    assert [one.get("seq") for one in wire.sent[1:]] == [1, 2]
    leave(connection, wire)
    door.hub.close()


@pytest.mark.parametrize(
    ("forgotten", "answer"),
    [
        (0, ["run_started", "delta", "done"]),
        (1, ["run_started", "delta", "done"]),
        (3, ["error"]),
    ],
    ids=["nothing", "its start", "all of it"],
)
async def test_who_asks_again_for_a_run_that_is_not_kept_whole_is_answered_all_the_same(
    forgotten: int, answer: list[str]
) -> None:
    door = Door()
    door.slow.may.set()
    first, wire = await door.open()
    session_id = wire.sent[0]["session_id"]
    leave(first, wire)
    for kind, members in (
        ("run_started", {"request_id": "again", "agent_id": "echo"}),
        ("delta", {"text": "x"}),
        ("done", {"usage": {}}),
    ):
        data = json.dumps({"run_id": "run_1", **members}).encode()
        await door.journal.commit(Append(stream_of(session_id), [NewEvent(kind, data, "run_1")]))
    await door.journal.forget(stream_of(session_id), through=forgotten)  # as retention does
    back, wire = await door.open(session_id=session_id, last_seq=3)
    invoke(back, "again")
    await until(lambda: wire.kinds()[1:] == answer)
    asked = wire.sent[1]
    assert asked["request_id"] == "again"
    leave(back, wire)
    door.hub.close()


async def test_the_first_event_of_a_session_is_not_lost_on_who_comes_back_just_then() -> None:
    door = Door()
    first, wire = await door.open()
    session_id = wire.sent[0]["session_id"]
    leave(first, wire)
    sessions = door.sessions

    class Meanwhile:
        async def open(self, **hello: Any) -> Any:
            opening = await sessions.open(**hello)
            event = NewEvent("state", b'{"run_id":"r","state":"x"}', "r")
            await door.journal.commit(Append(stream_of(session_id), [event]))
            return opening

    door.sessions = cast("Any", Meanwhile())
    back, wire = await door.open(session_id=session_id, last_seq=0)
    await until(lambda: wire.kinds() == ["hello_ack", "state"])
    leave(back, wire)
    door.hub.close()


async def test_answers_wait_for_a_client_that_does_not_read_them() -> None:
    door = Door()
    connection, wire = await door.open()
    connection.pause_writing()
    for _ in range(INBOX):
        connection.take(b"not JSON", binary=False)
    invoke(connection, "one")
    for _ in range(INBOX * 10):
        await asyncio.sleep(0)
    assert wire.kinds() == ["hello_ack"]
    connection.resume_writing()
    await until(lambda: len(wire.sent) == 1 + INBOX)
    door.slow.may.set()
    await until(lambda: door.slow.done == ["invoke one"])
    leave(connection, wire)
    door.hub.close()


@dataclass
class Ping:
    """Stands for picows' frame."""

    payload: bytes
    msg_type: WSMsgType = WSMsgType.PING
    rsv1 = rsv2 = rsv3 = False

    def get_payload_as_bytes(self) -> bytes:
        return self.payload


async def test_of_pings_by_a_client_that_does_not_read_the_last_is_answered_once_it_does() -> None:
    door = Door()
    connection, wire = await door.open()

    def ping(payload: bytes) -> None:
        connection.on_ws_frame(cast("Any", wire), cast("Any", Ping(payload)))

    ping(b"0")
    connection.pause_writing()
    for number in range(1, 100):
        ping(b"%d" % number)
    assert wire.pongs == [b"0"]
    connection.resume_writing()
    assert wire.pongs == [b"0", b"99"]
    ping(b"100")
    connection.pause_writing()
    connection.resume_writing()
    assert wire.pongs == [b"0", b"99", b"100"]
    leave(connection, wire)
    door.hub.close()


@pytest.mark.requirement("001/handshake/hello-in-time")
@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (Unavailable("not now"), CloseCode.UNAUTHENTICATED),
        (RuntimeError("a bug"), CloseCode.INTERNAL_ERROR),
    ],
    ids=["refused", "failed"],
)
async def test_a_hello_that_failed_after_its_time_does_not_leave_a_connection_for_ever(
    failure: Exception, code: CloseCode
) -> None:
    class Failing(Slow):
        async def register_tools(self, session_id: str, tools: Sequence[Tool]) -> None:
            await super().register_tools(session_id, tools)
            raise failure

    slow = Failing()
    door = Door(replace(OPTIONS, hello_wait_ms=1), slow=slow)
    connection, wire = door.connect()
    say(connection, "hello", user_id="u", api_key="k", client_meta={"tools": ["desk"]})
    await until(lambda: slow.begun == ["tools"])
    assert connection._hello_due is not None
    while connection._hello_due.when() > asyncio.get_running_loop().time():
        await asyncio.sleep(0.001)
    await asyncio.sleep(0)
    assert not wire.close_code
    slow.may.set()
    await until(lambda: wire.close_code == code)
    assert wire.kinds() == ["error"]
    assert door.hub.count_of_user("u") == 0
    leave(connection, wire)
    door.hub.close()
