"""The timer of the local dispatcher: no deadline is missed, whenever it is written."""

import asyncio

import pytest

from toolgate.journal import dispatcher as dispatching
from toolgate.journal.dispatcher import Dispatcher
from toolgate.journal.journal import Delete, Put, Row
from toolgate.journal.local_bus import LocalBus
from toolgate.testing.clock import FakeClock
from toolgate.testing.journal import MemoryJournal


class Looking(MemoryJournal):
    """Can be made to answer when the next deadline is only after it was let."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(clock=clock, bus=LocalBus())
        self.asked, self.may = asyncio.Event(), asyncio.Event()
        self.may.set()

    async def next_due(self) -> int | None:
        due = await super().next_due()
        self.asked.set()
        await self.may.wait()
        return due


async def test_a_deadline_that_is_written_while_the_timer_looks_for_the_next_is_met() -> None:
    clock = FakeClock()
    now = clock.now_ms()
    journal = Looking(clock)
    dispatcher = Dispatcher(journal, clock)
    met: asyncio.Queue[str] = asyncio.Queue()

    async def nothing(_: str) -> None: ...

    async def on_due(row: Row) -> None:
        if row.key == "first":
            journal.asked.clear()
            journal.may.clear()
        await journal.commit(Delete(row.collection, row.key))
        await met.put(row.key)

    await journal.commit(Put("calls", "first", b"", due=now + 30, expected=0))
    dispatcher.start(nothing, {"calls": on_due})
    await asyncio.wait_for(journal.asked.wait(), 5)
    clock.advance(30)  # it sleeps by its own clock, and wakes to find the first one due
    assert await asyncio.wait_for(met.get(), 5) == "first"
    await asyncio.wait_for(journal.asked.wait(), 5)
    await journal.commit(Put("calls", "second", b"", due=now + 60, expected=0))
    dispatcher.wake_at(now + 60)  # it has looked already, and found nothing
    clock.advance(30)
    journal.may.set()
    assert await asyncio.wait_for(met.get(), 5) == "second"
    await dispatcher.drain(seconds=0)


async def test_a_deadline_that_takes_long_to_handle_does_not_hold_up_the_others() -> None:
    clock = FakeClock()
    journal = MemoryJournal(clock=clock, bus=LocalBus())
    dispatcher = Dispatcher(journal, clock)
    other, both = asyncio.Event(), asyncio.Event()

    async def nothing(_: str) -> None: ...

    async def on_due(row: Row) -> None:
        if row.key == "first":
            await other.wait()  # as of an orchestrator that answers late
            both.set()
        await journal.commit(Delete(row.collection, row.key))
        other.set()

    for after, key in enumerate(("first", "second")):
        await journal.commit(Put("calls", key, b"", due=clock.now_ms() - 10 + after, expected=0))
    dispatcher.start(nothing, {"calls": on_due})
    await asyncio.wait_for(both.wait(), 5)
    await dispatcher.drain(seconds=0)


async def test_a_deadline_whose_handling_hangs_does_not_hold_up_those_that_come_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dispatching, "HANDLING_S", 0.01, raising=False)
    monkeypatch.setattr(dispatching, "RETRY_S", 0.001)
    clock = FakeClock()
    journal = MemoryJournal(clock=clock, bus=LocalBus())
    dispatcher = Dispatcher(journal, clock)
    begun: asyncio.Queue[str] = asyncio.Queue()
    ended: list[str] = []

    async def nothing(_: str) -> None: ...

    async def on_due(row: Row) -> None:
        await begun.put(row.key)
        try:
            if row.key == "hangs":
                await asyncio.Event().wait()
        finally:
            ended.append(row.key)
        await journal.commit(Delete(row.collection, row.key))

    await journal.commit(Put("calls", "hangs", b"", due=clock.now_ms() - 10, expected=0))
    dispatcher.start(nothing, {"calls": on_due})
    assert await asyncio.wait_for(begun.get(), 5) == "hangs"
    for key in ("second", "third"):
        await journal.commit(Put("calls", key, b"", due=clock.now_ms() - 5, expected=0))
        dispatcher.wake_at(clock.now_ms() - 5)
        assert await asyncio.wait_for(begun.get(), 5) == key  # and the one that hangs is not twice
    await dispatcher.drain(seconds=0)
    assert ended == ["second", "third", "hangs"]


async def test_a_handler_whose_own_work_was_cancelled_does_not_stop_the_timer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dispatching, "RETRY_S", 0.001)
    clock = FakeClock()
    journal = MemoryJournal(clock=clock, bus=LocalBus())
    dispatcher = Dispatcher(journal, clock)
    met: asyncio.Queue[str] = asyncio.Queue()

    async def nothing(_: str) -> None: ...

    async def on_due(row: Row) -> None:
        if not met.qsize():
            await met.put("cancelled")
            raise asyncio.CancelledError  # as of a request that it shares with someone else
        await journal.commit(Delete(row.collection, row.key))
        await met.put(row.key)

    await journal.commit(Put("calls", "first", b"", due=clock.now_ms() - 10, expected=0))
    dispatcher.start(nothing, {"calls": on_due})
    async with asyncio.timeout(2):
        while met.qsize() < 2:
            await asyncio.sleep(0.001)
    await dispatcher.drain(seconds=0)


async def test_a_run_that_is_interrupted_before_its_work_began_is_let_go_and_can_be_worked_on() -> (
    None
):
    clock = FakeClock()
    dispatcher = Dispatcher(MemoryJournal(clock=clock, bus=LocalBus()), clock)
    advanced: asyncio.Queue[str] = asyncio.Queue()
    dispatcher.start(advanced.put, {})
    dispatcher.dispatch("run")
    dispatcher.interrupt("run")  # as a cancel that is committed together with the start
    async with asyncio.timeout(5):
        while dispatcher.working_on:
            await asyncio.sleep(0)
        dispatcher.dispatch("run")
        assert await advanced.get() == "run"
    await dispatcher.drain(seconds=5)


async def test_a_run_that_is_dispatched_before_the_start_is_worked_on_then() -> None:
    clock = FakeClock()
    dispatcher = Dispatcher(MemoryJournal(clock=clock, bus=LocalBus()), clock)
    advanced: asyncio.Queue[str] = asyncio.Queue()
    dispatcher.dispatch("run")  # as by a command that is resumed while the program starts
    await asyncio.sleep(0)
    dispatcher.start(advanced.put, {})
    assert await asyncio.wait_for(advanced.get(), 5) == "run"
    await dispatcher.drain(seconds=5)


async def test_work_that_is_asked_for_while_a_run_is_interrupted_is_done() -> None:
    clock = FakeClock()
    dispatcher = Dispatcher(MemoryJournal(clock=clock, bus=LocalBus()), clock)
    advanced: asyncio.Queue[str] = asyncio.Queue()
    dispatcher.start(advanced.put, {})
    for _ in range(2):
        dispatcher.dispatch("run")
    dispatcher.interrupt("run")
    assert await asyncio.wait_for(advanced.get(), 5) == "run"
    await dispatcher.drain(seconds=5)


async def test_deadlines_that_nobody_handles_are_told_once_and_hold_up_no_others(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatching, "RETRY_S", 0.001)
    clock = FakeClock()
    journal = MemoryJournal(clock=clock, bus=LocalBus())
    dispatcher = Dispatcher(journal, clock)
    handled: asyncio.Queue[str] = asyncio.Queue()

    async def nothing(_: str) -> None: ...

    async def on_due(row: Row) -> None:
        await journal.commit(Delete(row.collection, row.key))
        await handled.put(row.key)

    for key in ("heartbeat", "nightly"):  # of a gateway that had this home before
        await journal.commit(Put("schedules", key, b"", due=clock.now_ms(), expected=0))
    dispatcher.start(nothing, {"calls": on_due})
    for turn in range(5):
        await journal.commit(Put("calls", str(turn), b"", due=clock.now_ms(), expected=0))
        assert await asyncio.wait_for(handled.get(), 5) == str(turn)
    await dispatcher.drain(seconds=0)
    assert caplog.text.count("deadline_without_handler") == 1


async def test_a_deadline_comes_though_very_many_before_it_cannot_be_handled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dispatching, "RETRY_S", 0.01)
    clock = FakeClock()
    journal = MemoryJournal(clock=clock, bus=LocalBus())
    stuck = [
        Put("of_another_role", str(number), b"", due=clock.now_ms(), expected=0)
        for number in range(1500)
    ]
    await journal.commit(*stuck, Put("calls", "late", b"", due=clock.now_ms() + 1, expected=0))
    clock.advance(10)
    handled = asyncio.Event()

    async def nothing(_: str) -> None: ...

    async def on_due(row: Row) -> None:
        await journal.commit(Delete(row.collection, row.key))
        handled.set()

    dispatcher = Dispatcher(journal, clock)
    dispatcher.start(nothing, {"calls": on_due})
    await asyncio.wait_for(handled.wait(), 5)
    await dispatcher.drain(seconds=0)
