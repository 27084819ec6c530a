"""`/events/*`: events by poll, long poll or stream, all from one cursor.

The cursor is the number of an event in the journal's `gateway` stream.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from toolgate.access.devices import Identity, Who
from toolgate.access.refusals import InvalidToken
from toolgate.access.registry import Registry
from toolgate.commands.answers import Code, Extra, Problem, Result
from toolgate.commands.records import STREAM, gateway_event
from toolgate.contracts import gateway_v1 as wire
from toolgate.core.clock import Clock
from toolgate.core.concurrency import Stopped, unless
from toolgate.core.enums import HealthStatus
from toolgate.http import asgi
from toolgate.journal.bus import Bus
from toolgate.journal.following import follow, until
from toolgate.journal.journal import Append, Event, Journal
from toolgate.surfaces.gateway.routes import (
    Access,
    Call,
    Parameter,
    Route,
    elsewhere,
    seconds,
    whole,
)

log = logging.getLogger(__name__)

KEPT_MS: Final = wire.EVENTS_KEPT_S * 1000
SILENCE_S: Final = 15.0  # after which a stream says that it is still there
_KEEP_ALIVE: Final = b": \n\n"
_decode: Final = msgspec.json.Decoder(dict[str, Any]).decode


def event_of(event: Event) -> wire.Event:
    told = _decode(event.data)
    return wire.Event(
        id=event.seq,
        type=wire.EventType(event.type),
        time=event.at,
        status=told["status"],
        source=told["source"],
        message=told["message"],
        duration_ms=told.get("durationMs", 0),
        metadata=told.get("metadata", {}),
    )


def shown_to(reader: Identity, events: Iterable[wire.Event]) -> list[wire.Event]:
    """The events that a reader may see: of other callers' commands not what their tools print."""
    return [
        event
        for event in events
        if event.status != wire.EventStatus.RUNNING
        or reader.who is Who.OPERATOR
        or event.source == reader.name
    ]


def schedule_event(
    kind: str, name: str, *, status: str, duration_ms: int, text: str = ""
) -> Append:
    """A step of the heartbeat or of a cron entry; `text` says why it failed or what it waits for."""
    return gateway_event(
        wire.EventType(kind),
        wire.EventStatus(status),
        f"{name} {status}: {text}" if text else f"{name} {status}",
        source="scheduler",
        duration_ms=duration_ms,
    )


def health_event(capability_id: str, health: HealthStatus) -> Append:
    """The event of a capability whose health has changed."""
    sound = health is HealthStatus.HEALTHY
    return gateway_event(
        wire.EventType.HEALTH,
        wire.EventStatus.SUCCEEDED if sound else wire.EventStatus.FAILED,
        f"{capability_id} is {health}",
        metadata={"capabilityId": capability_id, "status": health},
    )


@dataclass(slots=True)
class Events:
    journal: Journal
    bus: Bus
    clock: Clock
    registry: Registry
    _first: int = 1
    _last: int = 0
    _moved: asyncio.Event = field(default_factory=asyncio.Event)
    _closing: asyncio.Event = field(default_factory=asyncio.Event)

    async def load(self) -> None:
        self.bus.subscribe(STREAM, self._hear)
        head = await self.journal.head(STREAM)
        self._first, self._last = head.first, max(head.last, self._last)

    def close(self) -> None:
        """Answer waiting polls and end streams, because the process is about to end."""
        self._closing.set()
        self._moved.set()

    @property
    def cursor(self) -> int:
        return self._last

    @property
    def oldest_cursor(self) -> int:
        """The smallest that is not dead: all events that are kept come after it."""
        return self._first - 1

    def routes(self) -> Sequence[Route]:
        return (
            Route(
                "GET",
                "/events/poll",
                Access.READER,
                "The events after a cursor; with `wait`, as soon as there is one.",
                self._poll,
                wire.EventPage,
                v2="events.poll",
                query=(
                    Parameter("since", "the cursor of the last answer", _COUNT),
                    Parameter("limit", "how many events at most", _LIMIT),
                    Parameter("wait", "seconds to wait for the first", _WAIT),
                ),
                statuses=(200, 410),
                bare=True,
            ),
            Route(
                "GET",
                "/events/stream",
                Access.READER,
                "The same events as they come, as server-sent events; resumes by Last-Event-ID.",
                elsewhere,
                None,
                query=(Parameter("since", "the cursor to begin after", _COUNT),),
                statuses=(200, 410),
                stream=True,
            ),
        )

    async def _poll(self, call: Call) -> Result:
        limit = whole(
            call.query, "limit", default=wire.DEFAULT_EVENTS, least=1, most=wire.MAX_EVENTS
        )
        wait = seconds(call.query)
        since = self.cursor_of(call.query.get("since"))
        page = await self._page(call.caller, since, limit, wait)
        return Result(page, Extra(bare=True))

    async def _page(
        self, identity: Identity, since: int, limit: int, wait: float
    ) -> wire.EventPage:
        if self._last <= since and wait > 0:
            await self._until_moved(identity, since, wait)
        if self._last <= since:
            return wire.EventPage(cursor=since, events=[])
        events = [event_of(e) for e in await self.journal.read(STREAM, after=since, limit=limit)]
        cursor = events[-1].id if events else since
        return wire.EventPage(cursor=cursor, events=shown_to(identity, events))

    async def _until_moved(self, identity: Identity, since: int, wait: float) -> None:
        with self.registry.watch(identity.name) as cut:
            try:
                async with asyncio.timeout(wait):
                    while self._last <= since and not self._closing.is_set():
                        await unless(cut.wait(), self._moved.wait())
            except TimeoutError:
                return
            except Stopped:
                raise InvalidToken("the device was revoked") from None

    def cursor_of(self, given: str | None) -> int:
        """The position to read from; without a cursor, the end. Problem 410 for a cursor that is dead."""
        if given is None or given == "":
            return self._last
        sound = given.isascii() and given.isdigit() and len(given) <= 18
        since = int(given) if sound else -1
        if not self.oldest_cursor <= since <= self._last:
            raise Problem(
                Code.INVALID_REQUEST,
                "the cursor is expired or was never given out; read /status and go on from there",
                status=410,
                data=wire.CursorGone(),
            )
        return since

    async def stream(
        self, reader: Identity, cut: asyncio.Event, since: int
    ) -> AsyncIterator[bytes]:
        """Server-sent events without end, until the caller is cut."""
        yield b"retry: 1000\n\n"
        async for events in self.follow(reader, cut, since):
            if not events:
                yield _KEEP_ALIVE
            for event in events:
                if cut.is_set():  # while a slow reader took the one before
                    return
                body = wire.encode(event)
                yield asgi.server_sent_event(body, event=event.type, event_id=str(event.id))

    async def follow(
        self, reader: Identity, cut: asyncio.Event, since: int
    ) -> AsyncIterator[Sequence[wire.Event]]:
        """Events as they come; an empty batch after a silence. Ends when the caller is cut."""
        events = follow(self.journal, self.bus, STREAM, after=since)
        stops = (cut, self._closing)
        async with contextlib.aclosing(until(stops, events, silence_s=SILENCE_S)) as batches:
            async for batch in batches:
                yield shown_to(reader, map(event_of, batch))

    async def forget_old(self) -> None:
        """Delete events older than a cursor's life, up to the first that is younger.

        One from a day that is far ahead tells of a clock that was wrong, and keeps nothing back.
        """
        now = self.clock.now_ms()
        through = self._first - 1
        while page := await self.journal.read(STREAM, after=through, limit=500):
            live = (event.seq for event in page if abs(event.at - now) <= KEPT_MS)
            first_live = next(live, None)
            through = page[-1].seq if first_live is None else first_live - 1
            if first_live is not None:
                break
        if through >= self._first:
            await self.journal.forget(STREAM, through=through)
            self._first = through + 1

    def _hear(self, events: Sequence[Event]) -> None:
        self._last = max(self._last, events[-1].seq)
        self._moved.set()
        self._moved = asyncio.Event()


_COUNT: Final = {"type": "integer", "minimum": 0}
_LIMIT: Final = {"type": "integer", "minimum": 1, "maximum": wire.MAX_EVENTS}
_WAIT: Final = {"type": "number", "minimum": 0, "maximum": wire.MAX_WAIT_S}
