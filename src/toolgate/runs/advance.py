"""Advance a run, turn by turn and call by call, until it ends or must wait.

All state is in the journal; nothing is kept between two calls of `advance`.
"""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Final, assert_never

from toolgate.contracts.wire import to_iso_ms
from toolgate.core.enums import CallStatus, Outcome, RunStatus
from toolgate.core.errors import Conflict, Fenced, NotFound, ToolgateError, Unavailable
from toolgate.core.tools import Caller, ToolOutput, ToolRequest
from toolgate.journal.journal import Append, Fence, Operation
from toolgate.runs import deliveries, records
from toolgate.runs.agents import agent as agents
from toolgate.runs.agents.agent import Agent, AgentFailed, Note, Say, ToolAnswer, Transcript, Turn
from toolgate.runs.client_tools import SessionTools
from toolgate.runs.conversations import Conversations
from toolgate.runs.runs import FINAL_EPOCH, OUTPUT_LIMIT, Change, Runs
from toolgate.runs.state import Begin, CallState, EndTurn, MoveCall, PastTurn, RunState
from toolgate.tools.definitions import failed
from toolgate.tools.outcomes import Allowed, Begun, Denied, Pending
from toolgate.tools.updates import Piece, Updates

log = logging.getLogger(__name__)

MAX_TURNS: Final = 64  # an agent that still calls tools after so many turns is in a loop
MAX_CALLS: Final = 128  # of one turn: they all begin at once
TEXT_LIMIT: Final = (
    4 * 1024 * 1024
)  # characters of one turn: more is a loop, and would fill the disk
UNWRITTEN_LIMIT: Final = 64 * 1024  # characters an agent may be ahead of the journal
NOTE_LIMIT: Final = 64 * 1024  # bytes of a state: it is one message
REFUSALS: Final = {
    "blocked": CallStatus.BLOCKED,
    "rejected": CallStatus.REJECTED,
    "approval_timeout": CallStatus.TIMEOUT,
}
DECISIONS: Final = {"rejected": "reject", "approval_timeout": "expired"}
ATTEMPTS: Final = 10  # of one step, if other changes of the run are first


@dataclass(slots=True)
class TurnWriter:
    """Writes an agent's turn into the journal; text that comes during a commit goes into the next."""

    runs: Runs
    state: RunState
    epoch: int
    skip: int = 0  # characters of this turn that were delivered before an interruption
    _said: list[str] = field(default_factory=list)
    _length: int = 0
    _unwritten: list[str] = field(default_factory=list)
    _waiting: int = 0
    _writing: asyncio.Task[None] | None = None

    @property
    def text(self) -> str:
        return "".join(self._said)

    async def say(self, step: Say) -> None:
        self._said.append(step.text)
        self._count(len(step.text))
        text = step.text[self.skip :]
        self.skip = max(0, self.skip - len(step.text))
        for start in range(0, len(text), UNWRITTEN_LIMIT):  # or one delta would be of any size
            await self._put(text[start : start + UNWRITTEN_LIMIT], apart=step.apart)

    async def _put(self, text: str, *, apart: bool) -> None:
        if apart or self._waiting + len(text) > UNWRITTEN_LIMIT:
            await self.flush()
        self._unwritten.append(text)
        self._waiting += len(text)
        if self._writing is None or self._writing.done():
            await self.check()
            self._writing = asyncio.create_task(self._write())

    def _count(self, length: int) -> None:
        self._length += length
        if self._length > TEXT_LIMIT:
            raise AgentFailed("too_much_text", f"more than {TEXT_LIMIT} characters in one turn")

    async def note(self, step: Note) -> None:
        await self.flush()
        detail = self.runs.redact_fields(step.detail) if step.detail else {}
        note = deliveries.state(self.state.run_id, self.runs.redact(step.state), detail)
        size = len(records.encode(note.members))
        if size > NOTE_LIMIT:
            raise AgentFailed("too_much_text", f"a state of more than {NOTE_LIMIT} bytes")
        self._count(size)
        await self.runs.journal.commit(self._fence(), self._append(note))

    async def flush(self) -> None:
        """Wait until all text is in the journal."""
        while self._writing is not None:
            writing, self._writing = self._writing, None
            await writing
            if self._unwritten:
                self._writing = asyncio.create_task(self._write())

    async def close(self) -> None:
        """Wait for the last write."""
        if self._writing is not None:
            await asyncio.wait([self._writing])
            if not self._writing.cancelled():
                self._writing.exception()  # `flush` or `check` has raised it

    async def check(self) -> None:
        """Raise the error of an earlier write."""
        if self._writing is not None and self._writing.done():
            await self._writing

    async def _write(self) -> None:
        while self._unwritten:
            text, self._unwritten, self._waiting = "".join(self._unwritten), [], 0
            said = deliveries.delta(self.state.run_id, text)
            await self.runs.journal.commit(self._fence(), self._append(said), durable=False)

    def _fence(self) -> Fence:
        return Fence(records.fence_name(self.state.run_id), self.epoch)

    def _append(self, delivery: deliveries.Delivery) -> Append:
        return records.delivery_append(self.state.session_id, [delivery])


@dataclass(slots=True)
class Advance:
    runs: Runs
    session_tools: SessionTools
    conversations: Conversations

    async def __call__(self, run_id: str) -> None:
        try:
            await self._advance(run_id)
        except Fenced:
            log.info("run_lost run_id=%s", run_id)
        except AgentFailed as failed:
            await self._fail(run_id, failed.code, failed.message)
        except NotFound as missing:
            await self._fail(run_id, "orchestrator_error", str(missing))
        except Exception as failed:
            if isinstance(failed, Unavailable) and self.runs.journal.fault:
                raise  # the dispatcher tries again: the run is not at fault
            log.exception("run_failed run_id=%s", run_id)
            await self._fail(run_id, "internal_error", "the run could not go on")

    async def _fail(self, run_id: str, code: str, message: str) -> None:
        await self.runs.end(run_id, RunStatus.FAILED, code=code, message=message)

    async def _advance(self, run_id: str) -> None:
        state = await records.load(self.runs.journal, run_id)
        if state is None:
            log.info("run_unknown run_id=%s", run_id)
            return
        interrupted = True  # perhaps, by a restart: the journal knows
        conflicts = 0
        while not state.ended:
            try:
                if state.open_calls:
                    moved = await self._move_calls(state)
                    if moved is None:
                        return  # every open call waits for someone else
                    state = moved
                elif len(state.turns) >= MAX_TURNS:
                    raise AgentFailed("too_many_turns", f"no end after {MAX_TURNS} turns")
                else:
                    state = await self._take_turn(state, interrupted=interrupted)
                    interrupted = False
            except Fenced:
                raise
            except Conflict:
                conflicts += 1
                if conflicts > ATTEMPTS:
                    raise
                state = await self.runs.state(run_id)

    async def _take_turn(self, state: RunState, *, interrupted: bool) -> RunState:
        agent = await self.runs.agents.find(state.agent_id)
        if state.status is RunStatus.CREATED:
            state = await self.runs.apply(state.run_id, Begin(), seen=state, durable=False)
        before = await self.runs.journal.epoch(records.fence_name(state.run_id))
        writer = TurnWriter(self.runs, state, before + 1)
        try:
            if interrupted and before:
                await self._retake(state, agent, writer)
            transcript = await self._transcript(state, remembers=agent.remembers)
            end = await self._follow(agent, transcript, writer)
            await writer.flush()
        finally:
            await writer.close()
        if len(end.calls) > MAX_CALLS:
            raise AgentFailed("too_many_calls", f"more than {MAX_CALLS} tool calls in one turn")
        planned = [self.runs.plan(state.run_id, call.tool, call.args) for call in end.calls]
        command = EndTurn(
            writer.text,
            tuple(call for call, _ in planned),
            end.usage.prompt_tokens,
            end.usage.completion_tokens,
            self.runs.clock.now_ms(),
        )
        sealed = [row for _, rows in planned for row in rows]
        return await self.runs.apply(state.run_id, command, also=sealed, seen=state)

    async def _retake(self, state: RunState, agent: Agent, writer: TurnWriter) -> None:
        """Take an interrupted turn again: skip the delivered text, or retract it."""
        delivered = await self._delivered(state)
        if delivered and agent.repeats_itself:
            writer.skip = delivered
        elif delivered:
            await writer.note(Note("RUNNING", {"resumed": True, deliveries.RETRACTED: delivered}))

    async def _follow(
        self, agent: Agent, transcript: Transcript, writer: TurnWriter
    ) -> agents.EndTurn:
        async with aclosing(agent.turn(transcript)) as steps:
            async for step in steps:
                match step:
                    case Say():
                        await writer.say(step)
                    case Note():
                        await writer.note(step)
                    case agents.EndTurn():
                        return step
                    case _:
                        assert_never(step)
        return agents.EndTurn()

    async def _delivered(self, state: RunState) -> int:
        """The number of characters of this turn that were delivered before an interruption."""
        total = await self.conversations.length_of(state.session_id, state.run_id)
        return max(0, total - sum(len(turn.text) for turn in state.turns))

    async def _transcript(self, state: RunState, *, remembers: bool) -> Transcript:
        history = (
            await self.conversations.history(state.session_id, before=state.run_id)
            if remembers
            else []
        )
        caller = caller_of(state)
        here = self.runs.gate.visible_tools(caller)
        taken = {tool.name for tool in here}  # they come before a device's tool of the same name
        of_devices = await self.session_tools.of(state.session_id)
        offered = [*here, *(tool for tool in of_devices if tool.name not in taken)]
        return Transcript(
            run_id=state.run_id,
            session_id=state.session_id,
            agent_id=state.agent_id,
            history=history,
            message=agents.Said(state.role, state.content),
            turns=[_turn(turn) for turn in state.turns],
            tools=offered,
            context=state.context,
        )

    async def _move_calls(self, state: RunState) -> RunState | None:
        """Move the open calls on, all at once; None if none of them can move now."""
        movable = [call for call in state.open_calls if not call.on_device]
        with self.runs.at_work(state) as decided:
            moved = await self._move_all(state, movable, decided)
            return await self.runs.state(state.run_id) if moved or decided.is_set() else None

    async def _move_all(
        self, state: RunState, calls: Sequence[CallState], decided: asyncio.Event
    ) -> bool:
        """Move each call as far as it goes; a call that is approved meanwhile goes on at once."""
        moving = {asyncio.create_task(self._move(state, one)): one.call_id for one in calls}
        ended: list[asyncio.Task[bool]] = []
        waking = asyncio.create_task(decided.wait())
        try:
            while moving:
                done, _ = await asyncio.wait({*moving, waking}, return_when=asyncio.FIRST_COMPLETED)
                ended += [task for task in done if moving.pop(task, "")]
                if waking in done and moving:
                    decided.clear()
                    waking = asyncio.create_task(decided.wait())
                    state = await self.runs.state(state.run_id)
                    for call in () if state.ended else state.open_calls:
                        waits = call.status is CallStatus.WAITING_APPROVAL
                        if waits and call.call_id not in moving.values():
                            moving[asyncio.create_task(self._move(state, call))] = call.call_id
        finally:
            for task in (*moving, waking):
                task.cancel()
            await asyncio.gather(*moving, waking, return_exceptions=True)
        failures = [task.exception() for task in ended]
        for failure in filter(None, failures):
            raise failure
        return any(task.result() for task in ended)

    async def _move(self, state: RunState, call: CallState) -> bool:
        """Move one call as far as it goes; False if it still waits for a person."""
        is_client = call.client or await self._is_client(state, call.tool)
        try:
            request = ToolRequest(
                request_id=call.call_id,
                tool=call.tool,
                args=await self.runs.args_of(call),
                caller=caller_of(state),
                run_id=state.run_id,
                step_id=call.call_id,
                on_client=is_client,
            )
            outcome = await self._begin(state.run_id, request, is_client=is_client)
        except Conflict:
            raise
        except ToolgateError as error:  # nothing was decided, and nothing ran
            log.warning("call_undecided call_id=%s error=%s", call.call_id, error)
            await self._undecided(state.run_id, call.call_id, str(error), is_client=is_client)
            return True
        if isinstance(outcome, Pending):
            return False
        if not isinstance(outcome, Denied) and not is_client:
            output = await self._run_tool(state, call.call_id, outcome)
            await self._finish(state.run_id, call.call_id, outcome, output)
        return True

    async def _run_tool(self, state: RunState, call_id: str, allowed: Allowed) -> ToolOutput:
        """Run a call; its updates come before its end in the session's stream."""
        run_id, journal = state.run_id, self.runs.journal
        fence = records.fence_name(run_id)
        epoch: int | None = None

        async def write(pieces: Sequence[Piece]) -> None:
            nonlocal epoch
            if epoch is None:
                epoch = await journal.epoch(fence)
            if epoch == FINAL_EPOCH:
                return
            shown = [
                deliveries.tool_update(run_id, call_id, piece.text, at=to_iso_ms(piece.at))
                for piece in pieces
            ]
            # The fence refuses updates after the run's end.
            append = records.delivery_append(state.session_id, shown)
            await journal.commit(Fence(fence, epoch), append, durable=False)

        updates = Updates(write, self.runs.clock)
        try:
            return await allowed.run(updates)
        finally:
            await updates.close()

    async def _undecided(self, run_id: str, call_id: str, reason: str, *, is_client: bool) -> None:
        """End a call that the gate could not decide on; the agent receives the reason."""
        to = CallStatus.BLOCKED if is_client else CallStatus.FAILED
        code = "blocked" if is_client else "tool_failed"
        move = MoveCall(call_id, to, output=reason, error_code=code)
        output = failed(reason, outcome=Outcome.MAY_HAVE_EXECUTED)

        async def commit(state: RunState) -> None:
            change = self.runs.change(state, move)
            await self.runs.gate.abandon(
                [call_id], {call_id: output}, reason=reason, also=change.operations
            )
            self.runs.committed(change)

        await self.runs.in_turn(run_id, commit)

    async def _begin(self, run_id: str, request: ToolRequest, *, is_client: bool) -> Begun:
        """Begin a call at the gate; the run's next state is in the same commit."""

        async def commit(state: RunState) -> Begun:
            call = state.call(request.request_id)
            due = self.runs.clock.now_ms() + self.runs.limits.tool_ms if is_client else None
            changes: list[Change] = []

            def begun(outcome: Begun) -> Sequence[Operation]:
                if _shows(call, outcome):  # it was interrupted, and is begun again
                    return ()
                change = self._begun(state, call, outcome, due=due)
                changes[:] = [change]
                return change.operations

            outcome = await self.runs.gate.begin(request, also=begun, due=due)
            if outcome.known and (operations := begun(outcome)):
                await self.runs.journal.commit(*operations)  # the run did not know it yet
            for change in changes:
                self.runs.committed(change)
            if due is not None:
                self.runs.dispatcher.wake_at(due)
            return outcome

        return await self.runs.in_turn(run_id, commit)

    def _begun(
        self, state: RunState, call: CallState, outcome: Begun, *, due: int | None
    ) -> Change:
        """The run's next state once a call is decided; raises Conflict if the run has ended."""
        match outcome:
            case Pending():
                wait = MoveCall(
                    call.call_id,
                    CallStatus.WAITING_APPROVAL,
                    approval_id=outcome.approval_id,
                    client=due is not None,
                )
                asked = deliveries.approval_required(
                    state, call, outcome, summary=outcome.summary, args=outcome.args
                )
                return self.runs.change(state, wait, events=[asked])
            case Denied():
                return self._refused(state, call, outcome)
            case _ if due is not None:
                move = MoveCall(call.call_id, CallStatus.DISPATCHED, client=True, deadline=due)
            case _:
                move = MoveCall(call.call_id, CallStatus.RUNNING)
        approved = call.status is CallStatus.WAITING_APPROVAL  # shown as a state (ingress contract)
        events = [deliveries.state(state.run_id, RunStatus.RUNNING)] if approved else []
        return self.runs.change(state, move, events=events)

    async def _finish(
        self, run_id: str, call_id: str, allowed: Allowed, output: ToolOutput
    ) -> None:
        """Finish a call that ran here; a run that has ended meanwhile stays as it is."""

        async def commit(state: RunState) -> None:
            call = state.call(call_id)
            if state.ended or call.ended:
                await allowed.finish(output)
                return
            ended = MoveCall(
                call_id,
                CallStatus.SUCCEEDED if output.ok else CallStatus.FAILED,
                output=_text(output)[:OUTPUT_LIMIT],
                error_code="" if output.ok else "tool_failed",
            )
            change = self.runs.change(state, ended)
            await allowed.finish(output, also=change.operations)
            self.runs.committed(change)

        await self.runs.in_turn(run_id, commit)

    def _refused(self, state: RunState, call: CallState, denied: Denied) -> Change:
        status = REFUSALS.get(denied.code, CallStatus.BLOCKED)
        waited = call.status is CallStatus.WAITING_APPROVAL
        if call.status in (CallStatus.DISPATCHED, CallStatus.RUNNING):
            status = CallStatus.FAILED  # allowed before an interruption, and refused after it
        elif not waited:
            status = CallStatus.BLOCKED
        refused = MoveCall(call.call_id, status, output=denied.text, error_code=denied.code)
        decision = {"approval_id": call.approval_id, "decision": DECISIONS.get(denied.code, "")}
        events = [deliveries.state(state.run_id, RunStatus.RUNNING, decision)] if waited else []
        return self.runs.change(state, refused, events=events)

    async def _is_client(self, state: RunState, tool: str) -> bool:
        """Tell if a tool is one of the session's devices; a tool of this installation comes first."""
        here = self.runs.gate.visible_tools(caller_of(state))
        if any(offered.name == tool for offered in here):
            return False
        return any(
            offered.name == tool for offered in await self.session_tools.of(state.session_id)
        )


def _shows(call: CallState, outcome: Begun) -> bool:
    """Tell if the run's state has this outcome of the call already."""
    match outcome:
        case Pending():
            return call.status is CallStatus.WAITING_APPROVAL
        case Denied():
            return call.ended
        case _:
            return call.ended or call.status in (CallStatus.DISPATCHED, CallStatus.RUNNING)


def _text(output: ToolOutput) -> str:
    """A tool's output as the agent receives it; a failure may come of files that are gone."""
    if not output.ok:
        is_new = isinstance(output.data, dict) and output.data.get("workspace") == "new"
        return (output.stderr or output.stdout) + ("\n[workspace: new]" if is_new else "")
    if output.stdout or output.data is None:
        return output.stdout
    return records.encode(output.data).decode()


def caller_of(state: RunState) -> Caller:
    """The caller of a run's calls: the agent, in the name of the session's user."""
    return Caller(user=state.user_id, agent=state.agent_id, session=state.session_id)


def _turn(turn: PastTurn) -> Turn:
    answers = [
        ToolAnswer(
            call_id=call.call_id,
            tool=call.tool,
            args=call.args,
            ok=call.status is CallStatus.SUCCEEDED,
            output=call.output,
            error_code=call.error_code,
        )
        for call in turn.calls
    ]
    return Turn(turn.text, answers)
