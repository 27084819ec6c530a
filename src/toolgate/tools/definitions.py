"""What a built-in tool is: arguments with a schema, what it may change, and a function.

A tool that is called with arguments outside its schema fails with a sentence that says which.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, NamedTuple, TypeVar

import msgspec

from toolgate.core.enums import Level, Outcome
from toolgate.core.errors import Invalid
from toolgate.core.tools import JsonValue, Tool, ToolOutput, ToolRequest
from toolgate.core.urls import Url
from toolgate.journal.journal import Journal
from toolgate.sandbox.sandbox import NotStarted, Session
from toolgate.tools.engine import Update, no_update
from toolgate.web.web import Web

Permits = Callable[[ToolRequest, Url], bool]  # may this call also go there?
OpenSession = Callable[[ToolRequest], Awaitable[Session]]

T = TypeVar("T")

# `error.code` of a failed tool's data, where the fault is not this installation's.
REFUSED: Final = "refused"
INVALID: Final = "invalid"  # the caller's arguments
UPSTREAM: Final = "upstream"  # a host, a server or a runner that does not answer as it should
MAX_OUTPUT_BYTES: Final = 256 * 1024  # per stream (DESIGN, "The sandbox")


class Context(NamedTuple):
    """What a built-in tool may use."""

    request: ToolRequest
    journal: Journal
    web: Web
    session: OpenSession
    isolation: str  # of the sandbox, as the evidence calls it
    permits: Permits
    update: Update = no_update
    holds_secret: Callable[[str], bool] = lambda _text: False

    async def in_session(self, do: Callable[[Session], Awaitable[T]]) -> T:
        return await in_session(self.session, self.request, do)


class Args(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The root of every tool's arguments."""


A = TypeVar("A", bound=Args)


async def in_session(
    open_session: OpenSession, request: ToolRequest, do: Callable[[Session], Awaitable[T]]
) -> T:
    """Do it in the call's session; where that ended before it was its turn, in the next one."""
    session = await open_session(request)
    try:
        return await do(session)
    except NotStarted:
        if session.alive:
            raise
    return await do(await open_session(request))


@dataclass(frozen=True, slots=True)
class BuiltIn(Generic[A]):
    tool: Tool
    args: type[A]
    run: Callable[[A, Context], Awaitable[ToolOutput]]


def define(
    name: str,
    *,
    description: str,
    level: Level,
    repeatable: bool,
    args: type[A],
    run: Callable[[A, Context], Awaitable[ToolOutput]],
) -> BuiltIn[A]:
    return BuiltIn(Tool(name, description, level, schema_of(args), repeatable), args, run)


def schema_of(args: type[Args]) -> Mapping[str, JsonValue]:
    """The JSON Schema of a tool's arguments, in one piece."""
    whole: dict[str, Any] = msgspec.json.schema(args)
    schema: dict[str, JsonValue] = whole["$defs"][args.__name__]
    return {key: value for key, value in schema.items() if key not in {"title", "description"}}


def read_args(given: Mapping[str, JsonValue], shape: type[A]) -> A:
    """Raises Invalid with what is wrong and where."""
    try:
        return msgspec.convert(given, shape)
    except msgspec.ValidationError as wrong:
        raise Invalid(str(wrong), field="args") from wrong


def failed(message: str, *, outcome: Outcome = Outcome.NOT_STARTED, code: str = "") -> ToolOutput:
    data: JsonValue = {"error": {"code": code}} if code else None
    return ToolOutput(exit_code=1, stderr=message, outcome=outcome, data=data)


def refused(message: str, *, outcome: Outcome = Outcome.NOT_STARTED) -> ToolOutput:
    """For what a tool will not do, as opposed to what it could not."""
    return failed(message, outcome=outcome, code=REFUSED)


def text_of(content: bytes, *, total: int | None = None) -> str:
    """Output as text; where it is not all there is, its last line says so."""
    text = content.decode("utf-8", "replace")
    if total is None or total <= len(content):
        return text
    return f"{text}\n[cut: {len(content)} of {total} bytes]\n"
