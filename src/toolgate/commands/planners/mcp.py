"""`/command/mcp`: an action of a capability is a tool of its MCP server.

The gate knows it as `<capabilityId>.<tool>`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
from msgspec import UnsetType

from toolgate.access.devices import Identity, session_of
from toolgate.access.refusals import Forbidden
from toolgate.commands.answers import Code, NotImplementedHere, Problem
from toolgate.commands.plans import (
    Done,
    Plan,
    call_id,
    caller_of,
    code_of,
    granted_level,
    one_answer,
)
from toolgate.contracts import gateway_v1 as wire
from toolgate.contracts.wire import given
from toolgate.core.enums import CommandKind, HealthStatus, Level, Outcome
from toolgate.core.errors import Unavailable
from toolgate.core.tools import JsonValue, Tool, ToolOutput, ToolRequest
from toolgate.http.bodies import check_id
from toolgate.tools.capabilities import Capability
from toolgate.tools.limits import CapabilityLimits
from toolgate.tools.upstream.catalogue import Upstreams


@dataclass(frozen=True, slots=True)
class OwnServer:
    """A server of ours that needs no session: its tools are the gate's, under a prefix."""

    prefix: str
    tools: Sequence[Tool]  # as the gate names them


@dataclass(frozen=True, slots=True)
class McpPlanner:
    limits: CapabilityLimits
    upstreams: Upstreams
    own: Mapping[str, OwnServer] = field(default_factory=dict)

    def decode(self, raw: bytes) -> wire.McpCommand:
        return wire.decode_mcp_command(raw)

    async def plan(self, command: wire.McpCommand, identity: Identity, command_id: str) -> Plan:
        payload = command.payload
        capability_id = check_id("payload.capabilityId", payload.capability_id)
        if capability_id in wire.ACTION_LEVELS:
            raise Forbidden(f"{capability_id} is a system action: see /command/system")
        # Before the server is asked for anything: an expired or offline one is not spoken to.
        self._capability(capability_id)
        self.limits.check_open(capability_id)
        if identity.scope.refusal(CommandKind.MCP, Level.READ):
            raise Forbidden(identity.scope.refusal(CommandKind.MCP, Level.READ))
        session = given(payload.session_id, given(command.session_key, ""))
        tool, name = await self._tool(
            capability_id, payload.action, session_of(identity.name, session) if session else ""
        )
        capability = self._capability(capability_id)  # its server may have taken long
        level = Level.SIGN if capability.level is Level.SIGN else tool.level
        args = _args(payload)

        caller = caller_of(
            identity, level=granted_level(identity, CommandKind.MCP, level), session=session
        )

        def done(output: ToolOutput) -> Done:
            degraded = capability.status is HealthStatus.DEGRADED
            return _done(capability_id, payload.action, output, degraded=degraded)

        return Plan(
            level=level,
            name=name,
            capabilities=(capability_id,),
            kinds=(CommandKind.MCP,),
            requests=(ToolRequest(call_id(command_id, 0), name, args, caller),),
            done=one_answer(done),
        )

    def _capability(self, capability_id: str) -> Capability:
        capability = self.limits.capabilities.get(capability_id)
        if capability is None:
            raise Forbidden(f"there is no capability {capability_id[:80]}")
        return capability

    async def _tool(self, capability_id: str, action: str, session: str) -> tuple[Tool, str]:
        """The tool as its server has it, and its name at the gate."""
        if (ours := self.own.get(capability_id)) is not None:
            name = f"{ours.prefix}.{action}"
            for tool in ours.tools:
                if tool.name == name:
                    return tool, name
            raise Forbidden(f"{capability_id} has no action {action[:80]}")
        if not self.upstreams.knows(capability_id):
            raise NotImplementedHere(f"no MCP server is configured for {capability_id}")
        try:
            named = await self.upstreams.tools(capability_id, session=session)
        except Unavailable as silent:
            raise Problem(Code.UPSTREAM, str(silent), outcome=Outcome.NOT_STARTED) from silent
        # Playwright's server says `browser_click` for what the seed calls `click`.
        found = named.get(action) or named.get(f"browser_{action}")
        if found is None:
            raise Forbidden(f"{capability_id} has no action {action[:80]}")
        return found, f"{capability_id}.{found.name}"


def _args(payload: wire.McpPayload) -> dict[str, JsonValue]:
    args: dict[str, JsonValue] = dict(payload.args)
    if not isinstance(payload.context, UnsetType):
        args["_meta"] = msgspec.to_builtins(payload.context)
    return args


def _done(capability_id: str, action: str, output: ToolOutput, *, degraded: bool) -> Done:
    marked: dict[str, JsonValue] = {"capabilityId": capability_id, "action": action}
    if degraded:
        marked["degraded"] = True
    if isinstance(output.data, dict) and "content" in output.data:
        return Done({**marked, **output.data}, succeeded=output.ok)
    if output.ok:
        text: JsonValue = {"type": "text", "text": output.stdout}
        structured = {} if output.data is None else {"structuredContent": output.data}
        return Done({**marked, "content": [text], **structured})
    problem = Problem(
        code_of(output.data),
        output.stderr or f"{capability_id} failed",
        data=marked,
        outcome=output.outcome,
    )
    return Done(marked, problem)
