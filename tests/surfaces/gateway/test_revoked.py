"""A device that is revoked in the middle of a request."""

import asyncio
from typing import Any

from tests.surfaces.gateway.conftest import ALL, Door, Paired
from toolgate.asgi import Message
from toolgate.contracts.gateway_v1 import ErrorCode
from toolgate.domain.tools import Level
from toolgate.testing.pipeline import echo


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
