"""A tab on Playwright: going to pages, reading them whatever they do, working their forms.

The ladder for a page that hangs: a soft budget, then stop it and read, then its HTML alone.
"""

import asyncio
import base64
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from toolgate.adapters.browser_options import BrowserOptions
from toolgate.adapters.page_looks import (
    EXTRACTOR,
    argument_of,
    decode_looked,
    extract_of,
    marked,
)
from toolgate.adapters.page_scripts import (
    BLANK,
    CHOICE,
    FINDER,
    HERE,
    KIND,
    SEEN,
    TITLE,
)
from toolgate.adapters.playwright_downloads import PlaywrightDownloads
from toolgate.adapters.playwright_errors import (
    ElementReplaced,
    IsDownload,
    is_aborted,
    is_gone_elsewhere,
    is_interrupted,
    is_timeout,
    translated,
    within,
)
from toolgate.adapters.proxy_verdicts import PROXY_STATUS
from toolgate.ports.browser import (
    BrowserGone,
    Degraded,
    ElementAbsent,
    Extract,
    ExtractOptions,
    Locator,
    LocatorMode,
    NavigationTimedOut,
    PageCrashed,
    PageError,
    Picture,
)

if TYPE_CHECKING:
    from playwright.async_api import (
        BrowserContext,
        CDPSession,
        ElementHandle,
        Frame,
        Page,
        Request,
        Response,
    )

T = TypeVar("T")

# What is drawn of a page at most: a picture of more takes longer than anybody waits for it.
WIDEST: Final = 4_096
TALLEST: Final = 16_384
MOST_PIXELS: Final = 1_280 * TALLEST
LONGEST_QUESTION: Final = 200
LEAVE_S: Final = 0.15  # a click that leads elsewhere asks for it within this time


class TabHome(Protocol):
    """The session a tab lives in, as far as the tab needs it."""

    @property
    def options(self) -> BrowserOptions: ...

    @property
    def context(self) -> "BrowserContext": ...

    @property
    def downloads(self) -> Path: ...

    @property
    def is_alive(self) -> bool: ...

    def spawn(self, work: Coroutine[Any, Any, None]) -> None: ...

    def complaint(self, url: str) -> PageError | None: ...

    async def new_page(self) -> tuple["Page", "CDPSession"]: ...


class PlaywrightTab:
    def __init__(self, home: TabHome, page: "Page", cdp: "CDPSession") -> None:
        self._home = home
        self._options = home.options
        self._crashed = False
        self._spent = False
        self._restless = False
        self._followed = False  # the page before is still there: it seemed at rest
        self._went = 0.0
        self._question = ""
        self._committed = asyncio.Event()
        self._downloads = PlaywrightDownloads(
            home.downloads, options=home.options, spawn=home.spawn
        )
        self.navigations = 0
        self._attach(page, cdp)

    def _attach(self, page: "Page", cdp: "CDPSession") -> None:
        self._page = page
        self._cdp = cdp
        page.on("crash", self._on_crash)
        page.on("framenavigated", self._on_navigated)
        page.on("download", self._downloads.came)
        cdp.on("Page.downloadWillBegin", self._downloads.began)
        cdp.on("Page.javascriptDialogOpening", self._on_dialog)

    @property
    def url(self) -> str:
        return self._page.url

    @property
    def unanswered(self) -> str:
        return "" if self._committed.is_set() else self._question

    @property
    def is_usable(self) -> bool:
        fit = not self._crashed and not self._spent and not self._page.is_closed()
        return fit and self._home.is_alive

    def discard(self) -> None:
        """Close the page without waiting: a page that hangs takes its time."""
        self._home.spawn(self._close())

    async def visit(self, url: str, *, timeout_ms: int | None = None) -> None:
        budget = self._options.navigation_ms if timeout_ms is None else timeout_ms
        if not await self._go(url, soft_ms=min(self._options.soft_ms, budget), hard_ms=budget):
            await self._stop()

    async def read(self, url: str, options: ExtractOptions) -> Extract:
        budget = self._options
        loop = asyncio.get_running_loop()
        try:
            came = await self._go(url, soft_ms=budget.soft_ms, hard_ms=budget.navigation_ms)
        except IsDownload:
            return await self._downloads.taken()
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
        return marked(looked, Degraded.STOPPED)

    async def extract(self, options: ExtractOptions) -> Extract:
        budget = self._options
        try:
            return await self._look(
                options, quiet_ms=budget.quiet_ms, within_s=budget.soft_ms / 1000
            )
        except TimeoutError:
            await self._stop()
        # No script runs in it any more, so it answers in the end, however large it is. A browser that
        # was slow to stop it may have stopped our own look instead: hence a second.
        for _ in range(2):
            with contextlib.suppress(TimeoutError):
                half_s = budget.navigation_ms / 2000
                looked = await self._look(options, quiet_ms=0, within_s=half_s)
                return marked(looked, Degraded.STOPPED)
        raise self._hung()

    async def title(self) -> str:
        return str(await self._answered(self._page.evaluate(TITLE)))

    async def fill(self, locator: Locator, value: str, *, timeout_ms: int) -> None:
        async def fill(element: "ElementHandle") -> None:
            kind = await self._told(element.evaluate(KIND))
            if kind == "select":
                await self._use(locator, element.select_option(value, timeout=timeout_ms))
            elif kind in {"checkbox", "radio"}:
                await self._choose(locator, element, value, timeout_ms)
            else:
                await self._use(locator, element.fill(value, timeout=timeout_ms))

        await self._work(locator, "field", timeout_ms, fill)

    async def _choose(
        self, locator: Locator, element: "ElementHandle", value: str, timeout_ms: int
    ) -> None:
        choice = await self._told(element.evaluate_handle(CHOICE, value))
        parts = await self._told(choice.get_properties())
        target = parts["target"].as_element()
        if target is None:
            raise ElementAbsent(
                f"what {locator.mode} {locator.value!r} finds to tick cannot be {value!r}"
            )
        ticked = bool(await self._told(parts["ticked"].json_value()))
        await self._use(locator, target.set_checked(ticked, timeout=timeout_ms))

    async def click(self, locator: Locator, *, timeout_ms: int) -> None:
        async def click(element: "ElementHandle") -> None:
            await self._told(element.evaluate(HERE))
            await self._act(locator, element.click(timeout=timeout_ms, no_wait_after=True))

        await self._work(locator, "target", timeout_ms, click)

    async def press(self, locator: Locator, key: str, *, timeout_ms: int) -> None:
        async def press(element: "ElementHandle") -> None:
            await self._told(element.evaluate(HERE))
            await self._act(locator, element.press(key, timeout=timeout_ms, no_wait_after=True))

        await self._work(locator, "any", timeout_ms, press)

    async def _work(
        self,
        locator: Locator,
        kind: str,
        timeout_ms: int,
        do: Callable[["ElementHandle"], Awaitable[None]],
    ) -> None:
        """Find it and do something with it; again where another took its place meanwhile."""
        loop = asyncio.get_running_loop()
        end = loop.time() + timeout_ms / 1000
        while True:
            left_ms = max(0, int((end - loop.time()) * 1000))
            element = await self._find(locator, kind, left_ms)
            try:
                return await do(element)
            except ElementReplaced:
                if loop.time() >= end:
                    raise
            await asyncio.sleep(0.05)

    async def _use(self, locator: Locator, action: Awaitable[Any]) -> None:
        try:
            await self._ask(action)
        except NavigationTimedOut as late:
            told = f"the element for {locator.mode} {locator.value!r} cannot be used so"
            raise ElementAbsent(told) from late

    async def _act(self, locator: Locator, action: Awaitable[None]) -> None:
        """Do it; where it sends the page elsewhere, wait until it is there."""
        leaving = asyncio.Event()
        self._question = ""

        def on_request(request: "Request") -> None:
            if request.is_navigation_request() and request.frame == self._page.main_frame:
                leaving.set()

        self._committed.clear()
        self._page.on("request", on_request)
        try:
            await self._use(locator, action)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LEAVE_S):
                    await leaving.wait()
                async with asyncio.timeout(self._options.navigation_ms / 1000):
                    await self._committed.wait()
        finally:
            self._page.remove_listener("request", on_request)

    async def has(self, locator: Locator) -> bool:
        element = await self._look_for(locator, "any")
        try:
            return (
                element is not None
                and await self._told(element.is_visible())
                and await self._told(element.is_enabled())
            )
        except ElementReplaced:
            return False

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
        # A request that never ends is not waited for.
        patience = loop.time() + self._options.quiet_ms / 1000
        before = None
        while loop.time() < end:
            with contextlib.suppress(PageError, TimeoutError):  # it may navigate meanwhile
                await self._comes(
                    self._page.wait_for_load_state(
                        "domcontentloaded", timeout=max(1, (end - loop.time()) * 1000)
                    )
                )
                async with asyncio.timeout(max(0.1, end - loop.time())):
                    pending, *looked = await self._ask(self._page.evaluate(SEEN))
                if looked == before and not (pending and loop.time() < patience):
                    return True
                before = looked
            self._check_crash()
            await asyncio.sleep(0.1)
        return False

    async def blank_fields(self, secrets: Sequence[str] = ()) -> None:
        await self._ask(self._page.evaluate(BLANK, list(secrets)))

    async def screenshot(self, *, full_page: bool) -> Picture:
        """Of what is drawn now: Playwright's own waits for fonts that may never come."""
        try:
            async with asyncio.timeout(self._options.navigation_ms / 1000):
                return await self._ask(self._drawn(full_page=full_page))
        except TimeoutError:
            raise NavigationTimedOut("the page was not drawn in time") from None

    async def _drawn(self, *, full_page: bool) -> Picture:
        how: dict[str, Any] = {"format": "png"}
        truncated = False
        if full_page:
            whole = (await self._cdp.send("Page.getLayoutMetrics"))["cssContentSize"]
            width = max(1, min(whole["width"], WIDEST))
            height = max(1, min(whole["height"], TALLEST, MOST_PIXELS // width))
            truncated = width < whole["width"] or height < whole["height"]
            clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
            how |= {"captureBeyondViewport": True, "clip": clip}
        drawn = await self._cdp.send("Page.captureScreenshot", how)
        return Picture(base64.b64decode(drawn["data"]), truncated)

    async def pdf(self) -> bytes:
        return await self._ask(self._page.pdf(print_background=True))

    async def cookie_count(self) -> int:
        return len(await self._ask(self._home.context.cookies()))

    async def _go(self, url: str, *, soft_ms: int, hard_ms: int) -> bool:
        """Navigate; whether DOM content came within the soft budget of the first byte."""
        if self._restless:
            await self._leave()
        self._followed = not self._restless and self.navigations > 0
        self._committed.clear()
        self._downloads.expect()
        self._restless = True
        self.navigations += 1
        self._went = asyncio.get_running_loop().time()
        try:
            answer = await self._goto(url, soft_ms)
        except Exception as failed:
            if not is_timeout(failed):
                self._spent = True  # its error page is still to come
                raise await self._explained(failed, url) from failed
        else:
            is_the_proxys = answer is not None and answer.status in PROXY_STATUS
            if is_the_proxys and (wrong := self._complaint(url)):
                raise wrong
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
            if self._followed and (is_interrupted(failed) or is_aborted(failed)):
                self._followed = False  # the page before went elsewhere in the same moment
                await self._leave()
                self._committed.clear()
                return await self._goto(url, soft_ms)
            if not is_interrupted(failed):
                raise
            return None  # it goes on by itself: read it wherever it is

    async def _leave(self) -> None:
        """Be rid of the page before: one that navigates by itself could pass for the next."""
        try:
            await self._page.goto("about:blank", timeout=1_000)
        except Exception as failed:
            if not (is_interrupted(failed) or is_timeout(failed)):
                raise self._noted(failed) from failed
            self._home.spawn(close_page(self._page))
            self._attach(*await self._home.new_page())

    async def _wait_commit(self, url: str, within_s: float) -> None:
        """For a server that is slow to answer; the navigation goes on behind goto's back."""
        try:
            async with asyncio.timeout(within_s):
                await self._committed.wait()
        except TimeoutError:
            self._check_crash()
            if wrong := self._complaint(url):
                raise wrong from None
            await self._stop()
            raise NavigationTimedOut("the server did not answer in time") from None

    async def _explained(self, failed: Exception, url: str) -> PageError:
        ours = self._noted(failed)
        if is_aborted(failed) and await self._is_dead():
            return PageCrashed("the page crashed")  # while loading, a crash looks like an abort
        if isinstance(ours, PageCrashed):
            return ours
        return self._complaint(url) or ours

    async def _is_dead(self) -> bool:
        try:
            async with asyncio.timeout(self._options.stop_ms / 1000):
                await self._ask(self._page.evaluate("1"))
        except (PageError, TimeoutError) as probed:
            self._crashed = self._crashed or isinstance(probed, PageCrashed)
        return self._crashed

    async def _look(self, options: ExtractOptions, *, quiet_ms: int, within_s: float) -> Extract:
        """One evaluate; again where the page went elsewhere meanwhile."""
        argument = argument_of(options, quiet_ms=quiet_ms)
        async with asyncio.timeout(within_s):
            while True:
                try:
                    text = await self._page.evaluate(EXTRACTOR, argument)
                except Exception as failed:
                    if not is_gone_elsewhere(failed):
                        raise self._noted(failed) from failed
                else:
                    if text:
                        looked = decode_looked(text)
                        self._restless = looked.restless
                        return extract_of(looked)
                await asyncio.sleep(0.02)

    async def _stop(self) -> None:
        """Stop the load and all scripts; works on a busy main thread. The tab is spent by it."""
        self._spent = True
        budget = self._options.stop_ms / 1000
        off = {"value": True}
        await within(budget, self._cdp.send("Runtime.terminateExecution"))
        await within(budget / 4, self._cdp.send("Emulation.setScriptExecutionDisabled", off))
        await within(budget / 4, self._cdp.send("Page.stopLoading"))

    async def _read_static(self, url: str, options: ExtractOptions) -> Extract:
        """The HTML as it came, no script run, in a tab of its own; the hung one is closed."""
        self._crashed = True
        page = None
        try:
            # No script runs in it, so it answers in the end, however large it is.
            async with asyncio.timeout(self._options.navigation_ms / 1000):
                page, cdp = await self._home.new_page()
                await cdp.send("Emulation.setScriptExecutionDisabled", {"value": True})
                still = PlaywrightTab(self._home, page, cdp)
                await page.goto(url, wait_until="commit")
                # As much of it as comes in a moment: what came must be laid out in what is left.
                moment = self._options.static_ms
                await still._comes(page.wait_for_load_state("domcontentloaded", timeout=moment))
                await cdp.send("Page.stopLoading")
                looked = await still._look(
                    options, quiet_ms=0, within_s=self._options.navigation_ms / 1000
                )
        except TimeoutError:
            raise NavigationTimedOut("the page hangs, and so does its HTML") from None
        except PageError:
            raise
        except Exception as failed:
            raise translated(failed) from failed
        finally:
            if page is not None:
                self._home.spawn(close_page(page))
        return marked(looked, Degraded.STATIC)

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
            async with asyncio.timeout(self._options.navigation_ms / 1000):
                if locator.mode is LocatorMode.SELECTOR:
                    return await self._page.query_selector(locator.value)
                handle = await self._page.evaluate_handle(
                    FINDER, {"query": locator.value, "kind": kind}
                )
                return handle.as_element()
        except TimeoutError:
            raise self._hung() from None
        except Exception as failed:
            if is_gone_elsewhere(failed):
                return None
            raise self._noted(failed) from failed

    async def _comes(self, waiting: Awaitable[Any]) -> bool:
        try:
            await waiting
        except Exception as failed:
            if is_timeout(failed):
                return False
            raise self._noted(failed) from failed
        return True

    async def _ask(self, asking: Awaitable[T]) -> T:
        try:
            return await asking
        except Exception as failed:
            raise self._noted(failed) from failed

    async def _answered(self, asking: Awaitable[T]) -> T:
        """What a page that lives says at once; one that hangs would not say it before the run's end."""
        try:
            async with asyncio.timeout(self._options.navigation_ms / 1000):
                return await self._ask(asking)
        except TimeoutError:
            raise self._hung() from None

    async def _told(self, asking: Awaitable[T]) -> T:
        """The same of an element, which may be gone with its page."""
        try:
            return await self._answered(asking)
        except PageError as failed:
            if is_gone_elsewhere(failed):
                raise ElementReplaced("the page went elsewhere before it could be used") from failed
            raise

    def _hung(self) -> PageCrashed:
        self._crashed = True  # nothing will come of this tab any more
        return PageCrashed("the page no longer answers")

    def _noted(self, failed: Exception) -> PageError:
        ours = translated(failed)
        if isinstance(ours, PageCrashed):
            self._crashed = True
        return ours

    def _complaint(self, url: str) -> PageError | None:
        return self._home.complaint(url) or self._home.complaint(self._page.url)

    def _check_crash(self) -> None:
        if not self._home.is_alive:
            raise BrowserGone("the browser died")
        if self._crashed:
            raise PageCrashed("the page crashed")

    async def _close(self) -> None:
        await close_page(self._page)

    def _on_crash(self, page: "Page") -> None:
        if page is self._page:
            self._crashed = True

    def _on_dialog(self, opening: dict[str, Any]) -> None:
        """Playwright says no to it; an alert asks nothing."""
        if opening["type"] in {"confirm", "prompt"}:
            self._question = opening["message"][:LONGEST_QUESTION]

    def _on_navigated(self, frame: "Frame") -> None:
        if frame.parent_frame is None and frame.page is self._page:
            self._committed.set()


async def close_page(page: "Page") -> None:
    with contextlib.suppress(Exception):
        await within(10, page.close())
