"""Start, change and end runs; `advance` does the work in between.

Every change is compare-and-set: it is decided on the state as read, committed at the number that the
state was read at, and decided again if another change was first.
"""

import asyncio
import contextlib
import logging
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeVar
from weakref import WeakValueDictionary

from toolgate.access.devices import Identity
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
    Put,
    Row,
)
from toolgate.journal.paging import all_rows
from toolgate.runs import deliveries, records
from toolgate.runs.agents.registry import Agents
from toolgate.runs.client_tools import SessionTools
from toolgate.runs.deliveries import Delivery
from toolgate.runs.orchestrator import Accepted, Invocation
from toolgate.runs.originals import CALL_ARGS, Originals
from toolgate.runs.state import (
    CallState,
    Command,
    End,
    MoveCall,
    PlannedCall,
    RunStarted,
    RunState,
    decide,
    reduce,
)
from toolgate.tools import outcomes
from toolgate.tools.approvals import Question
from toolgate.tools.outcomes import ToolGate

log = logging.getLogger(__name__)

REQUEST_KEPT_MS: Final = 24 * 3600 * 1000  # ingress contract: "request_id per session, 24 h"
FINAL_EPOCH: Final = 2**62  # the fence of an ended run: no worker has a higher epoch
ON_DEVICE: Final = "device"  # the isolation of a client's tool, in the evidence
OUTPUT_LIMIT: Final = 256 * 1024  # characters of a tool's output, for the agent
REASON_LIMIT: Final = 8 * 1024  # characters of an agent's error text
CODE_LIMIT: Final = 128
# A device's error with a code, as one string: "code: message" (ingress spec, v2).
CODED_ERROR: Final = re.compile(r"([a-z][a-z0-9]*(?:_[a-z0-9]+)+): (.*)", re.DOTALL)
CLOSED: Final = frozenset({outcomes.DECIDED, outcomes.EXPIRED})


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Limits:
    """The deadlines of the ingress contract ("States")."""

    tool_ms: int = 60_000
    approval_ms: int = 600_000
    agent_ms: int = 300_000


class Change(NamedTuple):
    """A run's next state, and the operations that write it."""

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
    originals: Originals
    # Text and members from persons, devices, agents and other systems are stored without secrets.
    redact: Callable[[str], str] = str
    redact_fields: Callable[[Mapping[str, JsonValue]], dict[str, JsonValue]] = dict
    limits: Limits = field(default_factory=Limits)
    is_slow: bool = field(default=False, init=False)
    _moving: WeakValueDictionary[str, asyncio.Lock] = field(default_factory=WeakValueDictionary)
    _latest: dict[str, RunState] = field(default_factory=dict)  # of runs that are being advanced
    _decided: dict[str, asyncio.Event] = field(default_factory=dict)  # the same runs

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
        except Conflict:  # a known request; most are new, so that reading first would cost more
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
        """Keep a run's state in memory while it is advanced, so that only new facts are read.

        The event is set when an approval of the run is decided or expires.
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
        also: Sequence[Operation] = (),
        seen: RunState | None = None,
        durable: bool = True,
    ) -> RunState:
        """Decide a command on the run's state and commit it with `also`; Conflict if too late."""

        async def commit(state: RunState) -> RunState:
            change = self.change(state, command, also=also)
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
        """Commit a change of a run's state, and again if another change was first.

        Changes of one run wait for each other: otherwise many calls that move at once would conflict.
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
        events: Sequence[Delivery] = (),
        also: Sequence[Operation] = (),
    ) -> "Change":
        """A command's next state of a run, and its operations with `also`; raises Conflict.

        `events` go to the devices before the events that follow from the facts.
        """
        run_id, before = state.run_id, state
        facts = decide(state, command)
        sent = [*events]
        rows: list[Operation] = []
        for fact in facts:
            after = reduce(state, fact)
            sent.extend(deliveries.of_fact(state, fact, after))
            if after.status is not state.status:  # version by version, as `moves` counts
                rows.append(
                    Put(records.RUNS, run_id, records.run_line(after), expected=state.moves)
                )
            state = after
        rows.extend(self._deadline(before, state))
        rows.extend(_ended_args(before, state))
        if before.status is RunStatus.CREATED:  # not written by the start
            key = records.session_key(state.session_id, run_id)
            rows.append(Put(records.SESSION_RUNS, key, b"null", expected=0))
        if state.ended:
            rows.extend(_end_rows(state))
        appended = [
            Append(
                records.run_stream(run_id),
                records.fact_events(run_id, facts),
                expected_seq=before.seq,
            )
        ]
        if sent:
            appended.append(records.delivery_append(state.session_id, sent))
        return Change(state, (*appended, *rows, *also))

    def committed(self, change: "Change") -> None:
        """Note a change that is on disk."""
        for operation in change.operations:
            if isinstance(operation, Put) and operation.due is not None:
                self.dispatcher.wake_at(operation.due)
        self.originals.follow(change.operations)
        self._note(change.after)

    def _deadline(self, before: RunState, after: RunState) -> list[Operation]:
        """The agent's deadline: it stops while a person is waited for, and then starts anew."""
        ran, runs = _agent_runs(before), _agent_runs(after)
        if ran == runs:
            return []
        if not runs:
            return [Delete(records.AGENT_DEADLINES, after.run_id)]
        owner = records.encode(records.Owner(after.run_id, after.session_id))
        due = self.clock.now_ms() + self.limits.agent_ms
        return [Put(records.AGENT_DEADLINES, after.run_id, owner, expected=0, due=due)]

    def plan(
        self, run_id: str, tool: str, args: dict[str, Any]
    ) -> tuple[PlannedCall, list[Operation]]:
        """A call as the run's facts keep it, and the row of its arguments if they hold a secret."""
        call_id, clean = self.new_id("tc"), self.redact_fields(args)
        if clean == args:
            return PlannedCall(call_id, self.redact(tool), args), []
        row = self.originals.put(call_id, run_id, args)
        return PlannedCall(call_id, self.redact(tool), clean, sealed=True), [row]

    async def args_of(self, call: CallState) -> dict[str, Any]:
        """The arguments of an open call as the agent gave them; NotFound if their row is gone."""
        return await self.originals.read(call.call_id) if call.sealed else call.args

    async def submit_result(
        self, call_id: str, *, session_id: str, run_id: str, ok: bool, result: Any, error: Any
    ) -> Accepted:
        """Take a device's result of a call; Conflict if the call has ended already."""
        call, state = await self.find_call(call_id)
        if (session_id and state.session_id != session_id) or (run_id and state.run_id != run_id):
            raise NotFound("tool call", call_id)
        if not call.client:
            raise Conflict(f"tool call {call_id} does not run on a device")
        state = await self.end_call(state.run_id, call_id, ok=ok, result=result, error=error)
        return Accepted(state.run_id, state.status)

    async def client_offline(self, run_id: str, call_id: str, *, taken: bool = False) -> None:
        offline = {"code": "client_offline", "message": "the client is not connected"}
        await self.end_call(run_id, call_id, ok=False, result=None, error=offline, taken=taken)

    async def end_call(
        self, run_id: str, call_id: str, *, ok: bool, result: Any, error: Any, taken: bool = True
    ) -> RunState:
        """End a device's call; `taken` unless no device has received it."""
        if ok:
            output = result if isinstance(result, str) else records.encode(result).decode()
            output = self.redact(output)[:OUTPUT_LIMIT]
            move = MoveCall(call_id, CallStatus.SUCCEEDED, output=output)
            made = ToolOutput(0, stdout=output, isolation=ON_DEVICE)
        else:
            code, message = _error_parts(error)
            move = MoveCall(
                call_id,
                CallStatus.FAILED,
                output=self.redact(message)[:OUTPUT_LIMIT],
                error_code=self._code(code),
            )
            made = _failed_on_device(message, started=taken)
        state = await self._finish_on_device(run_id, move, made)
        self.dispatcher.dispatch(run_id)
        return state

    async def _finish_on_device(self, run_id: str, move: MoveCall, output: ToolOutput) -> RunState:
        """Finish a call that a device has, in one commit with the run's next state."""

        async def commit(state: RunState) -> RunState:
            call = state.call(move.call_id)
            if not call.on_device:
                raise Conflict(f"tool call {call.call_id} is {call.status}")
            change = self.change(state, move)
            await self.gate.finish_call(
                move.call_id, output, status=move.to, also=change.operations
            )
            self.committed(change)
            return change.after

        return await self.in_turn(run_id, commit)

    async def find_call(self, call_id: str) -> tuple[CallState, RunState]:
        state = await self.state(await self.gate.run_of(call_id))
        return state.call(call_id), state

    async def find_approval(self, approval_id: str) -> Question:
        """The approval of a run's call; NotFound for any other."""
        asked = await self.gate.approval(approval_id)
        with contextlib.suppress(NotFound):
            (await self.state(asked.approval.run_id)).call(asked.approval.request_id)
            return asked
        raise NotFound("approval", approval_id)

    async def decide_approval(
        self,
        approval_id: str,
        *,
        session_id: str,
        run_id: str,
        approve: bool,
        reason: str,
        decided_by: Identity,
    ) -> Accepted:
        """Record a person's answer; the stream of approvals then wakes the run."""
        approval = (await self.find_approval(approval_id)).approval
        is_other = session_id and approval.session != session_id
        if is_other or (run_id and approval.run_id != run_id):
            raise NotFound("approval", approval_id)
        await self.gate.decide_approval(
            approval_id,
            approve=approve,
            decided_by=decided_by,
            reason=reason,
        )
        return Accepted(approval.run_id, (await self.state(approval.run_id)).status)

    def watch_approvals(self, bus: Bus) -> Subscription:
        """Wake the run of each approval that is decided or expires, at whichever surface."""

        def wake(events: Sequence[Event]) -> None:
            for event in events:
                if event.type not in CLOSED or not event.subject:
                    continue
                if (decided := self._decided.get(event.subject)) is not None:
                    decided.set()
                else:
                    self.dispatcher.dispatch(event.subject)

        return bus.subscribe(outcomes.APPROVALS, wake)

    async def cancel(self, run_id: str, *, session_id: str, reason: str) -> Accepted:
        state = await self.state(run_id)
        if session_id and state.session_id != session_id:
            raise NotFound("run", run_id)
        await self.end(run_id, RunStatus.CANCELLED, code="cancelled", message=reason)
        after = state if state.ended else await self.state(run_id)
        return Accepted(run_id, after.status, already=state.ended)

    async def end(self, run_id: str, status: RunStatus, *, code: str, message: str) -> None:
        """End a run from outside; an ended run stays as it is."""
        reason = self.redact(message)[:REASON_LIMIT]
        command = End(status, self._code(code), reason, self.clock.now_ms())
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
        """A code from an agent or a device, which may be any text."""
        return self.redact(given)[:CODE_LIMIT]

    async def _abandon(self, state: RunState, message: str, change: Change) -> None:
        """End the run together with the calls that wait for a person or a device."""
        waiting = [
            call.call_id for call in state.open_calls if call.status is CallStatus.WAITING_APPROVAL
        ]
        late = _failed_on_device(message, started=True)
        dispatched = {call.call_id: late for call in state.open_calls if call.on_device}
        await self.gate.abandon(waiting, dispatched, reason=message, also=change.operations)
        self.committed(change)

    async def on_agent_deadline(self, row: Row) -> None:
        """Fail a run whose agent has used its time."""
        run_id = records.decode_owner(row.value).run_id
        try:
            await self.end(
                run_id, RunStatus.FAILED, code="agent_timeout", message="the agent took too long"
            )
        except NotFound:
            await self.journal.commit(Delete(row.collection, row.key))

    async def allow_for_downtime(self) -> None:
        """Start every agent's time anew; before deadlines are kept, because no agent ran meanwhile."""
        after, due = "", self.clock.now_ms() + self.limits.agent_ms
        while rows := await self.journal.scan(records.AGENT_DEADLINES, after=after):
            puts = [Put(row.collection, row.key, row.value, row.version, due) for row in rows]
            await self.journal.commit(*puts, durable=False)
            after = rows[-1].key

    async def on_call_deadline(self, row: Row) -> None:
        """Fail a call for which no device has sent a result in time."""
        call_id = row.key
        move = MoveCall(
            call_id, CallStatus.TIMEOUT, output="no result in time", error_code="tool_timeout"
        )
        late = _failed_on_device(move.output, started=True)
        try:
            run_id = await self.gate.run_of(call_id)
            await self._finish_on_device(run_id, move, late)
        except (
            Conflict,
            NotFound,
        ):  # the run has ended or is deleted, and the call is not open in it
            await self.gate.finish_call(call_id, late, status=CallStatus.TIMEOUT)
            return
        self.dispatcher.dispatch(run_id)

    async def on_request_expired(self, row: Row) -> None:
        await self.journal.commit(Delete(row.collection, row.key))

    async def open_runs(self, session_id: str = "") -> list[tuple[str, str]]:
        """The runs that have not ended, each with its session."""
        if session_id:
            runs = await records.open_of(self.journal, session_id)
            return [(run_id, session_id) for run_id in runs]
        rows = all_rows(self.journal, records.OPEN_RUNS)
        owners = [records.decode_owner(row.value) async for row in rows]
        return [(owner.run_id, owner.session_id) for owner in owners]

    async def receive(self, session_id: str, delivery: Delivery) -> None:
        """Store an event of a run of another orchestrator."""
        durable = not deliveries.is_passing(delivery)
        await self.journal.commit(records.delivery_append(session_id, [delivery]), durable=durable)

    async def session_of(self, run_id: str) -> str:
        row = await self.journal.get(records.RUNS, run_id)
        if row is not None:
            return records.decode_run_line(row.value).session_id
        return (await self.state(run_id)).session_id  # it has just started

    async def register_tools(self, session_id: str, tools: Sequence[Tool]) -> None:
        await self.session_tools.register(session_id, tools)

    async def snapshot(self, session_id: str) -> list[Delivery]:
        """The state of the session's open runs, as the messages that lead to it."""
        found: list[Delivery] = []
        for run_id, _ in await self.open_runs(session_id):
            state = await self.state(run_id)
            found.append(deliveries.state(run_id, state.status))
            for call in state.open_calls:
                if call.on_device:
                    found.append(deliveries.tool_request(state, call))
                elif call.status is CallStatus.WAITING_APPROVAL:
                    approval, summary, args = await self.gate.approval(call.approval_id)
                    found.append(
                        deliveries.approval_required(
                            state, call, approval, summary=summary, args=args
                        )
                    )
        return found


def _end_rows(state: RunState) -> list[Operation]:
    """The rows of a run that ends: it is no longer open, and its request is remembered for a day."""
    run_id, session_id, request_id = state.run_id, state.session_id, state.request_id
    owner = records.encode(records.Owner(run_id, session_id))
    rows: list[Operation] = [
        Delete(records.OPEN_RUNS, records.open_key(session_id, request_id, run_id)),
        Put(records.ENDED_RUNS, records.ended_key(state.ended_at, run_id), owner, expected=0),
        Fence(records.fence_name(run_id), FINAL_EPOCH),
    ]
    if request_id:
        key = records.request_key(session_id, request_id)
        due = state.ended_at + REQUEST_KEPT_MS
        rows.append(Put(records.REQUESTS, key, records.encode(run_id), expected=0, due=due))
    return rows


def _ended_args(before: RunState, after: RunState) -> list[Operation]:
    """The deletion of sealed arguments whose call has ended, or whose run has.

    A run's end deletes those of ended calls again: the commit of a cancelled caller is not followed.
    """
    return [
        Delete(CALL_ARGS, call.call_id)
        for call in before.calls
        if call.sealed and (after.ended or (not call.ended and after.call(call.call_id).ended))
    ]


def _agent_runs(state: RunState) -> bool:
    """True while the agent's time runs: not before it begins, nor while a person is waited for."""
    waits = (RunStatus.CREATED, RunStatus.PAUSED_WAITING_APPROVAL)
    return not state.ended and state.status not in waits


def _failed_on_device(message: str, *, started: bool) -> ToolOutput:
    outcome = Outcome.MAY_HAVE_EXECUTED if started else Outcome.NOT_STARTED
    return ToolOutput(1, stderr=message, outcome=outcome, isolation=ON_DEVICE)


def _error_parts(error: Any) -> tuple[str, str]:
    """The code and message of a device's error, which is a string or an object."""
    match error:
        case None:
            return "tool_failed", "the tool failed"
        case str():
            coded = CODED_ERROR.fullmatch(error)
            return (coded[1], coded[2]) if coded else ("tool_failed", error)
        case {"code": str(code), "message": str(message)}:
            return code, message
        case dict():
            return "tool_failed", records.encode(error).decode()
        case _:
            raise Invalid("error must be a string or an object", field="error")
