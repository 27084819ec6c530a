"""What is taken from a rate limit, and what of it has to be written."""

import pytest

from toolgate.journal.local_bus import LocalBus
from toolgate.commands.keys import (
    KEYS,
    RATES,
    REMEMBERED_BODY,
    Bucket,
    Keys,
    RateLimits,
    first_use,
)
from toolgate.access.refusals import RateLimited
from toolgate.commands.idempotency import KEPT_MS
from toolgate.access.ratelimit import Rate
from toolgate.testing.clock import FakeClock
from toolgate.testing.journal import MemoryJournal
from tests.support.seal import PlainSeal

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


async def test_a_key_is_forgotten_once_its_time_is_over() -> None:
    clock = FakeClock()
    journal = journal_of(clock)
    keys = Keys(journal, clock, PlainSeal())
    first = first_use("hash", command_id="cmd_1", request_id="r", now=clock.now_ms())
    claim = keys.claim("slot", first)
    known, write = keys.answer(claim, 200, b"{}")
    await journal.commit(write)
    keys.release(claim, known)
    clock.advance(KEPT_MS)
    (due,) = await journal.due(until=clock.now_ms())
    await keys.on_due(due)
    assert not keys.is_used("slot")
    assert await journal.scan(KEYS) == []


async def test_a_key_that_was_used_anew_outlives_the_deadline_of_its_first_use() -> None:
    clock = FakeClock()
    journal = journal_of(clock)
    keys = Keys(journal, clock, PlainSeal())

    async def use(command_id: str) -> None:
        first = first_use("hash", command_id=command_id, request_id="r", now=clock.now_ms())
        claim = keys.claim("slot", first)
        known, write = keys.answer(claim, 200, b"x" * (REMEMBERED_BODY + 1))
        await journal.commit(write)
        keys.release(claim, known)

    await use("cmd_1")
    clock.advance(KEPT_MS)
    (due,) = await journal.due(until=clock.now_ms())
    assert await keys.settled("slot", "hash") is None
    await use("cmd_2")
    await keys.on_due(due)
    assert keys.is_used("slot")
    answer = await keys.settled("slot", "hash")
    assert answer is not None
    assert answer.command_id == "cmd_2"
