"""The browser port on Playwright and the system's Chromium.

One browser process; a context per session, with warm spares; tabs reused within a session. It
knows pages and their failures, not tasks: what a failure means to a run is said elsewhere.
"""

import asyncio
import contextlib
import logging
import secrets
import shutil
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from toolgate.browser.browser import BrowserGone, PageCrashed, PageError
from toolgate.browser.chromium import (
    BLOCKED_MEDIA,
    FLAGS,
    find_chromium,
    find_marked,
    is_suspect,
    kill_marked,
    may_sandbox,
    process_tree,
    resident_bytes,
)
from toolgate.browser.documents import DocumentGuard, Paused, TabDocuments
from toolgate.browser.leftovers import end_strays
from toolgate.browser.options import BrowserOptions
from toolgate.browser.page_extract import WATCH
from toolgate.browser.playwright.errors import translated, translating, within
from toolgate.browser.playwright.tab import OpenPage, PlaywrightTab
from toolgate.browser.proxy_verdicts import no_complaint
from toolgate.browser.tab_slots import TabSlots
from toolgate.core.enums import TrustLevel
from toolgate.core.errors import ToolgateError, Unavailable
from toolgate.core.scratch import make_scratch

if TYPE_CHECKING:
    from playwright.async_api import Browser, BrowserContext, Page, Playwright

log = logging.getLogger(__name__)

LAUNCH_S: Final = 20.0
OPEN_S: Final = 15.0  # a context or a page comes in milliseconds, on a loaded machine in seconds
# One that is only busy, drawing a long page on a loaded machine, must not be ended for one that hangs.
ASK_S: Final = 20.0


@dataclass(eq=False)
class _Generation:
    """One life of the browser process, and the sessions in it."""

    browser: "Browser"
    mark: str
    documents: DocumentGuard
    sessions: set["PlaywrightSession"] = field(default_factory=set)
    spares: dict[TrustLevel, list["BrowserContext"]] = field(default_factory=dict)
    retired: bool = False
    pid: int | None = None
    lost: bool = False
    _waiting: set[asyncio.Timeout] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.browser.on("disconnected", lambda _: self.lose())

    @property
    def is_alive(self) -> bool:
        return not self.lost and self.browser.is_connected()

    def lose(self) -> None:
        """It died: wake all who wait for its answer, for some calls never return then."""
        self.lost = True
        now = asyncio.get_running_loop().time()
        for waiting in self._waiting:
            if not waiting.expired():
                waiting.reschedule(now)

    @asynccontextmanager
    async def living(self, limit_s: float | None = None) -> AsyncIterator[None]:
        """Ends what is done in it with BrowserGone when the browser dies, or where it takes too long."""
        if not self.is_alive:
            raise BrowserGone("the browser is gone")
        waiting = asyncio.timeout(limit_s)
        self._waiting.add(waiting)
        try:
            async with waiting:
                yield
        except TimeoutError:
            if not waiting.expired():
                raise
            if not self.lost:
                raise PageCrashed("the browser does not answer") from None
            raise BrowserGone("the browser died") from None
        finally:
            self._waiting.discard(waiting)

    async def cancel_download(self, guid: str) -> None:
        asking = await self.browser.new_browser_cdp_session()
        try:
            for context in (await asking.send("Target.getBrowserContexts"))["browserContextIds"]:
                given = {"guid": guid, "browserContextId": context}
                if await within(ASK_S, asking.send("Browser.cancelDownload", given)) is not None:
                    return
        finally:
            await asking.detach()

    async def check(self) -> None:
        """A call failed: know whether the browser is dead or hangs, before the caller tries again."""
        if not self.is_alive:
            return
        asking = await within(ASK_S, self.browser.new_browser_cdp_session())
        if asking is None:
            self.lose()
            await asyncio.to_thread(kill_marked, self.mark)
        else:
            await within(ASK_S, asking.detach())


class PlaywrightBrowser:
    """Starts Chromium when the first session is asked for, and again whenever it has died."""

    def __init__(
        self,
        options: BrowserOptions | None = None,
        *,
        complaint: Callable[[str], PageError | None] = no_complaint,
        slots: TabSlots | None = None,
    ) -> None:
        """`complaint` says why the guarded proxy lately let nothing come from a URL."""
        self.options = options or BrowserOptions()
        self.slots = slots or TabSlots(self.options.slots)
        self.complaint = complaint
        self.launches = 0
        self._playwright: Playwright | None = None
        self._generation: _Generation | None = None
        self._starting = asyncio.Lock()
        self._background: set[asyncio.Task[None]] = set()
        self._closed = False
        self._scratch: Path | None = None

    @property
    def downloads(self) -> Path:
        assert self._scratch is not None  # it is made with the first browser
        return self._scratch

    async def open(
        self, *, trust: TrustLevel, media: bool = False, only_reads: bool = False
    ) -> "PlaywrightSession":
        if trust is TrustLevel.REMOTE and not self.options.proxy_url:
            raise Unavailable("there is no guarded proxy for a remote caller's pages")
        for last in (False, True):
            generation = await self._alive()
            try:
                context = await self._context(generation, trust)
            except Exception as failed:
                ours = translated(failed)
                if is_suspect(ours):
                    await generation.check()
                if last or generation.is_alive:
                    raise ours from failed
                continue  # it died under us: once more, in a new one
            session = PlaywrightSession(self, generation, context, media=media)
            generation.sessions.add(session)
            self.spawn(self._warm(generation, trust))
            return session
        raise BrowserGone("the browser cannot be started")

    async def close(self) -> None:
        self._closed = True
        generation, self._generation = self._generation, None
        for task in list(self._background):
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        if generation is not None:
            await within(5, generation.browser.close())
        if self._playwright is not None:
            await within(5, self._playwright.stop())
            self._playwright = None
        if self._scratch is not None:
            await asyncio.to_thread(shutil.rmtree, self._scratch, ignore_errors=True)

    def processes(self) -> list[int]:
        """The browser's processes, for health and tests; empty where it is not running."""
        generation = self._generation
        if generation is None or not generation.is_alive:
            return []
        if generation.pid is None:
            generation.pid = find_marked(generation.mark)
        return [] if generation.pid is None else process_tree(generation.pid)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run something that nobody waits for; it ends with the browser at the latest."""
        task = asyncio.ensure_future(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def release(self, session: "PlaywrightSession", generation: _Generation) -> None:
        generation.sessions.discard(session)
        if generation.retired and not generation.sessions:
            await within(5, generation.browser.close())

    async def _alive(self) -> _Generation:
        async with self._starting:
            generation = self._generation
            if generation is not None and generation.is_alive and not generation.retired:
                return generation
            if self._closed:
                raise Unavailable("the browser is closed")
            self._generation = generation = await self._launch()
            self.spawn(self._watch_memory(generation))
            self.spawn(
                end_strays(
                    self.downloads,
                    limit=self.options.download_limit,
                    is_alive=lambda: generation.is_alive,
                    cancel=lambda guid: within(ASK_S, generation.cancel_download(guid)),
                )
            )
            return generation

    async def _launch(self) -> _Generation:
        executable = find_chromium(self.options.executable)
        if self._scratch is None:
            self._scratch = await asyncio.to_thread(make_scratch, "downloads")
        for last in (False, True):
            try:
                playwright = await self._driver()
                mark = f"--toolgate-browser={secrets.token_hex(8)}"
                async with asyncio.timeout(LAUNCH_S + 5):
                    browser = await playwright.chromium.launch(
                        executable_path=executable,
                        args=[*FLAGS, mark, *self.options.extra_flags],
                        chromium_sandbox=may_sandbox(),
                        downloads_path=self.downloads,
                        timeout=LAUNCH_S * 1000,
                    )
                    documents = await self._guarded(browser)
            except Exception as failed:
                log.warning("browser_launch_failed error=%s", type(failed).__name__)
                stale, self._playwright = self._playwright, None
                if stale is not None:
                    await within(2, stale.stop())
                if last:
                    raise Unavailable(f"{executable} could not be started: {failed}") from failed
            else:
                if self._closed:  # meanwhile
                    await within(5, browser.close())
                    await self.close()
                    raise Unavailable("the browser is closed")
                self.launches += 1
                log.info("browser_started version=%s launches=%d", browser.version, self.launches)
                return _Generation(browser, mark, documents)
        raise AssertionError

    async def _guarded(self, browser: "Browser") -> DocumentGuard:
        cdp = await browser.new_browser_cdp_session()
        documents = DocumentGuard(cdp.send, spawn=self.spawn)
        cdp.on(
            "Fetch.requestPaused",
            lambda paused: documents.paused(msgspec.convert(paused, Paused)),
        )

        def created(event: dict[str, Any]) -> None:
            target = event["targetInfo"]
            if opener := target.get("openerId"):  # a pop-up
                documents.attached(target["targetId"], opener)

        cdp.on("Target.targetCreated", created)
        pages = {"discover": True, "filter": [{"type": "page"}]}
        await cdp.send("Target.setDiscoverTargets", pages)
        await documents.enable()
        return documents

    async def _driver(self) -> "Playwright":
        if self._playwright is None:
            try:
                # 0.3 s to import: paid by the first task, not at start.
                from playwright.async_api import async_playwright  # noqa: PLC0415
            except ModuleNotFoundError as missing:
                raise Unavailable(
                    "this task needs the extra `browser`: pip install 'toolgate[browser]'"
                ) from missing

            async with asyncio.timeout(LAUNCH_S):
                self._playwright = await async_playwright().start()
        return self._playwright

    async def _context(self, generation: _Generation, trust: TrustLevel) -> "BrowserContext":
        spares = generation.spares.get(trust)
        if spares:
            return spares.pop()
        return await self._new_context(generation, trust)

    async def _new_context(self, generation: _Generation, trust: TrustLevel) -> "BrowserContext":
        async with generation.living(OPEN_S):
            context = await generation.browser.new_context(
                accept_downloads=True,
                service_workers="block",  # they outlive their page
                viewport={"width": 1280, "height": 800},
                reduced_motion="reduce",
                proxy=(
                    {"server": self.options.proxy_url, "bypass": "<-loopback>"}
                    if trust is TrustLevel.REMOTE
                    else None
                ),
            )
            await context.add_init_script(WATCH)
            return context

    async def _warm(self, generation: _Generation, trust: TrustLevel) -> None:
        spares = generation.spares.setdefault(trust, [])
        with contextlib.suppress(Exception):  # a browser that died has nothing to warm
            while len(spares) < self.options.spares and generation.is_alive:
                spares.append(await self._new_context(generation, trust))

    async def _watch_memory(self, generation: _Generation) -> None:
        """Retire a browser that has grown too large: what runs goes on, what comes is in a new one."""
        while generation.is_alive and not generation.retired:
            await asyncio.sleep(self.options.memory_check_s)
            weight = await asyncio.to_thread(lambda: resident_bytes(self.processes()))
            if weight > self.options.memory_limit:
                log.warning("browser_retired resident_bytes=%d", weight)
                generation.retired = True
                if not generation.sessions:
                    await within(5, generation.browser.close())


class PlaywrightSession:
    def __init__(
        self,
        owner: PlaywrightBrowser,
        generation: _Generation,
        context: "BrowserContext",
        *,
        media: bool,
    ) -> None:
        self.owner = owner
        self.options = owner.options
        self.downloads = owner.downloads
        self.spawn = owner.spawn
        self.complaint = owner.complaint
        self.context = context
        self._media = media
        self._generation = generation
        self._idle: list[PlaywrightTab] = []
        self._room = asyncio.Semaphore(owner.options.tabs_per_session)
        self._closed = False
        self._making = asyncio.Lock()
        self._ours: set[Page] = set()
        context.on("page", self._popped_up)

    @property
    def is_alive(self) -> bool:
        return not self._closed and self._generation.is_alive

    @asynccontextmanager
    async def tab(self, *, run_id: str, submits: bool = False) -> AsyncIterator["PlaywrightTab"]:
        async with self._room, self.owner.slots.slot(run_id), self._told_of_death():
            tab = self._idle_tab() or PlaywrightTab(self, await self.new_page())
            tab.documents.submits = submits
            try:
                yield tab
            except ToolgateError:
                self._keep(tab)
                raise
            except BaseException:
                tab.discard()  # stopped in the middle of something
                raise
            finally:
                tab.documents.submits = False
            self._keep(tab)

    def reader(self, *, run_id: str) -> AbstractAsyncContextManager["PlaywrightTab"]:
        return self.tab(run_id=run_id)

    @asynccontextmanager
    async def _told_of_death(self) -> AsyncIterator[None]:
        """Calls fail a moment before the browser is known to be dead, or never return at all.

        With what words is not always known, and a crash or a time-out may be the whole browser's.
        """
        try:
            async with self._generation.living():
                if self._closed:
                    raise BrowserGone("the session was closed")
                yield
        except PageError as failed:
            if is_suspect(failed):
                await self._generation.check()
                if not self._generation.is_alive:
                    raise BrowserGone("the browser died") from failed
            raise

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        with contextlib.suppress(Exception):
            if self._generation.is_alive:
                await within(5, self.context.close())
        await self.owner.release(self, self._generation)

    async def new_page(self) -> OpenPage:
        async with self._generation.living(OPEN_S):
            with translating():
                page = await self._blank_page()
                cdp = await self.context.new_cdp_session(page)
                await cdp.send("Page.enable")  # says which file a download becomes, and of frames
                target = (await cdp.send("Target.getTargetInfo"))["targetInfo"]["targetId"]
                cdp.on("Page.frameAttached", self._frame_attached)
                page.once("close", lambda _: self._generation.documents.leave(target))
                if not self._media:
                    await cdp.send("Network.enable")
                    await cdp.send("Network.setBlockedURLs", {"urls": list(BLOCKED_MEDIA)})
                return OpenPage(page, cdp, target)

    def enter(self, target: str, documents: TabDocuments) -> None:
        self._generation.documents.enter(target, documents)

    def _frame_attached(self, attached: dict[str, Any]) -> None:
        self._generation.documents.attached(attached["frameId"], attached["parentFrameId"])

    async def _blank_page(self) -> "Page":
        async with self._making:
            page = await self.context.new_page()
            self._ours.add(page)
        page.once("close", lambda closed: self._ours.discard(closed))
        return page

    def _idle_tab(self) -> "PlaywrightTab | None":
        """One that has not crashed since it was kept."""
        while self._idle:
            tab = self._idle.pop()
            if tab.is_usable:
                return tab
            tab.discard()
        return None

    def _keep(self, tab: "PlaywrightTab") -> None:
        worn = tab.navigations >= self.owner.options.navigations_per_tab
        if worn or not tab.is_usable or self._closed:
            tab.discard()
        else:
            self._idle.append(tab)

    def _popped_up(self, page: "Page") -> None:
        self.owner.spawn(self._close_unless_ours(page))

    async def _close_unless_ours(self, page: "Page") -> None:
        """Who opened it does not say whose it is: a pop-up's own opener may be closed already."""
        async with self._making:  # a page of ours is known only when it has come
            pass
        if page not in self._ours:
            await within(ASK_S, page.close())
