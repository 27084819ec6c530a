"""What is taken from a rate limit, and what of it has to be written."""

import pytest

from toolgate.access.rate_limits import RATES, Bucket, RateLimits
from toolgate.access.ratelimit import Rate
from toolgate.access.refusals import RateLimited
from toolgate.journal.local_bus import LocalBus
from toolgate.testing.clock import FakeClock
from toolgate.testing.journal import MemoryJournal

BUCKET = Bucket("device/laptop", Rate(3), "this device")


def journal_of(clock: FakeClock) -> MemoryJournal:
    return MemoryJournal(clock=clock, bus=LocalBus())


async def test_one_row_holds_for_all_that_was_taken_before_it() -> None:
    clock = FakeClock()
    journal = journal_of(clock)
    limits = RateLimits(journal, clock)
    first, second = limits.take(BUCKET), limits.take(BUCKET)
    (row,) = limits.writes(first)
    assert limits.writes(second) == []
    await journal.commit(row)
    after_a_restart = RateLimits(journal, clock)
    await after_a_restart.load()
    assert after_a_restart.look(BUCKET) == limits.look(BUCKET)
    assert after_a_restart.look(BUCKET).remaining == 1
    assert len(limits.writes(limits.take(BUCKET))) == 1
    with pytest.raises(RateLimited):
        limits.take(BUCKET)


async def test_what_is_given_back_can_be_taken_again() -> None:
    clock = FakeClock()
    limits = RateLimits(journal_of(clock), clock)
    paid = limits.take(BUCKET)
    limits.give_back(paid)
    assert limits.look(BUCKET).remaining == 3
    assert limits.writes(paid) == []


async def test_nothing_is_left_once_all_of_it_is_there_again() -> None:
    clock = FakeClock()
    journal = journal_of(clock)
    limits = RateLimits(journal, clock)
    await journal.commit(*limits.writes(limits.take(BUCKET)))
    clock.advance(20_000)
    (row,) = await journal.scan(RATES)
    await limits.on_due(row)
    assert await journal.scan(RATES) == []
    assert len(limits.writes(limits.take(BUCKET))) == 1


async def test_giving_back_one_leaves_what_others_took_meanwhile() -> None:
    clock = FakeClock()
    journal = journal_of(clock)
    limits = RateLimits(journal, clock)
    slow = limits.take(BUCKET)
    limits.take(BUCKET)
    last = limits.take(BUCKET)
    await journal.commit(*limits.writes(last))
    limits.give_back(slow)
    assert limits.look(BUCKET).remaining == 1
    (row,) = limits.writes(limits.take(BUCKET))
    await journal.commit(row)
    after_a_restart = RateLimits(journal, clock)
    await after_a_restart.load()
    for known in (limits, after_a_restart):
        with pytest.raises(RateLimited):
            known.take(BUCKET)
