"""An audit for tests that do not look at it."""

from collections.abc import Mapping, Sequence

from toolgate.domain.tools import JsonValue
from toolgate.ports.journal import Operation


class SilentAudit:
    def note(
        self,
        action: str,
        *,
        actor: str,
        resource: tuple[str, str] = ("", ""),
        metadata: Mapping[str, JsonValue] | None = None,
    ) -> Sequence[Operation]:
        return ()
