"""Takes up the evidence log, at a start and after publishing has failed.

It goes on as it was left, or is made again from the journal where its tiles are lost. What was
signed and what the journal has must agree; no tile is touched where they do not.
"""

import asyncio
import logging
from collections.abc import AsyncIterator

from toolgate.core.errors import Damaged, Invalid
from toolgate.evidence import checkpoints
from toolgate.evidence import tree as evidence
from toolgate.evidence.checkpoints import Checkpoint, VerifierKey
from toolgate.evidence.evidence import STREAM, record_of
from toolgate.evidence.signer import check_signature
from toolgate.evidence.tiles import TiledLog, TileFiles
from toolgate.journal.journal import Journal

log = logging.getLogger(__name__)


async def take_up(files: TileFiles, journal: Journal, *, key: VerifierKey, page: int) -> TiledLog:
    """The log in this directory. Raises Damaged where what was signed is not what the journal has."""
    await asyncio.to_thread(files.drop_unfinished)
    note = await asyncio.to_thread(files.checkpoint)
    if note is None:
        return TiledLog(files)
    try:
        checkpoint = checkpoints.open_checkpoint(note, key=key, check=check_signature)
    except Invalid as wrong:
        raise _untrusted(files, f"its checkpoint: {wrong}") from wrong
    head = await journal.head(STREAM)
    if head.last < checkpoint.size:
        raise _untrusted(
            files, f"it vouches for {checkpoint.size} records, the journal has {head.last}"
        )
    try:
        published = await asyncio.to_thread(TiledLog.load, files, checkpoint)
    except Damaged as damaged:
        log.warning("evidence_rebuilt size=%d reason=%s", checkpoint.size, damaged)
        return await _rebuild(files, journal, checkpoint, page=page)
    newest = await journal.read(STREAM, after=checkpoint.size - 1, limit=1)
    if checkpoint.size and newest and newest[0].seq == checkpoint.size:
        last = await asyncio.to_thread(published.last_leaf)
        if evidence.leaf_hash(record_of(newest[0].data)) != last:
            raise _untrusted(files, f"record {checkpoint.size - 1} is another in the journal")
    return published


async def _rebuild(
    files: TileFiles, journal: Journal, checkpoint: Checkpoint, *, page: int
) -> TiledLog:
    """The same tiles again; that they lead to what was signed is checked before any is replaced."""
    tree = evidence.Tree()
    async for records in _pages(journal, through=checkpoint.size, page=page):
        for record in records:
            tree.append(evidence.leaf_hash(record))
    if tree.size != checkpoint.size or tree.root() != checkpoint.root:
        raise _untrusted(files, "the journal's records do not lead to its checkpoint")
    await asyncio.to_thread(files.drop_tiles)
    rebuilt = TiledLog(files)
    async for records in _pages(journal, through=checkpoint.size, page=page):
        await asyncio.to_thread(rebuilt.extend, records)
    await asyncio.to_thread(rebuilt.flush)
    return rebuilt


async def _pages(journal: Journal, *, through: int, page: int) -> AsyncIterator[list[bytes]]:
    seq = 0
    while seq < through:
        events = await journal.read(STREAM, after=seq, limit=min(page, through - seq))
        if not events or events[0].seq != seq + 1:
            return  # forgotten; the caller sees that they are too few
        yield [record_of(event.data) for event in events]
        seq = events[-1].seq


def _untrusted(files: TileFiles, why: str) -> Damaged:
    return Damaged(
        f"the evidence in {files.root} and the journal do not agree ({why}): keep both for whoever"
        " must look into it; move the directory and keys/evidence.key away to begin a new log"
    )
