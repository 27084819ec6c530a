"""A session that reads, and moves to where pages are drawn; on sessions without pages."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tests.support.browser import FakeSession
from toolgate.browser.browser import Extract, ExtractOptions
from toolgate.browser.cdp.tab import WaitsForFrames
from toolgate.browser.system_browser import ReadingSession

PAGE = Extract("http://a.test/", "A", "article", 0, (), None, None)


class Still(FakeSession):
    @asynccontextmanager
    async def reader(self, *, run_id: str) -> AsyncIterator[Any]:
        yield self

    async def read(self, url: str, options: ExtractOptions) -> Extract:
        raise WaitsForFrames("the page waits for frames")


class Drawn(Still):
    async def read(self, url: str, options: ExtractOptions) -> Extract:
        return PAGE


class Drawing:
    """Starts the browser that draws, and says so once `gate` is open."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.gate = asyncio.Event()
        self.drawn: list[Drawn] = []

    async def __call__(self) -> Any:
        self.drawn.append(Drawn())
        self.begun.set()
        await self.gate.wait()
        return self.drawn[-1]


def a_session(drawing: Drawing) -> ReadingSession:
    still: Any = Still()
    return ReadingSession(still, draw=drawing)


async def test_readers_share_the_session_that_draws_and_it_closes_with_theirs() -> None:
    drawing = Drawing()
    session = a_session(drawing)
    reading = [asyncio.create_task(session.read("r", "u", ExtractOptions())) for _ in range(3)]
    await drawing.begun.wait()
    drawing.gate.set()
    assert await asyncio.gather(*reading) == [PAGE] * 3
    await session.close()
    assert [each.closes for each in drawing.drawn] == [1]


async def test_a_browser_that_starts_while_its_reader_is_cancelled_is_closed_all_the_same() -> None:
    drawing = Drawing()
    session = a_session(drawing)
    reading = asyncio.create_task(session.read("r", "u", ExtractOptions()))
    await drawing.begun.wait()
    reading.cancel()
    await asyncio.wait([reading])
    closing = asyncio.create_task(session.close())
    drawing.gate.set()
    await asyncio.wait_for(closing, 5)
    assert [each.closes for each in drawing.drawn] == [1]
