"""The audit log and the evidence, as admission sees them: what goes into the commit it is about."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from toolgate.core.tools import JsonValue
from toolgate.evidence.evidence import Scalar
from toolgate.journal.journal import Operation


class Trail(Protocol):
    def note(
        self,
        action: str,
        *,
        actor: str,
        resource: tuple[str, str] = ("", ""),
        metadata: Mapping[str, JsonValue] | None = None,
        redacted: bool = False,
    ) -> Sequence[Operation]:
        """The operations that write one row, redacted, unless the caller has done so already."""
        ...


class Records(Protocol):
    def prepare(
        self, kind: str, fields: Mapping[str, Scalar], *, subject: str = ""
    ) -> Sequence[Operation]:
        """The operations that write one record, redacted: a leaf of the evidence log."""
        ...

    def commitment(self, content: bytes) -> str:
        """What stands for a content that must not be written down, keyed: `<how>:<hex>`."""
        ...
