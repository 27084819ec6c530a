"""What an orchestrator's event stream tells: the events of a run, as they are given to its session.

It reads one stream while that lasts. Which run's it is, and where a stream that broke off is taken
up again, is for `orchestrator_http.py` to say.
"""

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

NAMES: Final = frozenset({"", "message", *wire.EVENTS})  # "message" is SSE's own word for no name


class Garbage(Exception):
    """What the orchestrator said is not of the contract."""


async def first_events(
    response: aiohttp.ClientResponse, parser: SseParser
) -> tuple[SseEvent, Delivery, list[SseEvent]]:
    """The first event that tells something, what it tells, and what came with it."""
    async for batch in batches(response, parser, ()):
        for number, event in enumerate(batch):
            if (told := _delivery(event)) is not None:
                return event, told, [*batch[number + 1 :]]
    raise Garbage("a stream without an event")


async def batches(
    response: aiohttp.ClientResponse, parser: SseParser, heard: Sequence[SseEvent]
) -> AsyncIterator[Sequence[SseEvent]]:
    """What arrived together is committed together."""
    if heard:
        yield heard
    async for chunk in response.content.iter_any():
        if batch := parser.feed(chunk):
            yield batch
    if batch := [event for event in parser.finish() if _is_whole(event)]:
        yield batch


def _is_whole(event: SseEvent) -> bool:
    """Of what a stream ends with: it may have broken off there, and not have lacked a line only."""
    try:
        _delivery(event)
    except Garbage:
        return False
    return True


def _delivery(event: SseEvent) -> Delivery | None:
    """An event of the stream; its type may stand in the data, or only in the event's name.

    None where it is of a type that no contract knows: another orchestrator may say more than ours.
    """
    kind: Any = event.event
    try:
        members = msgspec.json.decode(event.data)
        if isinstance(members, dict):
            kind = members.get("type") or kind
        model = wire.EVENTS.get(kind) if isinstance(kind, str) else None
        if not isinstance(members, dict) or model is None:
            raise Garbage(f"an event of no known type: {kind!r}"[:100])
        message = msgspec.convert({"run_id": "", **members, "type": kind}, model)
    except (*UNREADABLE, msgspec.ValidationError, Garbage) as unreadable:
        if isinstance(kind, str) and kind not in NAMES:
            return None
        raise Garbage(str(unreadable)) from unreadable
    for given_here in deliveries.ENVELOPE:
        members.pop(given_here, None)
    if kind == deliveries.DONE:
        members.setdefault("usage", {})
    return Delivery(kind, message.run_id, members, said_at=message.ts)


def told_of(run_id: str, batch: Sequence[SseEvent]) -> tuple[list[Delivery], Garbage | None]:
    """What a batch says of a run, up to where it cannot be read any more."""
    told: list[Delivery] = []
    for event in batch:
        try:
            one = _delivery(event)
        except Garbage as garbage:
            return told, garbage
        if one is not None and one.type != deliveries.RUN_STARTED:
            told.append(replace(one, run_id=run_id, members={**one.members, "run_id": run_id}))
    return told, None
