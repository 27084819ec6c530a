"""`mcp.playwright`: the real npm package on the system's Chromium, as a capability."""

import asyncio
import shutil
from pathlib import Path

import pytest

from toolgate.adapters.clock import SystemClock
from toolgate.adapters.mcp_upstream import McpUpstreams
from toolgate.domain.capabilities import Server
from toolgate.domain.tools import Level, ToolRequest

PACKAGE = "@playwright/mcp@0.0.83"
PAGE = "data:text/html,<title>Gate</title><h1>Open</h1>"


def chromium() -> str:
    for name in ("chromium-headless-shell", "chromium"):
        if found := shutil.which(name):
            return found
    pytest.skip("there is no Chromium here")


async def install(directory: Path) -> Path:
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("there is no npm here")
    process = await asyncio.create_subprocess_exec(
        npm, "install", "--no-audit", "--no-fund", "--ignore-scripts", PACKAGE,
        cwd=directory,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    try:
        async with asyncio.timeout(60):
            code = await process.wait()
    except TimeoutError:
        process.kill()
        code = await process.wait()
    if code:
        pytest.skip(f"{PACKAGE} cannot be installed here")
    return directory / "node_modules" / ".bin" / "playwright-mcp"


@pytest.mark.requirement("002/mcp/playwright")
async def test_playwrights_server_opens_a_page(tmp_path: Path) -> None:
    browser = chromium()
    program = await install(tmp_path)
    server = Server(
        command=str(program),
        args=("--headless", "--isolated", "--no-sandbox", "--executable-path", browser),
    )
    upstreams = McpUpstreams(
        lambda name: server if name == "mcp.playwright" else None,
        clock=SystemClock(),
        report=lambda _name, _health: None,
    )
    try:
        async with asyncio.timeout(100):
            tools = {tool.name: tool for tool in await upstreams.tools("mcp.playwright")}
            assert tools["browser_snapshot"].level is Level.READ
            assert tools["browser_click"].level is Level.WRITE
            request = ToolRequest("r", "mcp.playwright.browser_navigate", {"url": PAGE})
            output = await upstreams.run(request)
            assert output.ok, output.stderr
            assert "Gate" in output.stdout
    finally:
        await upstreams.close()
