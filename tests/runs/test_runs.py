"""Runs from their start to their end: on a journal in memory, with a pipeline that is a dict."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.e2e.harness import INTERNAL, INTERNAL_TOKEN
from tests.support.ids import CountingIds
from tests.support.people import by, keyed
from tests.support.seal import PlainSeal
from toolgate.access.devices import Identity
from toolgate.contracts.orchestrator_v1 import RUN_EVENTS_PATH, SUBMIT_PATH
from toolgate.core.enums import ApprovalStatus, CallStatus, Level, Outcome, RunStatus
from toolgate.core.errors import Conflict, NotFound, Refused, Unavailable
from toolgate.core.tools import JsonValue, Tool, ToolOutput, ToolRequest
from toolgate.evidence.audit import AuditLog
from toolgate.http import asgi
from toolgate.journal import dispatcher as dispatching
from toolgate.journal.dispatcher import Dispatcher
from toolgate.journal.journal import Append, Delete, Event, NewEvent, Operation, Put
from toolgate.journal.local_bus import LocalBus
from toolgate.journal.sqlite.journal import SqliteJournal
from toolgate.runs import deliveries, records
from toolgate.runs.advance import MAX_CALLS, TEXT_LIMIT, Advance
from toolgate.runs.agents.agent import (
    Agent,
    AgentFailed,
    Call,
    EndTurn,
    Note,
    Say,
    Step,
    Transcript,
)
from toolgate.runs.agents.echo import EchoAgent
from toolgate.runs.agents.registry import Agents, External
from toolgate.runs.agents.script import ScriptAgent
from toolgate.runs.client_tools import SESSION_TOOLS, SessionTools
from toolgate.runs.conversations import HISTORY_CHARACTERS, Conversations
from toolgate.runs.orchestrator import Invocation
from toolgate.runs.originals import CALL_ARGS, Originals
from toolgate.runs.retention import Retention
from toolgate.runs.runs import CODE_LIMIT, OUTPUT_LIMIT, Limits, Runs
from toolgate.runs.state import RunStarted
from toolgate.secrets.patterns import SecretPatterns
from toolgate.surfaces.orchestrator.server import OrchestratorApi
from toolgate.testing.clock import FakeClock
from toolgate.testing.gate import FakeGate
from toolgate.testing.journal import MemoryJournal
from toolgate.tools.calls import EXECUTIONS
from toolgate.tools.outcomes import Also, Begun, nothing_also

requirement = pytest.mark.requirement
TOOLS = {"here": Level.READ, "pay": Level.SIGN, "desk": Level.READ}


class Broken:
    repeats_itself = True
    remembers = False

    def __init__(self, failure: Exception) -> None:
        self._failure = failure

    async def turn(self, transcript: Transcript) -> AsyncGenerator[Step, None]:
        yield Say("before ")
        raise self._failure


class Endless:
    """Speaks until it is stopped, and says when it was."""

    repeats_itself = False
    remembers = True

    def __init__(self) -> None:
        self.stopped = asyncio.Event()
        self.history: list[str] = []

    async def turn(self, transcript: Transcript) -> AsyncGenerator[Step, None]:
        self.history = [said.content for said in transcript.history]
        try:
            while True:
                yield Say("on and ")
                await asyncio.sleep(0)
        finally:
            self.stopped.set()


@dataclass
class House:
    clock: FakeClock = field(default_factory=FakeClock)
    bus: LocalBus = field(default_factory=LocalBus)
    agents: dict[str, Agent] = field(default_factory=dict)
    journal: Any = None

    def __post_init__(self) -> None:
        self.journal = self.journal or MemoryJournal(clock=self.clock, bus=self.bus)
        self.tool: Callable[[ToolRequest], Any] | None = None
        self.new_id = CountingIds()
        self.gate = FakeGate(journal=self.journal, clock=self.clock)
        for name, level in TOOLS.items():
            self.gate.add(name, level, self._run_tool)
        self.gate.elsewhere.add("desk")
        self.endless = Endless()
        self.builtin: dict[str, Agent] = {
            "echo": EchoAgent(), "script": ScriptAgent(), "endless": self.endless, **self.agents,
        }  # fmt: skip
        self.start()

    def start(self) -> None:
        """As a process does: also a second time, on the same journal."""
        self.dispatcher = Dispatcher(self.journal, self.clock)
        tools = SessionTools(self.journal)
        trail = AuditLog(self.journal, redactor=SecretPatterns().redactor())
        self.runs = Runs(
            journal=self.journal,
            dispatcher=self.dispatcher,
            gate=self.gate,
            clock=self.clock,
            new_id=self.new_id,
            agents=Agents(self.journal, self.builtin, self._reach, PlainSeal(), trail),
            session_tools=tools,
            originals=Originals(self.journal, PlainSeal()),
            limits=Limits(tool_ms=60_000, agent_ms=300_000),
        )
        self.watch = self.runs.watch_approvals(self.bus)
        self.dispatcher.start(
            Advance(self.runs, tools, Conversations(self.journal)),
            {
                records.AGENT_DEADLINES: self.runs.on_agent_deadline,
                EXECUTIONS: self.runs.on_call_deadline,
                records.REQUESTS: self.runs.on_request_expired,
            },
        )

    def _reach(self, external: External) -> Agent:
        raise NotFound("agent", external.agent_id)

    async def _run_tool(self, _args: Mapping[str, JsonValue]) -> ToolOutput:
        if self.tool is not None:
            await self.tool(self.gate.ran[-1])
        return ToolOutput(0, stdout="ran")

    async def invoke(self, content: str, agent: str = "script", request_id: str = "") -> str:
        return await self.runs.invoke(
            Invocation("s", "u", agent, "user", content, request_id=request_id)
        )

    async def when(self, holds: Callable[[], Awaitable[bool]]) -> None:
        async with asyncio.timeout(10):
            while not await holds():
                await asyncio.sleep(0.001)

    async def until(self, run_id: str, *statuses: RunStatus) -> None:
        async def is_there() -> bool:
            return (await self.runs.state(run_id)).status in statuses

        await self.when(is_there)

    async def at_rest(self) -> None:
        async def nothing_runs() -> bool:
            return not self.dispatcher.working_on

        await self.when(nothing_runs)

    async def until_it_spoke(self, run_id: str, times: int) -> None:
        async def has_spoken() -> bool:
            return [kind for kind, _ in await self.told(run_id)].count(deliveries.DELTA) == times

        await self.when(has_spoken)

    async def endless_has_heard(self) -> bool:
        return bool(self.endless.history)

    async def told(self, run_id: str) -> list[tuple[str, dict[str, Any]]]:
        events: list[Event] = await self.journal.read("session/s", subject=run_id)
        return [(one.type, json.loads(one.data)) for one in events]

    async def later(self, ms: int) -> None:
        """Let time pass, and let the timer see it."""
        self.clock.advance(ms)
        self.dispatcher.wake_at(0)


@pytest.fixture
async def house() -> AsyncIterator[House]:
    one = House()
    yield one
    await one.dispatcher.drain(seconds=0)


async def test_the_stream_of_a_run_that_waits_says_now_and_then_that_it_is_still_there(
    house: House,
) -> None:
    run_id = await house.invoke("[[tool:pay {}]]")
    await house.until(run_id, RunStatus.PAUSED_WAITING_APPROVAL)
    bound = asgi.bind("127.0.0.1", 0, setting="ORCHESTRATOR_PORT")
    api = OrchestratorApi(
        house.runs, house.bus, house.clock, keyed(internal=INTERNAL_TOKEN).internal, silence_s=0.01
    )
    listener = asgi.Listener(api.app(), bound)
    await listener.start()
    url = f"http://127.0.0.1:{bound.getsockname()[1]}" + RUN_EVENTS_PATH.format(run_id=run_id)
    heard: list[bytes] = []
    async with (
        asyncio.timeout(10),
        aiohttp.ClientSession(headers=INTERNAL) as http,
        http.get(url) as stream,
    ):
        async for line in stream.content:
            heard.append(line)
            if heard.count(b": \n") == 3:
                await house.runs.cancel(run_id, session_id="s", reason="enough")
    assert [line for line in heard if line.startswith(b"event:")] == [
        b"event: run_started\n", b"event: approval_required\n", b"event: state\n",
        b"event: done\n",
    ]  # fmt: skip
    await listener.stop()


@pytest.mark.parametrize("ended", [True, False])
async def test_a_reader_of_what_a_power_cut_took_hears_of_the_runs_end(
    house: House, *, ended: bool
) -> None:
    run_id = await house.invoke("[[tool:pay {}]]")
    await house.until(run_id, RunStatus.PAUSED_WAITING_APPROVAL)
    if ended:
        await house.runs.cancel(run_id, session_id="s", reason="enough")
    bound = asgi.bind("127.0.0.1", 0, setting="ORCHESTRATOR_PORT")
    api = OrchestratorApi(
        house.runs, house.bus, house.clock, keyed(internal=INTERNAL_TOKEN).internal, silence_s=0.01
    )
    listener = asgi.Listener(api.app(), bound)
    await listener.start()
    path = RUN_EVENTS_PATH.format(run_id=run_id)
    url = f"http://127.0.0.1:{bound.getsockname()[1]}{path}?after=100"
    async with (
        asyncio.timeout(10),
        aiohttp.ClientSession(headers=INTERNAL) as http,
        http.get(url) as stream,
    ):
        heard = await stream.content.readline()
        await house.runs.cancel(run_id, session_id="s", reason="enough")
        heard += await stream.content.read()
    assert heard.count(b"event: done\n") == 1
    await listener.stop()


@pytest.mark.parametrize("begun", [True, False])
async def test_the_time_a_process_was_down_is_not_the_agents(begun: bool) -> None:
    house = House(agents={"halting": Halting()})
    run_id = await house.invoke("x", "halting")
    if begun:
        await house.until_it_spoke(run_id, 1)
    await house.dispatcher.drain(seconds=0)
    house.clock.advance(600_000)
    await house.runs.allow_for_downtime()
    house.start()
    house.dispatcher.dispatch(run_id)
    await house.until_it_spoke(run_id, 2 if begun else 1)
    await house.later(0)
    for _ in range(20):  # the timer has its look
        await asyncio.sleep(0.001)
    assert (await house.runs.state(run_id)).status is RunStatus.RUNNING
    await house.later(300_001)
    await house.until(run_id, RunStatus.FAILED)
    await house.dispatcher.drain(seconds=0)


@requirement("001/states/run-created", "001/invoke/one-end", "001/invoke/durable-before-started")
async def test_a_run_is_created_begun_and_done(house: House) -> None:
    run_id = await house.invoke("hello", "echo")
    assert (await house.runs.state(run_id)).status is RunStatus.CREATED
    await house.until(run_id, RunStatus.DONE)
    facts = [one.type for one in await house.journal.read(f"run/{run_id}")]
    assert facts == ["run_started", "run_begun", "turn_ended", "run_ended"]
    assert [kind for kind, _ in await house.told(run_id)] == ["run_started", "delta", "done"]


@requirement(
    "001/states/tool-call-checked", "001/states/tool-call-runs", "001/tools/server-tools-policed"
)
async def test_a_tool_that_runs_here_is_running_before_it_starts(house: House) -> None:
    seen: list[CallStatus] = []

    async def look(request: ToolRequest) -> None:
        seen.append((await house.runs.state(request.run_id)).calls[0].status)

    house.tool = look
    run_id = await house.invoke("[[tool:here {}]]")
    await house.until(run_id, RunStatus.DONE)
    assert seen == [CallStatus.RUNNING]
    moves = [json.loads(one.data) for one in await house.journal.read(f"run/{run_id}")]
    assert [one["to"] for one in moves if "to" in one] == [
        "POLICY_CHECKED", "DISPATCHED", "RUNNING", "SUCCEEDED",
    ]  # fmt: skip


async def test_nobody_from_outside_says_what_came_of_a_tool_that_runs_here(house: House) -> None:
    begun, may = asyncio.Event(), asyncio.Event()

    async def work(_: ToolRequest) -> None:
        begun.set()
        await may.wait()

    house.tool = work
    run_id = await house.invoke("[[tool:here {}]]")
    await asyncio.wait_for(begun.wait(), 10)
    call_id = (await house.runs.state(run_id)).calls[0].call_id
    bound = asgi.bind("127.0.0.1", 0, setting="ORCHESTRATOR_PORT")
    app = OrchestratorApi(
        house.runs, house.bus, house.clock, keyed(internal=INTERNAL_TOKEN).internal
    ).app()
    listener = asgi.Listener(app, bound)
    await listener.start()
    path = SUBMIT_PATH.format(tool_call_id=call_id)
    url = f"http://127.0.0.1:{bound.getsockname()[1]}{path}"
    async with aiohttp.ClientSession(headers=INTERNAL) as http:
        forged = {"status": "SUCCEEDED", "result": "forged"}
        assert (await http.post(url, json=forged)).status == 409
        may.set()
        await house.until(run_id, RunStatus.DONE)
        late = {"status": "FAILED", "error": "late"}
        stored = await (await http.post(url, json=late)).json()
    await listener.stop()
    assert (stored["status"], stored["result"]) == ("SUCCEEDED", "ran")


async def test_a_result_is_not_taken_while_a_person_is_asked_whether_the_tool_may_run(
    house: House,
) -> None:
    house.gate.elsewhere.add("pay")
    await house.runs.register_tools("s", [Tool("pay", "", Level.SIGN, {}, repeatable=True)])
    run_id = await house.invoke("[[tool:pay {}]]")
    await house.until(run_id, RunStatus.PAUSED_WAITING_APPROVAL)
    call_id = (await house.runs.state(run_id)).calls[0].call_id
    bound = asgi.bind("127.0.0.1", 0, setting="ORCHESTRATOR_PORT")
    listener = asgi.Listener(
        OrchestratorApi(
            house.runs, house.bus, house.clock, keyed(internal=INTERNAL_TOKEN).internal
        ).app(),
        bound,
    )
    await listener.start()
    path = SUBMIT_PATH.format(tool_call_id=call_id)
    url = f"http://127.0.0.1:{bound.getsockname()[1]}{path}"
    async with aiohttp.ClientSession(headers=INTERNAL) as http:
        answer = await http.post(url, json={"status": "SUCCEEDED", "result": "paid"})
        refusal = await answer.json()
    await listener.stop()
    assert (answer.status, refusal["error"]) == (409, "conflict")
    assert (await house.runs.state(run_id)).calls[0].status is CallStatus.WAITING_APPROVAL


@dataclass
class Careless:
    """Calls one tool with a secret in its arguments, and then says what it was given of them."""

    tool: str
    repeats_itself = True
    remembers = False

    async def turn(self, transcript: Transcript) -> AsyncGenerator[Step, None]:
        if transcript.turns:
            yield Say(str(transcript.turns[0].answers[0].args))
        else:
            yield EndTurn(calls=[Call(self.tool, {"key": "SECRET", "page": 1})])


def careless(tool: str) -> House:
    house = House(agents={"careless": Careless(tool)})
    house.runs.redact = lambda text: text.replace("SECRET", "***")
    house.runs.redact_fields = lambda given: {
        name: value.replace("SECRET", "***") if isinstance(value, str) else value
        for name, value in given.items()
    }
    return house


async def in_the_journal(house: House, secret: bytes) -> list[str]:
    """The collections and streams that hold it; the seal of these tests seals nothing."""
    events = await house.journal.read_all()
    found = {event.stream.partition("/")[0] for event in events if secret in event.data}
    for collection in (CALL_ARGS, records.RUNS, EXECUTIONS):
        rows = await house.journal.scan(collection)
        found |= {row.collection for row in rows if secret in row.value}
    return sorted(found)


async def test_an_agents_arguments_are_stored_and_shown_without_secrets_and_run_as_they_are() -> (
    None
):
    house = careless("pay")
    run_id = await house.invoke("x", "careless")
    await house.until(run_id, RunStatus.PAUSED_WAITING_APPROVAL)
    await house.at_rest()
    call = (await house.runs.state(run_id)).calls[0]
    assert (call.args, call.sealed) == ({"key": "***", "page": 1}, True)
    assert await in_the_journal(house, b"SECRET") == [CALL_ARGS]
    await house.gate.decide_approval(call.approval_id, approve=True, decided_by=by("p"), reason="")
    await house.until(run_id, RunStatus.DONE)
    assert [request.args for request in house.gate.ran] == [{"key": "SECRET", "page": 1}]
    assert (await house.runs.state(run_id)).turns[1].text == "{'key': '***', 'page': 1}"
    assert await in_the_journal(house, b"SECRET") == []
    await house.dispatcher.drain(seconds=0)


@pytest.mark.parametrize("end", ["result", "deadline", "offline", "cancel"])
async def test_the_sealed_arguments_of_a_devices_call_go_with_its_end(end: str) -> None:
    house = careless("desk")
    await house.runs.register_tools("s", [Tool("desk", "", Level.READ, {}, repeatable=True)])
    run_id = await house.invoke("x", "careless")
    await house.until(run_id, RunStatus.PAUSED_WAITING_TOOL)
    await house.at_rest()
    call = (await house.runs.state(run_id)).calls[0]
    requests = [m for kind, m in await house.told(run_id) if kind == deliveries.TOOL_REQUEST]
    assert [request["args"] for request in requests] == [{"key": "***", "page": 1}]
    assert await in_the_journal(house, b"SECRET") == [CALL_ARGS]
    originals, events = house.runs.originals, await house.journal.read("session/s")
    shown = originals.restored(events)[-1]
    assert json.loads(shown.data)["args"] == {"key": "SECRET", "page": 1}
    match end:
        case "result":
            await house.runs.end_call(run_id, call.call_id, ok=True, result="x", error=None)
        case "deadline":
            await house.later(60_001)
        case "offline":
            await house.runs.client_offline(run_id, call.call_id)
        case _:
            await house.runs.cancel(run_id, session_id="s", reason="enough")
    await house.until(run_id, RunStatus.DONE, RunStatus.CANCELLED)
    assert await in_the_journal(house, b"SECRET") == []
    assert originals.restored(events) is events, "the redacted arguments again"
    await house.dispatcher.drain(seconds=0)


@pytest.mark.parametrize("end", ["reject", "expire", "cancel"])
async def test_the_sealed_arguments_of_a_call_that_is_never_run_go_with_its_end(end: str) -> None:
    house = careless("pay")
    run_id = await house.invoke("x", "careless")
    await house.until(run_id, RunStatus.PAUSED_WAITING_APPROVAL)
    approval_id = (await house.runs.state(run_id)).calls[0].approval_id
    match end:
        case "reject":
            await house.gate.decide_approval(
                approval_id, approve=False, decided_by=by("p"), reason=""
            )
        case "expire":
            await house.gate.expire(approval_id)
        case _:
            await house.runs.cancel(run_id, session_id="s", reason="enough")
    await house.until(run_id, RunStatus.DONE, RunStatus.CANCELLED)
    assert house.gate.ran == []
    assert await in_the_journal(house, b"SECRET") == []
    await house.dispatcher.drain(seconds=0)


async def test_a_call_whose_sealed_arguments_are_lost_fails_and_its_approval_is_closed() -> None:
    house = careless("pay")
    run_id = await house.invoke("x", "careless")
    await house.until(run_id, RunStatus.PAUSED_WAITING_APPROVAL)
    await house.at_rest()
    call = (await house.runs.state(run_id)).calls[0]
    await house.journal.commit(Delete(CALL_ARGS, call.call_id))
    house.dispatcher.dispatch(run_id)  # as a restart with another key does
    await house.until(run_id, RunStatus.DONE)
    ended = (await house.runs.state(run_id)).turns[0].calls[0]
    assert (ended.status, ended.error_code) == (CallStatus.FAILED, "tool_failed")
    assert [call_id for call_id, _ in house.gate.abandoned] == [call.call_id]
    assert house.gate.ran == []
    await house.dispatcher.drain(seconds=0)


@pytest.mark.parametrize("at_work", [True, False])
async def test_a_decision_wakes_its_run_once(
    house: House, monkeypatch: pytest.MonkeyPatch, *, at_work: bool
) -> None:
    working, may_end = asyncio.Event(), asyncio.Event()
    dispatched: list[str] = []
    dispatch = Dispatcher.dispatch

    def counting(dispatcher: Dispatcher, run_id: str) -> None:
        dispatched.append(run_id)
        dispatch(dispatcher, run_id)

    async def work(request: ToolRequest) -> None:
        if request.tool == "here":
            working.set()
            await may_end.wait()

    class Both(Careless):
        async def turn(self, transcript: Transcript) -> AsyncGenerator[Step, None]:
            others = [Call("here", {})] if at_work else []
            yield EndTurn(calls=[] if transcript.turns else [Call("pay", {}), *others])

    async def it_ran() -> bool:
        return "pay" in [request.tool for request in house.gate.ran]

    house.tool = work
    house.builtin["both"] = Both("pay")
    run_id = await house.invoke("x", "both")
    await house.until(run_id, RunStatus.PAUSED_WAITING_APPROVAL)
    if at_work:
        await asyncio.wait_for(working.wait(), 10)
    else:
        await house.at_rest()
    approval_id = (await house.runs.state(run_id)).calls[0].approval_id
    monkeypatch.setattr(Dispatcher, "dispatch", counting)
    await house.runs.decide_approval(
        approval_id, session_id="s", run_id=run_id, approve=True, reason="", decided_by=by("u")
    )
    await house.when(it_ran)
    may_end.set()
    await house.until(run_id, RunStatus.DONE)
    await house.at_rest()
    assert dispatched == ([] if at_work else [run_id])


class Unsure(FakeGate):
    """Cannot decide on what it is told not to, as a full disk makes it."""

    async def begin(
        self, request: ToolRequest, *, also: Also = nothing_also, due: int | None = None
    ) -> Begun:
        if request.tool == "desk" and (request.tool in self.denied or self.decided(request)):
            raise Unavailable("the decision cannot be written")
        return await FakeGate.begin(self, request, also=also, due=due)

    def decided(self, request: ToolRequest) -> bool:
        asked = self._approvals.get(f"apr_{request.request_id}")
        return asked is not None and bool(asked.verdict)


@pytest.mark.parametrize("when", ["at once", "after an approval"])
async def test_a_call_that_cannot_be_decided_on_never_reaches_a_device(when: str) -> None:
    house = House()
    unsure = Unsure(journal=house.journal, clock=house.clock, elsewhere={"desk"})
    unsure.add("desk", Level.READ, house._run_tool)
    (unsure.denied if when == "at once" else unsure.asks).add("desk")
    house.runs.gate = house.gate = unsure
    await house.runs.register_tools("s", [Tool("desk", "", Level.READ, {}, repeatable=True)])
    run_id = await house.invoke("[[tool:desk {}]]")
    if when == "after an approval":
        await house.until(run_id, RunStatus.PAUSED_WAITING_APPROVAL)
        await house.at_rest()
        call = (await house.runs.state(run_id)).calls[0]
        await house.runs.decide_approval(
            call.approval_id,
            session_id="s",
            run_id=run_id,
            approve=True,
            reason="",
            decided_by=by("u"),
        )
    await house.until(run_id, RunStatus.DONE, RunStatus.PAUSED_WAITING_TOOL)
    call = (await house.runs.state(run_id)).turns[0].calls[0]
    assert (call.status, call.error_code) == (CallStatus.BLOCKED, "blocked")
    assert deliveries.TOOL_REQUEST not in [kind for kind, _ in await house.told(run_id)]
    await house.dispatcher.drain(seconds=0)


@requirement("001/durability/tool-not-twice", "001/durability/running-resumes")
async def test_a_tool_that_was_run_before_a_crash_is_not_run_again(house: House) -> None:
    started = asyncio.Event()

    async def hang(_: ToolRequest) -> None:
        started.set()
        await asyncio.Event().wait()

    house.tool = hang
    run_id = await house.invoke("[[tool:here {}]] [[tool:here {}]]")
    await asyncio.wait_for(started.wait(), 10)
    await house.dispatcher.drain(seconds=0)  # the process is gone in mid-call
    call_id = (await house.runs.state(run_id)).calls[0].call_id
    perhaps = ToolOutput(1, stderr="it may have run", outcome=Outcome.MAY_HAVE_EXECUTED)
    house.gate.recover(call_id, perhaps)
    house.tool = None
    house.start()
    house.dispatcher.dispatch(run_id)
    await house.until(run_id, RunStatus.DONE)
    assert [request.request_id for request in house.gate.ran].count(call_id) == 1
    assert len(house.gate.ran) == 2


@requirement("001/cancel/stops-tool", "001/cancel/no-delta-after")
async def test_cancelling_stops_a_tool_and_its_run_says_nothing_more(house: House) -> None:
    started, stopped = asyncio.Event(), asyncio.Event()

    async def hang(_: ToolRequest) -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    house.tool = hang
    run_id = await house.invoke("[[tool:here {}]] after")
    await asyncio.wait_for(started.wait(), 10)
    await house.runs.cancel(run_id, session_id="s", reason="enough")
    await asyncio.wait_for(stopped.wait(), 10)
    await house.at_rest()
    assert [kind for kind, _ in await house.told(run_id)] == ["run_started", "state", "done"]


@requirement("001/cancel/stops-agent", "001/cancel/no-delta-after", "001/agents/timeout")
@pytest.mark.parametrize("how", ["cancel", "time"])
async def test_an_agent_that_never_ends_is_stopped(house: House, how: str) -> None:
    run_id = await house.invoke("go", "endless")

    async def speaks() -> bool:
        return len(await house.told(run_id)) >= 3

    await house.when(speaks)
    if how == "cancel":
        await house.runs.cancel(run_id, session_id="s", reason="enough")
    else:
        await house.later(300_001)
        await house.until(run_id, RunStatus.FAILED)
    await asyncio.wait_for(house.endless.stopped.wait(), 10)
    await house.at_rest()
    kinds = [kind for kind, _ in await house.told(run_id)]
    end = ["state", "done"] if how == "cancel" else ["error"]
    assert kinds == ["run_started", *["delta"] * (len(kinds) - 1 - len(end)), *end]
    _, last = (await house.told(run_id))[-1]
    assert last.get("detail", {}).get("reason", "") == ("" if how == "cancel" else "agent_timeout")


@requirement(
    "001/tools/timeout", "001/tools/first-wins", "001/states/compare-and-set",
    "001/durability/result-survives",
)  # fmt: skip
async def test_of_a_result_a_time_out_and_a_cancel_one_wins_and_the_rest_learn_it(
    house: House,
) -> None:
    await house.runs.register_tools("s", [Tool("desk", "", Level.READ, {}, repeatable=True)])
    run_id = await house.invoke("[[tool:desk {}]]")
    await house.until(run_id, RunStatus.PAUSED_WAITING_TOOL)
    await house.at_rest()
    call_id = (await house.runs.state(run_id)).calls[0].call_id
    result: dict[str, Any] = {
        "session_id": "s",
        "run_id": run_id,
        "ok": True,
        "result": "first",
        "error": None,
    }
    outcomes = await asyncio.gather(
        house.runs.submit_result(call_id, **result),
        house.runs.submit_result(call_id, **{**result, "result": "second"}),
        house.later(60_001),
        return_exceptions=True,
    )
    assert sum(isinstance(one, Conflict) for one in outcomes) >= 1
    await house.until(run_id, RunStatus.DONE)
    line = [members["text"] for kind, members in await house.told(run_id) if kind == "delta"]
    assert len(line) == 1
    assert call_id in {concluded for concluded, _ in house.gate.finished}
    with pytest.raises(Conflict):
        await house.runs.submit_result(call_id, **result)
    with pytest.raises(NotFound):
        await house.runs.submit_result(call_id, **{**result, "session_id": "other"})


@requirement("001/approvals/expires", "001/durability/waiting-goes-on",
             "001/durability/decision-survives")  # fmt: skip
@pytest.mark.parametrize("verdict", ["approve", "reject", "expire"])
async def test_a_decision_by_another_door_lets_the_run_go_on_even_after_a_restart(
    house: House, verdict: str
) -> None:
    run_id = await house.invoke("[[tool:pay {}]]")
    await house.until(run_id, RunStatus.PAUSED_WAITING_APPROVAL)
    await house.at_rest()
    await house.dispatcher.drain(seconds=0)
    house.watch.close()
    house.start()
    for open_run, _ in await house.runs.open_runs():
        house.dispatcher.dispatch(open_run)
    await house.at_rest()
    await house.later(3_600_000)  # an hour: a person's time is not the agent's
    state = await house.runs.state(run_id)
    assert state.status is RunStatus.PAUSED_WAITING_APPROVAL
    approval_id = state.calls[0].approval_id
    assert (await house.gate.approval(approval_id)).approval.status is ApprovalStatus.PENDING
    if verdict == "expire":
        await house.gate.expire(approval_id)
    else:
        await house.gate.decide_approval(
            approval_id, approve=verdict == "approve", decided_by=by("someone"), reason=""
        )
    await house.until(run_id, RunStatus.DONE)
    text = "".join(m.get("text", "") for kind, m in await house.told(run_id) if kind == "delta")
    assert {
        "approve": "pay: ran", "reject": "error rejected", "expire": "error approval_timeout",
    }[verdict] in text  # fmt: skip
    with pytest.raises(Conflict, match="already"):
        await house.runs.decide_approval(
            approval_id, session_id="s", run_id=run_id, approve=True, reason="", decided_by=by("u")
        )


@pytest.mark.parametrize("door", ["a session", "another ingress"])
async def test_a_user_who_is_called_as_the_operator_is_does_not_decide_in_their_name(
    house: House, monkeypatch: pytest.MonkeyPatch, door: str
) -> None:
    run_id = await house.invoke("[[tool:pay {}]]")
    await house.until(run_id, RunStatus.PAUSED_WAITING_APPROVAL)
    approval_id = (await house.runs.state(run_id)).calls[0].approval_id
    named: list[tuple[str, str]] = []

    async def decide(
        _: FakeGate, approval_id: str, *, decided_by: Identity, **_word: object
    ) -> str:
        named.append((decided_by.name, decided_by.principal))
        raise Refused("for the test")

    monkeypatch.setattr(FakeGate, "decide_approval", decide)
    if door == "a session":
        with pytest.raises(Refused):
            await house.runs.decide_approval(
                approval_id,
                session_id="s",
                run_id=run_id,
                approve=True,
                reason="",
                decided_by=keyed("k").client("operator", "k"),
            )
    else:
        bound = asgi.bind("127.0.0.1", 0, setting="ORCHESTRATOR_PORT")
        listener = asgi.Listener(
            OrchestratorApi(
                house.runs, house.bus, house.clock, keyed(internal=INTERNAL_TOKEN).internal
            ).app(),
            bound,
        )
        await listener.start()
        at = f"http://127.0.0.1:{bound.getsockname()[1]}/internal/approvals/{approval_id}/decide"
        async with aiohttp.ClientSession(headers=INTERNAL) as http:
            await http.post(at, json={"decision": "approve", "decided_by": "operator"})
        await listener.stop()
    principal = {
        "a session": "user operator (claimed)",
        "another ingress": "ingress 127.0.0.1 for user operator",
    }
    assert named == [("user:operator", principal[door])]


async def test_who_decides_for_a_run_that_was_cancelled_is_told_so(house: House) -> None:
    run_id = await house.invoke("[[tool:pay {}]]")
    await house.until(run_id, RunStatus.PAUSED_WAITING_APPROVAL)
    approval_id = (await house.runs.state(run_id)).calls[0].approval_id
    await house.runs.cancel(run_id, session_id="s", reason="enough")
    with pytest.raises(Conflict, match="rejected already"):
        await house.runs.decide_approval(
            approval_id, session_id="s", run_id=run_id, approve=True, reason="", decided_by=by("u")
        )
    assert house.gate.abandoned == [(approval_id.removeprefix("apr_"), "enough")]


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (AgentFailed("tired", "not today"), "orchestrator_error"),
        (RuntimeError("a bug"), "internal_error"),
    ],
)
async def test_an_agent_that_fails_ends_its_run_and_shows_nothing_of_its_inside(
    failure: Exception, code: str
) -> None:
    house = House(agents={"broken": Broken(failure)})
    run_id = await house.invoke("x", "broken")
    await house.until(run_id, RunStatus.FAILED)
    kind, members = (await house.told(run_id))[-1]
    assert (kind, members["code"]) == ("error", code)
    assert "bug" not in members["message"]
    await house.dispatcher.drain(seconds=0)


async def test_what_an_agent_says_at_once_comes_in_messages_that_any_client_takes() -> None:
    text = "".join(str(n) for n in range(200_000))

    class Verbose(Broken):
        async def turn(self, transcript: Transcript) -> AsyncGenerator[Step, None]:
            yield Say("so: ")
            yield Say(text)
            yield Say(".")

    house = House(agents={"verbose": Verbose(RuntimeError())})
    run_id = await house.invoke("x", "verbose")
    await house.until(run_id, RunStatus.DONE)
    deltas = [members["text"] for kind, members in await house.told(run_id) if kind == "delta"]
    assert "".join(deltas) == f"so: {text}."
    assert max(map(len, deltas)) < 200_000, "it was one message of a megabyte"
    assert (await house.runs.state(run_id)).turns[0].text == f"so: {text}."
    await house.dispatcher.drain(seconds=0)


async def test_an_agents_failure_and_state_are_kept_without_secrets() -> None:
    class Talkative(Broken):
        async def turn(self, transcript: Transcript) -> AsyncGenerator[Step, None]:
            yield Note("LOOKING", {"at": "https://x/?key=SECRET"})
            raise self._failure

    failure = AgentFailed("unauthorized", "the key SECRET is not known")
    house = House(agents={"talkative": Talkative(failure)})
    house.runs.redact = lambda text: text.replace("SECRET", "***")
    house.runs.redact_fields = lambda given: {
        name: str(value).replace("SECRET", "***") for name, value in given.items()
    }
    run_id = await house.invoke("x", "talkative")
    await house.until(run_id, RunStatus.FAILED)
    events = await house.journal.read_all()
    assert not [event for event in events if b"SECRET" in event.data]
    rows = await house.journal.scan(records.RUNS)
    assert [records.decode_run_line(row.value).message for row in rows] == [
        "the key *** is not known"
    ]
    assert (await house.told(run_id))[1][1]["detail"] == {"at": "https://x/?key=***"}
    await house.dispatcher.drain(seconds=0)


async def test_names_that_others_give_are_kept_without_secrets_as_their_words_are() -> None:
    class Indiscreet(Broken):
        async def turn(self, transcript: Transcript) -> AsyncGenerator[Step, None]:
            yield Note("ASKING WITH SECRET")
            raise self._failure

    house = House(agents={"indiscreet": Indiscreet(AgentFailed("no_SECRET", "why"))})
    house.runs.redact = lambda text: text.replace("SECRET", "***")
    await house.runs.register_tools("s", [Tool("desk", "", Level.READ, {}, repeatable=True)])
    run_id = await house.invoke("x", "indiscreet")
    await house.until(run_id, RunStatus.FAILED)
    assert (await house.told(run_id))[-1][1]["detail"] == {"reason": "no_***"}
    device = await house.invoke("[[tool:desk {}]]")
    await house.until(device, RunStatus.PAUSED_WAITING_TOOL)
    await house.at_rest()
    call_id = (await house.runs.state(device)).calls[0].call_id
    refused = {"code": "SECRET" + "!" * 1_000_000, "message": "m" * 1_000_000}
    await house.runs.submit_result(
        call_id, session_id="s", run_id=device, ok=False, result=None, error=refused
    )
    await house.until(device, RunStatus.DONE)
    answered = (await house.runs.state(device)).turns[0].calls[0]
    assert answered.error_code == ("***" + "!" * 1_000_000)[:CODE_LIMIT]
    assert len(answered.output) == OUTPUT_LIMIT, "as much as of a result"
    events = await house.journal.read_all()
    assert not [event for event in events if b"SECRET" in event.data]
    await house.dispatcher.drain(seconds=0)


@requirement("001/durability/request-id-24h", "001/invoke/same-request-id")
async def test_a_request_id_is_remembered_for_a_day(house: House) -> None:
    run_id = await house.invoke("x", "echo", request_id="q")
    await house.until(run_id, RunStatus.DONE)
    await house.later(23 * 3_600_000)
    assert await house.invoke("x", "echo", request_id="q") == run_id
    await house.later(2 * 3_600_000)

    async def is_forgotten() -> bool:
        return await house.journal.get(records.REQUESTS, "s/q") is None

    await house.when(is_forgotten)
    assert await house.invoke("x", "echo", request_id="q") != run_id


@requirement("001/durability/invoke-survives")
async def test_a_run_of_which_only_the_start_was_written_goes_on_after_a_kill(house: House) -> None:
    """Its start is committed with one row alone; the others follow when it is taken up."""
    at = house.clock.now_ms()
    started = RunStarted("run_1", "s", "echo", "u", "q", "user", "said", at)
    operations = records.start(started, deliveries.run_started(started))
    assert [type(one) for one in operations] == [Append, Append, Put, Delete]
    await house.journal.commit(*operations)
    assert await house.runs.open_runs() == await house.runs.open_runs("s") == [("run_1", "s")]
    assert await house.runs.session_of("run_1") == "s"
    assert await house.invoke("said", "echo", request_id="q") == "run_1", "it is open"
    house.dispatcher.dispatch("run_1")
    await house.until("run_1", RunStatus.DONE)
    assert await house.invoke("said", "echo", request_id="q") == "run_1", "it has ended"
    assert [row.key for row in await house.journal.scan(records.RUNS)] == ["run_1"]
    assert await house.runs.open_runs() == []
    told = [kind for kind, _ in await house.told("run_1")]
    assert (told[0], told[-1], told.count("run_started")) == ("run_started", "done", 1)


async def test_requests_of_sessions_with_names_alike_are_kept_apart(house: House) -> None:
    async def ask(session_id: str, request_id: str) -> str:
        tools = [Tool("desk", "", Level.READ, {}, repeatable=True)]
        await house.runs.register_tools(session_id, tools)
        return await house.runs.invoke(
            Invocation(session_id, "u", "script", "user", "[[tool:desk {}]]", request_id)
        )

    asked = [("s", "q"), ("s/=q", "q"), ("s", "q/=q"), ("s/", "q"), ("s%2F", "q"), ("s", "")]
    runs = [await ask(*one) for one in asked]
    assert len(set(runs)) == len(asked)
    for (session_id, _), run_id in zip(asked, runs, strict=True):
        assert (run_id, session_id) in await house.runs.open_runs(session_id)
    assert len(await house.runs.open_runs("s")) == 3


async def test_an_agent_that_remembers_is_told_the_sessions_earlier_runs(house: House) -> None:
    done = await house.invoke("what I said", "echo")
    await house.until(done, RunStatus.DONE)
    run_id = await house.invoke("go", "endless")

    async def was_told() -> bool:
        return bool(house.endless.history)

    await house.when(was_told)
    assert house.endless.history == ["what I said", "what I said"]
    await house.runs.cancel(run_id, session_id="s", reason="enough")


async def test_a_deadline_that_cannot_be_handled_does_not_keep_the_others_from_theirs() -> None:
    house = House()
    await house.journal.commit(Put("of_nobody", "k", b"null", due=1, expected=0))
    await house.runs.register_tools("s", [Tool("desk", "", Level.READ, {}, repeatable=True)])
    run_id = await house.invoke("[[tool:desk {}]]")
    await house.until(run_id, RunStatus.PAUSED_WAITING_TOOL)
    await house.at_rest()
    house.clock.advance(60_001)
    await house.until(run_id, RunStatus.DONE)
    await house.dispatcher.drain(seconds=0)


class Halting:
    """Says a word, and then waits for its end; does not say the same thing twice."""

    repeats_itself = False
    remembers = False

    def __init__(self) -> None:
        self.words = ["one ", "three ", "seven "]
        self.offered: list[str] = []

    async def turn(self, transcript: Transcript) -> AsyncGenerator[Step, None]:
        self.offered = [tool.name for tool in transcript.tools]
        yield Say(self.words.pop(0))
        await asyncio.Event().wait()


async def test_what_was_taken_back_once_is_not_taken_back_again() -> None:
    house = House(agents={"halting": Halting()})
    run_id = await house.invoke("x", "halting")
    for times in (1, 2, 3):

        async def has_spoken(times: int = times) -> bool:
            return [kind for kind, _ in await house.told(run_id)].count(deliveries.DELTA) == times

        await house.when(has_spoken)
        await house.dispatcher.drain(seconds=0)
        if times < 3:
            house.start()
            house.dispatcher.dispatch(run_id)
    notes = [members for kind, members in await house.told(run_id) if kind == deliveries.STATE]
    assert [one["detail"]["retracted_characters"] for one in notes] == [len("one "), len("three ")]


async def test_an_agent_is_offered_each_tool_once() -> None:
    halting = Halting()
    house = House(agents={"halting": halting})
    tools = [Tool(name, "", Level.READ, {}, repeatable=True) for name in ("here", "desk")]
    await house.runs.register_tools("s", tools)
    await house.invoke("x", "halting")

    async def was_offered() -> bool:
        return bool(halting.offered)

    await house.when(was_offered)
    assert sorted(halting.offered) == ["desk", "echo", "here", "pay"]
    await house.dispatcher.drain(seconds=0)


DAY_MS = 24 * 3_600_000


@pytest.fixture
async def kept(tmp_path: Path) -> AsyncIterator[House]:
    """On a disk, where retention works."""
    clock, bus = FakeClock(), LocalBus()
    journal = await SqliteJournal.open(tmp_path / "journal.db", clock=clock, bus=bus)
    one = House(clock=clock, bus=bus, journal=journal)
    yield one
    await one.dispatcher.drain(seconds=0)
    await journal.close()


async def retained(house: House, run_id: str) -> set[str]:
    """Where the journal still has something of a run."""
    state = await records.load(house.journal, run_id)
    rows = {
        records.SESSION_RUNS: records.session_key("s", run_id),
        records.RUNS: run_id,
        records.OPEN_RUNS: records.session_key("s", run_id),
    }
    found = {name for name, key in rows.items() if await house.journal.get(name, key) is not None}
    told = await house.journal.read("session/s", subject=run_id)
    return found | ({"facts"} if state else set()) | ({"told"} if told else set())


async def test_what_was_told_goes_after_a_day_and_an_ended_run_after_thirty(kept: House) -> None:
    await kept.runs.register_tools("s", [Tool("desk", "", Level.READ, {}, repeatable=True)])
    asked = await kept.invoke("[[tool:desk {}]]")
    await kept.until(asked, RunStatus.PAUSED_WAITING_TOOL)
    await kept.at_rest()
    call = (await kept.runs.state(asked)).calls[0]
    await kept.runs.end_call(asked, call.call_id, ok=True, result="x", error=None)
    await kept.until(asked, RunStatus.DONE)
    retention = Retention(kept.journal, kept.clock)
    kept.clock.advance(DAY_MS - 1000)
    assert await retention.once() == 0
    assert await retained(kept, asked) == {"facts", "told", records.RUNS, records.SESSION_RUNS}
    kept.clock.advance(2000)
    assert await retention.once() > 0
    assert await retained(kept, asked) == {"facts", records.RUNS, records.SESSION_RUNS}
    kept.clock.advance(29 * DAY_MS)
    assert await retention.once() > 0
    assert await retained(kept, asked) == set()
    assert await kept.journal.scan(records.ENDED_RUNS) == []
    with pytest.raises(NotFound):
        await kept.runs.state(asked)
    assert await retention.once() == 0


async def test_retention_leaves_an_open_run_everything_it_needs(kept: House) -> None:
    waiting = await kept.invoke("[[tool:pay {}]] after")
    await kept.until(waiting, RunStatus.PAUSED_WAITING_APPROVAL)
    await kept.at_rest()
    kept.clock.advance(40 * DAY_MS)
    await Retention(kept.journal, kept.clock).once()
    call = (await kept.runs.state(waiting)).calls[0]
    (state, required) = await kept.runs.snapshot("s")
    assert (state.members["state"], required.members["approval_id"]) == (
        "PAUSED_WAITING_APPROVAL", call.approval_id,
    )  # fmt: skip
    ids: dict[str, Any] = {
        "session_id": "s",
        "run_id": waiting,
        "reason": "",
        "decided_by": by("me"),
    }
    await kept.runs.decide_approval(call.approval_id, approve=True, **ids)
    await kept.until(waiting, RunStatus.DONE)


async def test_what_an_agent_is_told_of_a_session_that_goes_on_is_kept(kept: House) -> None:
    first = await kept.invoke("what I said", "echo")
    await kept.until(first, RunStatus.DONE)
    kept.clock.advance(30 * DAY_MS - 1000)
    second = await kept.invoke("and then", "echo")
    await kept.until(second, RunStatus.DONE)
    kept.clock.advance(2000)
    retention = Retention(kept.journal, kept.clock)
    await retention.once()
    assert "facts" in await retained(kept, first)
    kept.clock.advance(30 * DAY_MS + 1)
    await retention.once()
    assert "facts" not in await retained(kept, first) | await retained(kept, second)


async def test_a_session_goes_on_also_when_what_it_was_told_last_is_forgotten(kept: House) -> None:
    """What it was told goes after a day; it may be used once a week."""
    first = await kept.invoke("what I said", "echo")
    await kept.until(first, RunStatus.DONE)
    kept.clock.advance(28 * DAY_MS)
    second = await kept.invoke("and then", "echo")
    await kept.until(second, RunStatus.DONE)
    kept.clock.advance(3 * DAY_MS)
    retention = Retention(kept.journal, kept.clock)
    await retention.once()
    assert await kept.journal.read("session/s") == []
    assert "facts" in await retained(kept, first)
    kept.clock.advance(30 * DAY_MS + 1)
    await retention.once()
    assert "facts" not in await retained(kept, first) | await retained(kept, second)


async def test_a_run_that_was_half_forgotten_is_forgotten_and_so_are_those_after_it(
    kept: House,
) -> None:
    """As after a kill between two parts of a long one."""
    first, second = await kept.invoke("a", "echo"), await kept.invoke("b", "echo")
    for run_id in (first, second):
        await kept.until(run_id, RunStatus.DONE)
    await kept.journal.forget(records.run_stream(first), through=1)
    kept.clock.advance(30 * DAY_MS + 1)
    await Retention(kept.journal, kept.clock).once()
    assert await kept.journal.scan(records.ENDED_RUNS) == []
    assert [event.stream for event in await kept.journal.read_all()] == []


async def test_a_run_that_cannot_be_read_does_not_keep_the_others(kept: House) -> None:
    first, second = await kept.invoke("a", "echo"), await kept.invoke("b", "echo")
    for run_id in (first, second):
        await kept.until(run_id, RunStatus.DONE)
    garbage = NewEvent("nobody_knows_this", b"{}")
    await kept.journal.commit(Append(records.run_stream(first), [garbage]))
    kept.clock.advance(30 * DAY_MS + 1)
    swept: list[int] = []

    async def sweep(before: int) -> int:
        swept.append(before)
        return 0

    await Retention(kept.journal, kept.clock, more=[sweep]).once()
    assert "facts" not in await retained(kept, second)
    assert swept


async def test_tools_are_forgotten_with_a_session_that_is_not_in_use_any_more(house: House) -> None:
    tools = house.runs.session_tools
    online: set[str] = {"online"}
    for session_id in ("s", "online", "gone", "once"):
        await tools.register(session_id, [Tool("desk", "", Level.READ, {}, repeatable=True)])
    as_once_written = (await house.journal.get(SESSION_TOOLS, "once")).value
    lines = json.dumps(json.loads(as_once_written)["tools"]).encode()
    await house.journal.commit(Put(SESSION_TOOLS, "once", lines, expected=1))
    run_id = await house.invoke("[[tool:pay {}]]")
    await house.until(run_id, RunStatus.PAUSED_WAITING_APPROVAL)

    async def kept() -> list[str]:
        now = house.clock.now_ms()
        await tools.forget(now - 30 * DAY_MS, now=now, is_online=online.__contains__)
        return [row.key for row in await house.journal.scan(SESSION_TOOLS)]

    assert await kept() == ["gone", "once", "online", "s"]
    house.clock.advance(30 * DAY_MS)
    assert await kept() == ["gone", "once", "online", "s"]
    house.clock.advance(1)
    assert await kept() == ["online", "s"]
    online.clear()
    house.clock.advance(30 * DAY_MS)
    assert await kept() == ["online", "s"], "it was in use until just now"
    house.clock.advance(1)
    assert await kept() == ["s"]
    assert [tool.name for tool in await tools.of("s")] == ["desk"]


class Greedy:
    """Wants so many tools in its first turn, and is done with their answers."""

    repeats_itself = True
    remembers = False

    def __init__(self, calls: int) -> None:
        self._calls = calls

    async def turn(self, transcript: Transcript) -> AsyncGenerator[Step, None]:
        yield EndTurn([] if transcript.turns else [Call("here", {})] * self._calls)


class CountingJournal(MemoryJournal):
    """Knows how many events were read from it."""

    read_out = 0

    async def read(self, *args: Any, **named: Any) -> list[Event]:
        events = await super().read(*args, **named)
        self.read_out += len(events)
        return events


async def test_a_turn_of_many_calls_does_not_read_them_all_for_each_of_them() -> None:
    clock, bus = FakeClock(), LocalBus()
    journal = CountingJournal(clock=clock, bus=bus)
    house = House(clock, bus, {"greedy": Greedy(MAX_CALLS)}, journal)
    run_id = await house.invoke("", "greedy")
    await house.at_rest()
    assert len(house.gate.ran) == MAX_CALLS
    journal.read_out, before = 0, journal.read_out
    await house.runs.state(run_id)
    assert before < 20 * journal.read_out, "each call has cost what all of them cost"
    await house.dispatcher.drain(seconds=0)


async def test_a_turn_of_more_calls_than_can_be_meant_fails_the_run_and_makes_none() -> None:
    house = House(agents={"greedy": Greedy(MAX_CALLS + 1)})
    run_id = await house.invoke("", "greedy")
    await house.until(run_id, RunStatus.FAILED, RunStatus.DONE)
    assert (await house.runs.state(run_id)).code == "too_many_calls"
    assert not house.gate.ran
    await house.dispatcher.drain(seconds=0)


async def test_a_long_answer_does_not_make_an_agent_forget_what_was_just_said(house: House) -> None:
    await house.until(await house.invoke("an early word", "echo"), RunStatus.DONE)
    long = "It begins here. " + "x" * HISTORY_CHARACTERS + " It ends here."
    await house.until(await house.invoke(long, "echo"), RunStatus.DONE)
    run_id = await house.invoke("And then?", "endless")
    await house.until(run_id, RunStatus.RUNNING)
    await house.when(house.endless_has_heard)
    asked, answered = house.endless.history
    assert asked.endswith("It ends here.")
    assert answered.endswith("It ends here.")
    assert len(asked) + len(answered) <= HISTORY_CHARACTERS
    await house.runs.cancel(run_id, session_id="s", reason="enough")


class Two:
    """Wants two tools at once."""

    repeats_itself = True
    remembers = False

    async def turn(self, transcript: Transcript) -> AsyncGenerator[Step, None]:
        yield EndTurn([] if transcript.turns else [Call("here", {}), Call("pay", {})])


async def test_a_call_that_was_approved_does_not_wait_for_the_one_beside_it() -> None:
    house = House(agents={"two": Two()})
    house.gate.asks.add("pay")
    goes_on = asyncio.Event()

    async def slow(request: ToolRequest) -> None:
        if request.tool == "here":
            await goes_on.wait()

    house.tool = slow
    run_id = await house.invoke("", "two")
    await house.until(run_id, RunStatus.PAUSED_WAITING_APPROVAL)
    approval_id = (await house.runs.state(run_id)).calls[1].approval_id
    await house.runs.decide_approval(
        approval_id, session_id="s", run_id=run_id, approve=True, reason="", decided_by=by("u")
    )

    async def is_paid() -> bool:
        calls = (await house.runs.state(run_id)).calls
        return [call.status for call in calls] == [CallStatus.RUNNING, CallStatus.SUCCEEDED]

    await house.when(is_paid)
    goes_on.set()
    await house.until(run_id, RunStatus.DONE)
    assert [request.tool for request in house.gate.ran] == ["here", "pay"]
    await house.dispatcher.drain(seconds=0)


class Flood:
    """Says more and more."""

    repeats_itself = False
    remembers = False
    said = 0

    async def turn(self, transcript: Transcript) -> AsyncGenerator[Step, None]:
        while self.said < 8 * TEXT_LIMIT:
            self.said += TEXT_LIMIT // 8
            yield Say("x" * (TEXT_LIMIT // 8))


async def test_an_agent_that_says_more_than_anyone_reads_is_stopped() -> None:
    flood = Flood()
    house = House(agents={"flood": flood})
    run_id = await house.invoke("", "flood")
    await house.at_rest()
    state = await house.runs.state(run_id)
    assert (state.status, state.code) == (RunStatus.FAILED, "too_much_text")
    assert flood.said < 2 * TEXT_LIMIT
    await house.dispatcher.drain(seconds=0)


class FailingOnce(MemoryJournal):
    """Cannot be pruned the first time, for a reason that nobody thought of."""

    pruned = 0

    async def prune(self, prefix: str, *, before: int, keep: int) -> int:
        self.pruned += 1
        if self.pruned == 1:
            raise ValueError("a row that cannot be read")
        return 0


async def test_what_goes_wrong_once_does_not_end_retention_for_good() -> None:
    clock = FakeClock()
    journal = FailingOnce(clock=clock, bus=LocalBus())
    retention = Retention(journal, clock, every_s=0.001)
    retention.start()
    try:
        async with asyncio.timeout(5):
            while journal.pruned < 2:
                await asyncio.sleep(0.001)
    finally:
        await retention.stop()


class Full(MemoryJournal):
    """Refuses every commit while it is full, as a disk does."""

    is_full = False

    async def commit(self, *operations: Operation, durable: bool = True) -> list[Event]:
        if self.is_full:
            raise Unavailable("no space left on the device")
        return await super().commit(*operations, durable=durable)


@pytest.mark.parametrize("when", ["at its start", "once a person has decided"])
async def test_a_run_that_met_a_full_disk_goes_on_once_there_is_room(
    monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    monkeypatch.setattr(dispatching, "RETRY_S", 0.01)
    clock, bus = FakeClock(), LocalBus()
    journal = Full(clock=clock, bus=bus)
    house = House(clock=clock, bus=bus, journal=journal)
    run_id = await house.invoke("[[tool:pay {}]]")
    if when == "once a person has decided":
        await house.until(run_id, RunStatus.PAUSED_WAITING_APPROVAL)
        await house.at_rest()
        state = await house.runs.state(run_id)
        approval = state.calls[0].approval_id
        await house.runs.decide_approval(
            approval, session_id="s", run_id=run_id, approve=True, reason="", decided_by=by("u")
        )
    journal.is_full = True  # before anyone has worked on it
    await house.at_rest()
    journal.is_full = False
    if when == "at its start":
        await house.until(run_id, RunStatus.PAUSED_WAITING_APPROVAL)
    else:
        await house.until(run_id, RunStatus.DONE)
    await house.dispatcher.drain(seconds=0)


class Showy:
    """Tells of its state, and tells."""

    repeats_itself = False
    remembers = False

    def __init__(self, detail: str, failure: AgentFailed | None = None) -> None:
        self.noted = 0
        self._detail, self._failure = detail, failure

    async def turn(self, transcript: Transcript) -> AsyncGenerator[Step, None]:
        if self._failure is not None:
            raise self._failure
        while self.noted < 2 * TEXT_LIMIT:
            self.noted += 1 + len(self._detail)
            yield Note("THINKING", {"of": self._detail} if self._detail else {})


@pytest.mark.parametrize("size", [1_000, 60_000, 2_000_000])
async def test_states_are_as_bounded_as_words_are(size: int) -> None:
    showy = Showy("x" * size)
    house = House(agents={"showy": showy})
    run_id = await house.invoke("", "showy")
    await house.at_rest()
    state = await house.runs.state(run_id)
    assert (state.status, state.code) == (RunStatus.FAILED, "too_much_text")
    told = await house.journal.read("session/s", subject=run_id, limit=10_000)
    assert sum(len(event.data) for event in told) < 1.2 * TEXT_LIMIT
    assert max(len(event.data) for event in told) < 100_000, "no client takes such a message"
    await house.dispatcher.drain(seconds=0)


async def test_a_failure_is_told_in_a_message_that_any_client_takes() -> None:
    endless = AgentFailed("c" * 2_000_000, "because " * 500_000)
    house = House(agents={"showy": Showy("", endless)})
    run_id = await house.invoke("", "showy")
    await house.until(run_id, RunStatus.FAILED)
    kind, members = (await house.told(run_id))[-1]
    assert (kind, members["message"][:16]) == ("error", "because because ")
    assert len(json.dumps(members)) < 100_000
    await house.dispatcher.drain(seconds=0)
