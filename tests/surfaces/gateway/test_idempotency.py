"""Once per key: replays, conflicts, at the same time, across time and restarts."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.support.people import by
from tests.surfaces.gateway.conftest import ALL, Door, Paired, open_door
from toolgate.commands.planners.agent import AgentPlanner
from toolgate.contracts.gateway_v1 import ErrorCode
from toolgate.core.enums import Level, Outcome
from toolgate.core.errors import Unavailable
from toolgate.core.tools import JsonValue, ToolOutput
from toolgate.runs import records
from toolgate.testing.clock import FakeClock


class Counter:
    """A tool that tells how often it ran."""

    def __init__(self) -> None:
        self.count = 0
        self.gate = asyncio.Event()
        self.gate.set()

    async def __call__(self, args: Mapping[str, JsonValue]) -> ToolOutput:
        self.count += 1
        await self.gate.wait()
        return ToolOutput(0, data={"count": self.count, "text": args.get("text")})


async def counting(door: Door, **scope: object) -> tuple[Paired, Counter]:
    counter = Counter()
    door.gate.add("count", Level.WRITE, counter)
    granted: dict[str, Any] = dict(scope) or {"tools": "write"}
    return await door.pair(**granted), counter


@pytest.mark.requirement("002/idempotency/required")
@pytest.mark.requirement("002/headers/idempotency-key")
async def test_a_write_without_a_key_is_invalid(door: Door) -> None:
    device, counter = await counting(door)
    answer = await device.tool("count")
    assert (answer.status, answer.code) == (400, ErrorCode.INVALID_REQUEST)
    assert counter.count == 0


@pytest.mark.requirement("002/idempotency/not-required-read")
async def test_a_read_needs_no_key(door: Door) -> None:
    device = await door.pair()
    assert (await device.tool("echo", {"text": "x"})).status == 200


@pytest.mark.requirement("002/idempotency/body-key")
async def test_the_key_may_be_in_the_body(door: Door) -> None:
    device, counter = await counting(door)
    first, again = [await device.tool("count", idempotencyKey="k") for _ in range(2)]
    assert (first.status, again.status) == (200, 200)
    assert again.headers["Idempotent-Replayed"] == "true"
    assert counter.count == 1


@pytest.mark.requirement("002/idempotency/both-different")
async def test_two_keys_that_differ_are_invalid(door: Door) -> None:
    device, counter = await counting(door)
    answer = await device.tool("count", key="one", idempotencyKey="two")
    assert (answer.status, answer.code) == (400, ErrorCode.INVALID_REQUEST)
    assert counter.count == 0


@pytest.mark.requirement("002/idempotency/replay")
@pytest.mark.requirement("002/idempotency/replay-bytes")
@pytest.mark.requirement("002/idempotency/replay-header")
async def test_the_same_key_and_request_gets_the_first_answer_byte_for_byte(door: Door) -> None:
    device, counter = await counting(door)
    first = await device.tool("count", {"text": "ä"}, key="k")
    again = await device.tool("count", {"text": "ä"}, key="k")
    assert again.body == first.body
    assert again.status == first.status
    assert "Idempotent-Replayed" not in first.headers
    assert again.headers["Idempotent-Replayed"] == "true"
    assert counter.count == 1


@pytest.mark.requirement("002/idempotency/replay-failures")
async def test_the_failure_of_an_executed_command_is_replayed(door: Door) -> None:
    ran = 0

    async def fails(_: Mapping[str, JsonValue]) -> ToolOutput:
        nonlocal ran
        ran += 1
        return ToolOutput(1, stderr=f"broke {ran}", outcome=Outcome.EXECUTED)

    door.gate.add("fails", Level.WRITE, fails)
    door.gate.add("denied", Level.WRITE, fails)
    door.gate.denied.add("denied")
    device = await door.pair(tools="write")
    for name, status in (("fails", 200), ("denied", 403)):
        first = await device.tool(name, key=name)
        again = await device.tool(name, key=name)
        assert (first.status, again.body) == (status, first.body)
        assert again.headers["Idempotent-Replayed"] == "true"
    assert ran == 1


@pytest.mark.requirement("002/idempotency/conflict")
@pytest.mark.requirement("002/codes/idempotency-conflict")
async def test_the_same_key_with_another_request_is_a_conflict(door: Door) -> None:
    device, counter = await counting(door, **ALL)
    await device.tool("count", {"text": "a"}, key="k")
    other_body = await device.tool("count", {"text": "b"}, key="k")
    assert (other_body.status, other_body.code) == (409, ErrorCode.IDEMPOTENCY_CONFLICT)
    other_path = await device.post(
        "/command/agent", {"payload": {"agentId": "echo", "message": "x"}}, key="k"
    )
    assert (other_path.status, other_path.code) == (409, ErrorCode.IDEMPOTENCY_CONFLICT)
    assert counter.count == 1


async def test_a_key_that_belongs_to_another_request_costs_what_any_refusal_costs() -> None:
    async with open_door(clock=FakeClock(), rate=2) as door:
        device = await door.pair()
        await device.tool("echo", {"text": "x"}, key="k")
        conflict = await device.tool("echo", {"text": "other"}, key="k")
        assert (conflict.status, conflict.headers["X-RateLimit-Remaining"]) == (409, "0")
        assert (await device.tool("echo", {"text": "other"}, key="k")).status == 429


async def test_of_two_requests_under_one_key_at_once_the_second_is_a_conflict_and_on_record(
    door: Door,
) -> None:
    device, counter = await counting(door)
    counter.gate.clear()
    first = asyncio.create_task(device.tool("count", {"text": "x"}, key="k"))
    async with asyncio.timeout(10):
        while not counter.count:
            await asyncio.sleep(0.01)
        second = await device.tool("count", {"text": "other"}, key="k")
        counter.gate.set()
        assert (await first).status == 200
    assert (second.status, second.code) == (409, ErrorCode.IDEMPOTENCY_CONFLICT)
    assert len(await door.audit_rows(action="command.tool", decision="deny")) == 1


@pytest.mark.requirement("002/idempotency/canonical-body")
async def test_order_and_space_do_not_make_another_request(door: Door) -> None:
    device, counter = await counting(door)
    one = b'{"payload":{"name":"count","args":{"text":"x","n":1}},"route":"r"}'
    two = b'{ "route": "r",\n "payload": {"args": {"n": 1, "text": "x"}, "name": "count"} }'
    headers = {**device.headers, "Idempotency-Key": "k"}
    first = await door.ask("POST", "/command/tool", data=one, headers=headers)
    again = await door.ask("POST", "/command/tool", data=two, headers=headers)
    assert (again.status, again.body) == (200, first.body)
    assert counter.count == 1


@pytest.mark.requirement("002/idempotency/request-hash")
async def test_the_request_is_its_kind_payload_session_route_and_security(door: Door) -> None:
    device, counter = await counting(door)
    first = await device.tool("count", {"text": "x"}, key="k", requestId="one")
    same = {
        "requestId": "two",
        "trace": {"traceId": "4bf92f3577b34da6a3ce929d0e0e4736"},
        "actor": {"id": "other", "role": "cook"},
        "idempotencyKey": "k",
    }
    for name, value in same.items():
        again = await device.tool("count", {"text": "x"}, key="k", **{name: value})
        assert (again.status, again.body) == (200, first.body), name
    other = {"sessionKey": "s", "route": "r", "security": {"level": "write"}}
    for name, value in other.items():
        refused = await device.tool("count", {"text": "x"}, key="k", **{name: value})
        assert (refused.status, refused.code) == (409, ErrorCode.IDEMPOTENCY_CONFLICT), name
    assert counter.count == 1
    system = {"payload": {"name": "count", "args": {"text": "x"}, "action": "exec"}}
    unread = await device.post("/command/system", system, key="k")
    assert unread.status != 200


@pytest.mark.requirement("002/idempotency/per-device")
async def test_another_devices_key_is_another_key(door: Door) -> None:
    mine, counter = await counting(door)
    theirs = await door.pair("theirs", tools="write")
    first = await mine.tool("count", {"text": "a"}, key="k")
    other = await theirs.tool("count", {"text": "b"}, key="k")
    assert (first.status, other.status, counter.count) == (200, 200, 2)
    assert "Idempotent-Replayed" not in other.headers


@pytest.mark.requirement("002/idempotency/concurrent")
async def test_64_at_once_run_once_and_all_get_the_same_answer() -> None:
    async with open_door(rate=1000) as door:
        device, counter = await counting(door)
        counter.gate.clear()
        asking = [
            asyncio.create_task(device.tool("count", {"text": "x"}, key="k")) for _ in range(64)
        ]
        async with asyncio.timeout(20):
            while counter.count == 0:
                await asyncio.sleep(0.01)
            counter.gate.set()
            answers = await asyncio.gather(*asking)
        assert counter.count == 1
        assert {answer.body for answer in answers} == {answers[0].body}
        replayed = [answer for answer in answers if "Idempotent-Replayed" in answer.headers]
        assert len(replayed) == 63


@pytest.mark.requirement("002/idempotency/window")
async def test_after_600_seconds_a_key_may_be_used_anew(frozen: Door) -> None:
    assert isinstance(frozen.clock, FakeClock)
    device, _ = await counting(frozen)
    await device.tool("count", {"text": "a"}, key="k")
    frozen.clock.advance(599_999)
    kept = await device.tool("count", {"text": "a"}, key="k")
    assert kept.headers["Idempotent-Replayed"] == "true"
    frozen.clock.advance(1)
    anew = await device.tool("count", {"text": "b"}, key="k")
    assert anew.status == 200
    assert anew.data["results"][0]["data"]["count"] == 2


@pytest.mark.requirement("002/idempotency/no-rate-cost")
async def test_a_replay_costs_no_rate_limit(frozen: Door) -> None:
    device, _ = await counting(frozen)
    first = await device.tool("count", key="k")
    again = [await device.tool("count", key="k") for _ in range(3)][-1]
    assert again.headers["X-RateLimit-Remaining"] == first.headers["X-RateLimit-Remaining"]


async def test_a_replay_is_answered_though_the_rate_is_used_up(tmp_path: Path) -> None:
    async with open_door(home=tmp_path, rate=2) as door:
        device, counter = await counting(door)
        first = await device.tool("count", key="k")
        door.parts.keys._recent.clear()  # as after a restart
        await device.tool("count", key="other")
        assert (await device.tool("count", key="third")).status == 429
        again = await device.tool("count", key="k")
        assert (again.status, again.body) == (200, first.body)
        assert counter.count == 2


@pytest.mark.requirement("002/idempotency/no-second-event")
async def test_a_replay_makes_no_event(door: Door) -> None:
    device, _ = await counting(door)
    await device.tool("count", key="k")
    before = (await device.get("/status")).json["cursor"]
    await device.tool("count", key="k")
    assert (await device.get("/status")).json["cursor"] == before


async def test_a_refusal_before_execution_does_not_use_up_the_key(door: Door) -> None:
    device, counter = await counting(door, tools="read")
    assert (await device.tool("count", key="k")).status == 403
    approved = await door.ask(
        "POST",
        "/pairing/approve",
        body={"deviceId": "laptop", "scope": {"tools": "write"}},
        operator=True,
    )
    device.token = approved.data["deviceToken"]
    assert (await device.tool("count", key="k")).status == 200
    assert counter.count == 1


async def test_a_command_that_waits_for_days_keeps_its_key_and_its_name(frozen: Door) -> None:
    """A person may be given a week (APPROVAL_TIMEOUT_MS)."""
    device = await frozen.pair(**ALL)
    counter = Counter()
    frozen.gate.add("pay", Level.SIGN, counter)
    asked = await device.tool("pay", key="k", requestId="r")
    assert asked.status == 202
    assert isinstance(frozen.clock, FakeClock)
    frozen.clock.advance(7 * 24 * 3600 * 1000 - 1)
    for row in await frozen.journal.due(until=frozen.clock.now_ms()):
        await frozen.parts.on_due[row.collection](row)
    again = await device.tool("pay", key="k", requestId="r")
    assert (again.status, again.data["approvalId"]) == (202, asked.data["approvalId"])
    state = await device.get("/command/r")
    assert (state.status, state.data["status"]) == (200, "pending")
    await frozen.gate.decide_approval(
        asked.data["approvalId"], approve=True, decided_by=by("operator"), reason=""
    )
    assert (await device.get("/command/r?wait=5")).data["status"] == "done"
    assert (await device.tool("pay", key="k", requestId="r")).status == 200
    assert counter.count == 1


@pytest.mark.requirement("002/idempotency/survives-restart")
@pytest.mark.requirement("002/pairing/survives-restart")
@pytest.mark.requirement("002/pairing/token-hashed")
async def test_keys_pairings_and_limits_survive_a_restart(tmp_path: Path) -> None:
    async with open_door(home=tmp_path) as door:
        device, _ = await counting(door)
        first = await device.tool("count", {"text": "mark-of-the-answer"}, key="k")
    async with open_door(home=tmp_path) as door:
        door.gate.add("count", Level.WRITE, Counter())
        again = Paired(door, "laptop", device.token)
        replay = await again.tool("count", {"text": "mark-of-the-answer"}, key="k")
        assert (replay.status, replay.body) == (200, first.body)
        assert replay.headers["Idempotent-Replayed"] == "true"
        assert door.gate.ran == []
        conflict = await again.tool("count", {"text": "other"}, key="k")
        assert conflict.code == ErrorCode.IDEMPOTENCY_CONFLICT
    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert device.token.encode() not in written
    assert b"mark-of-the-answer" not in written  # answers are sealed


async def test_an_agent_that_was_at_work_when_the_gateway_failed_is_not_set_to_work_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(*_: object) -> None:
        raise Unavailable("the disk is gone")

    command = {"payload": {"agentId": "echo", "message": "once"}}
    async with open_door(home=tmp_path) as door:
        device = await door.pair(**ALL)
        with monkeypatch.context() as patched:
            patched.setattr(AgentPlanner, "_until_it_rests", fails)
            failed = await device.post("/command/agent", command, key="k")
        assert (failed.status, failed.code) == (503, ErrorCode.UNAVAILABLE)
    async with open_door(home=tmp_path) as door:
        again = Paired(door, "laptop", device.token)
        answer = await again.post("/command/agent", command, key="k")
        assert (answer.status, answer.data["output"]) == (200, "once")
        replay = await again.post("/command/agent", command, key="k")
        assert (replay.body, replay.headers["Idempotent-Replayed"]) == (answer.body, "true")
        assert len(await door.journal.scan(records.RUNS)) == 1


SERVER = [sys.executable, "-m", "toolgate", "up", "-s", "LOG_LEVEL=error"]
PORTS = ["WS_PORT=0", "HTTP_PORT=0", "ORCHESTRATOR_PORT=0", "GATEWAY_PORT=0"]


def start(home: Path, *more: str) -> tuple[subprocess.Popen[bytes], str]:
    ports = [part for setting in (*PORTS, *more) for part in ("-s", setting)]
    environment = {"PATH": os.environ["PATH"], "OPERATOR_TOKEN": "op-token"}
    process = subprocess.Popen(
        [*SERVER, "--home", str(home), *ports],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment,
        cwd=home,
    )
    assert process.stdout is not None
    with process.stdout as told:
        return process, json.loads(told.readline())["urls"]["gateway"]


async def test_a_key_survives_sigkill_and_the_tool_runs_once(tmp_path: Path) -> None:
    """The real program, the real pipeline, killed between the answer and its replay."""
    operator = {"Authorization": "Bearer op-token"}
    process, url = await asyncio.to_thread(start, tmp_path)
    try:
        async with aiohttp.ClientSession() as http:
            await http.get(url + "/status", headers={"X-Device-Id": "d"})
            body = {"deviceId": "d", "scope": {"tools": "write", "agent": True}}
            approved = await http.post(url + "/pairing/approve", json=body, headers=operator)
            token = (await approved.json())["data"]["deviceToken"]
            headers = {"X-Device-Id": "d", "X-Device-Token": token, "Idempotency-Key": "k"}
            command = {"payload": {"name": "echo", "args": {"text": "once"}}}
            first = await (
                await http.post(url + "/command/tool", json=command, headers=headers)
            ).read()
            assert json.loads(first)["ok"] is True
            process.send_signal(signal.SIGKILL)
            await asyncio.to_thread(process.wait)
            process, url = await asyncio.to_thread(start, tmp_path)
            answer = await http.post(url + "/command/tool", json=command, headers=headers)
            assert await answer.read() == first
            assert answer.headers["Idempotent-Replayed"] == "true"
            rows = await http.get(url + "/audit/query?action=tool.run", headers=operator)
            assert len((await rows.json())["data"]["items"]) == 1
    finally:
        process.kill()
        await asyncio.to_thread(process.wait)


PLAIN = Path(__file__).parents[2] / "tools" / "upstream" / "servers" / "plain.py"
POLICY = """
version: 1
name: kills
default: deny
rules:
  - {id: mcp, allow: "mcp.*", match: any, reason: For the test}
"""


def executed(log: Path) -> int:
    """How often the server was asked to do it, by its own account."""
    if not log.exists():
        return 0
    messages = [
        json.loads(line) for line in log.read_text().splitlines(keepends=True) if line[-1:] == "\n"
    ]
    return sum(one.get("method") == "tools/call" for one in messages)


async def listed(url: str, http: aiohttp.ClientSession, headers: Mapping[str, str]) -> int:
    """403 once the server has said what it has: an action that it does not have is refused."""
    nothing = {"payload": {"capabilityId": "mcp.plain", "action": "nothing"}}
    async with http.post(f"{url}/command/mcp", json=nothing, headers=headers) as answer:
        return answer.status


async def test_a_write_that_was_under_way_at_sigkill_is_never_executed_again(
    tmp_path: Path,
) -> None:
    """The program is killed while the tool runs; what the tool saw is in a file of its own."""
    log, policy, servers = tmp_path / "log", tmp_path / "policy.yaml", tmp_path / "mcp.json"
    policy.write_text(POLICY)
    program = {"command": sys.executable, "args": [str(PLAIN), str(log)], "isolation": "none"}
    servers.write_text(json.dumps({"mcpServers": {"plain": program}}))
    more = (f"POLICY_FILE={policy}", f"MCP_FILE={servers}")
    operator = {"Authorization": "Bearer op-token"}
    process, url = await asyncio.to_thread(start, tmp_path, *more)
    try:
        async with aiohttp.ClientSession() as http:
            await http.get(url + "/status", headers={"X-Device-Id": "d"})
            wanted = {"deviceId": "d", "scope": {"mcp": True}}
            approved = await http.post(url + "/pairing/approve", json=wanted, headers=operator)
            token = (await approved.json())["data"]["deviceToken"]
            headers = {"X-Device-Id": "d", "X-Device-Token": token, "Idempotency-Key": "k"}
            command: Any = {
                "payload": {"capabilityId": "mcp.plain", "action": "wait", "args": {"n": 1}}
            }

            async def post() -> tuple[int, bytes, bool]:
                path = f"{url}/command/mcp"
                async with http.post(path, json=command, headers=headers) as answer:
                    replayed = "Idempotent-Replayed" in answer.headers
                    return answer.status, await answer.read(), replayed

            async with asyncio.timeout(60):
                while await listed(url, http, headers) != 403:  # a slow machine starts it slowly
                    await asyncio.sleep(0.1)
                under_way = asyncio.create_task(post())
                while not executed(log):
                    assert not under_way.done(), under_way.result()
                    await asyncio.sleep(0.02)
            process.send_signal(signal.SIGKILL)
            await asyncio.to_thread(process.wait)
            with pytest.raises(aiohttp.ClientError):
                await under_way
            process, url = await asyncio.to_thread(start, tmp_path, *more)
            answers = await asyncio.gather(*(post() for _ in range(8)))
            assert {(status, body) for status, body, _ in answers} == {answers[0][:2]}
            told = json.loads(answers[0][1])
            assert answers[0][0] == 500
            assert told["error"]["outcome"] == Outcome.MAY_HAVE_EXECUTED
            assert await post() == (500, answers[0][1], True)
            command["payload"]["args"] = {"n": 2}
            assert (await post())[0] == 409
            assert executed(log) == 1
    finally:
        process.kill()
        await asyncio.to_thread(process.wait)


async def test_who_lost_the_right_to_a_command_does_not_go_on_with_it(door: Door) -> None:
    door.gate.add("pay", Level.SIGN, Counter())
    device = await door.pair(**ALL)
    assert (await device.tool("pay", key="k")).status == 202
    less = await door.pair(tools="read")
    again = await less.tool("pay", key="k")
    assert (again.status, again.code) == (403, ErrorCode.PERMISSION_DENIED)
