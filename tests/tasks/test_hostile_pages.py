"""Pages that hang, crash, flood, redirect for ever: one item suffers, and nobody else."""

import asyncio
import contextlib
import os
import signal
import ssl
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.support.batteries import chosen
from tests.support.soak import soaking
from tests.tasks.runtimes import a_toolset, fails, get, run, until
from tests.tasks.site import Site
from toolgate.browser import leftovers as stray_files
from toolgate.browser.browser import Degraded, DownloadTooLarge, ExtractOptions, PageError
from toolgate.browser.options import BrowserOptions
from toolgate.browser.system_browser import SystemBrowser
from toolgate.core.enums import TaskCode, TaskStatus, TrustLevel
from toolgate.core.errors import Misconfigured
from toolgate.tasks.catalog import load_templates
from toolgate.tasks.toolset import Toolset

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def items(toolset: Toolset, *urls: str, **inputs: Any) -> list[dict[str, Any]]:
    """The items of a batch, whatever became of the run."""
    answer = await run(toolset, "batch_extract_pages", {"urls": list(urls), **inputs}, mode="sync")
    found = answer["result"]["items"]
    assert isinstance(found, list)
    return found


def text_of(item: dict[str, Any]) -> str:
    return " ".join(section["text"] for section in item["content"]["sections"])


async def test_a_script_without_end_is_stopped_and_its_page_read_degraded(
    toolset: Toolset, site: Site
) -> None:
    hung, fine = await items(toolset, site.url("/hang"), site.url("/n/1"))
    assert (hung["degraded"], hung["degradedBy"]) == (True, "stopped")
    assert text_of(hung) == "Before After"
    assert "degraded" not in fine


async def test_a_page_that_cannot_be_stopped_is_answered_from_its_html(
    toolset: Toolset, site: Site
) -> None:
    (hung,) = await items(toolset, site.url("/hang-again"))
    assert (hung["degraded"], text_of(hung)) == (True, "Before After")


async def test_a_page_that_takes_long_to_read_while_it_is_worked_is_read_and_did_not_crash(
    browser: SystemBrowser, site: Site
) -> None:
    session = await browser.working.open(trust=TrustLevel.LOCAL)
    async with session.tab(run_id="run_1") as tab:
        await tab.visit(site.url("/slow-to-read"))
        assert await tab.title() == "Slow"
        # Shorter than the reading takes, as the usual ones are for a huge page.
        tab._options = BrowserOptions(soft_ms=100, stop_ms=100)
        looked = await tab.extract(ExtractOptions())
    await session.close()
    assert (looked.title, looked.degraded) == ("Slow", Degraded.STOPPED)


async def test_the_usual_budgets_of_a_hang_leave_time_to_read_within_eight_seconds() -> None:
    usual = BrowserOptions()
    assert usual.soft_ms + 2 * usual.stop_ms + usual.static_ms <= 6_500


@pytest.mark.parametrize("only_reads", chosen([True, False], [True]))
async def test_with_the_usual_budgets_a_hang_is_answered_and_no_navigation_waited_for(
    tmp_path: Path, site: Site, only_reads: bool
) -> None:
    browser = SystemBrowser()
    try:
        session = await browser.open(trust=TrustLevel.LOCAL, only_reads=only_reads)
        usual = BrowserOptions()
        waited_ms = usual.soft_ms + 2 * usual.stop_ms + usual.static_ms
        async with session.reader(run_id="run_1") as reader:
            # Reading takes what it takes here, but less than a navigation that is waited out.
            async with asyncio.timeout((waited_ms + usual.navigation_ms) / 1000):
                looked = await reader.read(site.url("/hang-again"), ExtractOptions())
        assert looked.degraded is not None
    finally:
        await browser.close()


async def test_a_hanging_page_holds_up_no_other_run(toolset: Toolset, site: Site) -> None:
    hanging = await run(
        toolset, "batch_extract_pages", {"urls": [site.url("/never")] * 3}, mode="async"
    )
    answer = await run(toolset, "batch_extract_pages", {"urls": [site.url("/n/1")]}, mode="sync")
    assert answer["status"] == "succeeded"
    assert toolset.runtime.view(hanging["runId"]).status is TaskStatus.RUNNING
    canceled, by_us = await toolset.runtime.cancel(hanging["runId"])
    assert by_us
    assert canceled.status is TaskStatus.CANCELED


@pytest.mark.requirement("004/templates/batch-retry")
async def test_a_page_that_timed_out_or_crashed_is_tried_once_more(
    toolset: Toolset, site: Site
) -> None:
    site.hits.clear()
    late, never = await items(toolset, site.url("/never-once"), site.url("/never-ever"))
    assert never["error"]["errorCode"] == "NAVIGATION_TIMEOUT"
    assert site.hits["/never-ever"] == 2
    assert late["success"] is True
    assert site.hits["/never-once"] == 2


async def test_crashed_pages_fail_alone(toolset: Toolset, site: Site) -> None:
    crashed, fine = await items(toolset, "chrome://crash", site.url("/n/1"), concurrency=1)
    assert crashed["error"]["errorCode"] == "PAGE_CRASHED"
    assert fine["title"] == "Page 1"


async def test_redirects_without_end_fail_their_item(toolset: Toolset, site: Site) -> None:
    endless, fine = await items(toolset, site.url("/endless"), site.url("/n/1"), concurrency=1)
    assert endless["error"]["errorCode"] == "EXECUTION_ERROR"
    assert "REDIRECTS" in endless["error"]["message"]
    assert fine["success"] is True


async def test_pages_that_navigate_by_themselves_are_read_and_their_tab_still_works(
    toolset: Toolset, site: Site
) -> None:
    urls = [site.url("/refresh"), site.url("/reload"), site.url("/n/1"), site.url("/n/2")]
    found = await items(toolset, *urls, concurrency=1)
    assert [item["title"] for item in found] == ["Refresh", "Reload", "Page 1", "Page 2"]


async def test_a_page_that_leaves_late_is_not_taken_for_the_one_after_it(
    toolset: Toolset, site: Site
) -> None:
    times = 15 if soaking() else 4
    urls = [site.url(path) for n in range(times) for path in (f"/refresh?{n}", f"/n/{n}")]
    found = await items(toolset, *urls, concurrency=1)
    assert [item["title"] for item in found[1::2]] == [f"Page {n}" for n in range(times)]


@pytest.mark.parametrize(
    ("path", "late_s"), [("/leaves-by-frame", 0.6), ("/leaves-by-header", 1.3)]
)
async def test_a_page_that_seems_at_rest_and_leaves_late_costs_the_next_nothing(
    browser: SystemBrowser, site: Site, path: str, late_s: float
) -> None:
    session = await browser.working.open(trust=TrustLevel.LOCAL)
    async with session.tab(run_id="run_1") as tab:
        assert (await tab.read(site.url(path), ExtractOptions())).title == "Leaves"
        looked = await tab.read(site.url(f"/page-after?s={late_s}"), ExtractOptions())
        assert looked.title == "Came late"
    await session.close()


@pytest.mark.parametrize("only_reads", [True, False])
async def test_a_file_of_the_page_before_is_not_taken_for_the_one_that_is_asked_for(
    browser: SystemBrowser, site: Site, only_reads: bool
) -> None:
    session = await browser.open(trust=TrustLevel.LOCAL, only_reads=only_reads)
    contents = []
    for path in ("/gives-late", "/file-after?s=0.5"):
        async with session.reader(run_id="run_1") as reader:
            looked = await reader.read(site.url(path), ExtractOptions())
            contents.append(looked.download and looked.download.content)
    assert contents == [None, b"0.5"]
    await session.close()


async def test_parts_of_one_page_are_each_loaded_anew(toolset: Toolset, site: Site) -> None:
    site.hits.clear()
    urls = [site.url(f"/by-fragment#{part}") for part in ("a", "b", "b")]
    found = await items(toolset, *urls, concurrency=1)
    assert [text_of(item) for item in found] == ["Part #a", "Part #b", "Part #b"]
    assert site.hits["/by-fragment"] == 3


async def test_dialogs_and_pop_ups_are_dismissed(
    toolset: Toolset, site: Site, browser: SystemBrowser
) -> None:
    session = await browser.working.open(trust=TrustLevel.LOCAL)
    async with session.tab(run_id="run_1") as tab:
        looked = await tab.read(site.url("/popups"), ExtractOptions())
        assert looked.top_sections == ("After the pop-ups",)
        await until(lambda: len(session.context.pages) == 1)
        looked = await tab.read(site.url("/dialogs"), ExtractOptions())
        assert looked.top_sections == ("After the dialogs",)
        looked = await tab.read(site.url("/n/1"), ExtractOptions())
        assert looked.title == "Page 1"
    await session.close()


async def test_a_pop_up_of_a_pop_up_is_closed_too(site: Site, browser: SystemBrowser) -> None:
    site.hits.clear()
    session = await browser.working.open(trust=TrustLevel.LOCAL)
    async with session.tab(run_id="run_1") as tab:
        looked = await tab.read(site.url("/popup-chain"), ExtractOptions())
        assert looked.top_sections == ("After them",)
        await until(lambda: site.hits["/popups"] == 1)
        await until(lambda: len(session.context.pages) == 1)
    await session.close()


async def test_pages_that_are_read_may_show_dialogs_and_open_pop_ups(
    toolset: Toolset, site: Site
) -> None:
    urls = [site.url("/popups"), site.url("/dialogs"), site.url("/n/1")]
    found = await items(toolset, *urls, concurrency=1)
    assert [text_of(item) for item in found[:2]] == ["After the pop-ups", "After the dialogs"]
    assert found[2]["title"] == "Page 1"


async def test_a_page_that_waits_for_frames_is_read_once_they_are_drawn(
    toolset: Toolset, site: Site
) -> None:
    site.hits.clear()
    (item,) = await items(toolset, site.url("/frames"))
    assert text_of(item) == "by frame when idle when seen"
    assert site.hits["/frames"] == 1


async def test_a_download_bomb_is_cut_off_and_leaves_nothing_behind(
    toolset: Toolset, site: Site, browser: SystemBrowser
) -> None:
    bomb, fine = await items(toolset, site.url("/bomb"), site.url("/n/1"), concurrency=1)
    assert bomb["error"]["errorCode"] == "EXECUTION_ERROR"
    assert "larger than" in bomb["error"]["message"]
    assert fine["success"] is True
    place = browser.reading.downloads
    assert place is not None
    await until(lambda: not list(place.iterdir()))


@pytest.mark.parametrize("only_reads", [True, False])
@pytest.mark.parametrize("path", ["/bomb", "/frames-a-bomb", "/gives-a-bomb"])
async def test_a_download_bomb_is_cut_off_while_its_session_goes_on(
    browser: SystemBrowser, site: Site, path: str, only_reads: bool
) -> None:
    site.hits.clear()
    session = await browser.open(trust=TrustLevel.LOCAL, only_reads=only_reads)
    for each in (path, "/n/1"):  # the bomb may come when its page is left
        with contextlib.suppress(DownloadTooLarge):
            async with session.reader(run_id="run_1") as reader:
                await reader.read(site.url(each), ExtractOptions())
    await until(lambda: site.hits["/bomb"] == 1)
    await until(lambda: site.hits["bombs cut off"] == 1)
    assert session.is_alive
    await session.close()


@pytest.mark.parametrize("only_reads", [True, False])
async def test_a_file_that_comes_at_once_is_bounded_too(
    browser: SystemBrowser, site: Site, only_reads: bool
) -> None:
    limit = browser.working.options.download_limit
    session = await browser.open(trust=TrustLevel.LOCAL, only_reads=only_reads)
    async with session.reader(run_id="run_1") as reader:
        looked = await reader.read(site.url(f"/file-of?bytes={limit}"), ExtractOptions())
        assert looked.download is not None
    async with session.reader(run_id="run_1") as reader:
        with pytest.raises(DownloadTooLarge):
            await reader.read(site.url(f"/file-of?bytes={limit + 1}"), ExtractOptions())
    await session.close()


async def test_a_file_of_a_page_that_was_left_does_not_lie_there_for_ever(
    browser: SystemBrowser, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stray_files, "KEPT_S", 0.2)
    session = await browser.working.open(trust=TrustLevel.LOCAL)
    for path in ("/gives-late", "/n/1"):
        async with session.tab(run_id="run_1") as tab:
            await tab.read(site.url(path), ExtractOptions())
    place = browser.working.downloads
    await until(lambda: list(place.iterdir()))
    await until(lambda: not list(place.iterdir()))
    await session.close()


async def test_a_file_is_bounded_by_its_own_size_and_not_by_anothers(
    site: Site, browser: SystemBrowser
) -> None:
    session = await browser.working.open(trust=TrustLevel.LOCAL)
    before = set(browser.working.downloads.iterdir())  # of tests before, with the same browser
    anothers = browser.working.downloads / "anothers"
    anothers.write_bytes(b"x" * (browser.working.options.download_limit + 1))
    try:
        async with session.tab(run_id="run_1") as tab:
            looked = await tab.read(site.url("/slow-file"), ExtractOptions())
        assert looked.download is not None
        assert len(looked.download.content) == 400_000
        async with session.tab(run_id="run_1") as tab:
            with pytest.raises(DownloadTooLarge):
                await tab.read(site.url("/bomb"), ExtractOptions())
        await until(lambda: set(browser.working.downloads.iterdir()) - before == {anothers})
    finally:
        anothers.unlink()
        await session.close()


async def test_files_that_pages_give_unasked_are_not_left_lying(
    toolset: Toolset, site: Site, browser: SystemBrowser
) -> None:
    site.hits.clear()
    urls = [site.url(f"/gives-a-file?{n}") for n in range(4)]
    assert [item["title"] for item in await items(toolset, *urls, concurrency=2)] == ["Gives"] * 4
    assert site.hits["/file"] > 0
    place = browser.reading.downloads
    assert place is not None
    await until(lambda: not list(place.iterdir()))


async def test_a_page_of_fifty_megabytes_is_read_within_its_limits(
    tmp_path: Path, site: Site
) -> None:
    browser = SystemBrowser(BrowserOptions(soft_ms=60_000, navigation_ms=60_000))
    try:
        async with a_toolset(tmp_path, browser=browser, catalog=load_templates()) as toolset:
            (huge,) = await items(toolset, site.url("/huge"))
            assert huge["success"] is True
            assert sum(len(section["text"]) for section in huge["content"]["sections"]) == 4000
    finally:
        await browser.close()


async def test_broken_html_and_encodings_are_read_as_a_browser_reads_them(
    toolset: Toolset, site: Site
) -> None:
    urls = [site.url("/broken"), site.url("/latin"), site.url("/mangled")]
    broken, latin, mangled = await items(toolset, *urls)
    assert broken["title"].startswith("Broken</ttle><p>One"), "all of it is its title"
    assert broken["error"]["message"] == "the document is empty"
    assert (latin["title"], text_of(latin)) == ("Café", "naïve")
    assert "kept" in text_of(mangled)


@pytest.mark.parametrize("only_reads", [True, False])
async def test_pictures_and_drawings_are_read_at_once_though_they_are_no_pages(
    browser: SystemBrowser, site: Site, only_reads: bool
) -> None:
    session = await browser.open(trust=TrustLevel.LOCAL, only_reads=only_reads)
    async with session.reader(run_id="run_1") as reader:
        looked = await reader.read(site.url("/drawing"), ExtractOptions())
        assert (looked.title, looked.degraded) == ("Drawing", None)
        assert "Words in it" in looked.top_sections
        looked = await reader.read(site.url("/pixel.png?"), ExtractOptions())
        assert looked.degraded is None
    await session.close()


@pytest.mark.parametrize("only_reads", [True, False])
@pytest.mark.parametrize(
    "path",
    ["/liar", "/liar-too", "/liar-by-half", "/throws-half", "/throws-a-net"],
)
async def test_a_page_that_cannot_be_understood_is_a_failure_of_that_page(
    browser: SystemBrowser, site: Site, path: str, only_reads: bool
) -> None:
    session = await browser.open(trust=TrustLevel.LOCAL, only_reads=only_reads)
    async with session.reader(run_id="run_1") as reader:
        try:
            looked = await reader.read(site.url(path), ExtractOptions())
            said = looked.degraded or ""  # a busy machine gave it no time to fail
        except PageError as failed:
            said = str(failed)
    assert 0 < len(said.encode()) < 1_000  # it can be written down
    await session.close()


async def test_pages_that_cannot_be_understood_fail_their_items_alone(
    toolset: Toolset, site: Site
) -> None:
    liar, fine = await items(toolset, site.url("/liar"), site.url("/n/1"), concurrency=1)
    assert liar["error"]["errorCode"] == "EXECUTION_ERROR"
    assert fine["title"] == "Page 1"


async def test_pages_with_old_libraries_and_half_letters_are_read(
    toolset: Toolset, site: Site
) -> None:
    old, half = await items(toolset, site.url("/prototype"), site.url("/half-letters"))
    assert text_of(old) == "Its arrays say themselves Home"
    assert old["pageInfo"]["elements"][0]["role"] == "link"
    assert text_of(half) == "Text Role"


async def test_forms_that_are_named_like_parts_of_the_document_do_not_hide_them(
    toolset: Toolset, site: Site
) -> None:
    (item,) = await items(toolset, site.url("/named-alike"))
    assert (item["title"], text_of(item)) == ("Alike", "Text")
    shot = await run(toolset, "screenshot_page", {"url": site.url("/named-alike")}, mode="sync")
    assert shot["result"]["title"] == "Alike"


async def test_a_long_heading_is_not_said_again_for_each_line_below_it(
    toolset: Toolset, site: Site
) -> None:
    (item,) = await items(toolset, site.url("/headed"), extract={"maxContentLength": 50_000})
    sections = item["content"]["sections"]
    assert len(sections) == 2_001
    assert max(len(section.get("heading", "")) for section in sections) == 200


async def test_long_names_of_elements_do_not_make_a_result_long(
    toolset: Toolset, site: Site
) -> None:
    (item,) = await items(toolset, site.url("/long-tags"))
    sections = item["content"]["sections"]
    assert "w" in text_of(item)
    assert max(len(section["tag"]) for section in sections) <= 100


@pytest.fixture
def bad_tls(tmp_path: Path) -> Iterator[str]:
    """A server whose certificate nobody vouches for."""
    subprocess.run(
        [
            "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
            "-nodes", "-days", "1", "-subj", "/CN=localhost",
            "-keyout", str(tmp_path / "key"), "-out", str(tmp_path / "certificate"),
        ],
        check=True,
        capture_output=True,
    )  # fmt: skip
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "certificate", tmp_path / "key")
    server = HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)
    server.handle_error = lambda *_: None  # type: ignore[method-assign]
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"https://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


async def test_a_bad_certificate_and_a_dead_port_fail_their_items(
    toolset: Toolset, bad_tls: str
) -> None:
    untrusted, dead = await items(toolset, bad_tls, "http://127.0.0.1:9/")
    assert "CERT" in untrusted["error"]["message"]
    assert untrusted["error"]["errorCode"] == "EXECUTION_ERROR"
    assert dead["error"]["errorCode"] == "EXECUTION_ERROR"


async def test_a_browser_killed_in_mid_run_is_started_again_and_no_run_is_lost(
    tmp_path: Path, site: Site
) -> None:
    browser = SystemBrowser()
    try:
        async with a_toolset(tmp_path, browser=browser, catalog=load_templates()) as toolset:
            runs, pages = (6, 25) if soaking() else (3, 10)
            urls = [site.url(f"/n/{n}") for n in range(pages)]
            begun = [
                await run(toolset, "batch_extract_pages", {"urls": urls}, mode="async")
                for _ in range(runs)
            ]
            first = begun[0]["runId"]
            await until(lambda: toolset.runtime.view(first).done_steps > 1, within_s=20)
            os.kill(browser.reading.processes()[0], signal.SIGKILL)
            for answer in begun:
                ended = await toolset.runtime.wait(answer["runId"], timeout_s=60)
                assert ended.status is TaskStatus.SUCCEEDED
                shown = await get(toolset, ended.run_id)
                titles = [item["title"] for item in shown["result"]["items"]]
                assert titles == [f"Page {n}" for n in range(pages)]
            assert browser.reading.launches == 2
    finally:
        await browser.close()


async def test_a_browser_that_grew_too_large_is_replaced_without_losing_what_runs(
    tmp_path: Path, site: Site
) -> None:
    browser = SystemBrowser(BrowserOptions(memory_limit=1, memory_check_s=0.05))
    try:
        async with a_toolset(tmp_path, browser=browser, catalog=load_templates()) as toolset:
            for _ in range(2):
                urls = [site.url(f"/n/{n}") for n in range(10)]
                answer = await run(toolset, "batch_extract_pages", {"urls": urls}, mode="sync")
                assert answer["status"] == "succeeded"
            assert browser.reading.launches >= 2
    finally:
        await browser.close()


async def test_four_clients_at_once_never_get_each_others_pages(
    toolset: Toolset, site: Site
) -> None:
    pages = 48 if soaking() else 12

    async def client(name: str) -> None:
        urls = [site.url(f"/n/{name}-{n}") for n in range(pages)]
        answer = await run(
            toolset, "batch_extract_pages", {"urls": urls, "concurrency": 5}, mode="sync"
        )
        for number, item in enumerate(answer["result"]["items"]):
            assert item["url"] == urls[number]
            assert item["title"] == f"Page {name}-{number}"
            assert item["pageInfo"]["page"]["url"] == urls[number]
            assert item["content"]["sections"][0]["text"] == f"Number {name}-{number}"

    await asyncio.gather(*(client(name) for name in ("ada", "bob", "eve", "kim")))


async def test_what_a_page_says_is_data_and_marked_as_such(toolset: Toolset, site: Site) -> None:
    answer = await run(
        toolset, "batch_extract_pages", {"urls": [site.url("/instructions")]}, mode="sync"
    )
    assert "not instructions" in answer["result"]["notice"]


async def test_without_a_browser_the_error_says_how_to_get_one(tmp_path: Path) -> None:
    browser = SystemBrowser(BrowserOptions(executable=str(tmp_path / "none")))
    with pytest.raises(Misconfigured, match="CHROMIUM"):
        await browser.open(trust=TrustLevel.LOCAL)
    async with a_toolset(tmp_path, browser=browser, catalog=load_templates()) as toolset:
        failed = await fails(toolset, "pdf_page", {"url": "http://127.0.0.1/"})
        assert failed["errorCode"] == TaskCode.EXECUTION_ERROR
        assert "CHROMIUM" in failed["message"]
    await browser.close()
