"""The browser dies at the worst moments: in each call we make to it, before and while it waits."""

import asyncio
import ctypes
import fcntl
import os
import shutil
import signal
import struct
import termios
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from playwright import async_api

from tests.support.batteries import chosen
from tests.support.soak import soaking
from tests.tasks.runtimes import a_toolset, get, is_running, read_one, run, until
from tests.tasks.site import Site
from toolgate.browser.browser import BrowserGone, ExtractOptions
from toolgate.browser.chromium import KNOWN, process_tree
from toolgate.browser.options import BrowserOptions
from toolgate.browser.playwright import browser as playwright_browser
from toolgate.browser.playwright.browser import PlaywrightBrowser
from toolgate.browser.system_browser import SystemBrowser
from toolgate.core.enums import TrustLevel
from toolgate.tasks.catalog import load_templates
from toolgate.tasks.toolset import Toolset

pytestmark = pytest.mark.asyncio(loop_scope="module")

BOUND_S = 45.0  # a budget of a page is 15 s; a call that never returns would take for ever
PIDFD_GETFD = 438  # the number of the system call, on every architecture
COMMANDS_FD = 3  # where the browser reads what it is to do


@pytest.fixture(scope="module")
def a_site() -> Any:
    site = Site()
    yield site
    site.close()


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def mortal() -> AsyncIterator[PlaywrightBrowser]:
    if not any(shutil.which(name) for name in KNOWN):
        pytest.skip("there is no Chromium on this machine")
    # One page to a tab and no spares: every call comes in each run, in a known order.
    browser = PlaywrightBrowser(BrowserOptions(navigations_per_tab=1, spares=0))
    yield browser
    await browser.close()


@pytest_asyncio.fixture(loop_scope="module")
async def tools(tmp_path: Path, mortal: PlaywrightBrowser) -> AsyncIterator[Toolset]:
    async with a_toolset(tmp_path, browser=mortal, catalog=load_templates()) as toolset:
        yield toolset


def unread(process: int) -> int:
    """Bytes of commands that the browser has not taken yet."""
    handle = os.pidfd_open(process)
    pipe = ctypes.CDLL(None, use_errno=True).syscall(PIDFD_GETFD, handle, COMMANDS_FD, 0)
    os.close(handle)
    if pipe < 0:
        raise OSError(ctypes.get_errno(), "pidfd_getfd")
    try:
        (waiting,) = struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, b"\0" * 4))
        return int(waiting)
    finally:
        os.close(pipe)


class Death:
    """Comes to the browser in the n-th call of one method, and only once."""

    def __init__(self, browser: PlaywrightBrowser, call: int, *, waiting: bool) -> None:
        self.came = False
        self._browser = browser
        self._left = call
        self._waiting = waiting

    def at(self, method: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def call(*given: Any, **named: Any) -> Any:
            self._left -= 1
            processes = self._browser.processes()
            if self._left or not processes:
                return await method(*given, **named)
            self.came = True
            if not self._waiting:
                os.kill(processes[0], signal.SIGKILL)
                return await method(*given, **named)
            # Frozen, it takes the command and never answers: so the call is surely under way.
            os.kill(processes[0], signal.SIGSTOP)
            before = unread(processes[0])
            calling = asyncio.ensure_future(method(*given, **named))
            try:
                await until(lambda: unread(processes[0]) > before, within_s=20)
            finally:
                os.kill(processes[0], signal.SIGKILL)
            return await calling

        return call


CALLS = {
    "new_context": (async_api.Browser, "new_context", 1),
    "new_page": (async_api.BrowserContext, "new_page", 2),
    "new_cdp_session": (async_api.BrowserContext, "new_cdp_session", 2),
    "cdp_send": (async_api.CDPSession, "send", 3),
    "goto": (async_api.Page, "goto", 2),
    "evaluate": (async_api.Page, "evaluate", 2),
    "close_page": (async_api.Page, "close", 1),
    "close_context": (async_api.BrowserContext, "close", 1),
}
DEATHS = [(name, when) for name in CALLS for when in ("just-before", "while-it-waits")]
SHORT = (
    ("new_page", "while-it-waits"),
    ("goto", "just-before"),
    ("evaluate", "while-it-waits"),
    ("close_context", "just-before"),
)
HANGS = ("new_page", "goto")


@pytest.mark.parametrize(("name", "when"), chosen(DEATHS, SHORT))
async def test_a_browser_that_dies_in_any_call_costs_no_run_its_end(
    name: str,
    when: str,
    tools: Toolset,
    mortal: PlaywrightBrowser,
    a_site: Site,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    urls = [a_site.url(f"/n/{n}") for n in range(3)]
    inputs = {"urls": urls, "concurrency": 1}
    await (await mortal.open(trust=TrustLevel.LOCAL)).close()  # so that one lives
    before = mortal.launches
    kind, method, number = CALLS[name]
    death = Death(mortal, number, waiting=when == "while-it-waits")
    monkeypatch.setattr(kind, method, death.at(getattr(kind, method)))
    for _ in range(2):  # a call after the run's end is met by the run that follows
        begun = await run(tools, "batch_extract_pages", inputs, mode="async")
        ended = await tools.runtime.wait(begun["runId"], timeout_s=BOUND_S)
        shown = await get(tools, begun["runId"])
        failed = [each for each in shown["result"]["items"] if "error" in each]
        assert (ended.status, failed) == ("succeeded", [])
    await until(lambda: death.came)
    assert mortal.launches == before + 1
    assert tools.runtime.running == 0


LAST_WORDS = ["Protocol error (Target.createTarget): what was that?", "Target crashed"]


@pytest.mark.parametrize("words", LAST_WORDS)
async def test_a_browser_that_dies_with_other_words_costs_no_run_its_end(
    words: str,
    tools: Toolset,
    mortal: PlaywrightBrowser,
    a_site: Site,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await (await mortal.open(trust=TrustLevel.LOCAL)).close()
    new_page = async_api.BrowserContext.new_page
    killed = False

    async def dying(context: async_api.BrowserContext) -> async_api.Page:
        nonlocal killed
        if not killed:
            killed = True
            os.kill(mortal.processes()[0], signal.SIGKILL)
            raise async_api.Error(words)
        return await new_page(context)

    monkeypatch.setattr(async_api.BrowserContext, "new_page", dying)
    begun = await run(tools, "batch_extract_pages", {"urls": [a_site.url("/n/1")]}, mode="async")
    ended = await tools.runtime.wait(begun["runId"], timeout_s=BOUND_S)
    assert ended.status == "succeeded", (await get(tools, begun["runId"]))["result"]


@pytest.mark.parametrize("method", chosen(HANGS, HANGS[:1]))
async def test_a_browser_that_hangs_is_ended_and_costs_no_run_its_end(
    method: str, tmp_path: Path, a_site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(playwright_browser, "OPEN_S", 2.0)
    monkeypatch.setattr(playwright_browser, "ASK_S", 1.0)
    browser = PlaywrightBrowser(BrowserOptions(navigation_ms=2000, spares=0))
    kind = async_api.BrowserContext if method == "new_page" else async_api.Page
    called = getattr(kind, method)
    frozen: list[int] = []

    async def freezing(*given: Any, **named: Any) -> Any:
        if not frozen:
            frozen.extend(browser.processes())
            os.kill(frozen[0], signal.SIGSTOP)
        return await called(*given, **named)

    monkeypatch.setattr(kind, method, freezing)
    try:
        await read_one(a_site.url("/n/1"), browser, tmp_path)
        await until(lambda: not any(map(is_running, frozen)), within_s=20)
    finally:
        await browser.close()


async def test_many_runs_at_once_outlive_a_browser_frozen_and_killed_while_pages_open(
    tools: Toolset, mortal: PlaywrightBrowser, a_site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    death = Death(mortal, 7, waiting=True)
    opening = async_api.BrowserContext.new_page
    monkeypatch.setattr(async_api.BrowserContext, "new_page", death.at(opening))
    urls = [a_site.url(f"/n/{n}") for n in range(6)]
    begun = [
        await run(tools, "batch_extract_pages", {"urls": urls}, mode="async") for _ in range(6)
    ]
    for answer in begun:
        ended = await tools.runtime.wait(answer["runId"], timeout_s=BOUND_S)
        assert ended.status == "succeeded", ended
    assert death.came


async def test_a_browser_killed_while_it_starts_is_started_once_more(
    mortal: PlaywrightBrowser, a_site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch = async_api.BrowserType.launch
    killed: list[int] = []

    async def launch_and_die(*given: Any, **named: Any) -> Any:
        launching = asyncio.ensure_future(launch(*given, **named))
        if not killed:
            mark = next(arg for arg in named["args"] if arg.startswith("--toolgate-browser="))
            await until(lambda: born(mark) or launching.done(), within_s=20)
            killed.extend(born(mark))
            os.kill(killed[0], signal.SIGKILL)
        return await launching

    monkeypatch.setattr(async_api.BrowserType, "launch", launch_and_die)
    browser = PlaywrightBrowser()
    try:
        async with asyncio.timeout(BOUND_S):
            session = await browser.open(trust=TrustLevel.LOCAL)
            async with session.tab(run_id="run_1") as tab:
                assert (await tab.read(a_site.url("/n/1"), ExtractOptions())).title == "Page 1"
        assert killed
    finally:
        await browser.close()


def born(mark: str) -> list[int]:
    """Processes of ours that were started with this flag."""
    found = []
    for process in process_tree(os.getpid()):
        try:
            command = Path(f"/proc/{process}/cmdline").read_bytes()
        except OSError:
            continue
        if mark.encode() in command:
            found.append(process)
    return found


async def test_a_driver_that_dies_is_started_again_like_the_browser(a_site: Site) -> None:
    browser = PlaywrightBrowser()
    try:
        session = await browser.open(trust=TrustLevel.LOCAL)
        driver = browser.processes()[0]
        while parent_of(driver) != os.getpid():
            driver = parent_of(driver)
        os.kill(driver, signal.SIGKILL)
        async with asyncio.timeout(BOUND_S):
            with pytest.raises(BrowserGone):
                async with session.tab(run_id="run_1") as tab:
                    await tab.read(a_site.url("/n/1"), ExtractOptions())
            assert not session.is_alive
            again = await browser.open(trust=TrustLevel.LOCAL)
            async with again.tab(run_id="run_1") as tab:
                assert (await tab.read(a_site.url("/n/1"), ExtractOptions())).title == "Page 1"
    finally:
        await browser.close()


def parent_of(process: int) -> int:
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])


async def test_a_browser_that_is_busy_for_some_seconds_is_not_taken_for_one_that_hangs() -> None:
    """Drawing a long page takes as long on a loaded machine, and others' sessions are in it."""
    browser = SystemBrowser(BrowserOptions(spares=0))
    loop, busy_s = asyncio.get_running_loop(), 6.0 if soaking() else 2.0
    try:
        worked = await browser.working.open(trust=TrustLevel.LOCAL)
        read = await browser.reading.open(trust=TrustLevel.LOCAL)
        busy = [browser.working.processes()[0], browser.reading.processes()[0]]
        for process in busy:
            os.kill(process, signal.SIGSTOP)
            loop.call_later(busy_s, os.kill, process, signal.SIGCONT)
        async with asyncio.timeout(BOUND_S):
            await asyncio.gather(worked._generation.check(), read._life.check())
        assert worked.is_alive
        assert read.is_alive
    finally:
        await browser.close()


async def test_a_tab_that_crashed_while_nobody_used_it_is_used_by_nobody(
    a_site: Site,
) -> None:
    browser = PlaywrightBrowser(BrowserOptions(spares=0))
    try:
        session = await browser.open(trust=TrustLevel.LOCAL)
        async with session.tab(run_id="run_1") as tab:
            await tab.visit(a_site.url("/n/1"))
        for process in renderers(browser):
            os.kill(process, signal.SIGKILL)
        await until(lambda: not tab.is_usable, within_s=20)
        async with session.tab(run_id="run_2") as tab:
            assert (await tab.read(a_site.url("/n/2"), ExtractOptions())).title == "Page 2"
    finally:
        await browser.close()


def renderers(browser: PlaywrightBrowser) -> list[int]:
    """Those of its processes in which pages live."""
    return [
        process
        for process in browser.processes()
        if b"--type=renderer" in Path(f"/proc/{process}/cmdline").read_bytes()
    ]


async def test_a_session_in_a_spare_context_shares_no_cookies_with_another(a_site: Site) -> None:
    browser = PlaywrightBrowser(BrowserOptions(spares=1))
    try:
        first = await browser.open(trust=TrustLevel.LOCAL)
        spares = first._generation.spares.setdefault(TrustLevel.LOCAL, [])
        await until(lambda: bool(spares))
        warm = spares[0]
        second = await browser.open(trust=TrustLevel.LOCAL)
        assert second.context is warm
        await until(lambda: bool(spares))
        third = await browser.open(trust=TrustLevel.LOCAL)
        assert len({first.context, second.context, third.context}) == 3
        async with second.tab(run_id="run_1") as tab:
            await tab.read(a_site.url("/sets-cookie"), ExtractOptions())
        for session, shown in ((second, "Secret room"), (third, "Go away")):
            async with session.tab(run_id="run_1") as tab:
                looked = await tab.read(a_site.url("/private"), ExtractOptions())
                assert looked.top_sections == (shown,)
    finally:
        await browser.close()
