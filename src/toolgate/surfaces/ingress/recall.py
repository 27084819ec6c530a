"""The events that a client has missed which resumes its session without saying what it has seen.

Of each open run, and each that ended a short time ago: every event but deltas, and the text so far
of the open ones. A tool request or an approval that was answered is left out: a client that has
forgotten it would run or decide it again.
"""

from collections.abc import Collection, Iterable
from typing import Final

import msgspec

from toolgate.journal.journal import Event, Journal
from toolgate.journal.paging import all_events, newest_events
from toolgate.runs.deliveries import (
    APPROVAL_REQUIRED,
    DELTA,
    ENDS,
    RETRACTED,
    RUN_STARTED,
    STATE,
    TOOL_REQUEST,
    frame,
)
from toolgate.surfaces.ingress.frames import JOINED_BYTES

ASKS: Final = {TOOL_REQUEST: "tool_call_id", APPROVAL_REQUIRED: "approval_id"}

_decode: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_text: Final = msgspec.json.Decoder(str).decode
_encode: Final = msgspec.json.Encoder().encode


async def ended_since(journal: Journal, stream: str, since: int) -> dict[str, int]:
    """The runs of a session that ended at or after a time, with the number of their end."""
    found: dict[str, int] = {}
    async for event in newest_events(journal, stream):
        if event.at < since:
            break
        if event.type in ENDS and event.subject:
            found[event.subject] = event.seq
    return found


async def missed(
    journal: Journal, stream: str, *, open_runs: Collection[str], ended: Collection[str], upto: int
) -> list[Event] | None:
    """The events of these runs up to a number, in order; None if some are not kept any more."""
    found: list[Event] = []
    for run_id in dict.fromkeys((*open_runs, *ended)):
        events = [
            event
            async for event in all_events(journal, stream, subject=run_id)
            if event.seq <= upto
        ]
        if not events or events[0].type != RUN_STARTED:
            return None
        found += events if run_id in open_runs else (one for one in events if one.type != DELTA)
    return sorted(found, key=lambda event: event.seq)


def frames(events: Iterable[Event], *, open_asks: Collection[str]) -> list[bytes]:
    """The frames of missed events; the text of a run is joined and stands where it ended."""
    others: list[tuple[int, bytes]] = []
    texts: dict[str, list[tuple[Event, str]]] = {}
    for event in events:
        members = _decode(event.data)
        if event.type == DELTA:
            texts.setdefault(event.subject, []).append((event, _decode_text(members["text"])))
        elif event.type == STATE and (gone := _retracted(members)):
            _retract(texts.get(event.subject, []), gone)
        elif event.type not in ASKS or _decode_text(members[ASKS[event.type]]) in open_asks:
            others.append((event.seq, frame(event)))
    for run_id, pieces in texts.items():
        others += _joined(run_id, pieces)
    return [data for _, data in sorted(others)]


def _retracted(members: dict[str, msgspec.Raw]) -> int:
    detail = msgspec.json.decode(members["detail"]) if "detail" in members else None
    gone = detail.get(RETRACTED) if isinstance(detail, dict) else None
    return gone if isinstance(gone, int) else 0


def _retract(pieces: list[tuple[Event, str]], gone: int) -> None:
    while gone > 0 and pieces:
        event, text = pieces.pop()
        if len(text) > gone:
            pieces.append((event, text[:-gone]))
        gone -= len(text)


def _joined(run_id: str, pieces: Iterable[tuple[Event, str]]) -> list[tuple[int, bytes]]:
    made: list[tuple[int, bytes]] = []
    held: list[tuple[Event, str]] = []
    size = 0
    for event, text in pieces:
        if held and size + len(event.data) > JOINED_BYTES:
            made.append(_one_of(run_id, held))
            held, size = [], 0
        held.append((event, text))
        size += len(event.data)
    return [*made, _one_of(run_id, held)] if held else made


def _one_of(run_id: str, held: list[tuple[Event, str]]) -> tuple[int, bytes]:
    (first, _), (last, text) = held[0], held[-1]
    if first is last and text == _decode_text(_decode(first.data)["text"]):
        return first.seq, frame(first)
    data = _encode({"run_id": run_id, "text": "".join(text for _, text in held)})
    return last.seq, frame(msgspec.structs.replace(last, data=data), first_seq=first.seq)
