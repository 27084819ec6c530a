"""What the ingress does for sessions that nobody is connected to."""

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import pytest

from tests.support.ids import CountingIds
from tests.support.people import keyed
from tests.support.seal import PlainSeal
from toolgate.contracts import ingress_v1 as wire
from toolgate.core.errors import Conflict, NotFound, Unavailable
from toolgate.http import asgi
from toolgate.journal.dispatcher import Dispatcher
from toolgate.journal.journal import Append, NewEvent
from toolgate.journal.local_bus import LocalBus
from toolgate.runs.deliveries import Delivery
from toolgate.runs.originals import Originals
from toolgate.runs.remote.orchestrator import HttpOrchestrator
from toolgate.runs.remote.records import RemoteRuns
from toolgate.surfaces.ingress.connection import Options
from toolgate.surfaces.ingress.hub import Hub
from toolgate.surfaces.ingress.server import Ingress
from toolgate.surfaces.ingress.sessions import Sessions, stream_of
from toolgate.testing.clock import FakeClock
from toolgate.testing.journal import MemoryJournal


@dataclass
class Two:
    """An orchestrator with two open runs, of which the first cannot be cancelled at once."""

    may: asyncio.Event = field(default_factory=asyncio.Event)
    cancelling: asyncio.Event = field(default_factory=asyncio.Event)
    cancelled: list[str] = field(default_factory=list)

    async def open_runs(self, _: str) -> list[tuple[str, str]]:
        return [("run_1", "s"), ("run_2", "s")]

    async def snapshot(self, _: str) -> list[Delivery]:
        return []

    async def cancel(self, run_id: str, *, session_id: str, reason: str) -> None:
        if run_id == "run_1":
            self.cancelling.set()
            await self.may.wait()
            raise Conflict("it is just ending")
        self.cancelled.append(run_id)


def an_ingress(orchestrator: Any, *, resume_window_ms: int = 60_000) -> Ingress:
    clock, bus = FakeClock(), LocalBus()
    journal = MemoryJournal(clock=clock, bus=bus)
    return Ingress(
        options=Options(max_message_bytes=65_536, write_wait_ms=1000),
        authenticator=keyed(),
        hub=Hub(bus, clock, Originals(journal, PlainSeal()), resume_window_ms=resume_window_ms),
        sessions=Sessions(journal, clock, CountingIds()),
        journal=journal,
        orchestrator=orchestrator,
        clock=clock,
        ping_interval_ms=30_000,
        pong_wait_ms=60_000,
        cancel_when_gone=True,
        metrics=bytes,
    )


class Ear:
    def miss(self, *_: Any) -> None: ...

    def fall_behind(self) -> None: ...


@pytest.mark.requirement("001/offline/runs-cancelled")
@pytest.mark.parametrize("back", [False, True])
async def test_each_run_of_a_gone_session_is_cancelled_unless_it_comes_back(back: bool) -> None:
    orchestrator = Two()
    ingress = an_ingress(orchestrator)
    going = asyncio.create_task(ingress._session_gone("s"))
    await asyncio.wait_for(orchestrator.cancelling.wait(), 5)
    if back:
        ingress.hub.join("s", "u", Ear())
    orchestrator.may.set()
    await asyncio.wait_for(going, 5)
    assert orchestrator.cancelled == ([] if back else ["run_2"])
    ingress.hub.close()


@dataclass
class Away:
    """An orchestrator that cannot be reached at first."""

    attempts: list[str] = field(default_factory=list)

    async def open_runs(self, _: str) -> list[tuple[str, str]]:
        return [("run_1", "s"), ("run_2", "s")]

    async def snapshot(self, _: str) -> list[Delivery]:
        return []

    async def cancel(self, run_id: str, *, session_id: str, reason: str) -> None:
        self.attempts.append(run_id)
        if len(self.attempts) < 4:
            raise Unavailable("it is just starting")


@pytest.mark.requirement("001/m4/orchestrator-told")
async def test_an_orchestrator_that_is_away_is_told_later_that_a_session_is_gone() -> None:
    orchestrator = Away()
    ingress = an_ingress(orchestrator)
    ingress.told_again_s = (0.0, 0.0, 0.0)
    await asyncio.wait_for(ingress._session_gone("s"), 5)
    assert orchestrator.attempts == ["run_1", "run_2"] * 3
    ingress.hub.close()


@dataclass
class Silent:
    """An orchestrator that cannot be told of a call at first, nor asked for its runs."""

    told: list[str] = field(default_factory=list)
    listed: int = 0

    async def client_offline(self, run_id: str, call_id: str) -> None:
        self.told.append(call_id)
        if len(self.told) < 3:
            raise Unavailable("it is just starting")

    async def open_runs(self, _: str) -> list[tuple[str, str]]:
        self.listed += 1
        if self.listed < 3:
            raise Unavailable("the journal cannot be read")
        return [("run_1", "s")]

    async def snapshot(self, _: str) -> list[Delivery]:
        return []

    async def cancel(self, run_id: str, *, session_id: str, reason: str) -> None:
        self.told.append(run_id)


@pytest.mark.requirement("001/m2/offline-error")
@pytest.mark.parametrize("back", [False, True])
async def test_an_orchestrator_that_is_away_is_told_later_that_nobody_took_a_tool_request(
    back: bool,
) -> None:
    orchestrator = Silent()
    ingress = an_ingress(orchestrator)
    ingress.told_again_s = (0.0, 0.0, 0.0)
    members = {"run_id": "run_1", "tool_call_id": "tc_1", "tool_name": "desk", "args": {}}
    asked = NewEvent("tool_request", json.dumps(members).encode(), "run_1")
    (event,) = await ingress.journal.commit(Append("session/s", [asked]))
    if back:
        ingress.hub.join("s", "u", Ear())  # it reads what waits for it
    await asyncio.wait_for(ingress._tool_request_undelivered("s", event), 5)
    assert orchestrator.told == ["tc_1"] * (0 if back else 3)
    ingress.hub.close()


@pytest.mark.requirement("001/offline/runs-cancelled")
async def test_a_journal_that_cannot_be_read_does_not_keep_a_gone_sessions_runs_alive() -> None:
    orchestrator = Silent()
    ingress = an_ingress(orchestrator)
    ingress.told_again_s = (0.0, 0.0, 0.0)
    await asyncio.wait_for(ingress._session_gone("s"), 5)
    assert orchestrator.told == ["run_1"]
    ingress.hub.close()


@dataclass
class Restarted:
    """An orchestrator with runs from before a restart, of sessions of every kind."""

    sessions: list[str]
    cancelled: list[str] = field(default_factory=list)
    told: asyncio.Event = field(default_factory=asyncio.Event)

    async def open_runs(self, session_id: str = "") -> list[tuple[str, str]]:
        return [(f"run of {one}", one) for one in self.sessions if session_id in ("", one)]

    async def snapshot(self, _: str) -> list[Delivery]:
        return []

    async def cancel(self, run_id: str, *, session_id: str, reason: str) -> None:
        self.cancelled.append(session_id)
        self.told.set()


@pytest.mark.requirement("001/offline/runs-cancelled")
async def test_a_restart_cancels_no_run_that_never_had_a_client_connected() -> None:
    orchestrator = Restarted([])
    ingress = an_ingress(orchestrator, resume_window_ms=0)
    opening = await ingress.sessions.open(user_id="u", session_id="", last_seq=None, epoch="")
    orchestrator.sessions = ["cron:nightly", "device/phone", opening.session_id]
    await ingress.start(asgi.bind("127.0.0.1", 0, setting="WS_PORT"))
    await asyncio.wait_for(orchestrator.told.wait(), 5)
    await ingress.stop()
    assert orchestrator.cancelled == [opening.session_id]


DAY_MS = 24 * 3_600_000


async def test_a_session_that_nobody_uses_any_more_is_forgotten() -> None:
    orchestrator = Restarted([])
    ingress = an_ingress(orchestrator)
    clock = ingress.clock
    assert isinstance(clock, FakeClock)

    async def hello(session_id: str = "") -> str:
        opening = await ingress.sessions.open(
            user_id="u", session_id=session_id, last_seq=0, epoch=""
        )
        return opening.session_id

    left, online, runs, told, back = [await hello() for _ in range(5)]
    ingress.hub.join(online, "u", Ear())
    orchestrator.sessions = [runs]
    clock.advance(20 * DAY_MS)
    await hello(back)
    clock.advance(10 * DAY_MS)
    assert await ingress.forget_sessions(clock.now_ms() - 30 * DAY_MS) == 0
    clock.advance(1)
    await ingress.journal.commit(Append(f"session/{told}", [NewEvent("state", b"{}", "run_1")]))
    assert await ingress.forget_sessions(clock.now_ms() - 30 * DAY_MS) == 1
    with pytest.raises(NotFound):
        await hello(left)
    assert [await hello(one) for one in (online, runs, told, back)] == [online, runs, told, back]
    ingress.hub.close()


async def test_a_session_whose_user_comes_back_just_then_is_not_forgotten() -> None:
    ingress = an_ingress(Restarted([]))
    clock = ingress.clock
    assert isinstance(clock, FakeClock)
    sessions = ingress.sessions
    session_id = (
        await sessions.open(user_id="u", session_id="", last_seq=None, epoch="")
    ).session_id
    clock.advance(31 * DAY_MS)

    async def comes_back(_: str) -> bool:
        await sessions.open(user_id="u", session_id=session_id, last_seq=0, epoch="")
        return False

    assert await sessions.forget(clock.now_ms() - 30 * DAY_MS, is_in_use=comes_back) == 0
    assert await sessions.knows(session_id), "or it would be gone under its user's feet"
    ingress.hub.close()


@pytest.mark.requirement("001/send/offline")
async def test_an_event_for_the_run_of_an_absent_client_is_answered_with_its_sessions_name() -> (
    None
):
    class Known(Restarted):
        async def session_of(self, run_id: str) -> str:
            return run_id.removeprefix("run of ")

    ingress = an_ingress(Known([]))
    bound = asgi.bind("127.0.0.1", 0, setting="HTTP_PORT")
    listener = asgi.Listener(ingress.internal_app(), bound)
    await listener.start()
    url = f"http://127.0.0.1:{bound.getsockname()[1]}/internal/send"
    event = {"type": "delta", "ts": 1, "run_id": "run of sess_7", "text": "x"}
    async with aiohttp.ClientSession() as http, http.post(url, json={"event": event}) as answer:
        assert (answer.status, await answer.json()) == (
            409,
            {
                "ok": False,
                "error": "client_offline",
                "message": "session sess_7 has no active connections",
            },
        )
    await listener.stop()
    ingress.hub.close()


async def test_a_run_that_ends_while_nobody_is_connected_has_ended_for_who_comes_back() -> None:
    ingress = an_ingress(None)
    journal, clock = ingress.journal, ingress.clock
    runs = RemoteRuns(journal, clock, Dispatcher(journal, clock), Originals(journal, PlainSeal()))
    ingress.orchestrator = HttpOrchestrator("http://127.0.0.1:9", runs, CountingIds())
    ear = Ear()
    ingress.hub.join("s", "u", ear)
    assert await ingress.push(
        "s", wire.RunStarted(ts=1, run_id="run_1", session_id="s", agent_id="a")
    )
    ingress.hub.leave("s", "u", ear)
    unknown = wire.Error(ts=2, run_id="run_0", code="agent_failed", message="of a run of nobody's")
    end = wire.Error(ts=3, run_id="run_1", code="agent_failed", message="its orchestrator gives up")
    for event in (wire.Delta(ts=2, run_id="run_1", text="lost"), unknown, end, end):
        assert not await ingress.push("s", event), "whoever pushes is told that nobody has it"
    assert await ingress.orchestrator.open_runs("s") == []
    told = await journal.read(stream_of("s"))
    assert [event.type for event in told] == ["run_started", "error"]
    ingress.hub.close()


@dataclass(eq=False)
class Pinged:
    """A connection, as the heartbeat sees it."""

    fails: bool
    pings: int = 0
    listens: bool = True
    ponged_at: float = float("inf")
    pinged_at: float = float("-inf")

    def ping(self, _now: float) -> None:
        self.pings += 1
        if self.fails:
            raise RuntimeError("a fault of ours")


async def test_a_connection_that_cannot_be_pinged_does_not_stop_the_heartbeat() -> None:
    ingress = an_ingress(Two())
    ingress.ping_interval_ms = 4
    connections: list[Any] = [Pinged(fails=True), Pinged(fails=False)]
    ingress.connections.update(connections)
    beating = asyncio.create_task(ingress._beat())
    async with asyncio.timeout(5):
        while not beating.done() and min(one.pings for one in connections) < 2:
            await asyncio.sleep(0.001)
    assert not beating.done()
    beating.cancel()
    ingress.hub.close()
