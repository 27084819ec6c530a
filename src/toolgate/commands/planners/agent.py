"""`/command/agent`: a run of the orchestrator, waited for or not."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from msgspec import UNSET

from toolgate.access.devices import Identity, session_of
from toolgate.access.refusals import Forbidden
from toolgate.access.registry import Registry
from toolgate.access.revocations import REASON
from toolgate.commands.answers import Code, Problem
from toolgate.commands.plans import Came, Done, Plan, Waiting
from toolgate.contracts import gateway_v1 as wire
from toolgate.contracts.wire import given
from toolgate.core.enums import CallStatus, Level, Outcome, RunStatus
from toolgate.http.bodies import check_id
from toolgate.journal.bus import Bus
from toolgate.journal.journal import Event
from toolgate.runs import records
from toolgate.runs.orchestrator import Invocation
from toolgate.runs.runs import Runs
from toolgate.runs.state import RunState


@dataclass(frozen=True, slots=True)
class AgentPlanner:
    runs: Runs
    bus: Bus
    registry: Registry

    def decode(self, raw: bytes) -> wire.AgentCommand:
        return wire.decode_agent_command(raw)

    async def plan(self, command: wire.AgentCommand, identity: Identity, command_id: str) -> Plan:
        payload = command.payload
        agent_id = check_id("payload.agentId", payload.agent_id)
        if not self.runs.knows_agent(agent_id):
            raise Forbidden(f"there is no agent {agent_id[:80]}")
        message = payload.message
        role, content = (
            ("user", message) if isinstance(message, str) else (message.role, message.content)
        )
        named = given(payload.session_id, given(command.session_key, ""))

        async def start(begun: str) -> Came:
            # Taken away while its beginning was written: the runs are cancelled already, none may follow.
            known = self.registry.identity(identity.name)
            if known is None or not known.scope.agent:
                raise Forbidden(REASON)
            run_id = begun or await self.runs.invoke(
                Invocation(
                    # Without a name each command is a conversation of its own.
                    session_id=session_of(identity.name, named or command_id),
                    user_id=identity.name,
                    agent_id=agent_id,
                    role=role,
                    content=content,
                    request_id=command_id,
                )
            )
            if payload.mode is wire.AgentMode.ASYNC or begun:
                state = await self.runs.state(run_id)
                # In mode async the first answer is always the run's id.
                rests = state.ended and begun
                return _done(state) if rests else _waiting(state)
            return await self._until_it_rests(run_id)

        # What the agent then does is policed call by call; the command itself changes nothing.
        return Plan(Level.READ, agent_id, (f"agent.{agent_id}",), start=start)

    async def _until_it_rests(self, run_id: str) -> Came:
        moved = asyncio.Event()

        def hear(_: Sequence[Event]) -> None:
            moved.set()

        subscription = self.bus.subscribe(records.run_stream(run_id), hear)
        try:
            while True:
                moved.clear()
                state = await self.runs.state(run_id)
                if state.ended:
                    return _done(state)
                if state.status is RunStatus.PAUSED_WAITING_APPROVAL:
                    return _waiting(state)
                await moved.wait()
        finally:
            subscription.close()


def _waiting(state: RunState) -> Waiting:
    asked = [call for call in state.calls if call.status is CallStatus.WAITING_APPROVAL]
    return Waiting(approval_id=asked[0].approval_id if asked else "", run_id=state.run_id)


def _done(state: RunState) -> Done:
    data = wire.AgentData(
        run_id=state.run_id,
        session_id=state.session_id,
        status=state.status,
        output="".join(turn.text for turn in state.turns),
        usage=wire.AgentUsage(
            total_tokens=state.prompt_tokens + state.completion_tokens,
            prompt_tokens=state.prompt_tokens,
            completion_tokens=state.completion_tokens,
            duration_ms=max(0, state.ended_at - state.started_at),
        )
        if state.ended_at
        else UNSET,
    )
    if state.status is RunStatus.DONE:
        return Done(data)
    problem = Problem(
        Code.INTERNAL,
        f"{state.code}: {state.message}" if state.code else state.message or "the run failed",
        data=data,
        outcome=Outcome.MAY_HAVE_EXECUTED,
    )
    return Done(data, problem)
