"""Commands that the gate does not admit: outside the device's scope, or too soon for a capability."""

import asyncio
from typing import Any

import pytest

from tests.support.people import by
from tests.surfaces.gateway.conftest import ALL, Answered, Door, Paired
from toolgate.commands.records import OPEN
from toolgate.commands.states import RETRY_MS
from toolgate.contracts.gateway_v1 import ErrorCode
from toolgate.core.enums import Level
from toolgate.policy.refusal_texts import OUTSIDE_SCOPE, RATE_LIMITED
from toolgate.testing.clock import FakeClock
from toolgate.testing.gate import echo


async def limit(door: Door, tool: str, **terms: Any) -> None:
    body = {"capabilityId": tool, "scope": "test", "level": "read", **terms}
    answer = await door.ask("POST", "/capabilities/register", body=body, operator=True)
    assert answer.status == 200, answer.json


async def statuses(door: Door, name: str) -> list[str]:
    """Of the events of this tool's commands."""
    page = await door.ask("GET", "/events/poll?since=0&limit=1000", operator=True)
    return [one["status"] for one in page.json["events"] if one["message"].startswith(f"{name} ")]


async def test_a_command_that_came_too_soon_may_come_again_with_its_key(frozen: Door) -> None:
    assert isinstance(frozen.clock, FakeClock)
    await limit(frozen, "echo", rateLimit=1)
    device = await frozen.pair()
    assert (await device.tool("echo", key="k1")).status == 200
    for refused in [await device.tool("echo", key="k2") for _ in range(2)]:
        assert (refused.status, refused.code) == (429, ErrorCode.RATE_LIMITED)
        assert refused.data["ruleId"] == RATE_LIMITED
        assert refused.headers["X-RateLimit-Limit"] == "1"
        assert "Idempotent-Replayed" not in refused.headers
        assert refused.headers["Retry-After"] == "60"
    frozen.clock.advance(60_000)
    again = await device.tool("echo", key="k2")
    assert (again.status, "Idempotent-Replayed" in again.headers) == (200, False)
    replayed = await device.tool("echo", key="k2")
    assert (replayed.status, "Idempotent-Replayed" in replayed.headers) == (200, True)
    assert len(frozen.gate.ran) == 2
    rows = await frozen.audit_rows(action="command.tool", decision="deny")
    assert {row.metadata["code"] for row in rows} == {ErrorCode.RATE_LIMITED}


async def test_an_approved_command_that_comes_too_soon_goes_on_later(frozen: Door) -> None:
    assert isinstance(frozen.clock, FakeClock)
    await limit(frozen, "echo", rateLimit=1)
    frozen.gate.asks.add("echo")
    device = await frozen.pair()
    waits = await device.tool("echo", key="k", requestId="r")
    limits = frozen.gate.limits
    assert limits is not None
    await limits.rates.commit(limits.buckets("echo"))  # someone else's call
    before = (await frozen.journal.scan(OPEN))[0]
    await frozen.gate.decide_approval(
        waits.data["approvalId"], approve=True, decided_by=by("operator"), reason=""
    )
    async with asyncio.timeout(10):
        while (row := (await frozen.journal.scan(OPEN))[0]).version == before.version:
            await asyncio.sleep(0.01)
    assert row.due == frozen.clock.now_ms() + RETRY_MS
    too_soon = await device.tool("echo", key="k", requestId="r")
    assert (too_soon.status, too_soon.code) == (429, ErrorCode.RATE_LIMITED)
    frozen.clock.advance(60_000)
    row = (await frozen.journal.scan(OPEN))[0]
    await frozen.parts.states.on_open_due(row)
    ended = await device.get("/command/r?wait=10")
    assert ended.data["answer"]["ok"] is True
    assert len(frozen.gate.ran) == 1


async def test_a_command_outside_the_scope_says_what_would_change_that(door: Door) -> None:
    door.gate.add("write", Level.WRITE, echo)
    device = await door.pair(tools="read")
    refused = await device.tool("write", key="k")
    assert (refused.status, refused.code) == (403, ErrorCode.PERMISSION_DENIED)
    assert refused.data["ruleId"] == OUTSIDE_SCOPE
    assert await statuses(door, "write") == ["started", "refused"]
    (row,) = await door.audit_rows(action="command.tool", decision="deny")
    assert row.metadata["code"] == ErrorCode.PERMISSION_DENIED
    device = await door.pair(tools="write")
    assert (await device.tool("write", key="k")).status == 200  # nothing was kept under its key


async def several(device: Paired, *names: str) -> Answered:
    calls = [{"id": str(n), "name": name, "arguments": {}} for n, name in enumerate(names)]
    return await device.post("/command/tool", {"payload": {"toolCalls": calls}}, key="k")


async def test_of_several_calls_none_begins_if_one_is_outside_the_scope(door: Door) -> None:
    door.gate.add("write", Level.WRITE, echo)
    device = await door.pair(tools="read")
    refused = await several(device, "echo", "write")
    assert (refused.status, refused.code) == (403, ErrorCode.PERMISSION_DENIED)
    assert door.gate.ran == []


@pytest.mark.parametrize("terms", [{"status": "offline"}, {"expiresAt": 1}])
async def test_of_several_calls_none_begins_if_one_has_a_capability_that_is_off(
    door: Door, terms: dict[str, Any]
) -> None:
    door.gate.add("other", Level.READ, echo)
    await limit(door, "other", **terms)
    refused = await several(await door.pair(), "echo", "other")
    assert (refused.status, refused.code) == (403, ErrorCode.PERMISSION_DENIED)
    assert door.gate.ran == []


async def test_results_from_before_the_scope_was_taken_away_are_returned(door: Door) -> None:
    door.gate.add("pay", Level.SIGN, echo)
    device = await door.pair(**ALL)
    calls = [{"id": name, "name": name, "arguments": {"text": "hi"}} for name in ("echo", "pay")]
    body = {"payload": {"toolCalls": calls}, "requestId": "r"}
    waits = await device.post("/command/tool", body, key="k")
    assert waits.status == 202
    device = await door.pair(tools="read")
    ended = await device.get("/command/r?wait=10")
    results = ended.data["answer"]["data"]["results"]
    assert [one["success"] for one in results] == [True, False]


@pytest.mark.parametrize(
    ("terms", "status"), [({"status": "offline"}, 403), ({"rateLimit": 1}, 429)]
)
async def test_the_capability_of_an_agent_holds_for_its_commands(
    door: Door, terms: dict[str, Any], status: int
) -> None:
    await limit(door, "agent.echo", **terms)
    device = await door.pair(**ALL)
    body = {"payload": {"agentId": "echo", "message": "hi"}}
    answers = [await device.post("/command/agent", body) for _ in range(2)]
    assert answers[-1].status == status
