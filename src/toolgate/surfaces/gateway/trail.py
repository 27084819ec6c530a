"""The audit log as admission writes it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from toolgate.domain.redaction import is_sensitive
from toolgate.domain.tools import JsonValue
from toolgate.execution.audit import AuditEntry, AuditLog
from toolgate.ports.journal import Operation


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
    ) -> Sequence[Operation]:
        entry = AuditEntry(
            action=action,
            actor=actor,
            resource_type=resource[0],
            resource_id=resource[1],
            metadata=metadata or {},
        )
        return self.audit.prepare(entry, redacted=self._is_clean(entry))

    def _is_clean(self, entry: AuditEntry) -> bool:
        """Whether nothing is to be masked: one look at all of it, for what is mostly so."""
        texts = [entry.action, entry.actor, entry.resource_type, entry.resource_id]
        for name, value in entry.metadata.items():
            if is_sensitive(name) or isinstance(value, dict | list):
                return False
            if isinstance(value, str):
                texts.append(value)
        return self.audit.is_clean("\0".join(texts))
