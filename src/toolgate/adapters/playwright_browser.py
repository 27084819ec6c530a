"""The browser port on Playwright and the system's Chromium.

One browser process; a context per session, with warm spares; tabs reused within a session. It
knows pages and their failures, not tasks: what a failure means to a run is said elsewhere.
"""

import asyncio
import contextlib
import logging
import secrets
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import urlsplit

import msgspec

from toolgate.adapters.chromium import (
    BLOCKED_MEDIA,
    FLAGS,
    find_chromium,
    find_marked,
    may_sandbox,
    process_tree,
    resident_bytes,
)
from toolgate.adapters.tab_slots import TabSlots
from toolgate.domain.errors import ToolgateError, Unavailable
from toolgate.domain.task_runs import Trust
from toolgate.ports.browser import (
    BrowserGone,
    Degraded,
    Download,
    DownloadTooLarge,
    ElementAbsent,
    Extract,
    ExtractOptions,
    Locator,
    LocatorMode,
    NavigationFailed,
    NavigationRefused,
    NavigationTimedOut,
    PageCrashed,
    PageError,
)

if TYPE_CHECKING:
    from playwright.async_api import (
        Browser,
        BrowserContext,
        CDPSession,
        ElementHandle,
        Frame,
        Page,
        Playwright,
        Request,
        Response,
    )
    from playwright.async_api import Download as PageDownload

log = logging.getLogger(__name__)
T = TypeVar("T")

LEAVE_S: Final = 0.15  # a click that leads elsewhere asks for it within this time
EXTRACTOR: Final = files("toolgate.adapters").joinpath("page_extractor.js").read_text("utf-8")
FINDER: Final = files("toolgate.adapters").joinpath("page_finder.js").read_text("utf-8")
WATCH: Final = files("toolgate.adapters").joinpath("page_watch.js").read_text("utf-8")


def never_refused(_host: str, _port: int) -> bool:
    """For a browser that talks to the world directly."""
    return False


@dataclass(frozen=True, slots=True)
class BrowserOptions:
    """Budgets in milliseconds. A hang is answered within soft + stop + static."""

    executable: str = ""  # empty: the first known one
    proxy_url: str = ""  # the guarded way out for trust `remote`; without it there is none
    slots: int = 8  # about 4 tabs per core
    tabs_per_session: int = 20  # seed 004 §4.5
    soft_ms: int = 5_000
    navigation_ms: int = 15_000
    quiet_ms: int = 2_000
    stop_ms: int = 500
    static_ms: int = 1_500
    navigations_per_tab: int = 100
    spares: int = 1
    memory_limit: int = 3 * 1024**3
    memory_check_s: float = 5.0
    download_limit: int = 20 * 1024**2
    extra_flags: tuple[str, ...] = ()


class _Looked(msgspec.Struct, rename="camel"):
    url: str
    title: str
    page_type: str
    element_count: int
    top_sections: tuple[str, ...]
    restless: bool
    page_info: msgspec.Raw = msgspec.Raw()
    content: msgspec.Raw = msgspec.Raw()


_looked: Final = msgspec.json.Decoder(_Looked)


class _IsDownload(NavigationFailed):
    pass


def _future() -> "asyncio.Future[PageDownload]":
    return asyncio.get_running_loop().create_future()


@dataclass(eq=False)
class _Generation:
    """One life of the browser process, and the sessions in it."""

    browser: "Browser"
    mark: str
    sessions: set["PlaywrightSession"] = field(default_factory=set)
    spares: dict[Trust, list["BrowserContext"]] = field(default_factory=dict)
    retired: bool = False
    pid: int | None = None

    @property
    def is_alive(self) -> bool:
        return self.browser.is_connected()


class PlaywrightBrowser:
    """Starts Chromium when the first session is asked for, and again whenever it has died."""

    def __init__(
        self,
        options: BrowserOptions | None = None,
        *,
        was_refused: Callable[[str, int], bool] = never_refused,
    ) -> None:
        """`was_refused` says whether the guarded proxy lately refused this host and port."""
        self.options = options or BrowserOptions()
        self.slots = TabSlots(self.options.slots)
        self.was_refused = was_refused
        self.launches = 0
        self._playwright: Playwright | None = None
        self._generation: _Generation | None = None
        self._starting = asyncio.Lock()
        self._background: set[asyncio.Task[None]] = set()
        self._closed = False
        self._scratch = tempfile.TemporaryDirectory(prefix="toolgate-downloads-")
        self.downloads = Path(self._scratch.name)

    async def open(self, *, trust: Trust, media: bool = False) -> "PlaywrightSession":
        if trust is Trust.REMOTE and not self.options.proxy_url:
            raise Unavailable("there is no guarded proxy for a remote caller's pages")
        for last in (False, True):
            generation = await self._alive()
            try:
                context = await self._context(generation, trust)
            except Exception as failed:
                if last or generation.is_alive:
                    raise _translated(failed) from failed
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
            await _within(5, generation.browser.close())
        if self._playwright is not None:
            await _within(5, self._playwright.stop())
            self._playwright = None
        self._scratch.cleanup()

    def processes(self) -> list[int]:
        """The browser's processes, for health and tests; empty where it is not running."""
        generation = self._generation
        if generation is None or not generation.is_alive:
            return []
        if generation.pid is None:
            generation.pid = find_marked(generation.mark)
        return [] if generation.pid is None else process_tree(generation.pid)

    async def is_healthy(self) -> bool:
        """Whether a running browser still answers; one that never started is healthy."""
        generation = self._generation
        if generation is None:
            return True
        if not generation.is_alive:
            return False
        context = next((session.context for session in generation.sessions), None)
        if context is None:
            return True
        return await _within(2, context.cookies("http://health.invalid")) is not None

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run something that nobody waits for; it ends with the browser at the latest."""
        task = asyncio.ensure_future(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def release(self, session: "PlaywrightSession", generation: _Generation) -> None:
        generation.sessions.discard(session)
        if generation.retired and not generation.sessions:
            await _within(5, generation.browser.close())

    async def _alive(self) -> _Generation:
        async with self._starting:
            generation = self._generation
            if generation is not None and generation.is_alive and not generation.retired:
                return generation
            if self._closed:
                raise Unavailable("the browser is closed")
            self._generation = generation = await self._launch()
            self.spawn(self._watch_memory(generation))
            return generation

    async def _launch(self) -> _Generation:
        executable = find_chromium(self.options.executable)
        for last in (False, True):
            try:
                playwright = await self._driver()
                mark = f"--toolgate-browser={secrets.token_hex(8)}"
                browser = await playwright.chromium.launch(
                    executable_path=executable,
                    args=[*FLAGS, mark, *self.options.extra_flags],
                    chromium_sandbox=may_sandbox(),
                    downloads_path=self.downloads,
                    timeout=20_000,
                )
            except Exception as failed:
                log.warning("browser_launch_failed error=%s", type(failed).__name__)
                stale, self._playwright = self._playwright, None
                if stale is not None:
                    await _within(2, stale.stop())
                if last:
                    raise Unavailable(f"{executable} could not be started: {failed}") from failed
            else:
                self.launches += 1
                log.info("browser_started version=%s launches=%d", browser.version, self.launches)
                return _Generation(browser, mark)
        raise AssertionError

    async def _driver(self) -> "Playwright":
        if self._playwright is None:
            # An extra, and 0.3 s to import: paid by the first task, not at start.
            from playwright.async_api import async_playwright  # noqa: PLC0415

            self._playwright = await async_playwright().start()
        return self._playwright

    async def _context(self, generation: _Generation, trust: Trust) -> "BrowserContext":
        spares = generation.spares.get(trust)
        if spares:
            return spares.pop()
        return await self._new_context(generation, trust)

    async def _new_context(self, generation: _Generation, trust: Trust) -> "BrowserContext":
        context = await generation.browser.new_context(
            accept_downloads=True,
            service_workers="block",  # they outlive their page
            viewport={"width": 1280, "height": 800},
            reduced_motion="reduce",
            proxy=(
                {"server": self.options.proxy_url, "bypass": "<-loopback>"}
                if trust is Trust.REMOTE
                else None
            ),
        )
        await context.add_init_script(WATCH)
        return context

    async def _warm(self, generation: _Generation, trust: Trust) -> None:
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
                    await _within(5, generation.browser.close())


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
        self._media = media
        self.context = context
        self._generation = generation
        self._idle: list[PlaywrightTab] = []
        self._room = asyncio.Semaphore(owner.options.tabs_per_session)
        self._closed = False
        context.on("page", self._popped_up)

    @property
    def is_alive(self) -> bool:
        return not self._closed and self._generation.is_alive

    @asynccontextmanager
    async def tab(self, *, run_id: str) -> AsyncIterator["PlaywrightTab"]:
        async with self._room, self.owner.slots.slot(run_id):
            if not self.is_alive:
                raise BrowserGone("the session's browser is gone")
            tab = self._idle.pop() if self._idle else PlaywrightTab(self, *await self.new_page())
            try:
                yield tab
            except ToolgateError:
                self._keep(tab)
                raise
            except BaseException:
                tab.discard()  # stopped in the middle of something
                raise
            self._keep(tab)

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        with contextlib.suppress(Exception):
            if self._generation.is_alive:
                await _within(5, self.context.close())
        await self.owner.release(self, self._generation)

    async def new_page(self) -> tuple["Page", "CDPSession"]:
        with _translating():
            page = await self.context.new_page()
            cdp = await self.context.new_cdp_session(page)
            if not self._media:
                await cdp.send("Network.enable")
                await cdp.send("Network.setBlockedURLs", {"urls": list(BLOCKED_MEDIA)})
            return page, cdp

    def _keep(self, tab: "PlaywrightTab") -> None:
        worn = tab.navigations >= self.owner.options.navigations_per_tab
        if worn or not tab.is_usable or self._closed:
            tab.discard()
        else:
            self._idle.append(tab)

    def _popped_up(self, page: "Page") -> None:
        self.owner.spawn(_close_if_popup(page))


async def _close_if_popup(page: "Page") -> None:
    with contextlib.suppress(Exception):
        if await page.opener() is not None:
            await page.close()


class PlaywrightTab:
    def __init__(self, session: PlaywrightSession, page: "Page", cdp: "CDPSession") -> None:
        self._session = session
        self._options = session.owner.options
        self._crashed = False
        self._spent = False
        self._restless = False
        self._went = 0.0
        self._committed = asyncio.Event()
        self._download: asyncio.Future[PageDownload] = _future()
        self.navigations = 0
        self._attach(page, cdp)

    def _attach(self, page: "Page", cdp: "CDPSession") -> None:
        self._page = page
        self._cdp = cdp
        page.on("crash", self._on_crash)
        page.on("framenavigated", self._on_navigated)
        page.on("download", self._on_download)

    @property
    def url(self) -> str:
        return self._page.url

    @property
    def is_usable(self) -> bool:
        fit = not self._crashed and not self._spent and not self._page.is_closed()
        return fit and self._session.is_alive

    def discard(self) -> None:
        """Close the page without waiting: a page that hangs takes its time."""
        self._session.owner.spawn(self._close())

    async def visit(self, url: str, *, timeout_ms: int | None = None) -> None:
        budget = self._options.navigation_ms if timeout_ms is None else timeout_ms
        if not await self._go(url, soft_ms=min(self._options.soft_ms, budget), hard_ms=budget):
            await self._stop()

    async def read(self, url: str, options: ExtractOptions) -> Extract:
        budget = self._options
        loop = asyncio.get_running_loop()
        try:
            came = await self._go(url, soft_ms=budget.soft_ms, hard_ms=budget.navigation_ms)
        except _IsDownload:
            return await self._downloaded()
        if came:
            left = max(0.5, budget.soft_ms / 1000 - (loop.time() - self._went))
            quiet_ms = min(budget.quiet_ms, int(left * 500))
            with contextlib.suppress(TimeoutError):
                return await self._look(options, quiet_ms=quiet_ms, within_s=left)
        self._check_crash()
        try:
            await self._stop()
            looked = await self._look(options, quiet_ms=0, within_s=budget.stop_ms / 1000)
        except TimeoutError:
            return await self._read_static(url, options)
        return _marked(looked, Degraded.STOPPED)

    async def extract(self, options: ExtractOptions) -> Extract:
        budget = self._options
        try:
            return await self._look(
                options, quiet_ms=budget.quiet_ms, within_s=budget.soft_ms / 1000
            )
        except TimeoutError:
            await self._stop()
        try:
            looked = await self._look(options, quiet_ms=0, within_s=budget.stop_ms / 1000)
        except TimeoutError as hung:
            self._crashed = True  # nothing will come of this tab any more
            raise PageCrashed("the page no longer answers") from hung
        return _marked(looked, Degraded.STOPPED)

    async def title(self) -> str:
        return await self._ask(self._page.title())

    async def fill(self, locator: Locator, value: str, *, timeout_ms: int) -> None:
        element = await self._find(locator, "field", timeout_ms)
        tag = await self._ask(element.evaluate("element => element.tagName"))
        if tag == "SELECT":
            await self._ask(element.select_option(value))
        else:
            await self._ask(element.fill(value, timeout=timeout_ms))

    async def click(self, locator: Locator, *, timeout_ms: int) -> None:
        element = await self._find(locator, "target", timeout_ms)
        await self._act(element.click(timeout=timeout_ms, no_wait_after=True))

    async def press(self, locator: Locator, key: str, *, timeout_ms: int) -> None:
        element = await self._find(locator, "any", timeout_ms)
        await self._act(element.press(key, timeout=timeout_ms, no_wait_after=True))

    async def _act(self, action: Awaitable[None]) -> None:
        """Do it; where it sends the page elsewhere, wait until it is there."""
        leaving = asyncio.Event()

        def on_request(request: "Request") -> None:
            if request.is_navigation_request() and request.frame == self._page.main_frame:
                leaving.set()

        self._committed.clear()
        self._page.on("request", on_request)
        try:
            await self._ask(action)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LEAVE_S):
                    await leaving.wait()
                async with asyncio.timeout(self._options.navigation_ms / 1000):
                    await self._committed.wait()
        finally:
            self._page.remove_listener("request", on_request)

    async def has(self, locator: Locator) -> bool:
        element = await self._look_for(locator, "any")
        return (
            element is not None
            and await self._ask(element.is_visible())
            and await self._ask(element.is_enabled())
        )

    async def wait_any(self, locators: Sequence[Locator], *, timeout_ms: int) -> bool:
        loop = asyncio.get_running_loop()
        end = loop.time() + timeout_ms / 1000
        while True:
            for locator in locators:
                if await self.has(locator):
                    return True
            if loop.time() >= end:
                return False
            await asyncio.sleep(0.1)

    async def wait_selector(self, selector: str, *, timeout_ms: int) -> bool:
        return await self._comes(
            self._page.wait_for_selector(selector, state="visible", timeout=timeout_ms)
        )

    async def wait_url(self, part: str, *, timeout_ms: int) -> bool:
        return await self._comes(
            self._page.wait_for_url(
                lambda url: part in url, wait_until="commit", timeout=timeout_ms
            )
        )

    async def wait_text(self, text: str, *, timeout_ms: int) -> bool:
        return await self._comes(
            self._page.wait_for_function(
                "text => document.body && document.body.innerText.includes(text)",
                arg=text,
                timeout=timeout_ms,
                polling=100,
            )
        )

    async def wait_stable(self, *, timeout_ms: int) -> bool:
        loop = asyncio.get_running_loop()
        end = loop.time() + timeout_ms / 1000
        before = None
        while loop.time() < end:
            with contextlib.suppress(PageError, TimeoutError):  # it may navigate meanwhile
                await self._comes(
                    self._page.wait_for_load_state(
                        "domcontentloaded", timeout=max(1, (end - loop.time()) * 1000)
                    )
                )
                async with asyncio.timeout(max(0.1, end - loop.time())):
                    looked = await self._ask(
                        self._page.evaluate(
                            "[location.href, document.title, document.body ? document.body.innerText.length : 0]"
                        )
                    )
                if looked == before:
                    return True
                before = looked
            self._check_crash()
            await asyncio.sleep(0.1)
        return False

    async def blank_fields(self) -> None:
        with contextlib.suppress(PageError, TimeoutError):
            async with asyncio.timeout(1):
                await self._ask(
                    self._page.evaluate(
                        "() => document.querySelectorAll('input,textarea').forEach(field => { field.value = ''; })"
                    )
                )

    async def screenshot(self, *, full_page: bool) -> bytes:
        return await self._ask(
            self._page.screenshot(full_page=full_page, timeout=self._options.soft_ms)
        )

    async def pdf(self) -> bytes:
        return await self._ask(self._page.pdf(print_background=True))

    async def cookie_count(self) -> int:
        return len(await self._ask(self._session.context.cookies()))

    async def _downloaded(self) -> Extract:
        """The file that came instead of a page, unless it is too large or too slow."""
        path = None
        with contextlib.suppress(Exception):  # it was canceled, by us or by the server's end
            async with asyncio.timeout(self._options.navigation_ms / 1000):
                download = await self._download
                path = await download.path()
        if path is None:
            raise DownloadTooLarge(
                f"the file is larger than {self._options.download_limit} bytes, or incomplete"
            )
        download = self._download.result()
        content = await asyncio.to_thread(path.read_bytes)
        await _within(1, download.delete())
        file = Download(download.suggested_filename, "application/octet-stream", content)
        return Extract(download.url, file.name, "download", 0, (), None, None, download=file)

    async def _bound(self, download: "PageDownload") -> None:
        """Stop a download that grows beyond the limit or takes too long, wanted or not."""
        place = self._session.owner.downloads
        end = asyncio.get_running_loop().time() + self._options.navigation_ms / 1000
        finished = asyncio.ensure_future(download.failure())
        try:
            while asyncio.get_running_loop().time() < end:
                await asyncio.wait([finished], timeout=0.05)
                largest = max((_size_of(file) for file in place.iterdir()), default=0)
                if largest > self._options.download_limit:
                    break
                if finished.done():
                    return
            await _within(2, download.cancel())
        finally:
            finished.cancel()

    async def _go(self, url: str, *, soft_ms: int, hard_ms: int) -> bool:
        """Navigate; whether DOM content came within the soft budget of the first byte."""
        if self._restless:
            await self._leave()
        self._committed.clear()
        self._download = _future()
        self._restless = True
        self.navigations += 1
        self._went = asyncio.get_running_loop().time()
        try:
            answer = await self._goto(url, soft_ms)
        except Exception as failed:
            if not _is_timeout(failed):
                self._spent = True  # its error page is still to come
                raise await self._explained(failed, url) from failed
        else:
            if answer is not None and answer.status == 403 and self._refused(url):
                raise NavigationRefused("the guard refused this address")
            return True
        if not self._committed.is_set():
            await self._wait_commit(url, max(0, hard_ms - soft_ms) / 1000)
            self._went = asyncio.get_running_loop().time()
            return await self._comes(
                self._page.wait_for_load_state("domcontentloaded", timeout=soft_ms)
            )
        return False

    async def _goto(self, url: str, soft_ms: int) -> "Response | None":
        try:
            return await self._page.goto(url, wait_until="domcontentloaded", timeout=soft_ms)
        except Exception as failed:
            if not _is_interrupted(failed):
                raise
            return None  # it goes on by itself: read it wherever it is

    async def _leave(self) -> None:
        """Be rid of the page before: one that navigates by itself could pass for the next."""
        try:
            await self._page.goto("about:blank", timeout=1_000)
        except Exception as failed:
            if not (_is_interrupted(failed) or _is_timeout(failed)):
                raise self._noted(failed) from failed
            self._session.owner.spawn(_close_page(self._page))
            self._attach(*await self._session.new_page())

    async def _wait_commit(self, url: str, within_s: float) -> None:
        """For a server that is slow to answer; the navigation goes on behind goto's back."""
        try:
            async with asyncio.timeout(within_s):
                await self._committed.wait()
        except TimeoutError:
            self._check_crash()
            if self._refused(url):
                raise NavigationRefused("the guard refused this address") from None
            await self._stop()
            raise NavigationTimedOut("the server did not answer in time") from None

    async def _explained(self, failed: Exception, url: str) -> PageError:
        translated = self._noted(failed)
        if "ERR_ABORTED" in str(failed) and await self._is_dead():
            return PageCrashed("the page crashed")  # while loading, a crash looks like an abort
        if not isinstance(translated, PageCrashed) and self._refused(url):
            return NavigationRefused("the guard refused this address")
        return translated

    async def _is_dead(self) -> bool:
        try:
            async with asyncio.timeout(self._options.stop_ms / 1000):
                await self._ask(self._page.evaluate("1"))
        except (PageError, TimeoutError) as probed:
            self._crashed = self._crashed or isinstance(probed, PageCrashed)
        return self._crashed

    async def _look(self, options: ExtractOptions, *, quiet_ms: int, within_s: float) -> Extract:
        """One evaluate; again where the page went elsewhere meanwhile."""
        argument = {
            "pageInfo": options.page_info,
            "content": options.content,
            "sections": True,
            "maxElements": options.max_elements,
            "maxContentLength": options.max_content_length,
            "quietMs": quiet_ms,
        }
        async with asyncio.timeout(within_s):
            while True:
                try:
                    text = await self._page.evaluate(EXTRACTOR, argument)
                except Exception as failed:
                    if not _is_gone_elsewhere(failed):
                        raise self._noted(failed) from failed
                else:
                    if text:
                        looked = _looked.decode(text)
                        self._restless = looked.restless
                        return _extract(looked)
                await asyncio.sleep(0.02)

    async def _stop(self) -> None:
        """Stop the load and all scripts; works on a busy main thread. The tab is spent by it."""
        self._spent = True
        budget = self._options.stop_ms / 1000
        off = {"value": True}
        await _within(budget, self._cdp.send("Runtime.terminateExecution"))
        await _within(budget / 4, self._cdp.send("Emulation.setScriptExecutionDisabled", off))
        await _within(budget / 4, self._cdp.send("Page.stopLoading"))

    async def _read_static(self, url: str, options: ExtractOptions) -> Extract:
        """The HTML as it came, no script run, in a tab of its own; the hung one is closed."""
        self._crashed = True
        context = self._session.context
        page = None
        try:
            async with asyncio.timeout(self._options.static_ms / 1000):
                page = await context.new_page()
                cdp = await context.new_cdp_session(page)
                await cdp.send("Emulation.setScriptExecutionDisabled", {"value": True})
                still = PlaywrightTab(self._session, page, cdp)
                await page.goto(url, wait_until="domcontentloaded")
                looked = await still._look(options, quiet_ms=0, within_s=2)
        except TimeoutError:
            raise NavigationTimedOut("the page hangs, and so does its HTML") from None
        except PageError:
            raise
        except Exception as failed:
            raise _translated(failed) from failed
        finally:
            if page is not None:
                self._session.owner.spawn(_close_page(page))
        return _marked(looked, Degraded.STATIC)

    async def _find(self, locator: Locator, kind: str, timeout_ms: int) -> "ElementHandle":
        loop = asyncio.get_running_loop()
        end = loop.time() + timeout_ms / 1000
        while True:
            element = await self._look_for(locator, kind)
            if element is not None:
                return element
            if loop.time() >= end:
                raise ElementAbsent(f"there is no element for {locator.mode} {locator.value!r}")
            await asyncio.sleep(0.1)

    async def _look_for(self, locator: Locator, kind: str) -> "ElementHandle | None":
        try:
            if locator.mode is LocatorMode.SELECTOR:
                return await self._page.query_selector(locator.value)
            handle = await self._page.evaluate_handle(
                FINDER, {"query": locator.value, "kind": kind}
            )
            return handle.as_element()
        except Exception as failed:
            if _is_gone_elsewhere(failed):
                return None
            raise self._noted(failed) from failed

    async def _comes(self, waiting: Awaitable[Any]) -> bool:
        try:
            await waiting
        except Exception as failed:
            if _is_timeout(failed):
                return False
            raise self._noted(failed) from failed
        return True

    async def _ask(self, asking: Awaitable[T]) -> T:
        try:
            return await asking
        except Exception as failed:
            raise self._noted(failed) from failed

    def _noted(self, failed: Exception) -> PageError:
        translated = _translated(failed)
        if isinstance(translated, PageCrashed):
            self._crashed = True
        return translated

    def _refused(self, url: str) -> bool:
        with contextlib.suppress(ValueError):
            for address in {url, self._page.url}:
                parts = urlsplit(address)
                port = parts.port or (443 if parts.scheme in {"https", "wss"} else 80)
                if parts.hostname and self._session.owner.was_refused(parts.hostname, port):
                    return True
        return False

    def _check_crash(self) -> None:
        if not self._session.is_alive:
            raise BrowserGone("the browser died")
        if self._crashed:
            raise PageCrashed("the page crashed")

    async def _close(self) -> None:
        await _close_page(self._page)

    def _on_crash(self, page: "Page") -> None:
        if page is self._page:
            self._crashed = True

    def _on_navigated(self, frame: "Frame") -> None:
        if frame.parent_frame is None and frame.page is self._page:
            self._committed.set()

    def _on_download(self, download: "PageDownload") -> None:
        if self._download.done():
            self._session.owner.spawn(_cancel_download(download))  # one file per visit
        else:
            self._download.set_result(download)
            self._session.owner.spawn(self._bound(download))


def _size_of(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return 0


async def _cancel_download(download: "PageDownload") -> None:
    await _within(2, download.cancel())


async def _close_page(page: "Page") -> None:
    with contextlib.suppress(Exception):
        await _within(10, page.close())


async def _within(seconds: float, work: Awaitable[T]) -> T | None:
    """The outcome, or None where it failed or took too long: for what must not hold us up."""
    try:
        async with asyncio.timeout(seconds):
            return await work
    except Exception as failed:  # noqa: BLE001 - what is being shut down may fail in any way
        log.debug("browser_step_failed error=%s", type(failed).__name__)
        return None


@contextlib.contextmanager
def _translating() -> Any:
    try:
        yield
    except Exception as failed:
        raise _translated(failed) from failed


def _extract(looked: _Looked) -> Extract:
    return Extract(
        url=looked.url,
        title=looked.title,
        page_type=looked.page_type,
        element_count=looked.element_count,
        top_sections=looked.top_sections,
        page_info=bytes(looked.page_info) or None,
        content=bytes(looked.content) or None,
    )


def _marked(extract: Extract, degraded: Degraded) -> Extract:
    return Extract(
        extract.url,
        extract.title,
        extract.page_type,
        extract.element_count,
        extract.top_sections,
        extract.page_info,
        extract.content,
        degraded,
    )


def _is_timeout(failed: Exception) -> bool:
    return type(failed).__name__ == "TimeoutError"


def _is_interrupted(failed: Exception) -> bool:
    return "interrupted by another navigation" in str(failed)


def _is_gone_elsewhere(failed: Exception) -> bool:
    text = str(failed)
    return (
        "Execution context was destroyed" in text
        or "Cannot find context" in text
        or "Unable to adopt" in text
    )


def _translated(failed: Exception) -> PageError:
    """Playwright's error as one of the port's: the only place that reads its sentences."""
    if isinstance(failed, PageError):
        return failed
    text = str(failed)
    if _is_timeout(failed):
        return NavigationTimedOut("the page did not get there in time")
    if "crashed" in text:
        return PageCrashed("the page crashed")
    if "has been closed" in text or "Connection closed" in text or "Target closed" in text:
        return BrowserGone("the page's browser or session is gone")
    if "Download is starting" in text:
        return _IsDownload("the address is a download")
    _, found, reason = text.partition("net::")
    if found:
        return NavigationFailed(reason.split()[0])
    return PageError(text.splitlines()[0] if text else type(failed).__name__)
