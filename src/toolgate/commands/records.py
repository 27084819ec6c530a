"""The records of a command: its row in the journal, its events, its row in the audit.

The row is in `open_commands` from the command's begin to its end, and then in `commands`, under one
key. An unkeyed command of one call has no row while it runs.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from toolgate.access.audit import Records as Evidence
from toolgate.access.audit import Trail
from toolgate.access.devices import Scope
from toolgate.commands.answers import Code, Problem, failure
from toolgate.commands.plans import Command, RawCommand, Waiting, name_of, row_key
from toolgate.contracts import gateway_v1 as wire
from toolgate.contracts.wire import to_iso_ms
from toolgate.core.clock import Clock
from toolgate.core.enums import CommandKind, Outcome
from toolgate.core.ids import Owner
from toolgate.core.tools import JsonValue
from toolgate.journal.journal import Append, Journal, NewEvent, Operation, Put, Row
from toolgate.secrets.seal import Seal
from toolgate.tools.updates import Piece

OPEN: Final = "open_commands"
ENDED: Final = "commands"
KEYS: Final = "idempotency"  # by `slot_of`: the key of the row of the command that has a key
ENDED_KEPT_MS: Final = 24 * 3600 * 1000
KEY_KEPT_MS: Final = 600_000  # gateway contract: 600 s after the answer
STREAM: Final = "gateway"  # what /events/poll reads
EVENT_TYPES: Final = {
    CommandKind.AGENT: wire.EventType.AGENT,
    CommandKind.TOOL: wire.EventType.TOOL,
    CommandKind.SYSTEM: wire.EventType.TOOL,
    CommandKind.MCP: wire.EventType.MCP,
}
_ACTIONS: Final = {kind: f"command.{kind}" for kind in CommandKind}


class _Metadata(msgspec.Struct, rename="camel"):
    request_id: str
    command: CommandKind
    trace_id: str
    at: str | msgspec.UnsetType = msgspec.UNSET  # of a running tool's output (ISO 8601, UTC)


class _EventData(msgspec.Struct, rename="camel"):
    """The data of an event; type, time and id are members of the journal's event."""

    status: wire.EventStatus
    source: str
    message: str
    metadata: _Metadata
    duration_ms: int = 0


def gateway_event(
    kind: wire.EventType,
    status: wire.EventStatus,
    message: str,
    *,
    source: str = "gateway",
    duration_ms: int = 0,
    metadata: dict[str, Any] | None = None,
) -> Append:
    body: dict[str, Any] = {"status": status, "source": source, "message": message}
    body["durationMs"] = duration_ms
    body["metadata"] = metadata or {}
    return Append(STREAM, [NewEvent(kind, wire.encode(body))])


class OpenCommand(msgspec.Struct, frozen=True, omit_defaults=True):
    """A command that has begun and has not ended."""

    kind: CommandKind
    who: str
    raw: bytes
    command_id: str
    request_id: str
    key: str
    request_hash: str
    trace_id: str
    at: int
    owner: str = ""
    scope: Scope | None = None  # of the caller at the begin: the calls are the same with it only
    approval_id: str = ""  # this and the run are what the command waits for
    run_id: str = ""
    ran: bytes = b""  # `Waiting.ran`

    @property
    def row_key(self) -> str:
        return row_key(self.who, self.request_id, self.command_id)


class EndedCommand(msgspec.Struct, frozen=True, omit_defaults=True):
    """A command's answer."""

    status: int
    body: bytes
    request_hash: str
    at: int
    ended_at: int
    key: str = ""
    is_unnamed: bool = False  # no caller knows its request id

    @property
    def key_expires_at(self) -> int:
        return self.ended_at + KEY_KEPT_MS


_pack: Final = msgspec.msgpack.Encoder().encode
_unpack_open: Final = msgspec.msgpack.Decoder(OpenCommand).decode
_unpack_ended: Final = msgspec.msgpack.Decoder(EndedCommand).decode


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of commands; sealed, because bodies and answers may hold secrets."""

    seal: Seal
    owner: Owner

    def open(self, command: Command, waiting: Waiting, *, expected: int) -> Put:
        opened = OpenCommand(
            kind=command.kind,
            who=command.who,
            raw=command.raw,
            command_id=command.command_id,
            request_id=command.request_id,
            key=command.key,
            request_hash=command.request_hash,
            trace_id=command.trace_id,
            at=command.at,
            owner=self.owner.name,
            scope=command.identity.scope,
            approval_id=waiting.approval_id,
            run_id=waiting.run_id,
            ran=waiting.ran,
        )
        due = waiting.expires_at + 1 if waiting.expires_at else None
        return Put(OPEN, command.row_key, self.seal.close(_pack(opened)), expected, due)

    def end(self, key: str, ended: EndedCommand) -> Put:
        due = ended.key_expires_at if ended.key else ended.ended_at + ENDED_KEPT_MS
        return Put(ENDED, key, self.seal.close(_pack(ended)), expected=0, due=due)

    def use_key(self, command: Command, *, expected: int) -> Put:
        return Put(KEYS, command.slot, command.row_key.encode(), expected)

    def read_open(self, row: Row) -> OpenCommand:
        return _unpack_open(self.seal.open(row.value))

    def read_ended(self, row: Row) -> EndedCommand:
        return _unpack_ended(self.seal.open(row.value))


@dataclass(frozen=True, slots=True)
class Records:
    trail: Trail
    evidence: Evidence
    clock: Clock
    redact: Callable[[str], str]

    def begin(
        self, command: Command, name: str, capabilities: Sequence[str], *, subject: str = ""
    ) -> tuple[Operation, ...]:
        """The event `started` and the audit row; what is not made here is searched for secrets.

        `subject` is the command's id if it has no row: then its end is found by its events.
        """
        needed = ",".join(capabilities)
        # Apart: the names are the same for many commands, and the search remembers them.
        names = f"{command.identity.name}\0{name}\0{needed}"
        request_id = command.request_id if command.is_named else ""
        trace_id = command.trace_id if command.is_traced else ""
        chosen = f"{command.key}\0{request_id}\0{trace_id}"
        command.is_clean = self.redact(names) == names and self.redact(chosen) == chosen
        started = self.event(command, name, wire.EventStatus.STARTED, subject=subject)
        return (started, *self.row(command, needed))

    def event(
        self, command: Command, name: str, status: wire.EventStatus, *, subject: str = ""
    ) -> Append:
        source, request_id, trace_id = command.identity.name, command.request_id, command.trace_id
        if not command.is_clean:  # the caller chose them
            source, name, request_id, trace_id = map(
                self.redact, (source, name, request_id, trace_id)
            )
        data = _EventData(
            status, source, f"{name} {status}", _Metadata(request_id, command.kind, trace_id)
        )
        if status is not wire.EventStatus.STARTED:
            data.duration_ms = self._took_ms(command)
        return Append(STREAM, (NewEvent(EVENT_TYPES[command.kind], wire.encode(data), subject),))

    def updates(self, command: Command, pieces: Sequence[Piece]) -> Append:
        """Output of a tool that the command runs."""
        source, request_id, trace_id = command.identity.name, command.request_id, command.trace_id
        if not command.is_clean:
            source, request_id, trace_id = map(self.redact, (source, request_id, trace_id))
        took_ms = self._took_ms(command)
        events = [
            _EventData(
                wire.EventStatus.RUNNING,
                source,
                piece.text,
                _Metadata(request_id, command.kind, trace_id, to_iso_ms(piece.at)),
                took_ms,
            )
            for piece in pieces
        ]
        kind = wire.EventType.TOOL  # also of an MCP command: the output is its tool's
        return Append(STREAM, [NewEvent(kind, wire.encode(event)) for event in events])

    def _took_ms(self, command: Command) -> int:
        return max(0, int((self.clock.monotonic() - command.started) * 1000))

    def row(self, command: Command, needed: str = "", *, code: str = "") -> Sequence[Operation]:
        """The audit row; `needed` are the capabilities, if they are known."""
        # A keyed hash: a secret in the body could be guessed from a plain one.
        keyed = self.evidence.commitment(command.request_hash.encode())
        metadata: dict[str, JsonValue] = {
            "deviceId": command.identity.name,
            "capabilityId": needed or name_of(command),
            "idempotencyKey": command.key or None,
            "requestHash": keyed.rpartition(":")[2],
            "requestId": command.request_id,
            "traceId": command.trace_id,
            "decision": "deny" if code else "allow",
        }
        if code:
            metadata["code"] = code
        return self.trail.note(
            _ACTIONS[command.kind],
            actor=command.identity.name,
            resource=("command", command.command_id),
            metadata=metadata,
            redacted=command.is_clean,
        )

    def unread_row(self, asked: RawCommand, *, code: str, trace_id: str) -> Sequence[Operation]:
        who = asked.identity.name
        metadata: dict[str, JsonValue] = {
            "deviceId": who,
            "decision": "deny",
            "code": code,
            "traceId": trace_id,
        }
        return self.trail.note(_ACTIONS[asked.kind], actor=who, metadata=metadata)


_INTERRUPTED: Final = Problem(
    Code.INTERNAL,
    "the gateway was stopped while this ran; it only reads, and can be sent again",
    outcome=Outcome.MAY_HAVE_EXECUTED,
)
_decode_data: Final = msgspec.json.Decoder(dict[str, Any]).decode


@dataclass(frozen=True, slots=True)
class InterruptedReads:
    """The ends of interrupted commands that have no row: unkeyed ones of one call."""

    journal: Journal
    clock: Clock
    rows: Rows

    async def end(self, call_id: str) -> Sequence[Operation]:
        """The operations that end the command of an interrupted call, if it is such a command."""
        command_id = call_id.rpartition(".")[0]
        events = await self.journal.read(STREAM, subject=command_id) if command_id else []
        if len(events) != 1:  # none: it has a row, or is no command; two: it has ended
            return ()
        (started,) = events
        data = _decode_data(started.data)
        who, about = data["source"], data["metadata"]
        name = data["message"].removesuffix(f" {wire.EventStatus.STARTED}")
        now = self.clock.now_ms()
        failed = gateway_event(
            wire.EventType(started.type),
            wire.EventStatus.FAILED,
            f"{name} {wire.EventStatus.FAILED}",
            source=who,
            duration_ms=max(0, now - started.at),
            metadata=about,
        )
        if about["requestId"] == command_id:  # the caller chose none, and cannot ask for it
            return (failed,)
        reply = failure(_INTERRUPTED, about["traceId"])
        ended = EndedCommand(reply.status, reply.body, "", started.at, now)
        return (failed, self.rows.end(row_key(who, about["requestId"], command_id), ended))
