"""What happens, as it happens: the journal's events, put as the pages want them.

One message per batch: the runs and approvals that changed, as they are now; the words of the one
run that is being watched, and the output of its calls; and the names of what else was touched.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from toolgate.http import asgi
from toolgate.journal.following import follow, until
from toolgate.journal.journal import Event
from toolgate.runs import records
from toolgate.runs.deliveries import DELTA, STATE, read_update
from toolgate.surfaces.console.context import ConsoleContext
from toolgate.tools import approval_records as approvals

RUN: Final = "run/"
SESSION: Final = "session/"
PAUSE_S: Final = 0.04  # what comes within it is told together; a page need not be faster
SILENCE_S: Final = 15.0  # after which a comment says that we are still there
MAX_READERS: Final = 64
QUIET: Final = b": still here\n\n"


@dataclass(slots=True)
class Live:
    context: ConsoleContext
    may: Callable[[Request], bool]  # whether the reader's session still goes on
    _closing: asyncio.Event = field(default_factory=asyncio.Event)
    _readers: int = 0

    def close(self) -> None:
        """End every stream, so that the listener can stop."""
        self._closing.set()

    async def stream(self, request: Request) -> Response:
        last = request.headers.get("last-event-id") or request.query_params.get("after", "")
        known = last.isascii() and last.isdigit() and len(last) < 19
        newest = await self.context.journal.last_position()
        after = min(int(last), newest) if known else newest  # a page may remember another journal
        watched = request.query_params.get("run", "")
        if self._readers >= MAX_READERS:
            return Response(status_code=503, headers={"Retry-After": "5"})
        return asgi.event_stream(self._messages(request, after, watched))

    async def _messages(self, request: Request, after: int, watched: str) -> AsyncIterator[bytes]:
        self._readers += 1
        try:
            # From where it is told: so that it can come back there, should it hear nothing before.
            yield b"retry: 1000\n" + asgi.server_sent_event(b"{}", event_id=str(after))
            events = follow(self.context.journal, self.context.bus, None, after=after)
            stops = (self._closing,)
            async with contextlib.aclosing(until(stops, events, silence_s=SILENCE_S)) as batches:
                async for message in self._told(batches, watched):
                    if not self.may(request):
                        return
                    yield message
        finally:
            self._readers -= 1

    async def _told(
        self, batches: AsyncGenerator[Sequence[Event], None], watched: str
    ) -> AsyncIterator[bytes]:
        async for events in batches:
            if not events:
                yield QUIET
                continue
            told = await self._tell(events, watched)
            if told:
                data = msgspec.json.encode(told)
                yield asgi.server_sent_event(data, event_id=str(events[-1].position))
            await asyncio.sleep(PAUSE_S)

    async def _tell(self, events: Sequence[Event], watched: str) -> dict[str, Any]:
        runs: dict[str, None] = {}
        asked: dict[str, None] = {}
        said: list[dict[str, Any]] = []
        touched: dict[str, None] = {}
        for event in events:
            if event.stream.startswith(RUN):
                runs[event.subject] = None
            elif event.stream == approvals.STREAM:
                asked[event.subject] = None
            elif event.stream.startswith(SESSION):
                if event.type == DELTA and event.subject == watched:
                    text = records.decode_members(event.data).get("text", "")
                    said.append({"position": event.position, "text": text})
                elif event.type == STATE and event.subject == watched:
                    if (update := read_update(event.data)) is None:
                        runs[event.subject] = None  # it may take words back
                    else:
                        text = update.detail.delta
                        position = event.position
                        said.append({"position": position, "call": update.call_id, "text": text})
            else:
                touched[event.stream] = None
        told: dict[str, Any] = {}
        if runs:
            told["runs"] = [line for run_id in runs if (line := await self._line(run_id))]
        if asked:
            told["approvals"] = list(asked)
        if said:
            told["said"] = said
        if touched:
            told["touched"] = list(touched)
        return told

    async def _line(self, run_id: str) -> Any:
        row = await self.context.journal.get(records.RUNS, run_id)
        return None if row is None else self.context.run_summary(records.decode_run_line(row.value))
