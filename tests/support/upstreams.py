"""MCP servers for tests: named ones without a program, and real ones without an installation."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.audit import SilentAudit
from tests.support.seal import PlainSeal
from toolgate.core.clock import Clock
from toolgate.core.enums import Level
from toolgate.core.errors import Unavailable
from toolgate.core.system_clock import SystemClock
from toolgate.core.tools import Tool
from toolgate.journal.journal import Journal
from toolgate.journal.local_bus import LocalBus
from toolgate.sandbox.bwrap import BwrapSandbox
from toolgate.sandbox.egress import SandboxEgress
from toolgate.sandbox.egress_hosts import allows
from toolgate.sandbox.programs import ProgramSandbox
from toolgate.testing.journal import MemoryJournal
from toolgate.tools.upstream.pins import Pins
from toolgate.tools.upstream.programs import Programs
from toolgate.tools.upstream.servers import FindServer, McpUpstreams, Report
from toolgate.web.guard import Guard


def programs_in(
    workspaces: Path, *, protected: Sequence[Path] = (), guard: Guard | None = None
) -> Programs:
    """Programs in the sandbox of this machine; unused where a server's isolation is `none`."""

    def egress(_key: object, hosts: Sequence[str]) -> SandboxEgress:
        return SandboxEgress(guard or Guard(), grants=lambda _: allows(hosts))

    sandbox = ProgramSandbox(BwrapSandbox())
    return Programs(sandbox, egress, workspaces, protected)


def memory_pins(clock: Clock | None = None, journal: Journal | None = None) -> Pins:
    clock = clock or SystemClock()
    journal = journal or MemoryJournal(clock=clock, bus=LocalBus())
    return Pins(journal, clock, PlainSeal(), SilentAudit())


def mcp_upstreams(
    find: FindServer,
    *,
    report: Report,
    level: Level = Level.WRITE,
    programs: Programs | None = None,
    pins: Pins | None = None,
) -> McpUpstreams:
    """Servers that are registered with this level, pinned in memory."""
    return McpUpstreams(
        find,
        clock=SystemClock(),
        report=report,
        level=lambda _capability_id, _tool: level,
        programs=programs or programs_in(Path("/nonexistent")),
        pins=pins or memory_pins(),
    )


@dataclass(slots=True)
class FakeUpstreams:
    offered: dict[str, Sequence[Tool]] = field(default_factory=dict)
    silent: set[str] = field(default_factory=set)

    def knows(self, capability_id: str) -> bool:
        return capability_id in self.offered

    def capability_of(self, tool: str) -> str:
        return tool.rpartition(".")[0] if self.knows(tool.rpartition(".")[0]) else ""

    async def tools(self, capability_id: str, *, session: str = "") -> Mapping[str, Tool]:
        if capability_id in self.silent:
            raise Unavailable(f"{capability_id} does not answer")
        return {tool.name: tool for tool in self.offered[capability_id]}
