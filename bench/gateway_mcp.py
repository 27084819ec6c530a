"""A call of a stdio MCP server through /command/mcp, beside a FastMCP proxy before the same server.

CPU of the process in the middle, per call; the server itself is not counted. One at a time, where
each call pays for two commits alone, and 64 at once. Run it with `python -m bench.gateway_mcp
[PYTHON]`, where PYTHON has fastmcp.
"""

import asyncio
import contextlib
import importlib.util
import json
import socket
import statistics
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path

import aiohttp
from mcp import Client

from bench.gateway import Server, gateway, pair, running

CALLS = {1: 60, 64: 320}  # by how many are at once
TURNS = 5
PATIENCE_S = 60.0  # for a turn of the proxy, which takes five and now and then stalls
ECHO = Path(__file__).parents[1] / "tests" / "tools" / "upstream" / "servers" / "server.py"
PROXY = """
import sys
from fastmcp.server import create_proxy
server = {"mcpServers": {"echo": {"command": sys.argv[1], "args": [sys.argv[2], "stdio"]}}}
print("started", flush=True)
create_proxy(server).run(transport="http", host="127.0.0.1", port=int(sys.argv[3]), show_banner=False)
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def through_gateway(
    http: aiohttp.ClientSession, ours: Server, device: dict[str, str], at_once: int
) -> float:
    payload = {"capabilityId": "mcp.echo", "action": "echo", "args": {"text": "hello"}}

    async def call() -> None:
        async with http.post(
            f"{ours.url}/command/mcp", json={"payload": payload}, headers=device
        ) as answer:
            told = await answer.json()
            assert told["data"]["content"][0]["text"] == "hello", told

    await call()
    before = ours.cpu_s()
    await many(call, at_once)
    return (ours.cpu_s() - before) / CALLS[at_once] * 1e6


async def through_proxy(proxy: Server, at_once: int) -> float:
    async with Client(f"{proxy.url}/mcp") as client:

        async def call() -> None:
            result = await client.call_tool("echo", {"text": "hello"})
            assert not result.is_error

        await call()
        before = proxy.cpu_s()
        await many(call, at_once)
        return (proxy.cpu_s() - before) / CALLS[at_once] * 1e6


async def many(call: Callable[[], Awaitable[None]], at_once: int) -> None:
    left = iter(range(CALLS[at_once]))

    async def caller() -> None:
        for _ in left:
            await call()

    await asyncio.gather(*(caller() for _ in range(at_once)))


async def until_listening(url: str) -> None:
    host, _, port = url.removeprefix("http://").partition(":")
    async with asyncio.timeout(60):
        while True:
            try:
                _, writer = await asyncio.open_connection(host, int(port))
            except OSError:
                await asyncio.sleep(0.1)
                continue
            writer.close()
            return


async def measure(python: str) -> list[str]:
    with tempfile.TemporaryDirectory() as home:
        servers = Path(home) / "mcp.json"
        echo = {"command": sys.executable, "args": [str(ECHO), "stdio"]}
        servers.write_text(json.dumps({"mcpServers": {"echo": echo}}))
        port = free_port()
        url = f"http://127.0.0.1:{port}"
        command = [python, "-c", PROXY, sys.executable, str(ECHO), str(port)]
        with (
            running(command, lambda _: url) as proxy,
            running(
                [*gateway(home), "-s", f"MCP_FILE={servers}"],
                lambda line: str(json.loads(line)["urls"]["gateway"]),
            ) as ours,
        ):
            await until_listening(url)
            async with aiohttp.ClientSession() as http:
                device = await pair(http, ours.url)
                await through_gateway(http, ours, device, 1)
                told: list[str] = []
                for at_once in CALLS:
                    turns: list[tuple[float, float]] = []
                    with contextlib.suppress(TimeoutError):  # it does not recover
                        for _ in range(TURNS):
                            mine = await through_gateway(http, ours, device, at_once)
                            async with asyncio.timeout(PATIENCE_S):
                                turns.append((mine, await through_proxy(proxy, at_once)))
                    told += _told(at_once, turns)
    return told


def _told(at_once: int, turns: list[tuple[float, float]]) -> list[str]:
    if not turns:
        return [f"gateway_mcp: {at_once} at once, the proxy stalled"]
    mine = statistics.median(first for first, _ in turns)
    theirs = statistics.median(second for _, second in turns)
    share = mine / theirs
    return [
        f"CPU in the middle per MCP call, {at_once} at once, {CALLS[at_once]} calls,"
        f" median of {len(turns)}",
        f"  /command/mcp, all on            {mine:8.0f} us",
        f"  FastMCP proxy                   {theirs:8.0f} us",
        f"  share {share:.2f}, budget 0.10: {'PASS' if share <= 0.1 else 'FAIL'}",
    ]


def main(python: str = sys.executable) -> list[str]:
    if python == sys.executable and importlib.util.find_spec("fastmcp") is None:
        return ["gateway_mcp: fastmcp is not installed (requirements-bench.lock)"]
    return asyncio.run(measure(python))


if __name__ == "__main__":
    print("\n".join(main(*sys.argv[1:2])))
