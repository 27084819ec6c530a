"""Each template on real pages in a real Chromium."""

import asyncio
import contextlib
import struct
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.tasks.runtimes import LOCAL, a_toolset, fails, get, memory_journal, run, until
from tests.tasks.site import Site
from toolgate.browser.browser import (
    ElementAbsent,
    Extract,
    ExtractOptions,
    Locator,
    PageCrashed,
    PageError,
    Tab,
)
from toolgate.browser.options import BrowserOptions
from toolgate.browser.playwright import pictures as playwright_pictures
from toolgate.browser.playwright.browser import PlaywrightBrowser
from toolgate.browser.system_browser import SystemBrowser
from toolgate.contracts import tasks_v1 as wire
from toolgate.core.enums import LocatorMode, TaskCode, TrustLevel
from toolgate.core.system_clock import SystemClock
from toolgate.tasks import template
from toolgate.tasks.catalog import load_templates
from toolgate.tasks.templates import login_keep_session, submit_and_verify
from toolgate.tasks.templates.multi_tab_compare import compare
from toolgate.tasks.toolset import Toolset

pytestmark = pytest.mark.asyncio(loop_scope="session")

USER, PASSWORD = "ada", "corréct horse&battery"


def by(selector: str) -> dict[str, str]:
    return {"mode": "selector", "selector": selector}


def called(query: str) -> dict[str, str]:
    return {"mode": "semantic", "query": query}


@pytest.mark.requirement("004/templates/batch-result")
@pytest.mark.requirement("004/templates/batch-order")
@pytest.mark.requirement("004/templates/batch-bad-url")
@pytest.mark.requirement("004/templates/batch-defaults")
@pytest.mark.requirement("004/templates/page-info")
@pytest.mark.requirement("004/templates/content")
@pytest.mark.requirement("004/run/auto-batch-small")
async def test_a_batch_reads_its_pages_in_order_and_a_bad_address_fails_alone(
    toolset: Toolset, site: Site
) -> None:
    urls = [site.url("/n/1"), "nonsense", site.url("/n/2"), "http://", site.url("/form")]
    answer = await run(toolset, "batch_extract_pages", {"urls": urls})
    result = answer["result"]
    assert answer["mode"] == "sync"
    assert answer["status"] == "partial_success"
    assert result["summary"] == {"total": 5, "succeeded": 3, "failed": 2}
    assert [item["url"] for item in result["items"]] == urls
    assert [item["success"] for item in result["items"]] == [True, False, True, False, True]
    assert result["items"][1]["error"]["errorCode"] == "INVALID_PARAMETER"
    assert "instructions" in result["notice"]
    first = result["items"][0]
    assert (first["title"], first["pageType"], first["elementCount"]) == ("Page 1", "page", 2)
    assert first["content"]["sections"] == [
        {"tag": "h1", "text": "Number 1"},
        {"tag": "p", "text": "Text of 1.Home", "heading": "Number 1"},
    ]
    assert first["content"]["links"] == [{"text": "Home", "href": site.url("/")}]
    form = result["items"][4]["pageInfo"]
    assert form["page"] == {
        "url": urls[4],
        "title": "Form",
        "type": "form",
        "summary": form["page"]["summary"],
    }
    assert [(e["role"], e["label"], e["actions"]) for e in form["elements"]] == [
        ("textbox", "Your name", ["fill", "press"]),
        ("combobox", "Colour", ["select"]),
        ("textbox", "Card number", ["fill", "press"]),
        ("button", "Send it", ["click"]),
    ]
    assert form["totalElements"] == 4
    assert all(element["bounds"]["width"] > 0 for element in form["elements"])
    msgspec.convert(result, wire.BatchResult)


@pytest.mark.requirement("004/run/auto-batch-large")
async def test_an_auto_batch_of_more_than_ten_is_async(toolset: Toolset, site: Site) -> None:
    urls = [site.url(f"/n/{n}") for n in range(11)]
    answer = await run(toolset, "batch_extract_pages", {"urls": urls})
    assert answer["mode"] == "async"
    ended = await toolset.runtime.wait(answer["runId"], timeout_s=30)
    shown = await get(toolset, ended.run_id)
    assert [item["title"] for item in shown["result"]["items"]] == [f"Page {n}" for n in range(11)]
    assert shown["progress"] == {"doneSteps": 11, "totalSteps": 11}


@pytest.mark.requirement("004/templates/batch-limits-kept")
async def test_an_item_has_no_more_than_was_asked_for(toolset: Toolset, site: Site) -> None:
    async def item(**extract: Any) -> dict[str, Any]:
        inputs = {"urls": [site.url("/many?elements=80")], "extract": extract}
        answer = await run(toolset, "batch_extract_pages", inputs)
        (found,) = answer["result"]["items"]
        assert isinstance(found, dict)
        return found

    usual = await item()
    assert len(usual["pageInfo"]["elements"]) == 50
    assert usual["pageInfo"]["totalElements"] == usual["elementCount"] == 80
    assert 3900 < sum(len(s["text"]) for s in usual["content"]["sections"]) <= 4000
    small = await item(maxElements=3, maxContentLength=10)
    assert len(small["pageInfo"]["elements"]) == 3
    assert sum(len(section["text"]) for section in small["content"]["sections"]) == 10
    neither = await item(pageInfo=False, content=False)
    assert "pageInfo" not in neither
    assert "content" not in neither
    assert neither["elementCount"] == 80


async def test_what_scripts_build_is_read_once_it_is_there(toolset: Toolset, site: Site) -> None:
    urls = [site.url("/built"), site.url("/shadow"), site.url("/hidden")]
    answer = await run(toolset, "batch_extract_pages", {"urls": urls})
    texts = [
        " ".join(section["text"] for section in item["content"]["sections"])
        for item in answer["result"]["items"]
    ]
    assert texts == ["Fetched words", "Within the shadow", "Shown"]
    assert all("degraded" not in item for item in answer["result"]["items"])


async def test_images_are_not_loaded_where_only_text_is_wanted(
    toolset: Toolset, site: Site
) -> None:
    site.hits.clear()
    await run(toolset, "batch_extract_pages", {"urls": [site.url("/image")]})
    assert site.hits["/pixel.png"] == 0
    await run(toolset, "screenshot_page", {"url": site.url("/image")})
    assert site.hits["/pixel.png"] == 2


@pytest.mark.requirement("004/artifacts/kinds")
async def test_results_pictures_prints_and_downloads_are_artifacts(
    toolset: Toolset, site: Site
) -> None:
    artifacts = toolset.runtime.artifacts
    shot = await run(toolset, "screenshot_page", {"url": site.url("/n/1"), "fullPage": True})
    picture = await artifacts.read(shot["result"]["artifactId"])
    assert picture.startswith(b"\x89PNG")
    assert shot["result"]["artifactId"] in shot["artifactIds"]
    printed = await run(toolset, "pdf_page", {"url": site.url("/n/1")})
    assert (await artifacts.read(printed["result"]["artifactId"])).startswith(b"%PDF")
    batch = await run(toolset, "batch_extract_pages", {"urls": [site.url("/file")]})
    (item,) = batch["result"]["items"]
    assert (item["title"], item["pageType"]) == ("report.bin", "download")
    assert await artifacts.read(item["artifactId"]) == b"some bytes"
    assert item["artifactId"] in batch["artifactIds"]
    assert msgspec.json.decode(await artifacts.read(batch["artifactIds"][0])) == batch["result"]


async def test_a_picture_of_a_page_of_any_height_is_cut_and_says_so(
    toolset: Toolset, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(playwright_pictures, "TALLEST", 2_000)  # drawn soon
    shot = await run(toolset, "screenshot_page", {"url": site.url("/tall"), "fullPage": True})
    picture = await toolset.runtime.artifacts.read(shot["result"]["artifactId"])
    assert struct.unpack(">II", picture[16:24]) == (1280, 2_000)
    assert shot["result"]["truncated"] is True
    shot = await run(toolset, "screenshot_page", {"url": site.url("/tall")})
    picture = await toolset.runtime.artifacts.read(shot["result"]["artifactId"])
    assert struct.unpack(">II", picture[16:24]) == (1280, 800)
    assert "truncated" not in shot["result"]


async def test_a_page_whose_font_never_comes_is_pictured_all_the_same(
    toolset: Toolset, site: Site
) -> None:
    shot = await run(toolset, "screenshot_page", {"url": site.url("/no-font")})
    assert shot["status"] == "succeeded"


@pytest.mark.requirement("004/templates/login-selector")
@pytest.mark.requirement("004/templates/login-result")
@pytest.mark.requirement("004/templates/login-session-usable")
@pytest.mark.requirement("004/sessions/no-leaks-between")
async def test_a_login_keeps_its_session_and_no_other_is_signed_in(
    toolset: Toolset, site: Site
) -> None:
    fields = {"mode": "selector", "username": "input[name=username]", "password": "[type=password]"}
    answer = await run(
        toolset,
        "login_keep_session",
        {
            "startUrl": site.url("/login"),
            "credentials": {"username": USER, "password": PASSWORD},
            "fields": {**fields, "submit": "button"},
        },
    )
    result = answer["result"]
    assert (result["success"], result["loginState"], result["cookiesSaved"]) == (
        True,
        "logged_in",
        True,
    )
    assert result["sessionId"] == answer["sessionId"]
    assert result["finalUrl"].startswith(site.url("/welcome"))
    msgspec.convert(result, wire.LoginResult)
    private = {"urls": [site.url("/private")]}
    within = await run(toolset, "batch_extract_pages", private, session=result["sessionId"])
    outside = await run(toolset, "batch_extract_pages", private)
    assert within["result"]["items"][0]["content"]["sections"][0]["text"] == "Secret room"
    assert outside["result"]["items"][0]["content"]["sections"][0]["text"] == "Go away"


@pytest.mark.requirement("004/templates/login-semantic")
@pytest.mark.requirement("004/templates/login-indicators")
@pytest.mark.parametrize(
    ("path", "indicator"),
    [
        ("/login", {"type": "urlContains", "value": "/welcome"}),
        ("/login", {"type": "textIncludes", "value": "No /welcome"}),
        ("/login", {"type": "selector", "value": "p"}),
        ("/login", {"type": "stable"}),
        ("/login-two-steps", {"type": "urlContains", "value": "/welcome"}),
    ],
)
async def test_a_login_is_found_by_meaning_and_told_by_its_indicator(
    toolset: Toolset, site: Site, path: str, indicator: dict[str, str]
) -> None:
    named = {"username": "user name"} if path == "/login" else {}
    answer = await run(
        toolset,
        "login_keep_session",
        {
            "startUrl": site.url(path),
            "credentials": {"username": USER, "password": PASSWORD},
            "fields": {"mode": "semantic", **named},
            "successIndicator": indicator,
        },
    )
    assert answer["status"] == "succeeded"


@pytest.mark.requirement("004/templates/login-failed")
@pytest.mark.requirement("004/sessions/credentials-nowhere")
async def test_a_login_that_fails_is_a_failed_run_and_its_secrets_are_nowhere(
    toolset: Toolset, site: Site, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    secret, name = 'wröng "pass" &word', "somebody-in-particular"
    answer = await run(
        toolset,
        "login_keep_session",
        {
            "startUrl": site.url("/login"),
            "credentials": {"username": name, "password": secret},
            "fields": {"mode": "semantic"},
        },
        idempotencyKey="login-1",
    )
    assert answer["status"] == "failed"
    assert answer["result"]["success"] is False
    assert answer["result"]["title"].startswith("No [redacted]")
    kept = msgspec.json.encode([answer, await get(toolset, answer["runId"])])
    for row in await toolset.runtime._journal.scan("task_runs"):
        kept += row.value
    for file in tmp_path.rglob("*"):
        kept += file.read_bytes() if file.is_file() else b""
    kept += caplog.text.encode()
    for form in (secret, name, "wr\\u00f6ng", "wr%C3%B6ng", 'wröng \\"pass'):
        assert form.encode() not in kept


async def test_a_login_that_a_script_sends_is_waited_for(toolset: Toolset, site: Site) -> None:
    answer = await run(
        toolset,
        "login_keep_session",
        {
            "startUrl": site.url("/login-by-fetch"),
            "credentials": {"username": USER, "password": PASSWORD},
            "fields": {"mode": "semantic"},
        },
        mode="sync",
    )
    assert answer["result"]["loginState"] == "logged_in"


@pytest.mark.requirement("004/templates/login-field-absent")
async def test_a_login_field_that_is_absent_is_named_and_pictured(
    toolset: Toolset, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(login_keep_session, "FIND_MS", 300)
    monkeypatch.setattr(template, "PICTURE_S", 10.0)
    for fields, step in (
        ({"username": "input[name=username]", "password": "#nowhere"}, "find the password field"),
        ({"username": "input[name=username]"}, "find the password field"),
        ({"password": "[type=password]"}, "find the username field"),
    ):
        site.posts.clear()
        hits = site.hits["/login"]
        login = {
            "startUrl": site.url("/login"),
            "credentials": {"username": USER, "password": PASSWORD},
            "fields": {"mode": "selector", **fields},
        }
        failed = await fails(toolset, "login_keep_session", login)
        assert failed["errorCode"] == TaskCode.TPL_LOGIN_FIELD_NOT_FOUND, fields
        assert failed["failedStep"] == step
        assert site.hits["/login"] == hits + 1, "it is read, and nothing is sent"
    failed = await fails(
        toolset,
        "login_keep_session",
        {
            "startUrl": site.url("/form"),
            "credentials": {"username": USER, "password": PASSWORD},
            "fields": {"mode": "selector", "username": "#nowhere"},
        },
    )
    assert failed["errorCode"] == TaskCode.TPL_LOGIN_FIELD_NOT_FOUND
    assert failed["failedStep"] == "find the username field"
    picture = failed["details"]["screenshot"]
    assert (await toolset.runtime.artifacts.read(picture)).startswith(b"\x89PNG")


@pytest.mark.requirement("004/templates/compare-result")
@pytest.mark.requirement("004/templates/compare-fields")
@pytest.mark.requirement("004/templates/compare-delta")
@pytest.mark.requirement("004/templates/compare-positions")
async def test_pages_are_compared_field_by_field(toolset: Toolset, site: Site) -> None:
    urls = [site.url("/n/1"), site.url("/n/2"), site.url("/list")]
    answer = await run(toolset, "multi_tab_compare", {"urls": urls})
    result = answer["result"]
    msgspec.convert(result, wire.CompareResult)
    assert [item["url"] for item in result["snapshots"]] == urls
    title, count, sections = result["diffs"]
    assert title == {
        "field": "title",
        "values": dict(zip(urls, ["Page 1", "Page 2", "List 1"], strict=True)),
    }
    assert (count["field"], count["delta"]) == ("elementCount", 1)
    assert sections["changedPositions"] == [0, 1]
    tolerant = await run(
        toolset,
        "multi_tab_compare",
        {"urls": urls, "compare": {"fields": ["elementCount"], "numericTolerance": 1}},
    )
    assert tolerant["result"]["diffs"] == []
    same = await run(toolset, "multi_tab_compare", {"urls": [urls[0]]})
    assert same["result"]["diffs"] == []


@pytest.mark.timeout(10)
async def test_a_comparison_of_more_sections_than_any_page_has_ends_with_those_there_are() -> None:
    pages = [
        (url, Extract(url, "", "page", 0, sections, None, None))
        for url, sections in [("http://a", ("same", "one")), ("http://b", ("same", "two", "more"))]
    ]
    how = wire.Compare(fields=[wire.CompareField.TOP_SECTIONS], top_sections=2**62)
    (difference,) = compare(pages, how)
    assert difference["changedPositions"] == [1, 2]


async def test_two_looks_at_one_address_are_compared_like_any_others() -> None:
    """As two users see it, whose names and passwords are not shown; or at two times."""
    pages = [
        (url, Extract(url, title, "page", count, (title,), None, None))
        for url, title, count in [("http://a", "One", 1), ("http://a", "Two", 3)]
    ]
    title, count, sections = compare(pages, wire.Compare())
    assert title["values"] == {"http://a": "One", "http://a (2)": "Two"}
    assert count["delta"] == 2
    assert sections["changedPositions"] == [0]


@pytest.mark.parametrize("button", [{}, {"submit": {"mode": "semantic", "query": "find"}}])
async def test_what_would_open_in_another_tab_is_opened_in_this_one(
    toolset: Toolset, site: Site, button: dict[str, Any]
) -> None:
    inputs = {
        "startUrl": site.url("/search-elsewhere"),
        "query": "x",
        "searchField": by("[name=q]"),
        "openResult": by(".hit"),
        **button,
    }
    found = (await run(toolset, "search_extract", inputs, mode="sync"))["result"]
    assert found["resultsUrl"] == site.url("/results-elsewhere?q=x")
    assert found["openedUrl"] == site.url("/n/hit")
    assert found["page"]["title"] == "Page hit"


@pytest.mark.requirement("004/templates/search-flow")
@pytest.mark.requirement("004/templates/search-open-result")
@pytest.mark.requirement("004/templates/search-waits")
async def test_a_search_is_submitted_and_its_result_opened(toolset: Toolset, site: Site) -> None:
    inputs = {
        "startUrl": site.url("/search"),
        "query": "blue cats",
        "searchField": called("search the site"),
    }
    found = await run(toolset, "search_extract", inputs)
    assert found["result"]["page"]["title"] == "Results"
    assert found["result"]["resultsUrl"].endswith("/results?q=blue+cats")
    opened = await run(
        toolset,
        "search_extract",
        {
            **inputs,
            "submit": called("find"),
            "waitForResults": {"type": "selector", "value": ".hit"},
            "openResult": by(".hit"),
        },
    )
    assert opened["result"]["openedUrl"] == site.url("/n/hit")
    assert opened["result"]["page"]["title"] == "Page hit"
    failed = await fails(
        toolset,
        "search_extract",
        {**inputs, "waitForResults": {"type": "selector", "value": "#no", "timeoutMs": 200}},
    )
    assert failed["errorCode"] == TaskCode.ELEMENT_NOT_FOUND
    assert failed["failedStep"] == "wait for the results"


@pytest.mark.requirement("004/templates/paginated-flow")
@pytest.mark.requirement("004/templates/paginated-max")
@pytest.mark.requirement("004/templates/paginated-repeated")
@pytest.mark.requirement("004/templates/paginated-unavailable")
@pytest.mark.parametrize(
    ("path", "following", "limit", "titles", "reason"),
    [
        (
            "/list",
            called("next page"),
            10,
            ["List 1", "List 2", "List 3", "List 4"],
            "next_unavailable",
        ),
        ("/list", by("a[rel=next]"), 2, ["List 1", "List 2"], "max_pages"),
        ("/stuck", called("next"), 5, ["Stuck"], "repeated_page"),
        ("/catalogue", called("next page"), 5, ["Catalogue"] * 3, "next_unavailable"),
        ("/no-next", called("next"), 5, ["One page"], "next_unavailable"),
    ],
)
async def test_a_list_is_read_until_it_ends_repeats_or_is_enough(
    toolset: Toolset,
    site: Site,
    path: str,
    following: dict[str, str],
    limit: int,
    titles: list[str],
    reason: str,
) -> None:
    answer = await run(
        toolset,
        "paginated_extract",
        {"startUrl": site.url(path), "pagination": {"next": following, "maxPages": limit}},
    )
    assert [page["title"] for page in answer["result"]["pages"]] == titles
    assert answer["result"]["stoppedReason"] == reason
    msgspec.convert(answer["result"], wire.PaginatedResult)


async def test_a_list_is_read_to_its_end_whatever_little_of_it_is_asked_for(
    toolset: Toolset, site: Site
) -> None:
    inputs = {
        "startUrl": site.url("/catalogue"),
        "pagination": {"next": by("a[rel=next]"), "maxPages": 5},
        "extract": {"content": True, "maxContentLength": 10},
    }
    answer = await run(toolset, "paginated_extract", inputs)
    assert answer["result"]["stoppedReason"] == "next_unavailable"
    texts = [page["content"]["sections"][0]["text"] for page in answer["result"]["pages"]]
    assert texts == ["Department"] * 3


async def test_a_title_of_half_letters_and_without_end_is_told_in_short(
    toolset: Toolset, site: Site
) -> None:
    answer = await run(toolset, "screenshot_page", {"url": site.url("/titled")}, mode="sync")
    assert answer["result"]["title"].startswith("t\ufffdxx")
    assert len(answer["result"]["title"]) == 500


@pytest.mark.parametrize(
    ("action", "selector", "value"),
    [
        ("fill", "select", "green"),
        ("fill", "[name=off]", "x"),
        ("fill", "[name=gone]", "x"),
        ("click", "button", None),
    ],
)
async def test_an_element_that_cannot_be_used_in_time_is_named_as_such(
    browser: SystemBrowser, site: Site, action: str, selector: str, value: str | None
) -> None:
    session = await browser.working.open(trust=TrustLevel.LOCAL)
    locator = Locator(LocatorMode.SELECTOR, selector)
    async with session.tab(run_id="run_1") as tab:
        await tab.visit(site.url("/unusable"))
        given = [] if value is None else [value]
        with pytest.raises(ElementAbsent) as absent:
            async with asyncio.timeout(5):
                await getattr(tab, action)(locator, *given, timeout_ms=200)
        assert selector in str(absent.value)
    await session.close()


async def test_a_page_that_hangs_while_it_is_worked_does_not_hold_its_run_up(
    browser: SystemBrowser, site: Site
) -> None:
    session = await browser.working.open(trust=TrustLevel.LOCAL)
    field = Locator(LocatorMode.SELECTOR, "[name=a]")
    async with session.tab(run_id="run_1") as tab:
        await tab.visit(site.url("/hangs-later"))
        with contextlib.suppress(PageError):
            await tab.press(field, "Enter", timeout_ms=200)
        async with asyncio.timeout(10):
            with pytest.raises(PageCrashed):
                await tab.has(field)
    await session.close()


@pytest.mark.requirement("004/sessions/credentials-nowhere")
async def test_a_picture_of_a_failure_shows_nothing_that_was_typed_into_a_component(
    browser: SystemBrowser, site: Site
) -> None:
    session = await browser.working.open(trust=TrustLevel.LOCAL)
    async with session.tab(run_id="run_1") as tab:
        await tab.visit(site.url("/fields-in-a-shadow"))
        for selector in ("[name=who]", "#note"):
            locator = Locator(LocatorMode.SELECTOR, selector)
            await tab.fill(locator, "secret", timeout_ms=1_000)
        await tab.blank_fields()
        left = await tab._page.raw.evaluate(
            "document.querySelector('my-form').shadowRoot.firstChild.value + note.textContent"
        )
        assert left == ""
    await session.close()


@pytest.mark.requirement("004/sessions/credentials-nowhere")
async def test_a_picture_of_a_failure_does_not_show_who_the_page_says_has_come(
    toolset: Toolset, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(login_keep_session, "FIND_MS", 300)
    monkeypatch.setattr(template, "PICTURE_S", 10.0)
    pictures = []
    for name in ("ada.lovelace", "grace"):
        failed = await fails(
            toolset,
            "login_keep_session",
            {
                "startUrl": site.url("/says-who"),
                "credentials": {"username": name, "password": "hidden"},
                "fields": {"mode": "semantic"},
            },
        )
        assert failed["errorCode"] == TaskCode.TPL_LOGIN_FIELD_NOT_FOUND
        picture = failed["details"]["screenshot"]
        pictures.append(await toolset.runtime.artifacts.read(picture))
    assert pictures[0] == pictures[1]


@pytest.mark.requirement("004/sessions/credentials-nowhere")
async def test_there_is_no_picture_of_a_page_whose_fields_cannot_be_emptied(
    toolset: Toolset, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(submit_and_verify, "STEP_TIMEOUT_MS", 300)
    inputs = {
        "startUrl": site.url("/keeps-its-fields"),
        "fields": [
            {"name": "password", "value": "secret", "locator": by("[name=who]")},
            {"name": "absent", "value": "x", "locator": by("#absent")},
        ],
    }
    failed = await fails(toolset, "submit_and_verify", inputs)
    assert failed["errorCode"] == TaskCode.ELEMENT_NOT_FOUND
    assert "screenshot" not in failed["details"]


@pytest.mark.requirement("004/sessions/credentials-nowhere")
async def test_a_password_or_token_in_an_address_is_written_nowhere(
    tmp_path: Path, browser: SystemBrowser, site: Site
) -> None:
    clock = SystemClock()
    journal = memory_journal(clock)
    known = [f"ada:{password}" for password in ("hunter2secret", "p%40ss%2Fword", "x")]
    known.append("ghp_a-token-alone")

    def at(path: str, secret: str) -> str:
        return site.url(path).replace("://", f"://{secret}@")

    cases: list[tuple[str, dict[str, Any]]] = [
        ("batch_extract_pages", {"urls": [at("/n/1", each), "http://127.0.0.1:9/"]})
        for each in known
    ]
    cases += [
        (
            "search_extract",
            {"startUrl": at("/search", known[0]), "query": "x", "searchField": by("[name=q]")},
        ),
        (
            "submit_and_verify",
            {
                "startUrl": at("/search", known[3]),
                "fields": [{"name": "q", "value": "v", "locator": by("[name=q]")}],
            },
        ),
    ]
    async with a_toolset(
        tmp_path, browser=browser, catalog=load_templates(), journal=journal, clock=clock
    ) as toolset:
        for template_id, inputs in cases:
            answer = await run(toolset, template_id, inputs, mode="sync")
            assert answer["status"] in {"succeeded", "partial_success"}
            text = msgspec.json.encode(answer).decode()
            assert "://[redacted]@" in text
            assert not [each for each in known if each in text]
        for row in await journal.scan("task_runs"):
            assert not [each for each in known if each in row.value.decode()]


@pytest.mark.requirement("004/sessions/credentials-nowhere")
@pytest.mark.parametrize("name", ["password", "pwd", "api_key", "Card number", "user-pin"])
async def test_what_is_typed_into_a_field_with_a_sensitive_name_is_a_secret(name: str) -> None:
    locator = wire.Locator(mode=LocatorMode.SELECTOR, selector="#field")
    fields = [
        wire.FormField(name=name, value="secret", locator=locator),
        wire.FormField(name="colour", value="blue", locator=locator),
    ]
    inputs = wire.SubmitAndVerify(start_url="http://a.example/", fields=fields)
    assert submit_and_verify.TEMPLATE.secrets(inputs) == ["secret"]


@pytest.mark.requirement("004/templates/submit-flow")
@pytest.mark.requirement("004/templates/submit-not-verified")
async def test_a_form_is_submitted_once_and_verified(
    toolset: Toolset, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def wait_less(tab: Tab, indicator: wire.SuccessIndicator, *, timeout_ms: int) -> bool:
        return await template.wait_for(tab, indicator, timeout_ms=min(300, timeout_ms))

    site.posts.clear()
    inputs = {
        "startUrl": site.url("/form"),
        "fields": [
            {"name": "name", "value": "Grace", "locator": called("your name")},
            {"name": "colour", "value": "blue", "locator": by("select")},
            {"name": "card", "value": "4111 1111", "locator": by("[name=card]")},
        ],
        "submit": called("send it"),
        "successIndicator": {"type": "selector", "value": "#ok"},
    }
    answer = await run(toolset, "submit_and_verify", inputs)
    assert answer["status"] == "succeeded"
    assert site.posts == [{"name": ["Grace"], "colour": ["blue"], "card": ["4111 1111"]}]
    texts = [s["text"] for s in answer["result"]["page"]["content"]["sections"]]
    assert texts == ["Thank you, Grace", "Card [redacted]"]
    monkeypatch.setattr(submit_and_verify, "wait_for", wait_less)
    missed = await run(
        toolset,
        "submit_and_verify",
        {**inputs, "successIndicator": {"type": "textIncludes", "value": "Never said"}},
    )
    assert missed["status"] == "failed"
    assert missed["result"]["success"] is False


@pytest.mark.parametrize("submit", [{"submit": by("button")}, {}], ids=["click", "press"])
async def test_a_form_that_asks_whether_to_send_it_and_is_told_no_is_no_success(
    toolset: Toolset, site: Site, submit: dict[str, Any]
) -> None:
    site.posts.clear()
    fields = [{"name": "name", "value": "Grace", "locator": by("[name=name]")}]
    asked = {"startUrl": site.url("/confirms"), "fields": fields, **submit}
    answer = await run(toolset, "submit_and_verify", asked, mode="sync")
    assert site.posts == []
    assert (answer["status"], answer["result"]["success"]) == ("failed", False)
    assert "Really send?" in answer["error"]["message"]
    went = {**asked, "startUrl": site.url("/asks-and-goes")}
    assert (await run(toolset, "submit_and_verify", went, mode="sync"))["status"] == "succeeded"
    assert len(site.posts) == 1


@pytest.mark.requirement("004/templates/submit-flow")
async def test_boxes_are_ticked_and_choices_made_by_a_forms_values(
    toolset: Toolset, site: Site
) -> None:
    site.posts.clear()
    given = [
        ("agree", "true", called("I agree")),
        ("news", "off", by("[name=news]")),
        ("size", "middle", by("[name=size]")),
        ("extra", "oil", by("[name=extra]")),
    ]
    fields = [{"name": name, "value": value, "locator": at} for name, value, at in given]
    inputs = {"startUrl": site.url("/choices"), "fields": fields, "submit": called("send it")}
    answer = await run(toolset, "submit_and_verify", inputs, mode="sync")
    assert answer["status"] == "succeeded"
    assert site.posts == [{"agree": ["yes"], "size": ["m"], "extra": ["oil"]}]


@pytest.mark.parametrize(("name", "value"), [("agree", "perhaps"), ("size", "off")])
async def test_a_value_that_a_box_or_choice_cannot_have_is_named(
    toolset: Toolset, site: Site, name: str, value: str
) -> None:
    fields = [{"name": name, "value": value, "locator": by(f"[name={name}]")}]
    inputs = {"startUrl": site.url("/choices"), "fields": fields}
    failed = await fails(toolset, "submit_and_verify", inputs)
    assert failed["errorCode"] == TaskCode.ELEMENT_NOT_FOUND
    assert value in failed["message"]


async def test_a_field_and_a_button_that_a_script_makes_anew_are_found_anew(
    toolset: Toolset, site: Site
) -> None:
    site.posts.clear()
    inputs = {
        "startUrl": site.url("/made-anew"),
        "fields": [{"name": "name", "value": "Grace", "locator": by("[name=name]")}],
        "submit": called("send"),
        "successIndicator": {"type": "selector", "value": "#ok"},
    }
    answer = await run(toolset, "submit_and_verify", inputs, mode="sync")
    assert (answer["status"], len(site.posts)) == ("succeeded", 1)


@pytest.mark.requirement("004/profile/max-tabs")
@pytest.mark.requirement("004/profile/really-in-force")
async def test_a_session_opens_no_more_tabs_than_the_profile_says(
    browser: SystemBrowser, toolset: Toolset
) -> None:
    most = (await toolset.call("get_runtime_profile", {}, LOCAL))["maxTabsPerSession"]
    assert browser.working.options.tabs_per_session == most == 20
    wide = SystemBrowser(BrowserOptions(slots=most + 10))
    session = await wide.open(trust=TrustLevel.LOCAL, only_reads=True)
    open_now, largest, leave = 0, 0, asyncio.Event()

    async def hold() -> None:
        nonlocal open_now, largest
        async with session.reader(run_id="run_1"):
            open_now += 1
            largest = max(largest, open_now)
            await leave.wait()
            open_now -= 1

    holding = [asyncio.ensure_future(hold()) for _ in range(most + 5)]
    try:
        await until(lambda: open_now == most)
        leave.set()
        await asyncio.gather(*holding)
        assert largest == most
    finally:
        await wide.close()


async def test_the_browser_is_warm_and_shared_between_all_these(
    browser: SystemBrowser, toolset: Toolset, site: Site
) -> None:
    await run(toolset, "batch_extract_pages", {"urls": [site.url("/n/1")]})
    assert browser.reading.processes()
    assert browser.working.processes()
    await until(lambda: toolset.runtime.sessions.count == 0)


async def test_roles_and_names_are_those_of_the_browsers_own_accessibility_tree(
    site: Site,
) -> None:
    """Asking that tree for each element is too slow to be the way; it is the judge here."""
    own = PlaywrightBrowser(
        BrowserOptions(extra_flags=("--enable-blink-features=ComputedAccessibilityInfo",))
    )
    try:
        session = await own.open(trust=TrustLevel.LOCAL)
        async with session.tab(run_id="run_1") as tab:
            for path in ("/form", "/login", "/search", "/list", "/results", "/controls"):
                looked = await tab.read(site.url(path), ExtractOptions())
                assert looked.page_info is not None
                ours = [
                    (element["role"], element["label"])
                    for element in msgspec.json.decode(looked.page_info)["elements"]
                ]
                theirs = await tab._page.raw.evaluate(
                    "selector => [...document.querySelectorAll(selector)].map("
                    "e => [e.computedRole, e.computedName])",
                    "a[href],button,input:not([type=hidden]),select,textarea,summary,h1,h2,[role]",
                )
                assert ours == [tuple(found) for found in theirs]
    finally:
        await own.close()
