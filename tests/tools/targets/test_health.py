"""What `/status` can say of each target, against runners that live, lie and are dead."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from tests.support.runner import FakeRunner, whole
from tests.support.sandbox import FakeSandbox
from tests.support.seal import PlainSeal
from toolgate.core.enums import HealthStatus
from toolgate.core.errors import Unavailable
from toolgate.core.tools import Caller, JsonValue, ToolRequest
from toolgate.journal.local_bus import LocalBus
from toolgate.sandbox.sessions import Sessions
from toolgate.testing.clock import FakeClock
from toolgate.testing.journal import MemoryJournal
from toolgate.tools.engines.remote_runner import DockerRunners
from toolgate.tools.targets.health import FRESH_MS, TargetHealths
from toolgate.tools.targets.registry import Targets
from toolgate.tools.targets.targets import BUILT_IN, LOCAL_DEFAULT, Change, Target

HEALTHY = {"ok": True, "service": "docker-runner", "backend": "bwrap", "usage": {"cpuPercent": 1}}
NOWHERE = "http://127.0.0.1:1/execute"


class Broken(FakeSandbox):
    async def check(self) -> None:
        raise Unavailable("missing here: bwrap")


class Parts:
    def __init__(self, sandbox: FakeSandbox | None = None) -> None:
        clock = self.clock = FakeClock()
        journal = MemoryJournal(clock=clock, bus=LocalBus())
        self.targets = Targets(journal, clock=clock, seal=PlainSeal())
        self.runners = DockerRunners(clock=clock)
        self.sessions = Sessions(sandbox or FakeSandbox(), clock=clock)
        self.sessions.start_soon()
        self.healths = TargetHealths(
            self.targets.list,
            clock=clock,
            local=lambda _: self.sessions.health(),
            remote=self.runners.health,
            is_held_back=lambda target: self.runners.breaker(target).is_open,
        )

    async def add(self, target_id: str, url: str) -> None:
        await self.targets.upsert(target_id, Change("t_1", None, "docker-runner", url))

    async def conditions(self) -> dict[str, HealthStatus]:
        return {each.target_id: each.condition for each in await self.healths.now()}

    async def close(self) -> None:
        await self.runners.close()
        await self.sessions.close()


@pytest.mark.requirement("000/targets/shape")
async def test_each_target_is_told_apart_from_the_others() -> None:
    parts = Parts()
    async with (
        FakeRunner(whole(HEALTHY)) as well,
        FakeRunner(whole({"ok": False, "backend": "x"})) as ill,
    ):
        await parts.add("well", well.url)
        await parts.add("ill", ill.url)
        await parts.add("dead", NOWHERE)
        await parts.add("blank", "")
        await parts.add("off", NOWHERE)
        await parts.targets.upsert("off", Change(enabled=False))
        assert await parts.conditions() == {
            LOCAL_DEFAULT: HealthStatus.HEALTHY,
            "well": HealthStatus.HEALTHY,
            "ill": HealthStatus.DEGRADED,
            "dead": HealthStatus.OFFLINE,
            "blank": HealthStatus.OFFLINE,
        }
        known = {each.target_id: each for each in await parts.healths.now()}
        assert [asked.method for asked in well.asked] == ["GET"]
        assert known["well"].detail["backend"] == "bwrap"
        assert known["dead"].detail["reason"]
    await parts.close()


async def test_an_open_circuit_shows_at_once_without_another_look() -> None:
    parts = Parts()
    await parts.add("dead", NOWHERE)
    await parts.healths.now()
    engine = parts.runners.engine(await parts.targets.get("dead"))
    for _ in range(5):
        await engine.run(ToolRequest("1", "bash.exec", {"cmd": "true"}, Caller("t_1", "w_1")))
    known = {each.target_id: each.circuit_open for each in await parts.healths.now()}
    assert known == {LOCAL_DEFAULT: False, "dead": True}
    await parts.close()


async def test_a_machine_without_a_sandbox_says_what_is_missing() -> None:
    parts = Parts(Broken())
    (local,) = await parts.healths.now()
    assert local.condition is HealthStatus.OFFLINE
    assert "bwrap" in str(local.detail["reason"])
    await parts.close()


async def test_only_who_asks_first_waits_and_later_ones_get_what_is_known() -> None:
    answer, gate = {"ok": True}, asyncio.Event()
    gate.set()
    asked: list[str] = []
    clock = FakeClock()

    async def ask(target: Target) -> Mapping[str, JsonValue]:
        asked.append(target.id)
        await gate.wait()
        return answer

    async def only_this_machine() -> Sequence[Target]:
        return [BUILT_IN]

    healths = TargetHealths(
        only_this_machine, clock=clock, local=ask, remote=ask, is_held_back=lambda _: False
    )

    async def condition() -> HealthStatus:
        (health,) = await healths.now()
        return health.condition

    both = await asyncio.gather(condition(), condition())
    assert set(both) == {HealthStatus.HEALTHY}
    assert len(asked) == 1
    gate.clear()
    answer = {"ok": False}
    clock.advance(FRESH_MS)
    assert await condition() is HealthStatus.HEALTHY
    gate.set()
    async with asyncio.timeout(5):
        while await condition() is not HealthStatus.OFFLINE:
            await asyncio.sleep(0)
    assert len(asked) == 2
    await healths.stop()


async def test_a_clock_that_is_set_back_does_not_keep_an_old_answer() -> None:
    class Corrected(FakeClock):
        def set_back(self, ms: int) -> None:
            self._now -= ms
            self._start -= ms

    asked: list[str] = []

    async def targets() -> Sequence[Target]:
        return [BUILT_IN]

    async def ask(target: Target) -> Mapping[str, JsonValue]:
        asked.append(target.id)
        return {"ok": True}

    clock = Corrected()
    healths = TargetHealths(
        targets, clock=clock, local=ask, remote=ask, is_held_back=lambda _: False
    )
    await healths.now()
    clock.set_back(3_600_000)
    clock.advance(FRESH_MS)
    await healths.now()
    async with asyncio.timeout(5):
        while len(asked) < 2:
            await asyncio.sleep(0)
    await healths.stop()


async def test_a_target_that_comes_while_the_others_are_asked_is_told_of_as_well() -> None:
    known, asked, listed, gate = [BUILT_IN], asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def ask(_: Target) -> Mapping[str, JsonValue]:
        asked.set()
        await gate.wait()
        return {"ok": True}

    async def targets() -> Sequence[Target]:
        listed.set()
        return list(known)

    healths = TargetHealths(
        targets, clock=FakeClock(), local=ask, remote=ask, is_held_back=lambda _: False
    )
    first = asyncio.create_task(healths.now())
    await asyncio.wait_for(asked.wait(), 5)
    known.append(replace(BUILT_IN, id="new"))
    listed.clear()
    second = asyncio.create_task(healths.now())
    await asyncio.wait_for(listed.wait(), 5)
    gate.set()
    assert [each.target_id for each in await first] == [LOCAL_DEFAULT]
    assert [each.target_id for each in await second] == [LOCAL_DEFAULT, "new"]
    await healths.stop()
