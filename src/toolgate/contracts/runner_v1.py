"""Seed 000, "P2 Docker Runner HTTP Protocol": what the gateway and a docker-runner say over HTTP.

Only data, camelCase, times as ISO 8601 text. How a gateway reads a runner it cannot trust is in
`tools/engines/remote_runner.py`; it decodes the body as a plain object, since it forgives more than
these models do.
"""

from enum import StrEnum
from typing import Annotated, Final, Literal

import msgspec
from msgspec import UNSET, UnsetType

from toolgate.contracts.wire import CamelWire, Code, Id, Int, IsoMs, Json, Positive
from toolgate.core.enums import Outcome

EXECUTE_PATH: Final = "/execute"
HEALTH_PATH: Final = "/health"
DEFAULT_PORT: Final = 18081  # §8
SERVICE: Final = "docker-runner"

HEADER_CONTENT_TYPE: Final = "content-type"
HEADER_AUTHORIZATION: Final = "authorization"
HEADER_ACCEPT: Final = "accept"
HEADER_ACCEPT_ENCODING: Final = "accept-encoding"
JSON_TYPE: Final = "application/json"
NDJSON_TYPE: Final = "application/x-ndjson"

DEFAULT_TIMEOUT_MS: Final = 15_000
MAX_TIMEOUT_MS: Final = 180_000
STATUS_QUOTE_CHARS: Final = 240
BODY_QUOTE_CHARS: Final = 120
DEFAULT_FILE_LIST_LIMIT: Final = 200

LIMITS: Final = {
    "DEFAULT_TIMEOUT_MS": "seed 000 §7: the call's total time where the target sets none",
    "MAX_TIMEOUT_MS": "seed 000 §7: larger values are cut down to this",
    "STATUS_QUOTE_CHARS": "runner spec: how much of a non-2xx answer the failure quotes",
    "BODY_QUOTE_CHARS": "runner spec: how much of an unreadable answer the failure quotes",
    "DEFAULT_FILE_LIST_LIMIT": "runner spec: entries that file.list answers where none is asked for",
}


class ErrorCode(StrEnum):
    TOOL_EXEC_FAILED = "TOOL_EXEC_FAILED"
    POLICY_DENIED = "POLICY_DENIED"
    UNAUTHORIZED = "UNAUTHORIZED"
    INVALID_REQUEST = "INVALID_REQUEST"
    NOT_FOUND = "NOT_FOUND"
    INTERNAL_ERROR = "INTERNAL_ERROR"


ERROR_CODES: Final = {
    ErrorCode.TOOL_EXEC_FAILED: Code(
        "The tool failed, or the runner could not be reached, was too slow, answered with another "
        "status than 2xx or with something that is no result, or the target has no endpoint",
        "Read the message; look at `outcome` before running it again",
        200,
    ),
    ErrorCode.POLICY_DENIED: Code(
        "The policy refused the call, or its target is disabled; the gateway says so, never a "
        "runner: from a runner it counts as TOOL_EXEC_FAILED",
        "Do not repeat it; ask whoever keeps the policy",
    ),
    ErrorCode.UNAUTHORIZED: Code(
        "The bearer token is missing or wrong", "Set the target's authToken to the runner's", 401
    ),
    ErrorCode.INVALID_REQUEST: Code(
        "The request does not have the contract's shape, or is too large", "Correct it", 400
    ),
    ErrorCode.NOT_FOUND: Code("The runner has no such path", "POST to /execute", 404),
    ErrorCode.INTERNAL_ERROR: Code(
        "The runner itself failed", "Look at `outcome`; try again later", 500
    ),
}


class Backend(StrEnum):
    BWRAP = "bwrap"
    DOCKER = "docker"
    PROCESS = "process"
    MOCK = "mock"


class Call(CamelWire):
    """Ours: with `no_links`, a path or `cwd` with a link in it must be refused, wherever it leads.

    With `clean`, a command must have a fixed environment, and its git must start no other program.
    """

    name: Id
    args: dict[str, Json]
    no_links: bool | UnsetType = UNSET
    clean: bool | UnsetType = UNSET


class Ctx(CamelWire):
    run_id: str
    session_id: str
    runtime_mode: str
    tool_call_id: str | UnsetType = UNSET


class Target(CamelWire):
    """The execution target as it was when the call was made; a tenant's own has no workspace."""

    target_id: str
    kind: str  # a TargetKind; a runner does not mind others
    tenant_id: str
    workspace_id: str | UnsetType = UNSET


class ExecuteRequest(CamelWire):
    call: Call
    ctx: Ctx
    target: Target


class ToolError(CamelWire):
    code: str
    message: str


class ToolResult(CamelWire):
    """The end of a call (§4.1). The members after `error` are ours, beside the contract's."""

    ok: bool
    output: str | UnsetType = UNSET
    error: ToolError | UnsetType = UNSET
    exit_code: Int | UnsetType = UNSET
    stdout: str | UnsetType = UNSET
    stderr: str | UnsetType = UNSET
    truncated: bool | UnsetType = UNSET
    timed_out: bool | UnsetType = UNSET
    duration_ms: Int | UnsetType = UNSET
    isolation: str | UnsetType = UNSET
    outcome: Outcome | UnsetType = UNSET
    workspace: Literal["new"] | UnsetType = UNSET  # the session had none, or its files are gone


class Update(CamelWire):
    delta: str
    at: IsoMs | UnsetType = UNSET


class WrappedResult(CamelWire):
    """A result with the updates that came before it (§4.2)."""

    result: ToolResult
    updates: list[Update | str] | UnsetType = UNSET


class StreamLine(CamelWire):
    """One line of an NDJSON answer: updates as they come, and last the result."""

    delta: str | UnsetType = UNSET
    at: IsoMs | UnsetType = UNSET
    result: ToolResult | UnsetType = UNSET

    def __post_init__(self) -> None:
        if isinstance(self.delta, UnsetType) == isinstance(self.result, UnsetType):
            raise ValueError("a line holds either `delta` or `result`")


class Refusal(CamelWire):
    """The body of every answer that is not 2xx."""

    error: ToolError
    ok: bool = False


class Usage(CamelWire):
    cpu_percent: float
    memory_percent: float
    disk_percent: float


class Health(CamelWire):
    """`no_links` and `clean` say that the runner heeds a call's; else it is sent none."""

    ok: bool
    service: str
    backend: str
    usage: Usage
    time: IsoMs
    isolation: str | UnsetType = UNSET
    no_links: bool | UnsetType = UNSET
    clean: bool | UnsetType = UNSET


class BashExec(CamelWire):
    cmd: str
    cwd: str | UnsetType = UNSET
    timeout_ms: Positive | UnsetType = UNSET
    env: dict[str, str] | UnsetType = UNSET


class PythonExec(CamelWire):
    code: str
    timeout_ms: Positive | UnsetType = UNSET


class FileRead(CamelWire):
    path: str


class FileWrite(CamelWire):
    path: str
    content: str
    append: bool = False


class FileList(CamelWire):
    path: str = "."
    recursive: bool = False
    limit: Annotated[int, msgspec.Meta(ge=1)] = DEFAULT_FILE_LIST_LIMIT


class FileGet(CamelWire):
    """Ours: a piece of a file, as `{"content": <base64>}`. A file that is kept travels so."""

    path: str
    offset: Annotated[int, msgspec.Meta(ge=0)] = 0
    limit: Positive | UnsetType = UNSET


class FilePut(CamelWire):
    """Ours: base64 into a file; the output is `{"size": <of the file afterwards>}`."""

    path: str
    content: str
    append: bool = False


class HttpRequest(CamelWire):
    url: str
    method: str = "GET"
    headers: dict[str, str] | UnsetType = UNSET
    body: str | UnsetType = UNSET
    timeout_ms: Positive | UnsetType = UNSET


class Echo(CamelWire):
    text: str


class MathAdd(CamelWire):
    a: int | float
    b: int | float


class TextUpper(CamelWire):
    text: str


TOOLS: Final[dict[str, type[CamelWire]]] = {
    "bash.exec": BashExec,
    "python.exec": PythonExec,
    "file.read": FileRead,
    "file.write": FileWrite,
    "file.list": FileList,
    "file.get": FileGet,
    "file.put": FilePut,
    "http.request": HttpRequest,
    "echo": Echo,
    "math.add": MathAdd,
    "text.upper": TextUpper,
}

decode_request = msgspec.json.Decoder(ExecuteRequest).decode
decode_result = msgspec.json.Decoder(ToolResult).decode
