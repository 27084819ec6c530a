"""The MCP doors with everything behind them, and clients of the official SDK in front."""

import asyncio
import json
import os
import socket
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import uvicorn
from mcp import Client, StdioServerParameters
from mcp.client.sse import sse_client

from tests.tasks.conftest import QUICK
from tests.tasks.runtimes import a_toolset
from tests.tasks.site import Site
from toolgate.browser.options import BrowserOptions
from toolgate.browser.proxy_verdicts import ProxyVerdicts
from toolgate.browser.system_browser import SystemBrowser
from toolgate.core.enums import TrustLevel
from toolgate.core.system_clock import SystemClock
from toolgate.surfaces.mcp.server import BrowserTools
from toolgate.surfaces.mcp.transports import McpDoors
from toolgate.tasks.catalog import load_templates
from toolgate.tasks.toolset import LOCAL, Toolset
from toolgate.web.egress_proxy import EgressProxy
from toolgate.web.guard import Guard

OUTSIDE = "outside.example"

Connect = Callable[..., AbstractAsyncContextManager[Client]]


class MovedClock(SystemClock):
    """The machine's clock, and as much more as a test adds."""

    def __init__(self) -> None:
        super().__init__()
        self.added = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.added


@dataclass
class Served:
    """A toolset behind its HTTP doors."""

    toolset: Toolset
    clock: MovedClock
    base: str
    site: Site

    def outside(self, path: str) -> str:
        return f"http://{OUTSIDE}:{self.site.port}{path}"

    def seen_by(self, transport: str, path: str) -> str:
        """A page's address as that transport's trust can reach it: only remote has the proxy."""
        return self.site.url(path) if transport == "local" else self.outside(path)


@pytest.fixture(scope="session")
def site() -> Iterator[Site]:
    site = Site()
    yield site
    site.close()


@pytest_asyncio.fixture(loop_scope="session", scope="session")
async def served(tmp_path_factory: pytest.TempPathFactory, site: Site) -> AsyncIterator[Served]:
    async def resolve(name: str, port: int) -> Sequence[str]:
        if name == OUTSIDE:
            return ["127.0.0.1"]
        raise OSError("no such name")

    verdicts, clock = ProxyVerdicts(), MovedClock()
    guard = Guard(resolve=resolve, allow_private=frozenset({f"{OUTSIDE}:{site.port}"}))
    async with EgressProxy(guard, decided=verdicts.note) as proxy:
        options = BrowserOptions(
            proxy_url=f"http://127.0.0.1:{await proxy.listen_tcp()}",
            soft_ms=QUICK.soft_ms,
            navigation_ms=QUICK.navigation_ms,
        )
        browser = SystemBrowser(options, complaint=verdicts.complaint)
        home = tmp_path_factory.mktemp("mcp")
        async with a_toolset(
            home, browser=browser, clock=clock, catalog=load_templates(), grace_s=0.2
        ) as toolset:
            doors = McpDoors(toolset)
            async with serving(doors) as base:
                yield Served(toolset, clock, base, site)
                await doors.close()
        await browser.close()


@asynccontextmanager
async def serving(app: Any) -> AsyncIterator[str]:
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    server = uvicorn.Server(
        uvicorn.Config(app, log_config=None, lifespan="off", timeout_graceful_shutdown=1)
    )
    task = asyncio.ensure_future(server.serve(sockets=[listener]))
    async with asyncio.timeout(10):
        while not server.started:
            await asyncio.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        await task


@pytest.fixture(scope="session")
def local(served: Served) -> Connect:
    """Clients with trust `local`, in this process."""

    def connect(**options: Any) -> AbstractAsyncContextManager[Client]:
        server = BrowserTools(
            served.toolset, trust=TrustLevel.LOCAL, caller=LOCAL, stdio=True
        ).server()
        return Client(server, **options)

    return connect


@pytest.fixture(scope="session")
def http(served: Served) -> Connect:
    return lambda **options: Client(f"{served.base}/mcp", **options)


@pytest.fixture(scope="session")
def sse(served: Served) -> Connect:
    return lambda **options: Client(sse_client(f"{served.base}/mcp/sse"), **options)


def stdio_server(home: Path) -> StdioServerParameters:
    return StdioServerParameters(
        command=sys.executable,
        args=["-m", "toolgate", "browser", "--stdio"],
        env={**os.environ, "TOOLGATE_HOME": str(home), "LOG_LEVEL": "warning"},
    )


async def call(client: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    """The structured answer of a call that must not fail."""
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, result.structured_content
    assert isinstance(result.structured_content, dict)
    return result.structured_content


async def failing(client: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    """The structured answer of a call that must fail."""
    result = await client.call_tool(tool, arguments)
    assert result.is_error
    answer = result.structured_content
    assert isinstance(answer, dict)
    assert answer["recoverHint"]
    assert answer["error"]
    text = result.content[0]
    assert text.type == "text"
    assert json.loads(text.text) == answer
    return answer
