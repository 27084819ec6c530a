"""What the tests of the file share: a disk that is nearly full."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 4 MB, of which two files, `filler1` and `filler2`, take one each."""
    disk = tmp_path / "small"
    disk.mkdir()
    mount = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(disk)],
        capture_output=True,
        check=False,
    )
    if mount.returncode != 0:
        pytest.skip(f"NOT TESTED, a full disk needs root to mount one: {mount.stderr.decode()}")
    try:
        for filler in ("filler1", "filler2"):
            (disk / filler).write_bytes(bytes(1024 * 1024))
        yield disk
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)
