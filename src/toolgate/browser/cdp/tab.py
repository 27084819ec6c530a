"""A tab that reads pages, on Chromium's own protocol, with no driver between.

The ladder for a page that hangs is that of `playwright/tab.py`: a soft budget, then stop it and
read, then its HTML alone.
"""

import asyncio
import contextlib
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from toolgate.browser.browser import (
    BrowserGone,
    Degraded,
    Download,
    DownloadTooLarge,
    Extract,
    ExtractOptions,
    NavigationFailed,
    NavigationTimedOut,
    PageCrashed,
    PageError,
)
from toolgate.browser.cdp.connection import CdpConnection, CdpRefused
from toolgate.browser.documents import DocumentGuard, TabDocuments
from toolgate.browser.options import BrowserOptions
from toolgate.browser.page_extract import (
    EXTRACTOR,
    WATCH,
    Looked,
    argument_of,
    decode_looked,
    extract_of,
    marked,
)
from toolgate.browser.proxy_verdicts import PROXY_STATUS

# How the browser says that the page went elsewhere while it was being read.
ELSEWHERE: Final = (
    "navigated or closed",
    "context was destroyed",
    "Cannot find context",
    "Cannot find default execution context",
    "Promise was collected",
)
ABORTED: Final = "net::ERR_ABORTED"
LEAVING: Final = frozenset(
    f"Page.frame{how}"
    for how in ("ScheduledNavigation", "RequestedNavigation", "StartedNavigating")
)
SETTLE_S: Final = 0.02


class TabHome(Protocol):
    """The session a tab lives in, as far as the tab needs it."""

    @property
    def options(self) -> BrowserOptions: ...

    @property
    def connection(self) -> CdpConnection: ...

    @property
    def context_id(self) -> str: ...

    @property
    def documents(self) -> DocumentGuard: ...

    @property
    def downloads(self) -> Path: ...

    def spawn(self, work: Coroutine[Any, Any, None]) -> None: ...

    def complaint(self, url: str) -> PageError | None: ...

    async def new_target(self) -> tuple[str, str]: ...

    def enter(self, tab: "CdpTab") -> None: ...

    def leave(self, tab: "CdpTab") -> None: ...


class _AnothersFile(PageError):
    """A file came that the page before may have given."""


class _Navigated(msgspec.Struct, rename="camel"):
    error_text: str = ""
    is_download: bool = False
    loader_id: str = ""


class _Frame(msgspec.Struct, rename="camel"):
    unreachable_url: str = ""
    parent_id: str = ""
    loader_id: str = ""


class _FrameNavigated(msgspec.Struct):
    frame: _Frame


class _FrameAttached(msgspec.Struct, rename="camel"):
    frame_id: str
    parent_frame_id: str = ""


class _Leaving(msgspec.Struct, rename="camel"):
    frame_id: str
    loader_id: str = ""
    navigation_type: str = ""
    reason: str = ""
    url: str = ""


class _Tree(msgspec.Struct):
    frame: _Frame


class _FrameTree(msgspec.Struct, rename="camel"):
    frame_tree: _Tree


class _Value(msgspec.Struct):
    value: Any = ""  # a text, unless the page sees to it that it is not


class _Thrown(msgspec.Struct):
    text: str = ""


class _Evaluated(msgspec.Struct, rename="camel"):
    result: _Value
    exception_details: _Thrown | None = None


class _Step(NamedTuple):
    """A document that came, or that one was left for; which one is not always told."""

    loader_id: str
    came: bool


class _Dialog(msgspec.Struct):
    type: str = ""


_navigated: Final = msgspec.json.Decoder(_Navigated).decode
_evaluated: Final = msgspec.json.Decoder(_Evaluated).decode
_tree: Final = msgspec.json.Decoder(_FrameTree).decode
_dialog: Final = msgspec.json.Decoder(_Dialog).decode
_frame_attached: Final = msgspec.json.Decoder(_FrameAttached).decode
_frame_navigated: Final = msgspec.json.Decoder(_FrameNavigated).decode
_leaving: Final = msgspec.json.Decoder(_Leaving).decode


class CdpTab:
    def __init__(self, home: TabHome) -> None:
        self._home = home
        self._options = home.options
        self.target_id = ""
        self._session_id = ""
        self._spent = False
        self._crashed = False
        self._restless = False
        self._loader = ""  # of the document that this visit is for, or that was last asked for
        self._steps: list[_Step] = []  # of the main frame, as they were told
        self.navigations = 0
        self._wanted = ""  # where this visit goes
        self.documents = TabDocuments()
        self.file: asyncio.Future[tuple[str, Path]] = asyncio.get_running_loop().create_future()

    @property
    def is_usable(self) -> bool:
        return not self._spent and self._home.connection.is_alive

    async def open(self) -> None:
        """Get a page; what is told to it is done in the order it is sent."""
        self.target_id, self._session_id = await self._home.new_target()
        self._home.enter(self)
        self._home.connection.listen(self._session_id, self._heard)
        motion = [{"name": "prefers-reduced-motion", "value": "reduce"}]
        await asyncio.gather(
            self._send("Page.enable"),
            self._send("Emulation.setEmulatedMedia", features=motion),
            self._send("Page.addScriptToEvaluateOnNewDocument", source=WATCH),
        )

    def discard(self) -> None:
        """Close the page without waiting: a page that hangs takes its time."""
        self._refuse_file()
        self._home.leave(self)
        self._home.connection.forget(self._session_id)
        self._home.spawn(self._close(self.target_id))

    async def collect_garbage(self) -> None:
        """Let go of the pages before; what is sent next waits for it."""
        await self._meanwhile("HeapProfiler.collectGarbage")

    async def clear_cache(self) -> None:
        """Of all that its session has loaded."""
        await self._meanwhile("Network.clearBrowserCache")

    def crashed(self) -> None:
        self._spent = self._crashed = True
        self._home.connection.fail(self._session_id, PageCrashed("the page crashed"))

    def lost(self) -> None:
        """The browser died, and no file comes any more; commands are told by the connection."""
        if not self.file.done():
            self.file.set_exception(BrowserGone("the browser died"))
            self.file.exception()  # where no file is waited for, nobody asks

    async def read(self, url: str, options: ExtractOptions) -> Extract:
        self.documents.leave()
        try:
            looked = await self._read(url, options)
        except PageError:
            self._check_refused()
            raise
        self._check_refused()
        return looked

    def _check_refused(self) -> None:
        self._spent = self._spent or bool(self.documents.refused)
        self.documents.check()

    async def _read(self, url: str, options: ExtractOptions) -> Extract:
        budget = self._options
        if await self._go(url):
            try:
                return await self._downloaded(url)
            except _AnothersFile:
                return await self._read_apart(url, options)
        soft_s = budget.soft_ms / 1000
        with contextlib.suppress(TimeoutError):
            quiet_ms = min(budget.quiet_ms, int(soft_s * 500))
            looked = await self._look(options, quiet_ms=quiet_ms, within_s=soft_s)
            if not self._was_led_away():
                return self._unless_the_proxys(url, looked)
        if self._was_led_away():
            return await self._read_apart(url, options)
        try:
            await self._stop()
            looked = await self._look(options, quiet_ms=0, within_s=budget.stop_ms / 1000)
        except TimeoutError:
            return await self._read_static(url, options)
        return marked(self._unless_the_proxys(url, looked), Degraded.STOPPED)

    async def _go(self, url: str) -> bool:
        """Navigate until the answer's first byte; whether it is a file instead of a page."""
        self.navigations += 1
        self._wanted = url
        self.file = asyncio.get_running_loop().create_future()
        answer = await self._navigate(url)
        led_away = answer.error_text == ABORTED and self._restless
        stayed = not answer.error_text and not answer.loader_id
        if (led_away or stayed) and not answer.is_download:
            # The page before went elsewhere in the same moment, or is the same but for its fragment
            # and was not loaded again: be rid of it first.
            await self._navigate("about:blank")
            answer = await self._navigate(url)
        self._restless = True
        if answer.is_download:
            self._spent = True
            return True
        self._refuse_file()
        if answer.error_text:
            self._spent = True  # its error page is still to come
            if answer.error_text == ABORTED:
                await self._probe()  # while loading, a crash looks like an abort
            complaint = self._home.complaint
            if wrong := complaint(url) or complaint(await self._unreachable()):
                raise wrong
            raise NavigationFailed(answer.error_text.removeprefix("net::"))
        return False

    async def _probe(self) -> None:
        """Raises PageCrashed where the page's process is dead."""
        await self._within(self._options.stop_ms / 1000, "Runtime.evaluate", expression="1")
        if self._crashed:
            raise PageCrashed("the page crashed")

    async def _unreachable(self) -> str:
        """Where it really went, redirects followed, when nothing came of it."""
        with contextlib.suppress(TimeoutError, CdpRefused):
            async with asyncio.timeout(self._options.stop_ms / 1000):
                tree = _tree(await self._send("Page.getFrameTree"))
                return tree.frame_tree.frame.unreachable_url
        return ""

    def _was_led_away(self) -> bool:
        """Whether the page before went elsewhere in the same moment: then we may have seen that.

        What documents tell comes in order, and before what they answer.
        """
        came = _Step(self._loader, came=True)
        before = self._steps[: self._steps.index(came)] if came in self._steps else []
        return any(not step.came and step.loader_id != self._loader for step in before)

    async def _read_apart(self, url: str, options: ExtractOptions) -> Extract:
        """In a tab of its own, in which there was no page before."""
        self._spent = True
        apart = CdpTab(self._home)
        try:
            async with asyncio.timeout(self._options.navigation_ms / 1000):
                await apart.open()
            return await apart.read(url, options)
        except TimeoutError:
            raise NavigationTimedOut("there was no other tab in time") from None
        finally:
            if apart.target_id:
                apart.discard()

    async def _navigate(self, url: str) -> _Navigated:
        ours = _Step(self._loader, came=False) if self._loader else None
        self._steps = [step for step in self._steps[-1:] if not step.came and step != ours]
        try:
            async with asyncio.timeout(self._options.navigation_ms / 1000):
                answer = _navigated(await self._send("Page.navigate", url=url))
        except TimeoutError:
            self._spent = True
            if wrong := self._home.complaint(url):
                raise wrong from None
            raise NavigationTimedOut("the server did not answer in time") from None
        except CdpRefused as refused:
            raise NavigationFailed(str(refused)) from refused
        self._loader = answer.loader_id
        return answer

    async def _look(self, options: ExtractOptions, *, quiet_ms: int, within_s: float) -> Looked:
        """One evaluate; again where the page went elsewhere meanwhile."""
        argument = msgspec.json.encode(argument_of(options, quiet_ms=quiet_ms)).decode()
        expression = f"({EXTRACTOR})({argument})"
        async with asyncio.timeout(within_s):
            while True:
                try:
                    answer = _evaluated(
                        await self._send(
                            "Runtime.evaluate",
                            expression=expression,
                            awaitPromise=True,
                            returnByValue=True,
                        )
                    )
                except CdpRefused as refused:
                    if not any(sign in str(refused) for sign in ELSEWHERE):
                        raise
                else:
                    if answer.exception_details is not None:
                        raise PageError(answer.exception_details.text)
                    if answer.result.value:
                        looked = decode_looked(answer.result.value)
                        self._restless = looked.restless
                        return looked
                await asyncio.sleep(SETTLE_S)

    async def _stop(self) -> None:
        """Stop the load and all scripts; works on a busy main thread. The tab is spent by it."""
        self._spent = True
        budget = self._options.stop_ms / 1000
        await self._within(budget, "Runtime.terminateExecution")
        await self._within(budget / 4, "Emulation.setScriptExecutionDisabled", value=True)
        await self._within(budget / 4, "Page.stopLoading")

    async def _meanwhile(self, method: str) -> None:
        """Something that nobody waits for, and that the page may not live to do."""
        with contextlib.suppress(PageError):
            await self._within(self._options.soft_ms / 1000, method)

    async def _within(self, seconds: float, method: str, **params: Any) -> None:
        with contextlib.suppress(TimeoutError, CdpRefused):
            async with asyncio.timeout(seconds):
                await self._send(method, **params)

    async def _read_static(self, url: str, options: ExtractOptions) -> Extract:
        """The HTML as it came, no script run, in a tab of its own; the hung one is closed."""
        self._spent = True
        still: CdpTab | None = None
        try:
            # No script runs in it, so it answers in the end, however large it is.
            async with asyncio.timeout(self._options.navigation_ms / 1000):
                still = CdpTab(self._home)
                await still.open()
                await still._send("Emulation.setScriptExecutionDisabled", value=True)
                await still._go(url)
                # As much of it as comes in a moment: what came must be laid out in what is left.
                await asyncio.sleep(self._options.static_ms / 1000)
                await still._within(self._options.stop_ms / 1000, "Page.stopLoading")
                looked = await still._look(
                    options, quiet_ms=0, within_s=self._options.navigation_ms / 1000
                )
        except TimeoutError:
            raise NavigationTimedOut("the page hangs, and so does its HTML") from None
        finally:
            if still is not None and still.target_id:
                still.discard()
        return marked(extract_of(looked, still.documents), Degraded.STATIC)

    async def _downloaded(self, url: str) -> Extract:
        """The file that came instead of a page, unless it is too large or too slow."""
        try:
            async with asyncio.timeout(self._options.navigation_ms / 1000):
                name, path = await self.file
        except TimeoutError:
            raise DownloadTooLarge("the file did not come in time") from None
        content = await asyncio.to_thread(path.read_bytes)
        await asyncio.to_thread(path.unlink, missing_ok=True)
        answers = tuple(self.documents.answers)
        kind = answers[-1].mime_type if answers else ""
        file = Download(name, kind or "application/octet-stream", content)
        return Extract(
            url, file.name, "download", 0, (), None, None, download=file, answers=answers
        )

    def takes(self, file_url: str) -> bool:
        """Whether a file is what this visit is for, and surely none of the page before."""
        sure = self.navigations == 1 or file_url == self._wanted
        if not sure:
            self.file.set_exception(_AnothersFile("it may be another page's file"))
            self.file.exception()  # where a page comes, nobody asks
        return sure

    def _refuse_file(self) -> None:
        """What this visit was for is no file: one that the page gives by itself is nobody's."""
        came = self.file.done() and not self.file.cancelled() and self.file.exception() is None
        if came:
            self._home.spawn(_unlink(self.file.result()[1]))
        self.file.cancel()

    def _unless_the_proxys(self, url: str, looked: Looked) -> Extract:
        complaint = self._home.complaint
        if looked.status in PROXY_STATUS and (wrong := complaint(url) or complaint(looked.url)):
            raise wrong
        return extract_of(looked, self.documents)

    def _heard(self, method: str, params: msgspec.Raw) -> None:
        if method == "Page.javascriptDialogOpening":
            leaving = _dialog(params).type == "beforeunload"
            self._home.spawn(self._answer_dialog(accept=leaving))
        elif method == "Page.frameNavigated":
            frame = _frame_navigated(params).frame
            if not frame.parent_id:
                self._steps.append(_Step(frame.loader_id, came=True))
                self.documents.arrive()
        elif method == "Page.frameAttached":
            attached = _frame_attached(params)
            self._home.documents.attached(attached.frame_id, attached.parent_frame_id)
        elif method in LEAVING:
            left = _leaving(params)
            self.documents.requested(reason=left.reason, url=left.url)
            stays = left.navigation_type.endswith("ameDocument")
            if left.frame_id == self.target_id and not stays:
                self._steps.append(_Step(left.loader_id, came=False))

    async def _answer_dialog(self, *, accept: bool) -> None:
        with contextlib.suppress(PageError):
            await self._send("Page.handleJavaScriptDialog", accept=accept)

    async def _send(self, method: str, **params: Any) -> msgspec.Raw:
        return await self._home.connection.send(method, self._session_id, **params)

    async def _close(self, target_id: str) -> None:
        with contextlib.suppress(PageError, TimeoutError, BrowserGone):
            async with asyncio.timeout(10):
                await self._home.connection.send("Target.closeTarget", targetId=target_id)


async def _unlink(file: Path) -> None:
    await asyncio.to_thread(file.unlink, missing_ok=True)
