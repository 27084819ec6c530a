"""Seed 001, "协议层设计" and "API 接口": what clients and the ingress say over the WebSocket, and what
an orchestrator pushes over the ingress's internal HTTP.

Only data, snake_case, times in Unix ms. What the messages *do* is in `surfaces/ingress/`. Members
that are empty are left out, as Go's `omitempty` does. A snapshot (a gap too old to replay) is told
in the same messages: `state` per open run, then its open `tool_request`s and `approval_required`s.
"""

from enum import IntEnum, StrEnum
from typing import Any, Final

import msgspec
from msgspec import UNSET, UnsetType

from toolgate.contracts.wire import CamelWire, Code, Count, Id, Json, MaybeId, UnixMs, Wire
from toolgate.core.enums import Decision, Level, Outcome

WS_PATH: Final = "/ws"
SEND_PATH: Final = "/internal/send"
SESSION_STATUS_PATH: Final = "/internal/sessions/{session_id}/status"
HEALTH_PATH: Final = "/health"
DEFAULT_WS_PORT: Final = 8090
DEFAULT_HTTP_PORT: Final = 8091
HEADER_AUTHORIZATION: Final = "Authorization"

PING_INTERVAL_MS: Final = 30_000
PONG_WAIT_MS: Final = 60_000
WRITE_WAIT_MS: Final = 10_000
HELLO_WAIT_MS: Final = 10_000
MAX_MESSAGE_BYTES: Final = 65_536
MAX_QUEUED_MESSAGES: Final = 256
MAX_QUEUED_BYTES: Final = 4 * 1024 * 1024
RESUME_WINDOW_MS: Final = 30_000
KEPT_MS: Final = 24 * 3_600_000
KEPT_EVENTS: Final = 10_000
REQUEST_ID_KEPT_MS: Final = 24 * 3_600_000

LIMITS: Final = {
    "PING_INTERVAL_MS": "seed 001, 心跳机制: WS_PING_INTERVAL_MS",
    "PONG_WAIT_MS": "seed 001, 心跳机制: WS_PONG_WAIT_MS; no pong for so long closes",
    "WRITE_WAIT_MS": "seed 001, 心跳机制: WS_WRITE_WAIT_MS; a slower write closes",
    "HELLO_WAIT_MS": "ingress spec: the first message must be there by then",
    "MAX_MESSAGE_BYTES": "ingress spec: WS_MAX_MESSAGE_BYTES; a larger message closes",
    "MAX_QUEUED_MESSAGES": "ingress spec: more waiting for one connection closes it",
    "MAX_QUEUED_BYTES": "ingress spec: more waiting for one connection closes it",
    "RESUME_WINDOW_MS": "seed 001, 离线处理 (30s), and ingress spec: how long an absent client is waited for",
    "KEPT_MS": "ingress spec: how far back events can be replayed",
    "KEPT_EVENTS": "ingress spec: how many events can be replayed",
    "REQUEST_ID_KEPT_MS": "contracts overview: the same request_id is the same run for so long",
}


class ErrorCode(StrEnum):
    INVALID_MESSAGE = "invalid_message"
    AUTH_FAILED = "auth_failed"
    SESSION_NOT_FOUND = "session_not_found"
    CLIENT_OFFLINE = "client_offline"
    ORCHESTRATOR_ERROR = "orchestrator_error"
    INTERNAL_ERROR = "internal_error"


ERROR_CODES: Final = {
    ErrorCode.INVALID_MESSAGE: Code(
        "The message cannot be read, or a member is missing or of the wrong type",
        "Check the message's form; the error names the member",
        400,
    ),
    ErrorCode.AUTH_FAILED: Code("The api_key is wrong", "Check the api_key", 401),
    ErrorCode.SESSION_NOT_FOUND: Code(
        "There is no such session, or hello has not been said", "Send hello again"
    ),
    ErrorCode.CLIENT_OFFLINE: Code(
        "The client that should get it is not connected", "Nothing: it cannot be recovered", 409
    ),
    ErrorCode.ORCHESTRATOR_ERROR: Code(
        "The orchestrator answered with an error, or did not answer", "May be tried again"
    ),
    ErrorCode.INTERNAL_ERROR: Code("The ingress itself failed", "Tell the operator", 500),
}


class Reason(StrEnum):
    """`detail.reason` of an error: what stands behind `orchestrator_error`."""

    UNKNOWN_AGENT = "unknown_agent"
    BLOCKED = "blocked"
    REJECTED = "rejected"
    APPROVAL_TIMEOUT = "approval_timeout"
    RATE_LIMITED = "rate_limited"
    HIDDEN_ARGUMENTS = "hidden_arguments"
    MAY_NOT_APPROVE = "may_not_approve"
    OUTSIDE_SCOPE = "outside_scope"
    TOOL_TIMEOUT = "tool_timeout"
    TOOL_FAILED = "tool_failed"
    AGENT_TIMEOUT = "agent_timeout"
    AGENT_FAILED = "agent_failed"


REASONS: Final = {
    Reason.UNKNOWN_AGENT: Code("There is no such agent", "Check agent_id; a retry cannot help"),
    Reason.BLOCKED: Code("The policy refused a tool call", "Do not repeat it"),
    Reason.REJECTED: Code("A person rejected a tool call", "Do not repeat it"),
    Reason.APPROVAL_TIMEOUT: Code(
        "Nobody decided on a tool call in time", "Ask again when someone is there to decide"
    ),
    Reason.RATE_LIMITED: Code("Too many calls", "Wait, then try again"),
    Reason.HIDDEN_ARGUMENTS: Code(
        "The approval has hidden characters that the operator has not revealed",
        "Reveal them in the console or the CLI, or reject",
    ),
    Reason.MAY_NOT_APPROVE: Code(
        "This credential may not decide approvals", "Use a user's key or the scope `approve`"
    ),
    Reason.OUTSIDE_SCOPE: Code(
        "The key's scope does not cover this command", "Use a key with the scope `agent`"
    ),
    Reason.TOOL_TIMEOUT: Code("A tool's time was over before its result came", "Invoke again"),
    Reason.TOOL_FAILED: Code("A tool ran and failed", "Read the message"),
    Reason.AGENT_TIMEOUT: Code("The agent's time was over", "Invoke again, or ask for less"),
    Reason.AGENT_FAILED: Code("The agent could not go on", "Read the message"),
}


class CloseCode(IntEnum):
    NORMAL = 1000
    GOING_AWAY = 1001
    PROTOCOL_ERROR = 1002
    NOT_UTF8 = 1007
    MESSAGE_TOO_BIG = 1009
    INTERNAL_ERROR = 1011
    TRY_AGAIN_LATER = 1013
    UNAUTHENTICATED = 4401
    SLOW_CONSUMER = 4408
    PONG_TIMEOUT = 4410


CLOSE_CODES: Final = {
    CloseCode.NORMAL: Code("The client closed", "Nothing"),
    CloseCode.GOING_AWAY: Code("The server is stopping", "Reconnect with session_id and last_seq"),
    CloseCode.PROTOCOL_ERROR: Code("A frame breaks RFC 6455", "Mend the client"),
    CloseCode.NOT_UTF8: Code("A text message is not UTF-8 (RFC 6455, 8.1)", "Mend the client"),
    CloseCode.MESSAGE_TOO_BIG: Code(
        "A message was larger than WS_MAX_MESSAGE_BYTES", "Send less, then reconnect"
    ),
    CloseCode.INTERNAL_ERROR: Code("The ingress itself failed", "Reconnect with backoff"),
    CloseCode.TRY_AGAIN_LATER: Code("Too many connections", "Reconnect with backoff"),
    CloseCode.UNAUTHENTICATED: Code(
        "The api_key is wrong, or no hello came in time", "Check the api_key; say hello first"
    ),
    CloseCode.SLOW_CONSUMER: Code(
        "The client read too slowly", "Reconnect with session_id and last_seq; all is replayed"
    ),
    CloseCode.PONG_TIMEOUT: Code(
        "No pong came for WS_PONG_WAIT_MS", "Answer pings; reconnect with session_id and last_seq"
    ),
}


class ConnectionState(StrEnum):
    CREATED = "CREATED"
    AUTHENTICATING = "AUTHENTICATING"
    ACTIVE = "ACTIVE"
    CLOSED = "CLOSED"


class Message(Wire):
    role: str
    content: str


class ClientTool(Wire, omit_defaults=True):
    """A tool that the client itself runs; a bare string in the list is its name alone."""

    name: Id
    description: str = ""
    input_schema: dict[str, Json] | UnsetType = UNSET
    level: Level = Level.WRITE
    repeatable: bool = False


class ClientMeta(Wire):
    """Whatever a client says of itself: only `tools` is ours to check."""

    app: Json | UnsetType = UNSET
    version: Json | UnsetType = UNSET
    tools: list[ClientTool | Id] | UnsetType = UNSET


# Raw JSON in the seed, so it need not even be an object.
AnyMeta = ClientMeta | str | int | float | bool | list[Any] | None


class ClientMessage(Wire, tag_field="type", omit_defaults=True, kw_only=True):
    """Members of every message of a client, all optional."""

    ts: UnixMs = 0


class Hello(ClientMessage, tag="hello"):
    user_id: Id
    api_key: str
    client_meta: AnyMeta | UnsetType = UNSET
    request_id: str = ""
    session_id: str = ""
    last_seq: Count | UnsetType = UNSET
    epoch: str = ""

    @property
    def tools(self) -> list[ClientTool]:
        """The tools that the client runs itself."""
        meta = self.client_meta
        given = meta.tools if isinstance(meta, ClientMeta) else UNSET
        if isinstance(given, UnsetType):
            return []
        return [ClientTool(tool) if isinstance(tool, str) else tool for tool in given]


class AgentInvoke(ClientMessage, tag="agent_invoke"):
    """Without `request_id` the ingress makes one and returns it in `run_started`."""

    agent_id: Id
    message: Message
    request_id: MaybeId = ""
    session_id: str = ""


class ToolResult(ClientMessage, tag="tool_result"):
    """Without `run_id` the call is looked for in the whole session."""

    tool_call_id: Id
    ok: bool
    run_id: MaybeId = ""
    result: Json | UnsetType = UNSET
    error: str | dict[str, Any] | UnsetType = UNSET
    request_id: MaybeId = ""
    session_id: str = ""


class ApprovalDecision(ClientMessage, tag="approval_decision"):
    """Without `run_id` the approval is looked for in the whole session."""

    approval_id: Id
    decision: Decision
    run_id: MaybeId = ""
    reason: str = ""
    request_id: MaybeId = ""
    session_id: str = ""


class CancelRun(ClientMessage, tag="cancel_run"):
    run_id: Id
    request_id: MaybeId = ""
    session_id: str = ""


AnyClientMessage = Hello | AgentInvoke | ToolResult | ApprovalDecision | CancelRun


class ServerMessage(Wire, tag_field="type", omit_defaults=True, kw_only=True):
    """What every message to a client has."""

    ts: UnixMs
    request_id: str = ""


class HelloAck(ServerMessage, tag="hello_ack", kw_only=True):
    """`seq` is the session's last number, said even where that is 0."""

    session_id: str
    resumed: bool | UnsetType = UNSET
    seq: Count | UnsetType = UNSET
    epoch: str = ""


class SessionEvent(ServerMessage, kw_only=True):
    """What every event of a session has; numbers start at 1.

    `first_seq` is there only on a delta, or an update of a tool call, that stands for several,
    merged for a lagging reader. An `error` that answers one connection alone is no event of the
    session and has no number.
    """

    session_id: str = ""
    run_id: str = ""
    seq: Count = 0
    first_seq: Count = 0
    event_id: str = ""


class RunStarted(SessionEvent, tag="run_started", kw_only=True):
    agent_id: str


class Delta(SessionEvent, tag="delta", kw_only=True):
    text: str


class State(SessionEvent, tag="state", kw_only=True):
    """`detail` of a running tool's update: `tool_call_id`, `delta` and `at` (ISO 8601, UTC)."""

    state: str
    detail: Json | UnsetType = UNSET


class ToolRequest(SessionEvent, tag="tool_request", kw_only=True):
    tool_call_id: str
    tool_name: str
    args: Json
    deadline_ts: UnixMs = 0
    # Ours, between our orchestrator and our ingress: the arguments to store, if they hold a secret.
    redacted_args: Json | UnsetType = UNSET


class ApprovalRequired(SessionEvent, tag="approval_required", kw_only=True):
    """`deadline_ts` (when the approval expires), `reason` and `message` (why a person is asked, and
    where it is decided), `args` and `hidden` are ours.

    `args` is the call as an approver sees it: exact known secrets and token-shaped words are masked,
    and invisible characters are escaped. Where `hidden` characters are masked, it is approved only
    after the operator has revealed them.
    """

    approval_id: str
    tool_call_id: str
    tool_name: str
    args_summary: str
    args: Json | UnsetType = UNSET
    hidden: Count = 0
    deadline_ts: UnixMs = 0
    reason: str = ""
    message: str = ""
    # As in `tool_request`.
    redacted_args: Json | UnsetType = UNSET


class Error(SessionEvent, tag="error", kw_only=True):
    """`code` is an ErrorCode.

    `detail.reason` is a Reason, or the code of an agent or of another orchestrator;
    `detail.retry` is false where a retry cannot help.
    """

    code: str
    message: str
    detail: Json | UnsetType = UNSET
    outcome: Outcome | UnsetType = UNSET


class Usage(Wire):
    total_tokens: Count | UnsetType = UNSET
    prompt_tokens: Count | UnsetType = UNSET
    completion_tokens: Count | UnsetType = UNSET
    duration_ms: Count | UnsetType = UNSET


class Done(SessionEvent, tag="done", kw_only=True):
    usage: Usage


AnySessionEvent = RunStarted | Delta | State | ToolRequest | ApprovalRequired | Error | Done
AnyServerMessage = HelloAck | AnySessionEvent


class SendRequest(Wire, omit_defaults=True):
    """Without `session_id` the event goes to the session of its run."""

    event: AnySessionEvent
    session_id: str = ""


class SendAnswer(Wire, omit_defaults=True):
    ok: bool
    error: str = ""
    message: str = ""


class SessionStatus(Wire):
    session_id: str
    online: bool
    connection_count: Count
    last_activity_at: UnixMs | None  # null for a session that is not known


class Health(Wire, omit_defaults=True):
    """`status` is "failing" while the journal takes no commits, and `problem` says why.

    `internal_auth` is "none" where `/internal/*` is open to every process that reaches it.
    """

    status: str
    connections: Count
    uptime_seconds: Count
    problem: str = ""
    internal_auth: str = ""


class Reconnect(CamelWire):
    """How a client should come back: the seed's RECONNECT_CONFIG."""

    max_retries: Count
    initial_delay_ms: Count
    max_delay_ms: Count
    multiplier: float


HEALTHY: Final = "healthy"
FAILING: Final = "failing"
NO_AUTH: Final = "none"
RETRACTED: Final = "retracted_characters"  # in a state's detail: so many of the last do not count
RECONNECT: Final = Reconnect(
    max_retries=5, initial_delay_ms=1_000, max_delay_ms=30_000, multiplier=2.0
)

encode = msgspec.json.Encoder().encode
decode_client = msgspec.json.Decoder(AnyClientMessage).decode
decode_server = msgspec.json.Decoder(AnyServerMessage).decode
decode_event = msgspec.json.Decoder(AnySessionEvent).decode
decode_send = msgspec.json.Decoder(SendRequest).decode
