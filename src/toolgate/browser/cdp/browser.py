"""Sessions that only read pages, in a Chromium of their own.

It shares its turns with the browser that works pages (`playwright/browser.py`).
"""

import asyncio
import contextlib
import logging
import shutil
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, Final

import msgspec

from toolgate.browser.browser import BrowserGone, DownloadTooLarge, PageCrashed, PageError, Tab
from toolgate.browser.cdp.connection import CdpConnection, CdpRefused
from toolgate.browser.cdp.tab import CdpTab
from toolgate.browser.chromium import (
    find_chromium,
    find_marked,
    is_suspect,
    process_tree,
    resident_bytes,
)
from toolgate.browser.documents import DocumentGuard, Paused
from toolgate.browser.leftovers import end_strays
from toolgate.browser.options import BrowserOptions
from toolgate.browser.tab_slots import TabSlots
from toolgate.core.enums import TrustLevel
from toolgate.core.errors import ToolgateError, Unavailable
from toolgate.core.scratch import make_scratch

log = logging.getLogger(__name__)

ASK_S: Final = 20.0  # one that is only busy must not be ended for one that hangs
OPEN_S: Final = 15.0  # a context or a page comes in milliseconds, on a loaded machine in seconds
# A renderer and a session's cache, which lies in memory too, would grow with a long run.
READS_PER_COLLECTION: Final = 8  # of a tab
READS_PER_CACHE: Final = 200  # of a session


class _Target(msgspec.Struct, rename="camel"):
    target_id: str
    opener_id: str = ""


class _TargetCreated(msgspec.Struct, rename="camel"):
    target_info: _Target


class _TargetNamed(msgspec.Struct, rename="camel"):
    target_id: str


class _Attached(msgspec.Struct, rename="camel"):
    session_id: str


class _Context(msgspec.Struct, rename="camel"):
    browser_context_id: str


class _DownloadBegan(msgspec.Struct, rename="camel"):
    frame_id: str
    guid: str
    url: str = ""
    suggested_filename: str = "download"


class _DownloadMoved(msgspec.Struct, rename="camel"):
    guid: str
    received_bytes: float = 0
    state: str = ""


def _of(kind: type[Any], raw: msgspec.Raw) -> Any:
    return msgspec.json.decode(raw, type=kind)


class _Life:
    """One life of the browser process, and what is in it."""

    def __init__(self, owner: "CdpBrowser", home: Path) -> None:
        self.home = home
        self.downloads = self.home / "downloads"
        self.downloads.mkdir()
        self.connection = CdpConnection(lost=self._lost)
        self.documents = DocumentGuard(self._ask, spawn=owner.spawn)
        self.sessions: set[CdpSession] = set()
        self.tabs: dict[str, CdpTab] = {}  # by target, which is also the id of its main frame
        self.retired = False
        self._owner = owner
        self._profile = self.home / "profile"
        self._pid: int | None = None
        self._files: dict[str, tuple[CdpTab, str]] = {}
        self._unwanted: set[str] = set()

    @property
    def is_alive(self) -> bool:
        return self.connection.is_alive

    async def start(self) -> None:
        options = self._owner.options
        executable = find_chromium(options.executable)
        try:
            await self.connection.start(executable, *options.extra_flags, home=self._profile)
            self.connection.listen("", self._heard)
            await self.connection.send(
                "Target.setDiscoverTargets", discover=True, filter=[{"type": "page"}]
            )
            await self.documents.enable()
        except BaseException:  # whoever waited may have gone
            await self.close()
            raise

    async def _ask(self, method: str, params: dict[str, Any]) -> Any:
        return msgspec.json.decode(await self.connection.send(method, **params))

    async def check(self) -> None:
        """A command failed: end a browser that answers nothing else either."""
        if not self.is_alive:
            return
        try:
            async with asyncio.timeout(ASK_S):
                await self.connection.send("Browser.getVersion")
        except (PageError, TimeoutError):
            await self.close()

    async def close(self) -> None:
        await self.connection.close()
        await asyncio.to_thread(self.forget)

    def forget(self) -> None:
        shutil.rmtree(self.home, ignore_errors=True)

    def processes(self) -> list[int]:
        if not self.is_alive:
            return []
        if self._pid is None:
            self._pid = find_marked(f"--user-data-dir={self._profile}")
        return [] if self._pid is None else process_tree(self._pid)

    def _lost(self) -> None:
        for tab in self.tabs.values():
            tab.lost()
        self._owner.spawn(self.close())

    def _heard(self, method: str, params: msgspec.Raw) -> None:
        match method:
            case "Fetch.requestPaused":
                self.documents.paused(_of(Paused, params))
            case "Target.targetCreated":
                target = _of(_TargetCreated, params).target_info
                if target.opener_id:  # a pop-up
                    self.documents.attached(target.target_id, target.opener_id)
                    self._owner.spawn(self._close_target(target.target_id))
            case "Target.targetCrashed":
                tab = self.tabs.get(_of(_TargetNamed, params).target_id)
                if tab is not None:
                    tab.crashed()
            case "Browser.downloadWillBegin":
                self._download_began(_of(_DownloadBegan, params))
            case "Browser.downloadProgress":
                self._download_moved(_of(_DownloadMoved, params))
            case _:
                pass

    def _download_began(self, begun: _DownloadBegan) -> None:
        tab = self.tabs.get(begun.frame_id)
        busy = any(tab is one for one, _ in self._files.values())
        if tab is None or busy or tab.file.done() or not tab.takes(begun.url):
            self._unwanted.add(begun.guid)  # nobody's, or the second of a visit
            self._owner.spawn(self.cancel_download(begun.guid))
        else:
            self._files[begun.guid] = (tab, begun.suggested_filename)
            self._owner.spawn(self._give_up(begun.guid))

    def _download_moved(self, moved: _DownloadMoved) -> None:
        known = self._files.get(moved.guid)
        if moved.guid in self._unwanted and moved.state != "inProgress":
            self._unwanted.discard(moved.guid)
            self._owner.spawn(
                self.cancel_download(moved.guid)
            )  # it may have been quicker than the first
        if known is None:
            return
        tab, name = known
        limit = self._owner.options.download_limit
        too_large = moved.received_bytes > limit
        if moved.state == "completed" and not too_large and not tab.file.done():
            tab.file.set_result((name, self.downloads / moved.guid))
        elif moved.state == "inProgress" and not too_large:
            return
        else:
            if not tab.file.done():
                why = f"the file is larger than {limit} bytes, or incomplete"
                tab.file.set_exception(DownloadTooLarge(why))
                tab.file.exception()  # the visit may be over: then nobody asks
            self._owner.spawn(self.cancel_download(moved.guid))
        del self._files[moved.guid]

    async def _give_up(self, guid: str) -> None:
        """Stop a download that takes too long, wanted or not."""
        await asyncio.sleep(self._owner.options.navigation_ms / 1000)
        if self._files.pop(guid, None) is not None:
            await self.cancel_download(guid)

    async def cancel_download(self, guid: str) -> None:
        for session in tuple(self.sessions):  # whose it is, is not told
            with contextlib.suppress(PageError):
                await self.connection.send(
                    "Browser.cancelDownload", guid=guid, browserContextId=session.context_id
                )
                break
        for left in (self.downloads / guid, self.downloads / f"{guid}.crdownload"):
            await asyncio.to_thread(left.unlink, missing_ok=True)

    async def _close_target(self, target_id: str) -> None:
        with contextlib.suppress(PageError):
            await self.connection.send("Target.closeTarget", targetId=target_id)


class CdpBrowser:
    """Starts Chromium when the first session is asked for, and again whenever it has died."""

    def __init__(
        self,
        options: BrowserOptions | None = None,
        *,
        complaint: Callable[[str], PageError | None],
        slots: TabSlots | None = None,
    ) -> None:
        self.options = options or BrowserOptions()
        self.slots = slots or TabSlots(self.options.slots)
        self.complaint = complaint
        self.launches = 0
        self._life: _Life | None = None
        self._starting = asyncio.Lock()
        self._background: set[asyncio.Task[None]] = set()
        self._closed = False

    async def open(self, *, trust: TrustLevel) -> "CdpSession":
        if trust is TrustLevel.REMOTE and not self.options.proxy_url:
            raise Unavailable("there is no guarded proxy for a remote caller's pages")
        for last in (False, True):
            life = await self._alive()
            try:
                async with asyncio.timeout(OPEN_S):
                    session = CdpSession(self, life, await self._context(life, trust))
            except (PageError, TimeoutError) as failed:
                await life.check()
                if last or life.is_alive:
                    if isinstance(failed, PageError):
                        raise
                    raise PageCrashed("the browser does not answer") from None
                continue  # it died under us: once more, in a new one
            life.sessions.add(session)
            return session
        raise BrowserGone("the browser cannot be started")

    async def close(self) -> None:
        self._closed = True
        life, self._life = self._life, None
        for task in list(self._background):
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        if life is not None:
            await life.close()
        await asyncio.gather(*self._background, return_exceptions=True)

    def processes(self) -> list[int]:
        """The browser's processes, for health and tests; empty where it is not running."""
        return [] if self._life is None else self._life.processes()

    @property
    def downloads(self) -> Path | None:
        return None if self._life is None else self._life.downloads

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run something that nobody waits for; it ends with the browser at the latest."""
        task = asyncio.ensure_future(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def release(self, session: "CdpSession", life: _Life) -> None:
        life.sessions.discard(session)
        if life.retired and not life.sessions:
            await life.close()

    async def _alive(self) -> _Life:
        async with self._starting:
            life = self._life
            if life is not None and life.is_alive and not life.retired:
                return life
            if self._closed:
                raise Unavailable("the browser is closed")
            self._life = life = await self._launch()
            self.spawn(self._watch_memory(life))
            self.spawn(
                end_strays(
                    life.downloads,
                    limit=self.options.download_limit,
                    is_alive=lambda: life.is_alive,
                    cancel=life.cancel_download,
                )
            )
            return life

    async def _launch(self) -> _Life:
        for last in (False, True):
            life = _Life(self, await asyncio.to_thread(make_scratch, "reading"))
            try:
                await life.start()
            except (Unavailable, PageError) as failed:
                log.warning("reading_browser_launch_failed error=%s", type(failed).__name__)
                if last:
                    raise
            else:
                if self._closed:  # meanwhile
                    await life.close()
                    raise Unavailable("the browser is closed")
                self.launches += 1
                log.info("reading_browser_started launches=%d", self.launches)
                return life
        raise AssertionError

    async def _context(self, life: _Life, trust: TrustLevel) -> str:
        proxy: dict[str, Any] = (
            {"proxyServer": self.options.proxy_url, "proxyBypassList": "<-loopback>"}
            if trust is TrustLevel.REMOTE
            else {}
        )
        made = await life.connection.send(
            "Target.createBrowserContext", disposeOnDetach=True, **proxy
        )
        context_id: str = _of(_Context, made).browser_context_id
        await life.connection.send(
            "Browser.setDownloadBehavior",
            behavior="allowAndName",
            browserContextId=context_id,
            downloadPath=str(life.downloads),
            eventsEnabled=True,
        )
        return context_id

    async def _watch_memory(self, life: _Life) -> None:
        """Retire a browser that has grown too large: what runs goes on, what comes is in a new one."""
        while life.is_alive and not life.retired:
            await asyncio.sleep(self.options.memory_check_s)
            weight = await asyncio.to_thread(lambda: resident_bytes(life.processes()))
            if weight > self.options.memory_limit:
                log.warning("reading_browser_retired resident_bytes=%d", weight)
                life.retired = True
                if not life.sessions:
                    await life.close()


class CdpSession:
    def __init__(self, owner: CdpBrowser, life: _Life, context_id: str) -> None:
        self.options = owner.options
        self.connection = life.connection
        self.context_id = context_id
        self.documents = life.documents
        self.downloads = life.downloads
        self.spawn = owner.spawn
        self.complaint = owner.complaint
        self._owner = owner
        self._life = life
        self._idle: list[CdpTab] = []
        self._room = asyncio.Semaphore(owner.options.tabs_per_session)
        self._reads = 0
        self._closed = False

    @property
    def is_alive(self) -> bool:
        return not self._closed and self._life.is_alive

    def tab(self, *, run_id: str, submits: bool = False) -> AbstractAsyncContextManager[Tab]:
        raise Unavailable("this session only reads pages")

    @asynccontextmanager
    async def reader(self, *, run_id: str) -> AsyncIterator[CdpTab]:
        async with self._room, self._owner.slots.slot(run_id):
            if not self.is_alive:
                raise BrowserGone("the session's browser is gone")
            try:
                tab = self._idle.pop() if self._idle else await self._new_tab()
            except PageError as failed:
                await self._check(failed)
                raise
            try:
                yield tab
            except ToolgateError as failed:
                self._keep(tab)
                if isinstance(failed, PageError):
                    await self._check(failed)
                raise
            except BaseException:
                tab.discard()  # stopped in the middle of something
                raise
            self._keep(tab)

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        with contextlib.suppress(PageError, TimeoutError):
            async with asyncio.timeout(5):
                await self.connection.send(
                    "Target.disposeBrowserContext", browserContextId=self.context_id
                )
        for tab in self._idle:
            self.leave(tab)
        await self._owner.release(self, self._life)

    def enter(self, tab: CdpTab) -> None:
        self._life.tabs[tab.target_id] = tab
        self.documents.enter(tab.target_id, tab.documents)

    def leave(self, tab: CdpTab) -> None:
        self._life.tabs.pop(tab.target_id, None)
        self.documents.leave(tab.target_id)

    async def new_target(self) -> tuple[str, str]:
        """A blank page and the session to talk to it, by their ids."""
        try:
            async with asyncio.timeout(OPEN_S):
                made = await self.connection.send(
                    "Target.createTarget",
                    url="about:blank",
                    browserContextId=self.context_id,
                    width=1280,
                    height=800,
                )
                target_id: str = _of(_TargetNamed, made).target_id
                attached = await self.connection.send(
                    "Target.attachToTarget", targetId=target_id, flatten=True
                )
        except TimeoutError:
            raise PageCrashed("the browser does not answer") from None
        except CdpRefused as refused:
            raise PageCrashed(str(refused)) from refused
        return target_id, _of(_Attached, attached).session_id

    async def _new_tab(self) -> CdpTab:
        tab = CdpTab(self)
        try:
            async with asyncio.timeout(OPEN_S):
                await tab.open()
        except BaseException as failed:
            if tab.target_id:
                tab.discard()
            if isinstance(failed, TimeoutError):
                raise PageCrashed("the browser does not answer") from None
            raise
        return tab

    async def _check(self, failed: PageError) -> None:
        """Before another try: a browser that died or hangs must be known to be gone."""
        if is_suspect(failed):
            await self._life.check()

    def _keep(self, tab: CdpTab) -> None:
        worn = tab.navigations >= self.options.reads_per_tab
        if worn or not tab.is_usable or self._closed:
            tab.discard()
        else:
            self._idle.append(tab)
            self._reads += 1
            if self._reads % READS_PER_CACHE == 0:
                self.spawn(tab.clear_cache())
            if tab.navigations % READS_PER_COLLECTION == 0:
                self.spawn(tab.collect_garbage())
