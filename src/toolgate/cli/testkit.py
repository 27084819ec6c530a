"""`toolgate testkit`: check someone's end of a contract against its seed."""

import asyncio
import json
import shlex
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict
from functools import wraps
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

import aiohttp
import click
from rich.text import Text

from toolgate.cli.options import EXIT_FAILED
from toolgate.cli.terminal import Progressed, of_file, one_line, print_table, progress, table_of
from toolgate.core.errors import Misconfigured, Unavailable
from toolgate.testkit import browser as browser_kit
from toolgate.testkit import client as client_kit
from toolgate.testkit import executor as executor_kit
from toolgate.testkit import gateway as gateway_kit
from toolgate.testkit import ingress as ingress_kit
from toolgate.testkit import orchestrator as orchestrator_kit
from toolgate.testkit import runner as runner_kit
from toolgate.testkit.checks import CheckResult, Kit, Unreachable, read_secret

P = TypeVar("P")
Judged = Callable[..., Coroutine[Any, Any, list[CheckResult]]]
Command = Callable[..., Any]

CONNECT_S: Final = 10.0
MARKS: Final = {"ok": "green", "no": "red", "skipped": "yellow"}


@click.group()
def command() -> None:
    """Check your own end of a contract against its seed.

    Each command plays the other end and prints what holds, with the place in the seed. It exits
    with 1 where something does not hold or nobody answers.
    """


def _printing(judge: Judged) -> Command:
    """A command that prints what a kit has found."""

    @click.option("--json", "as_json", is_flag=True, help="Print the checks as JSON.")
    @wraps(judge)
    def run(*args: Any, as_json: bool, **options: Any) -> None:
        with progress("checking") as show:
            try:
                found = asyncio.run(judge(*args, show=show, **options))
            except Unreachable as silent:
                raise Unavailable(f"nothing to check: {silent}") from silent
            except OSError as refused:
                raise Misconfigured(of_file(refused)) from refused
        _print(found, as_json=as_json)
        if any(one.result == "no" for one in found):
            sys.exit(EXIT_FAILED)

    return run


def _print(found: list[CheckResult], *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps([asdict(one) for one in found], ensure_ascii=False))
        return
    shown = table_of("", "seed", "where", "what", header=False)
    for one in found:
        detail = Text(one.holds)
        if one.detail:
            detail.append(f"\n{one_line(one.detail)}", MARKS[one.result])
        if one.result == "no":
            detail.append(f"\n“{one.quote}”", "dim")
        mark = Text(one.result, MARKS[one.result])
        shown.add_row(mark, Text(one.seed), Text(one.place), detail)
    print_table(shown)
    counts = [f"{sum(one.result == mark for one in found)} {mark}" for mark in MARKS]
    click.echo(", ".join(counts))


def _address(url: str, *schemes: str) -> str:
    try:
        parts = urlsplit(url)
        is_known = parts.scheme in schemes and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_known = False
    if not is_known:
        raise Misconfigured(f"{url} is no address that begins with {schemes[0]}://")
    return url.rstrip("/")


def _listener(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not (colon and host and port.isdigit() and int(port) < 65536):
        raise Misconfigured(f"--listen {text} is not HOST:PORT, such as 127.0.0.1:8081")
    return host.strip("[]"), int(port)


def _object(text: str, option: str) -> dict[str, Any]:
    with suppress(ValueError):
        if isinstance(found := json.loads(text), dict):
            return found
    raise Misconfigured(f"{option} {text} is not a JSON object")


@asynccontextmanager
async def _http() -> AsyncIterator[aiohttp.ClientSession]:
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S)
    async with aiohttp.ClientSession(timeout=timeout) as http:
        yield http


async def _run(kit: Kit[P], peer: P, show: Progressed) -> list[CheckResult]:
    return await kit.run(peer, show)


TOKEN_FILE: Final = click.option(
    "--token-file", default="", metavar="FILE", help="Holds the bearer token to send."
)


@command.command()
@click.argument("url")
@TOKEN_FILE
@click.option("--tool", default="bash.exec", show_default=True, help="A tool that takes {cmd}.")
@_printing
async def runner(url: str, *, token_file: str, tool: str, show: Progressed) -> list[CheckResult]:
    """Play a gateway against the runner at URL, such as http://HOST:18081/execute (seed 000)."""
    url = _address(url, "http", "https")
    async with _http() as http:
        peer = runner_kit.GatewayPeer(url, http, read_secret(token_file), tool)
        return await _run(runner_kit.KIT, peer, show)


@command.command()
@click.argument("url")
@TOKEN_FILE
@click.option("--agent", default="echo", show_default=True, help="An agent that it has.")
@click.option("--tool-message", default="", help="At which the agent calls a tool of the client.")
@click.option("--approval-message", default="", help="At which the agent needs an approval.")
@click.option("--session", default="", help="One whose client's tools it knows. Default: new ones.")
@click.option("--listen", default="", metavar="HOST:PORT", help="Where it pushes its events to.")
@_printing
async def orchestrator(
    url: str,
    *,
    token_file: str,
    agent: str,
    tool_message: str,
    approval_message: str,
    session: str,
    listen: str,
    show: Progressed,
) -> list[CheckResult]:
    """Play an ingress against the orchestrator at URL, such as http://HOST:8081 (seed 001)."""
    url = _address(url, "http", "https")
    async with _http() as http:
        peer = orchestrator_kit.IngressPeer(
            url, http, read_secret(token_file), agent, tool_message, approval_message, session
        )
        pushes = await peer.serve(*_listener(listen)) if listen else None
        try:
            return await _run(orchestrator_kit.KIT, peer, show)
        finally:
            if pushes is not None:
                await pushes.cleanup()


@command.command()
@click.argument("url")
@click.option("--http", "internal", default="", metavar="URL", help="Its internal HTTP, at 8091.")
@click.option("--key-file", default="", metavar="FILE", help="Holds the api_key of its clients.")
@TOKEN_FILE
@click.option("--agent", default="echo", show_default=True, help="An agent that answers.")
@click.option(
    "--listen",
    default="",
    metavar="HOST:PORT",
    help="Where its ORCHESTRATOR_URL leads: play the orchestrator there.",
)
@_printing
async def ingress(
    url: str,
    *,
    internal: str,
    key_file: str,
    token_file: str,
    agent: str,
    listen: str,
    show: Progressed,
) -> list[CheckResult]:
    """Play clients and an orchestrator against the ingress at URL, ws://HOST:8090/ws (seed 001)."""
    url = _address(url, "ws", "wss")
    internal = _address(internal, "http", "https") if internal else ""
    key = read_secret(key_file)
    async with _http() as http:
        peer = ingress_kit.ClientPeer(
            url, http, key or "testkit", internal, read_secret(token_file), agent
        )
        peer.checks_key = bool(key)
        played = ingress_kit.OrchestratorPeer()
        try:
            if listen:
                await played.serve(*_listener(listen))
                peer.orchestrator = played
            return await _run(ingress_kit.KIT, peer, show)
        finally:
            await played.close()


@command.command()
@click.option(
    "--listen",
    default="127.0.0.1:8090",
    show_default=True,
    metavar="HOST:PORT",
    help="Where the client connects to.",
)
@click.option("--wait", "wait_s", default=60.0, show_default=True, help="Seconds for the client.")
@click.option("--tool", default="browser.screenshot", show_default=True, help="To ask it for.")
@_printing
async def client(*, listen: str, wait_s: float, tool: str, show: Progressed) -> list[CheckResult]:
    """Serve a small ingress, and say what a client that connects to it got right (seed 001).

    The client connects to ws://HOST:PORT/ws and invokes an agent; the ingress answers, asks for a tool
    and for an approval, and ends the run.
    """
    host, port = _listener(listen)
    peer = client_kit.SmallIngress(tool)
    await peer.visit(host, port, wait_s=wait_s, step=lambda text: click.echo(text, err=True))
    return await _run(client_kit.KIT, peer, show)


@command.command()
@click.argument("url")
@click.option("--device-id", default="testkit", show_default=True, help="The X-Device-Id.")
@click.option("--token-file", default="", metavar="FILE", help="Holds the X-Device-Token.")
@click.option(
    "--operator-token-file",
    default="",
    metavar="FILE",
    help="Holds the operator's token: pair the device, and check pairing and registration.",
)
@click.option("--tool", default="echo", show_default=True, help="One that only reads.")
@click.option("--args", default='{"text": "testkit"}', show_default=True, help="Its arguments.")
@_printing
async def gateway(
    url: str,
    *,
    device_id: str,
    token_file: str,
    operator_token_file: str,
    tool: str,
    args: str,
    show: Progressed,
) -> list[CheckResult]:
    """Play a device against the gateway at URL, such as http://HOST:8787 (seed 002)."""
    url = _address(url, "http", "https")
    async with _http() as http:
        peer = gateway_kit.DevicePeer(
            url,
            http,
            device_id,
            read_secret(token_file),
            read_secret(operator_token_file),
            tool,
            _object(args, "--args"),
        )
        return await _run(gateway_kit.KIT, peer, show)


@command.command()
@click.argument("url")
@TOKEN_FILE
@click.option("--tool", default="kv.get", show_default=True, help="One that the policy allows.")
@click.option("--args", default='{"key": "testkit"}', show_default=True, help="Its arguments.")
@click.option(
    "--denied", default="testkit.no_such_tool", show_default=True, help="One that it denies."
)
@_printing
async def executor(
    url: str, *, token_file: str, tool: str, args: str, denied: str, show: Progressed
) -> list[CheckResult]:
    """Play a service against the executor at URL, which answers POST /tool/run (seed 003)."""
    url = _address(url, "http", "https")
    async with _http() as http:
        peer = executor_kit.ServicePeer(
            url, http, read_secret(token_file), tool, _object(args, "--args"), denied
        )
        return await _run(executor_kit.KIT, peer, show)


@command.command()
@click.argument("url", required=False, default="")
@click.option("--stdio", "program", default="", metavar="COMMAND", help="Instead of URL.")
@TOKEN_FILE
@click.option("--page", default="", metavar="URL", help="A page to open, instead of one of ours.")
@_printing
async def browser(
    url: str, *, program: str, token_file: str, page: str, show: Progressed
) -> list[CheckResult]:
    """Play an MCP client against a browser task runtime (seed 004).

    URL is its streamable HTTP (http://HOST:PORT/mcp) or SSE (http://HOST:PORT/mcp/sse).
    """
    if bool(url) == bool(program):
        raise click.UsageError("give either URL or --stdio COMMAND")
    try:
        words = shlex.split(program)
    except ValueError as unclosed:
        raise Misconfigured(f"--stdio {program} cannot be split: {unclosed}") from unclosed
    url = _address(url, "http", "https") if url else ""
    async with _http() as http, browser_kit.serving_page() as own_page:
        token = read_secret(token_file)
        peer = browser_kit.McpClientPeer(http, page or own_page, token, url)
        try:
            await peer.open(*words)
            return await _run(browser_kit.KIT, peer, show)
        finally:
            await peer.close()
