"""The tools of registered MCP servers: their levels, and what agents are offered."""

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from tests.support.audit import SilentAudit
from tests.support.seal import PlainSeal
from tests.support.upstreams import memory_pins, programs_in
from tests.tasks.runtimes import memory_journal, until
from toolgate.core.enums import Isolation, Level
from toolgate.core.system_clock import SystemClock
from toolgate.core.tools import Caller, ToolRequest
from toolgate.tools.capabilities import Capability, Server
from toolgate.tools.capability_registry import Capabilities
from toolgate.tools.routing import Routing
from toolgate.tools.upstream.registered import RegisteredServers

PROGRAM = Path(__file__).parent / "servers" / "server.py"
SERVER = Server(command=sys.executable, args=(str(PROGRAM), "stdio"), isolation=Isolation.NONE)


class Registered:
    """A server that nobody has called yet, checked as in an installation."""

    def __init__(self) -> None:
        clock = SystemClock()
        self.capabilities = Capabilities(memory_journal(clock), clock, PlainSeal(), SilentAudit())
        self.upstreams = RegisteredServers(
            clock,
            self.capabilities,
            programs=programs_in(Path("/nonexistent")),
            pins=memory_pins(clock),
        )
        self.routing = Routing([self.upstreams.route()])

    async def register(
        self,
        level: Level = Level.WRITE,
        *,
        name: str = "mcp.test",
        expires_at: int | None = None,
    ) -> None:
        server = SERVER if name == "mcp.test" else None
        terms = Capability(name, "mcp", level, 0, expires_at=expires_at, server=server)
        await self.capabilities.register(terms, by="operator")

    def offered(self) -> dict[str, Level]:
        return {tool.name: tool.level for tool in self.routing.tools(Caller())}


@pytest.fixture
async def registered() -> AsyncIterator[Registered]:
    one = Registered()
    await one.register()
    watching = asyncio.create_task(one.upstreams.watch())
    yield one
    watching.cancel()
    await asyncio.wait({watching})
    await one.upstreams.sessions.close()


@pytest.mark.requirement("002/mcp/level-registered")
async def test_a_level_is_the_registered_one_and_only_raised_by_what_the_server_says(
    registered: Registered,
) -> None:
    await until(registered.offered, within_s=60)
    assert set(registered.offered().values()) == {Level.WRITE}  # echo says that it only reads
    await registered.register(Level.READ)
    offered = registered.offered()
    assert offered["mcp.test.echo"] is Level.READ
    assert offered["mcp.test.write"] is Level.READ  # it says nothing
    assert offered["mcp.test.destroy"] is Level.WRITE  # destructiveHint: true
    assert offered["mcp.test.change"] is Level.WRITE  # readOnlyHint: false
    await registered.register(Level.SIGN)
    assert set(registered.offered().values()) == {Level.SIGN}
    await registered.register(Level.READ, name="mcp.test.echo")  # one tool of it
    assert registered.offered()["mcp.test.echo"] is Level.READ
    assert registered.offered()["mcp.test.write"] is Level.SIGN


async def test_agents_are_offered_the_tools_of_a_server_that_nobody_has_called_yet(
    registered: Registered,
) -> None:
    await until(registered.offered, within_s=60)
    assert {"mcp.test.echo", "mcp.test.write"} <= registered.offered().keys()
    asked = ToolRequest("r", "mcp.test.echo", {})
    pin = registered.upstreams.pins.get("mcp.test", "echo")
    assert pin is not None
    assert registered.routing.definition_of(asked) == pin.digest
    assert registered.routing.definition_of(msgspec.structs.replace(asked, tool="shell")) == ""
    await registered.register(expires_at=1)
    assert registered.offered() == {}
