"""The overview of a busy hour: it says where it has not counted all of it."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from starlette.requests import Request

from toolgate.journal.journal import Put
from toolgate.journal.local_bus import LocalBus
from toolgate.runs import records
from toolgate.runs.records import RunLine
from toolgate.surfaces.console.context import ConsoleContext
from toolgate.surfaces.console.overview import LOOKED_AT, RUNNING_SHOWN, OverviewPage
from toolgate.surfaces.gateway.translate import run_summary
from toolgate.testing.clock import FakeClock
from toolgate.testing.journal import MemoryJournal


async def nothing(**_: object) -> list[Any]:
    return []


async def overview_of(count: int, *, is_open: Sequence[tuple[str, str]] = ()) -> dict[str, Any]:
    async def open_runs() -> Sequence[tuple[str, str]]:
        return is_open

    clock = FakeClock()
    journal = MemoryJournal(clock=clock, bus=LocalBus())
    run = RunLine("", "sess_1", "echo", "amara", "DONE", clock.now_ms(), 1, "", "", "", 0)
    names = (f"run_{number:05}" for number in range(count))
    lines = ((name, msgspec.structs.replace(run, run_id=name)) for name in names)
    rows = (Put(records.RUNS, name, msgspec.json.encode(line), expected=0) for name, line in lines)
    await journal.commit(*rows)
    parts = SimpleNamespace(
        version="1",
        clock=clock,
        journal=journal,
        runs=SimpleNamespace(open_runs=open_runs),
        approvals=SimpleNamespace(pending=nothing),
        run_summary=run_summary,
        evidence=SimpleNamespace(failure=""),
        policy=SimpleNamespace(current=SimpleNamespace(version="", rules=()), error=""),
    )
    told: dict[str, Any] = await OverviewPage(cast(ConsoleContext, parts)).show(
        Request({"type": "http"})
    )
    return told


@pytest.mark.parametrize(("more", "is_partial"), [(0, False), (1, True)])
async def test_an_hour_with_more_runs_than_are_looked_at_is_called_partial(
    more: int, is_partial: bool
) -> None:
    hour = (await overview_of(LOOKED_AT + more))["hour"]
    assert (hour["runs"], hour["partial"]) == (LOOKED_AT, is_partial)


async def test_of_the_runs_at_work_the_newest_are_shown_whatever_their_sessions_are_called() -> (
    None
):
    of_sessions = [
        (f"run_{RUNNING_SHOWN - number:05}", f"s_{number:05}")
        for number in range(RUNNING_SHOWN + 1)
    ]
    told = await overview_of(RUNNING_SHOWN + 1, is_open=of_sessions)
    shown = [line.run_id for line in told["running"]]
    assert shown == sorted((run_id for run_id, _ in of_sessions), reverse=True)[:RUNNING_SHOWN]
    assert told["running_total"] == RUNNING_SHOWN + 1
