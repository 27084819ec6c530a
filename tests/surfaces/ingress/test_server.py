"""What the ingress does for sessions that nobody is connected to."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest

from toolgate import asgi
from toolgate.adapters.bus_local import LocalBus
from toolgate.domain.errors import Conflict, Unavailable
from toolgate.surfaces.ingress.connection import Options
from toolgate.surfaces.ingress.hub import Hub
from toolgate.surfaces.ingress.server import Ingress
from toolgate.surfaces.ingress.sessions import Sessions
from toolgate.testing.clock import FakeClock
from toolgate.testing.ids import CountingIds
from toolgate.testing.journal import MemoryJournal


@dataclass
class Two:
    """An orchestrator with two open runs, of which the first cannot be cancelled at once."""

    may: asyncio.Event = field(default_factory=asyncio.Event)
    cancelling: asyncio.Event = field(default_factory=asyncio.Event)
    cancelled: list[str] = field(default_factory=list)

    async def open_runs(self, _: str) -> list[tuple[str, str]]:
        return [("run_1", "s"), ("run_2", "s")]

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
        options=Options(api_key="", max_message_bytes=65_536, write_wait_ms=1000),
        hub=Hub(bus, clock, resume_window_ms=resume_window_ms),
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
class Restarted:
    """An orchestrator with runs from before a restart, of sessions of every kind."""

    sessions: list[str]
    cancelled: list[str] = field(default_factory=list)
    told: asyncio.Event = field(default_factory=asyncio.Event)

    async def open_runs(self, session_id: str = "") -> list[tuple[str, str]]:
        return [(f"run of {one}", one) for one in self.sessions if session_id in ("", one)]

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
