"""Translation between the wire's types and the domain's."""

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from toolgate.access.devices import Device, Pending, Scope
from toolgate.contracts import gateway_v1 as wire
from toolgate.contracts.wire import given
from toolgate.core.enums import Isolation, Level
from toolgate.core.errors import Invalid
from toolgate.core.rates import Rate
from toolgate.runs.records import RunLine
from toolgate.tools.capabilities import Capability, Mount, Server
from toolgate.tools.upstream.pins import Pin


def scope_in(scope: wire.Scope) -> Scope:
    return Scope(
        scope.tools,
        system=scope.system,
        mcp=scope.mcp,
        agent=scope.agent,
        approve=scope.approve,
    )


def scope_out(scope: Scope) -> wire.Scope:
    return wire.Scope(
        tools=scope.tools,
        system=scope.system,
        mcp=scope.mcp,
        agent=scope.agent,
        approve=scope.approve,
    )


def device_out(device: Device, *, last_seen: int | None) -> wire.Device:
    return wire.Device(
        device_id=device.device_id,
        scope=scope_out(device.scope),
        paired_at=device.paired_at,
        last_seen_at=last_seen,
    )


def pending_out(pending: Pending) -> wire.PendingDevice:
    return wire.PendingDevice(
        device_id=pending.device_id,
        code=pending.code,
        requested_at=pending.requested_at,
        expires_at=pending.expires_at,
        ip=pending.ip,
        user_agent=pending.user_agent,
    )


def capability_in(wanted: wire.CapabilityRegister, *, now: int) -> Capability:
    return Capability(
        capability_id=wanted.capability_id,
        scope=wanted.scope,
        level=wanted.level,
        updated_at=now,
        rate=_rate(wanted.rate_limit),
        version=wanted.version,
        owner=wanted.owner,
        expires_at=wanted.expires_at,
        status=wanted.status,
        server=None if isinstance(wanted.server, UnsetType) else server_in(wanted.server),
    )


def server_in(server: wire.McpServer) -> Server:
    if not given(server.command, "") and not given(server.url, ""):
        raise Invalid("an MCP server has a command or a URL", field="server")
    return Server(
        command="" if isinstance(server.command, UnsetType) else server.command,
        args=() if isinstance(server.args, UnsetType) else tuple(server.args),
        env=() if isinstance(server.env, UnsetType) else tuple(server.env.items()),
        url="" if isinstance(server.url, UnsetType) else server.url,
        headers=() if isinstance(server.headers, UnsetType) else tuple(server.headers.items()),
        mounts=tuple(Mount.parse(text) for text in given(server.mounts, [])),
        egress=tuple(given(server.egress, [])),
        isolation=given(server.isolation, Isolation.SANDBOX),
    )


def capability_out(
    capability: Capability, *, registered: Capability | None = None
) -> wire.Capability:
    """A capability as it is shown; for the operator as `registered`, too, but for its secrets."""
    rate, server = capability.rate, capability.server
    shown = wire.Capability(
        capability_id=capability.capability_id,
        scope=capability.scope,
        level=capability.level,
        rate_limit=None
        if rate is None
        else wire.RateLimit(limit=rate.limit, window_ms=rate.window_ms),
        version=capability.version,
        owner=capability.owner,
        expires_at=capability.expires_at,
        status=capability.status,
        updated_at=capability.updated_at,
        isolation=capability.isolation or UNSET,
        reason=capability.reason or UNSET,
    )
    if registered is None:
        return shown
    shown = replace(shown, registered_status=registered.status)
    if server is None:
        return shown
    return replace(
        shown,
        server=server.url or " ".join((server.command, *server.args)),
        mounts=[str(mount) for mount in server.mounts],
        egress=list(server.egress),
    )


def run_summary(line: RunLine) -> wire.RunSummary:
    return wire.RunSummary(
        run_id=line.run_id,
        session_id=line.session_id,
        agent_id=line.agent_id,
        status=line.status,
        created_at=line.started_at,
        updated_at=line.ended_at or line.started_at,
        user_id=line.user_id,
        preview=line.preview,
        code=line.code,
        message=line.message,
        total_tokens=line.total_tokens,
        ended_at=line.ended_at or UNSET,
    )


def definition_out(pin: Pin, *, level: Level, whole: bool) -> wire.ToolDefinition:
    shown = wire.ToolDefinition(
        name=pin.name,
        capability_id=pin.capability_id,
        tool=pin.tool,
        level=level,
        status="pinned" if pin.changed is None else "changed",
        digest=pin.digest,
        pinned_at=pin.at,
        accepted_by=pin.accepted_by,
    )
    if pin.changed is not None:
        shown = replace(shown, changed_digest=pin.changed_digest)
    if whole:
        shown = replace(shown, definition=pin.definition, changed=pin.changed or UNSET)
    return shown


def _rate(limit: int | wire.RateLimit | None) -> Rate | None:
    match limit:
        case None:
            return None
        case int():
            return Rate(limit)
        case _:
            return Rate(limit.limit, limit.window_ms)
