"""The one thread that writes the journal's file: what is handed over goes into one transaction.

Each commit of a batch is decided in memory, against the file and what the batch before it will
change; one that does not hold is refused alone. Then the whole batch is written at once.
"""

import contextlib
import functools
import logging
import sqlite3
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Final, Generic, NamedTuple, TypeVar, assert_never

from toolgate.core.clock import Clock
from toolgate.core.errors import Conflict, Damaged, Fenced, Invalid, Unavailable
from toolgate.journal.batching import Commit, Forget, NewEpoch
from toolgate.journal.journal import (
    Append,
    Check,
    Delete,
    Event,
    Fence,
    Operation,
    Overwrite,
    Put,
    StreamSummary,
)
from toolgate.journal.sqlite.schema import (
    LAST,
    OpenFile,
    connect,
    from_sqlite,
    last_numbers,
    mark_clean,
    write_meta,
)

log = logging.getLogger(__name__)

# Seconds before the writer gets ready for the next batch, after one of many commits: their callers
# need the core first.
PAUSE: Final = 0.001
ROWS_AT_ONCE: Final = 64  # in one statement; there is one for each number up to it
NOTHING: Final = (0, b"", None)  # a row that isn't there
UNKNOWN: Final = -1  # the version of a row that was put whatever it was, and not looked for

# A row that is there moves on by one, if it is not known to move on by more.
_OVER: Final = (
    " ON CONFLICT (collection, key) DO UPDATE SET version = max(excluded.version, version + 1),"
    " value = excluded.value, due = excluded.due"
)

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
    segment: int = 64  # numbers of a stream in one segment; a file must not meet a smaller one
    readers: int = 3  # threads; reading a page takes well under a millisecond


class _MustLook(Exception):
    """What was taken to be so of a row without a look is not, or is not enough to go on."""


class StreamState(NamedTuple):
    last: int
    segment: int  # the id of its last segment; 0 where it has none
    segment_first: int


class Draft:
    """What a batch is about to change; what a commit has added to it can be taken back."""

    def __init__(self, position: int, last_segment: int) -> None:
        self.position = position
        self.last_segment = last_segment
        self.streams: dict[str, StreamState] = {}
        self.rows: dict[RowKey, RowState] = {}
        self.fences: dict[str, int] = {}
        self.segments: list[tuple[int, str, int]] = []
        self.events: list[tuple[int, int, int, str, int, str, bytes]] = []
        self.forgets: list[tuple[str, int, StreamState]] = []
        self.epoch = ""
        self.assumed: set[RowKey] = set()  # rows taken not to be there, until they are written
        self.reborn: dict[RowKey, bool] = {}  # deleted and put again: they start anew
        self._changed: list[tuple[dict[Any, Any], Any, Any]] = []
        self._before = (position, last_segment, 0, 0, 0)

    def begin(self) -> None:
        """From here on is the next commit's."""
        self._changed.clear()
        self._before = (
            self.position,
            self.last_segment,
            len(self.segments),
            len(self.events),
            len(self.forgets),
        )

    def change(self, kind: dict[K, V], key: K, value: V) -> None:
        self._changed.append((kind, key, kind.get(key)))
        kind[key] = value

    def take_back(self) -> None:
        """Undo what was changed since `begin`."""
        for kind, key, before in reversed(self._changed):
            if before is None:
                del kind[key]
            else:
                kind[key] = before
        self.position, self.last_segment, segments, events, forgets = self._before
        del self.segments[segments:]
        del self.events[events:]
        del self.forgets[forgets:]


class Recent(Generic[K, V]):
    """The last used of many; what was dropped is read from the file again.

    Two generations, the older one dropped whole: cheaper than to keep an order of use.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit // 2
        self._young: dict[K, V] = {}
        self._old: dict[K, V] = {}

    def get(self, key: K) -> V | None:
        value = self._young.get(key)
        if value is None and (value := self._old.get(key)) is not None:
            self._young[key] = value
        return value

    def keep(self, values: Mapping[K, V]) -> None:
        self._young.update(values)
        if len(self._young) > self._limit:
            self._old, self._young = self._young, {}


class Writer(threading.Thread):
    """Takes a batch of commits at a time from `submit`, and answers it through `settle`."""

    def __init__(
        self,
        opened: OpenFile,
        path: Path,
        *,
        clock: Clock,
        settle: Callable[[list[Commit]], None],
        limits: Limits,
        summary: StreamSummary | None = None,
    ) -> None:
        super().__init__(name="journal-writer", daemon=True)
        self._connection = opened.connection
        self._witness = opened.witness
        self._path = path
        self._clock = clock
        self._settle = settle
        self._limits = limits
        self._summary = summary
        self._segment = limits.segment
        self._position = opened.last_position
        self._last_segment = opened.last_segment
        self._waiting: SimpleQueue[list[Commit] | None] = SimpleQueue()
        self._streams: Recent[str, StreamState] = Recent(limits.remembered)
        self._versions: Recent[RowKey, int] = Recent(limits.remembered)
        self._fences: Recent[str, int] = Recent(limits.remembered)
        self._syncing = True
        self._careful = False  # whether to look before a row is put as a new one
        self._written: Draft | None = None  # the last batch's, until it is remembered
        self._damage: Damaged | None = None
        self._suspect = False  # a write or sync has failed: open the file again
        self.fault = ""  # why commits are refused now

    def submit(self, batch: list[Commit]) -> None:
        self._waiting.put(batch)

    def finish(self) -> None:
        """Write what waits, then stop; `join` waits for it."""
        self._waiting.put(None)

    def run(self) -> None:
        pause = 0.0
        while (batch := self._take(pause)) is not None:
            self._commit(batch)
            if len(batch) == 1:  # before its caller wakes: both need the interpreter's lock
                self._remember()
            self._settle(batch)
            # After a single commit at once: it takes as long as its caller takes to wake.
            pause = PAUSE if len(batch) > 1 else 0.0
        self._close()

    def _take(self, pause: float) -> list[Commit] | None:
        """The next batch; while there is none, get ready for it."""
        if pause:
            with contextlib.suppress(Empty):
                return self._waiting.get(timeout=pause)
        self._remember()
        with contextlib.suppress(sqlite3.Error):  # the next batch will meet it, and say so
            self._begin()
        return self._waiting.get()

    def _close(self) -> None:
        self._remember()
        try:
            if self._damage is None:
                self._roll_back()
                mark_clean(self._connection)
        except sqlite3.Error as failed:
            log.warning("journal_not_closed_cleanly path=%s error=%s", self._path, failed)
        finally:
            self._connection.close()
            self._witness.note(self._position)
            self._witness.close()

    def _commit(self, batch: list[Commit]) -> None:
        try:
            if self._damage is not None:
                raise self._damage
            if self._suspect:
                self._reopen()
            self._write_together(batch)
            self._work_again()
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
            self._suspect = not _is_full(failed)
            self._fail(error)
            self._refuse(batch, error)
        except Damaged as damaged:
            self._refuse(batch, damaged)
        except Exception as bug:
            log.exception("journal_write_failed commits=%d", len(batch))
            self._refuse(batch, Unavailable(f"the journal failed: {bug!r}"))

    def _fail(self, error: Unavailable) -> None:
        if not self.fault:
            log.error("journal_failing error=%s", error)
        self.fault = str(error)

    def _work_again(self) -> None:
        if self.fault:
            log.warning("journal_works_again")
            self.fault = ""

    def _reopen(self) -> None:
        """Open the file again after a failed write or sync.

        The kernel may report a failed sync once and drop the pages, so a later sync of the log
        proves nothing about what was written before it. The checkpoint writes all that the log
        holds to the file and syncs that.
        """
        self._connection.close()
        self._connection = connect(self._path)
        busy, _, _ = self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        if busy:
            raise sqlite3.OperationalError("a reader holds the log")
        self._syncing = True
        self._position, self._last_segment = last_numbers(self._connection)
        self._written = None
        remembered = self._limits.remembered
        self._streams, self._versions = Recent(remembered), Recent(remembered)
        self._fences = Recent(remembered)
        self._suspect = False
        log.warning("journal_reopened position=%d", self._position)

    def _refuse(self, batch: list[Commit], error: Invalid | Unavailable) -> None:
        for commit in batch:
            commit.events, commit.added = [], []
            commit.error = type(error)(str(error))  # one each: every caller raises its own

    def _write_together(self, batch: list[Commit]) -> None:
        self._remember()
        self._sync_only_if(any(commit.durable for commit in batch))
        try:
            self._try(batch, careful=False)
        except _MustLook:
            self._try(batch, careful=True)

    def _try(self, batch: list[Commit], *, careful: bool) -> None:
        """Write the batch; raises _MustLook where it takes a look at a row first.

        Most do not: what is put as new is so, and what is put whatever was there needs no version.
        """
        self._begin()
        self._careful = careful
        draft = Draft(self._position, self._last_segment)
        now = self._clock.now_ms()
        try:
            for commit in batch:
                draft.begin()
                commit.error = None
                try:
                    commit.events = self._decide(commit.operations, draft, now)
                except Conflict:
                    draft.take_back()
                    self._refuse_or_decide(commit, draft, now)
            if self._summary is not None:
                self._sum_up(self._summary, batch, draft, now)
            self._write(draft)
            self._connection.execute("COMMIT")
        except BaseException:
            self._roll_back()
            raise
        self._written = draft

    def _sum_up(self, summary: StreamSummary, batch: list[Commit], draft: Draft, now: int) -> None:
        events = chain.from_iterable(commit.events for commit in batch)
        summed = [event for event in events if event.stream == summary.of]
        made = [summary.make(summed)] if summed else []
        batch[-1].added = self._append(Append(summary.into, made), draft, now)

    def _refuse_or_decide(self, commit: Commit, draft: Draft, now: int) -> None:
        """With care this time: what was assumed before the conflict may not hold either."""
        careful, self._careful = self._careful, True
        draft.begin()
        try:
            commit.events = self._decide(commit.operations, draft, now)
        except Conflict as refused:
            draft.take_back()
            commit.events = []
            commit.error = refused
        finally:
            self._careful = careful

    def _begin(self) -> None:
        if not self._connection.in_transaction:
            self._connection.execute("BEGIN IMMEDIATE")

    def _roll_back(self) -> None:
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")

    def _sync_only_if(self, durable: bool) -> None:
        if durable != self._syncing:
            self._roll_back()  # SQLite changes this only outside of a transaction
            self._connection.execute(f"PRAGMA synchronous={'FULL' if durable else 'NORMAL'}")
            self._syncing = durable

    def _decide(
        self, operations: Sequence[Operation | Forget | NewEpoch], draft: Draft, now: int
    ) -> list[Event]:
        """Add what these operations change to the draft; raises Conflict where one does not hold."""
        events: list[Event] = []
        for operation in operations:
            match operation:
                case Append():
                    events += self._append(operation, draft, now)
                case Put():
                    self._put(operation, draft)
                case Overwrite():
                    self._overwrite(operation, draft)
                case Delete():
                    key = (operation.collection, operation.key)
                    if operation.expected is not None:
                        version = self._version(key, draft)
                        if operation.expected != version:
                            raise _unexpected(operation, version)
                    draft.change(draft.rows, key, NOTHING)
                case Check():
                    # Never assumed: nothing is written that could show a wrong assumption.
                    version = self._version((operation.collection, operation.key), draft)
                    if operation.version != version:
                        raise _unexpected(operation, version)
                case Fence():
                    held = self._epoch(operation.name, draft)
                    if operation.epoch < held:
                        raise Fenced(operation.name, held=held, offered=operation.epoch)
                    if operation.epoch > held:
                        draft.change(draft.fences, operation.name, operation.epoch)
                case Forget():
                    self._forget(operation, draft)
                case NewEpoch():
                    draft.epoch = operation.name
                case _:
                    assert_never(operation)
        return events

    def _put(self, put: Put, draft: Draft) -> None:
        key = (put.collection, put.key)
        before = self._version(key, draft, expected=put.expected)
        if put.expected != before:
            raise _unexpected(put, before)
        self._write_row(key, (before + 1, put.value, put.due), draft)

    def _overwrite(self, write: Overwrite, draft: Draft) -> None:
        key = (write.collection, write.key)
        if key in draft.rows or self._careful:
            version = self._version(key, draft) + 1
        else:
            known = self._versions.get(key)
            version = UNKNOWN if known is None else known + 1
        self._write_row(key, (version, write.value, write.due), draft)

    def _write_row(self, key: RowKey, state: RowState, draft: Draft) -> None:
        if draft.rows.get(key) is NOTHING:
            draft.change(draft.reborn, key, True)
        draft.change(draft.rows, key, state)

    def _append(self, append: Append, draft: Draft, now: int) -> list[Event]:
        stream = append.stream
        seq, segment, first = self._stream(stream, draft)
        if append.expected_seq is not None and append.expected_seq != seq:
            raise Conflict(f"{stream} is at {seq}, not at {append.expected_seq}")
        if not append.events:
            return []
        events = []
        position = draft.position
        for kind, data, subject in append.events:
            position += 1
            seq += 1
            if segment == 0 or seq - first >= self._segment:
                draft.last_segment = segment = draft.last_segment + 1
                first = seq
                draft.segments.append((segment, stream, first))
            events.append(Event(position, stream, seq, kind, now, data, subject))
            draft.events.append((position, segment, seq, kind, now, subject, data))
        draft.position = position
        draft.change(draft.streams, stream, StreamState(seq, segment, first))
        return events

    def _forget(self, forget: Forget, draft: Draft) -> None:
        state = self._stream(forget.stream, draft)
        if state.last <= forget.through:
            state = StreamState(state.last, state.segment, state.last + 1)
            draft.change(draft.streams, forget.stream, state)
        draft.forgets.append((forget.stream, min(forget.through, state.last), state))

    def _stream(self, name: str, draft: Draft) -> StreamState:
        state = draft.streams.get(name) or self._streams.get(name)
        if state is None:
            found = self._connection.execute(LAST, (name,)).fetchone()
            if found is None:
                return StreamState(0, 0, 0)
            state = StreamState(*found)
            self._streams.keep({name: state})
        return state

    def _version(self, key: RowKey, draft: Draft, *, expected: int | None = None) -> int:
        drafted = draft.rows.get(key)
        if drafted is not None:
            if drafted[0] == UNKNOWN:
                raise _MustLook
            return drafted[0]
        version = self._versions.get(key)
        if version is None:
            if expected == 0 and not self._careful:
                draft.assumed.add(key)
                return 0
            found = self._connection.execute(
                "SELECT version FROM rows WHERE collection = ? AND key = ?", key
            ).fetchone()
            version = 0 if found is None else int(found[0])
            self._versions.keep({key: version})
        return version

    def _epoch(self, name: str, draft: Draft) -> int:
        epoch = draft.fences.get(name) or self._fences.get(name)
        if epoch is None:
            found = self._connection.execute(
                "SELECT epoch FROM fences WHERE name = ?", (name,)
            ).fetchone()
            epoch = 0 if found is None else int(found[0])
            self._fences.keep({name: epoch})
        return epoch

    def _write(self, draft: Draft) -> None:
        self._write_all("INSERT INTO segments", draft.segments)
        self._write_all("INSERT INTO events", draft.events)
        if draft.rows:
            self._write_rows(draft)
        self._write_all("INSERT OR REPLACE INTO fences", list(draft.fences.items()))
        if draft.epoch:
            write_meta(self._connection, "epoch", draft.epoch)
        for stream, through, state in draft.forgets:
            self._drop(stream, through, state)
        if draft.forgets:
            # Were the newest event forgotten, its position must still not be given again.
            write_meta(self._connection, "position", str(draft.position))

    def _write_all(self, how: str, rows: Sequence[tuple[object, ...]], otherwise: str = "") -> None:
        """Many rows to a statement: between two, the loop's thread and this one change places."""
        done = 0
        while left := len(rows) - done:
            many = min(left, ROWS_AT_ONCE)
            values = tuple(chain.from_iterable(rows[done : done + many]))
            self._connection.execute(_with_values(how, len(rows[0]), many, otherwise), values)
            done += many

    def _write_rows(self, draft: Draft) -> None:
        assumed = draft.assumed
        new: list[tuple[str, str, int, bytes, int | None]] = []
        changed: list[tuple[str, str, int, bytes, int | None]] = []
        gone: list[RowKey] = []
        for key, (version, value, due) in draft.rows.items():
            if version == 0 or key in draft.reborn:
                if key in assumed:
                    raise _MustLook  # made and deleted in one batch: whether it was there
                gone.append(key)
            if version != 0:
                row = (*key, abs(version), value, due)  # if it is unknown and new, it is the first
                (new if key in assumed else changed).append(row)
        if gone:
            self._connection.executemany("DELETE FROM rows WHERE collection = ? AND key = ?", gone)
        try:
            self._write_all("INSERT INTO rows", new)
        except sqlite3.IntegrityError as there:
            raise _MustLook from there
        self._write_all("INSERT INTO rows", changed, _OVER)

    def _drop(self, stream: str, through: int, state: StreamState) -> None:
        execute = self._connection.execute
        execute(
            "DELETE FROM events WHERE seq <= ? AND segment IN"
            " (SELECT id FROM segments WHERE stream = ? AND first <= ?)",
            (through, stream, through),
        )
        execute(
            "DELETE FROM segments WHERE stream = ? AND first <= ? AND id <> ?",
            (stream, through + 1 - self._segment, state.segment),
        )
        execute("UPDATE segments SET first = ? WHERE id = ?", (state.segment_first, state.segment))

    def _remember(self) -> None:
        """Keep what the last batch has changed at hand for the next."""
        draft, self._written = self._written, None
        if draft is None:
            return
        if draft.position > self._position:
            self._witness.see(draft.position, now=self._clock.monotonic())
        self._position = draft.position
        self._last_segment = draft.last_segment
        self._streams.keep(draft.streams)
        self._versions.keep({key: row[0] for key, row in draft.rows.items() if row[0] != UNKNOWN})
        self._fences.keep(draft.fences)


def _is_full(failed: sqlite3.Error) -> bool:
    """True if there was no room: nothing was written, and the file is as it was."""
    return getattr(failed, "sqlite_errorname", "") == "SQLITE_FULL"


@functools.cache
def _with_values(how: str, columns: int, rows: int, otherwise: str) -> str:
    row = f"({', '.join('?' * columns)})"
    return f"{how} VALUES {', '.join([row] * rows)}{otherwise}"


def _unexpected(operation: Put | Delete | Check, version: int) -> Conflict:
    expected = operation.version if isinstance(operation, Check) else operation.expected
    return Conflict(
        f"{operation.collection}/{operation.key} is at version {version}, not at {expected}"
    )
