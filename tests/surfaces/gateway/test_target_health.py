"""What `/status` says of the execution targets."""

import asyncio
from collections.abc import Mapping, Sequence

import pytest

from toolgate.contracts import gateway_v1 as wire
from toolgate.domain.targets import BUILT_IN, Change, Target, upsert
from toolgate.domain.tools import JsonValue
from toolgate.surfaces.gateway.target_health import FRESH_MS, TargetHealths
from toolgate.testing.clock import FakeClock

Status = wire.CapabilityStatus


def runner(name: str, *, enabled: bool = True) -> Target:
    endpoint = "http://127.0.0.1:1"
    made = Change(tenant="t", kind="docker-runner", endpoint=endpoint, enabled=enabled)
    return upsert(name, None, made, now_ms=0)


class Runners:
    """Targets whose health is as the test says."""

    def __init__(self, *targets: Target) -> None:
        self.targets = targets
        self.told: dict[str, Mapping[str, JsonValue]] = {}
        self.asked: list[str] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.clock = FakeClock()
        self.healths = TargetHealths(self.clock, self.list, self.probe)

    async def list(self) -> Sequence[Target]:
        return self.targets

    async def probe(self, target: Target) -> Mapping[str, JsonValue]:
        self.asked.append(target.id)
        await self.gate.wait()
        return self.told.get(target.id, {"ok": True, "circuitOpen": False})

    async def now(self) -> dict[str, wire.TargetHealth]:
        return {one.target_id: one for one in await self.healths.now()}


@pytest.mark.parametrize(
    ("told", "status"),
    [
        ({"ok": True, "circuitOpen": False}, Status.HEALTHY),
        ({"ok": True, "circuitOpen": True}, Status.DEGRADED),
        ({"ok": False, "circuitOpen": False}, Status.DEGRADED),
        ({"ok": False, "circuitOpen": True, "reason": "TimeoutError"}, Status.OFFLINE),
    ],
)
async def test_a_target_is_healthy_degraded_or_offline(
    told: Mapping[str, JsonValue], status: Status
) -> None:
    runners = Runners(runner("far"))
    runners.told["far"] = told
    found = (await runners.now())["far"]
    assert found.status is status
    assert found.circuit_open is told["circuitOpen"]
    assert found.error == told.get("reason", found.error)
    assert found.checked_at == runners.clock.now_ms()


async def test_this_machine_is_healthy_and_a_disabled_target_is_not_asked() -> None:
    runners = Runners(BUILT_IN, runner("off", enabled=False))
    found = await runners.now()
    assert {name: one.status for name, one in found.items()} == {BUILT_IN.id: Status.HEALTHY}
    assert runners.asked == []


async def test_only_the_first_waits_and_a_later_one_gets_what_is_known() -> None:
    runners = Runners(runner("far"))
    await asyncio.gather(runners.now(), runners.now())
    assert runners.asked == ["far"]
    runners.gate.clear()
    runners.told["far"] = {"ok": False, "reason": "TimeoutError"}
    runners.clock.advance(FRESH_MS)
    assert (await runners.now())["far"].status is Status.HEALTHY
    runners.gate.set()
    async with asyncio.timeout(5):
        while (await runners.now())["far"].status is not Status.OFFLINE:
            await asyncio.sleep(0)
    assert runners.asked == ["far", "far"]
    await runners.healths.stop()
