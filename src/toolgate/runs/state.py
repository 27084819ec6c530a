"""A run of an agent: its states, the facts that move it, and which commands it accepts when.

`decide` turns a command into facts or refuses it; `reduce` turns facts into the state. Both are
pure. The caller commits the facts with the number that the state was read at, so that of two
concurrent decisions only one is committed.
"""

from typing import Any, Final, assert_never

import msgspec
from msgspec.structs import replace

from toolgate.core.enums import CallStatus, RunStatus
from toolgate.core.errors import Conflict, NotFound
from toolgate.tools.calls import TERMINAL as CALL_ENDED
from toolgate.tools.calls import way

R = RunStatus
_ENDS: Final = frozenset({R.DONE, R.FAILED, R.CANCELLED})
TRANSITIONS: Final[dict[RunStatus, frozenset[RunStatus]]] = {
    R.CREATED: frozenset({R.RUNNING, R.FAILED, R.CANCELLED}),
    R.RUNNING: frozenset({R.PAUSED_WAITING_TOOL, R.PAUSED_WAITING_APPROVAL}) | _ENDS,
    R.PAUSED_WAITING_TOOL: frozenset({R.RUNNING, R.PAUSED_WAITING_APPROVAL, R.FAILED, R.CANCELLED}),
    R.PAUSED_WAITING_APPROVAL: frozenset({R.RUNNING, R.PAUSED_WAITING_TOOL, R.FAILED, R.CANCELLED}),
    R.DONE: frozenset(),
    R.FAILED: frozenset(),
    R.CANCELLED: frozenset(),
}
TERMINAL: Final = frozenset(status for status, after in TRANSITIONS.items() if not after)


class RunStarted(msgspec.Struct, frozen=True):
    run_id: str
    session_id: str
    agent_id: str
    user_id: str
    request_id: str
    role: str
    content: str
    at: int
    context: dict[str, Any] = {}


class RunBegun(msgspec.Struct, frozen=True):
    """The first worker has begun."""


class PlannedCall(msgspec.Struct, frozen=True):
    call_id: str
    tool: str
    args: dict[str, Any]  # without secrets
    sealed: bool = False  # the arguments as the agent gave them are a sealed row while it is open


class TurnEnded(msgspec.Struct, frozen=True):
    text: str
    calls: tuple[PlannedCall, ...] = ()
    prompt_tokens: int = 0
    completion_tokens: int = 0


class CallMoved(msgspec.Struct, frozen=True):
    call_id: str
    to: CallStatus
    client: bool = False
    deadline: int = 0
    approval_id: str = ""
    output: str = ""
    error_code: str = ""


class RunEnded(msgspec.Struct, frozen=True):
    status: RunStatus
    at: int
    code: str = ""
    message: str = ""


Fact = RunStarted | RunBegun | TurnEnded | CallMoved | RunEnded


class CallState(msgspec.Struct, frozen=True):
    """A tool call of a run."""

    call_id: str
    tool: str
    args: dict[str, Any]
    status: CallStatus = CallStatus.CREATED
    client: bool = False  # runs on a device of the session
    deadline: int = 0  # Unix ms; 0 if it does not wait for a device
    approval_id: str = ""
    output: str = ""  # for the agent
    error_code: str = ""
    sealed: bool = False

    @property
    def ended(self) -> bool:
        return self.status in CALL_ENDED

    @property
    def on_device(self) -> bool:
        """True while a device has the call."""
        return self.client and self.status is CallStatus.DISPATCHED


class PastTurn(msgspec.Struct, frozen=True):
    text: str
    calls: tuple[CallState, ...]


class RunState(msgspec.Struct, frozen=True):
    run_id: str
    session_id: str
    agent_id: str
    user_id: str
    request_id: str
    role: str
    content: str
    started_at: int
    status: RunStatus = RunStatus.CREATED
    turns: tuple[PastTurn, ...] = ()
    prompt_tokens: int = 0
    completion_tokens: int = 0
    ended_at: int = 0
    code: str = ""
    message: str = ""
    seq: int = 0  # the number of its facts
    moves: int = 0  # the number of its facts that changed the status: the version of its row
    context: dict[str, Any] = {}

    @property
    def ended(self) -> bool:
        return self.status in TERMINAL

    @property
    def calls(self) -> tuple[CallState, ...]:
        """The calls of the latest turn: the only ones that can still be open."""
        return self.turns[-1].calls if self.turns else ()

    @property
    def open_calls(self) -> tuple[CallState, ...]:
        return tuple(call for call in self.calls if not call.ended)

    def call(self, call_id: str) -> CallState:
        for call in self.calls:
            if call.call_id == call_id:
                return call
        for turn in reversed(self.turns):
            for call in turn.calls:
                if call.call_id == call_id:
                    return call
        raise NotFound("tool call", call_id)


class Begin(msgspec.Struct, frozen=True):
    """Begin a run that no worker has begun."""


class EndTurn(msgspec.Struct, frozen=True):
    text: str
    calls: tuple[PlannedCall, ...]
    prompt_tokens: int
    completion_tokens: int
    now: int


class MoveCall(msgspec.Struct, frozen=True):
    call_id: str
    to: CallStatus
    client: bool = False
    deadline: int = 0
    approval_id: str = ""
    output: str = ""
    error_code: str = ""


class End(msgspec.Struct, frozen=True):
    """Stop the run before its own end."""

    status: RunStatus
    code: str
    message: str
    now: int


Command = Begin | EndTurn | MoveCall | End


def decide(state: RunState, command: Command) -> list[Fact]:
    """The facts that follow from a command; Conflict if it comes too late."""
    if state.ended:
        raise Conflict(f"run {state.run_id} has ended: {state.status}")
    match command:
        case Begin():
            if state.status is not RunStatus.CREATED:
                raise Conflict(f"run {state.run_id} has begun already")
            return [RunBegun()]
        case EndTurn():
            return _end_turn(state, command)
        case MoveCall():
            return _move_call(state, command)
        case End():
            return [RunEnded(command.status, command.now, command.code, command.message)]
        case _:
            assert_never(command)


def _end_turn(state: RunState, command: EndTurn) -> list[Fact]:
    if state.open_calls:
        raise Conflict(f"run {state.run_id} waits for its tool calls")
    begun: list[Fact] = [RunBegun()] if state.status is RunStatus.CREATED else []
    ended = TurnEnded(command.text, command.calls, command.prompt_tokens, command.completion_tokens)
    done = [] if command.calls else [RunEnded(RunStatus.DONE, command.now)]
    return [*begun, ended, *done]


def _move_call(state: RunState, command: MoveCall) -> list[Fact]:
    call = state.call(command.call_id)
    *passed, last = way(call.call_id, call.status, command.to)
    shared = CallMoved(
        command.call_id,
        last,
        client=command.client or call.client,
        deadline=command.deadline or call.deadline,
        approval_id=command.approval_id or call.approval_id,
    )
    moved = replace(shared, output=command.output, error_code=command.error_code)
    return [*(replace(shared, to=to) for to in passed), moved]


def begin(fact: RunStarted) -> RunState:
    return RunState(
        run_id=fact.run_id,
        session_id=fact.session_id,
        agent_id=fact.agent_id,
        user_id=fact.user_id,
        request_id=fact.request_id,
        role=fact.role,
        content=fact.content,
        started_at=fact.at,
        context=fact.context,
        seq=1,
    )


def reduce(state: RunState | None, fact: Fact) -> RunState:
    """The state after a fact."""
    after = _reduce(state, fact)
    if state is not None and after.status is not state.status:
        return replace(after, moves=state.moves + 1)
    return after


def _reduce(state: RunState | None, fact: Fact) -> RunState:
    match fact:
        case RunStarted():
            return begin(fact)
        case _ if state is None:
            raise Conflict("a run begins with its start")
        case RunBegun():
            return replace(state, status=RunStatus.RUNNING, seq=state.seq + 1)
        case TurnEnded():
            calls = tuple(
                CallState(call.call_id, call.tool, call.args, sealed=call.sealed)
                for call in fact.calls
            )
            return _with_status(
                replace(
                    state,
                    turns=(*state.turns, PastTurn(fact.text, calls)),
                    prompt_tokens=state.prompt_tokens + fact.prompt_tokens,
                    completion_tokens=state.completion_tokens + fact.completion_tokens,
                    seq=state.seq + 1,
                )
            )
        case CallMoved():
            moved = tuple(
                _moved(call, fact) if call.call_id == fact.call_id else call for call in state.calls
            )
            latest = PastTurn(state.turns[-1].text, moved)
            return _with_status(
                replace(state, turns=(*state.turns[:-1], latest), seq=state.seq + 1)
            )
        case RunEnded():
            return replace(
                state,
                status=fact.status,
                code=fact.code,
                message=fact.message,
                ended_at=fact.at,
                seq=state.seq + 1,
            )
        case _:
            assert_never(fact)


def _moved(call: CallState, fact: CallMoved) -> CallState:
    return replace(
        call,
        status=fact.to,
        client=fact.client,
        deadline=fact.deadline,
        approval_id=fact.approval_id,
        output=fact.output,
        error_code=fact.error_code,
    )


def _with_status(state: RunState) -> RunState:
    """The state with the status that its open calls give it: a person comes before a tool."""
    if any(call.status is CallStatus.WAITING_APPROVAL for call in state.open_calls):
        status = RunStatus.PAUSED_WAITING_APPROVAL
    elif state.open_calls:
        status = RunStatus.PAUSED_WAITING_TOOL
    else:
        status = RunStatus.RUNNING
    return replace(state, status=status)
