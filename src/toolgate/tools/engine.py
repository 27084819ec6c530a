"""What really runs a tool, once the policy has let it through."""

from collections.abc import Callable
from typing import Protocol

from toolgate.core.tools import ToolOutput, ToolRequest

Update = Callable[[str], None]  # a piece of output as it comes


def no_update(_: str) -> None:
    """For callers that only want the end."""


class Engine(Protocol):
    @property
    def ref(self) -> str:
        """What the evidence calls this engine, with its version."""
        ...

    async def run(self, request: ToolRequest, *, update: Update = no_update) -> ToolOutput:
        """Run the tool. A tool that fails is an output; raises Unavailable where the engine did.

        Cancelling the task stops the tool.
        """
        ...
