"""Searching ended calls in a log that is longer than a search may look at."""

import msgspec
import pytest

from toolgate.contracts.executor_v0 import EpisodeSearch, Order
from toolgate.contracts.wire import to_iso_ms
from toolgate.evidence.audit import STREAM, TOOL_RUN, StoredRow
from toolgate.journal.journal import Append, NewEvent
from toolgate.journal.local_bus import LocalBus
from toolgate.testing.clock import FakeClock
from toolgate.testing.journal import MemoryJournal
from toolgate.tools import episodes


async def test_a_time_is_found_however_much_happened_before_and_after_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(episodes, "MAX_LOOKED_AT", 10)
    clock = FakeClock()
    journal = MemoryJournal(clock=clock, bus=LocalBus())
    times = []
    for number in range(40):
        clock.advance(1000)
        times.append(to_iso_ms(clock.now_ms()))
        said = {"requestId": f"r{number}", "decision": "allow", "result": "ok", "ruleId": ""}
        said |= {"runId": f"run_r{number}", "stepId": f"step_r{number}"}
        row = StoredRow("t", "w", "a", "tool", "echo", said)
        event = NewEvent(TOOL_RUN, msgspec.json.encode(row), f"run_r{number}")
        await journal.commit(Append(STREAM, (event,)))

    async def found(**search: object) -> list[str]:
        asked = msgspec.convert(search, EpisodeSearch)
        return [each.id for each in await episodes.search_episodes(journal, asked)]

    assert await found(since_ts=times[37], order=Order.ASC) == ["r37", "r38", "r39"]
    assert await found(until_ts=times[2], order=Order.DESC) == ["r2", "r1", "r0"]
    between = {"since_ts": times[20], "until_ts": times[22]}
    assert await found(**between, order=Order.ASC) == ["r20", "r21", "r22"]
    assert await found(**between, order=Order.DESC) == ["r22", "r21", "r20"]
    assert await found(limit=2) == ["r39", "r38"]
