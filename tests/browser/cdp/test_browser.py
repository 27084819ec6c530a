"""The browser that only reads: its death at any moment, its pipe, its limits."""

import asyncio
import contextlib
import os
import shutil
import signal
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from tests.support.batteries import chosen
from tests.tasks.runtimes import a_toolset, is_running, read_one, run, until
from tests.tasks.site import Site
from toolgate.browser.browser import BrowserGone, ExtractOptions
from toolgate.browser.cdp import browser as cdp_browser
from toolgate.browser.cdp.browser import CdpBrowser
from toolgate.browser.cdp.connection import CdpConnection
from toolgate.browser.chromium import KNOWN
from toolgate.browser.options import BrowserOptions
from toolgate.browser.playwright.browser import PlaywrightBrowser
from toolgate.browser.proxy_verdicts import no_complaint
from toolgate.browser.system_browser import SystemBrowser
from toolgate.core.enums import TrustLevel
from toolgate.core.errors import Unavailable
from toolgate.tasks.catalog import load_templates
from toolgate.tasks.toolset import Toolset

pytestmark = pytest.mark.asyncio(loop_scope="module")

BOUND_S = 45.0


@pytest.fixture(scope="module")
def a_site() -> Iterator[Site]:
    site = Site()
    yield site
    site.close()


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def mortal() -> AsyncIterator[SystemBrowser]:
    if not any(shutil.which(name) for name in KNOWN):
        pytest.skip("there is no Chromium on this machine")
    browser = SystemBrowser(BrowserOptions(navigations_per_tab=1, reads_per_tab=1))
    yield browser
    await browser.close()


@pytest_asyncio.fixture(loop_scope="module")
async def tools(tmp_path: Path, mortal: SystemBrowser) -> AsyncIterator[Toolset]:
    async with a_toolset(tmp_path, browser=mortal, catalog=load_templates()) as toolset:
        yield toolset


COMMANDS = {
    "Target.createBrowserContext": 1,
    "Browser.setDownloadBehavior": 1,
    "Target.createTarget": 2,
    "Target.attachToTarget": 2,
    "Page.enable": 2,
    "Page.navigate": 2,
    "Runtime.evaluate": 2,
    "Target.closeTarget": 1,
    "Target.disposeBrowserContext": 1,
}
DEATHS = [(method, when) for method in COMMANDS for when in ("just-before", "while-it-waits")]
SHORT = (
    ("Target.createTarget", "while-it-waits"),
    ("Page.navigate", "just-before"),
    ("Runtime.evaluate", "while-it-waits"),
    ("Target.disposeBrowserContext", "just-before"),
)
HANGS = ("Page.navigate", "Target.createTarget", "Target.createBrowserContext")


@pytest.mark.parametrize(("method", "when"), chosen(DEATHS, SHORT))
async def test_a_reading_browser_that_dies_in_any_command_costs_no_run_its_end(
    method: str,
    when: str,
    tools: Toolset,
    mortal: SystemBrowser,
    a_site: Site,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await (await mortal.reading.open(trust=TrustLevel.LOCAL)).close()  # so that one lives
    before, left, came = mortal.reading.launches, COMMANDS[method], False
    send = CdpConnection.send

    async def deadly(
        self: CdpConnection, asked: str, session_id: str = "", **params: Any
    ) -> msgspec.Raw:
        nonlocal left, came
        left -= asked == method
        if came or left or asked != method:
            return await send(self, asked, session_id, **params)
        came = True
        browser = mortal.reading.processes()[0]
        # Frozen, it can take the command and never answers: so the call is surely under way.
        os.kill(browser, signal.SIGSTOP if when == "while-it-waits" else signal.SIGKILL)
        calling = asyncio.ensure_future(send(self, asked, session_id, **params))
        await asyncio.sleep(0)  # the command is written in this turn
        with contextlib.suppress(ProcessLookupError):
            os.kill(browser, signal.SIGKILL)
        return await calling

    monkeypatch.setattr(CdpConnection, "send", deadly)
    inputs = {"urls": [a_site.url(f"/n/{n}") for n in range(3)], "concurrency": 1}
    for _ in range(2):  # a command after the run's end is met by the run that follows
        begun = await run(tools, "batch_extract_pages", inputs, mode="async")
        ended = await tools.runtime.wait(begun["runId"], timeout_s=BOUND_S)
        assert ended.status == "succeeded", ended
    await until(lambda: came)
    assert mortal.reading.launches == before + 1
    assert tools.runtime.running == 0


@pytest.mark.parametrize("method", chosen(HANGS, HANGS[:1]))
async def test_a_reading_browser_that_hangs_is_ended_and_costs_no_run_its_end(
    method: str, tmp_path: Path, a_site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cdp_browser, "OPEN_S", 2.0)
    monkeypatch.setattr(cdp_browser, "ASK_S", 1.0)
    browser = SystemBrowser(BrowserOptions(navigation_ms=2000))
    send = CdpConnection.send
    frozen: list[int] = []

    async def freezing(
        self: CdpConnection, asked: str, session_id: str = "", **params: Any
    ) -> msgspec.Raw:
        if asked == method and not frozen:
            frozen.extend(browser.reading.processes())
            os.kill(frozen[0], signal.SIGSTOP)
        return await send(self, asked, session_id, **params)

    monkeypatch.setattr(CdpConnection, "send", freezing)
    try:
        await read_one(a_site.url("/n/1"), browser, tmp_path)
        await until(lambda: not any(map(is_running, frozen)), within_s=20)
    finally:
        await browser.close()


@pytest.mark.parametrize("path", ["/never", "/stuck-file"])
async def test_all_that_wait_are_told_when_the_browser_dies(
    path: str, mortal: SystemBrowser, a_site: Site
) -> None:
    session = await mortal.reading.open(trust=TrustLevel.LOCAL)
    a_site.hits.clear()

    async def read(number: int) -> None:
        async with session.reader(run_id="run_1") as reader:
            await reader.read(a_site.url(f"{path}?{number}"), ExtractOptions())

    reading = [asyncio.ensure_future(read(number)) for number in range(5)]
    await until(lambda: a_site.hits[path] == 5, within_s=20)
    if path == "/stuck-file":
        place = mortal.reading.downloads
        assert place is not None
        await until(lambda: len(list(place.iterdir())) == 5, within_s=20)
    os.kill(mortal.reading.processes()[0], signal.SIGKILL)
    async with asyncio.timeout(10):
        told = await asyncio.gather(*reading, return_exceptions=True)
    assert all(isinstance(one, BrowserGone) for one in told)
    assert not session.is_alive
    await session.close()


async def test_nothing_is_left_of_a_closed_browser(a_site: Site) -> None:
    browser = CdpBrowser(complaint=no_complaint)
    session = await browser.open(trust=TrustLevel.LOCAL)
    async with session.reader(run_id="run_1") as reader:
        assert (await reader.read(a_site.url("/n/1"), ExtractOptions())).title == "Page 1"
    processes, place = browser.processes(), browser.downloads
    assert processes
    assert place is not None
    await browser.close()
    await until(lambda: not any(Path(f"/proc/{one}").exists() for one in processes), within_s=20)
    assert not place.exists()
    with pytest.raises(Unavailable):
        await browser.open(trust=TrustLevel.LOCAL)


@pytest.mark.parametrize("kind", [CdpBrowser, PlaywrightBrowser])
async def test_a_browser_that_is_closed_while_it_starts_does_not_stay(
    kind: type[CdpBrowser | PlaywrightBrowser],
) -> None:
    browser = kind(complaint=no_complaint)
    opening = asyncio.create_task(browser.open(trust=TrustLevel.LOCAL))
    await until(browser._starting.locked)
    await browser.close()
    with pytest.raises(Unavailable):
        await opening
    assert not browser.processes()


async def test_a_program_that_is_no_browser_is_said_to_be_none() -> None:
    browser = CdpBrowser(BrowserOptions(executable="true"), complaint=no_complaint)
    with pytest.raises(Unavailable):
        await browser.open(trust=TrustLevel.LOCAL)
    await browser.close()


async def test_two_sessions_share_no_cookies(mortal: SystemBrowser, a_site: Site) -> None:
    shown = []
    for _ in range(2):
        session = await mortal.reading.open(trust=TrustLevel.LOCAL)
        async with session.reader(run_id="run_1") as reader:
            looked = await reader.read(a_site.url("/private"), ExtractOptions())
            shown.append(looked.top_sections)
            await reader.read(a_site.url("/sets-cookie"), ExtractOptions())
        async with session.reader(run_id="run_1") as reader:
            looked = await reader.read(a_site.url("/private"), ExtractOptions())
            assert looked.top_sections == ("Secret room",)
        await session.close()
    assert shown == [("Go away",), ("Go away",)]


async def test_a_long_run_lets_go_of_the_pages_before(
    a_site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cdp_browser, "READS_PER_CACHE", 4)
    monkeypatch.setattr(cdp_browser, "READS_PER_COLLECTION", 2)
    done: Counter[str] = Counter()
    send = CdpConnection.send

    async def counted(
        self: CdpConnection, asked: str, session_id: str = "", **params: Any
    ) -> msgspec.Raw:
        answer = await send(self, asked, session_id, **params)
        done[asked] += 1
        return answer

    monkeypatch.setattr(CdpConnection, "send", counted)
    browser = CdpBrowser(complaint=no_complaint)
    session = await browser.open(trust=TrustLevel.LOCAL)
    for number in range(8):
        async with session.reader(run_id="run_1") as reader:
            looked = await reader.read(a_site.url(f"/n/{number}"), ExtractOptions())
            assert looked.title == f"Page {number}"
    await until(lambda: done["HeapProfiler.collectGarbage"] == 4)
    await until(lambda: done["Network.clearBrowserCache"] == 2)
    assert done["Target.createTarget"] == 1
    await session.close()
    await browser.close()


async def test_a_file_that_comes_when_its_visit_is_over_is_not_left_lying(
    tmp_path: Path,
) -> None:
    class Tab:
        file: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    browser = CdpBrowser(complaint=no_complaint)
    life = cdp_browser._Life(browser, tmp_path)
    tab: Any = Tab()
    tab.file.cancel()  # whoever waited for it has gone
    came = life.downloads / "guid"
    came.write_bytes(b"x")
    life._files["guid"] = (tab, "name")
    try:
        life._download_moved(cdp_browser._DownloadMoved("guid", 1, "completed"))
        await until(lambda: not came.exists())
    finally:
        life.forget()
        await browser.close()


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def test_a_browser_that_nobody_waits_for_any_more_while_it_starts_is_ended(
    tmp_path: Path,
) -> None:
    program, told = tmp_path / "chromium", tmp_path / "pid"
    program.write_text(f"#!/bin/sh\necho $$ > {told}.new; mv {told}.new {told}; exec sleep 60\n")
    program.chmod(0o755)
    browser = CdpBrowser(BrowserOptions(executable=str(program)), complaint=no_complaint)
    before = open_files()
    opening = asyncio.create_task(browser.open(trust=TrustLevel.LOCAL))
    await until(told.exists)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    await browser.close()
    with pytest.raises(ProcessLookupError):
        os.kill(int(told.read_text()), 0)
    await until(lambda: open_files() == before)


async def test_a_browser_that_is_not_started_any_more_leaves_no_pipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached = asyncio.Event()

    async def never(*_: Any, **__: Any) -> None:
        reached.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(asyncio, "create_subprocess_exec", never)
    before = open_files()
    starting = asyncio.create_task(
        CdpConnection(lost=lambda: None).start("chromium", home=tmp_path)
    )
    await reached.wait()
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert open_files() == before


async def test_a_browser_that_nobody_waits_for_once_it_has_answered_is_ended_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not any(shutil.which(name) for name in KNOWN):
        pytest.skip("there is no Chromium on this machine")
    asked: list[CdpConnection] = []
    send = CdpConnection.send

    async def held(
        self: CdpConnection, method: str, session_id: str = "", **params: Any
    ) -> msgspec.Raw:
        if method == "Target.setDiscoverTargets":
            asked.append(self)
            await asyncio.Event().wait()
        return await send(self, method, session_id, **params)

    monkeypatch.setattr(CdpConnection, "send", held)
    browser = CdpBrowser(complaint=no_complaint)
    opening = asyncio.create_task(browser.open(trust=TrustLevel.LOCAL))
    await until(lambda: bool(asked))
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    await browser.close()
    process = asked[0].process
    assert process is not None
    assert process.returncode is not None


async def test_a_message_that_cannot_be_read_takes_no_other_with_it() -> None:
    heard: list[str] = []
    connection = CdpConnection(lost=lambda: None)
    connection.listen("", lambda method, _: heard.append(method))
    half, deep = b'{"method":"a","params":{"said":"\\ud800"}}', b'{"params":' + b"[" * 100_000
    connection.data_received(b"\0".join((half, deep, b'{"method":"b"}', b"")))
    assert heard == ["b"]
