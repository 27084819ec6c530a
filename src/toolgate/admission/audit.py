"""The audit log, as admission sees it: rows that go into the commit of what they are about."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from toolgate.domain.tools import JsonValue
from toolgate.ports.journal import Operation


class Trail(Protocol):
    def note(
        self,
        action: str,
        *,
        actor: str,
        resource: tuple[str, str] = ("", ""),
        metadata: Mapping[str, JsonValue] | None = None,
    ) -> Sequence[Operation]:
        """The operations that write one row, redacted."""
        ...
