"""A command as it came in, as it was read, and the plan of what it does.

`planners/` makes plans; `commands.py` admits and runs them.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final, Protocol

import msgspec

from toolgate.access.devices import Identity, session_of
from toolgate.commands.answers import Code, Problem, problem_of, rate_headers, retry_after
from toolgate.contracts.wire import given
from toolgate.core.enums import CommandKind, Level, Outcome
from toolgate.core.errors import Invalid
from toolgate.core.tools import Caller, JsonValue, ToolOutput, ToolRequest
from toolgate.http.bodies import canonical, check_id, parse
from toolgate.http.traces import trace_id_of
from toolgate.tools.definitions import INVALID, REFUSED
from toolgate.tools.outcomes import Answer, Denied

log = logging.getLogger(__name__)

# gateway spec v2: what makes two commands with one Idempotency-Key the same, beside their kind.
_HASHED: Final = ("payload", "sessionKey", "route", "security")


class RawCommand(msgspec.Struct, frozen=True):
    """A command as it came in, at whichever surface."""

    kind: CommandKind
    identity: Identity
    raw: bytes
    request_id: str = ""  # X-Request-Id
    key: str = ""  # Idempotency-Key
    traceparent: str = ""


class Command(msgspec.Struct):
    """A command that was read, with its ids."""

    kind: CommandKind
    identity: Identity
    raw: bytes
    body: Any  # the wire's command
    command_id: str
    request_id: str  # the command's id, if the caller chose none
    key: str
    request_hash: str
    trace_id: str
    at: int
    started: float
    is_traced: bool = True  # the caller may have chosen the trace id
    is_clean: bool = False  # its names were searched for secrets, and hold none
    who: str = ""
    row_key: str = ""
    slot: str = ""  # the key of the row of its idempotency key

    def __post_init__(self) -> None:
        self.who = self.identity.name
        self.row_key = row_key(self.who, self.request_id, self.command_id)
        self.slot = slot_of(self.who, self.key)

    @property
    def is_named(self) -> bool:
        """Whether the caller chose the request id."""
        return self.request_id != self.command_id

    @property
    def whole_hash(self) -> str:
        """The request hash of 0.1.0, of the whole body: its keys are known for 600 s after an upgrade."""
        return _digest(f"POST /command/{self.kind}", canonical(parse(self.raw)))

    @property
    def declared(self) -> Level | None:
        """The level that the caller declared."""
        security = self.body.security
        return None if security is msgspec.UNSET else given(security.level, None)


class NotAdmitted(Problem):
    """A refusal that does not end the command: the same key may try again."""


def slot_of(who: str, key: str) -> str:
    return f"{who}\n{key}"


def row_key(who: str, request_id: str, command_id: str) -> str:
    """The key of a command's row. The newest command of a request id comes last."""
    return f"{who}\n{request_id}\n{command_id}"


def request_hash(kind: CommandKind, document: Mapping[str, Any]) -> str:
    same = {name: document[name] for name in _HASHED if document.get(name) is not None}
    return _digest(kind, canonical(same))


def _digest(head: str, body: bytes) -> str:
    return sha256(f"{head}\n".encode() + body).hexdigest()


@dataclass(slots=True)
class Done:
    """The end of a plan: an answer, or a problem."""

    data: Any
    problem: Problem | None = None
    succeeded: bool = True  # an answer may hold the failures of its calls


@dataclass(frozen=True, slots=True)
class Waiting:
    approval_id: str = ""
    run_id: str = ""
    expires_at: int = 0
    message: str = ""  # for the caller that is answered now
    ran: bytes = b""  # the answer's data if the caller loses the right to the calls that wait


Came = Done | Waiting


@dataclass(slots=True)
class Plan:
    """Tool calls and the data made of their answers, or (`start`) a run of an agent."""

    level: Level  # of the action, or of the highest of several
    name: str
    capabilities: tuple[str, ...]  # for the audit
    kinds: tuple[CommandKind, ...] = ()  # the scopes that its calls need
    requests: tuple[ToolRequest, ...] = ()
    done: Callable[[Sequence[Answer]], Done] = lambda _answers: Done(None)
    start: Callable[[str], Awaitable[Came]] | None = None  # takes the run's id if it has begun


class Planner(Protocol):
    def decode(self, raw: bytes) -> Any:
        """The wire's command; raises what a decoder raises."""
        ...

    async def plan(self, command: Any, identity: Identity, command_id: str) -> Plan:
        """Raises Forbidden if there is no such tool or agent, Invalid for wrong arguments."""
        ...


def caller_of(identity: Identity, *, level: Level, session: str = "", agent: str = "") -> Caller:
    """The caller as the server authenticated it; only the session's name is from the body."""
    return Caller(
        device=identity.name,
        user=identity.user,
        role=str(identity.who),
        level=level,
        agent=agent,
        session=session_of(identity.name, session),
    )


def granted_level(identity: Identity, kind: CommandKind, level: Level) -> Level:
    """The highest level that the caller may use: a kind that is granted is granted whole."""
    own = identity.scope.tools
    return own if kind is CommandKind.TOOL or own.rank >= level.rank else level


def call_id(command_id: str, number: int) -> str:
    return f"{command_id}.{number}"


def one_answer(done_of: Callable[[ToolOutput], Done]) -> Callable[[Sequence[Answer]], Done]:
    """`Plan.done` of a single call; a denial becomes the contract's refusal."""

    def done(answers: Sequence[Answer]) -> Done:
        (answer,) = answers
        if isinstance(answer, Denied):
            problem = denied(answer)
            return Done(problem.data, problem)
        return done_of(answer.output)

    return done


def code_of(data: JsonValue) -> Code:
    """The contract's code of a tool's failure, by `error.code` of its data; INTERNAL without one."""
    error = data.get("error") if isinstance(data, dict) else None
    code = error.get("code") if isinstance(error, dict) else None
    if code is None:
        return Code.INTERNAL
    return {REFUSED: Code.PERMISSION_DENIED, INVALID: Code.INVALID_REQUEST}.get(
        str(code), Code.UPSTREAM
    )


def denied(answer: Denied) -> Problem:
    spent = answer.spent
    return Problem(
        Code.PERMISSION_DENIED if spent is None else Code.RATE_LIMITED,
        answer.text,
        data={"ruleId": answer.rule_id, "reason": answer.code},
        headers=() if spent is None else (*rate_headers(spent), retry_after(spent.retry_ms)),
        outcome=Outcome.NOT_STARTED,
    )


def read(
    asked: RawCommand, planner: Planner, *, command_id: str, at: int, started: float
) -> Command:
    """Raises Invalid, or what a decoder raises."""
    document = parse(asked.raw)
    body = planner.decode(asked.raw)
    request_id = _one("X-Request-Id", asked.request_id, given(body.request_id, ""))
    key = _one("Idempotency-Key", asked.key, given(body.idempotency_key, ""))
    body_trace = "" if body.trace is msgspec.UNSET else given(body.trace.trace_id, "")
    return Command(
        kind=asked.kind,
        identity=asked.identity,
        raw=asked.raw,
        body=body,
        command_id=command_id,
        request_id=request_id or command_id,
        key=key,
        request_hash=request_hash(asked.kind, document),
        trace_id=trace_id_of(body_trace, asked.traceparent),
        at=at,
        started=started,
        is_traced=bool(body_trace or asked.traceparent),
    )


def name_of(command: Command) -> str:
    """The name of the tool, action or agent that the caller asked for."""
    payload = command.body.payload
    match command.kind:
        case CommandKind.AGENT:
            name = payload.agent_id
        case CommandKind.SYSTEM:
            name = payload.action
        case CommandKind.MCP:
            name = payload.capability_id
        case _:
            calls = given(payload.tool_calls, [])
            name = calls[0].name if calls else given(payload.name, "")
    return str(name)[:80]


def problem_with(command: Command, error: Exception) -> Problem:
    problem = problem_of(error)
    if problem.code is Code.INTERNAL and not isinstance(error, Problem):
        log.error(
            "command_failed command_id=%s trace_id=%s",
            command.command_id,
            command.trace_id,
            exc_info=error,
        )
    return problem


def _one(header: str, from_header: str, from_body: str) -> str:
    """A value that may be in the header or in the body; raises Invalid if they differ."""
    if from_header and from_body and from_header != from_body:
        raise Invalid(f"{header} and the body do not say the same")
    value = from_header or from_body
    return check_id(header, value) if value else ""
