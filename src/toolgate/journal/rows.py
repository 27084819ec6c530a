"""Writing one row when only its newest value counts."""

from typing import Final

from toolgate.core.errors import Conflict
from toolgate.journal.journal import Journal, Operation, Put

ATTEMPTS: Final = 5  # commits; each loses only to a change made since its own read


async def version_of(journal: Journal, collection: str, key: str) -> int:
    """Read a row's version; 0 where there is no such row."""
    row = await journal.get(collection, key)
    return 0 if row is None else row.version


async def store(
    journal: Journal,
    collection: str,
    key: str,
    value: bytes,
    *also: Operation,
    due: int | None = None,
) -> None:
    """Write a row over its newest version, in one commit with `also`.

    Raises Conflict if the row changed before each of the commits, or if `also` does not hold.
    """
    for attempt in range(1, ATTEMPTS + 1):
        expected = await version_of(journal, collection, key)
        try:
            await journal.commit(Put(collection, key, value, expected, due), *also)
        except Conflict:
            if attempt == ATTEMPTS:
                raise
        else:
            return
