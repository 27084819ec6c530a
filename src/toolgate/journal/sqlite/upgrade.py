"""The upgrade of the file that 0.1.0 left: a whole copy first, then every row in one transaction.

How rows change is up to the `Upgrade` that is passed in; nothing here knows what they mean. Events
stay as they are.
"""

import contextlib
import errno
import logging
import os
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

from toolgate.core.directories import sync_directory
from toolgate.core.errors import Unavailable
from toolgate.journal.journal import Append, Delete, Event, Row

log = logging.getLogger(__name__)

OLD: Final = "0.1.0"
PAGE: Final = 1_000  # rows or events read at a time
COPIED_AT_ONCE: Final = 4_096  # pages of the file, 16 MB, between two looks at the clock
TOLD_EVERY_S: Final = 5.0

_ROWS: Final = (
    "SELECT collection, key, version, value, due FROM rows"
    " WHERE collection = ? AND key > ? ORDER BY key LIMIT ?"
)
_ROW: Final = (
    "SELECT collection, key, version, value, due FROM rows WHERE collection = ? AND key = ?"
)
_EVENTS: Final = "SELECT position, stream, seq, type, at, data, subject FROM"
_OF_STREAM: Final = (
    f"{_EVENTS} segments CROSS JOIN events ON events.segment = segments.id"
    " WHERE stream = ? AND seq > ? ORDER BY first, seq LIMIT ?"
)
_ABOUT: Final = (
    f"{_EVENTS} events JOIN segments ON segments.id = events.segment"
    " WHERE subject = ? AND subject <> '' AND stream = ? ORDER BY seq"
)


class OldFile:
    """The rows and events of the file, with the changes made so far."""

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self._connection = connection
        self.path = path

    def rows(self, collection: str) -> Iterator[Row]:
        after = ""
        while page := self._connection.execute(_ROWS, (collection, after, PAGE)).fetchall():
            yield from map(Row._make, page)
            after = page[-1][1]

    def row(self, collection: str, key: str) -> Row | None:
        found = self._connection.execute(_ROW, (collection, key)).fetchone()
        return None if found is None else Row._make(found)

    def events(self, stream: str) -> Iterator[Event]:
        after = 0
        while page := self._connection.execute(_OF_STREAM, (stream, after, PAGE)).fetchall():
            yield from map(Event._make, page)
            after = page[-1][2]

    def events_about(self, subject: str, *, stream: str) -> list[Event]:
        found = self._connection.execute(_ABOUT, (subject, stream))
        return list(map(Event._make, found))


Change = Row | Delete | Append  # a row as it is to be, one that goes, or events to add
Upgrade = Callable[[OldFile], Iterable[Change]]


def upgrade_file(
    connection: sqlite3.Connection, path: Path, upgrade: Upgrade, *, version: int, now: int
) -> None:
    """Bring the file to this version, wholly or not at all; a copy of the old one stays beside it.

    Raises Unavailable if the disk is full, sqlite3.Error, OSError, and what `upgrade` raises.
    """
    progress = _Progress()
    try:
        kept = keep_copy(connection, path, progress)
        counts = _change(connection, path, upgrade, version=version, now=now, progress=progress)
    except (sqlite3.Error, OSError) as failed:
        if not _is_full(failed):
            raise
        needed = 2 * path.stat().st_size // 1_000_000 + 8
        raise Unavailable(
            f"no room to upgrade {path}, which was not changed: free {needed} MB on its disk"
        ) from failed
    log.warning(
        "journal_upgraded from=%s kept=%s seconds=%.1f changes=%d%s",
        OLD,
        kept.name,
        progress.seconds,
        counts.total(),
        "".join(f" {name}={count}" for name, count in sorted(counts.items())),
    )


def kept_path(journal: Path) -> Path:
    return journal.with_name(f"{journal.stem}.{OLD}")


def keep_copy(connection: sqlite3.Connection, path: Path, progress: "_Progress") -> Path:
    """Copy the file, with what is in its log only, and return the copy's path.

    A copy that is there is not written over. It is this file's if an upgrade was interrupted; else
    0.1.0 has been at work since, and the new copy has the last position in its name.
    """
    kept, position = kept_path(path), _last_position(connection)
    if kept.exists() and _position_in(kept) != position:
        kept = kept.with_name(f"{kept.name}-{position}")
    if kept.exists():
        return kept
    part = path.with_name(f".{kept.name}.part")
    _remove(part)
    try:
        os.close(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        with contextlib.closing(sqlite3.connect(part)) as copy:
            connection.backup(copy, pages=COPIED_AT_ONCE, progress=progress.of_copy)
        _sync(part)
        part.rename(kept)
    except BaseException:
        _remove(part)
        raise
    sync_directory(path.parent)
    return kept


def _position_in(copy: Path) -> int | None:
    """The last position in a copy; None if it is no journal."""
    uri = f"{copy.absolute().as_uri()}?mode=ro&immutable=1"
    with contextlib.closing(sqlite3.connect(uri, uri=True)) as connection:
        try:
            return _last_position(connection)
        except sqlite3.DatabaseError:
            return None


def _last_position(connection: sqlite3.Connection) -> int:
    written = "SELECT coalesce(max(position), 0) FROM events"
    noted = "SELECT coalesce(max(CAST(value AS INTEGER)), 0) FROM meta WHERE name = 'position'"
    return int(connection.execute(f"SELECT max(({written}), ({noted}))").fetchone()[0])


def _change(
    connection: sqlite3.Connection,
    path: Path,
    upgrade: Upgrade,
    *,
    version: int,
    now: int,
    progress: "_Progress",
) -> Counter[str]:
    """Make the changes in one transaction; return their number by collection and stream."""
    counts: Counter[str] = Counter()
    connection.execute("BEGIN EXCLUSIVE")
    try:
        for change in upgrade(OldFile(connection, path)):
            name = _apply(connection, change, now=now)
            counts[name] += 1
            progress.of_rows(counts.total())
        connection.execute(f"PRAGMA user_version={version}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:  # a full disk has ended it already
            connection.execute("ROLLBACK")
        raise
    return counts


def _apply(connection: sqlite3.Connection, change: Change, *, now: int) -> str:
    """Make one change; return the collection or stream that it is in."""
    match change:
        case Row():
            connection.execute("INSERT OR REPLACE INTO rows VALUES (?, ?, ?, ?, ?)", change)
        case Delete():
            where = (change.collection, change.key)
            connection.execute("DELETE FROM rows WHERE collection = ? AND key = ?", where)
        case Append():
            _append(connection, change, now=now)
            return change.stream
    return change.collection


def _append(connection: sqlite3.Connection, change: Append, *, now: int) -> None:
    """Add events, in a segment of their own, to a stream that has some."""
    stream, events, _ = change
    last = "SELECT max(seq) FROM segments JOIN events ON segment = id WHERE stream = ?"
    (seq,) = connection.execute(last, (stream,)).fetchone()
    position = _last_position(connection)
    segment = connection.execute(
        "INSERT INTO segments (stream, first) VALUES (?, ?)", (stream, seq + 1)
    ).lastrowid
    for event in events:
        seq, position = seq + 1, position + 1
        connection.execute(
            "INSERT INTO events VALUES (?, ?, ?, ?, ?, ?, ?)",
            (position, segment, seq, event.type, now, event.subject, event.data),
        )


class _Progress:
    """Log lines of an upgrade that takes long."""

    def __init__(self) -> None:
        self._began = self._told = time.monotonic()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    def of_copy(self, _status: int, remaining: int, total: int) -> None:
        self._tell("copied_percent", 100 * (total - remaining) // max(total, 1))

    def of_rows(self, done: int) -> None:
        if done % PAGE == 0:
            self._tell("changes", done)

    def _tell(self, name: str, number: int) -> None:
        if time.monotonic() - self._told >= TOLD_EVERY_S:
            self._told = time.monotonic()
            log.warning("journal_upgrading from=%s %s=%d", OLD, name, number)


def _remove(part: Path) -> None:
    for file in (part, part.with_name(f"{part.name}-journal")):
        file.unlink(missing_ok=True)


def _sync(file: Path) -> None:
    descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _is_full(failed: sqlite3.Error | OSError) -> bool:
    if isinstance(failed, OSError):
        return failed.errno in {errno.ENOSPC, errno.EDQUOT}
    return getattr(failed, "sqlite_errorname", "").startswith("SQLITE_FULL")
