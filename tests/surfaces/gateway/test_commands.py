"""Commands: envelope, rights, tools, agents, waiting."""

import asyncio
import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support.people import by
from tests.surfaces.gateway.conftest import ALL, Door, Paired, open_door
from toolgate.commands.plans import code_of, request_hash
from toolgate.contracts.gateway_v1 import ErrorCode
from toolgate.core.enums import CommandKind, Level, Outcome
from toolgate.core.errors import Unavailable
from toolgate.core.tools import JsonValue, ToolOutput, ToolRequest
from toolgate.runs.runs import Runs
from toolgate.testing.gate import FakeGate, echo
from toolgate.tools.definitions import failed
from toolgate.tools.outcomes import Also, Begun, nothing_also

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


async def fails(_: Mapping[str, JsonValue]) -> ToolOutput:
    return ToolOutput(1, stderr="it broke", outcome=Outcome.EXECUTED)


async def writes(args: Mapping[str, JsonValue]) -> ToolOutput:
    return ToolOutput(0, data={"wrote": args.get("text", "")})


@pytest.mark.requirement("002/envelope/success")
@pytest.mark.requirement("002/tool/single")
@pytest.mark.requirement("002/tool/results")
@pytest.mark.requirement("002/envelope/trace-made")
@pytest.mark.requirement("002/commands/pipeline")
async def test_one_tool_call_answers_in_the_envelope(door: Door) -> None:
    device = await door.pair()
    answer = await device.tool("echo", {"text": "hi"})
    assert answer.status == 200
    trace_id = answer.json.pop("traceId")
    assert re.fullmatch(r"[0-9a-f]{32}", trace_id)
    assert answer.json == {
        "ok": True,
        "data": {"results": [{"id": "1", "name": "echo", "success": True, "data": "hi"}]},
    }
    (request,) = door.gate.ran
    assert (request.tool, dict(request.args)) == ("echo", {"text": "hi"})


@pytest.mark.requirement("002/tool/calls")
@pytest.mark.requirement("002/tool/partial")
async def test_of_several_calls_each_has_its_own_result(door: Door) -> None:
    door.gate.add("fails", Level.READ, fails)
    device = await door.pair()
    calls = [
        {"id": "a", "name": "echo", "arguments": {"text": "1"}},
        {"id": "b", "name": "fails", "arguments": {}},
        {"id": "c", "name": "echo", "arguments": {"text": "2"}},
    ]
    answer = await device.post("/command/tool", {"payload": {"toolCalls": calls}})
    assert answer.status == 200
    results = answer.data["results"]
    assert [(r["id"], r["success"]) for r in results] == [("a", True), ("b", False), ("c", True)]
    assert results[1]["error"] == "it broke"
    assert results[1]["outcome"] == "executed"


@pytest.mark.requirement("002/tool/denied")
@pytest.mark.requirement("002/codes/permission-denied")
@pytest.mark.requirement("002/envelope/failure")
async def test_what_the_policy_denies_is_permission_denied(door: Door) -> None:
    door.gate.denied.add("echo")
    device = await door.pair()
    answer = await device.tool("echo", {"text": "hi"})
    assert (answer.status, answer.code) == (403, ErrorCode.PERMISSION_DENIED)
    assert answer.json["ok"] is False
    assert answer.json["error"]["message"]
    assert answer.json["traceId"]
    assert door.gate.ran == []


@pytest.mark.requirement("002/commands/unknown-tool")
async def test_an_unknown_tool_is_refused(door: Door) -> None:
    device = await door.pair()
    answer = await device.tool("no.such.tool")
    assert (answer.status, answer.code) == (403, ErrorCode.PERMISSION_DENIED)


@pytest.mark.requirement("002/envelope/trace-from-body")
async def test_the_trace_id_of_the_body_comes_back(door: Door) -> None:
    device = await door.pair()
    answer = await device.tool("echo", trace={"traceId": "my-trace", "spanId": "s"})
    assert answer.json["traceId"] == "my-trace"


@pytest.mark.requirement("002/envelope/trace-from-header")
async def test_the_trace_id_of_traceparent_comes_back(door: Door) -> None:
    device = await door.pair()
    body = {"payload": {"name": "echo"}}
    parent = f"00-{TRACE}-00f067aa0ba902b7-01"
    assert (await device.post("/command/tool", body, traceparent=parent)).json["traceId"] == TRACE
    garbage = await device.post("/command/tool", body, traceparent="00-zzz")
    assert garbage.status == 200
    assert garbage.json["traceId"] != "zzz"


@pytest.mark.requirement("002/envelope/request-members")
@pytest.mark.requirement("002/envelope/identity-from-server")
async def test_all_members_are_taken_and_actor_gives_no_right(door: Door) -> None:
    door.gate.add("kv.set", Level.WRITE, writes)
    device = await door.pair(tools="read")
    answer = await device.post(
        "/command/tool",
        {
            "requestId": "r-1",
            "actor": {"id": "root", "role": "operator"},
            "sessionKey": "s",
            "route": {"to": "anywhere"},
            "idempotencyKey": "k-1",
            "payload": {"name": "kv.set", "args": {}},
            "security": {"level": "write", "scopes": ["everything"]},
            "trace": {"traceId": "t", "spanId": "s"},
        },
    )
    assert (answer.status, answer.code) == (403, ErrorCode.PERMISSION_DENIED)
    assert door.gate.ran == []
    allowed = await device.tool("echo", actor={"id": "root", "role": "operator"}, sessionKey="s")
    assert allowed.status == 200
    (request,) = door.gate.ran
    assert request.caller.device == "laptop"
    assert request.caller.role == "device"
    assert request.caller.level is Level.READ


@pytest.mark.requirement("002/envelope/optional-members")
async def test_only_the_payload_is_required(door: Door) -> None:
    device = await door.pair()
    assert (await device.post("/command/tool", {"payload": {"name": "echo"}})).status == 200
    without = await device.post("/command/tool", {"requestId": "r"})
    assert (without.status, without.code) == (400, ErrorCode.INVALID_REQUEST)


@pytest.mark.requirement("002/headers/request-id")
async def test_the_callers_request_id_is_the_commands(door: Door) -> None:
    device = await door.pair()
    answer = await device.post(
        "/command/tool", {"payload": {"name": "echo", "args": {"text": "x"}}}, X_Request_Id="mine"
    )
    assert answer.headers["X-Request-Id"] == "mine"
    state = await device.get("/command/mine")
    assert state.data["status"] == "done"
    assert state.data["answer"] == answer.json


@pytest.mark.requirement("002/headers/request-id-one-thing")
async def test_two_request_ids_that_differ_are_invalid(door: Door) -> None:
    device = await door.pair()
    body = {"requestId": "one", "payload": {"name": "echo"}}
    answer = await device.post("/command/tool", body, X_Request_Id="two")
    assert (answer.status, answer.code) == (400, ErrorCode.INVALID_REQUEST)
    assert (await device.post("/command/tool", body, X_Request_Id="one")).status == 200


@pytest.mark.requirement("002/commands/level-too-low")
async def test_a_declared_level_below_the_actions_is_refused(door: Door) -> None:
    door.gate.add("kv.set", Level.WRITE, writes)
    device = await door.pair(tools="sign")
    answer = await device.tool("kv.set", key="k", security={"level": "read"})
    assert (answer.status, answer.code) == (403, ErrorCode.PERMISSION_DENIED)
    assert door.gate.ran == []


@pytest.mark.requirement("002/commands/level-enough")
async def test_a_declared_level_is_let_through_as_far_as_the_scope_goes(door: Door) -> None:
    reader, writer = await door.pair("reader"), await door.pair("writer", tools="write")
    declared = {"level": "write"}
    assert (await writer.tool("echo", key="k", security=declared)).status == 200
    assert (await reader.tool("echo", key="k", security=declared)).status == 403
    assert (await reader.tool("echo", security={"level": "read"})).status == 200


@pytest.mark.requirement("002/commands/level-values")
async def test_any_other_level_is_invalid(door: Door) -> None:
    device = await door.pair()
    answer = await device.tool("echo", security={"level": "admin"})
    assert (answer.status, answer.code) == (400, ErrorCode.INVALID_REQUEST)


@pytest.mark.requirement("002/pairing/scope-enforced")
async def test_a_command_outside_the_scope_is_refused(door: Door) -> None:
    device = await door.pair()
    bodies = {
        "agent": {"agentId": "echo", "message": "hi"},
        "system": {"action": "exec", "args": {"cmd": "ls"}},
        "mcp": {"capabilityId": "exec", "action": "x"},
    }
    door.gate.add("exec", Level.WRITE, writes)
    for kind, payload in bodies.items():
        answer = await device.post(f"/command/{kind}", {"payload": payload}, key="k")
        assert (answer.status, answer.code) == (403, ErrorCode.PERMISSION_DENIED), kind
    assert door.gate.ran == []


@pytest.mark.requirement("002/commands/types")
async def test_there_are_four_kinds_of_command(door: Door) -> None:
    device = await door.pair(**ALL)
    for kind in ("agent", "tool", "system", "mcp"):
        answer = await device.post(f"/command/{kind}", {"payload": {}})
        assert (answer.status, answer.code) == (400, ErrorCode.INVALID_REQUEST)


@pytest.mark.requirement("002/commands/unknown-type")
@pytest.mark.requirement("002/commands/unknown-type-404")
@pytest.mark.requirement("002/codes/unknown-route")
@pytest.mark.requirement("002/codes/wrong-method")
@pytest.mark.requirement("002/envelope/json-always")
async def test_an_unknown_route_and_a_wrong_method_answer_in_the_envelope(door: Door) -> None:
    device = await door.pair(**ALL)
    for method, path, status in (
        ("POST", "/command/other", 404),
        ("POST", "/command/other/more", 404),
        ("GET", "/nowhere", 404),
        ("DELETE", "/status", 405),
        ("GET", "/pairing/approve", 405),
    ):
        answer = await door.ask(method, path, body={}, headers=device.headers)
        assert (answer.status, answer.code) == (status, ErrorCode.INVALID_REQUEST), path
        assert answer.headers["Content-Type"] == "application/json"
        assert answer.json["ok"] is False


@pytest.mark.requirement("002/codes/upstream")
def test_the_code_of_a_failure_says_whose_fault_it_is() -> None:
    for code, expected in (
        ("refused", ErrorCode.PERMISSION_DENIED),
        ("invalid", ErrorCode.INVALID_REQUEST),
        ("upstream", ErrorCode.UPSTREAM),
        ("TOOL_EXEC_FAILED", ErrorCode.UPSTREAM),  # of a runner
    ):
        assert code_of({"error": {"code": code, "message": "why"}}) is expected, code
    nothing: list[JsonValue] = [None, {}, {"error": "text"}, {"error": {}}]
    for without in nothing:
        assert code_of(without) is ErrorCode.INTERNAL, without


@pytest.mark.requirement("002/codes/internal")
async def test_a_fault_of_ours_is_internal_and_tells_nothing(door: Door) -> None:
    async def crashes(_: Mapping[str, JsonValue]) -> ToolOutput:
        raise ZeroDivisionError("secret detail")

    door.gate.add("crash", Level.READ, crashes)
    device = await door.pair()
    answer = await device.tool("crash")
    assert (answer.status, answer.code) == (500, ErrorCode.INTERNAL)
    assert b"secret detail" not in answer.body


@pytest.mark.parametrize("name", ["tool", "agent", "system", "mcp"])
async def test_a_command_may_be_called_like_a_kind_of_command(door: Door, name: str) -> None:
    device = await door.pair()
    await device.tool("echo", {"text": "hi"}, requestId=name)
    state = await device.get(f"/command/{name}")
    assert (state.status, state.data["status"]) == (200, "done")
    other = await door.ask("DELETE", f"/command/{name}", headers=device.headers)
    assert (other.status, other.headers["Allow"]) == (405, "GET, POST")


async def test_a_fault_of_ours_is_told_under_the_callers_own_names(door: Door) -> None:
    async def crashes(_: Mapping[str, JsonValue]) -> ToolOutput:
        raise ValueError("a fault")

    door.gate.add("crash", Level.READ, crashes)
    device = await door.pair()
    trace = {"traceId": TRACE}
    answer = await device.tool("crash", requestId="r", trace=trace)
    assert (answer.status, answer.code) == (500, ErrorCode.INTERNAL)
    assert answer.json["traceId"] == TRACE
    assert answer.headers["X-Request-Id"] == "r"
    assert answer.headers["X-RateLimit-Remaining"] == "59"


@pytest.mark.requirement("002/commands/sign-asks")
@pytest.mark.requirement("002/commands/pending-202")
@pytest.mark.requirement("002/commands/pending-state")
@pytest.mark.requirement("002/commands/pending-replay")
async def test_a_signing_command_waits_for_a_person_and_then_answers(door: Door) -> None:
    door.gate.add("pay", Level.SIGN, writes)
    device = await door.pair(**ALL)
    body = {"requestId": "r-pay", "payload": {"name": "pay", "args": {"text": "x"}}}
    first = await device.post("/command/tool", body, key="k-pay")
    assert first.status == 202
    approval_id = first.data["approvalId"]
    message = first.data.pop("message")
    assert f"Waiting for approval {approval_id}: " in message
    assert first.data == {"status": "pending", "requestId": "r-pay", "approvalId": approval_id}
    still = await device.get("/command/r-pay")
    assert still.data["status"] == "pending"
    assert (await device.post("/command/tool", body, key="k-pay")).status == 202
    assert door.gate.ran == []
    waiting = asyncio.create_task(device.get("/command/r-pay?wait=20"))
    await door.gate.decide_approval(approval_id, approve=True, decided_by=by("operator"), reason="")
    done = await waiting
    assert done.data["status"] == "done"
    answer = done.data["answer"]
    assert answer["data"]["results"][0]["data"] == {"wrote": "x"}
    replay = await device.post("/command/tool", body, key="k-pay")
    assert replay.status == 200
    assert replay.headers["Idempotent-Replayed"] == "true"
    assert replay.json == answer
    assert len(door.gate.ran) == 1


async def test_a_rejected_command_ends_refused(door: Door) -> None:
    door.gate.add("pay", Level.SIGN, writes)
    device = await door.pair(**ALL)
    first = await device.tool("pay", key="k", requestId="r")
    await door.gate.decide_approval(
        first.data["approvalId"], approve=False, decided_by=by("operator"), reason="no"
    )
    state = await device.get("/command/r?wait=20")
    assert state.data["answer"]["error"]["code"] == ErrorCode.PERMISSION_DENIED
    assert door.gate.ran == []


@pytest.mark.parametrize("terms", [{"status": "offline"}, {"expiresAt": 1}])
async def test_what_may_no_more_be_called_is_not_called_for_a_command_that_waited(
    door: Door, terms: dict[str, JsonValue]
) -> None:
    door.gate.add("pay", Level.SIGN, writes)
    device = await door.pair(**ALL)
    first = await device.tool("pay", key="k", requestId="r")
    body = {"capabilityId": "pay", "scope": "money", "level": "sign", **terms}
    changed = await door.ask("POST", "/capabilities/register", body=body, operator=True)
    assert changed.status == 200
    await door.gate.decide_approval(
        first.data["approvalId"], approve=True, decided_by=by("operator"), reason=""
    )
    state = await device.get("/command/r?wait=20")
    assert state.data["answer"]["error"]["code"] == ErrorCode.PERMISSION_DENIED
    assert door.gate.ran == []


@pytest.mark.parametrize("level", [Level.READ, Level.SIGN])
async def test_a_revoked_devices_waiting_command_does_not_run(door: Door, level: Level) -> None:
    door.gate.add("pay", level, writes)
    door.gate.asks.add("pay")
    device = await door.pair(**ALL)
    first = await device.tool("pay", key="k", requestId="r")
    await door.ask("POST", "/pairing/revoke", body={"deviceId": "laptop"}, operator=True)
    await door.gate.decide_approval(
        first.data["approvalId"], approve=True, decided_by=by("operator"), reason=""
    )
    async with asyncio.timeout(10):
        while door.parts.states._wanted:
            await asyncio.sleep(0.01)
    assert door.gate.ran == []


@pytest.mark.requirement("002/commands/other-devices-command")
async def test_a_device_cannot_read_anothers_command(door: Door) -> None:
    mine, theirs = await door.pair("mine"), await door.pair("theirs")
    await mine.tool("echo", {"text": "private"}, requestId="r-1")
    answer = await theirs.get("/command/r-1")
    assert (answer.status, answer.code) == (404, ErrorCode.INVALID_REQUEST)


@pytest.mark.requirement("002/agent/sync")
@pytest.mark.requirement("002/agent/payload")
async def test_an_agent_in_mode_sync_answers_what_it_said(door: Door) -> None:
    device = await door.pair(**ALL)
    payload = {"agentId": "echo", "message": "hello there", "mode": "sync"}
    answer = await device.post("/command/agent", {"payload": payload})
    assert answer.status == 200
    assert answer.data["output"] == "hello there"
    assert answer.data["status"] == "DONE"
    assert answer.data["runId"]
    named = {"agentId": "echo", "message": {"role": "user", "content": "again"}}
    assert (await device.post("/command/agent", {"payload": named})).data["output"] == "again"


@pytest.mark.requirement("002/agent/async")
async def test_an_agent_in_mode_async_answers_with_the_runs_id_first(door: Door) -> None:
    device = await door.pair(**ALL)
    payload = {"agentId": "echo", "message": "later", "mode": "async"}
    answer = await device.post("/command/agent", {"requestId": "r-a", "payload": payload})
    assert answer.status == 202
    assert answer.data["status"] == "pending"
    run_id = answer.data["runId"]
    done = await device.get("/command/r-a?wait=20")
    assert done.data["status"] == "done"
    assert done.data["answer"]["data"]["output"] == "later"
    assert done.data["answer"]["data"]["runId"] == run_id


@pytest.mark.requirement("002/agent/unknown-agent")
async def test_an_unknown_agent_is_refused(door: Door) -> None:
    device = await door.pair(**ALL)
    answer = await device.post(
        "/command/agent", {"payload": {"agentId": "nobody", "message": "hi"}}
    )
    assert (answer.status, answer.code) == (403, ErrorCode.PERMISSION_DENIED)


async def test_an_agent_whose_tool_waits_for_a_person_answers_202(door: Door) -> None:
    door.gate.add("pay", Level.SIGN, writes)
    device = await door.pair(**ALL)
    message = 'now [[tool:pay {"text": "x"}]]'
    answer = await device.post(
        "/command/agent",
        {"requestId": "r-s", "payload": {"agentId": "script", "message": message}},
    )
    assert answer.status == 202
    approval_id, run_id = answer.data["approvalId"], answer.data["runId"]
    await door.runs.decide_approval(
        approval_id,
        session_id="",
        run_id=run_id,
        approve=True,
        reason="",
        decided_by=by("operator"),
    )
    done = await device.get("/command/r-s?wait=20")
    assert "pay:" in done.data["answer"]["data"]["output"]
    assert len(door.gate.ran) == 1


@pytest.mark.requirement("002/audit/fail-closed")
@pytest.mark.requirement("002/codes/unavailable")
async def test_a_write_whose_audit_row_cannot_be_written_is_not_executed(door: Door) -> None:
    door.gate.add("kv.set", Level.WRITE, writes)
    device = await door.pair(tools="write")
    commit = door.journal.commit

    async def refuse(*operations: object, durable: bool = True) -> list[object]:
        raise Unavailable("disk full")

    door.journal.commit = refuse  # type: ignore[method-assign,assignment]
    answer = await device.tool("kv.set", {"text": "x"}, key="k")
    door.journal.commit = commit  # type: ignore[method-assign]
    assert (answer.status, answer.code) == (503, ErrorCode.UNAVAILABLE)
    assert answer.json["error"]["outcome"] == answer.data["outcome"] == Outcome.NOT_STARTED
    assert door.gate.ran == []
    assert (await device.tool("kv.set", {"text": "x"}, key="k")).status == 200


@pytest.mark.requirement("002/audit/gateway-row")
@pytest.mark.requirement("002/audit/one-row")
async def test_a_command_leaves_one_row_and_a_replay_none(door: Door) -> None:
    device = await door.pair()
    await device.tool("echo", {"text": "x"}, key="k-9")
    await device.tool("echo", {"text": "x"}, key="k-9")
    (row,) = await door.audit_rows(action="command.tool")
    assert row.metadata["deviceId"] == "laptop"
    assert row.metadata["capabilityId"] == "echo"
    assert row.metadata["idempotencyKey"] == "k-9"
    assert re.fullmatch(r"[0-9a-f]{64}", row.metadata["requestHash"])


async def test_nobody_can_try_out_on_the_row_what_a_request_may_have_held(door: Door) -> None:
    device = await door.pair()
    bodies = [{"payload": {"name": "echo", "args": {"pin": pin}}} for pin in ("7305", "7305", "1")]
    for body in bodies:
        await device.post("/command/tool", body)
    other, second, first = await door.audit_rows(action="command.tool")
    assert first.metadata["requestHash"] == second.metadata["requestHash"]
    assert first.metadata["requestHash"] != other.metadata["requestHash"]
    assert first.metadata["requestHash"] != request_hash(CommandKind.TOOL, bodies[0])


@pytest.mark.requirement("002/audit/refused-too")
@pytest.mark.requirement("002/audit/strangers-counted")
async def test_refused_commands_of_a_device_leave_a_row_each(door: Door) -> None:
    device = await door.pair()
    await device.tool("no.such.tool")
    await device.post("/command/tool", {"payload": 7})
    await device.tool("echo", {"text": "x"}, key="k")
    await device.tool("echo", {"text": "other"}, key="k")
    rows = await door.audit_rows(action="command.tool", decision="deny")
    assert [row.metadata["code"] for row in reversed(rows)] == [
        ErrorCode.PERMISSION_DENIED,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.IDEMPOTENCY_CONFLICT,
    ]
    assert rows[0].metadata["idempotencyKey"] == "k"


async def test_a_command_that_waited_goes_on_after_a_restart(tmp_path: Path) -> None:
    home = tmp_path
    async with open_door(home=home) as door:
        door.gate.add("pay", Level.SIGN, writes)
        gate = door.gate
        device = await door.pair(**ALL)
        first = await device.tool("pay", {"text": "x"}, key="k", requestId="r")
        assert first.status == 202
        token = device.token
    await gate.decide_approval(
        first.data["approvalId"], approve=True, decided_by=by("operator"), reason=""
    )
    async with open_door(home=home, gate=gate) as door:
        again = type(device)(door, "laptop", token)
        async with asyncio.timeout(
            10
        ):  # it is told of the end, and does not find it when it gives up
            state = await again.get("/command/r?wait=20")
        assert state.data["answer"]["data"]["results"][0]["data"] == {"wrote": "x"}
        assert len(gate.ran) == 1


@pytest.mark.requirement("002/system/search-none")
@pytest.mark.requirement("002/codes/not-implemented")
async def test_web_search_without_a_provider_is_not_implemented(door: Door) -> None:
    device = await door.pair(**ALL)
    payload = {"action": "web.search", "args": {"query": "x"}}
    answer = await device.post("/command/system", {"payload": payload})
    assert (answer.status, answer.code) == (501, ErrorCode.NOT_IMPLEMENTED)


class CountingGate(FakeGate):
    """Counts how often it was asked; at the first time it may be made to wait with its answer."""

    def __init__(self) -> None:
        super().__init__()
        self.checks = 0
        self.answers = asyncio.Event()  # it has one
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def begin(
        self, request: ToolRequest, *, also: Also = nothing_also, due: int | None = None
    ) -> Begun:
        self.checks += 1
        answer = await FakeGate.begin(self, request, also=also, due=due)
        self.answers.set()
        await self.may_answer.wait()
        return answer


async def until_it_ran(gate: FakeGate) -> None:
    async with asyncio.timeout(10):
        while not gate.ran:
            await asyncio.sleep(0.01)


async def test_who_waits_for_a_command_that_waits_does_not_keep_us_busy() -> None:
    gate = CountingGate()
    async with open_door(gate=gate) as door:
        gate.add("pay", Level.SIGN, writes)
        device = await door.pair(**ALL)
        await device.tool("pay", key="k", requestId="r")
        before = gate.checks
        assert (await device.get("/command/r?wait=0.3")).data["status"] == "pending"
        assert gate.checks <= before + 2


async def test_a_decided_command_goes_on_though_nobody_asks_for_it(door: Door) -> None:
    door.gate.add("pay", Level.SIGN, writes)
    device = await door.pair(**ALL)
    first = await device.tool("pay", key="k")
    await decide(door, first.data["approvalId"])
    await until_it_ran(door.gate)


@pytest.mark.parametrize("asked", ["first", "again", "by its state"])
async def test_a_decision_that_comes_while_a_command_is_looked_at_is_not_lost(asked: str) -> None:
    gate = CountingGate()
    async with open_door(gate=gate) as door:
        gate.add("pay", Level.SIGN, writes)
        device = await door.pair(**ALL)
        if asked != "first":
            await device.tool("pay", key="k", requestId="r")
            async with asyncio.timeout(10):
                while door.parts.states._resuming:
                    await asyncio.sleep(0)
        gate.answers.clear()
        gate.may_answer.clear()
        looking = asyncio.create_task(
            device.get("/command/r")
            if asked == "by its state"
            else device.tool("pay", key="k", requestId="r")
        )
        await gate.answers.wait()
        (approval_id,) = gate._approvals
        await decide(door, approval_id)
        gate.may_answer.set()
        await looking
        await until_it_ran(gate)


async def decide(door: Door, approval_id: str) -> None:
    await door.gate.decide_approval(approval_id, approve=True, decided_by=by("operator"), reason="")


class FaultyGate(FakeGate):
    """Has a fault once, when it is told to."""

    faulty = False

    def level_of(self, name: str) -> Level | None:
        if self.faulty:
            self.faulty = False
            raise ZeroDivisionError
        return super().level_of(name)


async def test_a_fault_while_a_command_goes_on_does_not_hold_its_key_for_ever() -> None:
    gate = FaultyGate()
    async with open_door(gate=gate) as door:
        gate.add("pay", Level.SIGN, writes)
        device = await door.pair(**ALL)
        first = await device.tool("pay", key="k", requestId="r")
        async with asyncio.timeout(10):
            while door.parts.states._resuming:
                await asyncio.sleep(0)
            gate.faulty = True
            await decide(door, first.data["approvalId"])
            while gate.faulty or door.parts.states._resuming:
                await asyncio.sleep(0)
            assert (await device.tool("pay", key="k", requestId="r")).status == 200


async def test_calls_that_ran_have_their_results_when_the_right_to_the_last_is_taken_away(
    door: Door,
) -> None:
    door.gate.add("note", Level.WRITE, echo)
    door.gate.add("pay", Level.SIGN, echo)
    device = await door.pair(**ALL)
    calls = [
        {"id": "a", "name": "note", "arguments": {"text": "kept"}},
        {"id": "b", "name": "pay", "arguments": {}},
    ]
    asked = {"requestId": "r", "payload": {"toolCalls": calls}}
    first = await device.post("/command/tool", asked, key="k")
    assert first.status == 202, first.json
    device = await door.pair(tools="read")
    await door.gate.decide_approval(
        first.data["approvalId"], approve=True, decided_by=by("operator"), reason=""
    )
    state = await device.get("/command/r?wait=10")
    noted, paid = state.data["answer"]["data"]["results"]
    assert (noted["success"], noted["data"]) == (True, "kept")
    assert (paid["success"], paid["outcome"]) == (False, "not_started")
    assert [request.tool for request in door.gate.ran] == ["note"]


async def test_of_calls_that_wait_one_that_ran_meanwhile_is_told_of_as_well(door: Door) -> None:
    for name in ("first", "second"):
        door.gate.add(name, Level.SIGN, echo)
    door.gate.add("note", Level.WRITE, echo)
    device = await door.pair(**ALL)
    names = ("note", "first", "second")
    calls = [{"id": name, "name": name, "arguments": {"text": name}} for name in names]
    asked = {"requestId": "r", "payload": {"toolCalls": calls}}
    first = await device.post("/command/tool", asked, key="k")
    waits = first.data["approvalId"]
    later = waits[:-1] + "2"
    await door.gate.decide_approval(later, approve=True, decided_by=by("operator"), reason="")
    again = await device.post("/command/tool", asked, key="k")
    assert (again.status, again.data["approvalId"]) == (202, waits)
    device = await door.pair(tools="read")
    await door.gate.decide_approval(waits, approve=True, decided_by=by("operator"), reason="")
    state = await device.get("/command/r?wait=10")
    results = state.data["answer"]["data"]["results"]
    assert [one["success"] for one in results] == [True, False, True]
    told = [event.data for event in await door.journal.read("gateway")]
    assert sum(b'"pending"' in data for data in told) == 1


async def test_a_keyed_write_cut_off_by_a_kill_ends_once_and_its_key_replays_that_end(
    tmp_path: Path,
) -> None:
    began, may_end = asyncio.Event(), asyncio.Event()

    async def hangs(_: object) -> ToolOutput:
        began.set()
        await may_end.wait()
        return ToolOutput(0)

    running, killed = tmp_path / "running", tmp_path / "killed"
    running.mkdir()
    async with open_door(home=running) as door:
        door.gate.add("kv.set", Level.WRITE, hangs)
        device = await door.pair(**ALL)
        asked = asyncio.create_task(device.tool("kv.set", key="k", requestId="r"))
        await asyncio.wait_for(began.wait(), 10)
        shutil.copytree(running, killed)  # as a killed process leaves it
        may_end.set()
        await asked
        (call,) = door.gate.ran
    for start in range(2):
        gate = FakeGate()
        gate.add("kv.set", Level.WRITE, writes)
        gate.recover(call.request_id, failed("cut off", outcome=Outcome.MAY_HAVE_EXECUTED))
        async with open_door(home=killed, gate=gate) as door:
            again = Paired(door, "laptop", device.token)
            asking = [again.tool("kv.set", key="k", requestId="r") for _ in range(3)]
            answers = await asyncio.gather(*asking)
            state = (await again.get("/command/r?wait=10")).data
            assert {answer.body for answer in answers} == {answers[0].body}
            assert state["answer"] == answers[0].json
            started = json.loads((await door.journal.read("gateway"))[0].data)
            assert answers[0].json["traceId"] == started["metadata"]["traceId"]
            (result,) = answers[0].data["results"]
            assert (result["success"], result["outcome"]) == (False, "may_have_executed")
            assert await device_events(door) == ["kv.set started", "kv.set failed"]
            assert await door.journal.scan("open_commands") == []
            assert door.gate.ran == []
            if start:
                assert all("Idempotent-Replayed" in answer.headers for answer in answers)


async def device_events(door: Door) -> list[str]:
    events = await door.journal.read("gateway")
    return [json.loads(event.data)["message"] for event in events]


async def test_a_command_that_failed_here_is_not_told_of_again_at_the_next_start(
    tmp_path: Path,
) -> None:
    async def fails(*_: object, **__: object) -> Begun:
        raise Unavailable("gone")

    async with open_door(home=tmp_path) as door:
        door.gate.add("kv.set", Level.WRITE, writes)
        device = await door.pair(**ALL)
        begin = FakeGate.begin
        try:
            FakeGate.begin = fails  # type: ignore[method-assign]
            assert (await device.tool("kv.set", key="k")).status == 503
        finally:
            FakeGate.begin = begin  # type: ignore[method-assign]
    async with open_door(home=tmp_path) as door:
        assert await device_events(door) == ["kv.set started", "kv.set failed"]


async def test_an_agent_that_was_at_work_when_the_process_was_killed_answers_after_it(
    tmp_path: Path,
) -> None:
    began, may_end = asyncio.Event(), asyncio.Event()

    async def slow(_: object) -> ToolOutput:
        began.set()
        await may_end.wait()
        return ToolOutput(0, stdout="rested")

    running, killed = tmp_path / "running", tmp_path / "killed"
    running.mkdir()
    message = {"agentId": "script", "message": "[[tool:slow {}]]"}
    gate = FakeGate()
    gate.add("slow", Level.READ, slow)
    async with open_door(home=running, gate=gate) as door:
        device = await door.pair(**ALL)
        command = {"requestId": "r", "payload": message}
        asked = asyncio.create_task(device.post("/command/agent", command))
        await asyncio.wait_for(began.wait(), 10)
        shutil.copytree(running, killed)  # as a killed process leaves it
        may_end.set()
        assert (await asked).status == 200
        assert await door.journal.scan("open_commands") == []
    gate = FakeGate()
    gate.add("slow", Level.READ, slow)
    async with open_door(home=killed, gate=gate) as door:
        for run_id, _ in await door.runs.open_runs():  # as a start does
            door.dispatcher.dispatch(run_id)
        state = await Paired(door, "laptop", device.token).get("/command/r?wait=20")
        assert state.data["status"] == "done", state.json
        assert state.data["answer"]["ok"] is True, state.json
        assert await device_events(door) == ["script started", "script succeeded"]
        assert await door.journal.scan("open_commands") == []


async def test_an_agents_command_that_failed_here_is_not_set_to_work_at_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(*_: object) -> None:
        raise Unavailable("the disk is gone")

    async with open_door(home=tmp_path) as door:
        device = await door.pair(**ALL)
        command = {"requestId": "r", "payload": {"agentId": "echo", "message": "once"}}
        with monkeypatch.context() as patched:
            patched.setattr(Runs, "invoke", fails)
            assert (await device.post("/command/agent", command)).status == 503
        assert await door.journal.scan("open_commands") == []
        assert (await device.get("/command/r")).status == 404
