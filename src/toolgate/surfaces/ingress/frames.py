"""Session events as the WebSocket carries them, made from the journal's bytes without a decode."""

from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from toolgate.contracts import ingress_v1 as wire
from toolgate.journal.journal import Event
from toolgate.runs.deliveries import DELTA, STATE, Delivery, frame, read_update, received

JOINED_BYTES: Final = 256 * 1024  # some clients refuse a message of a megabyte


class _Delta(msgspec.Struct):
    run_id: str
    text: str


_decode_delta: Final = msgspec.json.Decoder(_Delta).decode
_encode: Final = msgspec.json.Encoder().encode


def snapshot_frame(delivery: Delivery, *, now: int) -> bytes:
    return _encode({"type": delivery.type, "ts": now, **delivery.members})


def single(events: Iterable[Event]) -> Iterator[tuple[int, bytes]]:
    """A frame for each event, with the number it brings the reader to."""
    return ((event.seq, frame(event)) for event in events)


def joined(events: Iterable[Event]) -> Iterator[tuple[int, bytes]]:
    """The same for a reader that lags: deltas of one run that follow each other become one.

    It has their text, and the last one's number. Its size stays one that any client takes. Updates
    of one tool call are joined in the same way.
    """
    held: list[Event] = []
    size, held_by = 0, ""
    for event in events:
        source = source_of(event)
        full = size + len(event.data) > JOINED_BYTES
        if held and (full or source != held_by):
            yield _one_of(held)
            held, size = [], 0
        if source:
            held.append(event)
            size += len(event.data)
            held_by = source
        else:
            yield event.seq, frame(event)
    if held:
        yield _one_of(held)


def source_of(event: Event) -> str:
    """The run or call whose text this event continues; empty for an event that stands alone."""
    if event.type == DELTA:
        return event.subject
    if event.type == STATE and (update := read_update(event.data)) is not None:
        return f"{event.subject}/{update.call_id}"
    return ""


def _one_of(events: list[Event]) -> tuple[int, bytes]:
    first, last = events[0], events[-1]
    if first is last:
        return last.seq, frame(last)
    data = _joined_deltas(events) if last.type == DELTA else _joined_updates(events)
    one = Event(last.position, last.stream, last.seq, last.type, last.at, data, last.subject)
    return last.seq, frame(one, first_seq=first.seq)


def _joined_deltas(deltas: list[Event]) -> bytes:
    text = "".join(_decode_delta(one.data).text for one in deltas)
    return _encode(_Delta(deltas[-1].subject, text))


def _joined_updates(events: list[Event]) -> bytes:
    updates = [update for one in events if (update := read_update(one.data)) is not None]
    last = updates[-1]
    last.detail.delta = "".join(update.detail.delta for update in updates)
    last.ts = 0  # the joined frame has the journal's
    return _encode(last)


def message_of(event: Event) -> wire.AnySessionEvent:
    message: wire.AnySessionEvent = wire.decode_event(frame(event))
    return message


def delivery_of(message: wire.AnySessionEvent) -> Delivery:
    """An event that an orchestrator has pushed."""
    members = msgspec.to_builtins(message)
    kind = members["type"]
    return received(kind, message.run_id, members, ts=message.ts, event_id=message.event_id)
