"""MCP servers that a test names, without any server."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from toolgate.core.errors import Unavailable
from toolgate.core.tools import Tool


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
