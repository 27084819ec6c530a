"""Artifacts of runs: result JSON, screenshots, PDFs, downloads; read in chunks.

An artifact is a row that names a blob by its content. When its time is over the blob goes and the
row stays as a tombstone, so that a late reader hears "expired" and not "unknown".
"""

import asyncio
import base64
import logging
from collections import Counter
from dataclasses import dataclass
from typing import Final

import msgspec

from toolgate.core.clock import Clock
from toolgate.core.enums import TaskCode
from toolgate.core.errors import Conflict, Damaged, NotFound, Unavailable
from toolgate.core.ids import NewId
from toolgate.journal.blobs import Blobs
from toolgate.journal.journal import Delete, Journal, Operation, Put
from toolgate.journal.paging import all_rows
from toolgate.tasks.state import (
    ARTIFACT_TTL_MS,
    CHUNK_LIMIT,
    OPERATOR,
    TaskFailed,
    cut_chunk,
    may_see,
)

log = logging.getLogger(__name__)

COLLECTION: Final = "task_artifacts"
TOMBSTONE_MS: Final = 7 * ARTIFACT_TTL_MS
_TEXTS: Final = ("text/", "application/json")


class Artifact(msgspec.Struct, frozen=True):
    artifact_id: str
    run_id: str
    name: str
    mime_type: str
    size: int
    digest: str  # empty once it has expired
    created_at: int
    ended_at: int = 0  # of its run; its time counts from here
    owner: str = OPERATOR

    @property
    def expires_at(self) -> int:
        return (self.ended_at or self.created_at) + ARTIFACT_TTL_MS

    @property
    def is_text(self) -> bool:
        return self.mime_type.startswith(_TEXTS)


@dataclass(frozen=True, slots=True)
class Chunk:
    artifact: Artifact
    offset: int
    length: int
    data: str
    complete: bool


_decode: Final = msgspec.json.Decoder(Artifact).decode


class Artifacts:
    def __init__(self, *, journal: Journal, blobs: Blobs, clock: Clock, new_id: NewId) -> None:
        self._journal = journal
        self._blobs = blobs
        self._clock = clock
        self._new_id = new_id
        self._dropping = asyncio.Lock()
        self._keeping = 0  # how many are being kept now
        self._kept: set[str] = set()  # the digests of those since the last sweep began

    async def keep(
        self, content: bytes, *, run_id: str, name: str, mime_type: str, owner: str = OPERATOR
    ) -> Artifact:
        """Store the bytes and the row; both are on disk when this returns."""
        async with self._dropping:  # not while a blob goes that may have the same content
            self._keeping += 1
        try:
            artifact = Artifact(
                artifact_id=self._new_id("art"),
                run_id=run_id,
                name=name,
                mime_type=mime_type,
                size=len(content),
                digest=await self._blobs.put(content),
                created_at=self._clock.now_ms(),
                owner=owner,
            )
            await self._journal.commit(_put(artifact, expected=0))
            self._kept.add(artifact.digest)
        finally:
            self._keeping -= 1
        return artifact

    async def get(self, artifact_id: str, *, viewer: str = OPERATOR) -> Artifact:
        """Raises TaskFailed where it is unknown, not the viewer's, or no longer kept."""
        row = await self._journal.get(COLLECTION, artifact_id)
        artifact = None if row is None else _decode(row.value)
        if artifact is None or not may_see(viewer, artifact.owner):
            raise TaskFailed(TaskCode.ARTIFACT_NOT_FOUND, f"there is no artifact {artifact_id}")
        if not artifact.digest or self._clock.now_ms() >= artifact.expires_at:
            raise TaskFailed(TaskCode.ARTIFACT_EXPIRED, f"{artifact_id} is no longer kept")
        return artifact

    async def read(self, artifact_id: str) -> bytes:
        """All of it."""
        artifact = await self.get(artifact_id)
        try:
            return await self._blobs.get(artifact.digest)
        except NotFound as gone:
            raise TaskFailed(TaskCode.ARTIFACT_EXPIRED, f"{artifact_id} is gone") from gone

    async def chunk(
        self, artifact_id: str, *, offset: int, length: int, viewer: str = OPERATOR
    ) -> Chunk:
        artifact = await self.get(artifact_id, viewer=viewer)
        length = min(length, CHUNK_LIMIT)
        if length == 0 or offset >= artifact.size:
            return Chunk(artifact, offset, 0, "", complete=offset >= artifact.size)
        before = min(offset, 3) if artifact.is_text else 0
        try:
            window = await self._blobs.get(
                artifact.digest, offset=offset - before, length=before + length + 4
            )
        except NotFound as gone:
            raise TaskFailed(TaskCode.ARTIFACT_EXPIRED, f"{artifact_id} is gone") from gone
        if len(window) < min(before + length + 4, artifact.size - offset + before):
            raise Damaged(f"{artifact_id} has lost some of its bytes on disk")
        cut = cut_chunk(
            window,
            window_at=offset - before,
            offset=offset,
            total=artifact.size,
            limit=length,
            text=artifact.is_text,
        )
        start = cut.offset - (offset - before)
        piece = window[start : start + cut.length]
        data = piece.decode() if artifact.is_text else base64.b64encode(piece).decode()
        return Chunk(artifact, cut.offset, cut.length, data, cut.complete)

    async def ended(self, artifact_ids: tuple[str, ...], *, at: int) -> list[Operation]:
        """Operations for the commit of a run's end: its artifacts are kept from then on."""
        operations: list[Operation] = []
        for artifact_id in dict.fromkeys(artifact_ids):  # each row is written once
            row = await self._journal.get(COLLECTION, artifact_id)
            if row is not None:
                ended = msgspec.structs.replace(_decode(row.value), ended_at=at)
                operations.append(_put(ended, expected=row.version))
        return operations

    async def sweep(self) -> int:
        """Turn what has expired into tombstones, and drop old tombstones; returns how many."""
        now = self._clock.now_ms()
        self._kept.clear()
        everything = [
            (_decode(row.value), row.version) async for row in all_rows(self._journal, COLLECTION)
        ]
        in_use = Counter(a.digest for a, _ in everything if a.digest and now < a.expires_at)
        changed = 0
        for artifact, version in everything:
            change: Operation
            if now >= artifact.expires_at + TOMBSTONE_MS:
                change = Delete(COLLECTION, artifact.artifact_id, expected=version)
                changed += await self._change(change)
            elif artifact.digest and now >= artifact.expires_at:
                async with self._dropping:
                    if self._keeping or artifact.digest in self._kept:
                        continue  # it may be the same content: the next sweep knows
                    # The bytes first: once the row has lost their name, nobody finds them.
                    if not in_use[artifact.digest]:  # another artifact may have the same content
                        try:
                            await self._blobs.delete(artifact.digest)
                        except Unavailable as refused:  # the next sweep tries again
                            log.warning("artifact_not_deleted error=%s", refused)
                            continue
                    change = _put(msgspec.structs.replace(artifact, digest=""), expected=version)
                    changed += await self._change(change)
        return changed

    async def _change(self, change: Operation) -> bool:
        try:
            await self._journal.commit(change)
        except Conflict:  # changed since it was read: the next sweep reads it again
            return False
        return True


def _put(artifact: Artifact, *, expected: int) -> Put:
    return Put(COLLECTION, artifact.artifact_id, msgspec.json.encode(artifact), expected)
