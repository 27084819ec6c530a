"""What the ingress does for sessions that nobody is connected to."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest

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


def an_ingress(orchestrator: Any) -> Ingress:
    clock, bus = FakeClock(), LocalBus()
    journal = MemoryJournal(clock=clock, bus=bus)
    return Ingress(
        options=Options(api_key="", max_message_bytes=65_536, write_wait_ms=1000),
        hub=Hub(bus, clock, resume_window_ms=60_000),
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
