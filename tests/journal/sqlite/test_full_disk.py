"""A full disk: refused, nothing acknowledged lost, and it goes on once there is room."""

import contextlib
from pathlib import Path

import pytest

from toolgate.core.errors import Unavailable
from toolgate.journal.disk_blobs import DiskBlobs
from toolgate.journal.journal import Append, Head, NewEvent, Put
from toolgate.journal.local_bus import LocalBus
from toolgate.journal.rows import version_of
from toolgate.journal.sqlite.journal import SqliteJournal
from toolgate.testing.clock import FakeClock


async def fill(journal: SqliteJournal, last: int) -> tuple[int, Unavailable]:
    """Commit until the disk refuses; the last number acknowledged, and the refusal."""
    version = await version_of(journal, "lasts", "a")
    while True:
        try:
            committed = await journal.commit(
                Append("a", [NewEvent("said", b"x" * 4000)], expected_seq=last),
                Put("lasts", "a", str(last + 1).encode(), expected=version),
            )
        except Unavailable as refused:
            return last, refused
        last = committed[0].seq
        version += 1
        assert last < 2000


async def test_a_full_disk_refuses_commits_until_there_is_room(small_disk: Path) -> None:
    path = small_disk / "journal.sqlite3"
    journal = await SqliteJournal.open(path, clock=FakeClock(), bus=LocalBus())
    last, refused = await fill(journal, 0)
    assert last > 50
    assert "\n" not in str(refused)
    assert str(path) in str(refused)
    assert await journal.head("a") == Head(first=1, last=last)
    with pytest.raises(Unavailable):
        await journal.commit(Append("b", [NewEvent("said", b"x" * 100_000)]))

    (small_disk / "filler1").unlink()
    await journal.commit(Append("a", [NewEvent("said", b"again")], expected_seq=last))
    last, _ = await fill(journal, last + 1)
    await journal.close()

    (small_disk / "filler2").unlink()
    journal = await SqliteJournal.open(path, clock=FakeClock(), bus=LocalBus())
    assert await journal.head("a") == Head(first=1, last=last)
    assert [event.seq for event in await journal.read("a", limit=5000)] == list(range(1, last + 1))
    row = await journal.get("lasts", "a")
    assert row is not None
    assert int(row.value) == last
    await journal.close()


@pytest.mark.parametrize("pages", [0, 1, 2, 3, 16])
async def test_a_disk_without_room_for_a_new_journal_is_named_as_full(
    small_disk: Path, pages: int
) -> None:
    path = small_disk / "home" / "journal.sqlite3"
    with (small_disk / "filler3").open("wb", buffering=0) as filler:
        with contextlib.suppress(OSError):
            while filler.write(bytes(4096)) == 4096:
                pass
        filler.truncate(filler.tell() - pages * 4096)
    with pytest.raises(Unavailable, match=f"no room to write {path}"):
        await SqliteJournal.open(path, clock=FakeClock(), bus=LocalBus())
    (small_disk / "filler1").unlink()
    journal = await SqliteJournal.open(path, clock=FakeClock(), bus=LocalBus())
    await journal.commit(Append("a", [NewEvent("said", b"")]))
    await journal.close()


async def test_a_blob_that_does_not_fit_is_refused_and_leaves_nothing(small_disk: Path) -> None:
    blobs = DiskBlobs(small_disk / "blobs")
    kept = await blobs.put(b"small")
    with pytest.raises(Unavailable):
        await blobs.put(bytes(4_000_000))
    files = [file for file in (small_disk / "blobs").rglob("*") if file.is_file()]
    assert [file.name for file in files] == [kept.removeprefix("sha256:")]
