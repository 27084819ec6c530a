"""What is written down of a command: its events, and its row in the audit."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from toolgate.access.audit import Records as Evidence
from toolgate.access.audit import Trail
from toolgate.commands.reading import Asked, Entered, name_of
from toolgate.contracts import gateway_v1 as wire
from toolgate.contracts.wire import to_iso_ms
from toolgate.core.clock import Clock
from toolgate.core.enums import CommandKind
from toolgate.core.tools import JsonValue
from toolgate.journal.journal import Append, NewEvent, Operation
from toolgate.tools.updates import Piece

STREAM: Final = "gateway"  # what /events/poll reads
EVENT_TYPES: Final = {
    CommandKind.AGENT: wire.EventType.AGENT,
    CommandKind.TOOL: wire.EventType.TOOL,
    CommandKind.SYSTEM: wire.EventType.TOOL,
    CommandKind.MCP: wire.EventType.MCP,
}
_ACTIONS: Final = {kind: f"command.{kind}" for kind in CommandKind}
_UNTIMED: Final = frozenset({wire.EventStatus.STARTED, wire.EventStatus.PENDING})


class _Metadata(msgspec.Struct, rename="camel"):
    request_id: str
    command: CommandKind
    trace_id: str
    at: str | msgspec.UnsetType = msgspec.UNSET  # of a running tool's output (ISO 8601, UTC)


class _Told(msgspec.Struct, rename="camel"):
    """The data of an event; its type, time and id are the journal's."""

    status: wire.EventStatus
    source: str
    message: str
    metadata: _Metadata
    duration_ms: int | msgspec.UnsetType = msgspec.UNSET


def gateway_event(
    kind: wire.EventType,
    status: wire.EventStatus,
    message: str,
    *,
    source: str = "gateway",
    duration_ms: int | None = None,
    metadata: dict[str, Any] | None = None,
) -> Append:
    body: dict[str, Any] = {"status": status, "source": source, "message": message}
    if duration_ms is not None:
        body["durationMs"] = duration_ms
    body["metadata"] = metadata or {}
    return Append(STREAM, [NewEvent(kind, wire.encode(body))])


@dataclass(frozen=True, slots=True)
class Records:
    trail: Trail
    evidence: Evidence
    clock: Clock
    redact: Callable[[str], str]

    def begin(
        self, entered: Entered, name: str, capabilities: Sequence[str]
    ) -> tuple[Operation, ...]:
        """That it has started, and its row; one search for secrets does for all there is of it."""
        needed = ",".join(capabilities)
        texts = (
            entered.identity.name,
            name,
            entered.request_id,
            entered.trace_id,
            entered.key,
            needed,
        )
        names = "\0".join(texts)
        entered.is_clean = self.redact(names) == names
        started = self.event(entered, name, wire.EventStatus.STARTED)
        return (started, *self.row(entered, needed))

    def event(self, entered: Entered, name: str, status: wire.EventStatus) -> Append:
        source, request_id, trace_id = entered.identity.name, entered.request_id, entered.trace_id
        if not entered.is_clean:  # the caller chose them
            source, name, request_id, trace_id = map(
                self.redact, (source, name, request_id, trace_id)
            )
        told = _Told(
            status, source, f"{name} {status}", _Metadata(request_id, entered.kind, trace_id)
        )
        if status not in _UNTIMED:
            took = int((self.clock.monotonic() - entered.started) * 1000)
            told.duration_ms = max(0, took)
        return Append(STREAM, (NewEvent(EVENT_TYPES[entered.kind], wire.encode(told)),))

    def updates(self, entered: Entered, pieces: Sequence[Piece]) -> Append:
        """Output of a tool that the command runs."""
        source, request_id, trace_id = entered.identity.name, entered.request_id, entered.trace_id
        if not entered.is_clean:
            source, request_id, trace_id = map(self.redact, (source, request_id, trace_id))
        events = [
            _Told(
                wire.EventStatus.RUNNING,
                source,
                piece.text,
                _Metadata(request_id, entered.kind, trace_id, to_iso_ms(piece.at)),
            )
            for piece in pieces
        ]
        kind = wire.EventType.TOOL  # also of an MCP command: it is its tool that speaks
        return Append(STREAM, [NewEvent(kind, wire.encode(event)) for event in events])

    def row(self, entered: Entered, needed: str = "", *, code: str = "") -> Sequence[Operation]:
        """`needed` are the capabilities, where they are known."""
        # Keyed, for it is of the body as it is: a secret in it could be guessed else.
        keyed = self.evidence.commitment(entered.request_hash.encode())
        metadata: dict[str, JsonValue] = {
            "deviceId": entered.identity.name,
            "capabilityId": needed or name_of(entered),
            "idempotencyKey": entered.key or None,
            "requestHash": keyed.rpartition(":")[2],
            "requestId": entered.request_id,
            "traceId": entered.trace_id,
            "decision": "deny" if code else "allow",
        }
        if code:
            metadata["code"] = code
        return self.trail.note(
            _ACTIONS[entered.kind],
            actor=entered.identity.name,
            resource=("command", entered.command_id),
            metadata=metadata,
            redacted=entered.is_clean,
        )

    def unread_row(self, asked: Asked, *, code: str, trace_id: str) -> Sequence[Operation]:
        who = asked.identity.name
        metadata: dict[str, JsonValue] = {
            "deviceId": who,
            "decision": "deny",
            "code": code,
            "traceId": trace_id,
        }
        return self.trail.note(_ACTIONS[asked.kind], actor=who, metadata=metadata)
