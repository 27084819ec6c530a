"""The use cases of a run: start it, change it, end it. What it does in between is in `advance`.

Every change is compare-and-set: decided on the state as read, committed at the number it was read
at, and decided anew where someone else was first.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeVar
from weakref import WeakValueDictionary

from toolgate.core.clock import Clock
from toolgate.core.enums import CallStatus, Outcome, RunStatus
from toolgate.core.errors import Conflict, Fenced, Invalid, NotFound
from toolgate.core.ids import NewId
from toolgate.core.tools import JsonValue, Tool, ToolOutput
from toolgate.journal.bus import Bus, Subscription
from toolgate.journal.dispatcher import Dispatcher
from toolgate.journal.journal import (
    Append,
    Delete,
    Event,
    Fence,
    Journal,
    Operation,
    Overwrite,
    Put,
    Row,
)
from toolgate.runs import deliveries, records
from toolgate.runs.agents.registry import Agents
from toolgate.runs.calls import CallState
from toolgate.runs.client_tools import SessionTools
from toolgate.runs.deliveries import Delivery
from toolgate.runs.orchestrator import Invocation
from toolgate.runs.state import Command, End, MoveCall, RunStarted, RunState, decide, reduce
from toolgate.tools import outcomes
from toolgate.tools.outcomes import ToolGate

log = logging.getLogger(__name__)

REQUEST_KEPT_MS: Final = 24 * 3600 * 1000  # ingress contract: "request_id per session, 24 h"
FINAL_EPOCH: Final = 2**62  # the fence of a run that has ended: no worker has a higher one
ON_DEVICE: Final = "device"  # the isolation of what a client runs, as the evidence calls it
OUTPUT_LIMIT: Final = 256 * 1024  # characters of a tool's output that an agent is given
REASON_LIMIT: Final = 8 * 1024  # characters of why a run failed, as its agent says
CODE_LIMIT: Final = 128
PAGE: Final = 50  # runs in a list, unless told otherwise
PENDING: Final = "PENDING"
SETTLED: Final = frozenset({outcomes.DECIDED, outcomes.EXPIRED})


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Limits:
    """How long things may take (ingress contract, "States")."""

    tool_ms: int = 60_000
    approval_ms: int = 600_000
    agent_ms: int = 300_000


class Change(NamedTuple):
    """A run's next state, and what writes it."""

    after: RunState
    operations: Sequence[Operation]


@dataclass(slots=True)
class Runs:
    """All runs of this installation."""

    journal: Journal
    dispatcher: Dispatcher
    gate: ToolGate
    clock: Clock
    new_id: NewId
    agents: Agents
    session_tools: SessionTools
    # What a person, a device or another system says is kept without secrets.
    redact: Callable[[str], str] = str
    redact_fields: Callable[[Mapping[str, JsonValue]], dict[str, JsonValue]] = dict
    limits: Limits = field(default_factory=Limits)
    _moving: WeakValueDictionary[str, asyncio.Lock] = field(default_factory=WeakValueDictionary)
    _latest: dict[str, RunState] = field(default_factory=dict)  # of runs that are worked on
    _decided: dict[str, asyncio.Event] = field(default_factory=dict)  # of the same

    async def invoke(self, invocation: Invocation) -> str:
        if not self.agents.knows(invocation.agent_id):
            await self.agents.find(invocation.agent_id)
        run_id = self.new_id("run")
        started = RunStarted(
            run_id=run_id,
            session_id=invocation.session_id,
            agent_id=invocation.agent_id,
            user_id=invocation.user_id,
            request_id=invocation.request_id,
            role=invocation.role,
            content=self.redact(invocation.content),
            at=self.clock.now_ms(),
            context=self.redact_fields(invocation.context) if invocation.context else {},
        )
        try:
            await self.journal.commit(*records.start(started, deliveries.run_started(started)))
        except Conflict:  # asked before: most are not, so that looking first would cost a read
            known = await self._known_request(invocation)
            if not known:
                raise
            return known
        self.dispatcher.dispatch(run_id)
        return run_id

    def knows_agent(self, agent_id: str) -> bool:
        return self.agents.knows(agent_id)

    async def _known_request(self, invocation: Invocation) -> str:
        session_id, request_id = invocation.session_id, invocation.request_id
        if not request_id:
            return ""
        # In this order: a run that ends meanwhile goes from the first to the second.
        row = await self.journal.get(
            records.OPEN_RUNS, records.open_key(session_id, request_id, "")
        )
        if row is not None:
            return records.decode_owner(row.value).run_id
        row = await self.journal.get(records.REQUESTS, records.request_key(session_id, request_id))
        return "" if row is None else records.decode_text(row.value)

    async def state(self, run_id: str) -> RunState:
        state = await records.load(self.journal, run_id, since=self._latest.get(run_id))
        if state is None:
            raise NotFound("run", run_id)
        self._note(state)
        return state

    @contextmanager
    def at_work(self, state: RunState) -> Iterator[asyncio.Event]:
        """While a run is worked on, only what is new of it is read: it may have hundreds of calls.

        The event is set whenever a person has decided on one of them.
        """
        self._latest[state.run_id] = state
        decided = self._decided[state.run_id] = asyncio.Event()
        try:
            yield decided
        finally:
            del self._latest[state.run_id], self._decided[state.run_id]

    def _note(self, state: RunState) -> None:
        known = self._latest.get(state.run_id)
        if known is not None and known.seq < state.seq:
            self._latest[state.run_id] = state

    async def apply(
        self,
        run_id: str,
        command: Command,
        *,
        told: Sequence[Delivery] = (),
        seen: RunState | None = None,
        durable: bool = True,
    ) -> RunState:
        """Decide a command on the run's state and commit what follows; Conflict where too late.

        `told` is what the devices receive besides what the facts themselves say.
        """

        async def commit(state: RunState) -> RunState:
            change = self.change(state, command, told=told)
            await self.journal.commit(*change.operations, durable=durable)
            self.committed(change)
            return change.after

        return await self.in_turn(run_id, commit, seen=seen)

    async def in_turn(
        self,
        run_id: str,
        commit: Callable[[RunState], Awaitable[T]],
        *,
        seen: RunState | None = None,
    ) -> T:
        """Commit a change of a run's state, again where another change was first.

        One after the other: of many calls that move at once each would otherwise conflict with the
        rest.
        """
        async with self._moving.setdefault(run_id, asyncio.Lock()):
            state = seen if seen is not None else await self.state(run_id)
            while True:
                try:
                    return await commit(state)
                except Fenced:
                    raise
                except Conflict:
                    before, state = state, await self.state(run_id)
                    if state.seq == before.seq:
                        raise

    def change(
        self,
        state: RunState,
        command: Command,
        *,
        told: Sequence[Delivery] = (),
        besides: Sequence[Operation] = (),
    ) -> "Change":
        """What a command makes of the run's state, and the operations for it; raises Conflict."""
        run_id, before = state.run_id, state
        facts = decide(state, command)
        heard: list[Delivery] = []
        operations: list[Operation] = [
            Append(
                records.run_stream(run_id),
                records.fact_events(run_id, facts),
                expected_seq=state.seq,
            )
        ]
        for fact in facts:
            after = reduce(state, fact)
            heard.extend(deliveries.of_fact(state, fact, after))
            state = after
        operations.extend(_call_rows(before, state))
        if [*told, *heard]:
            operations.append(records.delivery_append(state.session_id, [*told, *heard]))
        if state.status is not before.status:
            operations.append(Overwrite(records.RUNS, run_id, records.run_line(state)))
            operations.extend(self._agent_time(before, state))
        if before.status is RunStatus.CREATED:  # what its start left for later
            key = records.session_key(state.session_id, run_id)
            operations.append(Overwrite(records.SESSION_RUNS, key, b"null"))
        if state.ended:
            operations.extend(_end_rows(state))
        return Change(state, (*operations, *besides))

    def committed(self, change: "Change") -> None:
        """Note a change that is on disk."""
        for operation in change.operations:
            if isinstance(operation, Put | Overwrite) and operation.due is not None:
                self.dispatcher.wake_at(operation.due)
        self._note(change.after)

    def _open_row(self, state: RunState, *, due: int | None) -> Overwrite:
        key = records.open_key(state.session_id, state.request_id, state.run_id)
        owner = records.Owner(state.run_id, state.session_id)
        return Overwrite(records.OPEN_RUNS, key, records.encode(owner), due=due)

    def _agent_time(self, before: RunState, after: RunState) -> list[Operation]:
        """A person's time is not the agent's: its clock stops, and starts anew when they have spoken."""
        waited = before.status is RunStatus.PAUSED_WAITING_APPROVAL
        waits = after.status is RunStatus.PAUSED_WAITING_APPROVAL
        begins = before.status is RunStatus.CREATED
        if after.ended or (waited == waits and not begins):
            return []
        if waits:
            return [self._open_row(after, due=None)]
        return [self._open_row(after, due=self.clock.now_ms() + self.limits.agent_ms)]

    async def submit_result(
        self, call_id: str, *, session_id: str, run_id: str, ok: bool, result: Any, error: Any
    ) -> None:
        """What a device says came of a call; Conflict where the call has ended already."""
        call, owner = await self.find_call(call_id)
        if (session_id and owner.session_id != session_id) or (run_id and owner.run_id != run_id):
            raise NotFound("tool call", call_id)
        if not call.client:
            raise Conflict(f"tool call {call_id} does not run on a device")
        await self.end_call(owner.run_id, call_id, ok=ok, result=result, error=error)

    async def client_offline(self, run_id: str, call_id: str) -> None:
        """Nobody was there to take a tool request."""
        offline = {"code": "client_offline", "message": "the client is not connected"}
        await self.end_call(run_id, call_id, ok=False, result=None, error=offline, taken=False)

    async def end_call(
        self, run_id: str, call_id: str, *, ok: bool, result: Any, error: Any, taken: bool = True
    ) -> CallState:
        """A device's call has ended; `taken` where a device had it at all."""
        if ok:
            output = result if isinstance(result, str) else records.encode(result).decode()
            output = self.redact(output)[:OUTPUT_LIMIT]
            move = MoveCall(call_id, CallStatus.SUCCEEDED, output=output)
            came_of_it = ToolOutput(0, stdout=output, isolation=ON_DEVICE)
        else:
            code, message = _error_parts(error)
            move = MoveCall(
                call_id,
                CallStatus.FAILED,
                output=self.redact(message)[:OUTPUT_LIMIT],
                error_code=self._code(code),
            )
            came_of_it = _failed_on_device(message, started=taken)
        state = await self._finish_on_device(run_id, move, came_of_it)
        self.dispatcher.dispatch(run_id)
        return state.call(call_id)

    async def _finish_on_device(self, run_id: str, move: MoveCall, output: ToolOutput) -> RunState:
        """Finish a call that a device has run, in one commit with the run's next state."""

        async def commit(state: RunState) -> RunState:
            change = self.change(state, move)
            await self.gate.finish_call(move.call_id, output, also=change.operations)
            self.committed(change)
            return change.after

        return await self.in_turn(run_id, commit)

    async def find_call(self, call_id: str) -> tuple[CallState, RunState]:
        row = await self.journal.get(records.CALLS, call_id)
        if row is None:
            raise NotFound("tool call", call_id)
        state = await self.state(records.decode_owner(row.value).run_id)
        return state.call(call_id), state

    async def decide_approval(
        self,
        approval_id: str,
        *,
        session_id: str,
        run_id: str,
        approve: bool,
        reason: str,
        decided_by: str,
    ) -> None:
        """Record a person's answer; the run that waits for it goes on when the decision is announced.

        In a session it is its user's, who may be called what they like: also as the operator is.
        """
        line = await self.find_approval(approval_id)
        if (session_id and line.session_id != session_id) or (run_id and line.run_id != run_id):
            raise NotFound("approval", approval_id)
        ended = (await self.state(line.run_id)).ended
        if ended and await self.verdict(approval_id) == PENDING:  # nothing would come of it
            raise Conflict(f"run {line.run_id} has ended")
        try:
            await self.gate.decide_approval(
                approval_id,
                approve=approve,
                decided_by=f"user:{decided_by}" if session_id else decided_by,
                reason=reason,
            )
        except Conflict:  # someone else was first: all are told the same
            stands = await self.verdict(approval_id)
            raise Conflict(f"approval {approval_id} is {stands.lower()} already") from None

    async def find_approval(self, approval_id: str) -> records.ApprovalLine:
        row = await self.journal.get(records.RUN_APPROVALS, approval_id)
        if row is None:
            raise NotFound("approval", approval_id)
        return records.decode_approval_line(row.value)

    async def verdict(self, approval_id: str) -> str:
        """APPROVED, REJECTED or EXPIRED; PENDING where nobody has decided."""
        row = await self.journal.get(outcomes.APPROVALS, approval_id)
        return PENDING if row is None else str(records.decode_members(row.value)["status"])

    def watch_approvals(self, bus: Bus) -> Subscription:
        """Hear of decisions that came by another door, and let their runs go on."""

        def heard(events: Sequence[Event]) -> None:
            for event in events:
                if event.type in SETTLED and event.subject:
                    if event.subject in self._decided:
                        self._decided[event.subject].set()
                    self.dispatcher.dispatch(event.subject)

        return bus.subscribe(outcomes.APPROVALS, heard)

    async def cancel(self, run_id: str, *, session_id: str, reason: str) -> None:
        state = await self.state(run_id)
        if session_id and state.session_id != session_id:
            raise NotFound("run", run_id)
        await self.end(run_id, RunStatus.CANCELLED, code="cancelled", message=reason)

    async def end(self, run_id: str, status: RunStatus, *, code: str, message: str) -> None:
        """End a run from outside; one that has ended already stays as it is."""
        told = self.redact(message)[:REASON_LIMIT]
        command = End(status, self._code(code), told, self.clock.now_ms())
        ended = False
        while not ended:
            state = await self.state(run_id)
            if state.ended:
                return
            change = self.change(state, command)
            try:
                await self._abandon(state, message, change)
                ended = True
            except Fenced:
                return
            except Conflict:  # a call of it ended meanwhile, or the run did
                log.debug("run_moved run_id=%s", run_id)
        self.dispatcher.interrupt(run_id)

    def _code(self, given: str) -> str:
        """As an agent or a device gives it, which may be any text."""
        return self.redact(given)[:CODE_LIMIT]

    async def _abandon(self, state: RunState, message: str, change: Change) -> None:
        """End the run together with the calls that wait for a person or a device."""
        waiting = [
            call.call_id for call in state.open_calls if call.status is CallStatus.WAITING_APPROVAL
        ]
        late = _failed_on_device(message, started=True)
        dispatched = {
            call.call_id: late
            for call in state.open_calls
            if call.client and call.status is CallStatus.DISPATCHED
        }
        await self.gate.abandon(waiting, dispatched, reason=message, also=change.operations)
        self.committed(change)

    async def on_agent_deadline(self, row: Row) -> None:
        """The row of an open run is due: its agent has had its time."""
        run_id = records.decode_owner(row.value).run_id
        try:
            await self.end(
                run_id, RunStatus.FAILED, code="agent_timeout", message="the agent took too long"
            )
        except NotFound:
            await self.journal.commit(Delete(row.collection, row.key))

    async def allow_for_downtime(self) -> None:
        """Before deadlines are kept: agents had no time while there was no process, theirs starts anew."""
        after, due = "", self.clock.now_ms() + self.limits.agent_ms
        while rows := await self.journal.scan(records.OPEN_RUNS, after=after):
            anew = [row for row in rows if row.due is not None]
            puts = [Overwrite(row.collection, row.key, row.value, due=due) for row in anew]
            if puts:
                await self.journal.commit(*puts, durable=False)
            after = rows[-1].key

    async def on_call_deadline(self, row: Row) -> None:
        """The row of a call is due: no device has answered in time."""
        line = records.decode_owner(row.value)
        move = MoveCall(
            row.key, CallStatus.TIMEOUT, output="no result in time", error_code="tool_timeout"
        )
        try:
            late = _failed_on_device(move.output, started=True)
            await self._finish_on_device(line.run_id, move, late)
        except (Conflict, NotFound):
            await self.journal.commit(Overwrite(records.CALLS, row.key, row.value))
            return
        self.dispatcher.dispatch(line.run_id)

    async def on_request_expired(self, row: Row) -> None:
        await self.journal.commit(Delete(row.collection, row.key))

    async def open_runs(self, session_id: str = "") -> list[tuple[str, str]]:
        """The runs that have not ended, each with its session."""
        if session_id:
            runs = await records.open_of(self.journal, session_id)
            return [(run_id, session_id) for run_id in runs]
        found: list[tuple[str, str]] = []
        after = ""
        while rows := await self.journal.scan(records.OPEN_RUNS, after=after):
            owners = (records.decode_owner(row.value) for row in rows)
            found.extend((owner.run_id, owner.session_id) for owner in owners)
            after = rows[-1].key
        return found

    async def hear(self, session_id: str, delivery: Delivery) -> None:
        """An event that another orchestrator pushed; its run is not one of ours."""
        durable = not deliveries.is_passing(delivery)
        await self.journal.commit(records.delivery_append(session_id, [delivery]), durable=durable)

    async def session_of(self, run_id: str) -> str:
        row = await self.journal.get(records.RUNS, run_id)
        if row is not None:
            return records.decode_run_line(row.value).session_id
        return (await self.state(run_id)).session_id  # it has only just started

    async def register_tools(self, session_id: str, tools: Sequence[Tool]) -> None:
        await self.session_tools.register(session_id, tools)

    async def snapshot(self, session_id: str) -> list[Delivery]:
        """Where the session's open runs stand, in the messages that would have told it."""
        told: list[Delivery] = []
        for run_id, _ in await self.open_runs(session_id):
            state = await self.state(run_id)
            told.append(deliveries.state(run_id, state.status))
            for call in state.open_calls:
                if call.client and call.status is CallStatus.DISPATCHED:
                    told.append(deliveries.tool_request(state, call))
                elif call.status is CallStatus.WAITING_APPROVAL:
                    told.append(await self._approval_told(state, call))
        return told

    async def _approval_told(self, state: RunState, call: CallState) -> Delivery:
        line = await self.find_approval(call.approval_id)
        return Delivery(deliveries.APPROVAL_REQUIRED, state.run_id, line.told)


def _end_rows(state: RunState) -> list[Operation]:
    """It is open no more; what asked for it is remembered, and what it was, for as long as both are."""
    run_id, session_id, request_id = state.run_id, state.session_id, state.request_id
    owner = records.encode(records.Owner(run_id, session_id))
    rows: list[Operation] = [
        Delete(records.OPEN_RUNS, records.open_key(session_id, request_id, run_id)),
        Overwrite(records.ENDED_RUNS, records.ended_key(state.ended_at, run_id), owner),
        Fence(records.fence_name(run_id), FINAL_EPOCH),
    ]
    if request_id:
        key = records.request_key(session_id, request_id)
        due = state.ended_at + REQUEST_KEPT_MS
        rows.append(Overwrite(records.REQUESTS, key, records.encode(run_id), due=due))
    return rows


def _call_rows(before: RunState, after: RunState) -> list[Operation]:
    """A row per call that is new or whose deadline changed, so that it can be found by its id."""
    had = {call.call_id: call for turn in before.turns[-1:] for call in turn.calls}
    rows: list[Operation] = []
    for call in after.calls:
        due = None if call.ended or after.ended else (call.deadline or None)
        old = had.get(call.call_id)
        old_due = None if old is None or old.ended else (old.deadline or None)
        if old is None or due != old_due:
            line = records.Owner(after.run_id, after.session_id)
            rows.append(Overwrite(records.CALLS, call.call_id, records.encode(line), due=due))
    return rows


def _failed_on_device(message: str, *, started: bool) -> ToolOutput:
    outcome = Outcome.MAY_HAVE_EXECUTED if started else Outcome.NOT_STARTED
    return ToolOutput(1, stderr=message, outcome=outcome, isolation=ON_DEVICE)


def _error_parts(error: Any) -> tuple[str, str]:
    """An error of a device is a string or an object with code and message."""
    match error:
        case None:
            return "tool_failed", "the tool failed"
        case str():
            return "tool_failed", error
        case {"code": str(code), "message": str(message)}:
            return code, message
        case dict():
            return "tool_failed", records.encode(error).decode()
        case _:
            raise Invalid("error must be a string or an object", field="error")
