"""Following a stream: no gap and no repeat, whenever one starts and however slow one is."""

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from pathlib import Path

import pytest

from toolgate.journal.bus import Bus, Listener
from toolgate.journal.following import PAGE, follow
from toolgate.journal.journal import Append, Event, Journal
from toolgate.journal.local_bus import LocalBus, LocalSubscription
from toolgate.journal.sqlite.journal import SqliteJournal
from toolgate.testing.clock import FakeClock
from toolgate.testing.journal import MemoryJournal
from toolgate.testing.journal_suite import said

BOUND = 20.0  # seconds that any test here may wait


@pytest.fixture
def bus() -> LocalBus:
    return LocalBus()


@pytest.fixture
def journal(bus: LocalBus) -> MemoryJournal:
    return MemoryJournal(clock=FakeClock(), bus=bus)


class CountingBus(LocalBus):
    """Knows how many listen."""

    listening = 0

    def subscribe(self, stream: str | None, listener: Listener) -> LocalSubscription:
        self.listening += 1
        return super().subscribe(stream, listener)

    def drop(self, subscription: LocalSubscription) -> None:
        self.listening -= 1
        super().drop(subscription)


async def take(
    count: int,
    journal: Journal,
    bus: Bus,
    stream: str | None = "a",
    *,
    after: int = 0,
    buffer: int = 1000,
    recheck: float | None = None,
) -> list[Event]:
    """The first so many events of a follower."""
    events: list[Event] = []
    async with (
        asyncio.timeout(BOUND),
        aclosing(
            follow(journal, bus, stream, after=after, buffer=buffer, recheck=recheck)
        ) as batches,
    ):
        while len(events) < count:
            events += await anext(batches)
    return events


def seqs(events: Sequence[Event]) -> list[int]:
    return [event.seq for event in events]


async def append(journal: Journal, count: int = 1, *, stream: str = "a") -> None:
    await journal.commit(Append(stream, [said("") for _ in range(count)]))


async def settled() -> None:
    """Let every task that can run do so."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_what_was_before_comes_first_and_then_what_happens(
    journal: MemoryJournal, bus: LocalBus
) -> None:
    await append(journal, 3)
    async with asyncio.timeout(BOUND), aclosing(follow(journal, bus, "a", after=1)) as batches:
        assert seqs(await anext(batches)) == [2, 3]
        following = asyncio.ensure_future(anext(batches))
        await settled()
        assert not following.done()
        await append(journal, stream="another")
        await append(journal, 2)
        assert seqs(await following) == [4, 5]


async def test_a_long_past_comes_in_pages(journal: MemoryJournal, bus: LocalBus) -> None:
    await append(journal, 2 * PAGE + 1)
    events = await take(2 * PAGE + 1, journal, bus)
    assert seqs(events) == list(range(1, 2 * PAGE + 2))


async def test_what_is_committed_while_the_past_is_read_comes_once(bus: LocalBus) -> None:
    class RacingJournal(MemoryJournal):
        """Commits another event before and after each read, as another task might."""

        races = 3

        async def read(
            self, stream: str, *, after: int = 0, limit: int = 1000, subject: str = ""
        ) -> list[Event]:
            racing = self.races > 0
            self.races -= 1
            if racing:
                await append(self)
            page = await super().read(stream, after=after, limit=limit, subject=subject)
            if racing:
                await append(self)
            return page

    journal = RacingJournal(clock=FakeClock(), bus=bus)
    await append(journal, PAGE - 1)
    events = await take(PAGE + 3, journal, bus)
    assert seqs(events) == list(range(1, len(events) + 1))


async def test_one_that_lags_reads_the_journal_instead_of_keeping_everything(
    journal: MemoryJournal, bus: LocalBus
) -> None:
    async with (
        asyncio.timeout(BOUND),
        aclosing(follow(journal, bus, "a", buffer=5)) as batches,
    ):
        await append(journal)
        assert seqs(await anext(batches)) == [1]
        for _ in range(4):
            await append(journal)
        assert seqs(await anext(batches)) == [2, 3, 4, 5]
        for _ in range(12):
            await append(journal)
        seen = seqs(await anext(batches))
        while seen[-1] < 17:
            seen += seqs(await anext(batches))
        assert seen == list(range(6, 18))


async def test_it_ends_its_subscription_when_it_is_closed(journal: MemoryJournal) -> None:
    bus = CountingBus()
    await append(journal)
    async with aclosing(follow(journal, bus, "a")) as batches:
        await anext(batches)
        assert bus.listening == 1
    assert bus.listening == 0


async def test_it_starts_with_the_oldest_kept_where_the_older_were_forgotten(
    journal: MemoryJournal, bus: LocalBus
) -> None:
    await append(journal, 5)
    await journal.forget("a", through=3)
    assert seqs(await take(2, journal, bus)) == [4, 5]


async def test_all_streams_are_followed_by_position(journal: MemoryJournal, bus: LocalBus) -> None:
    for stream in "abc":
        await append(journal, 2, stream=stream)

    async def commit_more() -> None:
        for stream in "cba":
            await settled()
            await append(journal, 2, stream=stream)

    events, _ = await asyncio.gather(take(11, journal, bus, None, after=1), commit_more())
    assert [event.position for event in events] == list(range(2, 13))


class UnreliableBus(LocalBus):
    """Loses some of what it is told, repeats some, and brings some out of order."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._chance = random.Random(seed)
        self._held: list[Event] = []

    def publish(self, events: Sequence[Event]) -> None:
        match self._chance.randrange(4):
            case 0:
                pass
            case 1:
                self._held += events
            case 2:
                super().publish([*events, *events, *self._held])
            case _:
                super().publish(events)


@pytest.mark.parametrize("seed", range(10))
async def test_a_bus_that_loses_repeats_and_reorders_is_only_a_hint(seed: int) -> None:
    bus = UnreliableBus(seed)
    journal = MemoryJournal(clock=FakeClock(), bus=bus)

    async def commit() -> None:
        for _ in range(60):
            await settled()
            await append(journal)

    async def follow_all() -> None:
        events = await take(60, journal, bus, recheck=0.01, buffer=8)
        assert seqs(events) == list(range(1, 61))

    await asyncio.gather(follow_all(), follow_all(), follow_all(), commit())


@pytest.fixture
async def on_disk(bus: LocalBus, tmp_path: Path) -> AsyncIterator[SqliteJournal]:
    journal = await SqliteJournal.open(tmp_path / "journal.sqlite3", clock=FakeClock(), bus=bus)
    yield journal
    await journal.close()


@pytest.mark.parametrize("seed", range(5))
async def test_followers_that_start_at_any_time_under_load_see_every_event_once(
    seed: int, on_disk: SqliteJournal, bus: LocalBus
) -> None:
    committers, commits = 6, 25
    total = committers * commits * 2
    chance = random.Random(seed)

    async def commit() -> None:
        for _ in range(commits):
            await append(on_disk, 2)

    async def follow_from_some_moment(buffer: int) -> list[Event]:
        reached = chance.randrange(total // 2)
        while (await on_disk.head("a")).last < reached:
            pass
        after = chance.randrange(reached + 1)
        events = await take(total - after, on_disk, bus, after=after, buffer=buffer)
        assert seqs(events) == list(range(after + 1, total + 1))
        return events

    await asyncio.gather(
        *(follow_from_some_moment(buffer) for buffer in (1, 2, 7, 30, 1000, 1000)),
        *(commit() for _ in range(committers)),
    )
