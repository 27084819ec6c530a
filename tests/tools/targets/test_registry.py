"""Targets as an installation keeps them, and the engine that runs calls on them."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from tests.support.seal import PlainSeal
from toolgate.core.enums import Outcome
from toolgate.core.errors import NotFound, Refused
from toolgate.core.tools import Caller, ToolOutput, ToolRequest
from toolgate.journal.journal import Event, Operation
from toolgate.journal.local_bus import LocalBus
from toolgate.testing.clock import FakeClock
from toolgate.testing.journal import MemoryJournal
from toolgate.tools.engine import Update, no_update
from toolgate.tools.targets.registry import TargetEngine, Targets, public, tokens
from toolgate.tools.targets.targets import LOCAL_DEFAULT, Change, Target

RUNNER = Change("t_1", "w_1", "docker-runner", "http://127.0.0.1:1/execute", "secret-token")


@pytest.fixture
def targets() -> Targets:
    clock = FakeClock()
    return Targets(MemoryJournal(clock=clock, bus=LocalBus()), clock=clock, seal=PlainSeal())


class Recorder:
    def __init__(self, name: str) -> None:
        self.ref = name
        self.calls: list[ToolRequest] = []

    async def run(self, request: ToolRequest, *, update: Update = no_update) -> ToolOutput:
        self.calls.append(request)
        return ToolOutput(0, stdout=self.ref)


@pytest.mark.requirement("000/targets/shape")
@pytest.mark.requirement("000/targets/token-write-only")
async def test_reading_shows_that_there_is_a_token_and_never_the_token(targets: Targets) -> None:
    made = await targets.upsert("a", RUNNER)
    shown = public(await targets.get("a"))
    assert shown == {
        "targetId": "a",
        "tenantId": "t_1",
        "workspaceId": "w_1",
        "kind": "docker-runner",
        "endpoint": "http://127.0.0.1:1/execute",
        "isDefault": False,
        "enabled": True,
        "config": {},
        "version": 1,
        "updatedAt": made.updated_at,
        "hasAuthToken": True,
    }
    assert list(tokens(await targets.list())) == ["secret-token"]


async def test_targets_are_listed_and_deleted(targets: Targets) -> None:
    await targets.upsert("a", RUNNER)
    await targets.upsert("b", Change("t_2", kind="local-host"))
    assert [each.id for each in await targets.list()] == [LOCAL_DEFAULT, "a", "b"]
    assert [each.id for each in await targets.list(tenant="t_1")] == [LOCAL_DEFAULT, "a"]
    await targets.delete("a")
    with pytest.raises(NotFound):
        await targets.get("a")
    with pytest.raises(NotFound):
        await targets.delete("a")
    with pytest.raises(Refused):
        await targets.delete(LOCAL_DEFAULT)
    assert (await targets.get(LOCAL_DEFAULT)).enabled


async def test_one_default_stays_when_many_are_set_at_once(targets: Targets) -> None:
    await asyncio.gather(
        *(
            targets.upsert(f"a{n}", Change("t_1", "w_1", "local-host", is_default=True))
            for n in range(8)
        )
    )
    assert sum(each.is_default for each in await targets.list()) == 1


class Meanwhile(MemoryJournal):
    """Something else happens just before a change of more than one row is written."""

    happens: Callable[[], Awaitable[object]] | None = None

    async def commit(self, *operations: Operation, durable: bool = True) -> list[Event]:
        if self.happens is not None and len(operations) > 1:
            happens, self.happens = self.happens, None
            await happens()
        return await super().commit(*operations, durable=durable)


async def test_a_target_that_is_deleted_or_changed_while_another_becomes_the_default_stays_so() -> (
    None
):
    clock = FakeClock()
    journal = Meanwhile(clock=clock, bus=LocalBus())
    targets, elsewhere = (Targets(journal, clock=clock, seal=PlainSeal()) for _ in range(2))
    first = Change("t_1", "w_1", "local-host", is_default=True)
    await targets.upsert("a", first)
    journal.happens = lambda: elsewhere.upsert("a", Change(auth_token="another"))
    await targets.upsert("b", first)
    changed = await targets.get("a")
    assert (changed.auth_token, changed.is_default) == ("another", False)
    journal.happens = lambda: elsewhere.delete("b")
    await targets.upsert("c", first)
    assert [each.id for each in await targets.list()] == [LOCAL_DEFAULT, "a", "c"]


async def test_upserts_that_meet_are_both_kept(targets: Targets) -> None:
    await targets.upsert("a", RUNNER)
    await asyncio.gather(
        targets.upsert("a", Change(enabled=False)), targets.upsert("a", Change(endpoint="http://y"))
    )
    after = await targets.get("a")
    assert (after.enabled, after.endpoint, after.version) == (False, "http://y", 3)


async def test_a_call_runs_on_the_target_that_was_chosen(targets: Targets) -> None:
    local, remote = Recorder("local"), Recorder("remote")
    asked_for: list[Target] = []

    def engine_of(target: Target) -> Recorder:
        asked_for.append(target)
        return remote

    engine = TargetEngine(targets, local=local, remote=engine_of, agents={"coder": "a"})
    await targets.upsert("a", RUNNER)
    caller = Caller("t_1", "w_1")
    assert (await engine.run(ToolRequest("1", "bash.exec", {}, caller))).stdout == "local"
    named = ToolRequest("2", "bash.exec", {}, caller, target_id="a")
    assert (await engine.run(named)).stdout == "remote"
    by_agent = ToolRequest("3", "bash.exec", {}, Caller("t_1", "w_1", agent="coder"))
    assert (await engine.run(by_agent)).stdout == "remote"
    assert [target.auth_token for target in asked_for] == ["secret-token"] * 2


async def test_the_place_of_a_call_changes_with_the_target_that_would_be_chosen(
    targets: Targets,
) -> None:
    engine = TargetEngine(targets, local=Recorder("local"), remote=lambda _: Recorder("remote"))
    asked = ToolRequest("1", "bash.exec", {}, Caller("t_1", "w_1"))
    at_first = await engine.place(asked)
    await targets.upsert("a", RUNNER)
    assert await engine.place(asked) == at_first
    await targets.upsert("a", Change(is_default=True))
    by_default = await engine.place(asked)
    await targets.upsert("a", Change(auth_token="another"))
    assert await engine.place(asked) == by_default
    await targets.upsert("a", Change(endpoint="http://elsewhere"))
    moved = await engine.place(asked)
    await targets.upsert("a", Change(enabled=False))
    assert len({at_first, by_default, moved, await engine.place(asked)}) == 4


async def test_the_place_of_a_call_is_where_its_runner_is_wherever_that_is_said(
    targets: Targets,
) -> None:
    engine = TargetEngine(targets, local=Recorder("local"), remote=lambda _: Recorder("remote"))
    asked = ToolRequest("1", "bash.exec", {}, Caller("t_1", "w_1"), target_id="a")
    await targets.upsert("a", RUNNER)
    await targets.upsert("a", Change(endpoint="", config={"endpoint": "http://here"}))
    at_first = await engine.place(asked)
    await targets.upsert("a", Change(config={"endpoint": "http://elsewhere"}))
    moved = await engine.place(asked)
    assert moved != at_first
    await targets.upsert("a", Change(endpoint="http://elsewhere", config={}))
    assert await engine.place(asked) == moved


async def test_a_refused_target_is_a_denial_before_any_traffic(targets: Targets) -> None:
    local, remote = Recorder("local"), Recorder("remote")
    engine = TargetEngine(targets, local=local, remote=lambda _: remote)
    await targets.upsert("a", RUNNER)
    await targets.upsert("a", Change(enabled=False))
    for name, tenant in (("a", "t_1"), ("nowhere", "t_1"), ("a", "t_2")):
        output = await engine.run(ToolRequest("1", "x", {}, Caller(tenant, "w_1"), target_id=name))
        assert isinstance(output.data, dict)
        error = output.data["error"]
        assert isinstance(error, dict)
        assert error["code"] == "POLICY_DENIED"
        assert output.outcome is Outcome.NOT_STARTED
    assert local.calls == remote.calls == []
