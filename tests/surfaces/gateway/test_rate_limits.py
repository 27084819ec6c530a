"""Rate limits, as a caller meets them."""

from pathlib import Path

import pytest

from tests.surfaces.gateway.conftest import Answered, Door, Paired, open_door
from toolgate.contracts.gateway_v1 import RATE_PER_MINUTE, ErrorCode
from toolgate.core.enums import Level
from toolgate.core.errors import Unavailable
from toolgate.journal.journal import Event, Operation
from toolgate.testing.clock import FakeClock
from toolgate.testing.gate import echo


@pytest.mark.requirement("002/rate-limits/default")
@pytest.mark.requirement("002/rate-limits/limit-header")
@pytest.mark.requirement("002/rate-limits/remaining-header")
@pytest.mark.requirement("002/rate-limits/reset-header")
@pytest.mark.requirement("002/rate-limits/retry-after")
@pytest.mark.requirement("002/rate-limits/retry-after-minimum")
@pytest.mark.requirement("002/codes/rate-limited")
async def test_sixty_commands_a_minute_and_then_429(frozen: Door) -> None:
    assert isinstance(frozen.clock, FakeClock)
    device = await frozen.pair()
    answers = [await device.tool("echo", {"text": "x"}) for _ in range(RATE_PER_MINUTE)]
    assert {answer.status for answer in answers} == {200}
    assert {answer.headers["X-RateLimit-Limit"] for answer in answers} == {"60"}
    left = [int(answer.headers["X-RateLimit-Remaining"]) for answer in answers]
    assert left == list(range(59, -1, -1))
    assert int(answers[-1].headers["X-RateLimit-Reset"]) == 60
    refused = await device.tool("echo", {"text": "x"})
    assert (refused.status, refused.code) == (429, ErrorCode.RATE_LIMITED)
    assert refused.headers["X-RateLimit-Remaining"] == "0"
    wait = int(refused.headers["Retry-After"])
    assert wait >= 1
    assert len(frozen.gate.ran) == 60
    frozen.clock.advance(wait * 1000)
    assert (await device.tool("echo", {"text": "x"})).status == 200
    (row,) = await frozen.audit_rows(action="command.tool", decision="deny")
    assert row.metadata["code"] == ErrorCode.RATE_LIMITED


@pytest.mark.requirement("002/rate-limits/per-device")
async def test_one_devices_commands_cost_another_nothing() -> None:
    async with open_door(clock=FakeClock(), rate=1) as door:
        mine, theirs = await door.pair("mine"), await door.pair("theirs")
        assert (await mine.tool("echo")).status == 200
        assert (await mine.tool("echo")).status == 429
        assert (await theirs.tool("echo")).status == 200


async def test_a_body_that_cannot_be_read_costs_as_much_as_one_that_can() -> None:
    async with open_door(clock=FakeClock(), rate=2) as door:
        device = await door.pair()
        for _ in range(2):
            answer = await door.ask("POST", "/command/tool", data=b"{", headers=device.headers)
            assert answer.status == 400
            assert "X-RateLimit-Remaining" in answer.headers
        assert (await device.tool("echo")).status == 429


async def test_what_was_used_up_is_used_up_after_a_restart(tmp_path: Path) -> None:
    clock = FakeClock()
    async with open_door(home=tmp_path, clock=clock, rate=2) as door:
        device = await door.pair()
        for _ in range(2):
            assert (await device.tool("echo")).status == 200
    async with open_door(home=tmp_path, clock=clock, rate=2) as door:
        again = Paired(door, device.device_id, device.token)
        assert (await again.tool("echo")).status == 429


async def test_what_was_used_up_of_a_capability_is_used_up_after_a_restart(tmp_path: Path) -> None:
    clock = FakeClock()
    terms = {"capabilityId": "echo", "scope": "test", "level": "read", "rateLimit": 1}
    async with open_door(home=tmp_path, clock=clock) as door:
        await door.ask("POST", "/capabilities/register", body=terms, operator=True)
        device = await door.pair()
        assert (await device.tool("echo")).status == 200
    async with open_door(home=tmp_path, clock=clock) as door:
        again = Paired(door, device.device_id, device.token)
        assert (await again.tool("echo")).status == 429


@pytest.mark.requirement("002/rate-limits/per-capability")
@pytest.mark.requirement("002/capabilities/rate-limit")
async def test_a_capabilitys_limit_counts_apart_and_for_everyone(frozen: Door) -> None:
    await frozen.ask(
        "POST",
        "/capabilities/register",
        body={"capabilityId": "echo", "scope": "test", "level": "read", "rateLimit": 2},
        operator=True,
    )
    mine, theirs = await frozen.pair("mine"), await frozen.pair("theirs")
    assert (await mine.tool("echo")).status == 200
    last = await theirs.tool("echo")
    assert last.status == 200
    assert last.headers["X-RateLimit-Remaining"] == "59"
    refused = await mine.tool("echo")
    assert (refused.status, refused.code) == (429, ErrorCode.RATE_LIMITED)
    assert int(refused.headers["Retry-After"]) >= 1


async def test_a_capabilitys_limit_counts_each_call_of_a_command(frozen: Door) -> None:
    for capability, limit in (("echo", 3), ("other", 1)):
        frozen.gate.add(capability, Level.READ, echo)
        terms = {"capabilityId": capability, "scope": "test", "level": "read", "rateLimit": limit}
        await frozen.ask("POST", "/capabilities/register", body=terms, operator=True)
    device = await frozen.pair()

    async def call(*names: str) -> Answered:
        calls = [{"id": str(n), "name": name, "arguments": {}} for n, name in enumerate(names)]
        return await device.post("/command/tool", {"payload": {"toolCalls": calls}})

    too_many = await call("echo", "other", "other")
    assert (too_many.status, too_many.code) == (429, ErrorCode.RATE_LIMITED)
    assert frozen.gate.ran == []
    assert (await call("echo", "echo")).status == 200
    assert (await call("echo", "echo")).status == 429
    assert (await call("echo", "other")).status == 200  # what was refused cost them nothing
    assert (await call("other")).status == 429


@pytest.mark.parametrize("tool", ["echo", "pay"])
async def test_a_command_that_the_disk_refuses_costs_nothing(
    tool: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def full(*_: Operation, durable: bool = True) -> list[Event]:
        raise Unavailable("disk full")

    async with open_door(clock=FakeClock(), rate=1) as door:
        door.gate.add("pay", Level.SIGN, echo)
        device = await door.pair(tools="sign")
        with monkeypatch.context() as patched:
            patched.setattr(door.journal, "commit", full)
            refused = await device.tool(tool, key="k")
        assert (refused.status, refused.code) == (503, ErrorCode.UNAVAILABLE)
        assert refused.headers["X-RateLimit-Remaining"] == "1"
        assert (await device.tool(tool, key="k")).status in (200, 202)
        assert (await device.tool(tool, key="k-2")).status == 429


@pytest.mark.parametrize("window_ms", [2**63 - 1, 366 * 24 * 3600 * 1000])
async def test_a_limit_that_can_be_registered_can_be_counted(
    tmp_path: Path, window_ms: int
) -> None:
    async with open_door(home=tmp_path) as door:
        device = await door.pair()
        terms = {"capabilityId": "echo", "scope": "test", "level": "read"}
        limit = {"limit": 1, "windowMs": window_ms}
        registered = await door.ask(
            "POST", "/capabilities/register", body={**terms, "rateLimit": limit}, operator=True
        )
        assert registered.status == (200 if window_ms < 2**60 else 400)
        assert (await device.tool("echo")).status == 200
        if registered.status == 200:
            assert (await device.tool("echo")).status == 429
