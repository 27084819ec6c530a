"""A plan of a command: its level, the capabilities it needs, its tool calls or its run.

`planners/` makes plans; `commands.py` admits and runs them.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from toolgate.access.devices import Identity, Who, session_of
from toolgate.commands.answers import Code, Problem, rate_headers, retry_after
from toolgate.core.enums import CommandKind, Level, Outcome
from toolgate.core.tools import Caller, ToolOutput, ToolRequest
from toolgate.tools.outcomes import Answer, Denied


@dataclass(slots=True)
class Done:
    data: Any
    problem: Problem | None = None


@dataclass(frozen=True, slots=True)
class Waiting:
    approval_id: str = ""
    run_id: str = ""
    expires_at: int = 0
    ran: bytes = b""  # what it comes to where the right to the rest is taken away meanwhile


Came = Done | Waiting


@dataclass(slots=True)
class Plan:
    """Tool calls and what their answers come to, or (`start`) a run of an agent."""

    level: Level  # of the action, or of the highest of several
    name: str
    capabilities: tuple[str, ...]  # for the audit
    kinds: tuple[CommandKind, ...] = ()  # the scopes that its calls need
    requests: tuple[ToolRequest, ...] = ()
    done: Callable[[Sequence[Answer]], Done] = lambda _answers: Done(None)
    start: Callable[[str], Awaitable[Came]] | None = None  # takes the run's id, where it has begun


class Planner(Protocol):
    def decode(self, raw: bytes) -> Any:
        """The wire's command; raises what a decoder raises."""
        ...

    async def plan(self, command: Any, identity: Identity, command_id: str) -> Plan:
        """Raises Forbidden for what is not there to be called, Invalid for what makes no sense."""
        ...


def caller_of(identity: Identity, *, level: Level, session: str = "", agent: str = "") -> Caller:
    """The caller as the server knows it; nothing in here is from the body but a session's name,
    which is the caller's own."""
    return Caller(
        device=identity.name,
        user=identity.name,
        role=identity.who if identity.who is Who.DEVICE else str(identity.who),
        level=level,
        agent=agent,
        session=session_of(identity.name, session),
    )


def granted_level(identity: Identity, kind: CommandKind, level: Level) -> Level:
    """Up to what level the caller may go here: a kind that is granted is granted whole."""
    own = identity.scope.tools
    return own if kind is CommandKind.TOOL or own.rank >= level.rank else level


def call_id(command_id: str, number: int) -> str:
    return f"{command_id}.{number}"


def one_answer(done_of: Callable[[ToolOutput], Done]) -> Callable[[Sequence[Answer]], Done]:
    """For commands that are one call; a denial becomes the contract's refusal."""

    def done(answers: Sequence[Answer]) -> Done:
        (answer,) = answers
        if isinstance(answer, Denied):
            problem = denied(answer)
            return Done(problem.data, problem)
        return done_of(answer.output)

    return done


def denied(answer: Denied) -> Problem:
    spent = answer.spent
    return Problem(
        Code.PERMISSION_DENIED if spent is None else Code.RATE_LIMITED,
        answer.text,
        data={"ruleId": answer.rule_id, "reason": answer.code},
        headers=() if spent is None else (*rate_headers(spent), retry_after(spent.retry_ms)),
        outcome=Outcome.NOT_STARTED,
    )
