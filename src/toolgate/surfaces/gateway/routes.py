"""What a route is: the same table serves HTTP, the WebSocket's methods and the OpenAPI document."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from toolgate.access.devices import Identity
from toolgate.commands.answers import Code, Problem, Result
from toolgate.contracts import gateway_v1 as wire
from toolgate.core.enums import CommandKind

LONGEST_WAIT_S: Final = float(wire.MAX_WAIT_S)
DEFAULT_PAGE: Final = 50
MAX_PAGE: Final = 500


class Access(StrEnum):
    """Who may use a route."""

    ANYONE = "anyone"
    CALLER = "caller"  # a paired device, or a script with its token
    READER = "reader"  # one of those, or the operator
    TRUSTED = "trusted"  # the operator, or a script with its token
    APPROVER = "approver"  # the operator, or whoever has the approve scope
    OPERATOR = "operator"


@dataclass(frozen=True, slots=True)
class Call:
    """One request for a route, by whichever door."""

    identity: Identity | None
    trace_id: str
    path: Mapping[str, str] = field(default_factory=dict)
    query: Mapping[str, str] = field(default_factory=dict)
    body: Any = None

    @property
    def caller(self) -> Identity:
        assert self.identity is not None
        return self.identity


Handle = Callable[[Call], Awaitable[Result]]


@dataclass(frozen=True, slots=True)
class Parameter:
    name: str
    meaning: str
    schema: Mapping[str, Any] = field(default_factory=lambda: {"type": "string"})


PAGE_LIMIT: Final = {"type": "integer", "minimum": 1, "maximum": MAX_PAGE}
CURSOR: Final = Parameter("cursor", "from below this one, as the last answer said")


@dataclass(frozen=True, slots=True)
class Route:
    method: str
    path: str
    access: Access
    summary: str
    handle: Handle
    answers: Any  # the model of `data` (of the whole, where it is bare)
    v2: str = ""  # its method on /v2/ws
    takes: type[Any] | None = None
    query: tuple[Parameter, ...] = ()
    statuses: tuple[int, ...] = (200,)
    bare: bool = False
    command: CommandKind | None = None
    stream: bool = False  # its answer is events that go on
    media_type: str = "application/json"

    @property
    def key(self) -> str:
        return f"{self.method} {self.path}"

    @property
    def may_wait(self) -> bool:
        """Whether its answer may be long in coming, as the caller wishes."""
        return any(parameter.name == "wait" for parameter in self.query)


async def elsewhere(_: Call) -> Result:  # pragma: no cover - it is never called
    """For what the server does by itself: a command is posted as it came in, a stream goes on."""
    raise AssertionError


def whole(query: Mapping[str, str], name: str, *, default: int, least: int, most: int) -> int:
    """A whole number among the parameters; Problem where it is none."""
    text = query.get(name, "")
    if not text:
        return default
    if not (text.isascii() and text.isdigit() and len(text) <= 18) or int(text) < least:
        raise Problem(Code.INVALID_REQUEST, f"{name} must be a whole number from {least}")
    return min(int(text), most)


def page_limit(query: Mapping[str, str]) -> int:
    """How much of a list the caller wants at once: at most what a page holds."""
    return whole(query, "limit", default=DEFAULT_PAGE, least=1, most=MAX_PAGE)


def seconds(query: Mapping[str, str], name: str = "wait") -> float:
    """How long the caller is ready to wait: at most what the contract allows."""
    text = query.get(name, "")
    try:
        value = float(text or 0)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise Problem(Code.INVALID_REQUEST, f"{name} must be a number of seconds")
    return min(value, LONGEST_WAIT_S)
