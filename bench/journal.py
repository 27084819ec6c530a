"""What a commit and a read cost, beside bare SQLite on the same disk, and as the journal grows."""

import asyncio
import itertools
import random
import sqlite3
import tempfile
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Final

from bench.measure import (
    Cost,
    Result,
    at_least,
    at_most,
    interleave_async,
    run,
    table,
    timed,
    timed_async,
)
from toolgate.core.system_clock import SystemClock
from toolgate.journal.journal import Append, NewEvent, Put
from toolgate.journal.local_bus import LocalBus
from toolgate.journal.sqlite.journal import SqliteJournal
from toolgate.journal.sqlite.schema import make
from toolgate.journal.sqlite.writer import Limits

DATA: Final = b'{"text":"' + b"x" * 180 + b'"}'
WRITERS: Final = 32
EACH: Final = 20
SEGMENT: Final = Limits().segment
PER_STREAM: Final = 100


class BareSqlite:
    """One commit per event, with nothing around it: the same tables, log and durability.

    It writes the same events as the writers do, in turn: runs of 20 in each of 32 sessions.
    """

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None)
        self._connection.execute("PRAGMA journal_mode=WAL")
        self._connection.execute("PRAGMA synchronous=FULL")
        make(self._connection)
        self._position = 0

    def commit(self) -> None:
        before, session = divmod(self._position, WRITERS)
        segment = before // SEGMENT * WRITERS + session + 1
        subject = f"run_{before // EACH * WRITERS + session:026}"
        self._position += 1
        event = (self._position, segment, before + 1, "delta", 1_700_000_000_000, subject, DATA)
        execute = self._connection.execute
        execute("BEGIN IMMEDIATE")
        if before % SEGMENT == 0:
            new = (segment, f"session_{session}", before + 1)
            execute("INSERT INTO segments VALUES (?, ?, ?)", new)
        execute("INSERT INTO events VALUES (?, ?, ?, ?, ?, ?, ?)", event)
        execute("COMMIT")


class OnThread:
    """The same again on a thread: what is left of a journal that does nothing but get off the loop."""

    def __init__(self, path: Path) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiting: SimpleQueue[asyncio.Future[None]] = SimpleQueue()
        threading.Thread(target=self._write, args=(path,), daemon=True).start()

    async def commit(self) -> None:
        done = self._loop.create_future()
        self._waiting.put(done)
        await done

    def _write(self, path: Path) -> None:
        bare = BareSqlite(path)
        while True:
            done = self._waiting.get()
            bare.commit()
            self._loop.call_soon_threadsafe(done.set_result, None)


async def opened(path: Path) -> SqliteJournal:
    return await SqliteJournal.open(path, clock=SystemClock(), bus=LocalBus())


async def commit(
    journal: SqliteJournal, stream: str, *, subject: str = "run_1", durable: bool = True
) -> None:
    await journal.commit(Append(stream, [NewEvent("delta", DATA, subject)]), durable=durable)


async def beside_bare_sqlite(home: Path) -> list[Result]:
    journal = await opened(home / "ours" / "journal.sqlite3")
    bare = BareSqlite(home / "bare.sqlite3")

    runs = itertools.count()

    async def write(stream: str, subject: str) -> None:
        for _ in range(EACH):
            await commit(journal, stream, subject=subject)

    async def ours_together() -> Cost:
        # A run of some events, in each of many sessions, at the same time.
        work = [write(f"session_{n}", f"run_{next(runs):026}") for n in range(WRITERS)]
        return (await timed_async(lambda: asyncio.gather(*work))).each(EACH * WRITERS)

    async def bare_in_a_row() -> Cost:
        return timed(bare_for_a_while).each(160)

    def bare_for_a_while() -> None:
        for _ in range(160):
            bare.commit()

    together = await interleave_async({"ours": ours_together, "bare": bare_in_a_row}, rounds=15)

    async def ours_alone() -> Cost:
        return await timed_async(lambda: commit(journal, "alone"))

    async def bare_alone() -> Cost:
        return timed(bare.commit)

    thread = OnThread(home / "thread.sqlite3")

    async def on_thread() -> Cost:
        return await timed_async(thread.commit)

    cases = {"ours": ours_alone, "on a thread": on_thread, "bare": bare_alone}
    alone = await interleave_async(cases, rounds=1500)
    await journal.close()
    return [
        at_least(
            f"{WRITERS} writers, one event each: events/s against one commit per event",
            together["bare"].wall / together["ours"].wall,
            8,
            detail=f"{1 / together['ours'].wall:,.0f}/s, bare {1 / together['bare'].wall:,.0f}/s",
        ),
        at_most(
            "one writer: latency of a commit against bare SQLite",
            alone["ours"].wall / alone["bare"].wall,
            1.3,
            detail=f"{micros(alone['ours'].wall)}, bare {micros(alone['bare'].wall)}",
        ),
        Result(
            "  floor: bare SQLite on a thread",
            f"{alone['on a thread'].wall / alone['bare'].wall:.2f}x"
            f" ({micros(alone['on a thread'].wall)})",
        ),
        Result(
            "CPU per event",
            f"{WRITERS} writers {micros(together['ours'].cpu)}, one writer"
            f" {micros(alone['ours'].cpu)}, bare {micros(alone['bare'].cpu)}",
        ),
    ]


async def grown(path: Path, events: int) -> SqliteJournal:
    """A journal of so many events, a hundred to a stream, interleaved as they would be in life."""
    journal = await opened(path)
    streams = events // PER_STREAM
    for start in range(0, streams, 100):
        names = [f"session:{n}" for n in range(start, min(start + 100, streams))]
        for _ in range(PER_STREAM // 10):
            await journal.commit(
                *(Append(name, [NewEvent("delta", DATA, f"run_{name}")] * 10) for name in names),
                durable=False,
            )
        await journal.commit(
            *(Put("runs", name, DATA, expected=0) for name in names), durable=False
        )
    await journal.close()
    return await opened(path)


async def as_it_grows(home: Path) -> list[Result]:
    sizes = {"small": 1_000, "large": 1_000_000}
    journals = {
        name: await grown(home / name / "journal.sqlite3", size) for name, size in sizes.items()
    }
    chance = random.Random(1)

    def some_stream(size: str) -> str:
        return f"session:{chance.randrange(sizes[size] // PER_STREAM)}"

    works: dict[str, Callable[[SqliteJournal, str], Awaitable[object]]] = {
        "append": lambda journal, stream: commit(journal, stream, subject=f"run_{stream}"),
        "append, unsynced": lambda journal, stream: commit(
            journal, stream, subject=f"run_{stream}", durable=False
        ),
        "read 50 events after a number": lambda journal, stream: journal.read(
            stream, after=30, limit=50
        ),
        "read the newest 20 of a subject": lambda journal, stream: journal.read_back(
            stream, limit=20, subject=f"run_{stream}"
        ),
        "read 100 of all streams": lambda journal, _: journal.read_all(
            after=chance.randrange(900), limit=100
        ),
        "get a row": lambda journal, stream: journal.get("runs", stream),
        "head of a stream": lambda journal, stream: journal.head(stream),
    }
    results = []
    for what, work in works.items():

        def case(
            size: str, work: Callable[..., Awaitable[object]] = work
        ) -> Callable[[], Awaitable[Cost]]:
            return lambda: timed_async(lambda: work(journals[size], some_stream(size)))

        costs = await interleave_async({size: case(size) for size in sizes}, rounds=600)
        results.append(
            at_most(
                f"{what}: at 1,000,000 events against 1,000",
                costs["large"].wall / costs["small"].wall,
                1.5,
                detail=f"{micros(costs['large'].wall)}, {micros(costs['small'].wall)}",
            )
        )
    for journal in journals.values():
        await journal.close()
    return results


def micros(seconds: float) -> str:
    return f"{seconds * 1e6:,.0f} us"


def main() -> list[str]:
    # Beside the sources, not in a /tmp that may be memory: an fsync must cost what it costs.
    with tempfile.TemporaryDirectory(dir=Path(__file__).parent, prefix=".journal-") as home:
        results = run(beside_bare_sqlite(Path(home))) + run(as_it_grows(Path(home)))
    return table("journal", results)


if __name__ == "__main__":
    print("\n".join(main()))
