"""What `/status` can say of each target, against runners that live, lie and are dead."""

import pytest

from toolgate.adapters.bus_local import LocalBus
from toolgate.adapters.docker_runner import DockerRunners
from toolgate.adapters.sandbox_sessions import Sessions
from toolgate.domain.errors import Unavailable
from toolgate.domain.targets import LOCAL_DEFAULT, Change
from toolgate.domain.tools import Caller, ToolRequest
from toolgate.execution.target_health import Condition, TargetHealths
from toolgate.execution.targets import Targets
from toolgate.testing.clock import FakeClock
from toolgate.testing.journal import MemoryJournal
from toolgate.testing.runner import FakeRunner, whole
from toolgate.testing.sandbox import FakeSandbox
from toolgate.testing.seal import PlainSeal

HEALTHY = {"ok": True, "service": "docker-runner", "backend": "bwrap", "usage": {"cpuPercent": 1}}
NOWHERE = "http://127.0.0.1:1/execute"


class Broken(FakeSandbox):
    async def check(self) -> None:
        raise Unavailable("missing here: bwrap")


class Parts:
    def __init__(self, sandbox: FakeSandbox | None = None) -> None:
        clock = FakeClock()
        journal = MemoryJournal(clock=clock, bus=LocalBus())
        self.targets = Targets(journal, clock=clock, seal=PlainSeal())
        self.runners = DockerRunners(clock=clock)
        self.sessions = Sessions(sandbox or FakeSandbox(), clock=clock)
        self.sessions.start_soon()
        self.healths = TargetHealths(
            self.targets,
            clock=clock,
            local=lambda _: self.sessions.health(),
            remote=self.runners.health,
            is_held_back=lambda target: self.runners.breaker(target).is_open,
        )

    async def add(self, target_id: str, url: str) -> None:
        await self.targets.upsert(target_id, Change("t_1", None, "docker-runner", url))

    async def conditions(self) -> dict[str, Condition]:
        return {each.target_id: each.condition for each in await self.healths.look()}

    async def close(self) -> None:
        await self.runners.close()
        await self.sessions.close()


@pytest.mark.requirement("000/targets/shape")
async def test_each_target_is_told_apart_from_the_others() -> None:
    parts = Parts()
    assert parts.healths.known() == []
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
            LOCAL_DEFAULT: Condition.HEALTHY,
            "well": Condition.HEALTHY,
            "ill": Condition.DEGRADED,
            "dead": Condition.OFFLINE,
            "blank": Condition.OFFLINE,
        }
        assert [asked.method for asked in well.asked] == ["GET"]
    known = {each.target_id: each for each in parts.healths.known()}
    assert known["well"].detail["backend"] == "bwrap"
    assert known["dead"].detail["reason"]
    await parts.close()


async def test_an_open_circuit_shows_at_once_without_another_look() -> None:
    parts = Parts()
    await parts.add("dead", NOWHERE)
    await parts.healths.look()
    engine = parts.runners.engine(await parts.targets.get("dead"))
    for _ in range(5):
        await engine.run(ToolRequest("1", "bash.exec", {"cmd": "true"}, Caller("t_1", "w_1")))
    known = {each.target_id: each.circuit_open for each in parts.healths.known()}
    assert known == {LOCAL_DEFAULT: False, "dead": True}
    await parts.close()


async def test_a_machine_without_a_sandbox_says_what_is_missing() -> None:
    parts = Parts(Broken())
    (local,) = await parts.healths.look()
    assert local.condition is Condition.OFFLINE
    assert "bwrap" in str(local.detail["reason"])
    await parts.close()
