"""A device that is revoked in the middle of a request."""

import asyncio
import json
from typing import Any, ClassVar

from tests.surfaces.gateway.conftest import ALL, Door, Paired
from toolgate.asgi import Message
from toolgate.contracts.gateway_v1 import CloseCode, ErrorCode, EventStatus, EventType
from toolgate.domain.tools import Level
from toolgate.surfaces.gateway.events import gateway_event
from toolgate.surfaces.gateway.mounted import Guarded
from toolgate.testing.pipeline import echo

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
    assert door.pipeline.ran == []


async def test_a_stream_whose_device_is_revoked_before_its_first_byte_ends(door: Door) -> None:
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
    door.pipeline.add("pay", Level.SIGN, echo)
    device = await door.pair(**ALL)
    await device.tool("pay", key="k", requestId="r")
    waiting = asyncio.create_task(device.get("/command/r?wait=30"))
    async with asyncio.timeout(10):
        while not door.parts.states._ends:
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
    assert door.pipeline.ran == []
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
