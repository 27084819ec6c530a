"""The doors of a Toolgate, read from what is really there: routes, methods, messages, commands."""

from collections.abc import Iterator
from typing import Any, get_args

import click
import msgspec

from tests.architecture.ways_in import Toolgate, mcp_client
from toolgate.cli.main import main
from toolgate.contracts import ingress_v1
from toolgate.schedules.file import CronEntry
from toolgate.surfaces.gateway.server import GatewayApp

LISTENERS = {"ingress_ws", "ingress_internal", "orchestrator", "gateway", "mcp", "console"}

NOT_A_CALL = {  # why: the doors by which no tool can be called
    "Shows what is there": """
        GET /health
        GET /ready
        GET /metrics
        GET /status
        GET /runs
        GET /runs/{runId}
        GET /runs/{runId}/timeline
        GET /tasks
        GET /tasks/templates
        GET /tasks/{runId}
        GET /tasks/artifacts/{artifactId}
        GET /evidence
        GET /evidence/{index}/proof
        POST /evidence/verify
        GET /approvals
        GET /approvals/{approvalId}
        POST /approvals/{approvalId}/reveal
        GET /audit/query
        GET /capabilities
        GET /definitions
        GET /command/{requestId}
        GET /docs
        GET /events/poll
        GET /events/stream
        GET /execution-targets
        GET /execution-targets/{targetId}
        GET /openapi.json
        GET /pairing/pending
        GET /policy
        GET /tokens
        GET /artifact/get
        POST /episode/search
        GET /internal/agents
        POST /internal/approvals/{approval_id}/reveal
        GET /internal/runs/{run_id}
        GET /internal/runs/{run_id}/events/stream
        GET /internal/sessions/{session_id}/status
        GET /
        GET /console
        GET /console/
        GET /console/{path:path}
        GET /console/static/{path:path}
        GET /console/api/{path:path}
        GET /console/api/approvals
        GET /console/api/approvals/{id}
        POST /console/api/approvals/{id}/reveal
        GET /console/api/live
        GET /console/api/me
        GET /console/api/overview
        GET /console/api/waiting
        /v2/ws health
        /v2/ws status
        /v2/ws runs.list
        /v2/ws runs.get
        /v2/ws runs.timeline
        /v2/ws approvals.list
        /v2/ws approvals.get
        /v2/ws approvals.reveal
        /v2/ws audit.query
        /v2/ws capabilities.list
        /v2/ws definitions.list
        /v2/ws command.get
        /v2/ws events.poll
        /v2/ws executionTargets.get
        /v2/ws executionTargets.list
        /v2/ws pairing.pending
        /v2/ws policy.get
        mcp ping
        mcp server/discover
        mcp tools/list
        mcp resources/list
        mcp resources/templates/list
        mcp resources/read
        toolgate approvals list
        toolgate approvals show
        toolgate runs list
        toolgate runs show
        toolgate artifact get
        toolgate audit query
        toolgate capabilities list
        toolgate mcp list
        toolgate mcp show
        toolgate completion
        toolgate devices
        toolgate doctor
        toolgate testkit browser
        toolgate testkit client
        toolgate testkit executor
        toolgate testkit gateway
        toolgate testkit ingress
        toolgate testkit orchestrator
        toolgate testkit runner
        toolgate events
        toolgate evidence export
        toolgate evidence show
        toolgate evidence verify
        toolgate policy schema
        toolgate restore accept
        toolgate policy show
        toolgate settings
        toolgate targets list
        toolgate task get
        toolgate task list
        toolgate task templates
        toolgate token list
        toolgate token show
    """,
    "Changes who may call what; a call that follows is decided": """
        POST /pairing/approve
        POST /pairing/reject
        POST /pairing/revoke
        POST /tokens
        DELETE /tokens/{name}
        POST /capabilities/register
        DELETE /capabilities/{capabilityId}
        POST /definitions/accept
        PUT /execution-targets/{targetId}
        DELETE /execution-targets/{targetId}
        PUT /policy
        POST /internal/agents
        DELETE /internal/agents/{agent_id:path}
        POST /console/api/sign-in
        POST /console/api/sign-out
        POST /console/api/links
        /v2/ws capabilities.register
        /v2/ws capabilities.remove
        /v2/ws definitions.accept
        /v2/ws executionTargets.put
        /v2/ws executionTargets.delete
        /v2/ws pairing.approve
        /v2/ws pairing.reject
        /v2/ws pairing.revoke
        /v2/ws policy.put
        toolgate capabilities register
        toolgate capabilities remove
        toolgate mcp accept
        toolgate console
        toolgate pair
        toolgate targets set
        toolgate targets remove
        toolgate token make
        toolgate token revoke
    """,
    "Decides, and runs nothing": """
        POST /policy/check
        POST /policy/simulate
        /v2/ws policy.check
        /v2/ws policy.simulate
        toolgate policy check
        toolgate policy explain
        toolgate policy simulate
        toolgate policy test
    """,
    "Stores a file": """
        POST /artifact/put
        toolgate artifact put
    """,
    "Follows, answers or stops what was allowed to begin": """
        /ws tool_result
        /ws cancel_run
        POST /internal/tool_calls/{tool_call_id}/submit
        POST /internal/runs/{run_id}/cancel
        POST /runs/{runId}/cancel
        POST /tasks/{runId}/cancel
        /v2/ws runs.cancel
        toolgate approvals reject
        toolgate runs cancel
        mcp tasks/get
        mcp tasks/list
        mcp tasks/result
        mcp tasks/update
        mcp tasks/cancel
    """,
    "Delivers an event of an orchestrator, which has decided": """
        POST /internal/send
    """,
    "The far end of an engine: the Toolgate that calls it has decided": """
        toolgate runner
    """,
    "Starts listeners whose doors are listed here": """
        toolgate up
        toolgate demo
        toolgate ingress
        toolgate orchestrator
    """,
    "Part of an entry, not an action": """
        schedule id
        schedule cron
        schedule args
        schedule message
    """,
}


def not_a_call() -> list[str]:
    return [line.strip() for doors in NOT_A_CALL.values() for line in doors.split("\n")[1:-1]]


async def doors_of(gate: Toolgate) -> set[str]:
    """The name of each door: `POST /tool/run`, `/ws hello`, `mcp tools/list`, `toolgate up`."""
    async with mcp_client(gate, "http") as client:  # which also opens the MCP server
        tools = {f"mcp tools/call {tool.name}" for tool in (await client.list_tools()).tools}
    found = {*_routes(gate), *_mcp_methods(gate), *tools}
    messages = (msgspec.inspect.type_info(one) for one in get_args(ingress_v1.AnyClientMessage))
    found |= {f"/ws {getattr(message, 'tag')}" for message in messages}  # noqa: B009
    found |= {f"schedule {name}" for name in CronEntry.__struct_fields__}
    return found | {f"toolgate {name}" for name in _commands(main, "")}


def _routes(gate: Toolgate) -> Iterator[str]:
    for app in gate.apps:
        for route in app.routes:
            methods = set(getattr(route, "methods", None) or {"ANY"}) - {"HEAD"}
            yield from (f"{method} {route.path}" for method in methods)
        if isinstance(app, GatewayApp):
            for one in app._gateway.table.routes:
                yield one.key
                if one.v2:
                    yield f"/v2/ws {one.v2}"


def _mcp_methods(gate: Toolgate) -> Iterator[str]:
    for app in gate.apps:
        for route in app.routes:
            if route.path == "/mcp":
                guarded: Any = route.endpoint
                server = guarded._app._open.result()._server
                yield from (f"mcp {method}" for method in server._request_handlers)


def _commands(command: click.Command, name: str) -> Iterator[str]:
    """Each command that does something; one with switches of which one is needed, by switch."""
    if isinstance(command, click.Group):
        context = click.Context(command, info_name=name)
        for child in command.list_commands(context):
            found = command.get_command(context, child)
            assert found is not None
            yield from _commands(found, f"{name} {child}".strip())
        return
    options = [one for one in command.params if isinstance(one, click.Option)]
    switches = [one.opts[0] for one in options if isinstance(one.flag_value, str)]
    yield from (f"{name} {switch}".strip() for switch in switches or [""])
