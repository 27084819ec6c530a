"""Following a stream: what the journal has, then what the bus tells, with no gap and no repeat.

Not a port but a pure helper over two of them. It lives beside them because surfaces, orchestration
and tasks all follow streams, and may not import each other.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Collection, Sequence
from typing import Any, Final

from toolgate.core.concurrency import end
from toolgate.journal.bus import Bus
from toolgate.journal.journal import Event, Journal

PAGE: Final = 500  # events read from the journal at a time
BUFFER: Final = 1000  # events kept for a reader that lags; beyond that it reads the journal


async def follow(
    journal: Journal,
    bus: Bus,
    stream: str | None,
    *,
    after: int = 0,
    buffer: int = BUFFER,
    recheck: float | None = None,
) -> AsyncGenerator[Sequence[Event], None]:
    """Yield, in order and without end, the stream's events with a number above `after`.

    They come in batches, as they were committed or read. With `stream=None` it follows every
    stream and `after` is a position. `recheck` is after how many silent seconds to read the
    journal anyway, for a bus that may lose what it was told; an empty batch comes before it. Close
    it (`contextlib.aclosing`) when done, so that the subscription ends.
    """
    heard: deque[Event] = deque()
    wake = asyncio.Event()
    behind = True  # the journal may hold what was not heard

    def listen(events: Sequence[Event]) -> None:
        nonlocal behind
        if stream is None or len(heard) + len(events) > buffer:
            heard.clear()
            behind = True
        else:
            heard.extend(events)
        wake.set()

    subscription = bus.subscribe(stream, listen)
    try:
        while True:
            if behind:
                behind = False  # before the read: what is committed from now on is heard
                while page := await _read(journal, stream, after):
                    after = page[-1].seq if stream is not None else page[-1].position
                    yield page
                    if len(page) < PAGE:
                        break
            fresh = [event for event in heard if event.seq > after]
            heard.clear()
            if fresh and any(event.seq != after + n for n, event in enumerate(fresh, 1)):
                behind = True
            elif fresh:
                after = fresh[-1].seq
                yield fresh
            if not behind and not heard:
                wake.clear()
                try:
                    async with asyncio.timeout(recheck):
                        await wake.wait()
                except TimeoutError:
                    behind = True
                    yield ()
    finally:
        subscription.close()


async def until(
    stops: Collection[asyncio.Event],
    batches: AsyncGenerator[Sequence[Event], None],
    *,
    silence_s: float,
) -> AsyncGenerator[Sequence[Event], None]:
    """The batches of `follow`, and an empty one after each silence, until one of `stops` is set."""
    waits = [asyncio.ensure_future(stop.wait()) for stop in stops]
    coming: asyncio.Future[Sequence[Event]] | None = None
    try:
        while not any(stop.is_set() for stop in stops):
            coming = coming or asyncio.ensure_future(anext(batches))
            waited: set[asyncio.Future[Any]] = {coming, *waits}
            await asyncio.wait(waited, timeout=silence_s, return_when=asyncio.FIRST_COMPLETED)
            if any(stop.is_set() for stop in stops):
                return
            batch: Sequence[Event] = ()
            if coming.done():
                batch, coming = coming.result(), None
            yield batch
    finally:
        await end(*waits, *([coming] if coming is not None else []))
        await batches.aclose()


async def _read(journal: Journal, stream: str | None, after: int) -> list[Event]:
    if stream is None:
        return await journal.read_all(after=after, limit=PAGE)
    return await journal.read(stream, after=after, limit=PAGE)
