"""Searching ended calls in a long audit."""

import msgspec
import pytest

from toolgate.contracts.executor_v0 import EpisodeSearch, Order
from toolgate.contracts.wire import to_iso_ms
from toolgate.evidence.audit import STREAM, TOOL_RUN, StoredRow
from toolgate.journal.journal import Append, Event, NewEvent
from toolgate.journal.local_bus import LocalBus
from toolgate.testing.clock import FakeClock
from toolgate.testing.journal import MemoryJournal
from toolgate.tools import episodes


class Counting(MemoryJournal):
    """Counts the audit rows that were read."""

    rows_read = 0

    async def read(
        self, stream: str, *, after: int = 0, limit: int = 1000, subject: str = ""
    ) -> list[Event]:
        found = await super().read(stream, after=after, limit=limit, subject=subject)
        if stream == STREAM:
            self.rows_read += len(found)
        return found


async def an_audit(count: int, *, rare: int = -1) -> tuple[Counting, list[str]]:
    """An audit of so many calls, a second apart, one of them of a rare tool; and their times."""
    clock = FakeClock()
    journal = Counting(clock=clock, bus=LocalBus())
    times = []
    for number in range(count):
        clock.advance(1000)
        times.append(to_iso_ms(clock.now_ms()))
        said = {"requestId": f"r{number:05}", "decision": "allow", "result": "ok", "ruleId": ""}
        said |= {"runId": f"run_r{number}", "stepId": f"step_r{number}"}
        tool = "rare" if number == rare else "echo"
        row = StoredRow("t", "w", "a", "tool", tool, said)
        event = NewEvent(TOOL_RUN, msgspec.json.encode(row), f"run_r{number}")
        await journal.commit(Append(STREAM, (event,)))
    return journal, times


async def found(journal: MemoryJournal, **search: object) -> list[str]:
    asked = msgspec.convert(search, EpisodeSearch)
    page = await episodes.search_episodes(journal, asked)
    assert page.stopped_at is None
    return [each.id for each in page.episodes]


async def test_a_time_is_found_however_much_happened_before_and_after_it() -> None:
    journal, times = await an_audit(2500)
    for _ in range(2):  # without the summaries, and with them
        asked = {"since_ts": times[2497], "order": Order.ASC}
        assert await found(journal, **asked) == ["r02497", "r02498", "r02499"]
        asked = {"until_ts": times[2], "order": Order.DESC}
        assert await found(journal, **asked) == ["r00002", "r00001", "r00000"]
        between = {"since_ts": times[999], "until_ts": times[1001]}
        three = ["r00999", "r01000", "r01001"]
        assert await found(journal, **between, order=Order.ASC) == three
        assert await found(journal, **between, order=Order.DESC) == three[::-1]
        assert await found(journal, limit=2) == ["r02499", "r02498"]


@pytest.mark.requirement("003/http/episode-index")
@pytest.mark.parametrize("filters", [{"type": "rare"}, {"id_prefix": "r0123"}])
async def test_a_rare_filter_reads_only_what_may_match(filters: dict[str, str]) -> None:
    journal, _ = await an_audit(5500, rare=1234)
    first = await found(journal, **filters)
    assert "r01234" in first
    journal.rows_read = 0
    assert await found(journal, **filters) == first
    assert journal.rows_read == 1500, "a block of a thousand, and the last that is not full"


@pytest.mark.requirement("003/http/episode-stopped-early")
async def test_a_search_that_stops_early_says_how_far_it_came() -> None:
    journal, times = await an_audit(3000)
    asked = EpisodeSearch(type="nowhere")
    page = await episodes.search_episodes(journal, asked, budget_s=-1)
    assert page.episodes == []
    assert page.stopped_at is not None
    assert to_iso_ms(page.stopped_at) == times[2000], "after one block"
    for _ in range(2):
        page = await episodes.search_episodes(journal, asked, budget_s=-1)
    assert page.stopped_at is None, "each search leaves the next one less to read"
