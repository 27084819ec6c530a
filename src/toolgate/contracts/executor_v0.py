"""Seed 003, "Executor Driver Contract v0": a tool call, the answer with its evidence, and their HTTP form.

Only data, snake_case, times as ISO 8601 text. The pipeline behind it is in `tools/`.
"""

from enum import StrEnum
from typing import Annotated, Final

import msgspec
from msgspec import UNSET, UnsetType

from toolgate.contracts.wire import Code, Id, Int, IsoMs, Json, Wire
from toolgate.core.enums import Outcome

RUN_PATH: Final = "/tool/run"
ARTIFACT_PATH: Final = "/artifact/get"
ARTIFACT_PUT_PATH: Final = "/artifact/put"  # ours
EPISODES_PATH: Final = "/episode/search"
HEALTH_PATH: Final = "/health"
HEADER_AUTHORIZATION: Final = "Authorization"
HEADER_CACHE_CONTROL: Final = "Cache-Control"
NO_STORE: Final = "no-store"

DEFAULT_POLICY_REF: Final = "policy.default"

MAX_REQUEST_ID_CHARS: Final = 128
MAX_REF_CHARS: Final = 512
DEFAULT_EPISODES: Final = 20
MAX_EPISODES: Final = 100
DEFAULT_READ_BYTES: Final = 4096

LIMITS: Final = {
    "MAX_REQUEST_ID_CHARS": "executor spec: it becomes part of a path",
    "MAX_REF_CHARS": "executor spec: GET /artifact/get",
    "DEFAULT_EPISODES": "executor spec: POST /episode/search",
    "MAX_EPISODES": "executor spec: POST /episode/search",
    "DEFAULT_READ_BYTES": "executor spec: file.read's max_bytes",
}

# `$` alone would let a trailing line break through.
RequestId = Annotated[str, msgspec.Meta(pattern=r"^(?!\.$)(?!.*\.\.)[A-Za-z0-9._-]{1,128}$(?!\n)")]
EvidenceRef = Annotated[str, msgspec.Meta(pattern=r"^(?!/)(?!.*\.\.)[A-Za-z0-9._/-]{1,512}$(?!\n)")]
LocalPath = Annotated[str, msgspec.Meta(pattern=r"^(?!/)(?!.*(?:^|/)\.\.(?:/|$))[^\\\x00]+$(?!\n)")]


class Decision(StrEnum):
    ALLOW = "allow"
    DENY = "deny"


class RuleId(StrEnum):
    """The rule ids that the contract itself fixes; a policy's own rules have their own."""

    DEFAULT_DENY = "default_deny"
    DEFAULT_ALLOW = "default_allow"
    TOOL_ALLOWLIST_MATCH = "tool_allowlist_match"
    HTTP_FETCH_HOSTNAME_CHECK = "http_fetch_hostname_check"
    HTTP_FETCH_URL_VALIDATION = "http_fetch_url_validation"
    POLICY_NOT_FOUND = "policy_not_found"
    REQUEST_ID_CONFLICT = "request_id_conflict"


RULES: Final = {
    RuleId.DEFAULT_DENY: Code("Tool {tool} not in allowlist (default deny)", "Ask for a rule", 403),
    RuleId.DEFAULT_ALLOW: Code("Default allow policy", "Nothing", 200),
    RuleId.TOOL_ALLOWLIST_MATCH: Code("Tool {tool} is in allowlist", "Nothing", 200),
    RuleId.HTTP_FETCH_HOSTNAME_CHECK: Code(
        "Hostname {host} not in allowlist", "Ask for the host to be allowed", 403
    ),
    RuleId.HTTP_FETCH_URL_VALIDATION: Code("Invalid URL", "Correct the URL", 403),
    RuleId.POLICY_NOT_FOUND: Code("Policy {policy_ref} not found", "Correct ctx.policy_ref", 403),
    RuleId.REQUEST_ID_CONFLICT: Code(
        "Request id {request_id} was used for another request", "Use a new request_id", 403
    ),
}


class Artifact(StrEnum):
    REQUEST = "request"
    ENGINE_IDENTITY = "engine_identity"
    POLICY_DECISION = "policy_decision"
    TOOL_RESULT = "tool_result"
    RESPONSE = "response"


ARTIFACTS_ALWAYS: Final = (Artifact.REQUEST, Artifact.ENGINE_IDENTITY)
ARTIFACTS_ON_DENY: Final = (*ARTIFACTS_ALWAYS, Artifact.POLICY_DECISION)
ARTIFACTS_ON_ALLOW: Final = (*ARTIFACTS_ON_DENY, Artifact.TOOL_RESULT, Artifact.RESPONSE)
EVIDENCE_REF: Final = "requests/{request_id}/{artifact}.json"
DERIVED_RUN_ID: Final = "run_{request_id}"
DERIVED_STEP_ID: Final = "step_{request_id}"


# Of POST /tool/run with `Accept: text/event-stream`, ours: updates while the tool runs, then the
# response; an error takes the place of a response that cannot be given any more.
UPDATE_EVENT: Final = "update"
RESPONSE_EVENT: Final = "response"
ERROR_EVENT: Final = "error"


class Update(Wire):
    """`data` of an `update` event."""

    delta: str
    at: IsoMs


class Ctx(Wire):
    run_id: Id | UnsetType = UNSET
    step_id: Id | UnsetType = UNSET
    policy_ref: str | UnsetType = UNSET


class RunToolRequest(Wire):
    request_id: RequestId
    tool_id: Id
    args: dict[str, Json]
    ctx: Ctx | UnsetType | None = UNSET


class ToolResult(Wire):
    """`truncated` is ours: stdout or stderr was cut."""

    exit_code: Int
    stdout: str
    stderr: str
    data: Json | UnsetType = UNSET
    truncated: bool | UnsetType = UNSET


class PolicyCheck(Wire):
    decision: Decision
    reason: str
    rule_id: str | UnsetType = UNSET


class RunToolResponse(Wire):
    """The answer to a call; a denied call has no `tool_result`.

    `outcome` (of a call that failed), `message` (of one that was not run: the reason, the rule and
    what would change it) and `approval_id` (of one that waits for a person) are ours.
    """

    ok: bool
    policy_check: PolicyCheck
    evidence_refs: Annotated[list[EvidenceRef], msgspec.Meta(min_length=1)]
    engine_ref: str
    tool_result: ToolResult | UnsetType = UNSET
    local_evidence_paths: list[LocalPath] | UnsetType = UNSET
    run_id: str | UnsetType = UNSET
    step_id: str | UnsetType = UNSET
    outcome: Outcome | UnsetType = UNSET
    message: str | UnsetType = UNSET
    approval_id: str | UnsetType = UNSET

    def __post_init__(self) -> None:
        if self.policy_check.decision is Decision.DENY:
            if self.ok:
                raise ValueError("a denied call cannot be ok")
            if not isinstance(self.tool_result, UnsetType):
                raise ValueError("a denied call has no tool_result")


class ArtifactQuery(Wire):
    """The query of GET /artifact/get."""

    ref: EvidenceRef


class StoredArtifact(Wire):
    """Ours: a file that was put by POST /artifact/put, for `file.write {artifact: ref}`."""

    ok: bool
    ref: EvidenceRef
    sha256: str
    size: Int


class Order(StrEnum):
    ASC = "asc"
    DESC = "desc"


class EpisodeSearch(Wire):
    """Times are ISO 8601 and inclusive."""

    limit: Annotated[int, msgspec.Meta(ge=1, le=MAX_EPISODES)] = DEFAULT_EPISODES
    id: str | UnsetType = UNSET
    id_prefix: str | UnsetType = UNSET
    decision: Decision | UnsetType = UNSET
    type: str | UnsetType = UNSET
    since_ts: IsoMs | UnsetType = UNSET
    until_ts: IsoMs | UnsetType = UNSET
    order: Order = Order.DESC


class Episode(Wire):
    """One call as the search shows it."""

    id: str  # its request_id
    type: str  # its tool_id
    decision: Decision
    ok: bool
    ts: IsoMs
    evidence_refs: list[EvidenceRef]
    rule_id: str | UnsetType = UNSET
    run_id: str | UnsetType = UNSET
    step_id: str | UnsetType = UNSET


class EpisodePage(Wire, omit_defaults=True):
    """`complete` is false if the search stopped before it had read everything.

    `searched_to` is the time it came to: search on from there with `until_ts` (or `since_ts`, in
    rising order).
    """

    episodes: list[Episode]
    complete: bool = True
    searched_to: IsoMs | UnsetType = UNSET


class Health(Wire):
    ok: bool
    engine_ref: str
    version: str
    time: IsoMs


class ErrorCode(StrEnum):
    INVALID_REQUEST = "invalid_request"
    UNAUTHORIZED = "unauthorized"
    NOT_FOUND = "not_found"
    INTERNAL_ERROR = "internal_error"


ERROR_CODES: Final = {
    ErrorCode.INVALID_REQUEST: Code("The request is malformed; nothing was run", "Correct it", 400),
    ErrorCode.UNAUTHORIZED: Code("The bearer token is missing or wrong", "Set EXECUTOR_TOKEN", 401),
    ErrorCode.NOT_FOUND: Code("There is no such artifact or path", "Check the ref", 404),
    ErrorCode.INTERNAL_ERROR: Code(
        "The executor itself failed", "Send the same request_id again: it is run at most once", 500
    ),
}


class ErrorBody(Wire):
    code: str
    message: str


class Refusal(Wire):
    """The body of an answer to a request that was not judged; a deny has the full response."""

    error: ErrorBody
    ok: bool = False


class KvGet(Wire):
    key: str


class KvSet(Wire):
    key: str
    value: Json


class HttpFetch(Wire):
    url: str
    headers: dict[str, str] | UnsetType = UNSET


class Shell(Wire):
    command: str
    timeout_ms: Annotated[int, msgspec.Meta(ge=1)] | UnsetType = UNSET


class FileRead(Wire):
    path: str
    max_bytes: Annotated[int, msgspec.Meta(ge=1)] = DEFAULT_READ_BYTES


class FileList(Wire):
    path: str


TOOLS: Final[dict[str, type[Wire]]] = {
    "kv.get": KvGet,
    "kv.set": KvSet,
    "http.fetch": HttpFetch,
    "shell": Shell,
    "file.read": FileRead,
    "file.list": FileList,
}

decode_request = msgspec.json.Decoder(RunToolRequest).decode
decode_response = msgspec.json.Decoder(RunToolResponse).decode
decode_search = msgspec.json.Decoder(EpisodeSearch).decode
