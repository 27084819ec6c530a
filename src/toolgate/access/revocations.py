"""The row that a caller's right has ended, written in the commit that ends it."""

from typing import Final

from toolgate.journal.journal import Journal, Put
from toolgate.journal.rows import version_of

REVOCATIONS: Final = "revocations"  # by the name of whose right has ended
REASON: Final = "the right to this was taken away from whoever asked for it"


async def revocation(journal: Journal, name: str, *, now: int) -> Put:
    """Return the write of a revocation, over one that was not carried out yet."""
    expected = await version_of(journal, REVOCATIONS, name)
    return Put(REVOCATIONS, name, b"null", expected=expected, due=now)
