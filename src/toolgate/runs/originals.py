"""The arguments of open tool calls as the agent gave them, where redaction changed them.

Facts and events on disk hold the redacted arguments. The original is a sealed row (`call_args`) while
the call is open, and a copy in memory: an event becomes a device's message without a read.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import msgspec

from toolgate.core.errors import NotFound
from toolgate.journal.journal import Delete, Event, Journal, Operation, Put, Row
from toolgate.journal.paging import all_rows
from toolgate.runs.deliveries import TOOL_REQUEST, Delivery
from toolgate.secrets.seal import Seal

CALL_ARGS: Final = "call_args"
ARGS: Final = "args"
# Redacted arguments beside the original: an ingress does not know all secrets of its orchestrator.
REDACTED_ARGS: Final = "redacted_args"

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
    _open: dict[str, _Original] = field(default_factory=dict)  # by call id, as the rows

    async def load(self) -> None:
        """Read the rows that an earlier process left."""
        async for row in all_rows(self.journal, CALL_ARGS):
            self._open[row.key] = self._unseal(row.value)

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
        """The delivery with the original arguments if it is the request of an open call."""
        if delivery.type != TOOL_REQUEST:
            return delivery
        original = self._open.get(delivery.members["tool_call_id"])
        if original is None:
            return delivery
        return replace(delivery, members={**delivery.members, ARGS: original.args})

    def restored(self, events: Sequence[Event], *, keep_redacted: bool = False) -> Sequence[Event]:
        """The events with the original arguments in the requests of open calls.

        With `keep_redacted` they have the redacted arguments too, for an ingress that stores them.
        """
        if not self._open:  # nearly always: the events of a whole commit cost one look
            return events
        return [
            self._restored(one, keep_redacted=keep_redacted) if one.type == TOOL_REQUEST else one
            for one in events
        ]

    def _restored(self, event: Event, *, keep_redacted: bool) -> Event:
        members = _decode_members(event.data)
        original = self._open.get(_decode_id(members["tool_call_id"]))
        if original is None:
            return event
        shown = {REDACTED_ARGS: members[ARGS]} if keep_redacted else {}
        return event._replace(data=_encode({**members, ARGS: original.args, **shown}))

    def _unseal(self, sealed: bytes) -> _Original:
        return _decode(self.seal.open(sealed))
