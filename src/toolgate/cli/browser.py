"""`toolgate browser`: browser tasks over MCP, alone, without the rest of Toolgate."""

import asyncio
import contextlib
import json
import signal
from typing import Final

import click

from toolgate.bootstrap.browser import browser_alone
from toolgate.bootstrap.installation import address, configure_logs
from toolgate.cli.serving import stop_on_signals
from toolgate.core.enums import TrustLevel
from toolgate.core.errors import Misconfigured
from toolgate.http import asgi
from toolgate.secrets.patterns import SecretPatterns
from toolgate.settings import Settings, load
from toolgate.surfaces.mcp.transports import HTTP_PATH, SSE_PATH, McpDoors, serve_stdio

STDIO_HOMES: Final = 64  # clients that each start a server of their own, at once


@click.command("browser")
@click.option("--stdio", "door", flag_value="stdio", help="Serve one client on stdin and stdout.")
@click.option("--sse", "door", flag_value="sse", help="Serve server-sent events at /mcp/sse.")
@click.option("--http", "door", flag_value="http", help="Serve streamable HTTP at /mcp.")
@click.option("--port", type=click.IntRange(0, 65535), help="Instead of GATEWAY_PORT. 0: any.")
def command(door: str | None, port: int | None) -> None:
    """Browser tasks over MCP: stdio with trust `local`, SSE and HTTP with trust `remote`."""
    if door is None:
        raise click.UsageError("say how to serve: --stdio, --sse or --http")
    given = {} if port is None else {"GATEWAY_PORT": str(port)}
    settings = load(given, in_user_data=True)
    patterns = configure_logs(settings)
    serve = _serve_stdio if door == "stdio" else _serve_http
    asyncio.run(serve(settings, patterns))


async def _serve_stdio(settings: Settings, patterns: SecretPatterns) -> None:
    # Clients start a server each; one that starts again finds the runs it left.
    homes = [settings.home / "browser" / f"stdio-{number}" for number in range(STDIO_HOMES)]
    alone = browser_alone(settings, homes, trust=TrustLevel.LOCAL, patterns=patterns)
    async with alone as toolset:
        serving = asyncio.ensure_future(serve_stdio(toolset))
        loop = asyncio.get_running_loop()
        for name in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(name, serving.cancel)
        await asyncio.wait([serving])
        if not serving.cancelled():
            serving.result()


def _with_health(doors: McpDoors) -> asgi.App:
    """Add `/health`, which every listener answers, to the MCP app."""

    async def app(scope: asgi.Scope, receive: asgi.Receive, send: asgi.Send) -> None:
        answer: asgi.App = asgi.Json({"ok": True}) if scope["path"] == "/health" else doors
        await answer(scope, receive, send)

    return app


async def _serve_http(settings: Settings, patterns: SecretPatterns) -> None:
    if not settings.on_loopback:
        raise Misconfigured(
            "this server has no authentication of its own and binds loopback only;"
            " `toolgate up` serves MCP behind the gateway's"
        )
    bound = asgi.bind(settings.host, settings.gateway_port, setting="GATEWAY_PORT")
    with contextlib.closing(bound):
        homes = [settings.home / "browser" / "http"]
        alone = browser_alone(settings, homes, trust=TrustLevel.REMOTE, patterns=patterns)
        async with alone as toolset:
            doors = McpDoors(toolset)
            listener = asgi.Listener(_with_health(doors), bound)
            stopped = stop_on_signals()
            await listener.start()
            try:
                base = f"http://{address(bound.getsockname())}"
                urls = {"mcp": base + HTTP_PATH, "mcp_sse": base + SSE_PATH}
                click.echo(json.dumps({"ready": True, "urls": urls}))
                await stopped.wait()
            finally:
                doors.end_streams()
                await listener.stop()
                await doors.close()
