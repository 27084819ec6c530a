"""That somebody's right was taken away: a row in the commit that takes it."""

from typing import Final

from toolgate.journal.journal import Put

REVOCATIONS: Final = "revocations"  # by the name of whose right has ended
REASON: Final = "the right to this was taken away from whoever asked for it"


def revocation(name: str, *, now: int) -> Put:
    return Put(REVOCATIONS, name, b"null", due=now)


async def no_runs(_: str) -> None:
    """For where nobody's commands start any."""
