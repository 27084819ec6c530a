"""A file of 0.1.0 is upgraded wholly or not at all, beside a whole copy of it."""

import contextlib
import logging
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from toolgate.core.errors import Damaged, Unavailable
from toolgate.journal.journal import Append, Delete, NewEvent, Put, Row
from toolgate.journal.local_bus import LocalBus
from toolgate.journal.sqlite import schema, upgrade
from toolgate.journal.sqlite.journal import SqliteJournal
from toolgate.journal.sqlite.upgrade import Change, OldFile, kept_path
from toolgate.testing.clock import FakeClock

ROWS: Final = 2_500  # more than two pages
NOW: Final = 1_700_000_000_000


def renamed(file: OldFile) -> Iterator[Change]:
    """Each row of `old` becomes one of `new`, and one event says so."""
    for row in file.rows("old"):
        yield Delete("old", row.key)
        yield Row("new", row.key, row.version + 7, row.value.upper(), 5)
    yield Append("a", [NewEvent("upgraded", b"{}", "s")])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "home" / "journal.db"


async def filled(path: Path, *, size: int = 100) -> str:
    """A file of 0.1.0, whose last commits are in its log only; its epoch."""
    journal = await SqliteJournal.open(path, clock=FakeClock(), bus=LocalBus())
    for number in range(0, ROWS, 100):
        await journal.commit(
            Append("a", [NewEvent("said", b"x" * size, "s")]),
            *(
                Put("old", f"{one:05d}", b"y" * size, expected=0)
                for one in range(number, number + 100)
            ),
        )
    epoch = journal.vouches_since
    await journal.close()
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version=1")
    return epoch


def content(path: Path) -> dict[str, list[Any]]:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
        return {
            "version": connection.execute("PRAGMA user_version").fetchall(),
            "rows": connection.execute("SELECT * FROM rows ORDER BY 1, 2").fetchall(),
            "events": connection.execute("SELECT * FROM events ORDER BY 1").fetchall(),
            "segments": connection.execute("SELECT * FROM segments ORDER BY 1").fetchall(),
        }


def upgraded(path: Path, change: upgrade.Upgrade = renamed) -> str:
    """The epoch of the file after it was opened with an upgrade."""
    opened = schema.open_file(path, now=NOW, upgrade=change)
    opened.connection.close()
    opened.witness.close()
    return opened.vouches_since


def files(path: Path) -> set[str]:
    return {file.name for file in path.parent.iterdir()}


async def test_rows_are_changed_in_the_same_file_and_events_stay(path: Path) -> None:
    epoch = await filled(path)
    before, inode = content(path), path.stat().st_ino
    assert upgraded(path) == epoch
    assert path.stat().st_ino == inode
    after = content(path)
    assert after["version"] == [(schema.VERSION,)]
    assert after["rows"] == [("new", f"{one:05d}", 8, b"Y" * 100, 5) for one in range(ROWS)]
    assert after["events"][:-1] == before["events"]
    position, _, seq, kind, at, subject, _ = after["events"][-1]
    old_position, _, old_seq, *_ = before["events"][-1]
    assert (position, seq) == (old_position + 1, old_seq + 1)
    assert (kind, at, subject) == ("upgraded", NOW, "s")


async def test_a_stream_goes_on_after_the_event_that_an_upgrade_adds(path: Path) -> None:
    await filled(path)
    upgraded(path)
    journal = await SqliteJournal.open(path, clock=FakeClock(), bus=LocalBus())
    (event,) = await journal.commit(Append("a", [NewEvent("said", b"", "s")], ROWS // 100 + 1))
    assert [one.seq for one in await journal.read("a")] == list(range(1, event.seq + 1))
    assert await journal.read("a", after=event.seq - 1) == [event]
    assert (await journal.read_back("a", limit=1)) == [event]
    await journal.close()


async def test_the_old_file_is_kept_whole_for_its_owner_alone(path: Path) -> None:
    await filled(path)
    before = content(path)
    upgraded(path)
    kept = kept_path(path)
    assert kept.name == "journal.0.1.0"
    assert kept.stat().st_mode & 0o777 == 0o600
    assert content(kept) == before
    assert not [name for name in files(path) if "part" in name]
    upgraded(path)  # which has nothing to do any more
    assert content(kept) == before


async def test_what_is_in_the_log_only_is_copied_too(path: Path) -> None:
    await filled(path)
    with contextlib.closing(sqlite3.connect(path)) as killed:
        killed.execute("INSERT INTO rows VALUES ('old', 'last', 1, x'00', NULL)")
        killed.commit()
        log = path.with_name(path.name + "-wal")
        saved = {path: path.read_bytes(), log: log.read_bytes()}
    for file, bytes_of in saved.items():
        file.write_bytes(bytes_of)
    upgraded(path)
    assert ("old", "last", 1, b"\0", None) in content(kept_path(path))["rows"]


async def test_a_copy_that_is_there_is_not_written_over(path: Path) -> None:
    await filled(path)
    before = content(path)
    kept_path(path).write_bytes(b"mine")
    upgraded(path)
    assert kept_path(path).read_bytes() == b"mine"
    (beside,) = path.parent.glob("journal.0.1.0-*")
    assert content(beside) == before


async def test_the_copy_of_an_upgrade_that_was_interrupted_is_not_made_again(path: Path) -> None:
    await filled(path)

    def fails(_: OldFile) -> Iterator[Change]:
        raise Damaged("a row cannot be read")

    with pytest.raises(Damaged):
        upgraded(path, fails)
    made = kept_path(path).stat()
    upgraded(path)
    assert kept_path(path).stat() == made
    assert not list(path.parent.glob("journal.0.1.0-*"))


async def test_an_upgrade_that_fails_changes_nothing(path: Path) -> None:
    await filled(path)
    before = content(path)

    def fails(file: OldFile) -> Iterator[Change]:
        yield from renamed(file)
        raise Damaged("row '00007' of old cannot be read")

    with pytest.raises(Damaged, match="00007"):
        upgraded(path, fails)
    assert content(path) == before
    upgraded(path)
    assert content(path)["rows"][0][0] == "new"


async def test_an_upgrade_that_takes_long_logs_how_far_it_is(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await filled(path)
    monkeypatch.setattr(upgrade, "TOLD_EVERY_S", 0.0)
    with caplog.at_level(logging.INFO, logger=upgrade.__name__):
        upgraded(path)
    lines = [record.getMessage() for record in caplog.records]
    assert "journal_upgrading from=0.1.0 changes=2000" in lines
    assert any(line.startswith("journal_upgrading from=0.1.0 copied_percent=") for line in lines)
    assert [line for line in lines if line.startswith("journal_upgraded")] == lines[-1:]
    assert f"old={ROWS}" in lines[-1]


async def test_a_full_disk_is_named_and_nothing_is_changed(small_disk: Path) -> None:
    path = small_disk / "home" / "journal.db"
    await filled(path, size=150)
    before = content(path)
    copied: set[bool] = set()
    refusals: set[str] = set()
    filler = small_disk / "filler3"
    with filler.open("wb", buffering=0) as full, contextlib.suppress(OSError):
        while full.write(bytes(4096)) == 4096:
            pass
    while True:
        try:
            upgraded(path)
        except Unavailable as full:
            refusals.add(str(full))
        else:
            break
        copied.add(kept_path(path).exists())
        assert not [name for name in files(path) if "part" in name]
        with filler.open("r+b") as room:
            room.truncate(max(0, filler.stat().st_size - 16 * 4096))
        with contextlib.closing(schema.open_for_reading(path)) as connection:
            assert connection.execute("PRAGMA user_version").fetchone()[0] == 1
            assert (
                connection.execute("SELECT * FROM rows ORDER BY 1, 2").fetchall() == before["rows"]
            )
    assert copied == {False, True}, "the copy has no room, then the change has none"
    assert any(one.startswith(f"no room to upgrade {path}, which was not") for one in refusals)
    assert all(one.startswith("no room to ") and "\n" not in one for one in refusals)
    filler.unlink()
    assert content(path)["version"] == [(schema.VERSION,)]
    assert content(kept_path(path)) == before
