"""Items of pages: their main text, and what is told as a failure though something came."""

from typing import Any

import msgspec
import pytest

from tests.tasks.runtimes import run
from tests.tasks.site import Site
from toolgate.contracts import tasks_v1 as wire
from toolgate.tasks import document_worker
from toolgate.tasks.document_reader import DocumentReader
from toolgate.tasks.toolset import Toolset

pytestmark = pytest.mark.asyncio(loop_scope="session")

ARTICLE = (
    "<html lang=en><title>The gate | Site</title><meta name=author content='Ada Lovelace'>"
    "<meta property=article:published_time content='2026-03-04T05:06:07Z'>"
    "<nav><a href=/>Home</a> <a href=/menu>Menu entry</a></nav><article><h1>The gate</h1>"
    + "".join(
        f"<p>Paragraph {n} of the article has words enough that an extractor takes it for text, "
        f"and it names <a href=/n/{n}>a source</a>.</p>"
        for n in range(8)
    )
    + "<table><tr><th>Name<th>Value<tr><td>one<td>1</table></article><footer>Imprint</footer>"
)
BRIEF = {"pageInfo": False, "content": False}


async def items(toolset: Toolset, *urls: str, **extract: Any) -> list[dict[str, Any]]:
    inputs = {"urls": list(urls), "extract": {**BRIEF, **extract}}
    begun = await run(toolset, "batch_extract_pages", inputs, mode="async")
    ended = await toolset.runtime.wait(begun["runId"], timeout_s=120)
    found = msgspec.json.decode(await toolset.runtime.artifacts.read(ended.result_artifact))
    msgspec.convert(found, wire.BatchResult)
    return list(found["items"])


@pytest.mark.requirement("004/templates/item-main")
async def test_an_item_has_the_main_text_of_its_page(toolset: Toolset, site: Site) -> None:
    site.own = {"/article": ARTICLE}
    (item,) = await items(toolset, site.url("/article"))
    main = item["main"]
    assert (main["title"], main["byline"]) == ("The gate", "Ada Lovelace")
    assert (main["published"], main["language"]) == ("2026-03-04", "en")
    assert "Paragraph 7" in main["text"]
    for other in ("Menu entry", "Imprint"):
        assert other not in main["text"]
    assert main["tables"] == [[["Name", "Value"], ["one", "1"]]]
    assert {"text": "a source", "href": site.url("/n/3")} in main["links"]
    assert "[a source](" in main["markdown"]
    assert (main["truncated"], main["totalLength"]) == (False, len(main["text"]))


@pytest.mark.requirement("004/templates/item-truncated")
async def test_what_was_cut_says_so_and_full_text_is_not_cut(toolset: Toolset, site: Site) -> None:
    words = "".join(
        f"<p>Paragraph {n} says something that nobody else says here.</p>" for n in range(2000)
    )
    site.own = {"/long": f"<title>Long</title><article>{words}</article>"}
    (cut,) = await items(toolset, site.url("/long"), content=True)
    (whole,) = await items(toolset, site.url("/long"), fullText=True, main=True)
    assert (cut["main"]["truncated"], len(cut["main"]["text"])) == (True, 50_000)
    assert "Paragraph 1999" in whole["main"]["text"]
    assert not whole["main"]["truncated"]
    assert cut["main"]["totalLength"] == whole["main"]["totalLength"] == len(whole["main"]["text"])
    content = cut["content"]
    assert content["truncated"]
    assert (
        content["totalLength"] > 50_000 > 4000 >= sum(len(s["text"]) for s in content["sections"])
    )
    (none,) = await items(toolset, site.url("/long"), main=False)
    assert "main" not in none


@pytest.mark.requirement("004/templates/item-frames")
async def test_the_text_of_frames_is_told_and_another_sites_is_named(
    toolset: Toolset, site: Site
) -> None:
    other = f"http://localhost:{site.port}/n/2"
    site.own = {
        "/framed": f"<title>F</title><p>Outside<iframe src=/n/1></iframe><iframe src='{other}'></iframe>"
    }
    (item,) = await items(toolset, site.url("/framed"))
    mine, theirs = item["frames"]
    assert mine["url"] == site.url("/n/1")
    assert "Text of 1." in mine["text"]
    assert theirs == {"url": other, "read": False}


@pytest.mark.requirement("004/templates/item-honest")
async def test_error_pages_and_empty_ones_are_failures_with_a_hint(
    toolset: Toolset, site: Site
) -> None:
    site.own = {
        "/empty": "",
        "/only-script": "<script>1</script>",
        "/robots": "<title>Just a moment...</title><p>Checking your browser",
        "/captcha": "<title>x</title><div class=g-recaptcha></div><p>Are you human?",
        "/dies": "<title>Going</title><p>Wait<script>location='https://127.0.0.1:9/'</script>",
        "/long-article": "<title>Access denied: a history</title>"
        + "<p>Of doors that are shut.</p>" * 100,
    }
    cases = {
        "/nowhere": (404, "404 Not Found"),
        "/status?403": (403, "403 Forbidden"),
        "/status?429": (429, "429 Too Many Requests"),
        "/status?503": (503, "503 Service Unavailable"),
        "/status?599": (599, "599"),
        "/to?/nowhere": (404, "404 Not Found"),
        "/file-missing": (None, ""),
        "/empty": (200, "empty"),
        "/only-script": (200, "empty"),
        "/robots": (200, "robots"),
        "/captcha": (200, "robots"),
        "/dies": (None, ""),
        "/long-article": (200, None),
        "/n/1": (200, None),
        "/image": (200, None),
    }
    found = await items(toolset, *map(site.url, cases))
    for (path, (status, says)), item in zip(cases.items(), found, strict=True):
        assert item["success"] is (says is None), (path, item)
        if status is not None:
            assert item["httpStatus"] == status, path
        if says is not None:
            assert says in item["error"]["message"], (path, item)
            assert item["error"]["errorCode"] == "EXECUTION_ERROR", path
            assert item["error"]["recoverHint"], path


@pytest.mark.requirement("004/templates/item-honest")
async def test_redirects_are_listed_and_failures_are_counted(toolset: Toolset, site: Site) -> None:
    urls = [site.url("/to?/to?/n/1"), site.url("/nowhere")]
    answer = await run(toolset, "batch_extract_pages", {"urls": urls}, mode="sync")
    moved, missing = answer["result"]["items"]
    assert (moved["url"], moved["finalUrl"]) == (urls[0], site.url("/n/1"))
    assert moved["redirects"] == [
        {"url": urls[0], "httpStatus": 302},
        {"url": site.url("/to?/n/1"), "httpStatus": 302},
    ]
    assert missing["httpStatus"] == 404
    assert answer["status"] == "partial_success"
    assert answer["result"]["summary"] == {"total": 2, "succeeded": 1, "failed": 1}


@pytest.mark.requirement("004/templates/item-documents")
async def test_a_pdf_is_text_and_pages_and_other_files_have_their_type(
    toolset: Toolset, site: Site
) -> None:
    site.own = {"/article": ARTICLE}
    printed = await run(toolset, "pdf_page", {"url": site.url("/article")}, mode="sync")
    pdf = await toolset.runtime.artifacts.read(printed["result"]["artifactId"])
    site.files = {
        "/report.pdf": ("application/pdf", pdf),
        "/unnamed": ("application/octet-stream", pdf),
        "/broken.pdf": ("application/pdf", b"%PDF-1.7 and then nothing"),
        "/table.zip": ("application/zip", b"PK\x03\x04"),
    }
    good, unnamed, broken, other = await items(toolset, *map(site.url, site.files))
    for item in (good, unnamed):
        assert (item["pageType"], item["mimeType"]) == ("pdf", "application/pdf")
        assert "Paragraph 7 of the article" in item["main"]["text"].replace("\n", " ")
        assert item["main"]["pageCount"] == len(item["main"]["pages"]) >= 1
        assert await toolset.runtime.artifacts.read(item["artifactId"]) == pdf
    assert broken["success"]
    assert broken["main"]["text"] == ""
    assert (other["pageType"], other["mimeType"]) == ("download", "application/zip")


async def test_a_hostile_document_is_given_up_and_the_next_one_is_read() -> None:
    reader = DocumentReader(workers=1, cpu_s=2)
    pdf = b"%PDF-1.4\n" + b"1 0 obj<</A[" * 50_000
    try:
        for hostile in ("<div>" * 200_000 + "text", "<table><tr><td>x" * 60_000):
            await reader.read_html(hostile, url="http://a.test/")
            found = await reader.read_html(ARTICLE, url="http://a.test/")
            assert found is not None
            assert "Paragraph 7" in found.text
        assert not (await reader.read_pdf(pdf, url="") or document_worker.Found()).text
    finally:
        await reader.close()
