"""What the console costs its reader: bytes, the main thread's time, and how late it is."""

import asyncio
import statistics
import tempfile
from pathlib import Path
from typing import Any, Final

from playwright.async_api import Browser, CDPSession, Page, async_playwright

from bench.measure import Result, table
from toolgate.browser.chromium import find_chromium
from toolgate.client.sessions import connect
from toolgate.surfaces.console.pages import read_files
from tools.screenshots import toolgate

RUNS: Final = 1_000
LOADS: Final = 7
LIVE_RUNS: Final = 25
PAGES: Final = {"overview": "", "runs": "/runs"}
BYTES_BUDGET: Final = 150 * 1024
PAINT_BUDGET_MS: Final = 300
LIVE_BUDGET_MS: Final = 200
# When each run's row first stands on the page, by the page's own clock.
WATCH: Final = """() => {
  window.seen = {};
  const look = () => document.querySelectorAll('tbody a code[title^=run_]').forEach((node) => {
    window.seen[node.title] ??= Date.now();
  });
  look();
  new MutationObserver(look).observe(document.getElementById('main'), {childList: true, subtree: true});
}"""


async def metrics(session: CDPSession) -> dict[str, float]:
    found: dict[str, Any] = await session.send("Performance.getMetrics")
    return {one["name"]: one["value"] for one in found["metrics"]}


async def main_thread_ms(browser: Browser, url: str, cookies: Any) -> float:
    """The main thread's time from nothing to a page with its rows, in a browser that is fresh."""
    context = await browser.new_context()
    await context.add_cookies(cookies)
    page = await context.new_page()
    session = await context.new_cdp_session(page)
    # CPU time of the thread: a machine that is busy with other things is not the page's fault.
    await session.send("Performance.enable", {"timeDomain": "threadTicks"})
    await page.goto(url)
    await page.locator("tbody tr, .chart").first.wait_for()
    took = (await metrics(session))["TaskDuration"]
    await context.close()
    return took * 1000


async def live_ms(page: Page, url: str, ws: str) -> list[float]:
    """From a run's start, by the server's clock, to its row on the page."""
    await page.goto(f"{url}/runs")
    await page.locator("tbody tr").first.wait_for()
    await page.get_by_text("Live", exact=True).wait_for()
    await page.evaluate(WATCH)
    async with connect(ws, user_id="bench") as session:
        for _ in range(LIVE_RUNS):
            await session.ask("hello", agent_id="echo")
            await asyncio.sleep(0.1)
    await asyncio.sleep(0.5)
    answer = await page.evaluate(
        f"fetch('/runs?limit={LIVE_RUNS}', {{headers: {{'X-Toolgate-Console': '1'}}}}).then((answer) => answer.json())"
    )
    seen = await page.evaluate("window.seen")
    return [seen[run["runId"]] - run["createdAt"] for run in answer["data"]["items"]]


async def measure(home: Path) -> tuple[dict[str, float], list[float]]:
    async with toolgate(home) as (urls, link), async_playwright() as driver:
        async with connect(urls["ingress_ws"], user_id="bench") as session:
            for _ in range(RUNS // 50):
                await asyncio.gather(*(session.ask("x", agent_id="echo") for _ in range(50)))
        browser = await driver.chromium.launch(
            executable_path=find_chromium(), args=["--no-sandbox"]
        )
        context = await browser.new_context()
        page = await context.new_page()
        await page.goto(link)
        await page.get_by_role("heading", name="Overview").wait_for()
        cookies = await context.cookies()
        costs: dict[str, list[float]] = {name: [] for name in PAGES}
        for _ in range(LOADS):
            for name, path in PAGES.items():
                costs[name].append(await main_thread_ms(browser, urls["console"] + path, cookies))
        late = await live_ms(page, urls["console"], urls["ingress_ws"])
        await browser.close()
    return {name: statistics.median(taken) for name, taken in costs.items()}, late


def main() -> list[str]:
    size = sum(len(f.content) for n, f in read_files().items() if n.endswith((".js", ".css")))
    with tempfile.TemporaryDirectory() as temporary:
        paints, late = asyncio.run(measure(Path(temporary) / "home"))
    results = [
        Result(
            "script and style",
            f"{size / 1024:.0f} KB",
            f"{BYTES_BUDGET // 1024} KB",
            size <= BYTES_BUDGET,
        )
    ]
    results += [
        Result(
            f"{name} on {RUNS} runs, main thread to first rows",
            f"{took:.0f} ms",
            f"{PAINT_BUDGET_MS} ms",
            took <= PAINT_BUDGET_MS,
        )
        for name, took in paints.items()
    ]
    middle, most = statistics.median(late), statistics.quantiles(late, n=20)[-1]
    results.append(
        Result(
            "a run's start to its row, median and p95",
            f"{middle:.0f} ms, {most:.0f} ms",
            f"{LIVE_BUDGET_MS} ms",
            most <= LIVE_BUDGET_MS,
        )
    )
    return table("console", results)


if __name__ == "__main__":
    print("\n".join(main()))
