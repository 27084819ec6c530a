"""The files of the evidence log: what a checkpoint vouches for is on disk before it is."""

import os
from pathlib import Path

import pytest

from toolgate.evidence.checkpoints import TILE_WIDTH
from toolgate.evidence.tiles import CHECKPOINT, TiledLog, TileFiles


def test_each_tile_has_its_name_on_disk_before_the_next_file_is_put_in_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a power cut may leave a checkpoint, and take a tile that it stands on."""
    unsynced: set[Path] = set()  # directories in which a name is new
    fsync, replace, mkdir = os.fsync, Path.replace, Path.mkdir

    def synced(descriptor: int) -> None:
        fsync(descriptor)
        unsynced.discard(Path(f"/proc/self/fd/{descriptor}").readlink())

    def replaced(self: Path, target: Path) -> Path:
        assert not unsynced
        unsynced.add(target.parent)
        return replace(self, target)

    def made(self: Path, mode: int, exist_ok: bool) -> None:
        unsynced.add(self.parent)
        mkdir(self, mode=mode, exist_ok=exist_ok)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "replace", replaced)
    monkeypatch.setattr(Path, "mkdir", made)
    files = TileFiles(tmp_path / "evidence")
    log = TiledLog(files)
    log.extend(b"%d" % number for number in range(TILE_WIDTH + 1))
    log.flush()
    files.write(CHECKPOINT, b"signed")
    assert not unsynced
    assert files.checkpoint() == "signed"
    assert log.size == TILE_WIDTH + 1
