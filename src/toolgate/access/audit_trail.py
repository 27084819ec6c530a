"""The audit log as admission writes it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from toolgate.core.tools import JsonValue
from toolgate.evidence.audit import AuditEntry, AuditLog
from toolgate.journal.journal import Operation


@dataclass(frozen=True, slots=True)
class AuditTrail:
    audit: AuditLog

    def note(
        self,
        action: str,
        *,
        actor: str,
        resource: tuple[str, str] = ("", ""),
        metadata: Mapping[str, JsonValue] | None = None,
        redacted: bool = False,
    ) -> Sequence[Operation]:
        entry = AuditEntry(
            action=action,
            actor=actor,
            resource_type=resource[0],
            resource_id=resource[1],
            metadata=metadata or {},
        )
        return self.audit.prepare(entry, redacted=redacted)
