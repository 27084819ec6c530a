"""Seed 001, "与 Orchestrator 通信": the orchestrator's internal HTTP and the events of its SSE answer.

Only data, snake_case, times in Unix ms. The events ask for less than the ingress promises its
clients (`ts` and `run_id` may be missing): another orchestrator, or an external agent, may know
only the seed's shapes.
"""

from enum import StrEnum
from typing import Any, Final, Literal

import msgspec
from msgspec import UNSET, UnsetType

from toolgate.contracts.wire import Code, Count, Id, Json, Text, UnixMs, Wire
from toolgate.core.enums import ApprovalStatus, CallStatus, Decision, Level, Outcome, RunStatus

INVOKE_PATH: Final = "/internal/invoke"
SUBMIT_PATH: Final = "/internal/tool_calls/{tool_call_id}/submit"
DECIDE_PATH: Final = "/internal/approvals/{approval_id}/decide"
DECIDE_ALIAS_PATH: Final = "/internal/approvals/{approval_id}/submit"
REVEAL_PATH: Final = "/internal/approvals/{approval_id}/reveal"  # ours, for who has no gateway
CANCEL_PATH: Final = "/internal/runs/{run_id}/cancel"
RUN_PATH: Final = "/internal/runs/{run_id}"
RUN_EVENTS_PATH: Final = "/internal/runs/{run_id}/events/stream"
AGENTS_PATH: Final = "/internal/agents"
SESSION_TOOLS_PATH: Final = "/internal/sessions/{session_id}/tools"
HEALTH_PATH: Final = "/health"
AGENT_INVOKE_SUFFIX: Final = "/invoke"  # of an external agent's endpoint
AFTER_PARAMETER: Final = "after"
DEFAULT_PORT: Final = 8081

HEADER_ACCEPT: Final = "Accept"
HEADER_AUTHORIZATION: Final = "Authorization"
HEADER_LAST_EVENT_ID: Final = "Last-Event-ID"
EVENT_STREAM_TYPE: Final = "text/event-stream"

TOOL_TIMEOUT_MS: Final = 60_000
APPROVAL_TIMEOUT_MS: Final = 600_000
AGENT_TIMEOUT_MS: Final = 300_000

LIMITS: Final = {
    "TOOL_TIMEOUT_MS": "ingress spec: a tool call's time, `deadline_ts` on the wire",
    "APPROVAL_TIMEOUT_MS": "ingress spec: then the approval is EXPIRED",
    "AGENT_TIMEOUT_MS": "ingress spec: an agent's time",
}


class ErrorCode(StrEnum):
    """How a tool call or a run ended badly, as its agent and the run's `error` event have it."""

    CLIENT_OFFLINE = "client_offline"
    BLOCKED = "blocked"
    REJECTED = "rejected"
    APPROVAL_TIMEOUT = "approval_timeout"
    TOOL_TIMEOUT = "tool_timeout"
    TOOL_FAILED = "tool_failed"
    AGENT_TIMEOUT = "agent_timeout"
    AGENT_FAILED = "agent_failed"
    CANCELLED = "cancelled"
    INVALID_REQUEST = "invalid_request"
    UNAUTHORIZED = "unauthorized"
    UNKNOWN_AGENT = "unknown_agent"
    NOT_FOUND = "not_found"
    CONFLICT = "conflict"
    HIDDEN_ARGUMENTS = "hidden_arguments"
    INTERNAL_ERROR = "internal_error"


ERROR_CODES: Final = {
    ErrorCode.CLIENT_OFFLINE: Code(
        "The session has no connection, so its tool cannot be run", "Go on without the tool"
    ),
    ErrorCode.BLOCKED: Code("The policy refused the tool call", "Do not repeat it"),
    ErrorCode.REJECTED: Code("A person rejected the tool call", "Do not repeat it"),
    ErrorCode.APPROVAL_TIMEOUT: Code(
        "Nobody decided in time", "Ask again when someone is there to decide"
    ),
    ErrorCode.TOOL_TIMEOUT: Code(
        "The tool's time was over before its result came", "Look at `outcome` before repeating it"
    ),
    ErrorCode.TOOL_FAILED: Code(
        "The tool ran and failed", "Read its output; look at `outcome` before repeating it"
    ),
    ErrorCode.AGENT_TIMEOUT: Code("The agent's time was over", "Invoke it again, or ask for less"),
    ErrorCode.AGENT_FAILED: Code("The agent could not go on", "Read the message"),
    ErrorCode.CANCELLED: Code("The run was cancelled", "Nothing; invoke again if still wanted"),
    ErrorCode.INVALID_REQUEST: Code(
        "The request cannot be read, or a member is missing or of the wrong type", "Correct it", 400
    ),
    ErrorCode.UNAUTHORIZED: Code(
        "The bearer token is missing or wrong", "Set INTERNAL_TOKEN alike on both sides", 401
    ),
    ErrorCode.UNKNOWN_AGENT: Code("There is no such agent", "Check agent_id", 404),
    ErrorCode.NOT_FOUND: Code(
        "There is no such run, tool call or approval (any more)", "Check the id", 404
    ),
    ErrorCode.CONFLICT: Code("It was already decided otherwise", "Read the state that stands", 409),
    ErrorCode.HIDDEN_ARGUMENTS: Code(
        "The approval has hidden characters that the operator has not revealed",
        "Reveal them in the console or the CLI, or reject",
        409,
    ),
    ErrorCode.INTERNAL_ERROR: Code("The orchestrator itself failed", "May be tried again", 500),
}


class Message(Wire):
    role: str
    content: str


class InvokeRequest(Wire, omit_defaults=True):
    """The message may be called `message` or `input_message`; the first wins where both are."""

    session_id: Id
    agent_id: Id
    message: Message | UnsetType = UNSET
    input_message: Message | UnsetType = UNSET
    request_id: str = ""
    context: dict[str, Json] | UnsetType = UNSET

    def __post_init__(self) -> None:
        if isinstance(self.message, UnsetType) and isinstance(self.input_message, UnsetType):
            raise ValueError("Object missing required field `message`")

    @property
    def said(self) -> Message:
        if not isinstance(self.message, UnsetType):
            return self.message
        assert not isinstance(self.input_message, UnsetType)
        return self.input_message


class InvokeAccepted(Wire):
    run_id: str
    session_id: str
    agent_id: str


class ToolCallSubmit(Wire, omit_defaults=True):
    """Either of `ok` and `status` suffices. An error with a code is sent as "code: message"."""

    run_id: str = ""
    tool_call_id: str = ""
    ok: bool | UnsetType = UNSET
    status: Literal["SUCCEEDED", "FAILED"] | UnsetType = UNSET
    result: Json | UnsetType = UNSET
    error: str | dict[str, Any] | UnsetType = UNSET

    def __post_init__(self) -> None:
        if isinstance(self.ok, UnsetType) and isinstance(self.status, UnsetType):
            raise ValueError("Object missing required field `ok`")
        if UNSET not in (self.ok, self.status) and self.ok is not (self.status == "SUCCEEDED"):
            raise ValueError("`ok` and `status` contradict each other")

    @property
    def succeeded(self) -> bool:
        return self.ok is True or self.status == "SUCCEEDED"


class ToolCallView(Wire, omit_defaults=True):
    tool_call_id: str
    run_id: str
    status: CallStatus
    tool_name: str = ""
    args: Json | UnsetType = UNSET
    result: Json | UnsetType = UNSET
    error: str | dict[str, Any] | UnsetType = UNSET
    deadline_ts: UnixMs = 0


class ApprovalDecide(Wire, omit_defaults=True):
    decision: Decision
    reason: str = ""
    decided_by: str = ""


class ApprovalView(Wire, omit_defaults=True):
    approval_id: str
    run_id: str
    tool_call_id: str
    status: ApprovalStatus
    tool_name: str = ""
    args_summary: str = ""
    args: Json | UnsetType = UNSET
    hidden: Count = 0
    reason: str = ""
    decided_by: str = ""
    deadline_ts: UnixMs = 0


class Usage(Wire):
    total_tokens: Count | UnsetType = UNSET
    prompt_tokens: Count | UnsetType = UNSET
    completion_tokens: Count | UnsetType = UNSET
    duration_ms: Count | UnsetType = UNSET


class RunError(Wire):
    code: str
    message: str
    outcome: Outcome | UnsetType = UNSET


class RunView(Wire, omit_defaults=True):
    run_id: str
    session_id: str
    agent_id: str
    status: RunStatus
    created_at: UnixMs
    updated_at: UnixMs
    request_id: str = ""
    output: str | UnsetType = UNSET
    usage: Usage | UnsetType = UNSET
    error: RunError | UnsetType = UNSET
    tool_calls: list[ToolCallView] | UnsetType = UNSET
    approvals: list[ApprovalView] | UnsetType = UNSET


class CancelRequest(Wire, omit_defaults=True):
    """The body may be left out."""

    reason: str = "cancelled"


class CancelAnswer(Wire):
    """The state that stands; `cancelled` says whether the run has ended so."""

    run_id: str
    status: RunStatus
    cancelled: bool


class Refusal(Wire):
    """The body of every answer that is not 2xx."""

    error: str
    message: str
    ok: bool = False


class Health(Wire, omit_defaults=True):
    """`status` is "failing" while the journal takes no commits, and `problem` says why."""

    status: str
    runs: Count
    uptime_seconds: Count
    problem: str = ""


class ClientTool(Wire, omit_defaults=True):
    """A tool that the session's client runs; a bare string in a list is its name alone."""

    name: Id
    description: str = ""
    input_schema: dict[str, Json] | UnsetType = UNSET
    level: Level = Level.WRITE
    repeatable: bool = False


class RegisterTools(Wire):
    """What the session's client can run, in place of what it could before."""

    tools: list[ClientTool | Id]


class RegisterAgent(Wire, omit_defaults=True):
    """An external agent; its token is written, never shown."""

    agent_id: Id
    endpoint: Text
    description: str = ""
    auth_token: str = ""


class AgentView(Wire, omit_defaults=True):
    agent_id: str
    kind: Literal["builtin", "external"]
    description: str = ""
    endpoint: str = ""
    has_auth_token: bool = False


class AgentRequest(Wire, omit_defaults=True):
    """What an external agent is sent: `POST {endpoint}/invoke`."""

    run_id: str
    session_id: str
    agent_id: str
    message: Message
    history: list[Message] = msgspec.field(default_factory=list)
    context: dict[str, Json] | UnsetType = UNSET


class Event(Wire, tag_field="type", omit_defaults=True, kw_only=True):
    """What every event of a run may have; its `seq` is also the SSE event's id."""

    ts: UnixMs = 0
    request_id: str = ""
    session_id: str = ""
    run_id: str = ""
    seq: Count = 0
    first_seq: Count = 0
    event_id: str = ""


class RunStarted(Event, tag="run_started", kw_only=True):
    run_id: str
    agent_id: str = ""


class Delta(Event, tag="delta", kw_only=True):
    text: str


class State(Event, tag="state", kw_only=True):
    state: str
    detail: Json | UnsetType = UNSET


class ToolRequest(Event, tag="tool_request", kw_only=True):
    tool_call_id: str
    tool_name: str
    args: Json
    deadline_ts: UnixMs = 0
    redacted_args: Json | UnsetType = UNSET  # ours: the arguments to store, if they hold a secret


class ApprovalRequired(Event, tag="approval_required", kw_only=True):
    approval_id: str
    tool_call_id: str
    tool_name: str
    args_summary: str
    args: Json | UnsetType = UNSET  # as an approver sees them
    hidden: Count = 0  # characters that they do not
    deadline_ts: UnixMs = 0
    reason: str = ""
    message: str = ""
    redacted_args: Json | UnsetType = UNSET  # ours: the arguments to store


class Error(Event, tag="error", kw_only=True):
    code: str
    message: str
    detail: Json | UnsetType = UNSET
    outcome: Outcome | UnsetType = UNSET


class Done(Event, tag="done", kw_only=True):
    usage: Usage | UnsetType = UNSET


AnyEvent = RunStarted | Delta | State | ToolRequest | ApprovalRequired | Error | Done
AnyAgentEvent = Delta | State | Done | Error

# For a stream that names its events (`event: delta`) and leaves `type` out of the data.
EVENTS: Final[dict[str, type[AnyEvent]]] = {
    "run_started": RunStarted,
    "delta": Delta,
    "state": State,
    "tool_request": ToolRequest,
    "approval_required": ApprovalRequired,
    "error": Error,
    "done": Done,
}

encode = msgspec.json.Encoder().encode
decode_event = msgspec.json.Decoder(AnyEvent).decode
decode_invoke = msgspec.json.Decoder(InvokeRequest).decode
decode_submit = msgspec.json.Decoder(ToolCallSubmit).decode
decode_cancel = msgspec.json.Decoder(CancelRequest).decode
decode_decide = msgspec.json.Decoder(ApprovalDecide).decode
