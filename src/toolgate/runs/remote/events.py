"""An orchestrator's event stream, read as the events of a run.

It reads one stream to its end. Which run that is, and where a broken stream is resumed, is decided
in `orchestrator.py`.
"""

import contextlib
import logging
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any, Final

import aiohttp
import msgspec

from toolgate.contracts import orchestrator_v1 as wire
from toolgate.contracts.wire import UNREADABLE
from toolgate.http.sse import SseEvent, SseParser
from toolgate.runs import deliveries
from toolgate.runs.deliveries import Delivery

log = logging.getLogger(__name__)

skipped: Final[Counter[str]] = Counter()  # for the metrics
UNNAMED: Final = frozenset({"", "message"})
NAMES: Final = frozenset({"", "message", *wire.EVENTS})  # "message" is SSE's own word for no name


class Garbage(Exception):
    """What the orchestrator said is not of the contract."""


async def first_events(
    response: aiohttp.ClientResponse, parser: SseParser
) -> tuple[SseEvent, Delivery, list[SseEvent]]:
    """The first event of a run, what it says, and the events that came with it."""
    async for batch in batches(response, parser, ()):
        for number, event in enumerate(batch):
            told = _started(event) or _delivery(event)
            if told is not None:
                return event, told, [*batch[number + 1 :]]
    raise Garbage("a stream without an event")


def _started(event: SseEvent) -> Delivery | None:
    """A first event without a type that names the run: the immediate answer of the contract."""
    with contextlib.suppress(*UNREADABLE):
        members = msgspec.json.decode(event.data)
        untyped = isinstance(members, dict) and "type" not in members and event.event in UNNAMED
        if untyped and isinstance(run_id := members.get("run_id"), str) and run_id:
            return Delivery(deliveries.RUN_STARTED, run_id)
    return None


async def batches(
    response: aiohttp.ClientResponse, parser: SseParser, heard: Sequence[SseEvent]
) -> AsyncIterator[Sequence[SseEvent]]:
    """What arrived together is committed together."""
    if heard:
        yield heard
    async for chunk in response.content.iter_any():
        if batch := parser.feed(chunk):
            yield batch
    if batch := [event for event in parser.finish() if _is_json(event)]:
        yield batch


def _is_json(event: SseEvent) -> bool:
    """False for a last event that the stream has cut, which is read again when it is resumed."""
    try:
        msgspec.json.decode(event.data)
    except UNREADABLE:
        return False
    return True


def _delivery(event: SseEvent) -> Delivery | None:
    """An event of the stream; its type may stand in the data, or only in the event's name.

    None if it cannot be read, which is logged, or has a type that is not in the contract.
    """
    kind: Any = event.event
    try:
        members = msgspec.json.decode(event.data)
        if isinstance(members, dict):
            kind = members.get("type") or kind
        model = wire.EVENTS.get(kind) if isinstance(kind, str) else None
        if not isinstance(members, dict) or model is None:
            raise msgspec.ValidationError(f"an event of no known type: {kind!r}"[:100])
        message = msgspec.convert({"run_id": "", **members, "type": kind}, model)
    except UNREADABLE as unreadable:
        if not isinstance(kind, str) or kind in NAMES:
            skipped["events"] += 1
            log.warning("event_skipped count=%d error=%s", skipped["events"], unreadable)
        return None
    if kind == deliveries.DONE:
        members.setdefault("usage", {})
    return deliveries.received(kind, message.run_id, members, ts=message.ts, event_id="")


def told_of(run_id: str, batch: Sequence[SseEvent]) -> list[Delivery]:
    """The events of a run in a batch; those that cannot be read are left out."""
    told = (_delivery(event) for event in batch)
    return [
        replace(one, run_id=run_id, members={**one.members, "run_id": run_id})
        for one in told
        if one is not None and one.type != deliveries.RUN_STARTED
    ]
