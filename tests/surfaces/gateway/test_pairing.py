"""Pairing, as a device and the operator see it."""

import asyncio
from urllib.parse import quote

import pytest
from yarl import URL

from tests.surfaces.gateway.conftest import OPERATOR, Door, Paired, open_door
from toolgate.access.devices import MAX_PENDING_PER_ADDRESS, Contact, Scope, Service
from toolgate.access.registry import SERVICES, encode
from toolgate.contracts.gateway_v1 import ErrorCode
from toolgate.journal.journal import Put
from toolgate.testing.clock import FakeClock


async def knock(door: Door, device_id: str = "phone") -> dict[str, object]:
    answer = await door.ask(
        "POST",
        "/command/tool",
        body={"payload": {"name": "echo"}},
        headers={"X-Device-Id": device_id, "User-Agent": "curl/8"},
    )
    assert answer.status == 401
    assert answer.code == ErrorCode.AUTH_REQUIRED
    data: dict[str, object] = answer.data
    return data


async def pending(door: Door) -> list[dict[str, object]]:
    answer = await door.ask("GET", "/pairing/pending", operator=True)
    found: list[dict[str, object]] = answer.data["pending"]
    return found


@pytest.mark.requirement("002/pairing/first-contact-pending")
@pytest.mark.requirement("002/pairing/first-contact-answer")
@pytest.mark.requirement("002/pairing/pending-list")
@pytest.mark.requirement("002/pairing/pending-facts")
@pytest.mark.requirement("002/codes/auth-required")
async def test_a_first_contact_waits_under_a_code_that_the_operator_sees_too(door: Door) -> None:
    before = door.clock.now_ms()
    told = await knock(door)
    assert told["pairing"] == "pending"
    (waiting,) = await pending(door)
    assert waiting["deviceId"] == "phone"
    assert waiting["code"] == told["code"]
    assert len(str(waiting["code"])) == 6
    assert waiting["ip"] == "127.0.0.1"
    assert waiting["userAgent"] == "curl/8"
    assert before <= int(str(waiting["requestedAt"])) <= door.clock.now_ms()


@pytest.mark.requirement("002/pairing/pending-once")
async def test_a_device_that_asks_again_keeps_its_code(door: Door) -> None:
    first, second = await knock(door), await knock(door)
    assert first["code"] == second["code"]
    assert len(await pending(door)) == 1


@pytest.mark.requirement("002/pairing/pending-expires")
async def test_a_pending_request_expires_after_ten_minutes(frozen: Door) -> None:
    assert isinstance(frozen.clock, FakeClock)
    first = await knock(frozen)
    frozen.clock.advance(600_000)
    assert await pending(frozen) == []
    late = await frozen.ask("POST", "/pairing/approve", body={"deviceId": "phone"}, operator=True)
    assert late.status == 404
    assert (await knock(frozen))["code"] != first["code"]


@pytest.mark.requirement("002/pairing/pending-limited")
async def test_pending_requests_are_limited_by_address(door: Door) -> None:
    for number in range(MAX_PENDING_PER_ADDRESS):
        await knock(door, f"device-{number}")
    answer = await door.ask("GET", "/status", headers={"X-Device-Id": "one-more"})
    assert answer.status == 429
    assert answer.code == ErrorCode.RATE_LIMITED
    assert int(answer.headers["Retry-After"]) >= 1
    assert len(await pending(door)) == MAX_PENDING_PER_ADDRESS


@pytest.mark.requirement("002/pairing/approve")
@pytest.mark.requirement("002/pairing/approve-token-body")
@pytest.mark.requirement("002/pairing/approve-token-header")
@pytest.mark.requirement("002/pairing/token-random")
async def test_approving_gives_the_token_in_the_body_and_as_a_header(door: Door) -> None:
    await knock(door)
    answer = await door.ask("POST", "/pairing/approve", body={"deviceId": "phone"}, operator=True)
    token = answer.data["deviceToken"]
    assert answer.headers["X-Device-Token"] == token
    assert len(token) == len("tg_dev_") + 43 + 6  # 32 bytes in base 62, and a checksum
    status = await Paired(door, "phone", token).get("/status")
    assert status.status == 200
    assert await pending(door) == []
    other = await door.pair("other")
    assert other.token != token


@pytest.mark.requirement("002/pairing/approve-scope-default")
async def test_without_a_scope_a_device_may_read(door: Door) -> None:
    await knock(door)
    answer = await door.ask("POST", "/pairing/approve", body={"deviceId": "phone"}, operator=True)
    assert answer.data["scope"] == {
        "tools": "read",
        "system": False,
        "mcp": False,
        "agent": False,
        "approve": False,
    }


@pytest.mark.requirement("002/pairing/approve-scope")
async def test_approve_takes_a_scope(door: Door) -> None:
    await knock(door)
    scope = {"tools": "write", "system": True, "mcp": True, "agent": True, "approve": False}
    answer = await door.ask(
        "POST", "/pairing/approve", body={"deviceId": "phone", "scope": scope}, operator=True
    )
    assert answer.data["scope"] == scope


@pytest.mark.requirement("002/pairing/approve-unknown")
async def test_a_device_that_never_asked_is_not_approved(door: Door) -> None:
    answer = await door.ask("POST", "/pairing/approve", body={"deviceId": "ghost"}, operator=True)
    assert answer.status == 404
    assert answer.code == ErrorCode.INVALID_REQUEST


@pytest.mark.requirement("002/pairing/approve-rotates")
@pytest.mark.requirement("002/codes/invalid-token")
async def test_approving_again_makes_a_new_token_and_ends_the_old(door: Door) -> None:
    device = await door.pair("phone", tools="write")
    answer = await door.ask("POST", "/pairing/approve", body={"deviceId": "phone"}, operator=True)
    assert answer.data["scope"]["tools"] == "write"
    old = await device.get("/status")
    assert (old.status, old.code) == (401, ErrorCode.INVALID_TOKEN)
    assert (await Paired(door, "phone", answer.data["deviceToken"]).get("/status")).status == 200


@pytest.mark.requirement("002/pairing/revoke")
@pytest.mark.requirement("002/pairing/revoke-code")
async def test_a_revoked_token_is_useless_at_once(door: Door) -> None:
    device = await door.pair("phone")
    answer = await door.ask("POST", "/pairing/revoke", body={"deviceId": "phone"}, operator=True)
    assert answer.data == {"deviceId": "phone", "revoked": True}
    refused = await device.tool("echo", {"text": "hi"})
    assert (refused.status, refused.code) == (401, ErrorCode.INVALID_TOKEN)
    assert door.gate.ran == []


@pytest.mark.requirement("002/pairing/revoke-unknown")
async def test_an_unknown_device_cannot_be_revoked(door: Door) -> None:
    answer = await door.ask("POST", "/pairing/revoke", body={"deviceId": "ghost"}, operator=True)
    assert (answer.status, answer.code) == (404, ErrorCode.INVALID_REQUEST)


@pytest.mark.requirement("002/pairing/revoke-streams")
async def test_revoking_cuts_open_streams_and_long_polls(door: Door) -> None:
    device = await door.pair("phone")
    async with door.http.get(door.url + "/events/stream", headers=device.headers) as stream:
        assert await stream.content.readline() == b"retry: 1000\n"
        polling = asyncio.create_task(device.get("/events/poll?wait=30"))
        async with asyncio.timeout(10):
            while not door.parts.registry._watchers.get("phone") or (
                len(door.parts.registry._watchers["phone"]) < 2
            ):
                await asyncio.sleep(0.01)
            await door.ask("POST", "/pairing/revoke", body={"deviceId": "phone"}, operator=True)
            while not stream.content.at_eof():
                await stream.content.readline()
            polled = await polling
    assert (polled.status, polled.code) == (401, ErrorCode.INVALID_TOKEN)


@pytest.mark.parametrize("ending", ["rotated", "script rotated", "script ended"])
async def test_a_stream_ends_with_the_token_it_was_opened_with(door: Door, ending: str) -> None:
    device = await door.pair("phone")
    made = await door.ask("POST", "/tokens", body={"name": "ci"}, operator=True)
    of_script = {"Authorization": f"Bearer {made.data['token']}"}
    headers = device.headers if ending == "rotated" else of_script
    async with door.http.get(door.url + "/events/stream", headers=headers) as stream:
        assert await stream.content.readline() == b"retry: 1000\n"
        if ending == "rotated":
            await door.ask("POST", "/pairing/approve", body={"deviceId": "phone"}, operator=True)
        elif ending == "script rotated":
            await door.ask("POST", "/tokens", body={"name": "ci"}, operator=True)
        else:
            await door.ask("DELETE", "/tokens/ci", operator=True)
        async with asyncio.timeout(10):
            while not stream.content.at_eof():
                await stream.content.readline()


@pytest.mark.requirement("002/pairing/operator-only")
@pytest.mark.requirement("002/pairing/operator-always")
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/pairing/pending"),
        ("POST", "/pairing/approve"),
        ("POST", "/pairing/revoke"),
        ("POST", "/capabilities/register"),
    ],
)
async def test_an_operators_route_is_closed_to_everyone_else(
    door: Door, method: str, path: str
) -> None:
    device = await door.pair("phone", tools="sign", system=True, mcp=True, agent=True)
    body = {"deviceId": "phone"}
    for headers in ({}, device.headers, {"Authorization": "Basic " + OPERATOR}):
        answer = await door.ask(method, path, body=body, headers=headers)
        assert (answer.status, answer.code) == (401, ErrorCode.AUTH_REQUIRED)
    wrong = await door.ask(method, path, body=body, headers={"Authorization": "Bearer nonsense"})
    assert (wrong.status, wrong.code) == (401, ErrorCode.INVALID_TOKEN)
    theirs = {"Authorization": f"Bearer {device.token}"}
    assert (await door.ask(method, path, body=body, headers=theirs)).status == 401


@pytest.mark.requirement("002/pairing/auto-approve-off")
async def test_auto_approve_is_off_unless_turned_on(door: Door) -> None:
    assert (await knock(door))["pairing"] == "pending"
    async with open_door(auto_approve=True) as trusting:
        answer = await trusting.ask("GET", "/status", headers={"X-Device-Id": "phone"})
        assert answer.status == 401
        device = Paired(trusting, "phone", answer.headers["X-Device-Token"])
        assert (await device.get("/status")).status == 200


async def test_auto_approve_lets_in_whom_it_does_not_know_and_writes_it_down() -> None:
    async with open_door(auto_approve=True) as door:
        answer = await door.ask("GET", "/status", headers={"X-Device-Id": "phone"})
        device = Paired(door, "phone", answer.headers["X-Device-Token"])
        (row,) = await door.audit_rows(action="pairing.approved")
        assert row.resource_id == "phone"
        # A name alone takes no device's token away, nor back what the operator took.
        assert (await knock(door))["pairing"] == "pending"
        assert (await device.get("/status")).status == 200
        await door.ask("POST", "/pairing/revoke", body={"deviceId": "phone"}, operator=True)
        assert (await knock(door))["pairing"] == "pending"


@pytest.mark.requirement("002/pairing/auto-approve-off")
async def test_auto_approve_lets_in_nobody_from_another_machine() -> None:
    async with open_door(auto_approve=True) as door:
        for number, ip in enumerate(("192.0.2.1", "10.0.0.1", "::ffff:192.0.2.1", "fe80::1", "")):
            refusal = await door.parts.pairing.knock(Contact(f"device-{number}", ip))
            assert refusal.token == ""
            assert refusal.pending is not None


@pytest.mark.requirement("002/headers/device-id-required")
@pytest.mark.requirement("002/headers/device-token-required")
async def test_no_id_or_no_token_is_auth_required(door: Door) -> None:
    device = await door.pair("phone")
    for headers in ({}, {"X-Device-Token": device.token}, {"X-Device-Id": "phone"}):
        answer = await door.ask(
            "POST", "/command/tool", body={"payload": {"name": "echo"}}, headers=headers
        )
        assert (answer.status, answer.code) == (401, ErrorCode.AUTH_REQUIRED)
    assert door.gate.ran == []


@pytest.mark.requirement("002/headers/other-devices-token")
async def test_a_token_is_good_for_its_own_device_alone(door: Door) -> None:
    phone, laptop = await door.pair("phone"), await door.pair("laptop")
    answer = await Paired(door, phone.device_id, laptop.token).get("/status")
    assert (answer.status, answer.code) == (401, ErrorCode.INVALID_TOKEN)


@pytest.mark.requirement("002/headers/gateway-token")
async def test_a_gateway_token_is_required_as_well_where_there_is_one() -> None:
    async with open_door(gateway_token="front-door") as door:
        knocked = await door.ask("GET", "/status", headers={"X-Device-Id": "phone"})
        assert "pairing" not in (knocked.data or {})
        headers = {"X-Device-Id": "phone", "X-Gateway-Token": "front-door"}
        await door.ask("GET", "/status", headers=headers)
        approved = await door.ask(
            "POST", "/pairing/approve", body={"deviceId": "phone"}, operator=True
        )
        device = Paired(door, "phone", approved.data["deviceToken"])
        without = await device.get("/status")
        assert (without.status, without.code) == (401, ErrorCode.AUTH_REQUIRED)
        wrong = await device.get("/status", X_Gateway_Token="back-door")
        assert (wrong.status, wrong.code) == (401, ErrorCode.INVALID_TOKEN)
        assert (await device.get("/status", X_Gateway_Token="front-door")).status == 200


@pytest.mark.requirement("002/headers/gateway-token-optional")
async def test_without_a_configured_gateway_token_none_is_asked_for(door: Door) -> None:
    device = await door.pair("phone")
    assert (await device.get("/status")).status == 200


@pytest.mark.parametrize("name", ["build/ci", "..", "a b", "a?b", "夜"])
async def test_a_service_tokens_name_is_one_that_a_path_can_hold(door: Door, name: str) -> None:
    answer = await door.ask("POST", "/tokens", body={"name": name}, operator=True)
    assert (answer.status, answer.code) == (400, ErrorCode.INVALID_REQUEST)
    assert "A-Z a-z 0-9" in answer.json["error"]["message"]
    assert door.parts.registry.services == []


@pytest.mark.parametrize("name", ["build/ci", "/", "a%2Fb", "a b", "夜/班", "decide/../x"])
async def test_a_service_token_that_has_another_name_from_before_can_be_ended(
    door: Door, name: str
) -> None:
    kept = Service(name, "0" * 64, Scope(), 0)
    await door.journal.commit(Put(SERVICES, name, encode(kept), expected=0))
    await door.parts.registry.load()
    path = URL(f"{door.url}/tokens/{quote(name, safe='')}", encoded=True)
    headers = {"Authorization": f"Bearer {OPERATOR}"}
    async with door.http.delete(path, headers=headers) as answer:
        assert answer.status == 200, await answer.text()
    assert door.parts.registry.services == []


async def test_a_command_whose_request_id_has_a_slash_can_be_asked_for(door: Door) -> None:
    device = await door.pair("phone")
    await device.tool("echo", {"text": "x"}, requestId="build/7")
    path = URL(f"{door.url}/command/build%2F7", encoded=True)
    async with door.http.get(path, headers=device.headers) as answer:
        assert answer.status == 200
        assert (await answer.json())["data"]["status"] == "done"


@pytest.mark.parametrize("device_id", ["operator", "service:ci"])
async def test_a_device_cannot_go_by_the_name_of_the_operator_or_of_a_script(
    door: Door, device_id: str
) -> None:
    answer = await door.ask("GET", "/status", headers={"X-Device-Id": device_id})
    assert (answer.status, answer.code) == (400, ErrorCode.INVALID_REQUEST)
    assert await pending(door) == []
