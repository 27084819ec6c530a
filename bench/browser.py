"""Browser tasks against what one would write by hand, and against a crawler, on the same pages.

CPU is that of this process and all below it, the browser's included; the web server's is not.
"""

import asyncio
import contextlib
import functools
import http.server
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, Final

from bench.measure import Result, at_least, at_most, process_cpu, table
from toolgate.browser.chromium import find_chromium, may_sandbox, process_tree
from toolgate.browser.page_extract import EXTRACTOR, WATCH
from toolgate.browser.system_browser import SystemBrowser
from toolgate.core.enums import TrustLevel
from toolgate.core.json_schema import schema_errors
from toolgate.core.random_ids import RandomIds
from toolgate.core.system_clock import SystemClock
from toolgate.core.tools import ToolOutput, ToolRequest
from toolgate.journal.disk_blobs import DiskBlobs
from toolgate.journal.local_bus import LocalBus
from toolgate.journal.sqlite.journal import SqliteJournal
from toolgate.tasks.catalog import load_templates
from toolgate.tasks.engine import BrowserEngine
from toolgate.tasks.runtime import PREFIX, TaskRuntime
from toolgate.tasks.task_agent import TaskAgent
from toolgate.tasks.toolset import LOCAL as LOCAL_CALLER
from toolgate.tasks.toolset import Asker, Call, Toolset
from toolgate.testing.gate import FakeGate
from toolgate.tools.engine import Update

PAGES: Final = 200
ROUNDS: Final = 2
MEMORY_ROUNDS: Final = 3
CONCURRENCY: Final = 5
CALLS: Final = 300
LOCAL: Final = Call(Asker(TrustLevel.LOCAL, LOCAL_CALLER, "bench"))
LOOK: Final = {
    "pageInfo": False,  # text is what is compared
    "content": True,
    "sections": True,
    "maxElements": 50,
    "maxContentLength": 4000,
    "quietMs": 2000,
}
DOCS: Final = Path("/usr/share/doc")
# A page that loads from elsewhere would measure the network.
_ELSEWHERE: Final = re.compile(
    rb"<(script|link|img|iframe|object)[^>]+(src|href|data)=.?(https?:)?//", re.I
)

Read = Callable[[list[str]], Awaitable[list[str]]]


def tree_cpu(without: frozenset[int]) -> float:
    """Seconds of CPU of this process and all below it, dead ones included."""
    ticks = os.sysconf("SC_CLK_TCK")
    total = 0
    for process in process_tree(os.getpid()):
        if process not in without:
            with contextlib.suppress(OSError):
                text = Path(f"/proc/{process}/stat").read_text()
                total += sum(int(field) for field in text.rpartition(")")[2].split()[11:15])
    return total / ticks


class _Quiet(http.server.SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass


def write_pages(root: Path, *, made: bool) -> int:
    """Pages that nobody here wrote, from the system's documentation; or made ones, all small."""
    found = (
        []
        if made
        else [
            path
            for path in sorted(DOCS.glob("**/*.html"))
            if path.is_file()
            and 3_000 < path.stat().st_size < 300_000
            and not _ELSEWHERE.search(path.read_bytes())
        ][:PAGES]
    )
    for number in range(PAGES):
        if found:
            content = found[number % len(found)].read_bytes()
        else:
            words = " ".join(f"word{number * n % 97}" for n in range(40))
            content = f"<title>{number}</title>{f'<h2>A</h2><p>{words}</p>' * 4}".encode()
        (root / f"{number}.html").write_bytes(content)
    return len(found)


def serve_pages(root: str) -> None:
    handler = functools.partial(_Quiet, directory=root)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    print(server.server_port, flush=True)
    server.serve_forever()


@contextlib.contextmanager
def pages(*, made: bool = False) -> Iterator[tuple[list[str], int, int]]:
    with tempfile.TemporaryDirectory() as root:
        real = write_pages(Path(root), made=made)
        server = subprocess.Popen(
            [sys.executable, "-c", "from bench.browser import serve_pages as s; s(__import__('sys').argv[1])", root],
            stdout=subprocess.PIPE,
            text=True,
        )  # fmt: skip
        assert server.stdout is not None
        port = int(server.stdout.readline())
        try:
            yield [f"http://127.0.0.1:{port}/{n}.html" for n in range(PAGES)], server.pid, real
        finally:
            server.terminate()
            server.wait()


@contextlib.asynccontextmanager
async def toolset_on(home: Path, browser: SystemBrowser) -> AsyncIterator[Toolset]:
    clock = SystemClock()
    bus = LocalBus()
    journal = await SqliteJournal.open(home / "journal.db", clock=clock, bus=bus)

    async def in_browser(request: ToolRequest, update: Update) -> ToolOutput:
        return await engine.run(request, update=update)

    gate = FakeGate(journal=journal, engine=in_browser, runs=PREFIX)
    runtime = TaskRuntime(
        gate=gate,
        journal=journal,
        bus=bus,
        blobs=DiskBlobs(home / "blobs"),
        browser=browser,
        clock=clock,
        new_id=RandomIds(clock),
        templates=load_templates(),
    )
    toolset = Toolset(runtime, gate=gate, clock=clock, new_id=RandomIds(clock))
    engine = BrowserEngine(toolset, TaskAgent(toolset, check=schema_errors))
    await runtime.start()
    try:
        yield toolset
    finally:
        await runtime.close()
        await journal.close()


async def read_ours(toolset: Toolset, urls: list[str]) -> list[str]:
    return await texts_of(toolset, await run_ours(toolset, urls))


async def run_ours(toolset: Toolset, urls: list[str], *, main: bool = False) -> dict[str, Any]:
    return await toolset.call(
        "run_task_template",
        {
            "templateId": "batch_extract_pages",
            "inputs": {
                "urls": urls,
                "concurrency": CONCURRENCY,
                "extract": {"pageInfo": LOOK["pageInfo"], "main": main},
            },
            "options": {"mode": "sync"},
        },
        LOCAL,
    )


async def texts_of(toolset: Toolset, answer: dict[str, Any]) -> list[str]:
    whole = json.loads(await toolset.runtime.artifacts.read(answer["artifactIds"][0]))
    assert answer["status"] == "succeeded", answer["error"]
    return [_text(item) for item in whole["items"]]


def _text(looked: dict[str, Any]) -> str:
    return "\n".join(section["text"] for section in looked["content"]["sections"])


async def spread(urls: list[str], read: Callable[[str], Awaitable[str]]) -> list[str]:
    found: dict[int, str] = {}
    numbers = iter(range(len(urls)))

    async def walk() -> None:
        for number in numbers:
            found[number] = await read(urls[number])

    await asyncio.gather(*(walk() for _ in range(CONCURRENCY)))
    return [found[number] for number in range(len(urls))]


async def read_pooled(browser: Any, urls: list[str]) -> list[str]:
    """Bare Playwright as a careful person writes it: one context, tabs reused."""
    context = await browser.new_context()
    await context.add_init_script(WATCH)
    idle = [await context.new_page() for _ in range(CONCURRENCY)]

    async def read(url: str) -> str:
        page = idle.pop()
        await page.goto(url, wait_until="domcontentloaded")
        looked = json.loads(await page.evaluate(EXTRACTOR, LOOK))
        idle.append(page)
        return _text(looked)

    found = await spread(urls, read)
    await context.close()
    return found


async def read_each_in_its_context(browser: Any, urls: list[str]) -> list[str]:
    async def read(url: str) -> str:
        context = await browser.new_context()
        await context.add_init_script(WATCH)
        page = await context.new_page()
        await page.goto(url, wait_until="domcontentloaded")
        looked = json.loads(await page.evaluate(EXTRACTOR, LOOK))
        await context.close()
        return _text(looked)

    return await spread(urls, read)


async def read_with_crawlee(executable: str, urls: list[str]) -> list[str]:
    from crawlee import ConcurrencySettings, service_locator  # noqa: PLC0415  an extra of its own
    from crawlee.configuration import Configuration  # noqa: PLC0415
    from crawlee.crawlers import PlaywrightCrawler, PlaywrightCrawlingContext  # noqa: PLC0415
    from crawlee.storage_clients import MemoryStorageClient  # noqa: PLC0415

    found: dict[str, str] = {}
    with contextlib.suppress(Exception):  # it may be set only once in a process
        service_locator.set_storage_client(MemoryStorageClient())
    crawler = PlaywrightCrawler(
        configuration=Configuration(log_level="ERROR"),
        browser_launch_options={
            "executable_path": executable,
            "chromium_sandbox": may_sandbox(),
        },
        concurrency_settings=ConcurrencySettings(
            min_concurrency=CONCURRENCY, max_concurrency=CONCURRENCY,
            desired_concurrency=CONCURRENCY,
        ),
        configure_logging=False,
    )  # fmt: skip

    @crawler.router.default_handler
    async def read(context: PlaywrightCrawlingContext) -> None:
        looked = json.loads(await context.page.evaluate(EXTRACTOR, LOOK))
        found[context.request.url] = _text(looked)

    await crawler.run([f"{url}?{next(_FRESH)}" for url in urls])
    return [text for _, text in sorted(found.items())]


_FRESH: Final = iter(range(1_000_000))  # a crawler asks for no URL twice


async def measure_batches(*, made: bool) -> list[Result]:
    from playwright.async_api import async_playwright  # noqa: PLC0415  an extra

    executable = find_chromium()
    with pages(made=made) as (urls, server, real), tempfile.TemporaryDirectory() as home:
        without = frozenset({server})

        async def cost(read: Coroutine[Any, Any, object], count: int) -> float:
            """Looked at as it goes: of a browser that is closed at the end, much is forgotten."""
            before = most = tree_cpu(without)
            reading = asyncio.ensure_future(read)
            while not reading.done():
                await asyncio.wait([reading], timeout=0.1)
                most = max(most, tree_cpu(without))
            await reading
            return (most - before) / count * 1000

        async with async_playwright() as playwright:
            bare = await playwright.chromium.launch(
                executable_path=executable, chromium_sandbox=may_sandbox()
            )
            ours = SystemBrowser()
            async with toolset_on(Path(home), ours) as toolset:
                mine, theirs = await read_ours(toolset, urls), await read_pooled(bare, urls)
                equal = sum(a == b for a, b in zip(mine, theirs, strict=True)) / PAGES
                measured: dict[str, list[float]] = {
                    name: [] for name in ("ours", "main", "pooled", "each", "crawlee")
                }
                for _ in range(ROUNDS):
                    measured["ours"].append(await cost(read_ours(toolset, urls), PAGES))
                    measured["main"].append(await cost(run_ours(toolset, urls, main=True), PAGES))
                    measured["pooled"].append(await cost(read_pooled(bare, urls), PAGES))
                    measured["each"].append(await cost(read_each_in_its_context(bare, urls), PAGES))
                    with contextlib.suppress(ImportError):
                        whole = await cost(read_with_crawlee(executable, urls), PAGES)
                        measured["crawlee"].append(whole)
                firsts, alone = [], []
                page = await (await bare.new_context()).new_page()
                for url in urls[:20]:
                    firsts.append(await cost(read_ours(toolset, [url]), 1))
                    alone.append(await cost(_read_alone(page, url), 1))
                canceled = await cancel_times(toolset, urls)
            await ours.close()
            await bare.close()
    each = {name: statistics.median(found) for name, found in measured.items() if found}
    told = {name: f"{ms:.0f} ms a page" for name, ms in each.items()}
    beyond = statistics.mean(firsts) - statistics.mean(alone)
    results = [
        Result(
            f"batch_extract_pages, 200 {'small pages' if made else 'pages'}",
            f"{told['ours']}" + ("" if made else f"; {real} different ones of {DOCS}"),
        ),
        Result("the same with main text", told["main"]),
        Result("equal text, against bare Playwright", f"{equal:.0%}", ">= 99%", equal >= 0.99),
        at_most("CPU against bare pooled Playwright", each["ours"] / each["pooled"], 0.75, detail=told["pooled"]),
        at_least("one context per page, against ours", each["each"] / each["ours"], 4, detail=told["each"]),
    ]  # fmt: skip
    if "crawlee" in each:
        ratio = each["crawlee"] / each["ours"]
        results.append(at_least("crawlee, against ours", ratio, 4, detail=told["crawlee"]))
    else:
        results.append(Result("crawlee, against ours", "not installed: make bench"))
    worst = max(canceled) * 1000
    return [
        *results,
        Result("first result on a warm browser, beyond the page", f"{beyond:.0f} ms", "<= 150 ms", beyond <= 150),
        Result("cancel frees its slot", f"{worst:.0f} ms at worst", "<= 200 ms", worst <= 200),
    ]  # fmt: skip


async def _read_alone(page: Any, url: str) -> None:
    await page.goto(url, wait_until="domcontentloaded")
    await page.evaluate(EXTRACTOR, LOOK)


async def cancel_times(toolset: Toolset, urls: list[str]) -> list[float]:
    """Seconds from cancel to a free slot, with five batches at work."""
    loop, times = asyncio.get_running_loop(), []
    submission = {
        "templateId": "batch_extract_pages",
        "inputs": {"urls": urls},
        "options": {"mode": "async"},
    }
    begun = [await toolset.call("run_task_template", submission, LOCAL) for _ in range(5)]
    await asyncio.sleep(0.5)
    assert toolset.runtime.running == 5
    for run in begun:
        before, started = toolset.runtime.running, loop.time()
        await toolset.call("cancel_task_run", {"runId": run["runId"]}, LOCAL)
        assert toolset.runtime.running == before - 1
        times.append(loop.time() - started)
    return times


async def measure_memory() -> list[Result]:
    """The peak of all processes' resident memory while 100 URLs are read: in a run of as many, and
    at the end of one of 1,000. Over windows of one length, as renderers go up and down."""
    first: list[int] = []
    last: list[int] = []
    most: list[int] = []
    for _ in range(MEMORY_ROUNDS):
        few, many = await _resident_during(100), await _resident_during(1000)
        first.append(max(few))
        last.append(max(many[-len(few) :]))
        most.append(max(many))
    before, after = statistics.median(first), statistics.median(last)
    peak = statistics.median(most)
    detail = f"{before / 2**20:.0f} MB, then {after / 2**20:.0f} MB; {peak / 2**20:.0f} MB at most"
    return [at_most("memory at 1,000 URLs, against 100", after / before, 1.2, detail=detail)]


async def _resident_during(count: int) -> list[int]:
    seen: list[int] = []
    with pages() as (urls, server, _), tempfile.TemporaryDirectory() as home:
        browser = SystemBrowser()
        async with toolset_on(Path(home), browser) as toolset:
            asked = [f"{urls[n % PAGES]}?{n}" for n in range(count)]
            reading = asyncio.ensure_future(run_ours(toolset, asked))
            while not reading.done():
                await asyncio.wait([reading], timeout=0.1)
                seen.append(_resident(frozenset({server})))
            assert len(await texts_of(toolset, reading.result())) == count
        await browser.close()
    return seen


def _resident(without: frozenset[int]) -> int:
    total = 0
    for process in process_tree(os.getpid()):
        if process not in without:
            with contextlib.suppress(OSError):
                fields = Path(f"/proc/{process}/statm").read_text().split()
                total += (int(fields[1]) - int(fields[2])) * os.sysconf("SC_PAGE_SIZE")
    return total


async def measure_calls() -> list[Result]:
    """CPU of the server's process per tools/call of get_task_run, over stdio."""
    from mcp import Client, StdioServerParameters  # noqa: PLC0415  an extra

    with pages() as (urls, _, _), tempfile.TemporaryDirectory() as home:
        fixed = Path(home) / "answer.json"
        mine = StdioServerParameters(
            command=sys.executable,
            args=["-m", "toolgate", "browser", "--stdio"],
            env={**os.environ, "TOOLGATE_HOME": home, "LOG_LEVEL": "error"},
        )
        minimal = StdioServerParameters(
            command=sys.executable,
            args=[str(Path(__file__).with_name("_mcp_minimal.py")), str(fixed)],
            env=dict(os.environ),
        )
        async with Client(mine) as ours:
            ours_pid = _newest_child()
            run = await ours.call_tool(
                "run_task_template",
                {"templateId": "batch_extract_pages", "inputs": {"urls": urls[:1]}},
            )
            assert isinstance(run.structured_content, dict)
            arguments = {"runId": run.structured_content["runId"]}
            shown = await ours.call_tool("get_task_run", arguments)
            fixed.write_text(json.dumps(shown.structured_content))
            async with Client(minimal) as theirs:
                theirs_pid = _newest_child()
                costs: dict[str, list[float]] = {"ours": [], "theirs": []}
                for turn in range(ROUNDS + 1):
                    for name, client, pid in (
                        ("ours", ours, ours_pid),
                        ("theirs", theirs, theirs_pid),
                    ):
                        before = process_cpu(pid)
                        for _ in range(CALLS):
                            await client.call_tool("get_task_run", arguments)
                        if turn:
                            costs[name].append((process_cpu(pid) - before) / CALLS * 1000)
    each = {name: statistics.median(found) for name, found in costs.items()}
    detail = f"{each['ours']:.2f} ms a call; {each['theirs']:.2f}"
    ratio = each["ours"] / each["theirs"]
    return [at_most("get_task_run, against the SDK's minimal server", ratio, 1.2, detail=detail)]


def _newest_child() -> int:
    """The server that was started last: ours have no children of their own yet."""
    parents = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
    return int(parents[-1])


def main() -> list[str]:
    results = asyncio.run(measure_batches(made=True))
    results += asyncio.run(measure_batches(made=False))
    results += asyncio.run(measure_calls())
    results += asyncio.run(measure_memory())
    return table("browser", results)


if __name__ == "__main__":
    print("\n".join(main()))
