"""Blobs on disk: named by their content, whole or not there."""

import asyncio
import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from toolgate.core.errors import Damaged, Invalid, NotFound, Unavailable
from toolgate.journal.disk_blobs import DiskBlobs

MISSING = f"sha256:{'0' * 64}"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "blobs"


@pytest.fixture
def blobs(root: Path) -> DiskBlobs:
    return DiskBlobs(root)


def files(root: Path) -> list[Path]:
    return [file for file in root.rglob("*") if file.is_file()]


async def test_a_blob_is_named_by_its_content_and_comes_back_whole(blobs: DiskBlobs) -> None:
    for content in (b"", b"hello", bytes(range(256)) * 5000):
        digest = await blobs.put(content)
        assert digest == f"sha256:{hashlib.sha256(content).hexdigest()}"
        assert await blobs.get(digest) == content
        assert await blobs.size(digest) == len(content)


async def test_a_part_of_a_blob_can_be_read(blobs: DiskBlobs) -> None:
    digest = await blobs.put(b"0123456789")
    assert await blobs.get(digest, offset=3, length=4) == b"3456"
    assert await blobs.get(digest, offset=8) == b"89"
    assert await blobs.get(digest, offset=8, length=50) == b"89"
    assert await blobs.get(digest, offset=50) == b""
    assert await blobs.get(digest, length=0) == b""
    with pytest.raises(Invalid):
        await blobs.get(digest, offset=-1)


async def test_the_same_content_is_stored_once_however_many_put_it_at_once(
    blobs: DiskBlobs, root: Path
) -> None:
    digests = await asyncio.gather(*(blobs.put(b"same" * 1000) for _ in range(16)))
    assert len(set(digests)) == 1
    assert len(files(root)) == 1


async def test_blobs_are_their_owners_alone(blobs: DiskBlobs, root: Path) -> None:
    await blobs.put(b"secret")
    (file,) = files(root)
    assert file.stat().st_mode & 0o777 == 0o600
    for directory in (file.parent, file.parent.parent, root):
        assert directory.stat().st_mode & 0o777 == 0o700
    assert file.relative_to(root).parts[:2] == (file.name[:2], file.name[2:4])


async def test_the_first_blob_is_on_disk_with_every_directory_that_was_made_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: set[Path] = set()
    sync = os.fsync

    def noted(descriptor: int) -> None:
        synced.add(Path(f"/proc/self/fd/{descriptor}").readlink())
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    root = tmp_path / "blobs" / "tasks"
    await DiskBlobs(root).put(b"first")
    (file,) = files(root)
    for directory in (file.parent, file.parent.parent, root, root.parent):
        assert directory.stat().st_mode & 0o777 == 0o700
        assert {directory, directory.parent} <= synced


@pytest.mark.parametrize("digest", [MISSING, "sha256:", "", "sha256:../../etc/passwd", "x" * 71])
async def test_what_is_not_there_is_not_found(blobs: DiskBlobs, digest: str) -> None:
    with pytest.raises(NotFound):
        await blobs.get(digest)
    with pytest.raises(NotFound):
        await blobs.size(digest)


async def test_content_that_changed_on_disk_is_damaged(blobs: DiskBlobs, root: Path) -> None:
    digest = await blobs.put(b"as it was")
    (file,) = files(root)
    file.write_bytes(b"as it is!")
    with pytest.raises(Damaged):
        await blobs.get(digest)


async def test_a_blob_that_lost_its_end_is_stored_anew(blobs: DiskBlobs, root: Path) -> None:
    digest = await blobs.put(b"as it was")
    (file,) = files(root)
    file.write_bytes(b"as")
    assert await blobs.put(b"as it was") == digest
    assert await blobs.get(digest) == b"as it was"


async def test_a_deleted_blob_is_gone_and_deleting_again_is_fine(blobs: DiskBlobs) -> None:
    digest = await blobs.put(b"gone soon")
    await blobs.delete(digest)
    await blobs.delete(digest)
    with pytest.raises(NotFound):
        await blobs.get(digest)


async def test_what_a_killed_process_was_putting_is_swept_and_nothing_else(
    blobs: DiskBlobs, root: Path
) -> None:
    await blobs.sweep()  # before there is anything
    digest = await blobs.put(b"whole")
    script = (
        "import os, signal, sys; from pathlib import Path\n"
        "from toolgate.journal.disk_blobs import DiskBlobs; import asyncio\n"
        "Path.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\n"
        "asyncio.run(DiskBlobs(Path(sys.argv[1])).put(b'half'))"
    )
    subprocess.run([sys.executable, "-c", script, str(root)], check=False)
    assert len(files(root)) == 2
    await DiskBlobs(root).sweep()
    assert [file.name for file in files(root)] == [digest.removeprefix("sha256:")]
    assert await blobs.get(digest) == b"whole"


async def test_a_place_that_cannot_be_written_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(Unavailable):
        await DiskBlobs(tmp_path / "file" / "blobs").put(b"hello")
