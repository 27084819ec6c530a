"""What was decided and what came of it, kept so that anyone can check it later.

A record is a leaf of the evidence log. It is written in the same commit as what it accompanies:
`prepare` and `of_call` give the operations, the caller commits them with its own. An artifact is a
larger document that a record of a call names by its digest, and is there for all once the record
is; a small one stands behind the record, in its event.
"""

from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from toolgate.journal.journal import Operation

# The record with number `seq` in it is leaf `seq - 1`; its event's data is that of `record_of`.
STREAM: Final = "evidence"

Scalar = str | int | bool | None


def record_of(data: bytes) -> bytes:
    """The record in the data of an event of STREAM; after it, each on a line, come its artifacts."""
    return data.partition(b"\n")[0]


class Evidence(Protocol):
    async def of_call(
        self, kind: str, fields: object, *, call_id: str, contents: Mapping[str, bytes]
    ) -> Operation:
        """The operation that writes one record of a tool call, and its artifacts by their names.

        For what is known to hold no secret: `fields` is a struct of texts and whole numbers, its
        members in the order of their names, and each content was made by `canonical`. An artifact
        is at `requests/<call_id>/<name>.json`; that this is given once is for the caller to see to,
        who commits a row that conflicts otherwise. Raises Unavailable where the disk refuses.
        """
        ...

    def canonical(self, value: object) -> bytes:
        """The one way to write a value down: JSON, sorted, on one line."""
        ...

    def prepare(
        self, kind: str, fields: Mapping[str, Scalar], *, subject: str = ""
    ) -> list[Operation]:
        """The operations that write one record, redacted."""
        ...

    async def record(
        self,
        kind: str,
        fields: Mapping[str, Scalar],
        *,
        subject: str = "",
        with_operations: Sequence[Operation] = (),
    ) -> int:
        """Commit one record, and the operations with it; return its index in the log."""
        ...

    async def fetch(self, ref: str) -> bytes:
        """An artifact's content. Raises NotFound, Damaged."""
        ...

    def commitment(self, content: bytes) -> str:
        """What stands in a record for a content that must not: equal for equal ones only."""
        ...
