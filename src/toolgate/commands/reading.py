"""A command as it came in, and as it is understood: who asks for what, under which names."""

import logging
from typing import Any, Final

import msgspec

from toolgate.access.devices import Identity
from toolgate.commands.answers import Code, Problem, problem_of
from toolgate.commands.idempotency import request_hash
from toolgate.commands.keys import slot_of
from toolgate.commands.plans import Planner
from toolgate.contracts.wire import given
from toolgate.core.enums import CommandKind, Level
from toolgate.core.errors import Invalid
from toolgate.http.bodies import canonical, check_id
from toolgate.http.traces import trace_id_of

log = logging.getLogger(__name__)

_PATHS: Final = {kind: f"/command/{kind}" for kind in CommandKind}


class Asked(msgspec.Struct, frozen=True):
    """A command as it came in, by whichever door."""

    kind: CommandKind
    identity: Identity
    raw: bytes
    request_id: str = ""  # X-Request-Id
    key: str = ""  # Idempotency-Key
    traceparent: str = ""


class Entered(msgspec.Struct):
    """A command that could be read, with the names it goes by."""

    kind: CommandKind
    identity: Identity
    raw: bytes
    command: Any
    level: Level | None  # as declared
    command_id: str
    request_id: str
    named: bool  # the caller chose the request id
    key: str
    request_hash: str
    trace_id: str
    at: int
    started: float
    is_clean: bool = False  # its names were looked through, and hold no secret

    @property
    def slot(self) -> str:
        """Under which the key is kept; empty where there is none."""
        return slot_of(self.identity.name, self.key) if self.key else ""


def read(asked: Asked, planner: Planner, *, command_id: str, at: int, started: float) -> Entered:
    """Raises Invalid, or what a decoder raises."""
    text = canonical(asked.raw)
    command = planner.decode(asked.raw)
    request_id = _one("X-Request-Id", asked.request_id, given(command.request_id, ""))
    key = _one("Idempotency-Key", asked.key, given(command.idempotency_key, ""))
    declared = None
    if command.security is not msgspec.UNSET:
        declared = given(command.security.level, None)
    body_trace = "" if command.trace is msgspec.UNSET else given(command.trace.trace_id, "")
    return Entered(
        kind=asked.kind,
        identity=asked.identity,
        raw=asked.raw,
        command=command,
        level=declared,
        command_id=command_id,
        request_id=request_id or command_id,
        named=bool(request_id),
        key=key,
        request_hash=request_hash("POST", _PATHS[asked.kind], text),
        trace_id=trace_id_of(body_trace, asked.traceparent),
        at=at,
        started=started,
    )


def name_of(entered: Entered) -> str:
    """What the caller asked for, as far as it can be told."""
    payload = entered.command.payload
    match entered.kind:
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


def problem_with(entered: Entered, error: Exception) -> Problem:
    problem = problem_of(error)
    if problem.code is Code.INTERNAL and not isinstance(error, Problem):
        log.error(
            "command_failed command_id=%s trace_id=%s",
            entered.command_id,
            entered.trace_id,
            exc_info=error,
        )
    return problem


def _one(header: str, from_header: str, from_body: str) -> str:
    """One thing that can be said in two places; raises Invalid where they differ."""
    if from_header and from_body and from_header != from_body:
        raise Invalid(f"{header} and the body do not say the same")
    value = from_header or from_body
    return check_id(header, value) if value else ""
