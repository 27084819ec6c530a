"""The journal in one SQLite file, for one process.

The event loop only hands over: commits go to the writer's thread, which puts everything that
waits into one transaction (`writer.py`); reads go to a few threads with connections of their own.
The tables are in `schema.py`.
"""

import asyncio
import logging
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, takewhile
from pathlib import Path
from typing import Any, Final, Self, TypeVar

from toolgate.core.clock import Clock
from toolgate.core.errors import Unavailable
from toolgate.journal.batching import Commit, Forget, GroupCommit, NewEpoch
from toolgate.journal.bus import Bus
from toolgate.journal.journal import Event, Head, Operation, Row, StreamSummary
from toolgate.journal.sqlite.home_lock import HomeLock
from toolgate.journal.sqlite.schema import (
    HEAD,
    OpenFile,
    from_sqlite,
    new_epoch,
    open_file,
    open_for_reading,
)
from toolgate.journal.sqlite.upgrade import Upgrade
from toolgate.journal.sqlite.writer import Limits, Writer

log = logging.getLogger(__name__)

_DEFAULT_LIMITS: Final = Limits()
_EVENTS: Final = (
    "SELECT position, stream, seq, type, at, data, subject"
    " FROM events JOIN segments ON segments.id = events.segment"
)
# The segments first, in their order: SQLite keeps to the order of a CROSS JOIN.
_BY_SEGMENT: Final = (
    "SELECT position, stream, seq, type, at, data, subject"
    " FROM segments CROSS JOIN events ON events.segment = segments.id WHERE stream = ?"
)
_NO_END: Final = 2**62  # above every number of a stream
_ROWS: Final = "SELECT collection, key, version, value, due FROM rows"

T = TypeVar("T")


class SqliteJournal:
    """The journal; make it with `open`. `close` commits what waits."""

    def __init__(
        self,
        path: Path,
        opened: OpenFile,
        lock: HomeLock,
        *,
        clock: Clock,
        bus: Bus,
        limits: Limits,
        summary: StreamSummary | None = None,
    ) -> None:
        self._path = path
        self._lock = lock
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._vouches_since = opened.vouches_since
        self._last_position = opened.last_position
        self._synced_position = opened.last_position  # opening has written, and so synced the log
        self._writer = Writer(
            opened, path, clock=clock, settle=self._settle_soon, limits=limits, summary=summary
        )
        self._group = GroupCommit(
            self._writer.submit, bus=bus, batch=limits.batch, backlog=limits.backlog
        )
        self._connections: list[sqlite3.Connection] = []
        self._reader = threading.local()
        self._readers = ThreadPoolExecutor(limits.readers, "journal-reader")
        self._writer.start()

    @classmethod
    async def open(
        cls,
        path: Path,
        *,
        clock: Clock,
        bus: Bus,
        limits: Limits = _DEFAULT_LIMITS,
        upgrade: Upgrade | None = None,
        summary: StreamSummary | None = None,
    ) -> Self:
        """Open or make the file, and hold its directory for this process.

        `upgrade` changes the rows of a file of 0.1.0; without it such a file is refused. `summary`
        is written with each transaction that it is about.

        Raises Misconfigured where another process holds it or the file is from a newer Toolgate,
        Damaged where the file cannot be trusted, Unavailable where the disk refuses.
        """
        lock = await asyncio.to_thread(HomeLock.take, path.parent)
        try:
            opened = await asyncio.to_thread(open_file, path, now=clock.now_ms(), upgrade=upgrade)
        except BaseException:
            lock.release()
            raise
        return cls(path, opened, lock, clock=clock, bus=bus, limits=limits, summary=summary)

    async def close(self) -> None:
        """Commit what waits, checkpoint the log, and release the home."""
        if self._group.closing:
            return
        await self._group.drain()
        self._writer.finish()
        await asyncio.to_thread(self._close_readers)
        await asyncio.to_thread(self._writer.join)
        self._lock.release()

    @property
    def vouches_since(self) -> str:
        return self._vouches_since

    @property
    def fault(self) -> str:
        return self._writer.fault

    @property
    def synced_position(self) -> int:
        """The position up to which no power cut can take an event back."""
        return self._synced_position

    async def commit(self, *operations: Operation, durable: bool = True) -> list[Event]:
        return await self._group.commit(operations, durable=durable)

    async def begin_epoch(self, *operations: Operation) -> None:
        """Commit, and from then on vouch under another name: clients get a snapshot."""
        epoch = NewEpoch(new_epoch())
        await self._group.commit([*operations, epoch])
        self._vouches_since = epoch.name

    async def read(
        self, stream: str, *, after: int = 0, limit: int = 1000, subject: str = ""
    ) -> list[Event]:
        if subject:
            return await self._events(
                f"{_EVENTS} WHERE subject = ? AND subject <> '' AND seq > ? AND stream = ?"
                " ORDER BY seq LIMIT ?",
                (subject, after, stream, limit),
            )
        return await self._events(
            f"{_BY_SEGMENT} AND first > ? AND seq > ? ORDER BY first, seq LIMIT ?",
            (stream, after - self._limits.segment, after, limit),
        )

    async def read_back(
        self, stream: str, *, before: int | None = None, limit: int = 1000, subject: str = ""
    ) -> list[Event]:
        end = _NO_END if before is None else before
        if subject:
            return await self._events(
                f"{_EVENTS} WHERE subject = ? AND subject <> '' AND seq < ? AND stream = ?"
                " ORDER BY seq DESC LIMIT ?",
                (subject, end, stream, limit),
            )
        return await self._events(
            f"{_BY_SEGMENT} AND first < ? AND seq < ? ORDER BY first DESC, seq DESC LIMIT ?",
            (stream, end, end, limit),
        )

    async def read_all(self, *, after: int = 0, limit: int = 1000) -> list[Event]:
        return await self._events(
            f"{_EVENTS} WHERE position > ? ORDER BY position LIMIT ?", (after, limit)
        )

    async def head(self, stream: str) -> Head:
        found = await self._query(HEAD, {"stream": stream})
        return Head(first=found[0][0], last=found[0][1]) if found else Head(first=1, last=0)

    async def last_position(self) -> int:
        return self._last_position

    async def get(self, collection: str, key: str) -> Row | None:
        found = await self._rows(f"{_ROWS} WHERE collection = ? AND key = ?", (collection, key))
        return found[0] if found else None

    async def scan(
        self, collection: str, *, after: str = "", limit: int = 1000, newest_first: bool = False
    ) -> list[Row]:
        if not newest_first:
            condition, order = "AND key > ?", "key"
        else:
            condition, order = ("AND key < ?" if after else "AND key >= ?"), "key DESC"
        return await self._rows(
            f"{_ROWS} WHERE collection = ? {condition} ORDER BY {order} LIMIT ?",
            (collection, after, limit),
        )

    async def due(self, *, until: int, limit: int = 1000) -> list[Row]:
        return await self._rows(
            f"{_ROWS} WHERE due IS NOT NULL AND due <= ? ORDER BY due, collection, key LIMIT ?",
            (until, limit),
        )

    async def next_due(self) -> int | None:
        found = await self._query("SELECT min(due) FROM rows WHERE due IS NOT NULL")
        return None if found[0][0] is None else int(found[0][0])

    async def epoch(self, name: str) -> int:
        found = await self._query("SELECT epoch FROM fences WHERE name = ?", (name,))
        return int(found[0][0]) if found else 0

    async def forget(self, stream: str, *, through: int) -> None:
        head = await self.head(stream)
        through = min(through, head.last)
        reached = head.first - 1
        while reached < through:
            reached = min(reached + self._limits.forgotten_at_once, through)
            await self._group.commit([Forget(stream, reached)], durable=False)

    async def prune(self, prefix: str, *, before: int, keep: int) -> int:
        """Delete the events of streams with this prefix that are older than `before`, and all but the
        newest `keep`; return their number."""
        forgotten = 0
        name = prefix
        while streams := await self._query(
            "SELECT DISTINCT stream FROM segments WHERE stream >= ? AND stream < ?"
            " ORDER BY stream LIMIT 500",
            (name, prefix + "\U0010ffff"),
        ):
            for (name,) in streams:
                forgotten += await self._prune_stream(name, before=before, keep=keep)
            name += "\0"  # the least name above it
        return forgotten

    async def _prune_stream(self, stream: str, *, before: int, keep: int) -> int:
        head = await self.head(stream)
        through = max(head.first - 1, head.last - keep)
        while through < head.last:
            page = await self._query(
                "SELECT seq, at FROM segments CROSS JOIN events ON events.segment = segments.id"
                " WHERE stream = ? AND first > ? AND seq > ? ORDER BY first, seq LIMIT ?",
                (stream, through - self._limits.segment, through, self._limits.forgotten_at_once),
            )
            # Up to the first young one; an older one after it may have the time of a wrong clock.
            old = [seq for seq, _ in takewhile(lambda event: event[1] < before, page)]
            through = old[-1] if old else through
            if len(old) < self._limits.forgotten_at_once:
                break
        if through >= head.first:
            await self.forget(stream, through=through)
        return through - head.first + 1

    def _settle_soon(self, batch: list[Commit]) -> None:
        """Settle a batch that is on disk or refused; called by the writer's thread."""
        try:
            self._loop.call_soon_threadsafe(self._settle, batch)
        except RuntimeError:  # the loop was closed without closing the journal: nobody waits
            log.warning("journal_unheard commits=%d", len(batch))

    def _settle(self, batch: list[Commit]) -> None:
        events = [*chain.from_iterable((*commit.events, *commit.added) for commit in batch)]
        if events:
            self._last_position = events[-1].position
            if any(commit.durable for commit in batch):
                self._synced_position = self._last_position
        self._group.settle(batch)

    async def _events(self, sql: str, values: tuple[object, ...]) -> list[Event]:
        return await self._read(
            lambda connection: list(map(Event._make, connection.execute(sql, values)))
        )

    async def _rows(self, sql: str, values: tuple[object, ...]) -> list[Row]:
        return await self._read(
            lambda connection: list(map(Row._make, connection.execute(sql, values)))
        )

    async def _query(
        self, sql: str, values: tuple[object, ...] | dict[str, object] = ()
    ) -> list[Any]:
        return await self._read(lambda connection: connection.execute(sql, values).fetchall())

    async def _read(self, query: Callable[[sqlite3.Connection], T]) -> T:
        if self._group.closing:
            raise Unavailable("the journal is closed")
        return await self._loop.run_in_executor(self._readers, self._run_query, query)

    def _run_query(self, query: Callable[[sqlite3.Connection], T]) -> T:
        try:
            if not hasattr(self._reader, "connection"):
                self._reader.connection = open_for_reading(self._path)
                self._connections.append(self._reader.connection)
            return query(self._reader.connection)
        except sqlite3.Error as failed:
            raise from_sqlite(failed, self._path) from failed

    def _close_readers(self) -> None:
        self._readers.shutdown(wait=True)
        for connection in self._connections:
            connection.close()
