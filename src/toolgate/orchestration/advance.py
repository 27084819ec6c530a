"""Take a run as far as it can go now: turn by turn, call by call, until it ends or must wait.

Nothing is kept between two calls of `advance`: all it needs is in the journal.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, assert_never

from toolgate.domain import deliveries
from toolgate.domain.errors import Conflict, Fenced, NotFound, ToolgateError
from toolgate.domain.runs import EndTurn, MoveCall, PastTurn, PlannedCall, RunState, RunStatus
from toolgate.domain.toolcalls import CallState, CallStatus
from toolgate.domain.tools import Caller, ToolRequest
from toolgate.orchestration import records
from toolgate.orchestration.conversations import Conversations
from toolgate.orchestration.runs import OUTPUT_LIMIT, Runs
from toolgate.orchestration.session_tools import SessionTools
from toolgate.ports import agents, pipeline
from toolgate.ports.agents import Agent, AgentFailed, Note, Say, ToolAnswer, Transcript, Turn
from toolgate.ports.journal import Append, Fence, Journal

log = logging.getLogger(__name__)

MAX_TURNS: Final = 64  # an agent that still wants tools after so many turns is going in circles
UNSAID_LIMIT: Final = 64 * 1024  # characters an agent may be ahead of the journal

AgentFor = Callable[[str], Agent]


@dataclass(slots=True)
class Voice:
    """Puts what an agent says into the journal; what comes during a commit goes in the next."""

    journal: Journal
    state: RunState
    epoch: int
    skip: int  # characters of this turn that were delivered before an interruption
    _said: list[str] = field(default_factory=list)
    _unsaid: list[str] = field(default_factory=list)
    _waiting: int = 0
    _writing: asyncio.Task[None] | None = None

    @property
    def text(self) -> str:
        return "".join(self._said)

    async def say(self, step: Say) -> None:
        self._said.append(step.text)
        text = step.text[self.skip :]
        self.skip = max(0, self.skip - len(step.text))
        if not text:
            return
        if step.apart or self._waiting > UNSAID_LIMIT:
            await self.flush()
        self._unsaid.append(text)
        self._waiting += len(text)
        if self._writing is None or self._writing.done():
            await self.check()
            self._writing = asyncio.create_task(self._write())

    async def note(self, step: Note) -> None:
        await self.flush()
        note = deliveries.state(self.state.run_id, step.state, dict(step.detail))
        await self.journal.commit(self._fence(), self._append(note))

    async def flush(self) -> None:
        """Until all that was said is in the journal."""
        while self._writing is not None:
            writing, self._writing = self._writing, None
            await writing
            if self._unsaid:
                self._writing = asyncio.create_task(self._write())

    async def check(self) -> None:
        """Raise what went wrong in an earlier write."""
        if self._writing is not None and self._writing.done():
            await self._writing

    async def _write(self) -> None:
        while self._unsaid:
            text, self._unsaid, self._waiting = "".join(self._unsaid), [], 0
            said = deliveries.delta(self.state.run_id, text)
            await self.journal.commit(self._fence(), self._append(said), durable=False)

    def _fence(self) -> Fence:
        return Fence(records.fence_name(self.state.run_id), self.epoch)

    def _append(self, delivery: deliveries.Delivery) -> Append:
        return records.delivery_append(self.state.session_id, [delivery])


@dataclass(slots=True)
class Advance:
    runs: Runs
    agent_for: AgentFor
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
        except ToolgateError:
            log.exception("run_failed run_id=%s", run_id)
            await self._fail(run_id, "internal_error", "the run could not go on")

    async def _fail(self, run_id: str, code: str, message: str) -> None:
        await self.runs.end(run_id, RunStatus.FAILED, code=code, message=message)

    async def _advance(self, run_id: str) -> None:
        state = await self.runs.state(run_id)
        interrupted = True  # by what, only the journal knows: an earlier owner, a restart, no one
        while not state.ended:
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

    async def _take_turn(self, state: RunState, *, interrupted: bool) -> RunState:
        agent = self.agent_for(state.agent_id)
        journal = self.runs.journal
        before = await journal.epoch(records.fence_name(state.run_id))
        voice = Voice(journal, state, before + 1, skip=0)
        if interrupted and before:
            delivered = await self._delivered(state)
            if delivered and agent.repeats_itself:
                voice.skip = delivered
            elif delivered:
                await voice.note(Note("RUNNING", {"resumed": True}))
        transcript = await self._transcript(state, remembers=agent.remembers)
        end = await self._listen(agent, transcript, voice)
        await voice.flush()
        calls = tuple(
            PlannedCall(self.runs.new_id("tc"), call.tool, call.args) for call in end.calls
        )
        command = EndTurn(
            voice.text,
            calls,
            end.usage.prompt_tokens,
            end.usage.completion_tokens,
            self.runs.clock.now_ms(),
        )
        try:
            return await self.runs.apply(state.run_id, command, seen=state)
        except Conflict:
            return await self.runs.state(state.run_id)

    async def _listen(self, agent: Agent, transcript: Transcript, voice: Voice) -> agents.EndTurn:
        async for step in agent.turn(transcript):
            match step:
                case Say():
                    await voice.say(step)
                case Note():
                    await voice.note(step)
                case agents.EndTurn():
                    return step
                case _:
                    assert_never(step)
        return agents.EndTurn()

    async def _delivered(self, state: RunState) -> int:
        """How many characters of the turn to come were delivered before an interruption."""
        total = await self.conversations.said(state.session_id, state.run_id)
        return max(0, total - sum(len(turn.text) for turn in state.turns))

    async def _transcript(self, state: RunState, *, remembers: bool) -> Transcript:
        history = (
            await self.conversations.history(state.session_id, before=state.run_id)
            if remembers
            else []
        )
        caller = caller_of(state)
        offered = [
            *self.runs.pipeline.visible_tools(caller),
            *await self.session_tools.of(state.session_id),
        ]
        return Transcript(
            run_id=state.run_id,
            session_id=state.session_id,
            agent_id=state.agent_id,
            history=history,
            message=agents.Said(state.role, state.content),
            turns=[_turn(turn) for turn in state.turns],
            tools=offered,
        )

    async def _move_calls(self, state: RunState) -> RunState | None:
        """Move the open calls on, all at once; None where none of them moved."""
        movable = [call for call in state.open_calls if call.status is not CallStatus.DISPATCHED]
        movable += [
            call
            for call in state.open_calls
            if call.status is CallStatus.DISPATCHED and not call.client
        ]
        moved = await asyncio.gather(*(self._move(state, call) for call in movable))
        return await self.runs.state(state.run_id) if any(moved) else None

    async def _move(self, state: RunState, call: CallState) -> bool:
        """Take one call as far as it goes; whether it got anywhere."""
        is_client = await self._is_client(state.session_id, call.tool)
        request = ToolRequest(
            request_id=call.call_id,
            tool=call.tool,
            args=call.args,
            caller=caller_of(state),
            run_id=state.run_id,
            step_id=call.call_id,
        )
        run_id = state.run_id
        if call.status is CallStatus.CREATED:
            await self.runs.apply(run_id, MoveCall(call.call_id, CallStatus.POLICY_CHECKED))
        answer = await (
            self.runs.pipeline.check(request) if is_client else self.runs.pipeline.run(request)
        )
        match answer:
            case pipeline.Pending():
                return await self._wait_for_person(state, call, answer)
            case pipeline.Denied():
                await self._refuse(run_id, call, answer)
            case pipeline.Ran() if is_client:
                deadline = self.runs.clock.now_ms() + self.runs.limits.tool_ms
                to_device = MoveCall(
                    call.call_id, CallStatus.DISPATCHED, client=True, deadline=deadline
                )
                await self.runs.apply(run_id, to_device, told=self._released(state, call))
            case pipeline.Ran(output):
                if call.status is not CallStatus.DISPATCHED:
                    go = MoveCall(call.call_id, CallStatus.DISPATCHED)
                    await self.runs.apply(run_id, go, told=self._released(state, call))
                text = output.stdout if output.ok else (output.stderr or output.stdout)
                await self.runs.apply(
                    run_id,
                    MoveCall(
                        call.call_id,
                        CallStatus.SUCCEEDED if output.ok else CallStatus.FAILED,
                        output=text[:OUTPUT_LIMIT],
                        error_code="" if output.ok else "tool_failed",
                    ),
                )
            case _:
                assert_never(answer)
        return True

    async def _wait_for_person(
        self, state: RunState, call: CallState, answer: pipeline.Pending
    ) -> bool:
        if call.status is CallStatus.WAITING_APPROVAL:
            return False
        wait = MoveCall(call.call_id, CallStatus.WAITING_APPROVAL, approval_id=answer.approval_id)
        told = deliveries.approval_required(
            state.run_id,
            approval_id=answer.approval_id,
            call_id=call.call_id,
            tool=call.tool,
            summary=answer.summary,
            reason=answer.reason,
            due=answer.expires_at,
        )
        await self.runs.apply(state.run_id, wait, told=[told])
        return True

    async def _refuse(self, run_id: str, call: CallState, answer: pipeline.Denied) -> None:
        status = {
            "blocked": CallStatus.BLOCKED,
            "rejected": CallStatus.REJECTED,
            "approval_timeout": CallStatus.TIMEOUT,
        }[answer.code]
        refused = MoveCall(call.call_id, status, output=answer.reason, error_code=answer.code)
        told = (
            [deliveries.state(run_id, RunStatus.RUNNING, {"decision": "reject"})]
            if answer.code == "rejected"
            else []
        )
        await self.runs.apply(run_id, refused, told=told)

    def _released(self, state: RunState, call: CallState) -> list[deliveries.Delivery]:
        """An approval that let a call through shows as a state (ingress contract)."""
        if call.status is CallStatus.WAITING_APPROVAL:
            return [deliveries.state(state.run_id, RunStatus.RUNNING)]
        return []

    async def _is_client(self, session_id: str, tool: str) -> bool:
        return any(offered.name == tool for offered in await self.session_tools.of(session_id))


def caller_of(state: RunState) -> Caller:
    """An agent's call is asked for by the agent, in the name of the session's user."""
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
