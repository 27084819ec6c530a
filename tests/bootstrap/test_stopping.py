"""How a whole installation stops: who still waits at its doors is answered first."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

import aiohttp
import pytest

from tests.e2e.harness import INTERNAL, INTERNAL_TOKEN
from toolgate import settings as table
from toolgate.bootstrap.installation import Installation
from toolgate.bootstrap.roles import start_everything
from toolgate.http import asgi

Answer = aiohttp.ClientResponse

OPERATOR = "operator-of-one-that-stops"
EXECUTOR = "executor-of-one-that-stops"
PORTS = ("WS_PORT", "HTTP_PORT", "ORCHESTRATOR_PORT", "GATEWAY_PORT")
LISTENERS = ("gateway", "orchestrator", "ingress_internal")
SLOW_PATHS = ("/tool/run", "/internal/invoke", "/internal/send")
HELLO = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "t", "version": "1"},
    },
}


async def started(tmp_path: Path) -> Installation:
    settings = table.load(
        {
            **dict.fromkeys(PORTS, "0"),
            "TOOLGATE_HOME": str(tmp_path / "home"),
            "OPERATOR_TOKEN": OPERATOR,
            "EXECUTOR_TOKEN": EXECUTOR,
            "INTERNAL_TOKEN": INTERNAL_TOKEN,
            "HEARTBEAT": "",
        },
        environment={},
    )
    return await start_everything(settings)


@asynccontextmanager
async def operator() -> AsyncIterator[aiohttp.ClientSession]:
    headers = {
        "Authorization": f"Bearer {OPERATOR}",
        "Accept": "application/json, text/event-stream",
    }
    async with aiohttp.ClientSession(headers=headers) as http, asyncio.timeout(60):
        yield http


async def stopping(installation: Installation) -> float:
    """Stop it; how long that took."""
    begun = asyncio.get_running_loop().time()
    await installation.stop()
    return asyncio.get_running_loop().time() - begun


async def test_who_waits_for_events_is_answered_and_does_not_hold_the_stop_up(
    tmp_path: Path,
) -> None:
    installation = await started(tmp_path)
    gateway = installation.urls["gateway"]
    async with operator() as http:

        async def poll() -> int:
            async with http.get(f"{gateway}/events/poll", params={"wait": "30"}) as answer:
                await answer.read()
                return answer.status

        try:
            polling = asyncio.create_task(poll())
            stream = await http.get(f"{gateway}/events/stream")
            await stream.content.readline()  # it has begun, and the poll before it
        finally:
            took = await stopping(installation)
        assert await polling == 200
        await stream.read()  # to a proper end: it is not cut off
    assert took < asgi.DRAIN_S


async def of_a_client(installation: Installation, http: aiohttp.ClientSession) -> dict[str, str]:
    """The header of a named token for MCP."""
    body = {"name": "client", "kind": "agent", "scope": {"mcp": True}}
    async with http.post(f"{installation.urls['gateway']}/tokens", json=body) as made:
        return {"Authorization": f"Bearer {(await made.json())['data']['token']}"}


async def listen_to_mcp(installation: Installation, http: aiohttp.ClientSession) -> Answer:
    """The stream of what the server says unasked."""
    mcp = installation.urls["mcp"]
    client = await of_a_client(installation, http)
    async with http.post(mcp, json=HELLO, headers=client) as hello:
        session = {**client, "mcp-session-id": hello.headers["mcp-session-id"]}
    told = {"jsonrpc": "2.0", "method": "notifications/initialized"}
    await http.post(mcp, json=told, headers=session)
    return await http.get(mcp, headers={**session, "Accept": "text/event-stream"})


async def listen_to_mcp_of_old(installation: Installation, http: aiohttp.ClientSession) -> Answer:
    """The stream of what the server says, with a call that has been answered on it."""
    gateway = installation.urls["gateway"]
    client = await of_a_client(installation, http)
    stream = await http.get(f"{gateway}/mcp/sse", headers=client)
    await stream.content.readuntil(b"data: ")
    path = (await stream.content.readline()).decode().strip()
    assert (await http.post(gateway + path, json=HELLO, headers=client)).status == 202
    await stream.content.readuntil(b'"result"')
    return stream


async def listen_to_a_run_that_waits(
    installation: Installation, http: aiohttp.ClientSession
) -> Answer:
    """The events of a run that waits for a person to approve a device's tool."""
    orchestrator = installation.urls["orchestrator"]
    tools = f"{orchestrator}/internal/sessions/s1/tools"
    assert (await http.put(tools, json={"tools": ["device.look"]}, headers=INTERNAL)).status == 200
    asked = {
        "session_id": "s1",
        "agent_id": "script",
        "message": {"role": "user", "content": "[[tool:device.look {}]]"},
    }
    stream = await http.post(
        f"{orchestrator}/internal/invoke",
        json=asked,
        headers={"Accept": "text/event-stream", **INTERNAL},
    )
    await stream.content.readuntil(b"event: approval_required")
    return stream


@pytest.mark.parametrize(
    "listen", [listen_to_mcp, listen_to_mcp_of_old, listen_to_a_run_that_waits]
)
async def test_a_stream_on_which_nothing_is_due_does_not_hold_the_stop_up(
    tmp_path: Path, listen: Callable[[Installation, aiohttp.ClientSession], Awaitable[Answer]]
) -> None:
    installation = await started(tmp_path)
    async with operator() as http:
        try:
            stream = await listen(installation, http)
            assert stream.status == 200
        finally:
            took = await stopping(installation)
        await stream.read()  # to a proper end: it is not cut off
    assert took < asgi.DRAIN_S


async def test_requests_under_way_at_several_doors_are_waited_for_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asgi, "DRAIN_S", 60)  # one after the other they would take three times that
    installation = await started(tmp_path)
    doors = [urlsplit(installation.urls[name]) for name in LISTENERS]
    slow: list[asyncio.StreamWriter] = []
    stop: asyncio.Task[float] | None = None
    try:
        async with asyncio.timeout(30):
            bearers = (EXECUTOR, INTERNAL_TOKEN, INTERNAL_TOKEN)
            for door, path, bearer in zip(doors, SLOW_PATHS, bearers, strict=True):
                reader, writer = await asyncio.open_connection(door.hostname, door.port)
                slow.append(writer)
                head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\n"
                keys = f"Authorization: Bearer {bearer}\r\n"
                writer.write(f"{head}{keys}Content-Length: 9\r\n\r\n".encode())
                assert b"100" in await reader.readline()  # it waits for the body
            stop = asyncio.create_task(stopping(installation))
            for door in doors:
                while await is_open(door):
                    await asyncio.sleep(0.01)
            assert not stop.done()
    finally:
        for writer in slow:
            writer.close()
        await (stopping(installation) if stop is None else stop)


async def is_open(door: SplitResult) -> bool:
    try:
        _, writer = await asyncio.open_connection(door.hostname, door.port)
    except OSError:
        return False
    writer.close()
    return True
