"""What a lone ingress keeps of another's runs, when more than one speaks of a run at once."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.support.ids import CountingIds
from tests.support.people import by
from tests.support.seal import PlainSeal
from toolgate.contracts import ingress_v1 as ingress_wire
from toolgate.contracts.wire import MAX_INT
from toolgate.core.enums import Level
from toolgate.core.errors import Conflict, Unavailable
from toolgate.core.tools import Tool
from toolgate.journal.dispatcher import Dispatcher
from toolgate.journal.journal import Event, Operation, Put, Row
from toolgate.journal.local_bus import LocalBus
from toolgate.runs import deliveries
from toolgate.runs.deliveries import Delivery
from toolgate.runs.orchestrator import Invocation
from toolgate.runs.originals import CALL_ARGS, Originals
from toolgate.runs.remote import records as rows
from toolgate.runs.remote.orchestrator import HttpOrchestrator
from toolgate.runs.remote.records import RemoteRuns
from toolgate.surfaces.ingress.frames import delivery_of
from toolgate.testing.clock import FakeClock
from toolgate.testing.journal import MemoryJournal

DONE = Delivery(deliveries.DONE, "run_1", {"run_id": "run_1", "usage": {}})
CANCELLED = deliveries.failure("run_1", code="cancelled", message="enough")

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Held(MemoryJournal):
    """Its next commit waits until it is let."""

    def __init__(self) -> None:
        super().__init__(clock=FakeClock(), bus=LocalBus())
        self.may, self.asked = asyncio.Event(), asyncio.Event()
        self.holds = self.holds_a_read = False

    async def get(self, collection: str, key: str) -> Row | None:
        found = await super().get(collection, key)
        if self.holds_a_read:
            self.holds_a_read = False
            self.asked.set()
            await self.may.wait()
        return found

    async def commit(self, *operations: Operation, durable: bool = True) -> list[Event]:
        if self.holds:
            self.holds = False
            self.asked.set()
            await self.may.wait()
        return await super().commit(*operations, durable=durable)


def an_orchestrator() -> tuple[HttpOrchestrator, Held]:
    journal, clock = Held(), FakeClock()
    runs = RemoteRuns(journal, clock, Dispatcher(journal, clock), Originals(journal, PlainSeal()))
    return HttpOrchestrator("http://127.0.0.1:9", runs, CountingIds()), journal


async def told(journal: MemoryJournal, session_id: str = "s") -> list[str]:
    events = await journal.read(f"session/{session_id}")
    return [event.type for event in events]


@pytest.mark.requirement("001/invoke/one-end")
@pytest.mark.parametrize(
    "first", [DONE, deliveries.state("run_1", "CANCELLED")], ids=lambda one: one.type
)
async def test_a_run_of_which_two_tell_at_once_ends_once_and_stays_ended(first: Delivery) -> None:
    orchestrator, journal = an_orchestrator()
    started = Delivery(deliveries.RUN_STARTED, "run_1", {"run_id": "run_1", "session_id": "s"})
    await orchestrator.receive("s", started)
    journal.holds = True
    late = asyncio.create_task(orchestrator.receive("s", first))
    await asyncio.wait_for(journal.asked.wait(), 5)
    await orchestrator.receive("s", CANCELLED)
    journal.may.set()
    await asyncio.wait_for(late, 5)
    await orchestrator.receive("s", CANCELLED)  # as its orchestrator tells too
    assert await told(journal) == ["run_started", "error"]
    assert (await orchestrator.runs.find("run_1")).ended
    assert await orchestrator.open_runs() == []


async def test_two_first_events_of_a_run_are_both_told() -> None:
    orchestrator, journal = an_orchestrator()
    journal.holds = True
    late = asyncio.create_task(orchestrator.receive("s", deliveries.delta("run_1", "b")))
    await asyncio.wait_for(journal.asked.wait(), 5)
    await orchestrator.receive("s", deliveries.delta("run_1", "a"))
    await orchestrator.receive("s", DONE)
    journal.may.set()
    await asyncio.wait_for(late, 5)
    assert await told(journal) == ["delta", "done"]
    assert (await orchestrator.runs.find("run_1")).ended
    assert await orchestrator.open_runs() == []


async def test_a_tool_that_two_ask_for_at_once_is_asked_for_once() -> None:
    orchestrator, journal = an_orchestrator()
    await orchestrator.receive("s", deliveries.delta("run_1", "a"))
    members = {"run_id": "run_1", "tool_call_id": "tc_1", "tool_name": "desk", "args": {}}
    request = Delivery(deliveries.TOOL_REQUEST, "run_1", members)
    journal.holds = True
    late = asyncio.create_task(orchestrator.receive("s", request))
    await asyncio.wait_for(journal.asked.wait(), 5)
    await orchestrator.receive("s", request)
    journal.may.set()
    await asyncio.wait_for(late, 5)
    assert await told(journal) == ["delta", "tool_request"]


@pytest.mark.parametrize("by", ["push of our orchestrator", "own redaction"])
@pytest.mark.parametrize("end", ["result", "run"])
async def test_a_tool_request_is_stored_redacted_and_its_original_sealed_until_the_end(
    by: str, end: str
) -> None:
    orchestrator, journal = an_orchestrator()
    members: dict[str, Any] = {"run_id": "run_1", "tool_call_id": "tc_1", "tool_name": "desk"}
    members["args"] = {"key": "SECRET"}
    if by == "own redaction":
        orchestrator.runs.redact_fields = lambda _: {"key": "***"}
    else:
        members["redacted_args"] = {"key": "***"}
    shown: list[bytes] = []
    originals = orchestrator.runs.originals
    journal.bus.subscribe(
        None, lambda events: shown.extend(e.data for e in originals.restored(events))
    )
    request = Delivery(deliveries.TOOL_REQUEST, "run_1", members)
    await orchestrator.receive("s", deliveries.delta("run_1", "a"))
    journal.holds = True  # it is pushed again before the first commit
    late = asyncio.create_task(orchestrator.receive("s", request))
    await asyncio.wait_for(journal.asked.wait(), 5)
    await orchestrator.receive("s", request)
    journal.may.set()
    await asyncio.wait_for(late, 5)
    stored = (await journal.read("session/s"))[-1]
    assert b'"args":{"key":"***"}' in stored.data
    assert b"SECRET" not in stored.data
    assert b"redacted_args" not in stored.data
    assert [b'"args":{"key":"SECRET"}' in one for one in shown] == [False, True]
    assert [row.key for row in await journal.scan(CALL_ARGS)] == ["tc_1"]
    if end == "run":
        await orchestrator.receive("s", DONE)
    else:
        await close_call(orchestrator, "tc_1")
    assert await journal.scan(CALL_ARGS) == []
    assert originals.restored([stored]) == [stored]


async def close_call(orchestrator: HttpOrchestrator, call_id: str) -> None:
    row, found = await orchestrator.runs.waiting(rows.CALLS, call_id, session_id="s", run_id="")
    await orchestrator.runs.close(row, found)


async def test_a_snapshot_asks_for_what_waits_however_much_was_said_since() -> None:
    orchestrator, _ = an_orchestrator()
    members = {"run_id": "run_1", "tool_call_id": "tc_1", "tool_name": "desk", "args": {}}
    request = Delivery(deliveries.TOOL_REQUEST, "run_1", members)
    run = await orchestrator.runs.begin("run_1", rows.RunRow("s"), [request])
    said = [deliveries.delta("run_1", "and ") for _ in range(1001)]
    waits = deliveries.state("run_1", "PAUSED_WAITING_TOOL")
    await orchestrator.runs.tell("run_1", run, [waits, *said])
    told = await orchestrator.snapshot("s")
    assert told == [deliveries.state("run_1", "PAUSED_WAITING_TOOL"), request]


@dataclass
class Answering:
    """An orchestrator: answers as it is told to, and remembers what it was asked."""

    answer: Answer
    asked: list[str] = field(default_factory=list)
    url: str = ""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(request.path)
        return await self.answer(request)


@contextlib.asynccontextmanager
async def answering(answer: Answer) -> AsyncIterator[Answering]:
    one = Answering(answer)
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", one.handle)
    runner = web.AppRunner(app, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    one.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield one
    finally:
        await runner.cleanup()


@pytest.mark.requirement("001/tools/duplicate-answered")
async def test_a_result_that_was_not_handed_over_before_a_kill_may_be_given_again() -> None:
    heard, hangs = asyncio.Event(), True

    async def answer(_: web.Request) -> web.StreamResponse:
        heard.set()
        if hangs:
            await asyncio.Event().wait()
        return web.json_response({"status": "SUCCEEDED"})

    members = {
        "run_id": "run_1",
        "tool_call_id": "tc_1",
        "tool_name": "desk",
        "args": {},
        "deadline_ts": 9,
    }
    result: dict[str, Any] = {"session_id": "s", "run_id": "run_1", "ok": True, "error": None}
    before, journal = an_orchestrator()
    async with answering(answer) as there, asyncio.timeout(10):
        before.url = there.url
        await before.start()
        await before.receive("s", Delivery(deliveries.TOOL_REQUEST, "run_1", members))
        given = asyncio.create_task(before.submit_result("tc_1", result="seen", **result))
        await heard.wait()
        given.cancel()  # as a kill would: nothing more is written
        await asyncio.wait([given])
        hangs = False
        after = HttpOrchestrator(there.url, before.runs, CountingIds())
        await after.start()
        assert await journal.next_due() == 9, "or nobody would tell of its deadline"
        await after.submit_result("tc_1", result="seen", **result)
        with pytest.raises(Conflict):
            await after.submit_result("tc_1", result="seen", **result)
        assert await journal.next_due() is None
        for one in (before, after):
            await one.stop()
    assert len(there.asked) == 2


@pytest.mark.requirement("001/invoke/one-end")
async def test_a_run_whose_stream_breaks_while_its_cancel_fails_still_has_an_end() -> None:
    breaks = asyncio.Event()

    async def handle(request: web.Request) -> web.StreamResponse:
        await request.read()
        if request.path.endswith("/cancel"):
            breaks.set()
            while orchestrator._reading:
                await asyncio.sleep(0)
            return web.Response(status=503)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b'data: {"type": "run_started", "run_id": "run_1"}\n\n')
        await breaks.wait()
        return response

    orchestrator, journal = an_orchestrator()
    async with answering(handle) as there, asyncio.timeout(10):
        orchestrator.url = there.url
        await orchestrator.start()
        await orchestrator.invoke(Invocation("s", "u", "agent", "user", "hi"))
        with pytest.raises(Unavailable):
            await orchestrator.cancel("run_1", session_id="s", reason="enough")
        assert await told(journal) == ["run_started", "error"]
        assert await orchestrator.open_runs() == []
        await orchestrator.stop()


async def test_nobody_decides_for_a_run_that_has_ended() -> None:
    orchestrator, _ = an_orchestrator()
    members = {"run_id": "run_1", "approval_id": "ap_1", "tool_call_id": "tc_1"}
    await orchestrator.receive("s", Delivery(deliveries.APPROVAL_REQUIRED, "run_1", members))
    await orchestrator.receive("s", CANCELLED)
    with pytest.raises(Conflict, match="ended"):
        await orchestrator.decide_approval(
            "ap_1", session_id="s", run_id="run_1", approve=True, reason="", decided_by=by("u")
        )


def a_tool(name: str) -> Tool:
    return Tool(name, "", Level.WRITE, {"type": "object"}, repeatable=False)


async def test_tools_that_could_not_be_registered_are_before_the_next_run() -> None:
    away = True

    async def answer(request: web.Request) -> web.StreamResponse:
        if away:
            return web.Response(status=503)
        body = await request.json()
        if request.path.endswith("/tools"):
            named.append([tool["name"] for tool in body["tools"]])
            return web.json_response({"ok": True})
        return web.json_response({"run_id": f"run_{len(there.asked)}"})

    named: list[list[str]] = []
    orchestrator, _ = an_orchestrator()
    async with answering(answer) as there, asyncio.timeout(10):
        orchestrator.url = there.url
        await orchestrator.start()
        for session_id in ("s", "t"):
            await orchestrator.register_tools(session_id, [a_tool("desk.look")])
        away = False
        await orchestrator.register_tools("t", [a_tool("desk.point")])
        for session_id in ("s", "t", "s"):
            await orchestrator.invoke(Invocation(session_id, "u", "agent", "user", "hi"))
        assert named == [["desk.point"], ["desk.look"]]
        assert [path.rsplit("/", 1)[1] for path in there.asked[-4:]] == [
            "tools", "invoke", "invoke", "invoke",
        ]  # fmt: skip
        await orchestrator.stop()


async def test_an_event_of_no_run_is_told_to_each_session_each_time() -> None:
    orchestrator, journal = an_orchestrator()
    members: dict[str, Any] = {"code": "maintenance", "message": "back in an hour"}
    for session_id in ("s", "t", "s"):
        await orchestrator.receive(session_id, Delivery(deliveries.ERROR, "", members))
    assert (await told(journal), await told(journal, "t")) == (["error"] * 2, ["error"])


async def test_a_deadline_that_comes_late_does_not_open_a_settled_call_again() -> None:
    orchestrator, journal = an_orchestrator()
    members = {
        "run_id": "run_1",
        "tool_call_id": "tc_1",
        "tool_name": "desk",
        "args": {},
        "deadline_ts": 1,
    }
    await orchestrator.receive("s", Delivery(deliveries.TOOL_REQUEST, "run_1", members))
    row, waiting = await orchestrator.runs.waiting(rows.CALLS, "tc_1", session_id="s", run_id="")
    assert row.due == 1
    await orchestrator.runs.close(row, waiting)  # a device was first, after the timer had looked
    await orchestrator.on_call_deadline(row)
    _, waiting = await orchestrator.runs.waiting(rows.CALLS, "tc_1", session_id="s", run_id="")
    assert waiting.settled
    assert await journal.next_due() is None


def stream_of(*events: bytes, then: asyncio.Event) -> Answer:
    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for event in events:
            await response.write(b"data: " + event + b"\n\n")
        await then.wait()
        return response

    return answer


def keepalive_timers(port: int) -> list[bool]:
    """Of the connections to a local port: whether the kernel asks, in silence, if anyone is there."""
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    remote = f"0100007F:{port:04X}"
    return [line[5].startswith("02:") for line in lines if (line[2], line[3]) == (remote, "01")]


async def test_a_stream_from_a_machine_that_has_vanished_is_noticed_by_its_silence() -> None:
    over = asyncio.Event()
    started = b'{"type": "run_started", "run_id": "run_1"}'
    orchestrator, _ = an_orchestrator()
    async with answering(stream_of(started, then=over)) as there, asyncio.timeout(10):
        orchestrator.url = there.url
        await orchestrator.start()
        await orchestrator.invoke(Invocation("s", "u", "agent", "user", "hi"))
        port = int(there.url.rsplit(":", 1)[1])
        while not all(keepalive_timers(port)):  # for a moment it is the timer of an answer
            await asyncio.sleep(0.01)
        assert keepalive_timers(port)
        over.set()
        await orchestrator.stop()


@pytest.mark.parametrize(
    ("status", "ends", "attempts"), [(503, "done", 13), (404, "error", 5)], ids=["away", "unknown"]
)
async def test_a_run_goes_on_after_its_orchestrator_was_away_for_minutes(
    monkeypatch: pytest.MonkeyPatch, status: int, ends: str, attempts: int
) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        if request.method == "GET" and len(there.asked) <= 12:
            return web.Response(status=status)
        kind = "done" if request.method == "GET" else "run_started"
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        members = json.dumps({"type": kind, "run_id": "run_1", "usage": {}})
        await response.write(f"id: {len(there.asked)}\ndata: {members}\n\n".encode())
        return response

    monkeypatch.setattr("toolgate.runs.remote.orchestrator.RESUME_PAUSE_S", 0.00001)
    orchestrator, journal = an_orchestrator()
    async with answering(answer) as there, asyncio.timeout(10):
        orchestrator.url = there.url
        await orchestrator.start()
        await orchestrator.invoke(Invocation("s", "u", "agent", "user", "hi"))
        await asyncio.wait(orchestrator._reading.values())
        assert await told(journal) == ["run_started", ends]
        assert len(there.asked) == attempts
        await orchestrator.stop()


async def test_a_stream_that_ends_within_an_event_is_taken_up_again_before_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def event(number: int, **members: Any) -> bytes:
        return f"id: {number}\ndata: {json.dumps({'run_id': 'run_1', **members})}\n\n".encode()

    second = event(3, type="delta", text="b")

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        if request.method == "POST":
            begun = event(1, type="run_started") + event(2, type="delta", text="a")
            await response.write(begun + second[:-12])  # as a proxy ends it for who has died
        elif request.query["after"] == "2":
            await response.write(second + event(4, type="done", usage={}))
        return response

    monkeypatch.setattr("toolgate.runs.remote.orchestrator.RESUME_PAUSE_S", 0.00001)
    orchestrator, journal = an_orchestrator()
    async with answering(answer) as there, asyncio.timeout(10):
        orchestrator.url = there.url
        await orchestrator.start()
        await orchestrator.invoke(Invocation("s", "u", "agent", "user", "hi"))
        while orchestrator._reading:
            await asyncio.sleep(0.001)
        assert await told(journal) == ["run_started", "delta", "delta", "done"]
        await orchestrator.stop()


@pytest.mark.requirement("001/invoke/same-request-id-concurrent")
async def test_a_request_of_two_devices_at_once_is_one_run() -> None:
    async def answer(_: web.Request) -> web.StreamResponse:
        return web.json_response({"run_id": f"run_{len(there.asked)}"})

    orchestrator, journal = an_orchestrator()
    same = Invocation("s", "u", "agent", "user", "hi", request_id="q")
    async with answering(answer) as there, asyncio.timeout(10):
        orchestrator.url = there.url
        await orchestrator.start()
        journal.holds_a_read = True
        first = asyncio.create_task(orchestrator.invoke(same))
        await journal.asked.wait()
        second = asyncio.create_task(orchestrator.invoke(same))
        await asyncio.wait([second], timeout=0.2)
        journal.may.set()
        assert {await first, await second} == {"run_1"}
        assert await orchestrator.invoke(same) == "run_1"
        assert len(there.asked) == 1
        await orchestrator.stop()


DAY_MS = 24 * 3_600_000


async def test_a_run_that_ended_is_forgotten_with_all_it_waited_for_and_an_open_one_is_not() -> (
    None
):
    orchestrator, journal = an_orchestrator()
    clock = FakeClock()
    orchestrator.runs.clock = clock
    for run_id in ("run_1", "run_2"):
        call: dict[str, Any] = {
            "run_id": run_id,
            "tool_call_id": f"tc of {run_id}",
            "tool_name": "desk",
            "args": {},
        }
        await orchestrator.receive("s", Delivery(deliveries.TOOL_REQUEST, run_id, call))
        approval = {"run_id": run_id, "approval_id": f"ap of {run_id}"}
        await orchestrator.receive("s", Delivery(deliveries.APPROVAL_REQUIRED, run_id, approval))
    await orchestrator.receive("s", DONE)
    ended_before_that_was_noted = rows.encode(rows.RunRow("s", ended=True))
    await journal.commit(Put(rows.RUNS, "run_0", ended_before_that_was_noted, expected=0))

    async def kept(after_ms: int) -> list[list[str]]:
        clock.advance(after_ms)
        await orchestrator.runs.forget(clock.now_ms() - 30 * DAY_MS)
        collections = (rows.RUNS, rows.CALLS, rows.APPROVALS)
        return [[row.key for row in await journal.scan(name)] for name in collections]

    runs = ["run_0", "run_1", "run_2"]
    waiting = [["tc of run_1", "tc of run_2"], ["ap of run_1", "ap of run_2"]]
    assert await kept(30 * DAY_MS) == [runs, *waiting]
    assert await kept(1) == [["run_0", "run_2"], ["tc of run_2"], ["ap of run_2"]]
    assert await kept(30 * DAY_MS) == [["run_2"], ["tc of run_2"], ["ap of run_2"]]


async def test_ids_of_another_orchestrator_may_hold_any_sign() -> None:
    async def answer(_: web.Request) -> web.StreamResponse:
        return web.json_response({"ok": True})

    odd = "1/2?x=%41#y z"
    call = {"run_id": odd, "tool_call_id": odd, "tool_name": "desk", "args": {}}
    approval = {"run_id": odd, "approval_id": odd, "tool_call_id": odd}
    orchestrator, _ = an_orchestrator()
    async with answering(answer) as there, asyncio.timeout(10):
        orchestrator.url = there.url
        await orchestrator.start()
        await orchestrator.receive("s", Delivery(deliveries.TOOL_REQUEST, odd, call))
        await orchestrator.receive("s", Delivery(deliveries.APPROVAL_REQUIRED, odd, approval))
        of_run: dict[str, Any] = {"session_id": "s", "run_id": odd}
        await orchestrator.submit_result(odd, ok=True, result=1, error=None, **of_run)
        await orchestrator.decide_approval(
            odd, approve=True, reason="", decided_by=by("u"), **of_run
        )
        assert await orchestrator.open_runs() == await orchestrator.open_runs("s") == [(odd, "s")]
        again = HttpOrchestrator(there.url, orchestrator.runs, CountingIds())
        await again.start()  # as after a restart
        await again.stop()
        await orchestrator.cancel(odd, session_id="s", reason="enough")
        assert await orchestrator.open_runs() == []
        await orchestrator.stop()
    assert there.asked == [
        f"/internal/tool_calls/{odd}/submit",
        f"/internal/approvals/{odd}/decide",
        f"/internal/runs/{odd}/cancel",
    ]


async def test_an_orchestrator_that_hangs_keeps_no_client_from_its_hello(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hangs = True
    named: list[str] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        if hangs:
            await asyncio.Event().wait()
        named.append(request.path.rsplit("/", 1)[1])
        return web.json_response({"run_id": "run_1"})

    monkeypatch.setattr("toolgate.runs.remote.orchestrator.TOOLS_S", 0.05)
    orchestrator, _ = an_orchestrator()
    async with answering(answer) as there:
        orchestrator.url = there.url
        await orchestrator.start()
        async with asyncio.timeout(5):  # a client waits for 10 s
            await orchestrator.register_tools("s", [a_tool("desk.look")])
        hangs = False
        monkeypatch.undo()
        await orchestrator.invoke(Invocation("s", "u", "agent", "user", "hi"))
        await orchestrator.stop()
    assert named == ["tools", "invoke"]


@pytest.mark.requirement("001/dispatch/submit-tool-result", "001/dispatch/submit-decision")
@pytest.mark.parametrize(
    "body", [b"", b"OK", b'"ok"', b"[]", b'{"status": "ok"}', b'{"status": "RUNNING"}', b"\xff"]
)
async def test_who_answers_200_has_taken_it_whatever_else_it_says(body: bytes) -> None:
    async def answer(_: web.Request) -> web.StreamResponse:
        return web.Response(body=body)

    call = {
        "run_id": "run_1",
        "tool_call_id": "tc_1",
        "tool_name": "desk",
        "args": {},
        "deadline_ts": 9,
    }
    approval = {"run_id": "run_1", "approval_id": "ap_1", "tool_call_id": "tc_1"}
    of_run: dict[str, Any] = {"session_id": "s", "run_id": "run_1"}
    orchestrator, journal = an_orchestrator()
    async with answering(answer) as there, asyncio.timeout(10):
        orchestrator.url = there.url
        await orchestrator.start()
        await orchestrator.receive("s", Delivery(deliveries.TOOL_REQUEST, "run_1", call))
        await orchestrator.receive("s", Delivery(deliveries.APPROVAL_REQUIRED, "run_1", approval))
        await orchestrator.submit_result("tc_1", ok=True, result=1, error=None, **of_run)
        decision: dict[str, Any] = {"reason": "", "decided_by": by("user:u")}
        await orchestrator.decide_approval("ap_1", approve=True, **decision, **of_run)
        assert await journal.next_due() is None, "or it would be told of a time-out"
        with pytest.raises(Conflict, match="approved"):
            await orchestrator.decide_approval("ap_1", approve=False, **decision, **of_run)
        await orchestrator.cancel("run_1", session_id="s", reason="enough")
        assert await orchestrator.open_runs() == []
        await orchestrator.stop()


@pytest.mark.requirement("001/m2/deadline")
@pytest.mark.parametrize("ahead_ms", [-90_000, 90_000])
async def test_a_device_has_its_time_though_the_orchestrators_clock_is_another(
    ahead_ms: int,
) -> None:
    orchestrator, journal = an_orchestrator()
    here = orchestrator.runs.clock.now_ms()
    there_now = here + ahead_ms
    asked = {
        "type": "tool_request",
        "ts": there_now,
        "run_id": "run_1",
        "tool_call_id": "tc_1",
        "tool_name": "desk",
        "args": {},
        "deadline_ts": there_now + 60_000,
    }
    over = asyncio.Event()
    started = b'{"type": "run_started", "run_id": "run_1"}'
    stream = stream_of(started, json.dumps(asked).encode(), then=over)
    async with answering(stream) as there, asyncio.timeout(10):
        orchestrator.url = there.url
        await orchestrator.start()
        await orchestrator.invoke(Invocation("s", "u", "agent", "user", "hi"))
        while "tool_request" not in await told(journal):
            await asyncio.sleep(0.001)
        pushed = {**asked, "tool_call_id": "tc_2", "run_id": "run_2"}
        await orchestrator.receive("s", delivery_of(ingress_wire.decode_event(json.dumps(pushed))))
        for call_id, deadline in (("tc_3", 0), ("tc_4", MAX_INT)):
            pushed = {**pushed, "tool_call_id": call_id, "deadline_ts": deadline}
            await orchestrator.receive(
                "s", delivery_of(ingress_wire.decode_event(json.dumps(pushed)))
            )
        over.set()
        await orchestrator.stop()
    for call_id in ("tc_1", "tc_2"):
        row, _ = await orchestrator.runs.waiting(rows.CALLS, call_id, session_id="s", run_id="")
        assert row.due == here + 60_000
    for call_id, due in (("tc_3", None), ("tc_4", MAX_INT)):
        row, _ = await orchestrator.runs.waiting(rows.CALLS, call_id, session_id="s", run_id="")
        assert row.due is None if due is None else row.due is not None and row.due <= due
    said = json.loads((await journal.read("session/s"))[1].data)
    assert said["deadline_ts"] == asked["deadline_ts"], "it is told as it was said"


@pytest.mark.requirement("001/invoke/one-end")
@pytest.mark.parametrize("way", ["stream", "push", "lost push"])
async def test_a_run_that_ended_before_its_cancel_came_ends_as_it_did(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = 10.0 if way == "push" else 0.001
    monkeypatch.setattr("toolgate.runs.remote.orchestrator.CANCELLED_S", short)
    late = asyncio.Event()  # the end is on its way while the cancel is answered
    started = b'data: {"type": "run_started", "run_id": "run_1"}\n\n'

    async def handle(request: web.Request) -> web.StreamResponse:
        if request.path.endswith("/cancel"):
            return web.json_response({"run_id": "run_1", "status": "DONE", "cancelled": False})
        if way != "stream":
            return web.json_response({"run_id": "run_1"})
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(started)
        await late.wait()
        await response.write(b'data: {"type": "done", "usage": {}}\n\n')
        return response

    orchestrator, journal = an_orchestrator()
    async with answering(handle) as there, asyncio.timeout(10):
        orchestrator.url = there.url
        await orchestrator.start()
        await orchestrator.invoke(Invocation("s", "u", "agent", "user", "hi"))
        cancel = orchestrator.cancel("run_1", session_id="s", reason="enough")
        cancelling = asyncio.create_task(cancel)
        if way == "push":
            while not orchestrator._cancelling:
                await asyncio.sleep(0)
            await orchestrator.receive("s", DONE)
        await cancelling
        late.set()
        while await orchestrator.open_runs():
            await asyncio.sleep(0.001)
        await orchestrator.stop()
    assert await told(journal) == ["run_started", "done"]


@pytest.mark.requirement("001/invoke/one-end")
async def test_a_run_that_ended_and_whose_stream_broke_under_its_cancel_still_has_an_end() -> None:
    breaks = asyncio.Event()

    async def handle(request: web.Request) -> web.StreamResponse:
        await request.read()
        if request.path.endswith("/cancel"):
            breaks.set()
            while orchestrator._reading:
                await asyncio.sleep(0)
            return web.json_response({"run_id": "run_1", "status": "FAILED"})
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b'data: {"type": "run_started", "run_id": "run_1"}\n\n')
        await breaks.wait()
        return response

    orchestrator, journal = an_orchestrator()
    async with answering(handle) as there, asyncio.timeout(10):
        orchestrator.url = there.url
        await orchestrator.start()
        await orchestrator.invoke(Invocation("s", "u", "agent", "user", "hi"))
        await orchestrator.cancel("run_1", session_id="s", reason="enough")
        assert await told(journal) == ["run_started", "error"]
        assert await orchestrator.open_runs() == []
        await orchestrator.stop()


async def test_what_is_pushed_of_a_run_does_not_wait_for_the_next_ones_answer() -> None:
    asked, may = asyncio.Event(), asyncio.Event()

    async def handle(_: web.Request) -> web.StreamResponse:
        asked.set()
        await may.wait()
        return web.json_response({"run_id": "run_2"})

    orchestrator, journal = an_orchestrator()
    async with answering(handle) as there, asyncio.timeout(10):
        orchestrator.url = there.url
        await orchestrator.start()
        await orchestrator.receive("s", deliveries.delta("run_1", "a"))
        invoking = asyncio.create_task(
            orchestrator.invoke(Invocation("s", "u", "agent", "user", "hi"))
        )
        await asked.wait()
        await asyncio.wait_for(orchestrator.receive("s", deliveries.delta("run_1", "b")), 5)
        assert await told(journal) == ["delta", "delta"]
        early = asyncio.create_task(orchestrator.receive("s", deliveries.delta("run_2", "c")))
        await asyncio.sleep(0)
        may.set()
        await asyncio.gather(invoking, early)
        assert await told(journal) == ["delta", "delta", "run_started", "delta"]
        await orchestrator.stop()


@pytest.mark.parametrize("status", [400, 401, 404, 405, 409, 500])
async def test_a_device_may_connect_whatever_the_orchestrator_says_of_its_tools(
    status: int,
) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        if request.path.endswith("/tools"):
            return web.Response(status=status)
        return web.json_response({"run_id": "run_1"})

    orchestrator, _ = an_orchestrator()
    async with answering(answer) as there, asyncio.timeout(10):
        orchestrator.url = there.url
        await orchestrator.start()
        await orchestrator.register_tools("s", [a_tool("desk.look")])
        assert await orchestrator.invoke(Invocation("s", "u", "agent", "user", "hi")) == "run_1"
        await orchestrator.stop()


def pushed(number: int, text: str) -> Delivery:
    return replace(deliveries.delta("run_1", text), event_id=f"ev_{number}")


async def test_what_is_pushed_again_as_its_answer_was_lost_is_told_once() -> None:
    orchestrator, journal = an_orchestrator()
    journal.holds = True  # its first push takes longer than whoever pushes waits
    slow = asyncio.create_task(orchestrator.receive("s", pushed(1, "a")))
    await asyncio.wait_for(journal.asked.wait(), 5)
    await orchestrator.receive("s", pushed(1, "a"))
    journal.may.set()
    await asyncio.wait_for(slow, 5)
    journal.asked.clear()
    journal.may.clear()
    journal.holds = True
    slow = asyncio.create_task(orchestrator.receive("s", pushed(2, "b")))
    await asyncio.wait_for(journal.asked.wait(), 5)
    await orchestrator.receive("s", pushed(2, "b"))
    journal.may.set()
    await asyncio.wait_for(slow, 5)
    for number, text in ((2, "b"), (3, "b"), (0, "c"), (0, "c")):
        event = pushed(number, text) if number else deliveries.delta("run_1", text)
        await orchestrator.receive("s", event)
    events = await journal.read("session/s")
    assert "".join(json.loads(event.data)["text"] for event in events) == "abbcc"


class Full(Held):
    """A disk without room, for so many commits."""

    refusals = 0

    async def commit(self, *operations: Operation, durable: bool = True) -> list[Event]:
        if self.refusals:
            self.refusals -= 1
            raise Unavailable("the disk is full")
        return await super().commit(*operations, durable=durable)


@pytest.mark.requirement("001/invoke/one-end")
async def test_a_run_whose_stream_broke_ends_once_there_is_room_to_write_that_down(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("toolgate.runs.remote.orchestrator.RESUME_PAUSE_S", 0.001)
    over = asyncio.Event()
    journal, clock = Full(), FakeClock()
    runs = RemoteRuns(journal, clock, Dispatcher(journal, clock), Originals(journal, PlainSeal()))
    started = b'{"type": "run_started", "run_id": "run_1"}'
    async with answering(stream_of(started, then=over)) as there, asyncio.timeout(10):
        orchestrator = HttpOrchestrator(there.url, runs, CountingIds())
        await orchestrator.start()
        await orchestrator.invoke(Invocation("s", "u", "agent", "user", "hi"))
        journal.refusals = 3
        over.set()
        while await orchestrator.open_runs():
            await asyncio.sleep(0.001)
        await orchestrator.stop()
    assert await told(journal) == ["run_started", "error"]


class Broken(Held):
    """A commit of what an agent said fails as nobody foresaw."""

    async def commit(self, *operations: Operation, durable: bool = True) -> list[Event]:
        if not durable:
            raise ValueError("a fault of ours")
        return await super().commit(*operations, durable=durable)


@pytest.mark.requirement("001/invoke/one-end")
async def test_a_run_whose_stream_cannot_be_read_for_a_fault_of_ours_has_an_end_too() -> None:
    journal, clock, over = Broken(), FakeClock(), asyncio.Event()
    runs = RemoteRuns(journal, clock, Dispatcher(journal, clock), Originals(journal, PlainSeal()))
    started = b'{"type": "run_started", "run_id": "run_1"}'
    said = b'{"type": "delta", "run_id": "run_1", "text": "hi"}'
    async with answering(stream_of(started, said, then=over)) as there, asyncio.timeout(10):
        orchestrator = HttpOrchestrator(there.url, runs, CountingIds())
        await orchestrator.start()
        await orchestrator.invoke(Invocation("s", "u", "agent", "user", "hi"))
        while orchestrator._reading:
            await asyncio.sleep(0.001)
        over.set()
        await orchestrator.stop()
    assert await told(journal) == ["run_started", "error"]
    assert await orchestrator.open_runs() == []


async def test_a_run_whose_events_came_before_its_answer_begins_over_their_row() -> None:
    clock = FakeClock()
    journal = MemoryJournal(clock=clock, bus=LocalBus())
    runs = RemoteRuns(journal, clock, Dispatcher(journal, clock), Originals(journal, PlainSeal()))
    pushed = await runs.begin("run_1", rows.RunRow("s", pushed=True), [], expected=0)
    assert pushed.version == 1
    begun = await runs.begin("run_1", rows.RunRow("s", request_id="r"), [])
    assert begun == await runs.find("run_1")
    assert begun.version == 2
    assert await runs.open_runs("s") == [("run_1", "s")]
    with pytest.raises(Conflict):
        await runs.begin("run_2", rows.RunRow("s", request_id="r"), [])
