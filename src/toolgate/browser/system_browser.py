"""The system's Chromium as one browser: pages that are read in one process, worked in another.

What the two share is the turns of their tabs; neither starts before it is needed.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass

from toolgate.browser.browser import (
    BrowserGone,
    BrowserSession,
    Extract,
    ExtractOptions,
    PageError,
    Reader,
    Tab,
)
from toolgate.browser.cdp.browser import CdpBrowser, CdpSession
from toolgate.browser.cdp.tab import WaitsForFrames
from toolgate.browser.options import BrowserOptions
from toolgate.browser.playwright.browser import (
    PlaywrightBrowser,
    PlaywrightSession,
)
from toolgate.browser.proxy_verdicts import no_complaint
from toolgate.browser.tab_slots import TabSlots
from toolgate.core.enums import TrustLevel
from toolgate.core.errors import Unavailable


class SystemBrowser:
    def __init__(
        self,
        options: BrowserOptions | None = None,
        *,
        complaint: Callable[[str], PageError | None] = no_complaint,
    ) -> None:
        """`complaint` says why the guarded proxy lately let nothing come from a URL."""
        options = options or BrowserOptions()
        slots = TabSlots(options.slots)
        self.reading = CdpBrowser(options, complaint=complaint, slots=slots)
        self.working = PlaywrightBrowser(options, complaint=complaint, slots=slots)

    async def open(
        self, *, trust: TrustLevel, media: bool = False, only_reads: bool = False
    ) -> BrowserSession:
        if only_reads and not media:
            still = await self.reading.open(trust=trust)
            return ReadingSession(still, draw=lambda: self.working.open(trust=trust))
        return await self.working.open(trust=trust, media=media)

    async def close(self) -> None:
        await self.reading.close()
        await self.working.close()


class ReadingSession:
    """Reads where nothing is drawn; from the first page on that is built in frames, where it is."""

    def __init__(
        self, still: CdpSession, *, draw: Callable[[], Awaitable[PlaywrightSession]]
    ) -> None:
        self._still = still
        self._draw = draw
        self._drawn: PlaywrightSession | None = None
        self._drawing: asyncio.Future[PlaywrightSession] | None = None
        self._closed = False

    @property
    def is_alive(self) -> bool:
        return self._still.is_alive and (self._drawn is None or self._drawn.is_alive)

    def tab(self, *, run_id: str, submits: bool = False) -> AbstractAsyncContextManager[Tab]:
        raise Unavailable("this session only reads pages")

    @asynccontextmanager
    async def reader(self, *, run_id: str) -> AsyncIterator[Reader]:
        yield _Reading(self, run_id)

    async def read(self, run_id: str, url: str, options: ExtractOptions) -> Extract:
        if self._drawn is None:
            with contextlib.suppress(WaitsForFrames):
                async with self._still.reader(run_id=run_id) as reader:
                    return await reader.read(url, options)
        # The turn was given back first: those who wait for a second one must not hold the first.
        async with (await self._draws()).reader(run_id=run_id) as drawing:
            return await drawing.read(url, options)

    async def close(self) -> None:
        self._closed = True
        await self._still.close()
        if self._drawing is not None:
            await asyncio.wait([self._drawing])
            if not _failed(self._drawing):
                await self._drawing.result().close()

    async def _draws(self) -> PlaywrightSession:
        if self._drawing is None or _failed(self._drawing):
            if self._closed:
                raise BrowserGone("the session was closed")
            self._drawing = asyncio.ensure_future(self._draw())
        # A reader that is cancelled meanwhile would leave a browser behind that nobody knows.
        self._drawn = await asyncio.shield(self._drawing)
        return self._drawn


def _failed(done: "asyncio.Future[PlaywrightSession]") -> bool:
    return done.done() and (done.cancelled() or done.exception() is not None)


@dataclass(frozen=True, slots=True)
class _Reading:
    session: ReadingSession
    run_id: str

    async def read(self, url: str, options: ExtractOptions) -> Extract:
        return await self.session.read(self.run_id, url, options)
