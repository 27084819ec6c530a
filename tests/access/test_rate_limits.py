"""What is taken from a rate limit, and what of it has to be written."""

import asyncio

import pytest

from toolgate.access.rate_limits import KEPT_MS, RATES, Bucket, RateLimits
from toolgate.access.refusals import RateLimited
from toolgate.core.errors import Conflict, Unavailable
from toolgate.core.rates import Rate
from toolgate.journal.journal import Append, Check, Event, NewEvent, Operation, Row
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
    assert await journal.scan(RATES) == [row], "other nodes may remember its version"
    assert row.due == clock.now_ms() + KEPT_MS
    clock.advance(KEPT_MS)
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


class Counted(MemoryJournal):
    """Counts reads, refuses commits on demand, and answers after a turn of the loop."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(clock=clock, bus=LocalBus())
        self.reads = 0
        self.refusing = 0

    async def get(self, collection: str, key: str) -> Row | None:
        self.reads += 1
        await asyncio.sleep(0)
        return await super().get(collection, key)

    async def commit(self, *operations: Operation, durable: bool = True) -> list[Event]:
        if self.refusing:
            self.refusing -= 1
            await asyncio.sleep(0)
            raise Unavailable("the disk is full")
        try:
            return await super().commit(*operations, durable=durable)
        finally:
            await asyncio.sleep(0)


MANY = Bucket("device/laptop", Rate(100), "this device")


async def test_what_begins_pays_in_its_own_commit_and_reads_nothing() -> None:
    clock = FakeClock()
    journal = Counted(clock)
    limits = RateLimits(journal, clock)
    for left in (2, 1, 0):
        paid = await limits.commit([BUCKET], Append("a", [NewEvent("begun", b"")]))
        assert paid.spent.remaining == left
    with pytest.raises(RateLimited):
        await limits.commit([BUCKET], Append("a", [NewEvent("begun", b"")]))
    assert len(await journal.read("a")) == 3
    assert journal.reads == 0
    after_a_restart = RateLimits(journal, clock)
    await after_a_restart.load()
    assert after_a_restart.look(BUCKET) == limits.look(BUCKET)
    clock.advance(60_000)
    await after_a_restart.commit([BUCKET])
    assert journal.reads == 0


async def test_many_at_once_pay_in_one_row_without_a_conflict() -> None:
    clock = FakeClock()
    journal = Counted(clock)
    limits = RateLimits(journal, clock)
    await asyncio.gather(*(limits.commit([MANY]) for _ in range(50)))
    (row,) = await journal.scan(RATES)
    assert row.version == 50
    assert journal.reads == 0
    assert limits.look(MANY).remaining == 50


async def test_two_nodes_let_through_no_more_than_the_limit() -> None:
    clock = FakeClock()
    journal = Counted(clock)
    here, there = RateLimits(journal, clock), RateLimits(journal, clock)
    passed = 0
    for turn in range(8):
        try:
            await (here, there)[turn % 2].commit([BUCKET], Append("a", [NewEvent("begun", b"")]))
        except RateLimited:
            continue
        passed += 1
    assert passed == 3 == len(await journal.read("a"))


async def test_a_failed_commit_costs_nothing_and_those_after_it_pass() -> None:
    clock = FakeClock()
    journal = Counted(clock)
    limits = RateLimits(journal, clock)
    await limits.commit([MANY])
    journal.refusing = 1
    answers = await asyncio.gather(
        *(limits.commit([MANY]) for _ in range(10)), return_exceptions=True
    )
    assert [isinstance(one, Unavailable) for one in answers] == [True] + [False] * 9
    assert not any(isinstance(one, Conflict) for one in answers)
    (row,) = await journal.scan(RATES)
    assert row.version == 10
    assert limits.look(MANY).remaining == 90
    assert journal.reads <= 2, "the first that conflicts reads for the others"


async def test_what_else_does_not_hold_is_a_conflict_and_costs_nothing() -> None:
    clock = FakeClock()
    journal = Counted(clock)
    limits = RateLimits(journal, clock)
    with pytest.raises(Conflict):
        await limits.commit([BUCKET], Check("devices", "laptop", 7))
    assert limits.look(BUCKET).remaining == 3
    assert await journal.scan(RATES) == []
    await limits.commit([BUCKET])
    assert limits.look(BUCKET).remaining == 2


async def test_an_end_that_is_written_over_any_version_does_not_disturb_what_begins() -> None:
    clock = FakeClock()
    journal = Counted(clock)
    limits = RateLimits(journal, clock)
    await limits.commit([MANY])
    await journal.commit(*limits.writes(limits.take(MANY)))
    await limits.commit([MANY])
    assert limits.look(MANY).remaining == 97
    (row,) = await journal.scan(RATES)
    assert row.version == 3


async def test_a_row_that_was_written_since_it_came_due_stays() -> None:
    clock = FakeClock()
    journal = Counted(clock)
    here, there = RateLimits(journal, clock), RateLimits(journal, clock)
    await here.commit([BUCKET])
    clock.advance(20_000 + KEPT_MS)
    (row,) = await journal.scan(RATES)
    await there.commit([BUCKET])
    await here.on_due(row)
    (kept,) = await journal.scan(RATES)
    assert kept.version == 2
    clock.advance(20_000 + KEPT_MS)
    await there.on_due(kept)
    assert await journal.scan(RATES) == []
    await there.commit([BUCKET])
    await here.commit([BUCKET])
    assert here.look(BUCKET).remaining == 1
