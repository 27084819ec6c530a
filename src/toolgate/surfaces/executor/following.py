"""`POST /tool/run` as server-sent events: updates while the tool runs, then the response.

The answer begins with the first update, or with the response where there is none. Until then an
error is an HTTP status as it is without streaming; after that it is an `error` event.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Final

import msgspec
from starlette.responses import StreamingResponse

from toolgate.contracts import executor_v0 as wire
from toolgate.contracts.wire import to_iso_ms
from toolgate.core.errors import ToolgateError
from toolgate.http import asgi
from toolgate.surfaces.executor.errors import code_of
from toolgate.surfaces.executor.local import LocalExecutor
from toolgate.tools.updates import Piece, Updates

SILENCE_S: float = 15.0  # after which a comment says that the call still runs
STILL_HERE: Final = b": running\n\n"


def wants_events(accept: str) -> bool:
    """Whether an Accept header names the type of server-sent events."""
    kinds = (part.partition(";")[0].strip().lower() for part in accept.split(","))
    return asgi.EVENT_STREAM in kinds


class Followed(StreamingResponse):
    """A call under way; it is stopped when its reader has gone."""

    def __init__(self, executor: LocalExecutor, asked: wire.RunToolRequest) -> None:
        super().__init__(self._chunks(), media_type=asgi.EVENT_STREAM, headers=asgi.STREAM_HEADERS)
        self._executor = executor
        self._lines: asyncio.Queue[bytes] = asyncio.Queue(maxsize=1)
        self._begun = asyncio.Event()
        self._gone = False  # nobody reads any more
        self._updates = Updates(self._write, executor.clock)
        self._running = asyncio.create_task(self._run(asked))

    @classmethod
    async def begin(
        cls, executor: LocalExecutor, asked: wire.RunToolRequest, receive: asgi.Receive
    ) -> "Followed":
        """Start the call and wait until there is something to send; raises what the call raises."""
        followed = cls(executor, asked)
        begun = asyncio.ensure_future(followed._begun.wait())
        gone = asyncio.ensure_future(_disconnected(receive))
        running = followed._running
        try:
            await asyncio.wait(
                {running, begun, gone}, timeout=SILENCE_S, return_when=asyncio.FIRST_COMPLETED
            )
            if running.done() and not running.cancelled() and (error := running.exception()):
                raise error
        except BaseException:
            await followed._stop()
            raise
        finally:
            begun.cancel()
            gone.cancel()
        return followed

    async def __call__(self, scope: asgi.Scope, receive: asgi.Receive, send: asgi.Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._stop()

    async def _run(self, asked: wire.RunToolRequest) -> wire.RunToolResponse:
        try:
            return await self._executor.run_tool(asked, update=self._updates)
        finally:
            await self._updates.close()

    async def _write(self, pieces: Sequence[Piece]) -> None:
        updates = (wire.Update(piece.text, to_iso_ms(piece.at)) for piece in pieces)
        self._begun.set()
        if not self._gone:
            await self._lines.put(b"".join(_event(wire.UPDATE_EVENT, one) for one in updates))

    async def _chunks(self) -> AsyncIterator[bytes]:
        while not (self._running.done() and self._lines.empty()):
            coming = asyncio.ensure_future(self._lines.get())
            try:
                await asyncio.wait(
                    {coming, self._running},
                    timeout=SILENCE_S,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                if coming.done():
                    yield coming.result()
                elif not self._running.done():
                    yield STILL_HERE
            finally:
                coming.cancel()
        try:
            yield _event(wire.RESPONSE_EVENT, self._running.result())
        except ToolgateError as error:
            refusal = wire.Refusal(wire.ErrorBody(code_of(error), str(error)))
            yield _event(wire.ERROR_EVENT, refusal)

    async def _stop(self) -> None:
        """Stop the tool, and leave time for its end to be recorded."""
        self._gone = True
        if not self._lines.empty():
            self._lines.get_nowait()  # the writer may wait for room
        if not self._running.done():
            self._running.cancel()
            await asyncio.wait([self._running], timeout=asgi.ENDING_S)


async def _disconnected(receive: asgi.Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _event(name: str, data: msgspec.Struct) -> bytes:
    return asgi.server_sent_event(msgspec.json.encode(data), event=name)
