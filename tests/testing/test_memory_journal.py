"""The journal that other tests stand on keeps the promises of the real ones."""

import pytest

from tests.support.ids import CountingIds
from toolgate.journal.journal import Journal
from toolgate.journal.local_bus import LocalBus
from toolgate.testing.clock import FakeClock
from toolgate.testing.journal import MemoryJournal
from toolgate.testing.journal_suite import JournalSuite


class TestMemoryJournal(JournalSuite):
    @pytest.fixture
    def journal(self, clock: FakeClock, bus: LocalBus) -> Journal:
        return MemoryJournal(clock=clock, bus=bus)


def test_counting_ids_count_each_prefix_by_itself() -> None:
    new_id = CountingIds()
    assert [new_id("run"), new_id("run"), new_id("apr")] == ["run_1", "run_2", "apr_1"]


def test_the_fake_clock_moves_only_when_told() -> None:
    clock = FakeClock(1000)
    assert (clock.now_ms(), clock.monotonic()) == (1000, 0.0)
    clock.advance(1500)
    assert (clock.now_ms(), clock.monotonic()) == (2500, 1.5)
