"""The tools of registered MCP servers, as agents are offered them."""

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.audit import SilentAudit
from tests.support.seal import PlainSeal
from tests.tasks.runtimes import memory_journal, until
from toolgate.core.enums import Level
from toolgate.core.system_clock import SystemClock
from toolgate.core.tools import Caller
from toolgate.tools.capabilities import Capability, Server
from toolgate.tools.capability_registry import Capabilities
from toolgate.tools.routing import Routing
from toolgate.tools.upstream.registered import RegisteredServers

PROGRAM = Path(__file__).parent / "servers" / "server.py"
SERVER = Server(command=sys.executable, args=(str(PROGRAM), "stdio"))


class Registered:
    """A server that nobody has called yet, looked after as in an installation."""

    def __init__(self) -> None:
        clock = SystemClock()
        self.capabilities = Capabilities(memory_journal(clock), clock, PlainSeal(), SilentAudit())
        self.upstreams = RegisteredServers(clock, self.capabilities)
        self._routing = Routing([self.upstreams.route()])

    async def register(self, level: Level = Level.WRITE, *, expires_at: int | None = None) -> None:
        terms = Capability("mcp.test", "mcp", level, 0, expires_at=expires_at, server=SERVER)
        await self.capabilities.register(terms, by="operator")

    def offered(self) -> dict[str, Level]:
        return {tool.name: tool.level for tool in self._routing.tools(Caller())}


@pytest.fixture
async def registered() -> AsyncIterator[Registered]:
    one = Registered()
    await one.register()
    watching = asyncio.create_task(one.upstreams.watch())
    yield one
    watching.cancel()
    await asyncio.wait({watching})
    await one.upstreams.sessions.close()


async def test_agents_are_offered_the_tools_of_a_server_that_nobody_has_called_yet(
    registered: Registered,
) -> None:
    await until(registered.offered, within_s=60)
    offered = registered.offered()
    assert (offered["mcp.test.echo"], offered["mcp.test.write"]) == (Level.READ, Level.WRITE)
    await registered.register(Level.SIGN)
    assert set(registered.offered().values()) == {Level.SIGN}
    await registered.register(expires_at=1)
    assert registered.offered() == {}
