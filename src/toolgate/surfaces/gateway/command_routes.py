"""The routes of commands: posting one of each kind, and asking what became of it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from toolgate.contracts import gateway_v1 as wire
from toolgate.domain.devices import Kind
from toolgate.surfaces.gateway.answers import Result
from toolgate.surfaces.gateway.bodies import check_id
from toolgate.surfaces.gateway.command_states import States
from toolgate.surfaces.gateway.routes import Access, Call, Parameter, Route, seconds

MODELS: Final[dict[Kind, Any]] = {
    Kind.AGENT: wire.AgentCommand,
    Kind.TOOL: wire.ToolCommand,
    Kind.SYSTEM: wire.SystemCommand,
    Kind.MCP: wire.McpCommand,
}
SUMMARIES: Final = {
    Kind.AGENT: "Have an agent answer a message, waiting for it or not.",
    Kind.TOOL: "Call tools.",
    Kind.SYSTEM: "Run a command, fetch from the web, search it.",
    Kind.MCP: "Call an action of a capability's MCP server.",
}


@dataclass(frozen=True, slots=True)
class CommandRoutes:
    states: States

    def routes(self) -> Sequence[Route]:
        posts = [
            Route(
                "POST",
                f"/command/{kind}",
                Access.CALLER,
                SUMMARIES[kind],
                _posted,
                None,
                v2=f"command.{kind}",
                takes=MODELS[kind],
                command=kind,
            )
            for kind in Kind
        ]
        state = Route(
            "GET",
            "/command/{requestId}",
            Access.CALLER,
            "Where a command of this device stands, and in the end its answer.",
            self._state,
            wire.CommandState,
            v2="command.get",
            query=(
                Parameter("wait", "seconds to wait for its end", {"type": "number", "minimum": 0}),
            ),
            statuses=(200, 404),
        )
        return (*posts, state)

    async def _state(self, call: Call) -> Result:
        request_id = check_id("requestId", call.path["requestId"])
        state = await self.states.state(call.caller, request_id, wait=seconds(call.query))
        return Result(state)


async def _posted(_: Call) -> Result:  # pragma: no cover - commands are posted as they came in
    raise AssertionError("a command goes to Commands.post")
