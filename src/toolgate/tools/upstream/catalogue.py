"""MCP servers that others run: what they offer. Calling them is an engine's business."""

from collections.abc import Mapping
from typing import Protocol

from toolgate.core.tools import Tool


class Upstreams(Protocol):
    def knows(self, capability_id: str) -> bool:
        """True if the capability has a server."""
        ...

    def capability_of(self, tool: str) -> str:
        """Whose tool this is, by its name in the pipeline; empty where it is no server's."""
        ...

    async def tools(self, capability_id: str, *, session: str = "") -> Mapping[str, Tool]:
        """The tools of the server, by its own names; raises Unavailable if it does not answer.

        Where it has to be asked, it is asked in this session (empty: the one that all share).
        """
        ...
