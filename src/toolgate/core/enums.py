"""Enums that more than one contract or subject uses, each defined once. Contracts import them."""

from enum import StrEnum


class Level(StrEnum):
    """How much a tool may change, lowest first."""

    READ = "read"
    WRITE = "write"
    SIGN = "sign"

    rank: int  # set below: a property would look it up for each question


for _rank, _level in enumerate(Level):
    _level.rank = _rank


class Outcome(StrEnum):
    """What is known of a tool's side effects when its call has ended."""

    NOT_STARTED = "not_started"
    MAY_HAVE_EXECUTED = "may_have_executed"
    EXECUTED = "executed"


class Decision(StrEnum):
    """A person's answer to an approval. Read in any case, written in small letters."""

    APPROVE = "approve"
    REJECT = "reject"

    @classmethod
    def _missing_(cls, value: object) -> "Decision | None":
        return next((member for member in cls if member == str(value).lower()), None)


class ApprovalStatus(StrEnum):
    PENDING = "PENDING"
    APPROVED = "APPROVED"
    REJECTED = "REJECTED"
    EXPIRED = "EXPIRED"


class CallStatus(StrEnum):
    """The state of one tool call. INTERRUPTED is never shown by a run, whose call stays RUNNING."""

    CREATED = "CREATED"
    POLICY_CHECKED = "POLICY_CHECKED"
    BLOCKED = "BLOCKED"
    WAITING_APPROVAL = "WAITING_APPROVAL"
    REJECTED = "REJECTED"
    DISPATCHED = "DISPATCHED"
    RUNNING = "RUNNING"
    INTERRUPTED = "INTERRUPTED"  # it may have run, and may be run again
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    TIMEOUT = "TIMEOUT"


class RunStatus(StrEnum):
    """The state of an agent's run (seed 001)."""

    CREATED = "CREATED"
    RUNNING = "RUNNING"
    PAUSED_WAITING_TOOL = "PAUSED_WAITING_TOOL"
    PAUSED_WAITING_APPROVAL = "PAUSED_WAITING_APPROVAL"
    DONE = "DONE"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"


class CommandKind(StrEnum):
    AGENT = "agent"
    TOOL = "tool"
    SYSTEM = "system"
    MCP = "mcp"


class TargetKind(StrEnum):
    LOCAL_HOST = "local-host"
    DOCKER_RUNNER = "docker-runner"


class Isolation(StrEnum):
    """Where the program of an MCP server runs."""

    SANDBOX = "sandbox"
    NONE = "none"  # as the gateway's own user, with everything that it may read


class HealthStatus(StrEnum):
    """The state of a capability or a target."""

    HEALTHY = "healthy"
    DEGRADED = "degraded"  # it answers, but not as it should, or calls to it are held back
    OFFLINE = "offline"

    @property
    def rank(self) -> int:
        return list(HealthStatus).index(self)


class TaskStatus(StrEnum):
    """The state of a browser task run (seed 004)."""

    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    PARTIAL_SUCCESS = "partial_success"
    CANCELED = "canceled"


class TaskMode(StrEnum):
    SYNC = "sync"
    ASYNC = "async"
    AUTO = "auto"


class TaskCode(StrEnum):
    ELEMENT_NOT_FOUND = "ELEMENT_NOT_FOUND"
    NAVIGATION_TIMEOUT = "NAVIGATION_TIMEOUT"
    SESSION_NOT_FOUND = "SESSION_NOT_FOUND"
    PAGE_CRASHED = "PAGE_CRASHED"
    INVALID_PARAMETER = "INVALID_PARAMETER"
    EXECUTION_ERROR = "EXECUTION_ERROR"
    TEMPLATE_NOT_FOUND = "TEMPLATE_NOT_FOUND"
    RUN_NOT_FOUND = "RUN_NOT_FOUND"
    RUN_TIMEOUT = "RUN_TIMEOUT"
    RUN_CANCELED = "RUN_CANCELED"
    STEP_EXECUTION_FAILED = "STEP_EXECUTION_FAILED"
    TRUST_LEVEL_NOT_ALLOWED = "TRUST_LEVEL_NOT_ALLOWED"
    TEMPLATE_VERSION_UNSUPPORTED = "TEMPLATE_VERSION_UNSUPPORTED"
    ARTIFACT_NOT_FOUND = "ARTIFACT_NOT_FOUND"
    ARTIFACT_EXPIRED = "ARTIFACT_EXPIRED"
    TPL_LOGIN_FIELD_NOT_FOUND = "TPL_LOGIN_FIELD_NOT_FOUND"


class TrustLevel(StrEnum):
    """How far the caller of a browser task is trusted, by the transport it uses."""

    LOCAL = "local"
    REMOTE = "remote"


class LocatorMode(StrEnum):
    SELECTOR = "selector"
    SEMANTIC = "semantic"
