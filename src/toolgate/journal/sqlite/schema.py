"""The journal's file: its tables, its version, and the checks before it is used.

A file that is newer than this program, damaged or not a journal is refused and left as it is.
"""

import contextlib
import os
import secrets
import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from toolgate.core.errors import Damaged, Misconfigured, Unavailable
from toolgate.journal.sqlite.clean_shutdown_marker import Witness, witness_path
from toolgate.journal.sqlite.upgrade import Upgrade, upgrade_file

APPLICATION_ID: Final = 0x54474A4C  # "TGJL", in the file's header
BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
# Every page of a file up to this size is checked at each start (some 100 ms); of a larger one,
# only after a stop that was not clean.
ALWAYS_CHECKED_BYTES: Final = 32 * 1024 * 1024
# Pages of the log that start a checkpoint, after which it is written from its beginning again: it
# stays near 4 MB. A sync costs a third more while a file grows, so that the log has this size from
# the start, for some ten milliseconds.
CHECKPOINT_PAGES: Final = 1000
LOG_BYTES: Final = CHECKPOINT_PAGES * (4096 + 24)
LOG_KEPT_BYTES: Final = 16 * 1024 * 1024
STATEMENTS: Final = 512  # kept by the writer's connection: one for each number of rows to write

# The ends of a stream: the oldest kept and the newest. Its last segment stays when all events are
# forgotten, and then starts with the number to come.
HEAD: Final = (
    "SELECT coalesce((SELECT min(seq) FROM events WHERE segment = oldest.id), oldest.first),"
    " coalesce((SELECT max(seq) FROM events WHERE segment = newest.id), newest.first - 1),"
    " newest.id, newest.first"
    " FROM (SELECT id, first FROM segments WHERE stream = :stream ORDER BY first LIMIT 1) oldest,"
    " (SELECT id, first FROM segments WHERE stream = :stream ORDER BY first DESC LIMIT 1) newest"
)
# For appending: the newest number of a stream, its last segment, and that segment's first number.
LAST: Final = (
    "SELECT coalesce((SELECT max(seq) FROM events WHERE segment = newest.id), newest.first - 1),"
    " newest.id, newest.first"
    " FROM (SELECT id, first FROM segments WHERE stream = ? ORDER BY first DESC LIMIT 1) newest"
)

VERSION: Final = 2  # of the file; 0.1.0 wrote 1, with the same tables and other rows


def _make_tables(connection: sqlite3.Connection) -> None:
    # A stream is cut into segments, whose ids rise as they are made. New events have
    # late ids, so that their index entries are on a few pages instead of one page for each stream.
    connection.execute(
        "CREATE TABLE segments (id INTEGER PRIMARY KEY, stream TEXT NOT NULL,"
        " first INTEGER NOT NULL, UNIQUE (stream, first)) STRICT"
    )
    connection.execute(
        "CREATE TABLE events (position INTEGER PRIMARY KEY, segment INTEGER NOT NULL,"
        " seq INTEGER NOT NULL, type TEXT NOT NULL, at INTEGER NOT NULL, subject TEXT NOT NULL,"
        " data BLOB NOT NULL, UNIQUE (segment, seq)) STRICT"
    )
    # The subject comes first for the same reason: ids that are made sort by time.
    connection.execute(
        "CREATE INDEX events_by_subject ON events (subject, seq) WHERE subject <> ''"
    )
    connection.execute(
        "CREATE TABLE rows (collection TEXT NOT NULL, key TEXT NOT NULL, version INTEGER NOT NULL,"
        " value BLOB NOT NULL, due INTEGER, PRIMARY KEY (collection, key)) STRICT, WITHOUT ROWID"
    )
    connection.execute(
        "CREATE INDEX rows_by_due ON rows (due, collection, key) WHERE due IS NOT NULL"
    )
    connection.execute(
        "CREATE TABLE fences (name TEXT PRIMARY KEY, epoch INTEGER NOT NULL) STRICT, WITHOUT ROWID"
    )
    connection.execute(
        "CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT, WITHOUT ROWID"
    )


@dataclass(frozen=True, slots=True)
class OpenFile:
    connection: sqlite3.Connection  # the writer's
    vouches_since: str
    witness: Witness
    last_position: int
    last_segment: int


def open_file(path: Path, *, now: int, upgrade: Upgrade | None = None) -> OpenFile:
    """Open the journal's file for writing, making it where there is none.

    `upgrade` changes the rows of a file of 0.1.0; without it such a file is refused.
    """
    try:
        _inspect(path)
        connection = connect(path)
    except sqlite3.Error as refused:
        raise from_sqlite(refused, path) from refused
    except OSError as refused:
        raise _from_system(refused, path) from refused
    try:
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version == 0:
            make(connection)
        elif version < VERSION:
            if upgrade is None:
                raise Misconfigured(f"{path} is of 0.1.0: start Toolgate on it to upgrade it")
            upgrade_file(connection, path, upgrade, version=VERSION, now=now)
        last_position, last_segment = last_numbers(connection)
        witness = Witness(path)
        try:
            vouches_since = _account_for(
                connection, path, behind=witness.seen is None or witness.seen > last_position
            )
            witness.note(last_position)
        except BaseException:
            witness.close()
            raise
        _lengthen_log(path)
    except BaseException as refused:
        connection.close()
        if isinstance(refused, sqlite3.Error):
            raise from_sqlite(refused, path) from refused
        if isinstance(refused, OSError):
            raise _from_system(refused, path) from refused
        raise
    return OpenFile(connection, vouches_since, witness, last_position, last_segment)


def last_numbers(connection: sqlite3.Connection) -> tuple[int, int]:
    """The last position and the last segment that were given."""
    position = max(
        int(read_meta(connection, "position") or 0),
        _number(connection, "SELECT max(position) FROM events"),
    )
    return position, _number(connection, "SELECT max(id) FROM segments")


def open_for_reading(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode=ro",
        uri=True,
        isolation_level=None,
        check_same_thread=False,  # a reader's thread makes it, closing the journal closes it
    )
    connection.execute("PRAGMA cache_size=-4000")
    connection.execute("PRAGMA query_only=ON")
    return connection


def mark_clean(connection: sqlite3.Connection) -> None:
    """Write that everything is on disk; the last write."""
    connection.execute("PRAGMA synchronous=FULL")
    write_meta(connection, "clean", "1")
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def make(connection: sqlite3.Connection) -> None:
    """Make the tables in one transaction."""
    connection.execute("BEGIN EXCLUSIVE")
    try:
        _make_tables(connection)
        connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version={VERSION}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:  # a full disk has ended it already
            connection.execute("ROLLBACK")
        raise


def read_meta(connection: sqlite3.Connection, name: str) -> str | None:
    found = connection.execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchone()
    return None if found is None else str(found[0])


def write_meta(connection: sqlite3.Connection, name: str, value: str) -> None:
    connection.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (name, value))


def from_sqlite(error: sqlite3.Error, path: Path) -> Unavailable:
    """The error that a caller gets for one of SQLite."""
    name = getattr(error, "sqlite_errorname", "") or type(error).__name__
    if name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):
        return _damaged(path, str(error))
    if name.startswith(("SQLITE_FULL", "SQLITE_IOERR_SHMSIZE")):  # the log's index is a file too
        return Unavailable(f"no room to write {path}: free some space on its disk")
    if name.startswith("SQLITE_BUSY"):
        return Unavailable(f"another program is writing to {path}: let it finish, or end it")
    return Unavailable(f"{path} cannot be used ({name}: {error}): check its disk")


def _from_system(error: OSError, path: Path) -> Unavailable:
    return Unavailable(
        f"{path} cannot be used ({error.strerror}): check its disk, and that it is this user's"
    )


def _damaged(path: Path, what: str) -> Damaged:
    log = path.with_name(path.name + "-wal")
    # SQLite takes every log for its file's: beside a copy it would damage that as well.
    restored = f" and delete {log.name}" if log.exists() and log.stat().st_size > 0 else ""
    return Damaged(
        f"{path} is damaged ({what}): restore it from a copy{restored},"
        f" or move {'both' if restored else 'it'} away to start empty"
    )


def _inspect(path: Path) -> None:
    """Check the file without a write; raise Damaged or Misconfigured if it cannot be used."""
    log = path.with_name(path.name + "-wal")
    if not path.exists():
        if log.exists() and log.stat().st_size > 0:
            raise _damaged(path, f"it is gone, but {log.name} is there")
        return
    if path.stat().st_size == 0:
        if witness_path(path).exists():
            raise _damaged(path, "it is empty")
        return
    with contextlib.closing(open_for_reading(path)) as connection:
        application_id = connection.execute("PRAGMA application_id").fetchone()[0]
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if application_id != APPLICATION_ID:
            if connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0] == 0:
                if witness_path(path).exists():  # which is made after the tables are on disk
                    raise _damaged(path, f"it is empty, and {log.name} is not what it was")
                return  # the process that made it was killed
            raise Misconfigured(
                f"{path} is not a journal of Toolgate's: set TOOLGATE_HOME to another directory"
            )
        if version > VERSION:
            raise Misconfigured(
                f"{path} was written by a newer Toolgate (version {version} of the file; this"
                f" one knows {VERSION}): install that Toolgate again, or set TOOLGATE_HOME to"
                " another directory"
            )
        clean = read_meta(connection, "clean") == "1"
        if not clean or path.stat().st_size <= ALWAYS_CHECKED_BYTES:
            found = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
            if found != "ok":
                raise _damaged(path, " ".join(str(found).split()))


def connect(path: Path) -> sqlite3.Connection:
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    connection = sqlite3.connect(
        path, isolation_level=None, check_same_thread=False, cached_statements=STATEMENTS
    )
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("PRAGMA cache_size=-16000")
    connection.execute(f"PRAGMA wal_autocheckpoint={CHECKPOINT_PAGES}")
    connection.execute(f"PRAGMA journal_size_limit={LOG_KEPT_BYTES}")
    return connection


def _lengthen_log(path: Path) -> None:
    """Fill the log with zeros after its last frame, where it ends for SQLite, as after a checkpoint."""
    file = path.with_name(path.name + "-wal")
    if not file.exists():  # SQLite does without one where the disk cannot share memory
        return
    with file.open("r+b", buffering=0) as log:
        size = log.seek(0, os.SEEK_END)
        missing = LOG_BYTES - size
        if missing <= 0:
            return
        written: int | None = 0
        with contextlib.suppress(OSError):  # a full disk says so when it must
            written = log.write(bytes(missing))
        if written == missing:
            os.fdatasync(log.fileno())
        else:
            log.truncate(size)


def _account_for(connection: sqlite3.Connection, path: Path, *, behind: bool) -> str:
    """The name of the epoch; a new one if the file may lack something that was delivered.

    That is so where the machine stopped while commits without a sync were about, and where the
    file was put back from a copy: it is behind its witness, or another inode.
    """
    boot = _boot_id()
    inode = str(path.stat().st_ino)
    vouches_since = read_meta(connection, "epoch")
    unsynced_lost = read_meta(connection, "clean") == "0" and (
        not boot or read_meta(connection, "boot") != boot
    )
    if vouches_since is None or unsynced_lost or behind or read_meta(connection, "inode") != inode:
        vouches_since = new_epoch()
    connection.execute("BEGIN IMMEDIATE")
    write_meta(connection, "epoch", vouches_since)
    write_meta(connection, "boot", boot)
    write_meta(connection, "inode", inode)
    write_meta(connection, "clean", "0")
    connection.execute("COMMIT")
    return vouches_since


def new_epoch() -> str:
    return f"ep_{secrets.token_hex(8)}"


def _number(connection: sqlite3.Connection, sql: str) -> int:
    return int(connection.execute(sql).fetchone()[0] or 0)


def _boot_id() -> str:
    try:
        return BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return ""
