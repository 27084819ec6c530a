"""What was decided and what came of it, kept so that anyone can check it later.

A record is a leaf of the evidence log. It is written in the same commit as what it accompanies:
`prepare` gives the operations, the caller commits them with its own. An artifact is a larger
document that a record names by its digest.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from toolgate.domain.tools import JsonValue
from toolgate.ports.journal import Operation

STREAM: Final = "evidence"  # the record with number `seq` in it is leaf `seq - 1`

Scalar = str | int | bool | None


@dataclass(frozen=True, slots=True)
class Artifact:
    """A document that was stored, and is there for all once its record is committed."""

    ref: str  # requests/<request_id>/<artifact>.json
    digest: str  # sha256:<hex> of the redacted content
    size: int
    inline: bytes | None  # small ones travel with the commit; None: it is in the blobs


class Evidence(Protocol):
    async def store(self, ref: str, value: JsonValue, *, redacted: bool = False) -> Artifact:
        """Redact and keep a document; it stays unseen until a record with it is committed.

        With `redacted` the caller has done so already, for ref and value both.

        Raises Invalid where the ref cannot be one, Unavailable where the disk refuses.
        """
        ...

    def prepare(
        self,
        kind: str,
        fields: Mapping[str, Scalar],
        *,
        subject: str = "",
        artifacts: Sequence[Artifact] = (),
        redacted: bool = False,
    ) -> list[Operation]:
        """The operations that write one record, redacted; they conflict where a ref is taken."""
        ...

    async def record(
        self,
        kind: str,
        fields: Mapping[str, Scalar],
        *,
        subject: str = "",
        artifacts: Sequence[Artifact] = (),
        with_operations: Sequence[Operation] = (),
    ) -> int:
        """Commit one record, and the operations with it; return its index in the log."""
        ...

    async def fetch(self, ref: str) -> bytes:
        """An artifact's content. Raises NotFound, Damaged."""
        ...

    def commitment(self, value: JsonValue) -> str:
        """What stands in a record for a value that must not: equal for equal values only."""
        ...
