"""The overview of a busy hour: it says where it has not counted all of it."""

from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from starlette.requests import Request

from toolgate.adapters.bus_local import LocalBus
from toolgate.orchestration import records
from toolgate.orchestration.records import RunLine
from toolgate.ports.journal import Put
from toolgate.surfaces.console.overview import LOOKED_AT, OverviewPage
from toolgate.surfaces.console.parts import Parts
from toolgate.testing.clock import FakeClock
from toolgate.testing.journal import MemoryJournal


async def nothing(**_: object) -> list[Any]:
    return []


async def overview_of(count: int) -> dict[str, Any]:
    clock = FakeClock()
    journal = MemoryJournal(clock=clock, bus=LocalBus())
    run = RunLine("", "sess_1", "echo", "amara", "DONE", clock.now_ms(), 1, "", "", "", 0)
    line = msgspec.json.encode(run)
    await journal.commit(*(Put(records.RUNS, f"run_{number:05}", line) for number in range(count)))
    parts = SimpleNamespace(
        version="1",
        clock=clock,
        journal=journal,
        runs=SimpleNamespace(open_runs=nothing),
        approvals=SimpleNamespace(pending=nothing),
        evidence=SimpleNamespace(failure=""),
        policy=SimpleNamespace(current=SimpleNamespace(version="", rules=()), error=""),
    )
    told: dict[str, Any] = await OverviewPage(cast(Parts, parts)).show(Request({"type": "http"}))
    return told


@pytest.mark.parametrize(("more", "is_partial"), [(0, False), (1, True)])
async def test_an_hour_with_more_runs_than_are_looked_at_is_called_partial(
    more: int, is_partial: bool
) -> None:
    hour = (await overview_of(LOOKED_AT + more))["hour"]
    assert (hour["runs"], hour["partial"]) == (LOOKED_AT, is_partial)
