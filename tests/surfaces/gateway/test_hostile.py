"""What means harm, or makes no sense, and what becomes of it."""

import asyncio
import json
from typing import Any

import pytest

from tests.surfaces.gateway.conftest import Door, Paired
from toolgate.contracts.gateway_v1 import MAX_BODY_BYTES, ErrorCode
from toolgate.http.bodies import MAX_DEPTH


async def send(device: Paired, data: bytes) -> Any:
    return await device.door.ask("POST", "/command/tool", data=data, headers=device.headers)


@pytest.mark.requirement("002/codes/too-large")
async def test_a_body_over_the_limit_is_413_declared_or_not(door: Door) -> None:
    device = await door.pair()
    big = json.dumps({"payload": {"name": "echo", "args": {"text": "x" * MAX_BODY_BYTES}}}).encode()
    declared = await send(device, big)
    assert (declared.status, declared.code) == (413, ErrorCode.INVALID_REQUEST)

    async def chunks() -> Any:
        for start in range(0, len(big), 65536):
            yield big[start : start + 65536]

    async with door.http.post(
        door.url + "/command/tool", data=chunks(), headers=device.headers
    ) as undeclared:
        assert undeclared.status == 413
    assert door.gate.ran == []
    rows = await door.audit_rows(action="command.tool")
    assert [row.metadata["decision"] for row in rows] == ["deny", "deny"]
    fits = {"payload": {"name": "echo", "args": {"text": "x" * (MAX_BODY_BYTES - 1000)}}}
    assert (await device.post("/command/tool", fits)).status == 200


@pytest.mark.requirement("002/codes/invalid-request")
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b"7",
        b'"text"',
        b'{"payload":{"name":"echo"}} trailing',
        b'{"payload":{"name":"echo","args":[]}}',
        b'{"payload":{"name":7}}',
        b'{"payload":{"name":""}}',
        b'{"payload":{}}',
        b'{"payload":{"name":"echo","toolCalls":[]}}',
        b'{"payload":{"toolCalls":[]}}',
        b'{"payload":{"toolCalls":[{"id":"1","name":"echo"}]}}',
        b'{"payload":{"name":"echo"},"security":"write"}',
        b'{"payload":{"name":"echo"},"trace":{"traceId":7}}',
        b'{"payload":{"name":"echo"},"requestId":7}',
        b'{"payload":{"name":"echo"},"requestId":"' + b"x" * 257 + b'"}',
        b'{"payload":{"name":"echo","args":{"n":NaN}}}',
        b'\xff{"payload":{"name":"echo"}}',
        b'{"payload":{"name":"\xff\xfe"}}',
        b'{"payload":{"name":"echo","args":{"text":"\\ud800"}}}',
    ],
    ids=range(22),
)
async def test_a_body_that_cannot_be_understood_is_invalid(door: Door, body: bytes) -> None:
    device = await door.pair()
    answer = await send(device, body)
    assert (answer.status, answer.code) == (400, ErrorCode.INVALID_REQUEST)
    assert door.gate.ran == []


async def test_a_member_said_twice_is_invalid(door: Door) -> None:
    device = await door.pair()
    for body in (
        b'{"payload":{"name":"echo"},"payload":{"name":"echo"}}',
        b'{"payload":{"name":"echo","args":{"a":1,"a":2}}}',
        b'{"payload":{"name":"echo","args":{"a":"\\u0022","\\u0061":2}}}',
        b'{"payload":{"name":"echo","args":{"a\\u0022":1,"a\\u0022":2}}}',
    ):
        answer = await send(device, body)
        assert (answer.status, answer.code) == (400, ErrorCode.INVALID_REQUEST), body
    quoted = b'{"payload":{"name":"echo","args":{"text":"say \\u0022hi\\u0022 \\"twice\\""}}}'
    assert (await send(device, quoted)).status == 200


async def test_depth_without_end_is_invalid(door: Door) -> None:
    device = await door.pair()
    told = set()
    for depth in (MAX_DEPTH + 1, 2_000, 5_000, 400_000):
        text = b'{"payload":{"name":"echo","args":{"a":' + b"[" * depth + b"]" * depth + b"}}}"
        answer = await send(device, text)
        assert (answer.status, answer.code) == (400, ErrorCode.INVALID_REQUEST)
        told.add(answer.json["error"]["message"])
    assert len(told) == 1, "it is the depth that is wrong, however deep"
    shallow = b'{"payload":{"name":"echo","args":{"a":' + b"[" * 50 + b"]" * 50 + b"}}}"
    assert (await send(device, shallow)).status == 200
    wide = {"payload": {"name": "echo", "args": {"a": [[] for _ in range(500)]}}}
    assert (await device.post("/command/tool", wide)).status == 200


async def test_nul_and_control_signs_are_refused_in_ids_and_kept_in_texts(door: Door) -> None:
    device = await door.pair()
    for member in ("requestId", "idempotencyKey"):
        for sign in ("\x00", "\n", "\x1f", "\x7f"):
            members: dict[str, Any] = {member: f"a{sign}b"}
            answer = await device.tool("echo", **members)
            assert (answer.status, answer.code) == (400, ErrorCode.INVALID_REQUEST)
    assert (await device.tool("ec\x00ho")).status == 400
    kept = await device.tool("echo", {"text": "a\x00b"})
    assert kept.data["results"][0]["data"] == "a\x00b"
    bad_pair = await door.ask(
        "POST", "/pairing/approve", body={"deviceId": "a\x00b"}, operator=True
    )
    assert bad_pair.status == 400


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil", ""])
async def test_a_rebound_host_is_refused_everywhere(door: Door, host: str) -> None:
    device = await door.pair()
    for path in ("/health", "/status", "/events/poll?since=0"):
        answer = await device.get(path, Host=host)
        assert (answer.status, answer.code) == (403, ErrorCode.PERMISSION_DENIED)


@pytest.mark.parametrize(
    "host", ["localhost:1", "127.0.0.1", "[::1]:80", "10.1.2.3:8787", "LOCALHOST"]
)
async def test_our_own_names_and_any_address_are_fine(door: Door, host: str) -> None:
    device = await door.pair()
    assert (await device.get("/status", Host=host)).status == 200


async def test_a_command_whose_body_was_cut_short_is_not_run(door: Door) -> None:
    device = await door.pair()
    host, port = door.url.removeprefix("http://").split(":")
    body = b'{"payload": {"name": "echo"}}'
    head = "POST /command/tool HTTP/1.1\r\nHost: localhost\r\n" + "".join(
        f"{name}: {value}\r\n" for name, value in device.headers.items()
    )
    _, writer = await asyncio.open_connection(host, int(port))
    writer.write(f"{head}Content-Length: {len(body) + 1}\r\n\r\n".encode() + body)
    await writer.drain()
    async with asyncio.timeout(10):
        while door.parts.registry.last_seen("laptop") is None:  # it waits for the rest
            await asyncio.sleep(0.01)
        writer.close()
        while not (rows := await door.audit_rows(action="command.tool")):
            await asyncio.sleep(0.01)
    assert rows[0].metadata["decision"] == "deny"
    assert door.gate.ran == []
