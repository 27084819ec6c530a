"""Blobs as files named by their content, two directories deep.

A blob is written beside its place, synced, and moved there: a name that exists is a blob that is
whole. Everything that touches the disk runs in a thread.
"""

import asyncio
import contextlib
import hashlib
import os
import re
import tempfile
from pathlib import Path
from typing import Final

from toolgate.core.directories import sync_directory
from toolgate.core.errors import Damaged, Invalid, NotFound, Unavailable

_DIGEST: Final = re.compile(r"sha256:([0-9a-f]{64})")
_UNFINISHED: Final = ".new-"
_PRIVATE_DIRECTORY: Final = 0o700
_PRIVATE_FILE: Final = 0o600


class DiskBlobs:
    def __init__(self, root: Path) -> None:
        self._root = root

    async def sweep(self) -> None:
        """Delete what was being put when the process died; nobody may put meanwhile."""
        await asyncio.to_thread(self._sweep)

    async def put(self, content: bytes) -> str:
        return await asyncio.to_thread(self._put, content)

    async def get(self, digest: str, *, offset: int = 0, length: int | None = None) -> bytes:
        if offset < 0 or (length is not None and length < 0):
            raise Invalid("offset and length of a blob must not be negative")
        return await asyncio.to_thread(self._get, digest, offset, length)

    async def size(self, digest: str) -> int:
        return await asyncio.to_thread(self._size, digest)

    async def delete(self, digest: str) -> None:
        await asyncio.to_thread(self._delete, digest)

    def _place(self, digest: str) -> Path:
        match = _DIGEST.fullmatch(digest)
        if match is None:
            raise NotFound("blob", digest)
        name = match[1]
        return self._root / name[:2] / name[2:4] / name

    def _sweep(self) -> None:
        for left in self._root.glob(f"{_UNFINISHED}*"):
            with contextlib.suppress(OSError):  # it costs room, and no more than that
                left.unlink()

    def _put(self, content: bytes) -> str:
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        place = self._place(digest)
        try:
            if not (place.is_file() and place.stat().st_size == len(content)):
                _write(content, place, root=self._root)
            # Also where the blob was there: whoever put it may have died before this.
            sync_directory(place.parent)
        except OSError as failed:
            raise Unavailable(f"cannot store a blob in {self._root}: {failed.strerror}") from failed
        return digest

    def _get(self, digest: str, offset: int, length: int | None) -> bytes:
        place = self._place(digest)
        try:
            with place.open("rb") as file:
                file.seek(offset)
                content = file.read() if length is None else file.read(length)
                whole = offset == 0 and len(content) == os.fstat(file.fileno()).st_size
        except FileNotFoundError as missing:
            raise NotFound("blob", digest) from missing
        except OSError as failed:
            raise Unavailable(f"cannot read blob {digest}: {failed.strerror}") from failed
        if whole and hashlib.sha256(content).hexdigest() != place.name:
            raise Damaged(f"blob {digest} is not what it was: restore {place} from a copy")
        return content

    def _size(self, digest: str) -> int:
        try:
            return self._place(digest).stat().st_size
        except FileNotFoundError as missing:
            raise NotFound("blob", digest) from missing
        except OSError as failed:
            raise Unavailable(f"cannot read blob {digest}: {failed.strerror}") from failed

    def _delete(self, digest: str) -> None:
        try:
            self._place(digest).unlink(missing_ok=True)
        except OSError as failed:
            raise Unavailable(f"cannot delete blob {digest}: {failed.strerror}") from failed


def _write(content: bytes, place: Path, *, root: Path) -> None:
    _make_directory(place.parent)
    descriptor, name = tempfile.mkstemp(prefix=_UNFINISHED, dir=root)  # mode 0600
    beside = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(file.fileno(), _PRIVATE_FILE)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(place)
    except BaseException:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise


def _make_directory(directory: Path) -> None:
    """With those above it, each of them on disk before there is something in it."""
    if not directory.is_dir():
        _make_directory(directory.parent)
        directory.mkdir(mode=_PRIVATE_DIRECTORY, exist_ok=True)
        sync_directory(directory.parent)
