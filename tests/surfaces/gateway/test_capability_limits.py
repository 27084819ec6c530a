"""What the gate refuses beside the policy, in a whole installation.

A capability that is offline, has expired or was called too often, by every way in; and a command that
waits while its device loses the right to it.
"""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from tests.architecture.ways_in import DEVICE, SCOPE, WAYS, Toolgate, denying_everything
from toolgate.contracts.gateway_v1 import ErrorCode
from toolgate.evidence.audit import TOOL_RUN
from toolgate.policy.refusal_texts import (
    CAPABILITY_EXPIRED,
    CAPABILITY_OFFLINE,
    OUTSIDE_SCOPE,
    RATE_LIMITED,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

ALLOW_ALL = """\
version: 1
name: allow-all
default: deny
rules:
  - {id: all, allow: "*", match: any, reason: For the test}
"""
TERMS: dict[str, dict[str, Any]] = {  # by the rule that refuses
    CAPABILITY_OFFLINE: {"status": "offline"},
    CAPABILITY_EXPIRED: {"expiresAt": 1},
    RATE_LIMITED: {"rateLimit": {"limit": 1, "windowMs": 3_600_000}},
}
NAMES = [
    "WebSocket agent",
    "client tool of a session",
    "orchestrator agent",
    "/command/tool",
    "/command/system",
    "/command/agent",
    "/v2/ws command.tool",
    "/tool/run",
    "schedule of a tool",
    "schedule of an agent",
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gate(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Toolgate]:
    async with denying_everything(tmp_path_factory.mktemp("limits")) as started:
        await started.operator("PUT", "/policy", {"text": ALLOW_ALL})
        yield started


async def refusals(gate: Toolgate, tool: str, rule_id: str) -> set[int]:
    query = f"/audit/query?action={TOOL_RUN}&decision=deny&limit=500"
    items = (await gate.operator("GET", query))["items"]
    return {
        item["id"]
        for item in items
        if item["resourceId"] == tool and item["metadata"]["ruleId"] == rule_id
    }


@pytest.mark.parametrize("rule_id", TERMS)
@pytest.mark.parametrize("name", NAMES)
async def test_a_call_that_a_capability_does_not_take_is_refused_and_recorded(
    gate: Toolgate, name: str, rule_id: str
) -> None:
    way = WAYS[name]
    own = {"capabilityId": way.tool, "scope": "test", "level": "read"}
    path = "/capabilities/register"
    await gate.operator("POST", path, {**own, **TERMS[rule_id]})
    try:
        before = await refusals(gate, way.tool, rule_id)
        told = await way.call(gate)
        if rule_id == RATE_LIMITED:  # it may have taken the only one
            told = await way.call(gate)
    finally:
        await gate.operator("POST", path, own)
    assert told.refused or str(ErrorCode.RATE_LIMITED) in str(told.answer), told.answer
    assert await refusals(gate, way.tool, rule_id) - before, "no audit row"


async def test_a_waiting_command_is_refused_and_recorded_once_its_scope_is_taken_away(
    gate: Toolgate,
) -> None:
    asks = ALLOW_ALL + "  - {id: ask, ask: exec, match: any, reason: For the test}\n"
    await gate.operator("PUT", "/policy", {"text": asks})
    gateway = gate.urls["gateway"]
    headers = {**gate.device, "Idempotency-Key": gate.fresh("key")}
    body = {"payload": {"action": "exec", "args": {"cmd": "ls"}}, "requestId": "waits"}
    status, told = await gate.ask("POST", f"{gateway}/command/system", body, headers=headers)
    assert status == 202, told
    before = await refusals(gate, "exec", OUTSIDE_SCOPE)
    fewer = {"deviceId": DEVICE, "scope": {"tools": "read"}}
    try:
        paired = await gate.operator("POST", "/pairing/approve", fewer)
        headers = {**gate.device, "X-Device-Token": paired["deviceToken"]}
        _, state = await gate.ask("GET", f"{gateway}/command/waits?wait=10", headers=headers)
    finally:
        again = {"deviceId": DEVICE, "scope": SCOPE}
        paired = await gate.operator("POST", "/pairing/approve", again)
        gate.device = {**gate.device, "X-Device-Token": paired["deviceToken"]}
        await gate.operator("PUT", "/policy", {"text": ALLOW_ALL})
    answer = state["data"]["answer"]
    assert answer["error"]["code"] == ErrorCode.PERMISSION_DENIED
    assert answer["data"]["ruleId"] == OUTSIDE_SCOPE
    assert await refusals(gate, "exec", OUTSIDE_SCOPE) - before, "no audit row"
