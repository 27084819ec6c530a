"""The one thread that writes the journal's file: everything that waits goes into one transaction.

Each commit of a batch is decided in memory, against the file and what the batch before it will
change; one that does not hold is refused alone. Then the whole batch is written at once.
"""

import asyncio
import logging
import sqlite3
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Final, Generic, TypeVar, assert_never

from toolgate.adapters.journal_sqlite_schema import OpenFile, from_sqlite, mark_clean
from toolgate.domain.errors import Conflict, Damaged, Fenced, Invalid, ToolgateError, Unavailable
from toolgate.ports.clock import Clock
from toolgate.ports.journal import Append, Delete, Event, Fence, Operation, Put

log = logging.getLogger(__name__)

NOTHING: Final = (0, b"", None)  # a row that isn't there

# What SQLite says of values that it cannot hold: the caller's mistake, not the disk's.
_UNUSABLE: Final = (
    sqlite3.DataError,
    sqlite3.IntegrityError,
    sqlite3.InterfaceError,
    sqlite3.ProgrammingError,
    OverflowError,
    TypeError,
    UnicodeEncodeError,
)

K = TypeVar("K")
V = TypeVar("V")

RowKey = tuple[str, str]
RowState = tuple[int, bytes, int | None]  # version, value, due


@dataclass(frozen=True, slots=True)
class Limits:
    batch: int = 1024  # commits in one transaction: the first must not wait for too many
    backlog: int = 50_000  # commits that may wait; more means that the disk does not keep up
    remembered: int = 20_000  # streams, rows and fences whose state is in memory, of each
    forgotten_at_once: int = 1000  # events per transaction, so that commits pass in between
    readers: int = 3  # threads; reading a page takes well under a millisecond


@dataclass(frozen=True, slots=True)
class Forget:
    """Drop a stream's events up to and including a number; only retention says this."""

    stream: str
    through: int


@dataclass(slots=True)
class Commit:
    operations: Sequence[Operation | Forget]
    durable: bool
    done: asyncio.Future[list[Event]]
    events: list[Event] = field(default_factory=list)
    error: ToolgateError | None = None


@dataclass(frozen=True, slots=True)
class StreamState:
    id: int
    last: int
    forgotten: int


@dataclass(slots=True)
class Draft:
    """What a commit, or a batch of them, is about to change."""

    position: int
    last_stream: int
    streams: dict[str, StreamState] = field(default_factory=dict)
    rows: dict[RowKey, RowState] = field(default_factory=dict)
    fences: dict[str, int] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    inserts: list[tuple[int, int, int, str, int, str, bytes]] = field(default_factory=list)
    forgets: list[tuple[int, int, int]] = field(default_factory=list)  # stream, above, through

    def take_over(self, commit: "Draft") -> None:
        self.position = commit.position
        self.last_stream = commit.last_stream
        self.streams.update(commit.streams)
        self.rows.update(commit.rows)
        self.fences.update(commit.fences)
        self.events += commit.events
        self.inserts += commit.inserts
        self.forgets += commit.forgets


class Recent(Generic[K, V]):
    """The last used of many; what was dropped is read from the file again."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._kept: OrderedDict[K, V] = OrderedDict()

    def get(self, key: K) -> V | None:
        value = self._kept.get(key)
        if value is not None:
            self._kept.move_to_end(key)
        return value

    def keep(self, key: K, value: V) -> None:
        self._kept[key] = value
        self._kept.move_to_end(key)
        if len(self._kept) > self._limit:
            self._kept.popitem(last=False)


class Writer(threading.Thread):
    """Takes commits from `submit`, answers a batch at a time through `settle`, in commit order."""

    def __init__(
        self,
        opened: OpenFile,
        path: Path,
        *,
        clock: Clock,
        settle: Callable[[list[Commit]], None],
        limits: Limits,
    ) -> None:
        super().__init__(name="journal-writer", daemon=True)
        self._connection = opened.connection
        self._witness = opened.witness
        self._path = path
        self._clock = clock
        self._settle = settle
        self._batch = limits.batch
        self._position = opened.last_position
        self._last_stream = opened.last_stream
        self._waiting: SimpleQueue[list[Commit] | None] = SimpleQueue()
        self._streams: Recent[str, StreamState] = Recent(limits.remembered)
        self._versions: Recent[RowKey, int] = Recent(limits.remembered)
        self._fences: Recent[str, int] = Recent(limits.remembered)
        self._syncing = True
        self._damage: Damaged | None = None

    def submit(self, commits: list[Commit]) -> None:
        self._waiting.put(commits)

    def finish(self) -> None:
        """Write what waits, then stop; `join` waits for it."""
        self._waiting.put(None)

    def run(self) -> None:
        going_on = True
        while going_on:
            commits, going_on = self._take()
            for start in range(0, len(commits), self._batch):
                batch = commits[start : start + self._batch]
                self._commit(batch)
                self._settle(batch)
        self._close()

    def _take(self) -> tuple[list[Commit], bool]:
        """Everything that waits, and whether more may come."""
        commits: list[Commit] = []
        handed = self._waiting.get()
        try:
            while handed is not None:
                commits += handed
                handed = self._waiting.get_nowait()
        except Empty:
            return commits, True
        return commits, False

    def _close(self) -> None:
        try:
            if self._damage is None:
                mark_clean(self._connection)
        except sqlite3.Error as failed:
            log.warning("journal_not_closed_cleanly path=%s error=%s", self._path, failed)
        finally:
            self._connection.close()
            self._witness.close()

    def _commit(self, batch: list[Commit]) -> None:
        try:
            if self._damage is not None:
                raise self._damage
            self._write_together(batch)
        except _UNUSABLE as unusable:
            if len(batch) == 1:
                self._refuse(batch, Invalid(f"the journal cannot hold this: {unusable}"))
            else:
                for commit in batch:  # one of them is at fault; the others must not pay for it
                    self._commit([commit])
        except sqlite3.Error as failed:
            error = from_sqlite(failed, self._path)
            if isinstance(error, Damaged):
                self._damage = error
            log.error("journal_write_failed commits=%d error=%s", len(batch), error)
            self._refuse(batch, error)
        except Damaged as damaged:
            self._refuse(batch, damaged)
        except Exception as bug:
            log.exception("journal_write_failed commits=%d", len(batch))
            self._refuse(batch, Unavailable(f"the journal failed: {bug!r}"))

    def _refuse(self, batch: list[Commit], error: Invalid | Unavailable) -> None:
        for commit in batch:
            commit.events = []
            commit.error = type(error)(str(error))  # one each: every caller raises its own

    def _write_together(self, batch: list[Commit]) -> None:
        self._sync_only_if(any(commit.durable for commit in batch))
        draft = Draft(self._position, self._last_stream)
        now = self._clock.now_ms()
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            for commit in batch:
                commit.events, commit.error = [], None
                try:
                    own = self._decide(commit.operations, draft, now)
                except Conflict as refused:
                    commit.error = refused
                else:
                    commit.events = own.events
                    draft.take_over(own)
            self._write(draft)
            self._connection.execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise
        self._remember(draft)

    def _sync_only_if(self, durable: bool) -> None:
        if durable != self._syncing:
            self._connection.execute(f"PRAGMA synchronous={'FULL' if durable else 'NORMAL'}")
            self._syncing = durable

    def _decide(self, operations: Sequence[Operation | Forget], batch: Draft, now: int) -> Draft:
        """What these operations change, or Conflict."""
        own = Draft(batch.position, batch.last_stream)
        for operation in operations:
            match operation:
                case Append():
                    self._append(operation, own, batch, now)
                case Put(collection, key):
                    version = self._version((collection, key), own, batch)
                    _expect(operation, version)
                    own.rows[collection, key] = (version + 1, operation.value, operation.due)
                case Delete(collection, key):
                    version = self._version((collection, key), own, batch)
                    _expect(operation, version)
                    own.rows[collection, key] = NOTHING
                case Fence(name, epoch):
                    held = self._epoch(name, own, batch)
                    if epoch < held:
                        raise Fenced(name, held=held, offered=epoch)
                    if epoch > held:
                        own.fences[name] = epoch
                case Forget(stream, through):
                    state = self._stream(stream, own, batch)
                    through = min(through, state.last)
                    if through > state.forgotten:
                        own.forgets.append((state.id, state.forgotten, through))
                        own.streams[stream] = StreamState(state.id, state.last, through)
                case _:
                    assert_never(operation)
        return own

    def _append(self, append: Append, own: Draft, batch: Draft, now: int) -> None:
        state = self._stream(append.stream, own, batch)
        if append.expected_seq is not None and append.expected_seq != state.last:
            raise Conflict(f"{append.stream} is at {state.last}, not at {append.expected_seq}")
        if not append.events:
            return
        position, seq = own.position, state.last
        stream_id = state.id
        if stream_id == 0:
            own.last_stream += 1
            stream_id = own.last_stream
        for new in append.events:
            position += 1
            seq += 1
            own.events.append(
                Event(position, append.stream, seq, new.type, now, new.data, new.subject)
            )
            own.inserts.append((position, stream_id, seq, new.type, now, new.subject, new.data))
        own.position = position
        own.streams[append.stream] = StreamState(stream_id, seq, state.forgotten)

    def _stream(self, name: str, own: Draft, batch: Draft) -> StreamState:
        state = own.streams.get(name) or batch.streams.get(name) or self._streams.get(name)
        if state is None:
            found = self._connection.execute(
                "SELECT id, max(forgotten, coalesce("
                " (SELECT max(seq) FROM events WHERE stream = id), 0)), forgotten"
                " FROM streams WHERE name = ?",
                (name,),
            ).fetchone()
            if found is None:
                return StreamState(0, 0, 0)
            state = StreamState(*found)
            self._streams.keep(name, state)
        return state

    def _version(self, key: RowKey, own: Draft, batch: Draft) -> int:
        drafted = own.rows.get(key) or batch.rows.get(key)
        if drafted is not None:
            return drafted[0]
        version = self._versions.get(key)
        if version is None:
            found = self._connection.execute(
                "SELECT version FROM rows WHERE collection = ? AND key = ?", key
            ).fetchone()
            version = 0 if found is None else int(found[0])
            self._versions.keep(key, version)
        return version

    def _epoch(self, name: str, own: Draft, batch: Draft) -> int:
        epoch = own.fences.get(name) or batch.fences.get(name) or self._fences.get(name)
        if epoch is None:
            found = self._connection.execute(
                "SELECT epoch FROM fences WHERE name = ?", (name,)
            ).fetchone()
            epoch = 0 if found is None else int(found[0])
            self._fences.keep(name, epoch)
        return epoch

    def _write(self, draft: Draft) -> None:
        execute_many = self._connection.executemany
        if draft.last_stream > self._last_stream:
            execute_many(
                "INSERT INTO streams VALUES (?, ?, 0)",
                [(s.id, name) for name, s in draft.streams.items() if s.id > self._last_stream],
            )
        if draft.inserts:
            execute_many("INSERT INTO events VALUES (?, ?, ?, ?, ?, ?, ?)", draft.inserts)
        if draft.rows:
            kept = [(*key, *row) for key, row in draft.rows.items() if row is not NOTHING]
            gone = [key for key, row in draft.rows.items() if row is NOTHING]
            if kept:
                execute_many("INSERT OR REPLACE INTO rows VALUES (?, ?, ?, ?, ?)", kept)
            if gone:
                execute_many("DELETE FROM rows WHERE collection = ? AND key = ?", gone)
        if draft.fences:
            execute_many("INSERT OR REPLACE INTO fences VALUES (?, ?)", list(draft.fences.items()))
        if draft.forgets:
            execute_many(
                "DELETE FROM events WHERE stream = ? AND seq > ? AND seq <= ?", draft.forgets
            )
            execute_many(
                "UPDATE streams SET forgotten = ? WHERE id = ?",
                [(through, stream) for stream, _, through in draft.forgets],
            )
            # Were the newest event forgotten, its position must still not be given again.
            self._connection.execute(
                "INSERT OR REPLACE INTO meta VALUES ('position', ?)", (str(draft.position),)
            )

    def _remember(self, draft: Draft) -> None:
        if draft.position > self._position:
            self._witness.see(draft.position)
        self._position = draft.position
        self._last_stream = draft.last_stream
        for name, state in draft.streams.items():
            self._streams.keep(name, state)
        for key, row in draft.rows.items():
            self._versions.keep(key, row[0])
        for name, epoch in draft.fences.items():
            self._fences.keep(name, epoch)


def _expect(operation: Put | Delete, version: int) -> None:
    if operation.expected is not None and operation.expected != version:
        raise Conflict(
            f"{operation.collection}/{operation.key} is at version {version},"
            f" not at {operation.expected}"
        )
