"""What a command comes down to, whatever its kind: a level, the capabilities it needs, a way to run.

The four planners (`command_agent`, `command_tool`, `command_system`, `command_mcp`) make these;
`commands` admits and runs them.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from toolgate.access.devices import Identity, Who, session_of
from toolgate.commands.answers import Code, Problem
from toolgate.core.enums import CommandKind, Level, Outcome
from toolgate.core.tools import Caller, ToolOutput, ToolRequest
from toolgate.journal.journal import Operation
from toolgate.tools.gate import Answer, Denied, Pending, Ran, Rider, ToolPipeline


@dataclass(slots=True)
class Done:
    data: Any
    problem: Problem | None = None


def _nothing(_: Done) -> Sequence[Operation]:
    return ()


@dataclass(frozen=True, slots=True)
class Waiting:
    approval_id: str = ""
    run_id: str = ""
    expires_at: int = 0
    ran: bytes = b""  # what it comes to where the right to the rest is taken away meanwhile


@dataclass(slots=True)
class Ticket:
    """A command that has been let in, and what is to be written of it."""

    command_id: str
    request_id: str
    run_id: str = ""  # where it has started a run before
    rider: Rider = field(default_factory=Rider)
    end: Callable[[Done], Sequence[Operation]] = _nothing
    waited: Waiting | None = None  # what it waited for
    done: Done = field(default_factory=lambda: Done(None))  # once the rider's end is on disk

    def unwritten(self) -> Sequence[Operation]:
        """How it begins, as long as that is not on disk."""
        return () if self.rider.began else self.rider.begin

    def riding(self, done_of: Callable[[Answer], Done]) -> Rider:
        """For the last call of a plan: the command's end goes with the call's."""

        def end(answer: Answer) -> Sequence[Operation]:
            self.done = done_of(answer)
            return self.end(self.done)

        self.rider.end = end
        return self.rider

    def let_go(self) -> None:
        """Of what it has held together: else only the collector would free a command's parts."""
        self.end = _nothing
        self.rider.end = None


Came = Done | Waiting
RunPlan = Callable[[Ticket], Awaitable[Came]]


@dataclass(slots=True)
class Plan:
    level: Level  # of the action, or of the highest of several
    name: str
    capabilities: tuple[str, ...]
    run: RunPlan
    charged: tuple[str, ...] = ()  # a capability for each call; empty: each once
    calls: int = 1
    rides: bool = True  # its beginning is written by the pipeline, before anything runs


class Planner(Protocol):
    def decode(self, raw: bytes) -> Any:
        """The wire's command; raises what a decoder raises."""
        ...

    async def plan(self, command: Any, identity: Identity) -> Plan:
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


def call_id(ticket: Ticket, number: int) -> str:
    return f"{ticket.command_id}.{number}"


async def run_one(
    pipeline: ToolPipeline,
    request: ToolRequest,
    ticket: Ticket,
    done_of: Callable[[ToolOutput], Done],
) -> Came:
    """One call, for commands that are one call; a denial becomes the contract's refusal."""

    def done(answer: Answer) -> Done:
        if isinstance(answer, Ran):
            return done_of(answer.output)
        assert isinstance(answer, Denied)
        problem = denied(answer)
        return Done(problem.data, problem)

    answer = await pipeline.run(request, rider=ticket.riding(done))
    if ticket.rider.ended:
        return ticket.done
    if isinstance(answer, Pending):
        return Waiting(answer.approval_id, expires_at=answer.expires_at)
    return done(answer)


def denied(answer: Denied) -> Problem:
    return Problem(
        Code.PERMISSION_DENIED,
        answer.reason or "the policy does not allow this",
        data={"ruleId": answer.rule_id, "reason": answer.code},
        outcome=Outcome.NOT_STARTED,
    )


def first_waiting(answers: Sequence[Answer]) -> Waiting | None:
    for answer in answers:
        if isinstance(answer, Pending):
            return Waiting(answer.approval_id, expires_at=answer.expires_at)
    return None
