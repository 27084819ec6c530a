"""The tools that run on an execution target: what they take, and how an agent is told of them.

Members that a tool does not know are ignored, as the runner contract has it. `file.get` and
`file.put` are spoken between a gateway and a runner only: they carry a file in pieces.
"""

from typing import Annotated, Any, Final

import msgspec

from toolgate.core.enums import Level
from toolgate.core.tools import JsonValue, Tool

LARGEST_LISTING: Final = 10_000
LARGEST_READ: Final = 256 * 1024  # of one file.read, inline (DESIGN, "The sandbox")
PIECE_BYTES: Final = 3 * 1024 * 1024  # of a file, so that in base64 it fits the runner's body limit
LARGEST_OFFSET: Final = 2**63 - 1  # that a file can have
GET: Final = "file.get"
PUT: Final = "file.put"
INTERNAL: Final = frozenset({GET, PUT})

Timeout = Annotated[int, msgspec.Meta(ge=1)]


class Arguments(msgspec.Struct, rename="camel", frozen=True):
    pass


class BashExec(Arguments, frozen=True):
    cmd: str
    cwd: str = ""
    timeout_ms: Timeout | None = None
    env: dict[str, str] = {}


class PythonExec(Arguments, frozen=True):
    code: str
    cwd: str = ""
    timeout_ms: Timeout | None = None
    env: dict[str, str] = {}


class FileRead(Arguments, frozen=True):
    """`max_bytes` is the executor contract's name; `artifact` asks for a ref instead of text."""

    path: str
    max_bytes: Annotated[int, msgspec.Meta(ge=1, le=LARGEST_READ)] = msgspec.field(
        default=LARGEST_READ, name="max_bytes"
    )
    artifact: bool = False


class FileWrite(Arguments, frozen=True):
    path: str
    content: str
    append: bool = False


class FileWriteOffered(Arguments, frozen=True):
    """As an agent may word it: what to write, or the ref of an artifact that holds it."""

    path: str
    content: str = ""
    append: bool = False
    artifact: str = ""


class FileList(Arguments, frozen=True):
    path: str = ""
    recursive: bool = False
    limit: Annotated[int, msgspec.Meta(ge=1, le=LARGEST_LISTING)] = 200


class FileGet(Arguments, frozen=True):
    path: str
    offset: Annotated[int, msgspec.Meta(ge=0, le=LARGEST_OFFSET)] = 0
    limit: Annotated[int, msgspec.Meta(ge=1, le=PIECE_BYTES)] = PIECE_BYTES


class FilePut(Arguments, frozen=True):
    """The content is base64; a piece after the first is put at the end."""

    path: str
    content: str
    append: bool = False


class HttpRequest(Arguments, frozen=True):
    url: str
    method: str = "GET"
    headers: dict[str, str] = {}
    body: str = ""
    timeout_ms: Timeout | None = None


def _tool(
    name: str, description: str, args: type[Arguments], *, level: Level = Level.WRITE
) -> Tool:
    whole: dict[str, Any] = msgspec.json.schema(args)
    schema: dict[str, JsonValue] = whole["$defs"][args.__name__]
    kept = {key: value for key, value in schema.items() if key not in {"title", "description"}}
    return Tool(name, description, level, kept, repeatable=level is Level.READ)


BASH_EXEC: Final = _tool("bash.exec", "Run a shell command on the execution target.", BashExec)
TOOLS: Final = (
    BASH_EXEC,
    _tool("python.exec", "Run Python code on the execution target.", PythonExec),
    _tool(
        "file.read",
        "Read a file of the workspace; with `artifact`, keep it whole and answer its ref.",
        FileRead,
        level=Level.READ,
    ),
    _tool(
        "file.write",
        "Write a text, or the content of an artifact, to a file of the workspace.",
        FileWriteOffered,
    ),
    _tool("file.list", "List a directory of the workspace.", FileList, level=Level.READ),
    _tool("http.request", "Ask a public URL from the execution target.", HttpRequest),
)
