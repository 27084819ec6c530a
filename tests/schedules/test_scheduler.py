"""The scheduler: each time once, across restarts and between processes."""

import asyncio
from collections.abc import Callable
from functools import partial

import pytest

from toolgate.core.errors import Invalid, Unavailable
from toolgate.journal.journal import Append, Event, NewEvent, Operation
from toolgate.journal.local_bus import LocalBus
from toolgate.schedules import scheduler as scheduler_module
from toolgate.schedules.scheduler import CRON, HEARTBEAT, SCHEDULES, Entry, Scheduler, Waits
from toolgate.testing.clock import FakeClock
from toolgate.testing.journal import MemoryJournal


def tell(kind: str, name: str, *, status: str, duration_ms: int, text: str = "") -> Operation:
    return Append("told", [NewEvent(f"{kind} {name} {status}", text.encode())])


class Times:
    """A clock, a journal, and a job that remembers when it ran."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.journal = MemoryJournal(clock=self.clock, bus=LocalBus())
        self.ran: list[str] = []
        self.fails = False
        self.crashes = False

    async def job(self, job_id: str, *, waits: Waits) -> str:
        if self.crashes:
            raise ValueError("a fault of ours")
        if self.fails:
            raise Unavailable("not now")
        self.ran.append(job_id)
        return ""

    async def scheduler(self, line: str = "@every 60s", kind: str = CRON) -> Scheduler:
        entry = Entry("tick", kind, line, self.job)
        made = Scheduler(self.journal, self.clock, tell, [entry], lambda _due: None)
        await made.load()
        return made

    async def fire(self, scheduler: Scheduler) -> None:
        for row in await self.journal.due(until=self.clock.now_ms()):
            assert row.collection == SCHEDULES
            await scheduler.on_due(row)
        await self.until(lambda: not scheduler._tasks)

    async def until(self, true: Callable[[], bool]) -> None:
        async with asyncio.timeout(5):
            while not true():
                await asyncio.sleep(0)

    async def told(self) -> list[str]:
        return [event.type for event in await self.journal.read("told")]


async def test_a_job_runs_at_its_times_and_tells_of_it() -> None:
    times = Times()
    scheduler = await times.scheduler()
    await times.fire(scheduler)
    assert times.ran == []
    assert scheduler.last_at(CRON) is None
    for _ in range(2):
        times.clock.advance(60_000)
        await times.fire(scheduler)
    assert len(set(times.ran)) == 2
    assert scheduler.last_at(CRON) == times.clock.now_ms()
    assert await times.told() == ["cron tick started", "cron tick succeeded"] * 2


async def test_the_end_of_a_job_that_failed_and_its_wait_say_why() -> None:
    times = Times()

    async def asks(job_id: str, *, waits: Waits) -> str:
        await waits("ann must approve it")
        return "ann said no"

    entry = Entry("tick", CRON, "@every 60s", asks)
    scheduler = Scheduler(times.journal, times.clock, tell, [entry], lambda _due: None)
    await scheduler.load()
    times.clock.advance(60_000)
    await times.fire(scheduler)
    told = [(event.type, event.data.decode()) for event in await times.journal.read("told")]
    assert told == [
        ("cron tick started", ""),
        ("cron tick pending", "ann must approve it"),
        ("cron tick failed", "ann said no"),
    ]


async def test_what_was_missed_is_made_up_for_once() -> None:
    times = Times()
    scheduler = await times.scheduler()
    times.clock.advance(3_600_000)
    await times.fire(scheduler)
    await times.fire(scheduler)
    assert len(times.ran) == 1


async def test_of_two_processes_one_takes_the_time() -> None:
    times = Times()
    first, second = await times.scheduler(), await times.scheduler()
    times.clock.advance(60_000)
    (row,) = await times.journal.due(until=times.clock.now_ms())
    await first.on_due(row)
    await second.on_due(row)
    await times.until(lambda: not first._tasks and not second._tasks)
    assert len(times.ran) == 1


async def test_a_restart_keeps_the_next_time_and_the_last() -> None:
    times = Times()
    scheduler = await times.scheduler()
    times.clock.advance(60_000)
    await times.fire(scheduler)
    times.clock.advance(30_000)
    again = await times.scheduler()
    assert again.last_at(CRON) == times.clock.now_ms() - 30_000
    assert await times.journal.next_due() == times.clock.now_ms() + 30_000


async def test_a_job_that_was_interrupted_is_gone_on_with_under_the_same_id() -> None:
    times = Times()
    scheduler = await times.scheduler()
    times.clock.advance(60_000)
    (row,) = await times.journal.due(until=times.clock.now_ms())
    hanging = asyncio.Event()

    async def never(job_id: str, *, waits: Waits) -> str:
        times.ran.append(job_id)
        await hanging.wait()
        return ""

    scheduler._plans["tick"] = (
        Entry("tick", CRON, "@every 60s", never),
        scheduler._plans["tick"][1],
    )
    await scheduler.on_due(row)
    await times.until(lambda: bool(times.ran))
    await scheduler.stop()
    again = await times.scheduler()
    await times.until(lambda: not again._tasks)
    assert len(times.ran) == 2
    assert len(set(times.ran)) == 1


async def test_a_job_that_fails_is_told_and_comes_again() -> None:
    times = Times()
    scheduler = await times.scheduler(kind=HEARTBEAT)
    times.fails = True
    times.clock.advance(60_000)
    await times.fire(scheduler)
    assert await times.told() == ["heartbeat tick failed"]
    times.fails = False
    times.clock.advance(60_000)
    await times.fire(scheduler)
    assert len(times.ran) == 1


async def test_a_changed_line_counts_from_now_and_a_wrong_one_is_invalid() -> None:
    times = Times()
    await times.scheduler("@every 60s")
    await times.scheduler("@every 10s")
    assert await times.journal.next_due() == times.clock.now_ms() + 10_000
    with pytest.raises(Invalid):
        await times.scheduler("whenever")


async def test_a_job_that_was_gone_on_with_under_another_line_is_not_done_once_more() -> None:
    times = Times()
    first = await times.scheduler()
    times.clock.advance(60_000)
    (row,) = await times.journal.due(until=times.clock.now_ms())
    await first.on_due(row)
    await first.stop()  # before the job began
    assert times.ran == []
    changed = await times.scheduler("@every 120s")
    await times.until(lambda: not changed._tasks)
    assert len(times.ran) == 1
    once_more = await times.scheduler("@every 120s")
    await times.until(lambda: not once_more._tasks)
    assert len(times.ran) == 1


async def test_a_job_that_is_interrupted_again_under_another_line_is_still_gone_on_with() -> None:
    times = Times()
    first = await times.scheduler()
    times.clock.advance(60_000)
    (row,) = await times.journal.due(until=times.clock.now_ms())
    await first.on_due(row)
    await first.stop()  # before the job began
    changed = await times.scheduler("@every 120s")
    await changed.stop()
    assert times.ran == []
    again = await times.scheduler("@every 120s")
    await times.until(lambda: not again._tasks)
    assert times.ran == [f"cron_tick_{times.clock.now_ms()}"]
    assert again.last_at(CRON) == times.clock.now_ms()


async def test_a_clock_that_was_set_back_does_not_put_the_next_time_off() -> None:
    times = Times()
    await times.scheduler()
    times.clock.advance(-24 * 3600 * 1000)
    await times.scheduler()
    assert await times.journal.next_due() == times.clock.now_ms() + 60_000


@pytest.mark.parametrize("line", ["@every 60s", "* * * * *"])
async def test_a_clock_that_is_set_back_while_we_run_does_not_put_the_next_time_off(
    line: str,
) -> None:
    times = Times()
    scheduler = await times.scheduler(line)
    before = await times.journal.next_due()
    await scheduler.realign()
    assert await times.journal.next_due() == before
    times.clock.advance(-24 * 3600 * 1000)
    await scheduler.realign()
    assert (await times.journal.next_due() or 0) <= times.clock.now_ms() + 60_000
    times.clock.advance(60_000)
    await times.fire(scheduler)
    assert len(times.ran) == 1


async def test_a_time_that_was_taken_is_not_taken_again_when_the_clock_is_set_back() -> None:
    times = Times()
    scheduler = await times.scheduler("* * * * *")
    for _ in range(3):
        times.clock.advance(60_000)
        await times.fire(scheduler)
    assert len(times.ran) == 3
    times.clock.advance(-120_000)
    await scheduler.realign()
    for _ in range(2):
        times.clock.advance(60_000)
        await times.fire(scheduler)
    assert len(times.ran) == 3
    times.clock.advance(60_000)
    await times.fire(scheduler)
    assert len(times.ran) == 4


async def test_a_time_that_was_taken_is_not_taken_again_by_a_start_under_an_earlier_clock() -> None:
    times = Times()
    scheduler = await times.scheduler("* * * * *")
    times.clock.advance(60_000)
    await times.fire(scheduler)
    assert len(times.ran) == 1
    times.clock.advance(-60_000)
    again = await times.scheduler("* * * * *")
    times.clock.advance(60_000)
    await times.fire(again)
    assert len(times.ran) == 1
    times.clock.advance(60_000)
    await times.fire(again)
    assert len(times.ran) == 2


async def test_a_clock_that_was_ahead_for_a_while_leaves_no_gap_once_it_is_right() -> None:
    times = Times()
    scheduler = await times.scheduler("0 * * * *")
    times.clock.advance(10 * 3_600_000)
    for _ in range(2):
        await times.fire(scheduler)
        times.clock.advance(3_600_000)
    assert len(times.ran) == 2
    times.clock.advance(-10 * 3_600_000)
    await scheduler.realign()
    for _ in range(3):
        times.clock.advance(3_600_000)
        await times.fire(scheduler)
    assert len(times.ran) == 5


async def test_a_job_that_crashes_is_told_as_failed() -> None:
    times = Times()
    times.crashes = True
    scheduler = await times.scheduler()
    times.clock.advance(60_000)
    await times.fire(scheduler)
    assert await times.told() == ["cron tick started", "cron tick failed"]


def _has_run(times: Times, often: int) -> bool:
    return len(times.ran) == often


@pytest.mark.parametrize("first_to_end", [0, 1])
async def test_of_two_times_that_overlap_each_is_gone_on_with_until_it_ends(
    first_to_end: int,
) -> None:
    times = Times()
    ends: dict[str, asyncio.Event] = {}

    async def long(job_id: str, *, waits: Waits) -> str:
        times.ran.append(job_id)
        await ends.setdefault(job_id, asyncio.Event()).wait()
        return ""

    async def started() -> Scheduler:
        entry = Entry("tick", CRON, "@every 60s", long)
        made = Scheduler(times.journal, times.clock, tell, [entry], lambda _due: None)
        await made.load()
        return made

    scheduler = await started()
    for number in (1, 2):
        times.clock.advance(60_000)
        (row,) = await times.journal.due(until=times.clock.now_ms())
        await scheduler.on_due(row)
        await times.until(partial(_has_run, times, number))
    both = list(times.ran)
    await scheduler.stop()
    times.ran.clear()
    scheduler = await started()
    await times.until(lambda: len(times.ran) == 2)
    assert sorted(times.ran) == both
    ends[both[first_to_end]].set()
    await times.until(lambda: len(scheduler._tasks) == 1)
    await scheduler.stop()
    times.ran.clear()
    scheduler = await started()
    await times.until(lambda: bool(times.ran))
    other = both[1 - first_to_end]
    assert times.ran == [other]
    ends[other].set()
    await times.until(lambda: not scheduler._tasks)
    times.ran.clear()
    scheduler = await started()
    assert not scheduler._tasks


async def test_an_end_that_the_disk_refused_is_told_once_it_takes_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scheduler_module, "RETRY_S", 0.0)
    times = Times()
    scheduler = await times.scheduler()
    commit = times.journal.commit
    refused: list[tuple[Operation, ...]] = []

    async def full(*operations: Operation, durable: bool = True) -> list[Event]:
        if times.ran and len(refused) < 2:
            refused.append(operations)
            raise Unavailable("the disk is full")
        return await commit(*operations, durable=durable)

    monkeypatch.setattr(times.journal, "commit", full)
    times.clock.advance(60_000)
    await times.fire(scheduler)
    assert len(refused) == 2
    assert await times.told() == ["cron tick started", "cron tick succeeded"]
    after_a_restart = await times.scheduler()
    await times.until(lambda: not after_a_restart._tasks)
    assert len(times.ran) == 1


async def test_the_clock_is_looked_at_again_after_something_unforeseen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scheduler_module, "LOOK_S", 0)
    times = Times()
    scheduler = await times.scheduler()
    looks: list[str] = []

    async def fails(collection: str, _key: str) -> None:
        looks.append(collection)
        raise ValueError("a fault of ours")

    monkeypatch.setattr(times.journal, "get", fails)
    keeping = asyncio.create_task(scheduler.keep_time())
    await times.until(lambda: len(looks) > 1 or keeping.done())
    assert not keeping.done()
    keeping.cancel()


class Raced(MemoryJournal):
    """Another process loads its schedules after this one has read the rows, once."""

    other: Scheduler | None = None

    async def commit(self, *operations: Operation, durable: bool = True) -> list[Event]:
        other, self.other = self.other, None
        if other is not None:
            await other.load()
        return await super().commit(*operations, durable=durable)


@pytest.mark.parametrize("line", ["@every 60s", "@every 30s"])
async def test_two_processes_that_load_the_same_schedules_at_once_write_each_row_once(
    line: str,
) -> None:
    times = Times()
    times.journal = journal = Raced(clock=times.clock, bus=LocalBus())
    entry = Entry("tick", CRON, "@every 60s", times.job)
    journal.other = Scheduler(journal, times.clock, tell, [entry], lambda _due: None)
    await times.scheduler(line)
    (row,) = await journal.scan(SCHEDULES)
    assert row.version == (1 if line == "@every 60s" else 2)
    assert row.due == times.clock.now_ms() + (60_000 if line == "@every 60s" else 30_000)
