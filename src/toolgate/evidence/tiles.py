"""The evidence log as files: tiles, entry bundles and the checkpoint, as C2SP lays them out.

`TileFiles` is the directory; `TiledLog` grows it. A checkpoint is only written when all that it
vouches for is on disk, and the tiles are the tree's saved state: a start reads the right edge.
"""

import contextlib
import os
import secrets
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from toolgate.core.directories import sync_directory
from toolgate.core.errors import Damaged, Invalid, NotFound
from toolgate.evidence import checkpoints
from toolgate.evidence.checkpoints import ENTRIES, TILE_HEIGHT, TILE_WIDTH, Checkpoint, Tile
from toolgate.evidence.tree import HASH_SIZE, HashAt, Tree, leaf_hash

CHECKPOINT: Final = "checkpoint"
PUBLIC_KEY: Final = "evidence.vkey"
UNFINISHED: Final = "unfinished"  # files on their way to their place; no part of the log


class TileFiles:
    def __init__(self, root: Path) -> None:
        self.root = root

    def read(self, tile: Tile) -> bytes:
        """A tile's content; that of a partial one whose file is gone comes out of the full one."""
        with contextlib.suppress(FileNotFoundError):
            return (self.root / tile.path).read_bytes()
        try:
            whole = (self.root / Tile(tile.level, tile.index).path).read_bytes()
        except FileNotFoundError as missing:
            raise NotFound("tile", tile.path) from missing
        return first_of(tile, whole)

    def hash_at(self, size: int) -> HashAt:
        seen: dict[Tile, bytes] = {}

        def read(tile: Tile) -> bytes:
            if tile not in seen:
                seen[tile] = self.read(tile)
            if len(seen[tile]) != tile.width * HASH_SIZE:
                raise Damaged(f"{self.root / tile.path} has not the size of its tile")
            return seen[tile]

        return checkpoints.hash_at_tiles(size, read)

    def entries(self, tile: Tile) -> list[bytes]:
        records = checkpoints.decode_bundle(self.read(tile))
        if len(records) != tile.width:
            raise Invalid(f"{tile.path} holds {len(records)} records", field="bundle")
        return records

    def record(self, index: int, *, size: int) -> bytes:
        number, offset = divmod(index, TILE_WIDTH)
        return self.entries(Tile(ENTRIES, number, min(TILE_WIDTH, size - number * TILE_WIDTH)))[
            offset
        ]

    def checkpoint(self) -> str | None:
        try:
            return (self.root / CHECKPOINT).read_bytes().decode()
        except FileNotFoundError:
            return None

    def write(self, path: str, content: bytes) -> None:
        """Put a file in its place whole, or not at all, and on disk."""
        place = self.root / path
        _make_private(place.parent)
        beside = self.root / UNFINISHED / secrets.token_hex(8)
        _make_private(beside.parent)
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            beside.replace(place)
        except BaseException:
            beside.unlink(missing_ok=True)
            raise
        sync_directory(place.parent)

    def drop_partials(self, tile: Tile) -> None:
        """A full tile makes its partial ones superfluous."""
        partials = self.root / f"{Tile(tile.level, tile.index).path}.p"
        if partials.is_dir():
            shutil.rmtree(partials)

    def drop_unfinished(self) -> None:
        """Remove what a process that was killed left half written."""
        shutil.rmtree(self.root / UNFINISHED, ignore_errors=True)

    def drop_tiles(self) -> None:
        if (self.root / "tile").is_dir():
            shutil.rmtree(self.root / "tile")


class TiledLog:
    """Appends records and writes the tiles they fill; not for two threads at once."""

    def __init__(
        self,
        files: TileFiles,
        *,
        tree: Tree | None = None,
        rows: dict[int, list[bytes]] | None = None,
        entries: list[bytes] | None = None,
    ) -> None:
        self._files = files
        self._tree = tree or Tree()
        self._rows = rows or {}  # by level, the hashes of the tile that is not full yet
        self._entries = entries or []

    @classmethod
    def load(cls, files: TileFiles, checkpoint: Checkpoint) -> "TiledLog":
        """Go on from a checkpoint. Raises Damaged where the edge's tiles do not lead to it."""
        size = checkpoint.size
        try:
            tree = Tree.stored(size, files.hash_at(size))
            rows = {
                tile.level: checkpoints.split_hashes(files.read(tile))
                for tile in checkpoints.edge_tiles(size)
            }
            width = size % TILE_WIDTH
            entries = files.entries(Tile(ENTRIES, size // TILE_WIDTH, width)) if width else []
        except (NotFound, Invalid) as wrong:
            raise Damaged(f"{files.root}: {wrong}") from wrong
        if tree.root() != checkpoint.root:
            raise Damaged(f"the tiles in {files.root} do not lead to its checkpoint")
        if [leaf_hash(entry) for entry in entries] != rows.get(0, []):
            raise Damaged(f"the records in {files.root} are not those of its tiles")
        return cls(files, tree=tree, rows=rows, entries=entries)

    @property
    def size(self) -> int:
        return self._tree.size

    def root(self) -> bytes:
        return self._tree.root()

    def last_leaf(self) -> bytes | None:
        if not self.size:
            return None
        return self._files.hash_at(self.size)(0, self.size - 1)

    def append(self, record: bytes) -> None:
        completed = self._tree.append(leaf_hash(record))
        self._entries.append(record)
        if len(self._entries) == TILE_WIDTH:
            self._fill(ENTRIES, checkpoints.encode_bundle(self._entries))
            self._entries = []
        for level in range(0, len(completed), TILE_HEIGHT):
            row = level // TILE_HEIGHT
            hashes = self._rows.setdefault(row, [])
            hashes.append(completed[level])
            if len(hashes) == TILE_WIDTH:
                self._fill(row, b"".join(hashes))
                self._rows[row] = []

    def extend(self, records: Iterable[bytes]) -> None:
        for record in records:
            self.append(record)

    def flush(self) -> None:
        """Write what is not full yet, so that a checkpoint of the present size may be given."""
        if self._entries:
            tile = Tile(ENTRIES, self.size // TILE_WIDTH, len(self._entries))
            self._files.write(tile.path, checkpoints.encode_bundle(self._entries))
        for row, hashes in self._rows.items():
            if hashes:
                tile = Tile(row, self._tree.size >> (row + 1) * TILE_HEIGHT, len(hashes))
                self._files.write(tile.path, b"".join(hashes))

    def _fill(self, level: int, content: bytes) -> None:
        count = self._tree.size >> max(level, 0) * TILE_HEIGHT
        tile = Tile(level, count // TILE_WIDTH - 1)
        self._files.write(tile.path, content)
        self._files.drop_partials(tile)


def _make_private(directory: Path) -> None:
    """With its parents, on disk; `parents=True` would make those open to others."""
    if not directory.is_dir():
        _make_private(directory.parent)
        directory.mkdir(mode=0o700, exist_ok=True)
        sync_directory(directory.parent)


def first_of(tile: Tile, whole: bytes) -> bytes:
    """A partial tile's content, cut from the full one's."""
    if tile.level == ENTRIES:
        return checkpoints.encode_bundle(checkpoints.decode_bundle(whole)[: tile.width])
    return whole[: tile.width * HASH_SIZE]
