"""MCP servers upstream: real ones, over stdio and HTTP, that answer, die, hang and talk nonsense."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.upstreams import mcp_upstreams
from toolgate.core.enums import HealthStatus, Isolation, Level, Outcome
from toolgate.core.errors import Misconfigured, Unavailable
from toolgate.core.tools import Caller, JsonValue, ToolOutput, ToolRequest
from toolgate.tools.capabilities import PLAYWRIGHT_CAPABILITY, PLAYWRIGHT_SCOPE, Server
from toolgate.tools.upstream import session as mcp_session
from toolgate.tools.upstream.file import read_servers
from toolgate.tools.upstream.outputs import MAX_TEXT

SERVERS = Path(__file__).parent / "servers"
STDIO = Server(
    command=sys.executable, args=(str(SERVERS / "server.py"), "stdio"), isolation=Isolation.NONE
)
GARBAGE = Server(
    command=sys.executable, args=(str(SERVERS / "garbage.py"),), isolation=Isolation.NONE
)


class Upstream:
    """One capability with one server, and what was reported of its health."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.health: list[HealthStatus] = []
        self.sessions = mcp_upstreams(
            lambda name: self.server if name == "mcp.test" else None,
            report=lambda _name, health, _why: self.health.append(health),
        )

    @property
    def now(self) -> str:
        return str(self.health[-1])

    async def call(self, action: str, **args: JsonValue) -> ToolOutput:
        request = ToolRequest("r", f"mcp.test.{action}", args)
        async with asyncio.timeout(60):
            return await self.sessions.run(request)


@pytest.fixture
async def stdio() -> AsyncIterator[Upstream]:
    upstream = Upstream(STDIO)
    yield upstream
    await upstream.sessions.close()


@pytest.fixture
async def plain(tmp_path: Path) -> AsyncIterator[Upstream]:
    """A server that starts at once, for tests that start several."""
    program = (str(SERVERS / "plain.py"), str(tmp_path / "messages"))
    upstream = Upstream(Server(command=sys.executable, args=program, isolation=Isolation.NONE))
    yield upstream
    await upstream.sessions.close()


@pytest.fixture(scope="module")
def http_server() -> Iterator[Server]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    program = [sys.executable, str(SERVERS / "server.py"), "http", str(port)]
    with subprocess.Popen(program, stderr=subprocess.DEVNULL) as process:
        for _ in range(600):
            with socket.socket() as probe:
                probe.settimeout(0.1)
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            assert process.poll() is None
            signal.sigtimedwait([], 0.05)
        yield Server(url=f"http://127.0.0.1:{port}/mcp")
        process.kill()


async def test_the_place_of_a_call_is_its_server_whatever_that_is_called() -> None:
    upstream, asked = Upstream(STDIO), ToolRequest("r", "mcp.test.echo", {})
    at_first = await upstream.sessions.place(asked)
    upstream.server = replace(STDIO, env=(("TOKEN", "another"),))
    assert await upstream.sessions.place(asked) == at_first
    upstream.server = GARBAGE
    by_another = await upstream.sessions.place(asked)
    upstream.server = Server(url="http://127.0.0.1:1/mcp")
    nowhere = await upstream.sessions.place(ToolRequest("r", "mcp.other.echo", {}))
    assert len({at_first, by_another, await upstream.sessions.place(asked), nowhere}) == 4


@pytest.mark.requirement("002/mcp/stdio-and-http")
async def test_a_stdio_server_is_listed_with_levels_and_called(stdio: Upstream) -> None:
    tools = await stdio.sessions.tools("mcp.test")
    assert tools["echo"].level is Level.WRITE  # as registered, whatever the server says
    assert tools["write"].level is Level.WRITE
    assert "text" in str(tools["echo"].schema)
    output = await stdio.call("echo", text="hello")
    assert output.ok
    assert output.stdout == "hello"
    assert isinstance(output.data, dict)
    assert output.data["content"] == [{"type": "text", "text": "hello"}]
    failed = await stdio.call("fail")
    assert not failed.ok
    assert isinstance(failed.data, dict)
    assert failed.data["isError"] is True
    assert failed.stderr
    assert not (await stdio.call("nothing")).ok  # the server's own no, and its session goes on
    assert (await stdio.call("echo", text="x")).ok
    assert stdio.health[-1] is HealthStatus.HEALTHY
    known = stdio.sessions.describe("mcp.test.echo", Caller())
    assert known is not None
    assert known.definition
    stdio.server = GARBAGE  # what one server said of its tools is not said of another's
    assert stdio.sessions.describe("mcp.test.echo", Caller()) is None


@pytest.mark.requirement("002/mcp/stdio-and-http")
async def test_an_http_server_is_called_the_same_way(http_server: Server) -> None:
    upstream = Upstream(http_server)
    try:
        tools = await upstream.sessions.tools("mcp.test")
        assert "text" in str(tools["echo"].schema)
        assert (await upstream.call("echo", text="over http")).stdout == "over http"
    finally:
        await upstream.sessions.close()


async def test_a_session_heals_each_time_its_server_died(plain: Upstream) -> None:
    seen = [(await plain.call("pid")).stdout]
    for _ in range(2):
        died = await plain.call("die")
        assert died.outcome is Outcome.MAY_HAVE_EXECUTED
        assert plain.now == HealthStatus.DEGRADED
        seen.append((await plain.call("pid")).stdout)
        assert plain.now == HealthStatus.HEALTHY
    os.kill(int(seen[-1]), signal.SIGKILL)
    seen.append((await _until_ok(plain)).stdout)
    assert len(set(seen)) == 4


async def _until_ok(upstream: Upstream) -> ToolOutput:
    output = await upstream.call("pid")
    return output if output.ok else await upstream.call("pid")


@pytest.mark.requirement("002/mcp/server-fails")
async def test_a_server_that_hangs_is_given_up_and_its_session_with_it(
    plain: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = (await plain.call("pid")).stdout
    monkeypatch.setattr(mcp_session, "CALL_S", 0.2)
    hung = await plain.call("wait")
    assert not hung.ok
    assert hung.outcome is Outcome.MAY_HAVE_EXECUTED
    monkeypatch.setattr(mcp_session, "CALL_S", 60.0)
    assert (await plain.call("pid")).stdout != first


@pytest.mark.requirement("002/mcp/server-fails")
async def test_what_is_no_mcp_server_is_unavailable_and_in_the_end_offline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(mcp_session, "OPEN_S", 0.3)
    for server in (
        GARBAGE,
        Server(command="/nonexistent/program", isolation=Isolation.NONE),
        Server(
            command=sys.executable, args=("-c", "raise SystemExit(1)"), isolation=Isolation.NONE
        ),
        Server(url="http://127.0.0.1:9/mcp"),
    ):
        upstream = Upstream(server)
        for _ in range(3):
            with pytest.raises(Unavailable):
                await upstream.sessions.tools("mcp.test")
        assert upstream.health[-1] is HealthStatus.OFFLINE
        output = await upstream.call("echo", text="x")
        assert output.outcome is Outcome.NOT_STARTED
        await upstream.sessions.close()


async def test_a_large_answer_is_cut_and_one_of_fifty_megabytes_ends_the_session(
    plain: Upstream,
) -> None:
    output = await plain.call("big", megabytes=2)
    assert output.ok
    assert output.truncated
    assert len(output.stdout) == MAX_TEXT
    assert isinstance(output.data, dict)
    assert output.data["truncated"] is True
    flood = await plain.call("big", megabytes=50)
    assert not flood.ok
    assert flood.outcome is Outcome.MAY_HAVE_EXECUTED
    assert (await plain.call("say")).stdout == "said"


@pytest.mark.requirement("002/capabilities/playwright")
@pytest.mark.parametrize("name", ["playwright", "mcp.playwright"])
def test_servers_come_from_the_file_that_mcp_clients_share(name: str, tmp_path: Path) -> None:
    path = tmp_path / "mcp.json"
    path.write_text(f'{{"mcpServers": {{"{name}": {{"command": "npx", "args": ["x"]}}}}}}')
    (capability,) = read_servers(path)
    assert (capability.capability_id, capability.scope) == (PLAYWRIGHT_CAPABILITY, PLAYWRIGHT_SCOPE)
    assert (PLAYWRIGHT_CAPABILITY, PLAYWRIGHT_SCOPE) == ("mcp.playwright", "browser")
    assert capability.server == Server(command="npx", args=("x",))
    for wrong in (
        "{",
        "{}",
        '{"mcpServers": {"x": {}}}',
        '{"mcpServers": {"x": {"command": 7}}}',
        '{"mcpServers": {"x": {"url": "nonsense"}}}',
        '{"mcpServers": {"browser": {"command": "npx"}}}',
        '{"mcpServers": {"x": {"command": "npx"}, "mcp.x": {"command": "npx"}}}',
    ):
        path.write_text(wrong)
        with pytest.raises(Misconfigured):
            read_servers(path)


def connections_to(port: int) -> int:
    """How many sockets of this machine are connected to that port, as the system tells."""
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    return sum(f":{port:04X}" in line.split()[2] and line.split()[3] == "01" for line in lines)


@pytest.mark.parametrize("headers", [(), (("X-Key", "k"),)])
async def test_a_session_over_http_leaves_no_connection_behind(
    http_server: Server, headers: tuple[tuple[str, str], ...]
) -> None:
    upstream = Upstream(replace(http_server, headers=headers))
    assert (await upstream.call("echo", text="x")).ok
    port = int(http_server.url.split(":")[2].split("/")[0])
    assert connections_to(port) > 0
    await upstream.sessions.close()
    async with asyncio.timeout(20):
        while connections_to(port):
            await asyncio.sleep(0.05)
