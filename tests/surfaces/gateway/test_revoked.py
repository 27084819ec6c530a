"""A device that is revoked in the middle of a request."""

import asyncio
import json
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest
import pytest_asyncio

from tests.support.people import by
from tests.support.upstreams import FakeUpstreams
from tests.surfaces.gateway.conftest import ALL, Answered, Door, Paired, open_door
from toolgate.access.devices import Scope
from toolgate.access.refusals import Forbidden
from toolgate.access.registry import Registry
from toolgate.access.revocations import REVOCATIONS
from toolgate.commands.records import OPEN, gateway_event
from toolgate.contracts.gateway_v1 import CloseCode, ErrorCode, EventStatus, EventType
from toolgate.core.enums import CommandKind, Level, RunStatus
from toolgate.core.errors import Unavailable
from toolgate.core.system_clock import SystemClock
from toolgate.core.tools import Tool, ToolOutput
from toolgate.http.asgi import Message
from toolgate.journal.local_bus import LocalBus
from toolgate.journal.sqlite.journal import SqliteJournal
from toolgate.runs import records
from toolgate.runs.runs import Runs
from toolgate.surfaces.gateway.mounted import Guarded
from toolgate.testing.gate import echo

HEALTH, SUCCEEDED = EventType.HEALTH, EventStatus.SUCCEEDED


class Exchange:
    """One request as the server sees it, with each side as slow as the test wants."""

    def __init__(self, device: Paired, method: str, path: str, body: bytes = b"") -> None:
        self.scope: dict[str, Any] = {
            "type": "http",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "headers": [
                (b"host", b"localhost"),
                *((k.lower().encode(), v.encode()) for k, v in device.headers.items()),
            ],
        }
        self.body = body
        self.sent: list[Message] = []
        self.reads, self.may_read = asyncio.Event(), asyncio.Event()
        self.writes, self.may_write = asyncio.Event(), asyncio.Event()

    async def receive(self) -> Message:
        self.reads.set()
        await self.may_read.wait()
        self.may_read.clear()
        return {"type": "http.request", "body": self.body, "more_body": False}

    async def send(self, message: Message) -> None:
        self.sent.append(message)
        self.writes.set()
        await self.may_write.wait()


async def revoke(door: Door) -> None:
    await door.ask("POST", "/pairing/revoke", body={"deviceId": "laptop"}, operator=True)


async def test_a_body_that_is_whole_only_after_the_revocation_is_refused(
    door: Door,
) -> None:
    device = await door.pair(**ALL)
    exchange = Exchange(device, "POST", "/command/tool", b'{"payload": {"name": "echo"}}')
    exchange.may_write.set()
    serving = asyncio.create_task(
        door.parts.gateway.serve(exchange.scope, exchange.receive, exchange.send)
    )
    await exchange.reads.wait()
    await revoke(door)
    exchange.may_read.set()
    async with asyncio.timeout(10):
        await serving
    assert exchange.sent[0]["status"] == 401
    assert door.gate.ran == []


async def test_a_stream_whose_device_is_revoked_before_its_first_byte_moved(door: Door) -> None:
    device = await door.pair()
    exchange = Exchange(device, "GET", "/events/stream")
    serving = asyncio.create_task(
        door.parts.gateway.serve(exchange.scope, exchange.receive, exchange.send)
    )
    await exchange.writes.wait()
    await revoke(door)
    exchange.may_write.set()
    async with asyncio.timeout(10):
        await serving


async def test_who_waits_for_a_command_is_refused_once_revoked(door: Door) -> None:
    door.gate.add("pay", Level.SIGN, echo)
    device = await door.pair(**ALL)
    await device.tool("pay", key="k", requestId="r")
    waiting = asyncio.create_task(device.get("/command/r?wait=30"))
    async with asyncio.timeout(10):
        while not door.parts.states._moved:
            await asyncio.sleep(0.01)
        await revoke(door)
        answer = await waiting
    assert (answer.status, answer.code) == (401, ErrorCode.INVALID_TOKEN)


async def test_a_stream_that_is_read_slowly_tells_nothing_more_once_its_device_is_revoked(
    door: Door,
) -> None:
    device = await door.pair()
    exchange = Exchange(device, "GET", "/events/stream")
    exchange.scope["query_string"] = b"since=0"
    for number in range(5):
        await door.journal.commit(gateway_event(HEALTH, SUCCEEDED, f"event {number}"))
    serving = asyncio.create_task(
        door.parts.gateway.serve(exchange.scope, exchange.receive, exchange.send)
    )

    def events() -> list[bytes]:
        return [body for m in exchange.sent if b"data: " in (body := m.get("body", b""))]

    async with asyncio.timeout(10):
        while not events():
            await exchange.writes.wait()
            exchange.writes.clear()
            exchange.may_write.set()
            exchange.may_write = asyncio.Event()  # for one message alone
        await revoke(door)
        on_their_way = len(events())
        exchange.may_write.set()
        await serving
    assert len(events()) == on_their_way < 5


class Talk:
    """A WebSocket as the server sees it: frames come when the test says so."""

    scope: ClassVar = {"type": "websocket", "path": "/v2/ws", "headers": [(b"host", b"localhost")]}

    def __init__(self, device: Paired) -> None:
        self.coming: asyncio.Queue[Message] = asyncio.Queue()
        self.coming.put_nowait({"type": "websocket.connect"})
        hello = {"deviceId": device.device_id, "clientType": "test", "capabilities": []}
        self.say({"type": "connect", **hello, "auth": {"token": device.token}})
        self.told: list[Any] = []
        self.code: int | None = None
        self.may_write = asyncio.Event()
        self.may_write.set()

    def say(self, frame: Any) -> None:
        self.coming.put_nowait({"type": "websocket.receive", "text": json.dumps(frame)})

    async def receive(self) -> Message:
        return await self.coming.get()

    async def send(self, message: Message) -> None:
        await self.may_write.wait()
        if message["type"] == "websocket.close":
            self.code = message["code"]
        elif message["type"] == "websocket.send":
            self.told.append(json.loads(message["text"]))

    async def until_told(self, count: int) -> None:
        async with asyncio.timeout(10):
            while len(self.told) < count:
                await asyncio.sleep(0)


async def test_a_request_that_comes_as_its_device_is_revoked_is_not_served(door: Door) -> None:
    device = await door.pair(**ALL)
    talk = Talk(device)
    serving = asyncio.create_task(door.parts.gateway.socket(talk.scope, talk.receive, talk.send))
    await talk.until_told(2)  # the challenge, and that it is connected
    params = {"payload": {"name": "echo", "args": {"text": "x"}}}
    talk.say({"type": "req", "id": "1", "method": "command.tool", "params": params})
    async with asyncio.timeout(10):
        await door.parts.registry.revoke("laptop")
        await serving
    assert door.gate.ran == []
    assert talk.code == CloseCode.UNAUTHENTICATED


async def test_what_waits_for_a_slow_socket_is_not_told_to_a_device_that_was_revoked(
    door: Door,
) -> None:
    device = await door.pair()
    talk = Talk(device)
    serving = asyncio.create_task(door.parts.gateway.socket(talk.scope, talk.receive, talk.send))
    await talk.until_told(2)
    talk.may_write.clear()
    for number in range(5):
        await door.journal.commit(gateway_event(HEALTH, SUCCEEDED, f"event {number}"))
    for _ in range(100):  # turns, in which all of them are put in the socket's queue
        await asyncio.sleep(0)
    async with asyncio.timeout(10):
        await door.parts.registry.revoke("laptop")
        talk.may_write.set()
        await serving
    assert len(talk.told) <= 3  # one may have been on its way
    assert talk.code == CloseCode.UNAUTHENTICATED


async def test_a_request_beside_the_routes_that_is_cut_before_its_answer_is_told_why(
    door: Door,
) -> None:
    device = await door.pair(**ALL)
    exchange = Exchange(device, "POST", "/mcp")
    exchange.may_write.set()
    asked = asyncio.Event()

    async def thinks(*_: object) -> None:
        asked.set()
        await asyncio.Event().wait()

    serving = asyncio.create_task(
        Guarded(thinks, door.parts.gateway.doors)(exchange.scope, exchange.receive, exchange.send)
    )
    async with asyncio.timeout(10):
        await asked.wait()
        await revoke(door)
        await serving
    assert exchange.sent[0]["status"] == 401
    assert json.loads(exchange.sent[1]["body"])["error"]["code"] == ErrorCode.INVALID_TOKEN


class Slow:
    """A tool that an agent is at work with until the test lets it end."""

    def __init__(self) -> None:
        self.began = asyncio.Event()
        self.may_end = asyncio.Event()

    async def __call__(self, _: object) -> ToolOutput:
        self.began.set()
        await self.may_end.wait()
        return ToolOutput(0)


@pytest.fixture
async def slow(door: Door) -> AsyncIterator[Slow]:
    tool = Slow()
    door.gate.add("slow", Level.READ, tool)
    yield tool
    tool.may_end.set()


def at_work(mode: str = "async") -> dict[str, Any]:
    return {"payload": {"agentId": "script", "message": "[[tool:slow {}]]", "mode": mode}}


async def set_to_work(device: Paired) -> str:
    """The run that a device's agent command has started, and that has not ended."""
    answer = await device.post("/command/agent", at_work())
    assert answer.status == 202, answer.json
    return str(answer.data["runId"])


async def give_less(registry: Registry, device_id: str) -> None:
    """A device that may do everything may only read from then on."""
    await registry.pair(device_id, Scope(), public_key="")


async def status_of(door: Door, run_id: str) -> RunStatus:
    return (await door.runs.state(run_id)).status


@pytest.mark.requirement("002/pairing/revoke-runs")
async def test_revoking_a_device_cancels_the_runs_of_its_agent_commands_and_no_others(
    door: Door, slow: Slow
) -> None:
    laptop, phone = await door.pair("laptop", **ALL), await door.pair("laptop:2", **ALL)
    gone, stays = await set_to_work(laptop), await set_to_work(phone)
    await revoke(door)
    assert await status_of(door, gone) is RunStatus.CANCELLED
    slow.may_end.set()
    async with asyncio.timeout(10):
        while await status_of(door, stays) is not RunStatus.DONE:
            await asyncio.sleep(0.01)


async def test_a_command_whose_agent_is_waited_for_moved_as_its_device_is_revoked(
    door: Door, slow: Slow
) -> None:
    device = await door.pair(**ALL)
    asked = asyncio.create_task(device.post("/command/agent", at_work("sync")))
    async with asyncio.timeout(10):
        await slow.began.wait()
        await revoke(door)
        answer = await asked
    assert answer.json["ok"] is False
    (run,) = await door.journal.scan(records.RUNS)
    assert records.decode_run_line(run.value).status == RunStatus.CANCELLED


async def token(door: Door, method: str, path: str, body: Any = None) -> Answered:
    answer = await door.ask(method, path, body=body, operator=True)
    assert answer.status == 200, answer.json
    return answer


async def test_the_end_of_a_service_token_cancels_the_runs_of_its_agent_commands(
    door: Door, slow: Slow
) -> None:
    made = await token(door, "POST", "/tokens", {"name": "ci", "scope": ALL})
    bearer = {"Authorization": f"Bearer {made.data['token']}"}
    asked = await door.ask("POST", "/command/agent", body=at_work(), headers=bearer)
    await token(door, "DELETE", "/tokens/ci")
    assert await status_of(door, asked.data["runId"]) is RunStatus.CANCELLED


async def test_another_token_in_the_place_of_one_leaves_the_runs_alone(
    door: Door, slow: Slow
) -> None:
    run_id = await set_to_work(await door.pair(**ALL))
    made = await token(door, "POST", "/tokens", {"name": "ci", "scope": ALL})
    bearer = {"Authorization": f"Bearer {made.data['token']}"}
    asked = await door.ask("POST", "/command/agent", body=at_work(), headers=bearer)
    await door.pair(**ALL)
    await token(door, "POST", "/tokens", {"name": "ci", "scope": ALL})
    slow.may_end.set()
    async with asyncio.timeout(10):
        for one in (run_id, asked.data["runId"]):
            while await status_of(door, one) is not RunStatus.DONE:
                await asyncio.sleep(0.01)


async def test_taking_the_scope_agent_away_cancels_the_runs_of_a_devices_agent_commands(
    door: Door, slow: Slow
) -> None:
    run_id = await set_to_work(await door.pair(**ALL))
    await door.pair(**{**ALL, "agent": False})
    assert await status_of(door, run_id) is RunStatus.CANCELLED


async def test_commands_that_wait_are_refused_once_their_scope_is_taken_away(
    door: Door, slow: Slow
) -> None:
    door.gate.add("pay", Level.SIGN, echo)
    device = await door.pair(**ALL)
    await device.tool("pay", key="k", requestId="pays")
    await device.post("/command/agent", {**at_work(), "requestId": "works"})
    device = await door.pair(tools="read")
    for name in ("pays", "works"):
        state = (await device.get(f"/command/{name}?wait=10")).data
        assert state["answer"]["error"]["code"] == ErrorCode.PERMISSION_DENIED


async def test_a_token_without_the_scope_agent_in_the_place_of_one_with_it_cancels_its_runs(
    door: Door, slow: Slow
) -> None:
    made = await token(door, "POST", "/tokens", {"name": "ci", "scope": ALL})
    bearer = {"Authorization": f"Bearer {made.data['token']}"}
    asked = await door.ask("POST", "/command/agent", body=at_work(), headers=bearer)
    await token(door, "POST", "/tokens", {"name": "ci", "scope": {**ALL, "agent": False}})
    assert await status_of(door, asked.data["runId"]) is RunStatus.CANCELLED


@pytest.mark.parametrize("taken_away", [Registry.revoke, give_less])
async def test_a_right_that_a_kill_took_away_only_in_part_is_gone_after_the_next_start(
    tmp_path: Path, taken_away: Callable[[Registry, str], Awaitable[object]]
) -> None:
    running, killed = tmp_path / "running", tmp_path / "killed"
    running.mkdir()
    async with open_door(home=running) as door:
        slow = Slow()
        door.gate.add("slow", Level.READ, slow)
        run_id = await set_to_work(await door.pair(**ALL))
        shutil.copytree(running, killed)  # as a killed process leaves it
        slow.may_end.set()
    clock = SystemClock()
    journal = await SqliteJournal.open(killed / "journal.db", clock=clock, bus=LocalBus())
    registry = Registry(journal, clock)
    await registry.load()
    await taken_away(registry, "laptop")  # here nobody cancels runs
    await journal.close()
    async with open_door(home=killed) as door:
        assert await status_of(door, run_id) is RunStatus.CANCELLED
        assert await door.journal.scan(REVOCATIONS) == []


async def test_a_run_that_cannot_be_cancelled_as_its_device_is_revoked_is_a_little_later(
    door: Door, slow: Slow, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = await set_to_work(await door.pair(**ALL))
    cancel = Runs.cancel

    async def fails_once(runs: Runs, run_id: str, *, session_id: str, reason: str) -> None:
        monkeypatch.setattr(Runs, "cancel", cancel)
        raise Unavailable("the disk is full")

    monkeypatch.setattr(Runs, "cancel", fails_once)
    await revoke(door)
    async with asyncio.timeout(10):
        while await status_of(door, run_id) is not RunStatus.CANCELLED:
            await asyncio.sleep(0.01)
        while await door.journal.scan(REVOCATIONS):
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("taken_away", [Registry.revoke, give_less])
async def test_an_agents_command_that_was_let_in_as_its_right_was_taken_away_starts_no_run(
    door: Door, taken_away: Callable[[Registry, str], Awaitable[object]]
) -> None:
    await door.pair(**ALL)
    identity = door.parts.registry.identity("laptop")
    assert identity is not None
    planner = door.parts.commands.planners[CommandKind.AGENT]
    plan = await planner.plan(planner.decode(json.dumps(at_work()).encode()), identity, "cmd_1")
    await taken_away(door.parts.registry, "laptop")
    assert plan.start is not None
    with pytest.raises(Forbidden):
        await plan.start("")
    assert await door.runs.open_runs() == []


@pytest.mark.parametrize("healed_by_then", [True, False])
@pytest.mark.parametrize("taken_away", [Registry.revoke, give_less])
async def test_a_revocation_that_waits_moved_nothing_that_is_started_after_the_next_pairing(
    door: Door,
    slow: Slow,
    monkeypatch: pytest.MonkeyPatch,
    taken_away: Callable[[Registry, str], Awaitable[object]],
    healed_by_then: bool,
) -> None:
    before = await set_to_work(await door.pair(**ALL))

    async def fails(*_: object, **__: object) -> None:
        raise Unavailable("the disk is full")

    with monkeypatch.context() as broken:
        broken.setattr(Runs, "cancel", fails)
        await taken_away(door.parts.registry, "laptop")
        (waits,) = await door.journal.scan(REVOCATIONS)
        device = None if healed_by_then else await door.pair(**ALL)
    after = await set_to_work(device or await door.pair(**ALL))
    await door.parts.revocations.on_due(waits)  # as it was read before
    assert await status_of(door, before) is RunStatus.CANCELLED
    slow.may_end.set()
    async with asyncio.timeout(10):
        while await status_of(door, after) is not RunStatus.DONE:
            await asyncio.sleep(0.01)


async def test_a_script_whose_name_is_used_again_keeps_what_it_starts_then(
    door: Door, slow: Slow, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def start() -> str:
        made = await token(door, "POST", "/tokens", {"name": "ci", "scope": ALL})
        bearer = {"Authorization": f"Bearer {made.data['token']}"}
        asked = await door.ask("POST", "/command/agent", body=at_work(), headers=bearer)
        return str(asked.data["runId"])

    async def fails(*_: object, **__: object) -> None:
        raise Unavailable("the disk is full")

    before = await start()
    with monkeypatch.context() as broken:
        broken.setattr(Runs, "cancel", fails)
        await token(door, "DELETE", "/tokens/ci")
        (waits,) = await door.journal.scan(REVOCATIONS)
    after = await start()
    await door.parts.revocations.on_due(waits)
    assert await status_of(door, before) is RunStatus.CANCELLED
    assert await status_of(door, after) is not RunStatus.CANCELLED


class SlowServer:
    """An MCP server that says what it offers once the test lets it."""

    def __init__(self, door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked, self.may_answer = asyncio.Event(), asyncio.Event()
        self.may_answer.set()
        tools = (Tool("look", "", Level.READ, {}, True), Tool("pay", "", Level.SIGN, {}, False))
        for tool in tools:
            door.gate.add(f"mcp.docs.{tool.name}", tool.level, echo)
        door.upstreams.offered["mcp.docs"] = tools
        offers = FakeUpstreams.tools

        async def slowly(upstreams: FakeUpstreams, *what: str, **more: str) -> Mapping[str, Tool]:
            self.asked.set()
            await self.may_answer.wait()
            return await offers(upstreams, *what, **more)

        monkeypatch.setattr(FakeUpstreams, "tools", slowly)

    def command(self, action: str) -> dict[str, Any]:
        return {"payload": {"capabilityId": "mcp.docs", "action": action}}


@pytest_asyncio.fixture
async def server(door: Door, monkeypatch: pytest.MonkeyPatch) -> SlowServer:
    made = SlowServer(door, monkeypatch)
    terms = {"capabilityId": "mcp.docs", "scope": "docs", "level": "write"}
    await door.ask("POST", "/capabilities/register", body=terms, operator=True)
    return made


@pytest.mark.parametrize("taken_away", [Registry.revoke, give_less])
async def test_a_command_whose_right_is_taken_away_while_its_server_is_asked_is_not_run(
    door: Door,
    server: SlowServer,
    taken_away: Callable[[Registry, str], Awaitable[object]],
) -> None:
    device = await door.pair(**ALL)
    server.may_answer.clear()
    asking = asyncio.create_task(device.post("/command/mcp", server.command("look")))
    async with asyncio.timeout(10):
        await server.asked.wait()
        await taken_away(door.parts.registry, "laptop")
        server.may_answer.set()
        answer = await asking
    assert answer.json["ok"] is False
    assert door.gate.ran == []


async def test_a_command_whose_capability_is_removed_while_its_server_is_asked_is_not_run(
    door: Door, server: SlowServer
) -> None:
    device = await door.pair(**ALL)
    server.may_answer.clear()
    asking = asyncio.create_task(device.post("/command/mcp", server.command("look")))
    async with asyncio.timeout(10):
        await server.asked.wait()
        await door.ask("DELETE", "/capabilities/mcp.docs", operator=True)
        server.may_answer.set()
        answer = await asking
    assert answer.code == ErrorCode.PERMISSION_DENIED
    assert door.gate.ran == []


@pytest.mark.parametrize("taken_away", [Registry.revoke, give_less])
async def test_an_approved_command_whose_right_is_taken_away_while_its_server_is_asked_is_not_run(
    door: Door,
    server: SlowServer,
    taken_away: Callable[[Registry, str], Awaitable[object]],
) -> None:
    device = await door.pair(**ALL)
    waits = await device.post("/command/mcp", server.command("pay"), key="k")
    async with asyncio.timeout(10):
        while door.parts.states._resuming:
            await asyncio.sleep(0)
        server.may_answer.clear()
        server.asked.clear()
        await door.gate.decide_approval(
            waits.data["approvalId"], approve=True, decided_by=by("operator"), reason=""
        )
        await server.asked.wait()
        await taken_away(door.parts.registry, "laptop")
        server.may_answer.set()
        while await door.journal.scan(OPEN):
            await asyncio.sleep(0.01)
    assert door.gate.ran == []


@pytest.mark.parametrize("taken_away", [Registry.revoke, give_less])
async def test_a_command_that_waited_for_another_with_its_key_is_not_run_once_its_right_is_gone(
    door: Door, taken_away: Callable[[Registry, str], Awaitable[object]]
) -> None:
    began, may_fail = asyncio.Event(), asyncio.Event()

    async def fails(_: object) -> ToolOutput:
        began.set()
        await may_fail.wait()
        raise RuntimeError("no answer comes of it")

    door.gate.add("write", Level.WRITE, fails)
    device = await door.pair(**ALL)
    both = [asyncio.create_task(device.tool("write", key="k")) for _ in range(2)]
    async with asyncio.timeout(10):
        await began.wait()
        claim = next(iter(door.parts.keys._locks.values()))
        while not claim.released._callbacks:  # as shield() waits
            await asyncio.sleep(0)
        await taken_away(door.parts.registry, "laptop")
        may_fail.set()
        await asyncio.gather(*both)
    assert len(door.gate.ran) == 1


@pytest.mark.parametrize("taken_away", [Registry.revoke, give_less])
async def test_of_several_calls_none_begins_once_the_right_to_it_is_taken_away(
    door: Door, slow: Slow, taken_away: Callable[[Registry, str], Awaitable[object]]
) -> None:
    door.gate.add("write", Level.WRITE, echo)
    device = await door.pair(**ALL)
    calls: list[dict[str, Any]] = [
        {"id": name, "name": name, "arguments": {}} for name in ("slow", "write")
    ]
    body = {"payload": {"toolCalls": calls}}
    asking = asyncio.create_task(device.post("/command/tool", body, key="k"))
    async with asyncio.timeout(10):
        await slow.began.wait()
        await taken_away(door.parts.registry, "laptop")
        slow.may_end.set()
        answer = await asking
    assert [one.tool for one in door.gate.ran] == ["slow"]
    assert [one["success"] for one in answer.data["results"]] == [True, False]
