"""`toolgate browser`: browser tasks over MCP, alone, without the rest of Toolgate."""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

import click
import msgspec
import uvicorn

from toolgate.adapters.blobs_disk import DiskBlobs
from toolgate.adapters.browser_options import BrowserOptions
from toolgate.adapters.bus_local import LocalBus
from toolgate.adapters.clock import SystemClock
from toolgate.adapters.egress_proxy import EgressProxy
from toolgate.adapters.ids import RandomIds
from toolgate.adapters.journal_sqlite import SqliteJournal
from toolgate.adapters.playwright_browser import PlaywrightBrowser
from toolgate.adapters.refused_hosts import RefusedHosts
from toolgate.adapters.web_guard import Guard
from toolgate.domain.errors import Misconfigured, ToolgateError
from toolgate.ports.clock import Clock
from toolgate.settings import Settings, load
from toolgate.surfaces.mcp.doors import HTTP_PATH, SSE_PATH, McpDoors, serve_stdio
from toolgate.tasks.catalog import load_templates
from toolgate.tasks.runtime import TaskRuntime
from toolgate.tasks.toolset import Toolset

STDIO_HOMES: Final = 64  # clients that each start a server of their own, at once
TABS_PER_CORE: Final = 4


@asynccontextmanager
async def browser_parts(settings: Settings, homes: Sequence[Path]) -> AsyncIterator[Toolset]:
    """Everything that browser tasks need, on the first of these homes that no one else has."""
    async with AsyncExitStack() as stack:
        clock = SystemClock()
        journal, home = await _open_journal(homes, clock)
        stack.push_async_callback(journal.close)
        refused = RefusedHosts()
        proxy = await stack.enter_async_context(EgressProxy(Guard(), decided=refused.note))
        browser = PlaywrightBrowser(
            BrowserOptions(
                executable=settings.chromium,
                proxy_url=f"http://127.0.0.1:{await proxy.listen_tcp()}",
                slots=TABS_PER_CORE * (os.cpu_count() or 1),
            ),
            was_refused=refused.has,
        )
        stack.push_async_callback(browser.close)
        runtime = TaskRuntime(
            journal=journal,
            blobs=DiskBlobs(home / "blobs"),
            browser=browser,
            clock=clock,
            new_id=RandomIds(clock),
            templates=load_templates(),
        )
        stack.push_async_callback(runtime.close)
        await runtime.start()
        yield Toolset(runtime, clock=clock)


@click.command("browser")
@click.option("--stdio", "door", flag_value="stdio", help="Serve one client on stdin and stdout.")
@click.option("--sse", "door", flag_value="sse", help="Serve server-sent events at /mcp/sse.")
@click.option("--http", "door", flag_value="http", help="Serve streamable HTTP at /mcp.")
@click.option("--port", type=click.IntRange(0, 65535), help="Instead of GATEWAY_PORT. 0: any.")
def command(door: str | None, port: int | None) -> None:
    """Browser tasks over MCP: stdio with trust `local`, SSE and HTTP with trust `remote`."""
    if door is None:
        raise click.UsageError("say how to serve: --stdio, --sse or --http")
    try:
        settings = load({} if port is None else {"GATEWAY_PORT": str(port)})
        logging.basicConfig(
            stream=sys.stderr,
            level=settings.log_level.upper(),
            format="%(asctime)s %(levelname)s %(name)s %(message)s",
        )
        asyncio.run(_serve_stdio(settings) if door == "stdio" else _serve_http(settings))
    except ToolgateError as failed:
        raise click.ClickException(str(failed)) from failed
    except ModuleNotFoundError as missing:
        raise click.ClickException("this needs the extra toolgate[browser]") from missing


async def _open_journal(homes: Sequence[Path], clock: Clock) -> tuple[SqliteJournal, Path]:
    for home in homes:
        with contextlib.suppress(Misconfigured):  # another process has it
            return await SqliteJournal.open(home / "journal.db", clock=clock, bus=LocalBus()), home
    raise Misconfigured(f"{homes[-1]} and all like it are in use; set TOOLGATE_HOME to another")


async def _serve_stdio(settings: Settings) -> None:
    # Clients start a server each; one that starts again finds the runs it left.
    homes = [settings.home / "browser" / f"stdio-{number}" for number in range(STDIO_HOMES)]
    async with browser_parts(settings, homes) as toolset:
        serving = asyncio.ensure_future(serve_stdio(toolset))
        loop = asyncio.get_running_loop()
        for name in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(name, serving.cancel)
        await asyncio.wait([serving])


async def _serve_http(settings: Settings) -> None:
    if not settings.on_loopback:
        raise Misconfigured(
            "this server has no authentication of its own and binds loopback only;"
            " `toolgate up` serves MCP behind the gateway's"
        )
    async with browser_parts(settings, [settings.home / "browser" / "http"]) as toolset:
        doors = McpDoors(toolset)
        server = _Announced(
            uvicorn.Config(
                doors,
                host=settings.host,
                port=settings.gateway_port,
                log_config=None,
                lifespan="off",
                timeout_graceful_shutdown=3,
            )
        )
        await server.serve()
        await doors.close()


class _Announced(uvicorn.Server):
    """Says on stdout where it listens, once it does."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            host, port = self.servers[0].sockets[0].getsockname()[:2]
            base = f"http://{host}:{port}"
            urls = {"mcp": base + HTTP_PATH, "mcp_sse": base + SSE_PATH}
            click.echo(msgspec.json.encode({"ready": True, "urls": urls}).decode())
