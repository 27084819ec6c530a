"""Capabilities: registering, and what becomes of calls to them; /command/mcp without a server."""

import asyncio
from typing import Any

import pytest

from tests.support.people import by
from tests.surfaces.gateway.conftest import ALL, OPERATOR, Answered, Door
from toolgate.access.devices import Scope
from toolgate.commands.records import OPEN
from toolgate.commands.states import RETRY_MS
from toolgate.contracts.gateway_v1 import ErrorCode
from toolgate.core.enums import HealthStatus, Level
from toolgate.core.tools import Tool
from toolgate.testing.clock import FakeClock
from toolgate.testing.gate import echo

READS = Tool("look", "", Level.READ, {}, True)
WRITES = Tool("click", "", Level.WRITE, {}, False)


async def register(door: Door, **members: Any) -> Answered:
    body = {"capabilityId": "mcp.docs", "scope": "docs", "level": "write", **members}
    return await door.ask("POST", "/capabilities/register", body=body, operator=True)


def serve(door: Door, capability_id: str = "mcp.docs") -> None:
    door.upstreams.offered[capability_id] = [READS, WRITES]
    for tool in (READS, WRITES):
        door.gate.add(f"{capability_id}.{tool.name}", tool.level, echo)


def command(action: str = "look", **members: Any) -> dict[str, Any]:
    return {"payload": {"capabilityId": "mcp.docs", "action": action, **members}}


@pytest.mark.requirement("002/capabilities/register")
@pytest.mark.requirement("002/capabilities/register-members")
@pytest.mark.requirement("002/capabilities/register-again")
async def test_registering_and_registering_again(door: Door) -> None:
    members = {
        "rateLimit": 30,
        "version": "1.0",
        "owner": "me",
        "expiresAt": door.clock.now_ms() + 60_000,
        "status": "healthy",
    }
    first = await register(door, **members)
    assert first.status == 200
    assert first.data == {
        **members,
        "capabilityId": "mcp.docs",
        "scope": "docs",
        "level": "write",
        "rateLimit": {"limit": 30, "windowMs": 60_000},
        "updatedAt": first.data["updatedAt"],
    }
    await register(door, version="2.0")
    listed = (await door.ask("GET", "/capabilities", operator=True)).data["items"]
    (kept,) = [one for one in listed if one["capabilityId"] == "mcp.docs"]
    assert kept["version"] == "2.0"
    assert kept["rateLimit"] is None


@pytest.mark.requirement("002/capabilities/register-levels")
@pytest.mark.requirement("002/capabilities/register-statuses")
@pytest.mark.parametrize(
    "wrong",
    [
        {"level": "admin"},
        {"status": "asleep"},
        {"rateLimit": 0},
        {"server": {"url": "nonsense"}},
        {"server": {"url": "http://user:word@server/mcp"}},
        {"server": {"command": "x", "mounts": ["/srv"]}},
        {"server": {"command": "x", "mounts": ["srv:/srv"]}},
        {"server": {"command": "x", "mounts": ["/srv:/srv:wr"]}},
        {"server": {"command": "x", "mounts": ["/srv/../etc:/srv"]}},
        {"server": {"command": "x", "mounts": ["/:/srv"]}},
        {"server": {"command": "x", "mounts": ["/proc/1:/srv"]}},
        {"server": {"command": "x", "mounts": ["/srv:/usr/lib"]}},
        {"server": {"command": "x", "mounts": ["/srv:/workspace"]}},
        {"server": {"command": "x", "mounts": ["/a:/srv", "/b:/srv"]}},
        {"server": {"command": "x", "egress": ["https://example.com"]}},
        {"server": {"command": "x", "egress": ["example.com:0"]}},
        {"server": {"command": "x", "isolation": "some"}},
        {"server": {"command": "x", "isolation": "none", "egress": ["example.com"]}},
        {"server": {"url": "http://server/mcp", "isolation": "none"}},
        {"server": {"url": "http://server/mcp", "mounts": ["/srv:/srv"]}},
    ],
)
async def test_a_registration_that_makes_no_sense_is_invalid(door: Door, wrong: Any) -> None:
    answer = await register(door, **wrong)
    assert (answer.status, answer.code) == (400, ErrorCode.INVALID_REQUEST)
    for level in ("read", "write", "sign"):
        for status in ("healthy", "degraded", "offline"):
            assert (await register(door, level=level, status=status)).status == 200


@pytest.mark.requirement("002/capabilities/register-auth")
async def test_registering_needs_the_operators_or_a_service_token(door: Door) -> None:
    device = await door.pair(**ALL)
    body = {"capabilityId": "mcp.docs", "scope": "docs", "level": "write"}
    assert (await device.post("/capabilities/register", body)).status == 401
    token = await door.parts.registry.add_service("ci", Scope())
    headers = {"Authorization": f"Bearer {token}"}
    assert (
        await door.ask("POST", "/capabilities/register", body=body, headers=headers)
    ).status == 200
    program = {**body, "server": {"command": "sh", "args": ["-c", "id"]}}
    refused = await door.ask("POST", "/capabilities/register", body=program, headers=headers)
    assert (refused.status, refused.code) == (403, ErrorCode.PERMISSION_DENIED)
    for level, answered in (("sign", 200), ("write", 403), ("sign", 200)):
        again = {**body, "level": level}
        told = await door.ask("POST", "/capabilities/register", body=again, headers=headers)
        assert told.status == answered
    assert (await register(door)).status == 200  # the operator may
    for lower in (body, {**body, "capabilityId": "mcp.docs.wipe"}):  # a level decides what is asked
        told = await door.ask(
            "POST", "/capabilities/register", body={**lower, "level": "read"}, headers=headers
        )
        assert (told.status, told.code) == (403, ErrorCode.PERMISSION_DENIED)
    assert (await register(door, level="read")).status == 200
    await door.parts.registry.remove_service("ci")
    gone = await door.ask("POST", "/capabilities/register", body=body, headers=headers)
    assert (gone.status, gone.code) == (401, ErrorCode.INVALID_TOKEN)


async def test_a_capability_that_is_removed_is_there_no_more_and_its_calls_are_refused(
    door: Door,
) -> None:
    serve(door)
    registered = await register(door)
    device = await door.pair(**ALL)
    assert (await device.post("/command/mcp", command())).status == 200
    removed = await door.ask("DELETE", "/capabilities/mcp.docs", operator=True)
    assert (removed.status, removed.data) == (200, registered.data)
    assert (await device.post("/command/mcp", command())).code == ErrorCode.PERMISSION_DENIED
    again = await door.ask("DELETE", "/capabilities/mcp.docs", operator=True)
    assert (again.status, again.code) == (404, ErrorCode.INVALID_REQUEST)
    (row,) = await door.audit_rows(action="capability.removed")
    assert row.resource_id == "mcp.docs"


async def test_a_service_token_runs_commands_within_its_scope(door: Door) -> None:
    token = await door.parts.registry.add_service("ci", Scope())
    headers = {"Authorization": f"Bearer {token}"}
    body = {"payload": {"name": "echo", "args": {"text": "hi"}}}
    assert (await door.ask("POST", "/command/tool", body=body, headers=headers)).status == 200
    operator = {"Authorization": f"Bearer {OPERATOR}"}
    refused = await door.ask("POST", "/command/tool", body=body, headers=operator)
    assert (refused.status, refused.code) == (401, ErrorCode.AUTH_REQUIRED)


@pytest.mark.requirement("002/mcp/call")
@pytest.mark.requirement("002/mcp/payload")
@pytest.mark.requirement("002/mcp/level-read-only")
@pytest.mark.requirement("002/mcp/level-default")
async def test_an_action_is_a_tool_of_the_capabilitys_server(door: Door) -> None:
    await register(door)
    serve(door)
    device = await door.pair(**ALL)
    context = {"url": "https://example.com", "userAgent": "x", "locale": "en"}
    body = command(args={"text": "hi"}, sessionId="s", context=context)
    answer = await device.post("/command/mcp", body)
    assert answer.status == 200
    assert answer.data["capabilityId"] == "mcp.docs"
    assert answer.data["content"] == [{"type": "text", "text": "hi"}]
    (request,) = door.gate.ran
    assert request.tool == "mcp.docs.look"
    assert request.args == {"text": "hi", "_meta": context}
    assert "laptop" in request.caller.session
    without_key = await device.post("/command/mcp", command("click"))
    assert (without_key.status, without_key.code) == (400, ErrorCode.INVALID_REQUEST)
    too_low = await device.post(
        "/command/mcp", {**command("click"), "security": {"level": "read"}}, key="k"
    )
    assert (too_low.status, too_low.code) == (403, ErrorCode.PERMISSION_DENIED)
    assert (await device.post("/command/mcp", command("click"), key="k2")).status == 200


@pytest.mark.requirement("002/mcp/unknown-capability")
async def test_an_unknown_capability_or_action_is_refused(door: Door) -> None:
    device = await door.pair(**ALL)
    unknown = await device.post("/command/mcp", command())
    assert (unknown.status, unknown.code) == (403, ErrorCode.PERMISSION_DENIED)
    await register(door)
    nowhere = await device.post("/command/mcp", command())
    assert (nowhere.status, nowhere.code) == (501, ErrorCode.NOT_IMPLEMENTED)
    serve(door)
    no_action = await device.post("/command/mcp", command("fly"))
    assert (no_action.status, no_action.code) == (403, ErrorCode.PERMISSION_DENIED)
    assert door.gate.ran == []


@pytest.mark.requirement("002/capabilities/expired")
async def test_an_expired_capability_is_refused(frozen: Door) -> None:
    assert isinstance(frozen.clock, FakeClock)
    await register(frozen, expiresAt=frozen.clock.now_ms() + 1000)
    serve(frozen)
    device = await frozen.pair(**ALL)
    assert (await device.post("/command/mcp", command())).status == 200
    frozen.clock.advance(1000)
    answer = await device.post("/command/mcp", command())
    assert (answer.status, answer.code) == (403, ErrorCode.PERMISSION_DENIED)
    assert len(frozen.gate.ran) == 1


@pytest.mark.requirement("002/capabilities/offline")
@pytest.mark.requirement("002/capabilities/degraded")
async def test_an_offline_one_is_refused_and_a_degraded_one_marked(door: Door) -> None:
    serve(door)
    device = await door.pair(**ALL)
    await register(door, status="offline")
    refused = await device.post("/command/mcp", command())
    assert (refused.status, refused.code) == (403, ErrorCode.PERMISSION_DENIED)
    await register(door, status="degraded")
    marked = await device.post("/command/mcp", command())
    assert marked.status == 200
    assert marked.data["degraded"] is True
    await register(door, status="healthy")
    assert "degraded" not in (await device.post("/command/mcp", command())).data


async def test_health_that_was_seen_counts_no_less_than_what_was_registered(door: Door) -> None:
    serve(door)
    device = await door.pair(**ALL)
    await register(door)
    capabilities = door.parts.capabilities
    assert capabilities.report("mcp.docs", HealthStatus.OFFLINE)
    assert (await device.post("/command/mcp", command())).status == 403
    assert capabilities.report("mcp.docs", HealthStatus.DEGRADED)
    assert (await device.post("/command/mcp", command())).data["degraded"] is True
    capabilities.report("mcp.docs", HealthStatus.HEALTHY)
    await register(door, status="offline")
    capabilities.report("mcp.docs", HealthStatus.HEALTHY)
    assert (await device.post("/command/mcp", command())).status == 403


async def test_another_server_is_not_offline_because_the_one_before_it_was(door: Door) -> None:
    await register(door, server={"command": "gone"})
    capabilities = door.parts.capabilities
    capabilities.report("mcp.docs", HealthStatus.OFFLINE)
    same = await register(door, server={"command": "gone"})
    other = await register(door, server={"command": "here"})
    shown = (await door.ask("GET", "/capabilities", operator=True)).data["items"]
    (docs,) = [one for one in shown if one["capabilityId"] == "mcp.docs"]
    assert (same.status, other.status, docs["status"]) == (200, 200, "healthy")
    capabilities.report("mcp.docs", HealthStatus.OFFLINE)
    await register(door, rateLimit=5)
    known = capabilities.get("mcp.docs")
    assert known is not None
    assert known.status is HealthStatus.OFFLINE


async def test_a_capability_that_signs_asks_whatever_its_server_says(door: Door) -> None:
    await register(door, level="sign")
    serve(door)
    door.gate.asks.add("mcp.docs.look")
    device = await door.pair(**ALL)
    assert (await device.post("/command/mcp", command())).status == 400
    assert (await device.post("/command/mcp", command(), key="k")).status == 202


async def test_a_command_that_was_approved_while_its_server_was_silent_goes_on_later(
    frozen: Door,
) -> None:
    assert isinstance(frozen.clock, FakeClock)
    await register(frozen)
    serve(frozen)
    frozen.gate.asks.add("mcp.docs.look")
    device = await frozen.pair(**ALL)
    waiting = await device.post("/command/mcp", {**command(), "requestId": "r"}, key="k")
    frozen.upstreams.silent.add("mcp.docs")
    before = (await frozen.journal.scan(OPEN))[0]
    await frozen.gate.decide_approval(
        waiting.data["approvalId"], approve=True, decided_by=by("operator"), reason=""
    )
    async with asyncio.timeout(10):
        while (row := (await frozen.journal.scan(OPEN))[0]).version == before.version:
            await asyncio.sleep(0.01)
    assert row.due == frozen.clock.now_ms() + RETRY_MS
    frozen.upstreams.silent.clear()
    await frozen.parts.states.on_open_due(row)
    ended = await device.get("/command/r?wait=10")
    assert ended.data["answer"]["ok"] is True
    assert len(frozen.gate.ran) == 1


@pytest.mark.parametrize(
    "terms",
    [{"status": "offline"}, {"expiresAt": 1}, {"rateLimit": 1}],
    ids=["offline", "expired", "rate"],
)
async def test_the_terms_of_a_capability_hold_for_its_tools_by_any_command(
    door: Door, terms: dict[str, Any]
) -> None:
    serve(door)
    await register(door, **terms)
    device = await door.pair(**ALL)
    answers = [await device.tool("mcp.docs.look") for _ in range(2)]
    assert answers[-1].code in (ErrorCode.PERMISSION_DENIED, ErrorCode.RATE_LIMITED)
    assert len(door.gate.ran) == ("rateLimit" in terms)


async def test_no_server_is_asked_for_a_device_that_may_not_call_it(door: Door) -> None:
    serve(door)
    await register(door)
    door.upstreams.silent.add("mcp.docs")  # to be asked would be to fail
    device = await door.pair(tools="sign")
    answer = await device.post("/command/mcp", command(), key="k")
    assert (answer.status, answer.code) == (403, ErrorCode.PERMISSION_DENIED)


async def test_a_tool_of_an_mcp_server_needs_the_scope_mcp_by_any_command(door: Door) -> None:
    serve(door)
    await register(door)
    device = await door.pair(tools="sign")
    answer = await device.tool("mcp.docs.look")
    assert (answer.status, answer.code) == (403, ErrorCode.PERMISSION_DENIED)
    assert door.gate.ran == []


async def test_a_capability_of_our_own_takes_other_terms_but_no_server(door: Door) -> None:
    server = {"url": "http://127.0.0.1:1/mcp"}
    refused = await register(door, capabilityId="exec", server=server)
    assert (refused.status, refused.code) == (400, ErrorCode.INVALID_REQUEST)
    assert (await register(door, capabilityId="exec", rateLimit=1)).status == 200


@pytest.mark.requirement("002/system/capabilities")
async def test_the_systems_capabilities_are_always_there(door: Door) -> None:
    listed = (await door.ask("GET", "/capabilities", operator=True)).data["items"]
    levels = {one["capabilityId"]: one["level"] for one in listed}
    assert levels == {"exec": "write", "web.fetch": "read", "web.search": "read"}


async def test_a_servers_secrets_are_neither_shown_nor_on_the_disk(door: Door) -> None:
    server = {"command": "x", "env": {"KEY": "s3cret-of-the-server"}}
    answer = await register(door, server=server)
    assert b"s3cret" not in answer.body
    row = await door.journal.get("capabilities", "mcp.docs")
    assert row is not None
    assert b"s3cret" not in row.value


async def test_a_capability_whose_health_changes_is_told_of_as_an_event(door: Door) -> None:
    device = await door.pair()
    for status in ("healthy", "offline", "offline", "degraded", "healthy"):
        await register(door, status=status)
    page = (await device.get("/events/poll?since=0")).json
    told = [event for event in page["events"] if event["type"] == "health"]
    assert [(event["status"], event["metadata"]["status"]) for event in told] == [
        ("failed", "offline"),
        ("failed", "degraded"),
        ("succeeded", "healthy"),
    ]
    assert {event["metadata"]["capabilityId"] for event in told} == {"mcp.docs"}


async def test_the_operator_is_shown_what_was_registered_whatever_a_check_has_found(
    door: Door,
) -> None:
    await register(door)
    door.parts.capabilities.report("mcp.docs", HealthStatus.DEGRADED)
    [docs] = [
        one
        for one in (await door.ask("GET", "/capabilities", operator=True)).data["items"]
        if one["capabilityId"] == "mcp.docs"
    ]
    assert (docs["status"], docs["registeredStatus"]) == ("degraded", "healthy")


async def test_only_the_operator_is_shown_where_a_server_is_and_nobody_its_secrets(
    door: Door,
) -> None:
    server = {
        "command": "notes",
        "args": ["--all"],
        "env": {"TOKEN": "s3cret-of-notes"},
        "mounts": ["/srv/notes:/notes:rw"],
        "egress": ["example.com"],
    }
    await register(door, capabilityId="mcp.notes", server=server)
    listed = await door.ask("GET", "/capabilities", operator=True)
    [shown] = [one for one in listed.data["items"] if one["capabilityId"] == "mcp.notes"]
    assert (shown["server"], shown["isolation"]) == ("notes --all", "sandbox")
    assert (shown["mounts"], shown["egress"]) == (server["mounts"], server["egress"])
    mine = await (await door.pair()).get("/capabilities")
    [notes] = [one for one in mine.data["items"] if one["capabilityId"] == "mcp.notes"]
    assert not {"server", "mounts", "egress"} & notes.keys()
    assert "s3cret" not in str((listed.json, mine.json))
