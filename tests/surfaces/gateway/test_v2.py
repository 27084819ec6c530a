"""The WebSocket door: connect, requests, events; and who is not let in."""

import asyncio
import base64
import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

import aiohttp
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tests.surfaces.gateway.conftest import ALL, OPERATOR, Door, Paired, open_door
from toolgate.access.devices import MAX_PENDING_PER_ADDRESS, PENDING_MS
from toolgate.commands.records import gateway_event
from toolgate.contracts.gateway_v1 import (
    V2_METHODS,
    CloseCode,
    ErrorCode,
    EventStatus,
    EventType,
)
from toolgate.core.enums import Level
from toolgate.core.tools import JsonValue, ToolOutput
from toolgate.http import asgi
from toolgate.http.asgi import Message
from toolgate.journal.journal import Event, Operation
from toolgate.surfaces.gateway import v2
from toolgate.testing.clock import FakeClock
from toolgate.testing.gate import echo

Socket = aiohttp.ClientWebSocketResponse


@contextlib.asynccontextmanager
async def opened(door: Door, **headers: str) -> AsyncIterator[tuple[Socket, str]]:
    """A connection with the server's nonce, before `connect`."""
    async with (
        asyncio.timeout(30),
        door.http.ws_connect(door.url + "/v2/ws", headers=headers) as socket,
    ):
        challenge = await socket.receive_json()
        assert challenge["type"] == "event"
        assert challenge["event"] == "connect.challenge"
        yield socket, challenge["data"]["nonce"]


async def connect(socket: Socket, device_id: str, **auth: str) -> Any:
    await socket.send_json(
        {
            "type": "connect",
            "deviceId": device_id,
            "clientType": "test",
            "capabilities": ["events"],
            "auth": auth,
        }
    )
    return await socket.receive_json()


@contextlib.asynccontextmanager
async def connected(device: Paired) -> AsyncIterator[Socket]:
    async with opened(device.door) as (socket, _):
        answer = await connect(socket, device.device_id, token=device.token)
        assert answer["ok"] is True, answer
        yield socket


async def ask(socket: Socket, method: str, /, *, key: str = "", **params: Any) -> Any:
    """The answer of a request; events that come meanwhile are passed over."""
    frame = {"type": "req", "id": f"q-{method}", "method": method, "params": params}
    if key:
        frame["idempotencyKey"] = key
    await socket.send_json(frame)
    while True:
        answer = await socket.receive_json()
        if answer["type"] == "res":
            assert answer["id"] == f"q-{method}"
            return answer


async def _answers(socket: Socket, count: int) -> AsyncIterator[str]:
    """The ids of so many answers, as they come."""
    while count:
        frame = await socket.receive_json()
        if frame["type"] == "res":
            count -= 1
            yield frame["id"]


@pytest.mark.requirement("002/v2/connect-first")
@pytest.mark.requirement("002/v2/connect-members")
@pytest.mark.requirement("002/v2/challenge-token")
@pytest.mark.requirement("002/v2/frames")
async def test_a_token_answers_the_challenge_and_then_requests_are_served(door: Door) -> None:
    device = await door.pair()
    async with opened(door) as (socket, nonce):
        await socket.send_json(
            {
                "type": "connect",
                "deviceId": device.device_id,
                "clientType": "cli",
                "capabilities": [],
                "auth": {"token": device.token},
                "challenge": nonce,
            }
        )
        answer = await socket.receive_json()
        assert (answer["type"], answer["id"], answer["ok"]) == ("res", "connect", True)
        assert answer["data"]["deviceId"] == "laptop"
        health = await ask(socket, "health")
        assert health["data"]["ok"] is True
        assert health["traceId"]


@pytest.mark.requirement("002/v2/connect-required")
async def test_any_frame_before_connect_is_refused(door: Door) -> None:
    async with opened(door) as (socket, _):
        await socket.send_json({"type": "req", "id": "1", "method": "status", "params": {}})
        answer = await socket.receive_json()
        assert answer["ok"] is False
        await socket.receive()
        assert socket.close_code == CloseCode.UNAUTHENTICATED


@pytest.mark.requirement("002/headers/gateway-token")
async def test_a_gateway_token_is_required_to_connect_where_there_is_one() -> None:
    key = Ed25519PrivateKey.generate()
    public = base64.b64encode(key.public_key().public_bytes_raw()).decode()

    async def signed(door: Door, **headers: str) -> Any:
        async with opened(door, **headers) as (socket, nonce):
            signature = base64.b64encode(key.sign(nonce.encode())).decode()
            return await connect(socket, "robot", publicKey=public, signature=signature)

    async with open_door(gateway_token="front-door") as door:
        right = {"X-Gateway-Token": "front-door"}
        assert "pairing" not in ((await signed(door))["data"] or {})
        assert (await signed(door, **right))["data"]["pairing"] == "pending"
        await door.ask("POST", "/pairing/approve", body={"deviceId": "robot"}, operator=True)
        assert (await signed(door))["error"]["code"] == ErrorCode.AUTH_REQUIRED
        wrong = await signed(door, **{"X-Gateway-Token": "back-door"})
        assert wrong["error"]["code"] == ErrorCode.INVALID_TOKEN
        assert (await signed(door, **right))["ok"] is True


async def test_a_connection_that_does_not_say_who_it_is_is_closed(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(v2, "CONNECT_S", 0.05)
    async with opened(door) as (socket, _):
        await socket.receive()
        assert socket.close_code == CloseCode.UNAUTHENTICATED


async def test_a_connection_has_so_many_requests_under_way_and_the_rest_wait(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(v2, "AT_ONCE", 2)
    began, may_end = asyncio.Semaphore(0), asyncio.Event()

    async def slow(_: Mapping[str, JsonValue]) -> ToolOutput:
        began.release()
        await may_end.wait()
        return ToolOutput(0)

    door.gate.add("slow", Level.READ, slow)
    device = await door.pair()
    async with connected(device) as socket:
        for number in range(4):
            params = {"payload": {"name": "slow"}}
            frame = {"type": "req", "id": str(number), "method": "command.tool", "params": params}
            await socket.send_json(frame)
        for _ in range(2):
            await began.acquire()
        running = (await device.get("/status")).json["running"]["tool"]
        assert len(running) == 2
        may_end.set()
        answered = [frame async for frame in _answers(socket, 4)]
    assert sorted(answered) == ["0", "1", "2", "3"]


@pytest.mark.requirement("002/v2/challenge-signature")
async def test_a_device_is_known_by_its_key_once_it_was_paired_with_it(door: Door) -> None:
    key = Ed25519PrivateKey.generate()
    public = base64.b64encode(key.public_key().public_bytes_raw()).decode()

    async def signed() -> Any:
        async with opened(door) as (socket, nonce):
            signature = base64.b64encode(key.sign(nonce.encode())).decode()
            return await connect(socket, "robot", publicKey=public, signature=signature)

    knocked = await signed()
    assert knocked["error"]["code"] == ErrorCode.AUTH_REQUIRED
    assert knocked["data"]["pairing"] == "pending"
    await door.ask("POST", "/pairing/approve", body={"deviceId": "robot"}, operator=True)
    assert (await signed())["ok"] is True
    other = Ed25519PrivateKey.generate()
    async with opened(door) as (socket, nonce):
        theirs = base64.b64encode(other.public_key().public_bytes_raw()).decode()
        signature = base64.b64encode(other.sign(nonce.encode())).decode()
        answer = await connect(socket, "robot", publicKey=theirs, signature=signature)
        assert answer["error"]["code"] == ErrorCode.INVALID_TOKEN
    await door.ask("POST", "/pairing/revoke", body={"deviceId": "robot"}, operator=True)
    assert (await signed())["ok"] is False


async def test_a_new_token_for_a_paired_device_lets_in_no_stranger_who_knocked_under_its_name(
    door: Door,
) -> None:
    await door.pair("laptop", **ALL)
    strangers = Ed25519PrivateKey.generate()
    public = base64.b64encode(strangers.public_key().public_bytes_raw()).decode()

    async def strange() -> Any:
        async with opened(door) as (socket, nonce):
            signature = base64.b64encode(strangers.sign(nonce.encode())).decode()
            return await connect(socket, "laptop", publicKey=public, signature=signature)

    assert (await strange())["error"]["code"] == ErrorCode.AUTH_REQUIRED
    rotated = await door.ask("POST", "/pairing/approve", body={"deviceId": "laptop"}, operator=True)
    assert (await strange())["ok"] is False
    own = Paired(door, "laptop", rotated.data["deviceToken"])
    async with opened(door) as (socket, nonce):  # with the token it may bring its key
        signature = base64.b64encode(strangers.sign(nonce.encode())).decode()
        proof = {"token": own.token, "publicKey": public, "signature": signature}
        assert (await connect(socket, "laptop", **proof))["ok"] is True
    assert (await strange())["ok"] is True
    (row,) = await door.audit_rows(action="pairing.key_bound")
    assert (row.actor, row.resource_id) == ("laptop", "laptop")


async def test_a_new_token_shuts_out_a_key_that_came_with_the_old_one(door: Door) -> None:
    device = await door.pair("laptop", **ALL)
    thiefs, own = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()

    async def signed(key: Ed25519PrivateKey, **token: str) -> Any:
        async with opened(door) as (socket, nonce):
            proof = {
                "publicKey": base64.b64encode(key.public_key().public_bytes_raw()).decode(),
                "signature": base64.b64encode(key.sign(nonce.encode())).decode(),
            }
            return await connect(socket, "laptop", **token, **proof)

    assert (await signed(thiefs, token=device.token))["ok"] is True
    assert (await signed(thiefs))["ok"] is True
    rotated = await door.ask("POST", "/pairing/approve", body={"deviceId": "laptop"}, operator=True)
    assert (await signed(thiefs))["ok"] is False
    assert (await signed(own, token=rotated.data["deviceToken"]))["ok"] is True
    assert (await signed(own))["ok"] is True


async def test_a_new_token_keeps_the_key_that_a_device_was_paired_with(door: Door) -> None:
    key = Ed25519PrivateKey.generate()
    public = base64.b64encode(key.public_key().public_bytes_raw()).decode()

    async def signed() -> Any:
        async with opened(door) as (socket, nonce):
            signature = base64.b64encode(key.sign(nonce.encode())).decode()
            return await connect(socket, "robot", publicKey=public, signature=signature)

    await signed()
    for _ in range(2):
        await door.ask("POST", "/pairing/approve", body={"deviceId": "robot"}, operator=True)
        assert (await signed())["ok"] is True


@pytest.mark.requirement("002/v2/challenge-wrong")
async def test_a_wrong_proof_is_refused_and_the_connection_closed(door: Door) -> None:
    device = await door.pair()
    key = Ed25519PrivateKey.generate()
    public = base64.b64encode(key.public_key().public_bytes_raw()).decode()
    old_nonce = base64.b64encode(key.sign(b"another nonce")).decode()
    for auth in (
        {"token": "wrong"},
        {"publicKey": public, "signature": old_nonce},
        {"publicKey": "not a key", "signature": "x"},
        {"token": device.token, "publicKey": public, "signature": old_nonce},
    ):
        async with opened(door) as (socket, _):
            answer = await connect(socket, "laptop", **auth)
            assert answer["error"]["code"] == ErrorCode.INVALID_TOKEN
            await socket.receive()
            assert socket.close_code == CloseCode.UNAUTHENTICATED
    async with opened(door) as (socket, _):
        await socket.send_json(
            {
                "type": "connect",
                "deviceId": "laptop",
                "clientType": "x",
                "auth": {"token": device.token},
                "challenge": "another nonce",
            }
        )
        assert (await socket.receive_json())["error"]["code"] == ErrorCode.INVALID_TOKEN


@pytest.mark.requirement("002/v2/every-command")
@pytest.mark.requirement("002/v2/same-rules")
async def test_every_command_is_served_under_the_same_rules(door: Door) -> None:
    door.gate.add("kv.set", Level.WRITE, echo)
    device = await door.pair(**ALL)
    async with connected(device) as socket:
        tool = await ask(socket, "command.tool", payload={"name": "echo", "args": {"text": "x"}})
        assert tool["data"]["results"][0]["data"] == "x"
        agent = await ask(socket, "command.agent", payload={"agentId": "echo", "message": "hi"})
        assert agent["data"]["output"] == "hi"
        system = await ask(socket, "command.system", payload={"action": "nope", "args": {}})
        assert system["error"]["code"] == ErrorCode.PERMISSION_DENIED
        mcp = await ask(socket, "command.mcp", payload={"capabilityId": "no", "action": "x"})
        assert mcp["error"]["code"] == ErrorCode.PERMISSION_DENIED
        write: dict[str, Any] = {"payload": {"name": "kv.set", "args": {"text": "y"}}}
        without = await ask(socket, "command.tool", **write)
        assert without["error"]["code"] == ErrorCode.INVALID_REQUEST
        first = await ask(socket, "command.tool", key="k", **write)
        again = await ask(socket, "command.tool", key="k", **write)
        assert again["data"] == first["data"]
        assert again["replayed"] is True
        assert "replayed" not in first
        by_http = await device.post("/command/tool", write, key="k")
        assert by_http.headers["Idempotent-Replayed"] == "true"
        assert by_http.json["traceId"] == first["traceId"]
        state = await ask(socket, "command.get", requestId="nothing")
        assert state["error"]["code"] == ErrorCode.INVALID_REQUEST


@pytest.mark.requirement("002/v2/same-rules")
async def test_a_request_by_the_websocket_and_one_by_http_use_up_the_same_rate() -> None:
    async with open_door(clock=FakeClock(), rate=2) as door:
        device = await door.pair()
        async with connected(device) as socket:
            payload = {"name": "echo", "args": {"text": "x"}}
            assert (await device.tool("echo")).status == 200
            assert (await ask(socket, "command.tool", payload=payload))["ok"] is True
            refused = await ask(socket, "command.tool", payload=payload)
            assert refused["error"]["code"] == ErrorCode.RATE_LIMITED
            assert (await device.tool("echo")).status == 429


async def test_a_request_that_comes_too_soon_is_told_how_many_seconds_to_wait() -> None:
    clock = FakeClock()
    async with open_door(rate=1, clock=clock) as door, connected(await door.pair()) as socket:
        payload = {"name": "echo", "args": {"text": "x"}}
        first = await ask(socket, "command.tool", payload=payload)
        refused = await ask(socket, "command.tool", payload=payload)
        assert refused["error"]["code"] == ErrorCode.RATE_LIMITED
        assert "retryAfter" not in first
        clock.advance(refused["retryAfter"] * 1000)
        assert (await ask(socket, "command.tool", payload=payload))["ok"] is True


async def test_who_knocks_where_too_many_wait_is_told_how_many_seconds_to_wait(door: Door) -> None:
    for number in range(MAX_PENDING_PER_ADDRESS):
        await door.ask("GET", "/status", headers={"X-Device-Id": f"d{number}"})
    key = Ed25519PrivateKey.generate()
    public = base64.b64encode(key.public_key().public_bytes_raw()).decode()
    async with opened(door) as (socket, nonce):
        signature = base64.b64encode(key.sign(nonce.encode())).decode()
        refused = await connect(socket, "late", publicKey=public, signature=signature)
        assert refused["error"]["code"] == ErrorCode.RATE_LIMITED
        assert 1 <= refused["retryAfter"] <= PENDING_MS // 1000


@pytest.mark.requirement("002/v2/queries")
async def test_pairing_and_lists_are_the_operators(door: Door) -> None:
    device = await door.pair(**ALL)
    async with connected(device) as socket:
        refused = await ask(socket, "pairing.pending")
        assert refused["error"]["code"] == ErrorCode.AUTH_REQUIRED
        assert (await ask(socket, "capabilities.list"))["ok"] is True
        assert (await ask(socket, "no.such"))["error"]["code"] == ErrorCode.INVALID_REQUEST
    async with opened(door) as (socket, _):
        assert (await connect(socket, "console", token=OPERATOR))["ok"] is True
        await door.ask("GET", "/status", headers={"X-Device-Id": "new"})
        waiting = await ask(socket, "pairing.pending")
        assert waiting["data"]["pending"][0]["deviceId"] == "new"
        approved = await ask(socket, "pairing.approve", deviceId="new")
        assert approved["data"]["deviceToken"]
        revoked = await ask(socket, "pairing.revoke", deviceId="new")
        assert revoked["data"]["revoked"] is True
        no_command = await ask(socket, "command.tool", payload={"name": "echo"})
        assert no_command["error"]["code"] == ErrorCode.AUTH_REQUIRED


@pytest.mark.requirement("002/v2/events-pushed")
async def test_events_are_pushed_as_they_happen(door: Door) -> None:
    device = await door.pair()
    async with connected(device) as socket:
        await device.tool("echo", {"text": "x"})
        pushed = [await socket.receive_json() for _ in range(2)]
        assert [one["event"] for one in pushed] == ["gateway.event"] * 2
        assert [one["data"]["status"] for one in pushed] == ["started", "succeeded"]
        polled = (await device.get("/events/poll?since=0")).json["events"]
        assert [one["data"] for one in pushed] == polled
        assert [one["cursor"] for one in pushed] == [event["id"] for event in polled]


async def test_revoking_closes_the_connection(door: Door) -> None:
    device = await door.pair()
    async with connected(device) as socket:
        await door.ask("POST", "/pairing/revoke", body={"deviceId": "laptop"}, operator=True)
        await socket.receive()
        assert socket.close_code == CloseCode.UNAUTHENTICATED


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "http://localhost.evil.example"},
        {"Host": "evil.example"},
        {"Host": "evil.example", "Origin": "http://evil.example"},
        {"Origin": "null"},
    ],
)
async def test_a_cross_site_page_or_a_rebound_name_cannot_connect(
    door: Door, headers: dict[str, str]
) -> None:
    with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
        async with opened(door, **headers):
            pass
    assert refused.value.status == 403


async def test_our_own_page_may_connect(door: Door) -> None:
    async with opened(door, Origin=door.url) as (socket, _):
        assert not socket.closed


async def test_frames_that_make_no_sense_are_answered_and_the_connection_lives(door: Door) -> None:
    device = await door.pair()
    async with connected(device) as socket:
        for text in (
            "{",
            "7",
            '{"type":"nonsense"}',
            '{"type":"req"}',
            '{"type":"req","id":"1","id":"2","method":"status"}',
            "[" * 1000,
        ):
            await socket.send_str(text)
            answer = await socket.receive_json()
            assert answer["error"]["code"] == ErrorCode.INVALID_REQUEST
        await socket.send_bytes(b"\x00\x01")
        assert (await socket.receive_json())["ok"] is False
        assert (await ask(socket, "status"))["ok"] is True


async def test_a_request_that_makes_no_sense_is_refused_under_its_own_id(door: Door) -> None:
    device = await door.pair()
    async with connected(device) as socket:
        for wrong in (
            '{"type": "req", "id": "q1", "method": "health", "params": [1]}',
            '{"type": "req", "id": "q1", "method": 7, "params": {}}',
            '{"type": "req", "id": "q1", "method": "health", "params": {"a": 1, "a": 2}}',
        ):
            await socket.send_str(wrong)
            answer = await socket.receive_json()
            assert (answer["id"], answer["ok"]) == ("q1", False), wrong
            assert answer["error"]["code"] == ErrorCode.INVALID_REQUEST


async def test_a_frame_that_is_too_large_closes_the_connection(door: Door) -> None:
    device = await door.pair()
    async with connected(device) as socket:
        await socket.send_str("x" * 1_100_000)
        message = await socket.receive()
        assert message.type in (aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSED)
        assert socket.close_code == CloseCode.MESSAGE_TOO_BIG


def test_every_method_of_the_contract_names_a_route() -> None:
    assert all(" /" in route for route in V2_METHODS.values())


async def test_a_device_that_is_revoked_while_its_key_is_kept_is_not_let_in(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = await door.pair()
    key = Ed25519PrivateKey.generate()
    public = base64.b64encode(key.public_key().public_bytes_raw()).decode()
    keeps, may_go_on = asyncio.Event(), asyncio.Event()
    commit = door.journal.commit

    async def slow(*operations: Operation, durable: bool = True) -> list[Event]:
        keeps.set()
        await may_go_on.wait()
        return await commit(*operations, durable=durable)

    async with opened(door) as (socket, nonce):
        signature = base64.b64encode(key.sign(nonce.encode())).decode()
        with monkeypatch.context() as patched:
            patched.setattr(door.journal, "commit", slow)
            connecting = asyncio.create_task(
                connect(socket, "laptop", token=device.token, publicKey=public, signature=signature)
            )
            await keeps.wait()
        await door.parts.registry.revoke("laptop")
        may_go_on.set()
        answer = await connecting
        assert answer["error"]["code"] == ErrorCode.INVALID_TOKEN


async def test_a_client_that_reads_too_slowly_for_an_answer_is_cut_off(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(v2, "WAITING", 1)
    device = await door.pair()
    hello = {"deviceId": device.device_id, "clientType": "test", "capabilities": []}
    frames = [
        {"type": "connect", **hello, "auth": {"token": device.token}},
        *({"type": "req", "id": f"q{n}", "method": "health", "params": {}} for n in range(4)),
    ]
    challenged, connected, never = asyncio.Event(), asyncio.Event(), asyncio.Event()
    sent: list[Message] = []

    async def receive() -> Message:
        if not sent:
            return {"type": "websocket.connect"}
        await (challenged if len(frames) == 5 else connected if frames else never).wait()
        return {"type": "websocket.receive", "text": json.dumps(frames.pop(0))}

    async def send(message: Message) -> None:
        sent.append(message)
        text = message.get("text", "")
        if "connect.challenge" in text:
            challenged.set()
        elif '"id":"connect"' in text:
            connected.set()
            await never.wait()

    scope = {"type": "websocket", "path": "/v2/ws", "headers": [(b"host", b"localhost")]}
    async with asyncio.timeout(5):
        await door.parts.gateway.socket(scope, receive, send)
    assert sent[-1] == {"type": "websocket.close", "code": CloseCode.SLOW_CONSUMER}


async def test_an_event_that_comes_as_the_client_is_let_in_is_pushed(door: Door) -> None:
    device = await door.pair()
    hello = {"deviceId": device.device_id, "clientType": "test", "capabilities": []}
    frame = {"type": "connect", **hello, "auth": {"token": device.token}}
    told: list[Any] = []
    pushed = asyncio.Event()
    event = gateway_event(EventType.HEALTH, EventStatus.SUCCEEDED, "all is well")
    happens: list[asyncio.Task[list[Event]]] = []

    async def receive() -> Message:
        if not told:
            return {"type": "websocket.connect"}
        if not happens:  # before whatever follows from this frame
            happens.append(asyncio.create_task(door.journal.commit(event)))
            return {"type": "websocket.receive", "text": json.dumps(frame)}
        await pushed.wait()
        return {"type": "websocket.disconnect", "code": 1000}

    async def send(message: Message) -> None:
        told.append(json.loads(message.get("text", "{}")))
        if told[-1].get("event") == "gateway.event":
            pushed.set()

    scope = {"type": "websocket", "path": "/v2/ws", "headers": [(b"host", b"localhost")]}
    async with asyncio.timeout(5):
        await door.parts.gateway.socket(scope, receive, send)
    (connected,) = [one for one in told if one.get("id") == "connect"]
    (heard,) = [one for one in told if one.get("event") == "gateway.event"]
    assert heard["cursor"] == connected["data"]["cursor"] + 1


async def test_a_server_that_stops_says_so(door: Door) -> None:
    device = await door.pair()
    async with connected(device) as socket:
        door.parts.events.close()
        await socket.receive()
        assert socket.close_code == CloseCode.GOING_AWAY


async def test_a_connection_on_which_nothing_is_said_stays(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asgi, "PATIENCE_S", 0.1)
    device = await door.pair()
    async with connected(device) as socket:
        await asyncio.sleep(0.5)  # longer than a request may take to come
        assert (await ask(socket, "health"))["ok"] is True


async def test_long_polls_of_a_connection_that_has_ended_wait_no_longer(door: Door) -> None:
    device = await door.pair()
    watchers = door.parts.registry._watchers
    async with connected(device) as socket:
        for number in range(20):
            poll = {"id": str(number), "method": "events.poll", "params": {"wait": 30}}
            await socket.send_json({"type": "req", **poll})
        async with asyncio.timeout(10):
            while len(watchers.get("laptop", ())) < 21:  # the connection itself is one
                await asyncio.sleep(0.01)
    async with asyncio.timeout(10):
        while "laptop" in watchers:
            await asyncio.sleep(0.01)


async def test_a_command_of_one_who_may_send_none_leaves_a_row(door: Door) -> None:
    async with opened(door) as (socket, _):
        assert (await connect(socket, "console", token=OPERATOR))["ok"]
        answer = await ask(socket, "command.tool", payload={"name": "echo", "args": {}})
    assert answer["error"]["code"] == ErrorCode.AUTH_REQUIRED
    (row,) = await door.audit_rows(action="command.tool")
    assert (row.metadata["decision"], row.metadata["code"]) == ("deny", ErrorCode.AUTH_REQUIRED)
    assert row.metadata["deviceId"] == "operator"
