"""The arguments of open tool calls as the agent gave them, where redaction changed them.

Facts and events on disk hold the redacted arguments. The original is a sealed row (`call_args`) while
the call is open, and a copy in memory: an event becomes a device's message without a read. An approval's
event gets the arguments as an approver sees them. An ingress that runs apart has no original of a call
that waits: it keeps what its orchestrator showed, by the approval's id.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import msgspec

from toolgate.core.errors import NotFound
from toolgate.core.tools import JsonValue
from toolgate.journal.journal import Delete, Event, Journal, Operation, Put, Row
from toolgate.runs.deliveries import APPROVAL_REQUIRED, TOOL_REQUEST, Delivery
from toolgate.secrets.approver_view import Shown, summary_of
from toolgate.secrets.seal import Seal

CALL_ARGS: Final = "call_args"
ARGS: Final = "args"
# Redacted arguments beside the original: an ingress does not know all secrets of its orchestrator.
REDACTED_ARGS: Final = "redacted_args"
SUMMARY: Final = "args_summary"
Show = Callable[[Mapping[str, JsonValue]], Shown]

NAMES: Final = ("tool_call_id", "approval_id", "tool_name")

_encode: Final = msgspec.json.Encoder().encode
_decode_members: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_id: Final = msgspec.json.Decoder(str).decode
_decode_args: Final = msgspec.json.Decoder(dict[str, Any]).decode


class _Original(msgspec.Struct, frozen=True):
    run_id: str
    args: msgspec.Raw


_decode: Final = msgspec.json.Decoder(_Original).decode


@dataclass(slots=True)
class Originals:
    journal: Journal
    seal: Seal
    show: Show | None = None  # None: what is kept for an approval is shown as it is
    _open: dict[str, _Original] = field(default_factory=dict)  # by call id, as the rows

    async def load(self) -> None:
        """Read the rows that an earlier process left."""
        after = ""
        while rows := await self.journal.scan(CALL_ARGS, after=after):
            for row in rows:
                self._open[row.key] = self._unseal(row.value)
            after = rows[-1].key

    def put(self, call_id: str, run_id: str, args: dict[str, Any], *, expected: int = 0) -> Put:
        """The row of a call's arguments; `follow` copies it to memory."""
        original = _encode(_Original(run_id, msgspec.Raw(_encode(args))))
        return Put(CALL_ARGS, call_id, self.seal.close(original), expected)

    def follow(self, operations: Iterable[Operation]) -> None:
        """Change the copies as a commit changes the rows."""
        for operation in operations:
            if not isinstance(operation, Put | Delete) or operation.collection != CALL_ARGS:
                continue
            if isinstance(operation, Put):
                self._open[operation.key] = self._unseal(operation.value)
            else:
                self._open.pop(operation.key, None)

    async def reload(self, puts: Sequence[Put]) -> None:
        """Make the copies equal to the rows again after a commit of `puts` has failed."""
        for put in puts:
            row = await self.journal.get(CALL_ARGS, put.key)
            if row is None:
                self._open.pop(put.key, None)
            else:
                self._open[put.key] = self._unseal(row.value)

    async def read(self, call_id: str) -> dict[str, Any]:
        """The arguments in a call's row; NotFound if the row is gone."""
        row: Row | None = await self.journal.get(CALL_ARGS, call_id)
        if row is None:
            raise NotFound("arguments of the tool call", call_id)
        return _decode_args(self._unseal(row.value).args)

    def of_run(self, run_id: str) -> list[str]:
        """The calls of a run that have a copy."""
        return [call_id for call_id, original in self._open.items() if original.run_id == run_id]

    def restore(self, delivery: Delivery) -> Delivery:
        """The delivery with the original arguments if it is about an open call."""
        if delivery.type not in (TOOL_REQUEST, APPROVAL_REQUIRED):
            return delivery
        originals = self._of(delivery.type, delivery.members)
        return (
            replace(delivery, members={**delivery.members, **originals}) if originals else delivery
        )

    def restored(self, events: Sequence[Event], *, keep_redacted: bool = False) -> Sequence[Event]:
        """The events with the original arguments in those about open calls.

        With `keep_redacted` they have the redacted arguments too, for an ingress that stores them.
        """
        if not self._open:  # nearly always: the events of a whole commit cost one look
            return events
        return [
            self._restored(one, keep_redacted=keep_redacted)
            if one.type in (TOOL_REQUEST, APPROVAL_REQUIRED)
            else one
            for one in events
        ]

    def _restored(self, event: Event, *, keep_redacted: bool) -> Event:
        members = _decode_members(event.data)
        names: dict[str, Any] = {
            name: _decode_id(members[name]) for name in NAMES if name in members
        }
        if not (originals := self._of(event.type, names)):
            return event
        shown = {REDACTED_ARGS: members[ARGS]} if keep_redacted and ARGS in members else {}
        return event._replace(data=_encode({**members, **originals, **shown}))

    def _of(self, kind: str, names: Mapping[str, Any]) -> dict[str, Any]:
        """The members of an event that the original changes."""
        is_kept = kind == APPROVAL_REQUIRED and self.show is None
        original = self._open.get(names["approval_id" if is_kept else "tool_call_id"])
        if original is None:
            return {}
        if is_kept:
            return _decode_args(original.args)
        if kind == TOOL_REQUEST or self.show is None:
            return {ARGS: original.args}
        args = self.show(_decode_args(original.args)).args
        return {ARGS: args, SUMMARY: summary_of(names["tool_name"], args)}

    def _unseal(self, sealed: bytes) -> _Original:
        return _decode(self.seal.open(sealed))
