"""Seed 002, "OwliaBot Gateway 技术文档（v0.2）": the HTTP control plane and its WebSocket v2.

Only data, camelCase, times in Unix ms; execution targets and audit rows come from the runner
contract and keep its ISO 8601 text. What the routes do is in `surfaces/gateway/`.
"""

from enum import IntEnum, StrEnum
from typing import Annotated, Final, Generic, Literal, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from toolgate.contracts.wire import (
    CamelWire,
    Code,
    Count,
    Id,
    Int,
    IsoMs,
    Json,
    Positive,
    Text,
    UnixMs,
)
from toolgate.core.enums import Decision, HealthStatus, Isolation, Level, Outcome, TargetKind

DEFAULT_PORT: Final = 8787

HEADER_DEVICE_ID: Final = "X-Device-Id"
HEADER_DEVICE_TOKEN: Final = "X-Device-Token"  # noqa: S105 - a header's name
HEADER_GATEWAY_TOKEN: Final = "X-Gateway-Token"  # noqa: S105 - a header's name
HEADER_IDEMPOTENCY_KEY: Final = "Idempotency-Key"
HEADER_REQUEST_ID: Final = "X-Request-Id"
HEADER_AUTHORIZATION: Final = "Authorization"
HEADER_TRACEPARENT: Final = "traceparent"
HEADER_LAST_EVENT_ID: Final = "Last-Event-ID"
HEADER_IDEMPOTENT_REPLAYED: Final = "Idempotent-Replayed"
HEADER_RATE_LIMIT: Final = "X-RateLimit-Limit"
HEADER_RATE_REMAINING: Final = "X-RateLimit-Remaining"
HEADER_RATE_RESET: Final = "X-RateLimit-Reset"
HEADER_RETRY_AFTER: Final = "Retry-After"

HEADERS: Final = {
    HEADER_DEVICE_ID: "request: who the device is; required",
    HEADER_DEVICE_TOKEN: "request: the device's token, required once it is paired; "
    "answer: the new token, of /pairing/approve",
    HEADER_GATEWAY_TOKEN: "request: the token of the whole gateway, where one is configured",
    HEADER_IDEMPOTENCY_KEY: "request: required for what writes or signs",
    HEADER_REQUEST_ID: "request: the caller's own id; the same thing as requestId",
    HEADER_AUTHORIZATION: "request: Bearer with the operator's or a service's token",
    HEADER_TRACEPARENT: "request: W3C trace context, where trace.traceId is not given",
    HEADER_LAST_EVENT_ID: "request: where /events/stream goes on",
    HEADER_IDEMPOTENT_REPLAYED: "answer: true where it is the first answer, given again",
    HEADER_RATE_LIMIT: "answer: commands in a minute",
    HEADER_RATE_REMAINING: "answer: how many are left",
    HEADER_RATE_RESET: "answer: seconds until all are there again",
    HEADER_RETRY_AFTER: "answer with 429: seconds to wait, at least 1",
}

MAX_BODY_BYTES: Final = 1_000_000
IDEMPOTENCY_TTL_S: Final = 600
RATE_PER_MINUTE: Final = 60
MAX_RATE_WINDOW_MS: Final = 366 * 24 * 3600 * 1000
MAX_TOKEN_LIFE_MS: Final = 10 * 366 * 24 * 3600 * 1000
PENDING_TTL_S: Final = 600
EVENTS_KEPT_S: Final = 24 * 3600
MAX_WAIT_S: Final = 30
DEFAULT_EVENTS: Final = 100
MAX_EVENTS: Final = 1000
EXEC_TIMEOUT_S: Final = 60
EXEC_OUTPUT_BYTES: Final = 256 * 1024
FETCH_TIMEOUT_S: Final = 15
FETCH_BYTES: Final = 512 * 1024
DEFAULT_AUDIT_ROWS: Final = 50
MAX_AUDIT_ROWS: Final = 500
DEVICE_TOKEN_BYTES: Final = 32

LIMITS: Final = {
    "MAX_BODY_BYTES": "gateway spec: 413 over 1 MB",
    "IDEMPOTENCY_TTL_S": "seed 002 §5.1 (5 to 10 minutes), gateway spec: 600 s",
    "RATE_PER_MINUTE": "gateway spec: per device, by default",
    "MAX_RATE_WINDOW_MS": "ours: when the window of a capability's limit ends is a time",
    "MAX_TOKEN_LIFE_MS": "ours: when a named token expires is a time",
    "PENDING_TTL_S": "gateway spec: a pairing request that nobody approves is forgotten",
    "EVENTS_KEPT_S": "seed 002 §2.3: a cursor's life of 24 h",
    "MAX_WAIT_S": "gateway spec: the longest long poll",
    "DEFAULT_EVENTS": "ours: events in one poll where none is asked for",
    "MAX_EVENTS": "ours: events in one poll at most",
    "EXEC_TIMEOUT_S": "gateway spec: exec",
    "EXEC_OUTPUT_BYTES": "gateway spec: exec, per stream",
    "FETCH_TIMEOUT_S": "gateway spec: web.fetch",
    "FETCH_BYTES": "gateway spec: web.fetch",
    "DEFAULT_AUDIT_ROWS": "runner spec: audit.query",
    "MAX_AUDIT_ROWS": "runner spec: audit.query",
    "DEVICE_TOKEN_BYTES": "gateway spec: random bytes in a device's token",
}


class ErrorCode(StrEnum):
    AUTH_REQUIRED = "ERR_AUTH_REQUIRED"
    INVALID_TOKEN = "ERR_INVALID_TOKEN"  # noqa: S105 - a code
    PERMISSION_DENIED = "ERR_PERMISSION_DENIED"
    IDEMPOTENCY_CONFLICT = "ERR_IDEMPOTENCY_CONFLICT"
    RATE_LIMITED = "ERR_RATE_LIMITED"
    INVALID_REQUEST = "ERR_INVALID_REQUEST"
    NOT_IMPLEMENTED = "ERR_NOT_IMPLEMENTED"
    UPSTREAM = "ERR_UPSTREAM"
    UNAVAILABLE = "ERR_UNAVAILABLE"
    INTERNAL = "ERR_INTERNAL"


ERROR_CODES: Final = {
    ErrorCode.AUTH_REQUIRED: Code(
        "No device id, no token, or the device is not paired",
        "Send X-Device-Id and X-Device-Token; wait for the operator to approve the pairing",
        401,
    ),
    ErrorCode.INVALID_TOKEN: Code("The token is wrong or was revoked", "Pair again", 401),
    ErrorCode.PERMISSION_DENIED: Code(
        "The policy, the device's scope or the declared level does not allow it, there is no such tool"
        " or capability, or an approval has hidden characters (`data.reason`: `hidden_arguments`)",
        "Do not repeat it; ask the operator, who can reveal hidden characters",
        403,
    ),
    ErrorCode.IDEMPOTENCY_CONFLICT: Code(
        "The Idempotency-Key was used for another request", "Use a new key", 409
    ),
    ErrorCode.RATE_LIMITED: Code("Too many commands", "Wait for Retry-After seconds", 429),
    ErrorCode.INVALID_REQUEST: Code(
        "The request cannot be understood (404: no such route, 405: method, 410: cursor, 413: too "
        "large)",
        "Correct it; for a cursor, read GET /status and start anew",
        400,
    ),
    ErrorCode.NOT_IMPLEMENTED: Code(
        "This installation has nothing that does it", "Ask the operator to configure it", 501
    ),
    ErrorCode.UPSTREAM: Code(
        "A host, an MCP server or a runner did not answer as it should; `data.outcome` says whether "
        "it may have done something",
        "Correct the name, or try again later with a new key",
        502,
    ),
    ErrorCode.UNAVAILABLE: Code(
        "The gateway cannot write to its disk, or a part of it does not answer; `data.outcome` says "
        "whether something may have been done",
        "Try again with the same Idempotency-Key when /ready answers 200",
        503,
    ),
    ErrorCode.INTERNAL: Code(
        "The gateway itself failed", "Try again with the same Idempotency-Key", 500
    ),
}
INVALID_REQUEST_STATUSES: Final = frozenset({400, 404, 405, 410, 413})


class SystemAction(StrEnum):
    EXEC = "exec"
    WEB_FETCH = "web.fetch"
    WEB_SEARCH = "web.search"


ACTION_LEVELS: Final = {
    SystemAction.EXEC: Level.WRITE,
    SystemAction.WEB_FETCH: Level.READ,
    SystemAction.WEB_SEARCH: Level.READ,
}


class EventType(StrEnum):
    HEALTH = "health"
    HEARTBEAT = "heartbeat"
    CRON = "cron"
    AGENT = "agent"
    TOOL = "tool"
    MCP = "mcp"


class EventStatus(StrEnum):
    STARTED = "started"
    PENDING = "pending"
    RUNNING = "running"  # output of a tool that runs: `message`, with its time in `metadata.at`
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    REFUSED = "refused"


class CommandStatus(StrEnum):
    PENDING = "pending"  # waits for an approval
    RUNNING = "running"
    DONE = "done"  # its answer is there


class AgentMode(StrEnum):
    SYNC = "sync"
    ASYNC = "async"


STATUS_PATH: Final = "/status"

Payload = TypeVar("Payload")


class Actor(CamelWire):
    """The caller's own description of itself; the server does not use it to identify the caller."""

    id: str | UnsetType = UNSET
    role: str | UnsetType = UNSET


class Security(CamelWire):
    level: Level | UnsetType = UNSET
    scopes: list[str] | UnsetType = UNSET


class Trace(CamelWire):
    trace_id: str | UnsetType = UNSET
    span_id: str | UnsetType = UNSET


class Command(CamelWire, Generic[Payload]):
    payload: Payload
    request_id: Id | UnsetType = UNSET
    actor: Actor | UnsetType = UNSET
    session_key: str | UnsetType = UNSET
    route: Json | UnsetType = UNSET
    idempotency_key: Id | UnsetType = UNSET
    security: Security | UnsetType = UNSET
    trace: Trace | UnsetType = UNSET


class Message(CamelWire):
    role: str
    content: str


class AgentPayload(CamelWire):
    agent_id: Id
    message: Message | str
    mode: AgentMode = AgentMode.SYNC
    session_id: str | UnsetType = UNSET


class ToolCall(CamelWire):
    id: Id
    name: Id
    arguments: dict[str, Json]


class ToolPayload(CamelWire):
    """Either several `toolCalls`, or one `name` with `args`."""

    tool_calls: Annotated[list[ToolCall], msgspec.Meta(min_length=1)] | UnsetType = UNSET
    name: Id | UnsetType = UNSET
    args: dict[str, Json] | UnsetType = UNSET

    def __post_init__(self) -> None:
        if isinstance(self.tool_calls, UnsetType) == isinstance(self.name, UnsetType):
            raise ValueError("a tool command has either `toolCalls` or `name`")


class SystemPayload(CamelWire):
    action: Id
    args: dict[str, Json]
    session_id: str | UnsetType = UNSET
    cwd: str | UnsetType = UNSET
    env: dict[str, str] | UnsetType = UNSET


class McpContext(CamelWire):
    url: str | UnsetType = UNSET
    user_agent: str | UnsetType = UNSET
    locale: str | UnsetType = UNSET


class McpPayload(CamelWire):
    capability_id: Id
    action: Id
    args: dict[str, Json] = msgspec.field(default_factory=dict)
    session_id: str | UnsetType = UNSET
    context: McpContext | UnsetType = UNSET


AgentCommand = Command[AgentPayload]
ToolCommand = Command[ToolPayload]
SystemCommand = Command[SystemPayload]
McpCommand = Command[McpPayload]


class ExecArgs(CamelWire):
    """`cmd` is split as a shell would; `command` with `params` is taken as it is."""

    cmd: Text | UnsetType = UNSET
    command: Text | UnsetType = UNSET
    params: list[str] | UnsetType = UNSET

    def __post_init__(self) -> None:
        if isinstance(self.cmd, UnsetType) == isinstance(self.command, UnsetType):
            raise ValueError("exec takes either `cmd` or `command`")


class ExecResult(CamelWire):
    exit_code: Int | None
    signal: str | None
    stdout: str
    stderr: str
    truncated: bool
    timed_out: bool
    duration_ms: Count


class WebFetchArgs(CamelWire):
    url: str
    method: Literal["GET", "POST", "HEAD"] = "GET"
    headers: dict[str, str] | UnsetType = UNSET
    body: str | UnsetType = UNSET


class WebFetchResult(CamelWire):
    url: str
    status: Count
    headers: dict[str, str]
    body_text: str
    truncated: bool
    duration_ms: Count


class WebSearchArgs(CamelWire):
    query: Text
    limit: Annotated[int, msgspec.Meta(ge=1, le=50)] = 10


class WebSearchHit(CamelWire):
    title: str
    url: str
    snippet: str


class WebSearchResult(CamelWire):
    provider: str
    results: list[WebSearchHit]


class ErrorBody(CamelWire):
    code: str
    message: str
    outcome: Outcome | UnsetType = UNSET


class Answer(CamelWire):
    """Every answer but those of /health, /status and /events/poll."""

    ok: bool
    data: Json
    trace_id: str
    error: ErrorBody | UnsetType = UNSET


class ToolCallResult(CamelWire):
    id: str
    name: str
    success: bool
    data: Json | UnsetType = UNSET
    error: str | UnsetType = UNSET
    outcome: Outcome | UnsetType = UNSET


class ToolData(CamelWire):
    results: list[ToolCallResult]


class AgentUsage(CamelWire):
    total_tokens: Count | UnsetType = UNSET
    prompt_tokens: Count | UnsetType = UNSET
    completion_tokens: Count | UnsetType = UNSET
    duration_ms: Count | UnsetType = UNSET


class AgentData(CamelWire):
    run_id: str
    session_id: str
    status: str
    output: str
    usage: AgentUsage | UnsetType = UNSET


class CommandState(CamelWire):
    """`data` of a 202, and of GET /command/{requestId}."""

    status: CommandStatus
    request_id: str
    approval_id: str | UnsetType = UNSET
    run_id: str | UnsetType = UNSET
    message: str | UnsetType = UNSET  # of a 202: why a person is asked, and where it is decided
    answer: Answer | UnsetType = UNSET


class Health(CamelWire, omit_defaults=True):
    """`problem` says why the journal takes no commits now."""

    ok: bool
    version: str
    uptime: int | float  # seconds
    problem: str = ""


class Scope(CamelWire):
    """The rights of a device: tools up to a level, and kinds of command."""

    tools: Level = Level.READ
    system: bool = False
    mcp: bool = False
    agent: bool = False
    approve: bool = False


class Device(CamelWire):
    device_id: str
    scope: Scope
    paired_at: UnixMs
    last_seen_at: UnixMs | None = None


class InFlight(CamelWire):
    request_id: str
    name: str
    started_at: UnixMs
    device_id: str | UnsetType = UNSET
    run_id: str | UnsetType = UNSET


class Running(CamelWire):
    agent: list[InFlight]
    tool: list[InFlight]
    mcp: list[InFlight]


class LastAt(CamelWire):
    last_at: UnixMs | None  # null before the first


class TargetHealth(CamelWire):
    target_id: str
    status: HealthStatus
    checked_at: UnixMs | None = None
    circuit_open: bool = False  # it did not answer lately, and is not asked for a while
    error: str | UnsetType = UNSET  # the last one


class Status(CamelWire):
    version: str
    health: str
    devices: list[Device]
    running: Running
    heartbeat: LastAt
    cron: LastAt
    cursor: Count | UnsetType = UNSET  # where to go on with the events
    oldest_cursor: Count | UnsetType = UNSET  # from where all that are kept can be read
    targets: list[TargetHealth] | UnsetType = UNSET


class Event(CamelWire):
    id: Count
    type: EventType
    time: UnixMs
    status: str
    source: str
    message: str
    duration_ms: Count
    metadata: dict[str, Json] = msgspec.field(default_factory=dict)


class EventPage(CamelWire):
    cursor: Count
    events: list[Event]


class EventsQuery(CamelWire):
    """The query of GET /events/poll; `since` is text, because a bad cursor has an answer of its own."""

    since: str | UnsetType = UNSET
    limit: Annotated[int, msgspec.Meta(ge=1, le=MAX_EVENTS)] = DEFAULT_EVENTS
    wait: Annotated[float, msgspec.Meta(ge=0, le=MAX_WAIT_S)] = 0.0  # seconds


class CommandQuery(CamelWire):
    """The query of GET /command/{requestId}."""

    wait: Annotated[float, msgspec.Meta(ge=0, le=MAX_WAIT_S)] = 0.0  # seconds


class CursorGone(CamelWire):
    """`data` of a 410."""

    fallback: str = STATUS_PATH


class PairingWanted(CamelWire):
    """`data` of the 401 to a device that is not paired."""

    code: str
    expires_at: UnixMs
    pairing: Literal["pending"] = "pending"


class PendingDevice(CamelWire):
    device_id: str
    code: str
    requested_at: UnixMs
    expires_at: UnixMs
    ip: str
    user_agent: str


class PendingDevices(CamelWire):
    pending: list[PendingDevice]


class PairingApprove(CamelWire):
    device_id: Id
    scope: Scope | UnsetType = UNSET


class PairingApproved(CamelWire):
    device_id: str
    device_token: str
    scope: Scope


class PairingRevoke(CamelWire):
    device_id: Id


class PairingRevoked(CamelWire):
    device_id: str
    revoked: bool


class PairingReject(CamelWire):
    device_id: Id


class PairingRejected(CamelWire):
    device_id: str


class NamedKind(StrEnum):
    """Whose a named token is."""

    USER = "user"
    AGENT = "agent"
    SERVICE = "service"


class ServiceTokenMake(CamelWire):
    """Ours: a token of a user, an agent or a service, under a name."""

    name: Id
    scope: Scope | UnsetType = UNSET
    kind: NamedKind = NamedKind.SERVICE
    expires_in_ms: Annotated[int, msgspec.Meta(ge=1, le=MAX_TOKEN_LIFE_MS)] | UnsetType = UNSET


class ServiceToken(CamelWire):
    """The token itself is in the answer that makes it, and nowhere else."""

    name: str
    scope: Scope
    made_at: UnixMs
    kind: NamedKind = NamedKind.SERVICE
    expires_at: UnixMs | UnsetType = UNSET
    token: str | UnsetType = UNSET


class ServiceTokens(CamelWire):
    items: list[ServiceToken]


class RateLimit(CamelWire):
    limit: Positive
    window_ms: Annotated[int, msgspec.Meta(ge=1, le=MAX_RATE_WINDOW_MS)] = 60_000


class McpServer(CamelWire):
    """A capability's MCP server: a program on stdio, or a URL.

    `mounts` (`HOST:INSIDE[:ro|rw]`) and `egress` (`HOST[:PORT]`) are what a program in the sandbox
    may reach; `isolation: none` runs it as the gateway's user.
    """

    command: str | UnsetType = UNSET
    args: list[str] | UnsetType = UNSET
    env: dict[str, str] | UnsetType = UNSET
    url: str | UnsetType = UNSET
    headers: dict[str, str] | UnsetType = UNSET
    mounts: list[str] | UnsetType = UNSET
    egress: list[str] | UnsetType = UNSET
    isolation: Isolation | UnsetType = UNSET

    def __post_init__(self) -> None:
        if isinstance(self.command, UnsetType) == isinstance(self.url, UnsetType):
            raise ValueError("an MCP server has either `command` or `url`")


class CapabilityRegister(CamelWire):
    """`rateLimit` as a number is per minute. `server` is ours: an upstream to be called."""

    capability_id: Id
    scope: str
    level: Level
    rate_limit: Positive | RateLimit | None = None
    version: str = ""
    owner: str = ""
    expires_at: UnixMs | None = None
    status: HealthStatus = HealthStatus.HEALTHY
    server: McpServer | UnsetType = UNSET


class Capability(CamelWire):
    capability_id: str
    scope: str
    level: Level
    rate_limit: Positive | RateLimit | None
    version: str
    owner: str
    expires_at: UnixMs | None
    status: HealthStatus
    updated_at: UnixMs
    isolation: Isolation | UnsetType = UNSET  # of a program
    reason: str | UnsetType = UNSET  # why its server is not healthy
    registered_status: HealthStatus | UnsetType = UNSET  # for the operator: before any check
    server: str | UnsetType = UNSET  # for the operator: its command line or its address
    mounts: list[str] | UnsetType = UNSET  # for the operator
    egress: list[str] | UnsetType = UNSET  # for the operator


class CapabilityList(CamelWire):
    items: list[Capability]


class ToolDefinition(CamelWire):
    """A tool of an MCP server. `changed` is what the server says now, until a person accepts it."""

    name: str
    capability_id: str
    tool: str
    level: Level
    status: Literal["pinned", "changed"]
    digest: str
    pinned_at: UnixMs
    accepted_by: str
    changed_digest: str | UnsetType = UNSET
    definition: dict[str, Json] | UnsetType = UNSET
    changed: dict[str, Json] | UnsetType = UNSET


class ToolDefinitionList(CamelWire):
    items: list[ToolDefinition]


class AcceptDefinition(CamelWire):
    """`digest` is the `changedDigest` that the person has seen."""

    capability_id: Id
    tool: Text
    digest: str


class TargetUpsert(CamelWire):
    """Members left out are kept as they are; null takes one away."""

    tenant_id: Id | UnsetType = UNSET
    workspace_id: Id | UnsetType | None = UNSET
    kind: TargetKind | UnsetType = UNSET
    endpoint: str | UnsetType | None = UNSET
    auth_token: str | UnsetType | None = UNSET
    is_default: bool | UnsetType = UNSET
    enabled: bool | UnsetType = UNSET
    config: dict[str, Json] | UnsetType = UNSET


class ExecutionTarget(CamelWire):
    """A target as it is shown: it says that there is a token, and never shows it."""

    target_id: str
    tenant_id: str
    kind: TargetKind
    has_auth_token: bool
    is_default: bool
    enabled: bool
    config: dict[str, Json]
    version: Positive
    updated_at: IsoMs
    workspace_id: str | UnsetType = UNSET
    endpoint: str | UnsetType = UNSET


class TargetList(CamelWire):
    items: list[ExecutionTarget]


class AuditQuery(CamelWire):
    """`from` and `to` are inclusive; rows come newest first, from below `cursor`."""

    tenant_id: str | UnsetType = UNSET
    workspace_id: str | UnsetType = UNSET
    action: str | UnsetType = UNSET
    from_: str | UnsetType = msgspec.field(default=UNSET, name="from")
    to: str | UnsetType = UNSET
    device_id: str | UnsetType = UNSET
    run_id: str | UnsetType = UNSET
    decision: str | UnsetType = UNSET
    limit: Annotated[int, msgspec.Meta(ge=1, le=MAX_AUDIT_ROWS)] = DEFAULT_AUDIT_ROWS
    cursor: Count | UnsetType = UNSET


class AuditRow(CamelWire):
    id: Positive
    tenant_id: str
    workspace_id: str
    action: str
    actor: str
    metadata: dict[str, Json]
    created_at: IsoMs
    resource_type: str | UnsetType = UNSET
    resource_id: str | UnsetType = UNSET


class AuditPage(CamelWire):
    items: list[AuditRow]
    next_cursor: Count | UnsetType = UNSET
    agent_runs: list[str] | UnsetType = (
        UNSET  # of the `runId`s, those that `GET /runs/{runId}` knows
    )


class GatewayAudit(CamelWire):
    """`metadata` of the gateway's own row (§5.2)."""

    device_id: str
    capability_id: str
    idempotency_key: str | None
    request_hash: str


class ExecutorAudit(CamelWire):
    """`metadata` of the executor's row (§5.2)."""

    risk_level: Level
    confirmation: str
    result: str


class RunSummary(CamelWire):
    run_id: str
    session_id: str
    agent_id: str
    status: str
    created_at: UnixMs
    updated_at: UnixMs
    user_id: str
    preview: str  # the beginning of the message
    code: str  # of an error, else empty
    message: str
    total_tokens: int
    ended_at: UnixMs | UnsetType = UNSET


class RunPage(CamelWire):
    """A page may be short, or empty, and yet have a `nextCursor`: a search reads so many runs."""

    items: list[RunSummary]
    next_cursor: str | UnsetType = UNSET


class Clipped(CamelWire):
    """The beginning of a text (of unfinished output its end), and the length of all of it."""

    text: str
    length: Count


class TimelineItem(CamelWire, tag_field="kind", kw_only=True):
    at: UnixMs


class TimelineMessage(TimelineItem, tag="message"):
    role: str
    content: Clipped


class TimelineText(TimelineItem, tag="text"):
    """The agent's words in one turn; `partial` while the turn goes on."""

    content: Clipped
    partial: bool = False


class CallMove(CamelWire):
    to: str
    at: UnixMs


class TimelineResult(CamelWire):
    exit_code: int
    stdout: Clipped
    stderr: Clipped
    isolation: str
    outcome: str


class TimelineCall(TimelineItem, tag="call"):
    """One tool call. `args`, `decision` and `approval` are as the evidence has them: redacted."""

    call_id: str
    tool: str
    args: Json
    status: str
    on_device: bool
    moves: list[CallMove]
    output: Clipped
    error_code: str
    decision: Json
    approval: Json
    result: TimelineResult | None
    evidence: list[Count]  # the indexes of its records
    so_far: Clipped | UnsetType = UNSET  # the output of a call that runs


class TimelineEnd(TimelineItem, tag="end"):
    status: str
    code: str
    message: str


class RunTimeline(CamelWire):
    """`position` is that of the newest event of the journal that is included."""

    run: RunSummary
    prompt_tokens: Count
    completion_tokens: Count
    items: list[TimelineMessage | TimelineText | TimelineCall | TimelineEnd]
    position: Count


class RunCancel(CamelWire):
    reason: str = ""


class ApprovalSummary(CamelWire):
    approval_id: str
    tool: str
    args_summary: str
    status: str
    hidden: Count  # characters of the arguments that are masked, but for known secrets
    revealed: bool  # the operator has seen them; else it cannot be approved
    created_at: UnixMs
    expires_at: UnixMs
    asked_by: str
    reason: str
    rule_id: str
    tenant_id: str
    workspace_id: str
    session_id: str | UnsetType = UNSET
    run_id: str | UnsetType = UNSET
    request_id: str | UnsetType = UNSET
    decided_by: str | UnsetType = UNSET
    target_id: str | UnsetType = UNSET  # where it would run, if the request says it
    args: Json | UnsetType = UNSET  # as an approver sees them; unset where nothing has them
    confirmation: str | UnsetType = UNSET  # `self`: the operator confirmed their own call
    definition_digest: str | UnsetType = UNSET  # of the pinned definition of an MCP server's tool


class ApprovalPage(CamelWire):
    items: list[ApprovalSummary]
    next_cursor: str | UnsetType = UNSET


class ApprovalDecide(CamelWire):
    decision: Decision
    reason: str = ""


class PolicyPut(CamelWire):
    text: str
    over: str = ""  # the version that it is to replace; where another is in force, it is refused


class PolicyRule(CamelWire):
    id: str
    effect: str
    tools: list[str]
    reason: str


class PolicyView(CamelWire):
    """`error` says why the file, as it is now, cannot replace the policy in force."""

    name: str
    version: str
    text: str
    rules: list[PolicyRule]
    test_count: Count
    error: str = ""


class PolicyCheck(CamelWire):
    text: str


class PolicyChecked(CamelWire):
    """The answer of a check, and `data` of the refusal of a policy that has problems."""

    problems: list[str]
    rule_count: Count = 0
    test_count: Count = 0


class PolicySimulate(CamelWire):
    text: str
    limit: Positive | UnsetType = UNSET


class PolicyChange(CamelWire):
    request_id: str
    tool: str
    was: str
    would_be: str
    rule_id: str
    text: str  # what the caller would be answered
    args: dict[str, Json]
    was_rule_id: str
    loosens: bool


class PolicySimulated(CamelWire):
    checked: Count
    changed: list[PolicyChange]


class EvidenceItem(CamelWire):
    index: Count
    record: Json


class EvidencePage(CamelWire):
    """Records, newest first. `failure` says why the newest are not in the checkpoint yet."""

    size: Count
    key: str
    checkpoint: str
    failure: str
    items: list[EvidenceItem]
    next_cursor: Count | UnsetType = UNSET


class EvidenceProof(CamelWire):
    """The inclusion of one record in the signed log, for who has the log's key."""

    key: str
    checkpoint: str
    index: Count
    record: str
    proof: list[str]
    artifacts: dict[str, str]


class EvidenceVerified(CamelWire):
    """A check of the whole log as it is on disk."""

    size: Count
    artifacts: Count
    problems: list[str]
    notes: list[str]
    took_ms: Count


class TaskStart(CamelWire):
    template_id: str
    inputs: dict[str, Json] = msgspec.field(default_factory=dict)


class V2Auth(CamelWire):
    """Either the device's token, or its public key with a signature over the server's nonce."""

    token: str | UnsetType = UNSET
    public_key: str | UnsetType = UNSET  # Ed25519, base64
    signature: str | UnsetType = UNSET  # base64

    def __post_init__(self) -> None:
        if isinstance(self.token, UnsetType) and (
            isinstance(self.public_key, UnsetType) or isinstance(self.signature, UnsetType)
        ):
            raise ValueError("auth takes `token`, or `publicKey` with `signature`")


class Frame(CamelWire, tag_field="type"):
    """One message of /v2/ws."""


class Connect(Frame, tag="connect"):
    """A client's first frame; `challenge` gives the server's nonce back."""

    device_id: Id
    client_type: str
    auth: V2Auth
    capabilities: list[str] = msgspec.field(default_factory=list)
    challenge: str | UnsetType = UNSET


class Req(Frame, tag="req"):
    id: Id
    method: Id
    params: dict[str, Json] = msgspec.field(default_factory=dict)
    idempotency_key: Id | UnsetType = UNSET


class Res(Frame, tag="res"):
    """`id` is the request's; that of the answer to `connect` is "connect".

    `replayed` and `retryAfter` are what v1 says in Idempotent-Replayed and Retry-After.
    """

    id: str
    ok: bool
    data: Json
    trace_id: str
    error: ErrorBody | UnsetType = UNSET
    replayed: bool | UnsetType = UNSET
    retry_after: Count | UnsetType = UNSET  # seconds


class Pushed(Frame, tag="event"):
    """`connect.challenge` with a Challenge as the connection opens; later `gateway.event`."""

    event: str
    data: Json
    cursor: Count | UnsetType = UNSET


class Challenge(CamelWire):
    nonce: str
    expires_at: UnixMs


AnyClientFrame = Connect | Req
AnyServerFrame = Res | Pushed

V2_PATH: Final = "/v2/ws"
CHALLENGE_EVENT: Final = "connect.challenge"
GATEWAY_EVENT: Final = "gateway.event"
CONNECT_ID: Final = "connect"

# What a v2 request may ask for, and the v1 route that does the same.
V2_METHODS: Final = {
    "health": "GET /health",
    "status": "GET /status",
    "events.poll": "GET /events/poll",
    "command.agent": "POST /command/agent",
    "command.tool": "POST /command/tool",
    "command.system": "POST /command/system",
    "command.mcp": "POST /command/mcp",
    "command.get": "GET /command/{requestId}",
    "pairing.pending": "GET /pairing/pending",
    "pairing.approve": "POST /pairing/approve",
    "pairing.reject": "POST /pairing/reject",
    "pairing.revoke": "POST /pairing/revoke",
    "capabilities.register": "POST /capabilities/register",
    "capabilities.list": "GET /capabilities",
    "capabilities.remove": "DELETE /capabilities/{capabilityId}",
    "executionTargets.list": "GET /execution-targets",
    "executionTargets.get": "GET /execution-targets/{targetId}",
    "executionTargets.put": "PUT /execution-targets/{targetId}",
    "executionTargets.delete": "DELETE /execution-targets/{targetId}",
    "audit.query": "GET /audit/query",
    "runs.list": "GET /runs",
    "approvals.list": "GET /approvals",
    "approvals.decide": "POST /approvals/{approvalId}/decide",
    "policy.get": "GET /policy",
    "policy.put": "PUT /policy",
    "policy.simulate": "POST /policy/simulate",
}


class CloseCode(IntEnum):
    GOING_AWAY = 1001
    MESSAGE_TOO_BIG = 1009
    UNAUTHENTICATED = 4401
    SLOW_CONSUMER = 4408


CLOSE_CODES: Final = {
    CloseCode.GOING_AWAY: Code(
        "The server is stopping", "Connect again, poll from the last cursor"
    ),
    CloseCode.MESSAGE_TOO_BIG: Code("A frame was too large", "Send less, then connect again"),
    CloseCode.UNAUTHENTICATED: Code(
        "The device did not prove who it is in time, or was revoked", "Pair again"
    ),
    CloseCode.SLOW_CONSUMER: Code(
        "The client read too slowly", "Connect again, poll from the last cursor"
    ),
}

encode = msgspec.json.Encoder().encode
decode_agent_command = msgspec.json.Decoder(AgentCommand).decode
decode_tool_command = msgspec.json.Decoder(ToolCommand).decode
decode_system_command = msgspec.json.Decoder(SystemCommand).decode
decode_mcp_command = msgspec.json.Decoder(McpCommand).decode
decode_client_frame = msgspec.json.Decoder(AnyClientFrame).decode
