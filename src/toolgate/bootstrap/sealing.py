"""The key that seals the rows that may hold secrets. The first start makes it.

A lost key is not replaced unless the owner says so: the rows that it sealed are lost with it.
"""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from toolgate.commands.records import ENDED, KEYS, OPEN
from toolgate.core.errors import Damaged
from toolgate.journal.journal import Delete, Journal
from toolgate.runs.agents.registry import AGENTS
from toolgate.runs.originals import CALL_ARGS
from toolgate.secrets.aesgcm_seal import AesGcmSeal
from toolgate.tools.approval_records import ASKED_ARGS
from toolgate.tools.capability_registry import CAPABILITIES
from toolgate.tools.targets.registry import COLLECTION as TARGETS

KEY_FILE: Final = "seal.key"
LOST: Final = "seal.key.lost"  # the owner made it: there is no copy of the key
OLD: Final = "seal.key.old"  # the same file, once a new key was made

_MISSED: Final = (TARGETS, AGENTS, CAPABILITIES, OPEN, CALL_ARGS, ASKED_ARGS)
_ALSO_FORGOTTEN: Final = (ENDED, KEYS)  # answers that would be gone soon anyway, and their keys
_FORGOTTEN: Final = (
    "the next start makes another key, and forgets the targets, agents and MCP servers that were"
    " registered and the commands and calls that wait"
)


async def open_seal(home: Path, journal: Journal) -> AesGcmSeal:
    """Open or make the key. Raises Damaged if what is sealed cannot be opened."""
    sealed = [row.value for name in _MISSED for row in await journal.scan(name, limit=1)]
    seal = await asyncio.to_thread(find_seal, home, sealed)
    if seal is not None:
        return seal
    await _forget_sealed(journal)
    made = await asyncio.to_thread(AesGcmSeal.in_file, home / KEY_FILE)
    if await asyncio.to_thread((home / LOST).exists):
        await asyncio.to_thread((home / LOST).replace, home / OLD)
    return made


def find_seal(home: Path, sealed: Sequence[bytes]) -> AesGcmSeal | None:
    """The seal that opens these values; None if there is no key, and none is needed or one was given up.

    Raises Damaged if they cannot be opened, and says how to go on.
    """
    path, lost = home / KEY_FILE, home / LOST
    if not path.exists():
        if sealed and not lost.exists():
            raise Damaged(
                f"{path} is gone, and the journal holds what was sealed with it: restore the file"
                f" from a copy; where there is none, make an empty file {lost}: {_FORGOTTEN}"
            )
        return None
    seal = AesGcmSeal.in_file(path)
    for value in sealed:
        try:
            seal.open(value)
        except Damaged as wrong:
            raise Damaged(
                f"{path} is not the key of what the journal holds: restore the file, or the journal,"
                f" from a copy; where there is none, rename it to {lost}: {_FORGOTTEN}"
            ) from wrong
    return seal


async def _forget_sealed(journal: Journal) -> None:
    for name in (*_MISSED, *_ALSO_FORGOTTEN):
        while rows := await journal.scan(name):
            await journal.commit(*(Delete(row.collection, row.key) for row in rows))
