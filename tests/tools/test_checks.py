"""What a decision stands on is checked again in its commit: the policy, the caller, the tool."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from tests.support.pipelines import POLICY, Rig, open_rig
from toolgate.access.devices import Scope
from toolgate.access.registry import DEVICES, Registry
from toolgate.core.enums import Level
from toolgate.core.tools import Caller, ToolRequest
from toolgate.journal.journal import Event, Operation, Put
from toolgate.policy.file import load_policy
from toolgate.policy.model import ACTIVE_POLICY
from toolgate.policy.records import COLLECTION
from toolgate.policy.shell_parser import TreeSitterShellParser
from toolgate.tools.outcomes import Denied, Ran

STRICTER = load_policy(
    POLICY + "  - {id: stop, deny: count, match: any, reason: Closed}\n",
    parse_shell=TreeSitterShellParser(),
)


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    async with open_rig(tmp_path, knows_devices=True) as rig:
        await rig.journal.commit(Put(COLLECTION, ACTIVE_POLICY, b"1", expected=0))
        rig.policy_rows[ACTIVE_POLICY] = 1
        yield rig


def call(device: str = "") -> ToolRequest:
    return ToolRequest("r1", "count", {}, Caller(device=device, level=Level.WRITE))


def before_the_commit(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, change: Callable[[], Awaitable[None]]
) -> None:
    """Make a change after a call was decided and before its commit."""
    commit = rig.journal.commit

    async def late(*operations: Operation, durable: bool = True) -> list[Event]:
        monkeypatch.setattr(rig.journal, "commit", commit)
        await change()
        return await commit(*operations, durable=durable)

    monkeypatch.setattr(rig.journal, "commit", late)


async def test_a_policy_that_is_activated_before_the_commit_decides(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def activate() -> None:
        await rig.journal.commit(Put(COLLECTION, ACTIVE_POLICY, b"2", expected=1))
        rig.policies[ACTIVE_POLICY] = STRICTER
        rig.policy_rows[ACTIVE_POLICY] = 2

    before_the_commit(rig, monkeypatch, activate)
    answer = await rig.run(call())
    assert isinstance(answer, Denied)
    assert (answer.rule_id, rig.engine.runs["count"]) == ("stop", 0)


async def test_a_policy_that_another_process_has_activated_is_waited_for(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The row is there before this process has read the policy."""

    async def activate() -> None:
        await rig.journal.commit(Put(COLLECTION, ACTIVE_POLICY, b"2", expected=1))

        def learn() -> None:
            rig.policies[ACTIVE_POLICY] = STRICTER
            rig.policy_rows[ACTIVE_POLICY] = 2

        asyncio.get_running_loop().call_later(0.05, learn)

    before_the_commit(rig, monkeypatch, activate)
    answer = await rig.run(call())
    assert isinstance(answer, Denied)
    assert (answer.rule_id, rig.engine.runs["count"]) == ("stop", 0)


async def registry_with(rig: Rig, device: str) -> Registry:
    await rig.registry.pair(device, Scope(tools=Level.WRITE), public_key="")
    return rig.registry


async def test_a_caller_that_is_revoked_before_the_commit_is_refused(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = await registry_with(rig, "laptop")
    before_the_commit(rig, monkeypatch, lambda: registry.revoke("laptop"))
    answer = await rig.run(call("laptop"))
    assert isinstance(answer, Denied)
    assert (answer.rule_id, rig.engine.runs["count"]) == ("outside_scope", 0)


async def test_a_caller_whose_rights_are_replaced_before_the_commit_is_refused(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = await registry_with(rig, "laptop")

    async def replace() -> None:
        await registry.pair("laptop", Scope(), public_key="")

    before_the_commit(rig, monkeypatch, replace)
    answer = await rig.run(call("laptop"))
    assert isinstance(answer, Denied)
    assert (answer.rule_id, rig.engine.runs["count"]) == ("outside_scope", 0)


async def test_a_caller_with_the_same_rights_runs(rig: Rig) -> None:
    await registry_with(rig, "laptop")
    assert isinstance(await rig.run(call("laptop")), Ran)
    assert [row.key for row in await rig.journal.scan(DEVICES)] == ["laptop"]


async def test_a_gate_without_a_registry_checks_no_caller(tmp_path: Path) -> None:
    async with open_rig(tmp_path) as rig:
        assert isinstance(await rig.run(call("laptop")), Ran)
