"""Each policy that was in force, in the evidence and in the audit."""

import asyncio
from pathlib import Path

import pytest

from tests.support.pipelines import Rig, open_rig
from toolgate.evidence.audit import AuditQuery
from toolgate.evidence.evidence import STREAM
from toolgate.journal.journal import Event, Operation, Row
from toolgate.policy import records as policy_records
from toolgate.policy.file import load_policy
from toolgate.policy.model import ACTIVE_POLICY
from toolgate.policy.records import ACTION, PolicyRecords
from toolgate.policy.shell_parser import TreeSitterShellParser

STRICTER = load_policy("version: 1\nrules: []\n", parse_shell=TreeSitterShellParser())


def records_of(rig: Rig) -> PolicyRecords:
    return PolicyRecords(
        rig.journal, rig.evidence, rig.audit, current=lambda: rig.policies[ACTIVE_POLICY]
    )


async def versions(rig: Rig) -> list[tuple[str, str]]:
    """(previous, version) of each change, oldest first; the evidence tells of as many."""
    rows = (await rig.audit.query(AuditQuery(action=ACTION))).items
    kinds = [event.type for event in await rig.journal.read(STREAM)]
    assert kinds.count("policy") == len(rows)
    return [(row.metadata["previous"], row.metadata["version"]) for row in reversed(rows)]


async def test_a_policy_is_on_record_once_and_so_is_each_that_follows_it(tmp_path: Path) -> None:
    async with open_rig(tmp_path) as rig:
        first = rig.policies[ACTIVE_POLICY]
        for _ in range(2):
            await records_of(rig).note()
        rig.policies[ACTIVE_POLICY] = STRICTER
        await records_of(rig).note()
        rig.policies[ACTIVE_POLICY] = first
        await records_of(rig).note()
        a, b = first.version, STRICTER.version
        assert await versions(rig) == [("", a), (a, b), (b, a)]


async def test_a_policy_that_was_changed_while_nothing_ran_is_on_record(tmp_path: Path) -> None:
    async with open_rig(tmp_path) as rig:
        await records_of(rig).note()
        first = rig.policies[ACTIVE_POLICY]
    async with open_rig(tmp_path) as rig:
        rig.policies[ACTIVE_POLICY] = STRICTER
        await records_of(rig).note()
        assert await versions(rig) == [("", first.version), (first.version, STRICTER.version)]


async def test_a_change_is_written_down_as_it_comes(tmp_path: Path) -> None:
    async with open_rig(tmp_path) as rig, asyncio.timeout(10), asyncio.TaskGroup() as group:
        records = records_of(rig)
        await records.note()
        keeping = group.create_task(records.keep())
        rig.policies[ACTIVE_POLICY] = STRICTER
        records.changed(None)
        while len((await rig.audit.query(AuditQuery(action=ACTION))).items) < 2:
            await asyncio.sleep(0.01)
        keeping.cancel()
        assert len(await versions(rig)) == 2


async def test_a_policy_that_was_in_force_while_another_was_written_down_is_on_record_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_rig(tmp_path) as rig, asyncio.timeout(10), asyncio.TaskGroup() as group:
        records = records_of(rig)
        first = rig.policies[ACTIVE_POLICY]
        commit, disk, busy = rig.journal.commit, asyncio.Event(), asyncio.Event()

        async def slowly(*operations: Operation) -> list[Event]:
            busy.set()
            await disk.wait()
            return await commit(*operations)

        monkeypatch.setattr(rig.journal, "commit", slowly)
        noting = group.create_task(records.note())
        await busy.wait()
        for policy in (STRICTER, first):
            rig.policies[ACTIVE_POLICY] = policy
            records.changed(None)
        disk.set()
        await noting
        await records.note()
        a, b = first.version, STRICTER.version
        assert await versions(rig) == [("", a), (a, b), (b, a)]


async def test_a_change_is_written_down_though_something_unforeseen_was_in_the_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policy_records, "RETRY_S", 0.001)
    async with open_rig(tmp_path) as rig, asyncio.timeout(10):
        records = records_of(rig)
        await records.note()
        get, failures = rig.journal.get, [ValueError("a fault of ours")]

        async def failing(collection: str, key: str) -> Row | None:
            if failures:
                raise failures.pop()
            return await get(collection, key)

        monkeypatch.setattr(rig.journal, "get", failing)
        keeping = asyncio.create_task(records.keep())
        rig.policies[ACTIVE_POLICY] = STRICTER
        records.changed(None)
        while not keeping.done() and len(await versions(rig)) < 2:
            await asyncio.sleep(0.01)
        assert not keeping.done()
        keeping.cancel()
