"""The executor contract (seed 003) as a thing to call: this installation, or another over HTTP."""

from typing import Protocol

from toolgate.contracts.executor_v0 import (
    EpisodePage,
    EpisodeSearch,
    Health,
    RunToolRequest,
    RunToolResponse,
)


class Executor(Protocol):
    async def run_tool(self, request: RunToolRequest) -> RunToolResponse:
        """Run one tool call and leave evidence of it; a deny is an answer.

        Raises Invalid for a request that cannot be understood, Unavailable where the executor
        cannot be reached or does not answer as the contract says.
        """
        ...

    async def artifact(self, ref: str) -> bytes:
        """An artifact by its ref, as JSON; raises Invalid or NotFound."""
        ...

    async def episodes(self, search: EpisodeSearch) -> EpisodePage: ...

    async def health(self) -> Health: ...
