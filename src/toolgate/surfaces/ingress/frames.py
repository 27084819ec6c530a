"""Session events as the WebSocket carries them, made from the journal's bytes without a decode."""

from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from toolgate.domain.deliveries import DELTA, Delivery
from toolgate.ports.journal import Event


class _Delta(msgspec.Struct):
    run_id: str
    text: str


_decode_delta: Final = msgspec.json.Decoder(_Delta).decode
_encode: Final = msgspec.json.Encoder().encode


def event_id(event: Event) -> str:
    return f"ev_{event.position}"


def frame(event: Event, *, first_seq: int = 0) -> bytes:
    """`data` is an object with at least one member: the run it is about."""
    first = f'"first_seq":{first_seq},' if first_seq else ""
    head = (
        f'{{"type":"{event.type}","ts":{event.at},"seq":{event.seq},{first}'
        f'"event_id":"{event_id(event)}",'
    )
    return head.encode() + event.data[1:]


def snapshot_frame(delivery: Delivery, *, now: int) -> bytes:
    return _encode({"type": delivery.type, "ts": now, **delivery.members})


def catch_up(events: Iterable[Event]) -> Iterator[tuple[int, bytes]]:
    """Frames for a reader that lags, each with the number it brings the reader to.

    Deltas of one run that follow each other become one: same text, the last one's number.
    """
    held: list[Event] = []
    for event in events:
        if held and (event.type != DELTA or event.subject != held[0].subject):
            yield _joined(held)
            held = []
        if event.type == DELTA:
            held.append(event)
        else:
            yield event.seq, frame(event)
    if held:
        yield _joined(held)


def _joined(deltas: list[Event]) -> tuple[int, bytes]:
    first, last = deltas[0], deltas[-1]
    if first is last:
        return last.seq, frame(last)
    text = "".join(_decode_delta(one.data).text for one in deltas)
    data = _encode(_Delta(last.subject, text))
    joined = Event(last.position, last.stream, last.seq, DELTA, last.at, data, last.subject)
    return last.seq, frame(joined, first_seq=first.seq)
