"""Session events as the WebSocket carries them, made from the journal's bytes without a decode."""

from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from toolgate.contracts import ingress_v1 as wire
from toolgate.journal.journal import Event
from toolgate.runs.deliveries import DELTA, ENVELOPE, Delivery

JOINED_BYTES: Final = 256 * 1024  # some clients refuse a message of a megabyte


class _Delta(msgspec.Struct):
    run_id: str
    text: str


_decode_delta: Final = msgspec.json.Decoder(_Delta).decode
_encode: Final = msgspec.json.Encoder().encode


def frame(event: Event, *, first_seq: int = 0) -> bytes:
    """`data` is an object with at least one member: the run it is about."""
    position, _, seq, kind, at, data, _ = event  # once for each event of all sessions
    first = f'"first_seq":{first_seq},' if first_seq else ""
    head = f'{{"type":"{kind}","ts":{at},"seq":{seq},{first}"event_id":"ev_{position}",'
    return head.encode() + data[1:]


def snapshot_frame(delivery: Delivery, *, now: int) -> bytes:
    return _encode({"type": delivery.type, "ts": now, **delivery.members})


def single(events: Iterable[Event]) -> Iterator[tuple[int, bytes]]:
    """A frame for each event, with the number it brings the reader to."""
    return ((event.seq, frame(event)) for event in events)


def joined(events: Iterable[Event]) -> Iterator[tuple[int, bytes]]:
    """The same for a reader that lags: deltas of one run that follow each other become one.

    It has their text, and the last one's number. Its size stays one that any client takes.
    """
    held: list[Event] = []
    size = 0
    for event in events:
        full = size + len(event.data) > JOINED_BYTES
        if held and (full or event.type != DELTA or event.subject != held[0].subject):
            yield _one_delta(held)
            held, size = [], 0
        if event.type == DELTA:
            held.append(event)
            size += len(event.data)
        else:
            yield event.seq, frame(event)
    if held:
        yield _one_delta(held)


def _one_delta(deltas: list[Event]) -> tuple[int, bytes]:
    first, last = deltas[0], deltas[-1]
    if first is last:
        return last.seq, frame(last)
    text = "".join(_decode_delta(one.data).text for one in deltas)
    data = _encode(_Delta(last.subject, text))
    one = Event(last.position, last.stream, last.seq, DELTA, last.at, data, last.subject)
    return last.seq, frame(one, first_seq=first.seq)


def message_of(event: Event) -> wire.AnySessionEvent:
    message: wire.AnySessionEvent = wire.decode_event(frame(event))
    return message


def delivery_of(message: wire.AnySessionEvent) -> Delivery:
    """An event that came over the wire, without what the journal gives it anew."""
    members = msgspec.to_builtins(message)
    kind = members["type"]
    for given_here in ENVELOPE:
        members.pop(given_here, None)
    return Delivery(kind, message.run_id, members, said_at=message.ts, event_id=message.event_id)
