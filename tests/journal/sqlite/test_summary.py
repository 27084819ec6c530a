"""One event for what a transaction adds to a stream, and a new epoch in a commit."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from toolgate.core.errors import Conflict
from toolgate.journal.journal import Append, Event, NewEvent, Put, StreamSummary
from toolgate.journal.local_bus import LocalBus
from toolgate.journal.sqlite.journal import SqliteJournal
from toolgate.testing.clock import FakeClock


def numbers(events: Sequence[Event]) -> NewEvent:
    return NewEvent("sum", b",".join(b"%d" % event.seq for event in events))


async def opened(path: Path, bus: LocalBus) -> SqliteJournal:
    summary = StreamSummary(of="rows", into="sums", make=numbers)
    return await SqliteJournal.open(path, clock=FakeClock(), bus=bus, summary=summary)


def row(name: str) -> Append:
    return Append("rows", [NewEvent(name, b"{}")])


async def test_each_transaction_sums_up_what_it_adds_and_nothing_that_is_refused(
    tmp_path: Path,
) -> None:
    bus = LocalBus()
    heard: list[Event] = []
    bus.subscribe("sums", heard.extend)
    journal = await opened(tmp_path / "journal.db", bus)
    first = await journal.commit(row("a"), Append("other", [NewEvent("x", b"{}")]), row("b"))
    assert [event.stream for event in first] == ["rows", "other", "rows"], "not for its caller"
    assert [event.data for event in heard] == [b"1,2"]
    assert heard[0].position == first[-1].position + 1
    await journal.commit(Append("other", [NewEvent("y", b"{}")]))
    assert len(heard) == 1
    with pytest.raises(Conflict):
        await journal.commit(row("refused"), Put("c", "k", b"", expected=7))
    assert len(heard) == 1

    async def one(number: int) -> None:
        refused = Put("c", "k", b"", expected=7)
        await journal.commit(row("many"), *([refused] if number % 3 == 0 else []))

    ended = await asyncio.gather(*(one(n) for n in range(300)), return_exceptions=True)
    assert sum(isinstance(error, Conflict) for error in ended) == 100
    sums = await journal.read("sums")
    assert [event.data for event in sums] == [event.data for event in heard]
    named = [int(number) for event in sums for number in event.data.split(b",")]
    assert named == list(range(1, 203)), "each row once, in order"
    assert len(sums) < 200, "one for all commits of a transaction"
    await journal.close()


async def test_a_new_epoch_is_in_the_commit_and_stays(tmp_path: Path) -> None:
    journal = await opened(tmp_path / "journal.db", LocalBus())
    before = journal.vouches_since
    with pytest.raises(Conflict):
        await journal.begin_epoch(Put("c", "k", b"", expected=7))
    assert journal.vouches_since == before
    await journal.begin_epoch(Put("c", "k", b"", expected=0))
    after = journal.vouches_since
    assert after != before
    await journal.close()
    journal = await opened(tmp_path / "journal.db", LocalBus())
    assert journal.vouches_since == after
    await journal.close()
