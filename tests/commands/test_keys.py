"""When an idempotency key is forgotten."""

from toolgate.commands.idempotency import KEPT_MS
from toolgate.commands.keys import KEYS, REMEMBERED_BODY, Keys, first_use

from tests.support.seal import PlainSeal
from toolgate.journal.local_bus import LocalBus
from toolgate.testing.clock import FakeClock
from toolgate.testing.journal import MemoryJournal


def journal_of(clock: FakeClock) -> MemoryJournal:
    return MemoryJournal(clock=clock, bus=LocalBus())


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
