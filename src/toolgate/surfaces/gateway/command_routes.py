"""The routes of commands: posting one of each kind, and asking what became of it."""

from collections.abc import Sequence
from dataclasses import dataclass

from toolgate.access.refusals import InvalidToken
from toolgate.access.registry import Registry
from toolgate.commands.answers import Result
from toolgate.commands.states import States
from toolgate.contracts import gateway_v1 as wire
from toolgate.core.concurrency import Stopped, unless
from toolgate.core.enums import CommandKind
from toolgate.http.bodies import check_id
from toolgate.surfaces.gateway.routes import Access, Call, Parameter, Route, elsewhere, seconds


@dataclass(frozen=True, slots=True)
class CommandRoutes:
    states: States
    registry: Registry

    def routes(self) -> Sequence[Route]:
        return (
            Route(
                "POST",
                "/command/agent",
                Access.CALLER,
                "Have an agent answer a message, waiting for it or not.",
                elsewhere,
                None,
                v2="command.agent",
                takes=wire.AgentCommand,
                command=CommandKind.AGENT,
            ),
            Route(
                "POST",
                "/command/tool",
                Access.CALLER,
                "Call tools.",
                elsewhere,
                None,
                v2="command.tool",
                takes=wire.ToolCommand,
                command=CommandKind.TOOL,
            ),
            Route(
                "POST",
                "/command/system",
                Access.CALLER,
                "Run a command, fetch from the web, search it.",
                elsewhere,
                None,
                v2="command.system",
                takes=wire.SystemCommand,
                command=CommandKind.SYSTEM,
            ),
            Route(
                "POST",
                "/command/mcp",
                Access.CALLER,
                "Call an action of a capability's MCP server.",
                elsewhere,
                None,
                v2="command.mcp",
                takes=wire.McpCommand,
                command=CommandKind.MCP,
            ),
            Route(
                "GET",
                "/command/{requestId}",
                Access.CALLER,
                "Where a command of this device stands, and in the end its answer.",
                self._state,
                wire.CommandState,
                v2="command.get",
                query=(
                    Parameter(
                        "wait", "seconds to wait for its end", {"type": "number", "minimum": 0}
                    ),
                ),
                statuses=(200, 404),
            ),
        )

    async def _state(self, call: Call) -> Result:
        request_id = check_id("requestId", call.path["requestId"])
        asking = self.states.state(call.caller, request_id, wait=seconds(call.query))
        with self.registry.watch(call.caller.name) as cut:
            try:
                state = await unless(cut.wait(), asking)
            except Stopped:
                raise InvalidToken("the token was revoked") from None
        return Result(state)
