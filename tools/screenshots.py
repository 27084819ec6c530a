"""Take the pictures in docs/images from a Toolgate that has just lived through a small day."""

import asyncio
import json
import os
import re
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
from playwright.async_api import Browser, Page, async_playwright

from toolgate.browser.chromium import find_chromium
from toolgate.browser.sample_pages import PAGES, SITE
from toolgate.client.sessions import Session, connect
from toolgate.contracts.ingress_v1 import ApprovalRequired, RunStarted

OUT = Path(__file__).parents[1] / "docs" / "images"
PROGRAM = Path(sys.executable).with_name("toolgate")
PORTS = ("WS_PORT", "HTTP_PORT", "ORCHESTRATOR_PORT", "GATEWAY_PORT")
VIEWS = {
    "overview": "",
    "runs": "/runs",
    "approvals": "/approvals",
    "devices": "/devices",
    "capabilities": "/capabilities",
    "targets": "/targets",
    "policy": "/policy",
    "audit": "/audit",
    "tasks": "/tasks",
}
STORY = (
    ("amara", 'How much is it? [[tool:math.add {"a": 19, "b": 23}]]'),
    ("li.wei", 'Which machine is this? [[tool:shell {"command": "uname -sr && id"}]]'),
    ("amara", 'Let me tidy up. [[tool:shell {"command": "rm -rf /"}]]'),
    ("tomas", 'What is there? [[tool:shell {"command": "ls -la /"}]]'),
    ("li.wei", "[[tool:shell {oops}]]"),
    ("amara", 'Reading it. [[tool:http.fetch {"url": "https://unknown.example.net/"}]]'),
)
NOTE = 'I will write that down. [[tool:kv.set {"key": "release", "value": "2026.11"}]] It is kept.'
DEPLOY = 'Ready. [[tool:shell {"command": "make release VERSION=2026.11 && git push origin main"}]]'


TASKS = (
    ("batch_extract_pages", {"urls": list(PAGES)}),
    ("screenshot_page", {"url": f"{SITE}/"}),
)


async def play_tasks(http: aiohttp.ClientSession) -> None:
    """Two browser tasks, so that the console has some to show."""
    for template, inputs in TASKS:
        wanted = {"templateId": template, "inputs": inputs}
        async with http.post("/tasks", json=wanted) as answer:
            run = (await answer.json())["data"]["runId"]
        status = "queued"
        while status in {"queued", "running"}:
            await asyncio.sleep(0.2)
            async with http.get(f"/tasks/{run}") as answer:
                status = (await answer.json())["data"]["status"]
        assert status == "succeeded", status


async def furnish(http: aiohttp.ClientSession, gateway: str) -> None:
    """Devices, a script, a server and a target, as an installation in use has them."""
    for name in ("laptop-li.wei", "phone-amara", "tablet-2"):
        knocks = {"X-Device-Id": name, "User-Agent": "Toolgate for phones 1.2"}
        async with (
            aiohttp.ClientSession() as device,
            device.get(f"{gateway}/status", headers=knocks),
        ):
            pass
    docs = {"capabilityId": "mcp.docs", "scope": "mcp", "level": "read", "rateLimit": 60}
    for method, path, body in (
        (
            "POST",
            "/pairing/approve",
            {
                "deviceId": "laptop-li.wei",
                "scope": {"tools": "write", "agent": True, "mcp": True},
            },
        ),
        ("POST", "/tokens", {"name": "ci", "scope": {"tools": "read", "mcp": True}}),
        (
            "POST",
            "/capabilities/register",
            {**docs, "server": {"url": "https://mcp.example.com/"}},
        ),
        (
            "PUT",
            "/execution-targets/runner-lab",
            {
                "tenantId": "t_default",
                "kind": "docker-runner",
                "endpoint": "http://lab:18081/execute",
                "authToken": "a token that is never shown",
                "enabled": True,
            },
        ),
    ):
        async with http.request(method, path, json=body) as answer:
            assert answer.status == 200, await answer.text()


@asynccontextmanager
async def toolgate(home: Path) -> AsyncIterator[tuple[dict[str, str], str]]:
    """The installed program: where it listens, and its sign-in link."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}  # noqa: TID251
    process = await asyncio.create_subprocess_exec(
        PROGRAM,
        "up",
        env={
            **kept,
            **dict.fromkeys(PORTS, "0"),
            "TOOLGATE_HOME": str(home),
            "STATE_DIR": f"{home}.state",
        },
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        urls = json.loads(await process.stdout.readline())["urls"]
        line = ""
        while "#code=" not in line:
            line = (await process.stderr.readline()).decode()
        found = re.search(r"http\S+", line)
        assert found is not None
        yield urls, found[0]
    finally:
        process.terminate()
        await process.wait()


async def until_asked(session: Session, message: str) -> str:
    """Which run it is, once the run waits for a person."""
    run_id = ""
    async for event in session.invoke(message, agent_id="script"):
        if isinstance(event, RunStarted):
            run_id = event.run_id
        if isinstance(event, ApprovalRequired):
            return run_id
    raise AssertionError("nobody was asked")


async def shoot(page: Page, name: str) -> None:
    await page.get_by_role("heading", level=1).wait_for()
    await page.wait_for_timeout(700)
    await page.screenshot(path=OUT / f"{name}.png")


async def signed_in(browser: Browser, link: str, **options: Any) -> Page:
    context = await browser.new_context(viewport={"width": 1280, "height": 800}, **options)
    page = await context.new_page()
    await page.goto(link)
    await page.get_by_role("heading", name="Overview").wait_for()
    return page


async def take(browser: Browser, urls: dict[str, str], link: str) -> None:
    base = urls["console"]
    page = await browser.new_page(viewport={"width": 1280, "height": 800})
    await page.goto(base)
    await shoot(page, "sign-in")
    page = await signed_in(browser, link)
    async with (
        connect(urls["ingress_ws"], user_id="amara") as amara,
        connect(urls["ingress_ws"], user_id="tomas") as tomas,
    ):
        for user, message in STORY:
            async with connect(urls["ingress_ws"], user_id=user) as session:
                async for _ in session.invoke(message, agent_id="script"):
                    continue
        noted = await until_asked(amara, NOTE)
        await page.goto(f"{base}/approvals")
        await page.get_by_role("article").wait_for()
        await page.get_by_role("textbox", name="Reason").fill("agreed in the meeting")
        await page.get_by_role("button", name="Approve").click()
        await page.get_by_role("table", name="Decided lately").wait_for()
        await until_asked(tomas, DEPLOY)
        for name, path in VIEWS.items():
            await page.goto(base + path)
            await shoot(page, name)
        await page.goto(f"{base}/runs/{noted}")
        await shoot(page, "run")
        await page.goto(f"{base}/evidence")
        await page.get_by_role("button", name="Verify everything").click()
        await page.get_by_text("Verified:").wait_for()
        await shoot(page, "evidence")
        await page.goto(f"{base}/tasks")
        await page.get_by_role("row").filter(has_text="screenshot_page").get_by_role("link").click()
        await page.locator("figure img").wait_for()
        await shoot(page, "task")
        await page.goto(f"{base}/chat")
        await page.get_by_text("Connected").wait_for()
        await page.get_by_role("textbox", name="Message").fill(NOTE)
        await page.keyboard.press("Enter")
        await page.get_by_role("button", name="Approve").wait_for()
        await shoot(page, "chat")
        await in_other_ways(page, base, noted)


async def in_other_ways(page: Page, base: str, run_id: str) -> None:
    """Dark, Chinese, and on a phone."""
    await page.evaluate("localStorage.setItem('toolgate.theme', 'dark')")
    await page.goto(f"{base}/approvals")
    await shoot(page, "approvals-dark")
    await page.evaluate("localStorage.setItem('toolgate.theme', 'auto')")
    await page.evaluate("localStorage.setItem('toolgate.lang', 'zh')")
    await page.goto(base)
    await shoot(page, "overview-zh")
    await page.goto(f"{base}/approvals")
    await shoot(page, "approvals-zh")
    await page.evaluate("localStorage.setItem('toolgate.lang', 'en')")
    await page.set_viewport_size({"width": 390, "height": 800})
    for name, path in {
        "phone-overview": "",
        "phone-run": f"/runs/{run_id}",
        "phone-approvals": "/approvals",
    }.items():
        await page.goto(base + path)
        await shoot(page, name)


async def main() -> None:
    OUT.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        home = Path(temporary) / "home"
        async with (
            toolgate(home) as (urls, link),
            async_playwright() as driver,
            aiohttp.ClientSession(
                urls["gateway"],
                headers={"Authorization": f"Bearer {(home / 'operator.token').read_text()}"},
            ) as http,
        ):
            await play_tasks(http)
            await furnish(http, urls["gateway"])
            browser = await driver.chromium.launch(
                executable_path=find_chromium(), args=["--no-sandbox"]
            )
            await take(browser, urls, link)
            await browser.close()


if __name__ == "__main__":
    asyncio.run(main())
