"""A tab on Playwright: going to pages, and reading them whatever they do.

The ladder for a page that hangs: a soft budget, then stop it and read, then its HTML alone. What is
done with a page's elements is in `playwright_elements.py`.
"""

import asyncio
import contextlib
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from toolgate.browser.browser import (
    BrowserGone,
    Degraded,
    Extract,
    ExtractOptions,
    NavigationTimedOut,
    PageCrashed,
    PageError,
    Picture,
)
from toolgate.browser.documents import TabDocuments
from toolgate.browser.options import BrowserOptions
from toolgate.browser.page_extract import (
    EXTRACTOR,
    argument_of,
    decode_looked,
    extract_of,
    marked,
)
from toolgate.browser.page_scripts import BLANK, SEEN, TITLE
from toolgate.browser.playwright.downloads import PlaywrightDownloads
from toolgate.browser.playwright.elements import PlaywrightElements
from toolgate.browser.playwright.errors import (
    IsDownload,
    is_aborted,
    is_gone_elsewhere,
    is_interrupted,
    is_timeout,
    translated,
    within,
)
from toolgate.browser.playwright.page import PlaywrightPage
from toolgate.browser.playwright.pictures import drawn
from toolgate.browser.proxy_verdicts import PROXY_STATUS

if TYPE_CHECKING:
    from playwright.async_api import BrowserContext, CDPSession, Page, Response


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

    async def new_page(self) -> "OpenPage": ...

    def enter(self, target: str, documents: TabDocuments) -> None:
        """Have the guard refuse what this page must not send."""
        ...


class OpenPage(NamedTuple):
    page: "Page"
    cdp: "CDPSession"
    target: str


class PlaywrightTab:
    def __init__(self, home: TabHome, opened: OpenPage) -> None:
        self._home = home
        self._options = home.options
        self._spent = False
        self._restless = False
        self._followed = False  # the page before is still there: it seemed at rest
        self._went = 0.0
        self._downloads = PlaywrightDownloads(
            home.downloads, options=home.options, spawn=home.spawn
        )
        self.navigations = 0
        self.documents = TabDocuments()
        home.enter(opened.target, self.documents)
        self._page = PlaywrightPage(
            opened.page, opened.cdp, options=home.options, documents=self.documents
        )
        self._hear_of_files(opened.page, opened.cdp)
        elements = PlaywrightElements(self._page)
        self.fill, self.click, self.press = elements.fill, elements.click, elements.press
        self.has, self.wait_any = elements.has, elements.wait_any

    def _hear_of_files(self, page: "Page", cdp: "CDPSession") -> None:
        page.on("download", self._downloads.came)
        cdp.on("Page.downloadWillBegin", self._downloads.began)

    @property
    def url(self) -> str:
        return self._page.raw.url

    @property
    def status(self) -> int:
        answers = self.documents.answers_to(self.url)
        return answers[-1].status if answers else 0

    @property
    def unanswered(self) -> str:
        return "" if self._page.committed.is_set() else self._page.question

    @property
    def is_usable(self) -> bool:
        fit = not self._page.crashed and not self._spent and not self._page.raw.is_closed()
        return fit and self._home.is_alive

    def discard(self) -> None:
        """Close the page without waiting: a page that hangs takes its time."""
        self._home.spawn(self._close())

    async def visit(self, url: str, *, timeout_ms: int | None = None) -> None:
        budget = self._options.navigation_ms if timeout_ms is None else timeout_ms
        if not await self._go(url, soft_ms=min(self._options.soft_ms, budget), hard_ms=budget):
            await self._stop()

    def check_refused(self) -> None:
        self._spent = self._spent or bool(self.documents.refused)
        self.documents.check()

    async def read(self, url: str, options: ExtractOptions) -> Extract:
        try:
            looked = await self._read(url, options)
        except PageError:
            self.check_refused()
            raise
        self.check_refused()
        return looked

    async def _read(self, url: str, options: ExtractOptions) -> Extract:
        budget = self._options
        loop = asyncio.get_running_loop()
        try:
            came = await self._go(url, soft_ms=budget.soft_ms, hard_ms=budget.navigation_ms)
        except IsDownload:
            return await self._downloads.taken(tuple(self.documents.answers))
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
        raise self._page.hung()

    async def title(self) -> str:
        return str(await self._page.answered(self._page.raw.evaluate(TITLE)))

    async def wait_selector(self, selector: str, *, timeout_ms: int) -> bool:
        return await self._page.comes(
            self._page.raw.wait_for_selector(selector, state="visible", timeout=timeout_ms)
        )

    async def wait_url(self, part: str, *, timeout_ms: int) -> bool:
        return await self._page.comes(
            self._page.raw.wait_for_url(
                lambda url: part in url, wait_until="commit", timeout=timeout_ms
            )
        )

    async def wait_text(self, text: str, *, timeout_ms: int) -> bool:
        return await self._page.comes(
            self._page.raw.wait_for_function(
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
                await self._page.comes(
                    self._page.raw.wait_for_load_state(
                        "domcontentloaded", timeout=max(1, (end - loop.time()) * 1000)
                    )
                )
                async with asyncio.timeout(max(0.1, end - loop.time())):
                    pending, *looked = await self._page.ask(self._page.raw.evaluate(SEEN))
                if looked == before and not (pending and loop.time() < patience):
                    return True
                before = looked
            self._check_crash()
            await asyncio.sleep(0.1)
        return False

    async def blank_fields(self, secrets: Sequence[str] = ()) -> None:
        await self._page.ask(self._page.raw.evaluate(BLANK, list(secrets)))

    async def screenshot(self, *, full_page: bool) -> Picture:
        """Of what is drawn now: Playwright's own waits for fonts that may never come."""
        try:
            async with asyncio.timeout(self._options.navigation_ms / 1000):
                return await self._page.ask(drawn(self._page.cdp, full_page=full_page))
        except TimeoutError:
            raise NavigationTimedOut("the page was not drawn in time") from None

    async def pdf(self) -> bytes:
        return await self._page.ask(self._page.raw.pdf(print_background=True))

    async def cookie_count(self) -> int:
        return len(await self._page.ask(self._home.context.cookies()))

    async def _go(self, url: str, *, soft_ms: int, hard_ms: int) -> bool:
        """Navigate; whether DOM content came within the soft budget of the first byte."""
        if self._restless:
            await self._leave()
        self._followed = not self._restless and self.navigations > 0
        self._page.committed.clear()
        self.documents.leave()
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
        if not self._page.committed.is_set():
            await self._wait_commit(url, max(0, hard_ms - soft_ms) / 1000)
            self._went = asyncio.get_running_loop().time()
            return await self._page.comes(
                self._page.raw.wait_for_load_state("domcontentloaded", timeout=soft_ms)
            )
        return False

    async def _goto(self, url: str, soft_ms: int) -> "Response | None":
        try:
            return await self._page.raw.goto(url, wait_until="domcontentloaded", timeout=soft_ms)
        except Exception as failed:
            if self._followed and (is_interrupted(failed) or is_aborted(failed)):
                self._followed = False  # the page before went elsewhere in the same moment
                await self._leave()
                self._page.committed.clear()
                self.documents.leave()
                return await self._goto(url, soft_ms)
            if not is_interrupted(failed):
                raise
            return None  # it goes on by itself: read it wherever it is

    async def _leave(self) -> None:
        """Be rid of the page before: one that navigates by itself could pass for the next."""
        try:
            await self._page.raw.goto("about:blank", timeout=1_000)
        except Exception as failed:
            if not (is_interrupted(failed) or is_timeout(failed)):
                raise self._page.noted(failed) from failed
            self._home.spawn(close_page(self._page.raw))
            opened = await self._home.new_page()
            self._home.enter(opened.target, self.documents)
            self._page.attach(opened.page, opened.cdp)
            self._hear_of_files(opened.page, opened.cdp)

    async def _wait_commit(self, url: str, within_s: float) -> None:
        """For a server that is slow to answer; the navigation goes on behind goto's back."""
        try:
            async with asyncio.timeout(within_s):
                await self._page.committed.wait()
        except TimeoutError:
            self._check_crash()
            if wrong := self._complaint(url):
                raise wrong from None
            await self._stop()
            raise NavigationTimedOut("the server did not answer in time") from None

    async def _explained(self, failed: Exception, url: str) -> PageError:
        ours = self._page.noted(failed)
        if is_aborted(failed) and await self._is_dead():
            return PageCrashed("the page crashed")  # while loading, a crash looks like an abort
        if isinstance(ours, PageCrashed):
            return ours
        return self._complaint(url) or ours

    async def _is_dead(self) -> bool:
        try:
            async with asyncio.timeout(self._options.stop_ms / 1000):
                await self._page.ask(self._page.raw.evaluate("1"))
        except (PageError, TimeoutError) as probed:
            self._page.crashed = self._page.crashed or isinstance(probed, PageCrashed)
        return self._page.crashed

    async def _look(self, options: ExtractOptions, *, quiet_ms: int, within_s: float) -> Extract:
        """One evaluate; again where the page went elsewhere meanwhile."""
        argument = argument_of(options, quiet_ms=quiet_ms)
        async with asyncio.timeout(within_s):
            while True:
                try:
                    text = await self._page.raw.evaluate(EXTRACTOR, argument)
                except Exception as failed:
                    if not is_gone_elsewhere(failed):
                        raise self._page.noted(failed) from failed
                else:
                    if text:
                        looked = decode_looked(text)
                        self._restless = looked.restless
                        return extract_of(looked, self.documents)
                await asyncio.sleep(0.02)

    async def _stop(self) -> None:
        """Stop the load and all scripts; works on a busy main thread. The tab is spent by it."""
        self._spent = True
        budget = self._options.stop_ms / 1000
        off = {"value": True}
        await within(budget, self._page.cdp.send("Runtime.terminateExecution"))
        await within(budget / 4, self._page.cdp.send("Emulation.setScriptExecutionDisabled", off))
        await within(budget / 4, self._page.cdp.send("Page.stopLoading"))

    async def _read_static(self, url: str, options: ExtractOptions) -> Extract:
        """The HTML as it came, no script run, in a tab of its own; the hung one is closed."""
        self._page.crashed = True
        page = None
        try:
            # No script runs in it, so it answers in the end, however large it is.
            async with asyncio.timeout(self._options.navigation_ms / 1000):
                opened = await self._home.new_page()
                page, cdp = opened.page, opened.cdp
                await cdp.send("Emulation.setScriptExecutionDisabled", {"value": True})
                still = PlaywrightTab(self._home, opened)
                await page.goto(url, wait_until="commit")
                # As much of it as comes in a moment: what came must be laid out in what is left.
                moment = self._options.static_ms
                await still._page.comes(
                    page.wait_for_load_state("domcontentloaded", timeout=moment)
                )
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

    def _complaint(self, url: str) -> PageError | None:
        return self._home.complaint(url) or self._home.complaint(self._page.raw.url)

    def _check_crash(self) -> None:
        if not self._home.is_alive:
            raise BrowserGone("the browser died")
        if self._page.crashed:
            raise PageCrashed("the page crashed")

    async def _close(self) -> None:
        await close_page(self._page.raw)


async def close_page(page: "Page") -> None:
    with contextlib.suppress(Exception):
        await within(10, page.close())
