"""A policy comes into force by a commit, then a swap in memory; file, row and memory agree."""

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.pipelines import Rig, open_rig
from tests.support.policies import PARSE, PolicyJournal, open_policy
from toolgate.core.errors import Refused, Unavailable
from toolgate.evidence.audit import AuditEntry, AuditQuery
from toolgate.evidence.evidence import STREAM
from toolgate.journal.journal import Event, Operation, Row
from toolgate.policy import file as policy_file
from toolgate.policy.file import PolicyFile, default_policy_text, load_policy
from toolgate.policy.model import Policy
from toolgate.policy.records import ACTION, PolicyRecords

OLD = "version: 1\nrules:\n  - {id: a, allow: kv.get, match: any, reason: It only reads}\n"
NEW = OLD.replace("kv.get", "[kv.get, kv.set]")
NEWER = OLD.replace("kv.get", "kv.list")


class Killed(BaseException):
    """The process ends here."""


def version_of(text: str) -> str:
    return load_policy(text, parse_shell=PARSE).version


async def assert_agreed(journal: PolicyJournal, file: PolicyFile, text: str) -> None:
    row = await journal.policy_row()
    assert (file.text, file.current.version) == (text, version_of(text))
    assert (file.row_version, row.value.decode()) == (row.version, version_of(text))


async def open_in(rig: Rig, path: Path) -> PolicyFile:
    records = PolicyRecords(rig.journal, rig.evidence, rig.audit)
    return await PolicyFile.open(path, parse_shell=PARSE, records=records)


async def changes_in(rig: Rig) -> list[tuple[str, str]]:
    """(previous, version) of each change, oldest first; the evidence has as many records."""
    rows = (await rig.audit.query(AuditQuery(action=ACTION))).items
    kinds = [event.type for event in await rig.journal.read(STREAM)]
    assert kinds.count("policy") == len(rows)
    return [(row.metadata["previous"], row.metadata["version"]) for row in reversed(rows)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "etc" / "policy.yaml"
    made.parent.mkdir()
    made.write_text(OLD)
    return made


async def test_each_policy_that_comes_into_force_has_one_record_and_one_audit_row(
    tmp_path: Path, path: Path
) -> None:
    old, new, newer = (version_of(text) for text in (OLD, NEW, NEWER))
    async with open_rig(tmp_path / "home") as rig:
        file = await open_in(rig, path)
        assert file.row_version == 1
        assert not await file.refresh()
        path.write_text(NEW)
        assert await file.refresh()
        await file.replace(OLD)
        assert file.row_version == 3
    path.write_text(NEWER)  # while nothing runs
    async with open_rig(tmp_path / "home") as rig:
        assert (await open_in(rig, path)).row_version == 4
        assert (await open_in(rig, path)).row_version == 4
        expected = [("", old), (old, new), (new, old), (old, newer)]
        assert await changes_in(rig) == expected


async def test_a_comment_comes_into_force_without_another_row_version(path: Path) -> None:
    journal = PolicyJournal()
    file = await open_policy(path, journal=journal)
    commented = f"# ours\n{OLD}"
    path.write_text(commented)
    assert not await file.refresh()
    await assert_agreed(journal, file, commented)
    assert file.row_version == 1


class Observed(PolicyJournal):
    """Notes the policy in force at the moment of each commit, and when others run next."""

    def __init__(self) -> None:
        super().__init__()
        self.in_force: Callable[[], tuple[str, int]] = lambda: ("", 0)
        self.seen: list[tuple[str, int]] = []

    async def commit(self, *operations: Operation, durable: bool = True) -> list[Event]:
        self.seen.append(self.in_force())
        committed = await super().commit(*operations, durable=durable)
        asyncio.get_running_loop().call_soon(lambda: self.seen.append(self.in_force()))
        return committed


@pytest.mark.parametrize("way", ["refresh", "replace"])
async def test_a_policy_is_current_after_its_commit_and_before_any_other_task_runs(
    path: Path, way: str
) -> None:
    journal = Observed()
    file = await open_policy(path, journal=journal)
    await asyncio.sleep(0)
    journal.seen.clear()
    journal.in_force = lambda: (file.current.version, file.row_version)
    if way == "replace":
        await file.replace(NEW)
    else:
        path.write_text(NEW)
        await file.refresh()
    await asyncio.sleep(0)
    assert journal.seen == [(version_of(OLD), 1), (version_of(NEW), 2)]


async def test_a_file_that_cannot_be_put_on_record_is_an_error_until_it_can(path: Path) -> None:
    journal = PolicyJournal()
    file = await open_policy(path, journal=journal)
    path.write_text(NEW)
    journal.is_down = True
    for _ in range(3):
        await file.look()
        assert (file.current.version, file.row_version) == (version_of(OLD), 1)
    assert "the disk is full" in file.error
    journal.is_down = False
    await file.look()
    await assert_agreed(journal, file, NEW)
    assert file.error == ""


async def test_watching_goes_on_after_a_fault_of_the_journal(path: Path) -> None:
    journal = PolicyJournal()
    file = await open_policy(path, journal=journal)
    journal.before = ValueError("a fault of ours")
    path.write_text(NEW)
    watching = asyncio.create_task(file.watch(poll_seconds=0.001))
    async with asyncio.timeout(10):
        while file.current.version != version_of(NEW):
            await asyncio.sleep(0.01)
    watching.cancel()
    await assert_agreed(journal, file, NEW)


async def test_a_start_that_cannot_put_its_policy_on_record_fails(path: Path) -> None:
    journal = PolicyJournal()
    journal.is_down = True
    with pytest.raises(Unavailable):
        await open_policy(path, journal=journal)


async def test_operations_of_a_replacement_are_in_the_commit_that_activates_it(path: Path) -> None:
    journal = PolicyJournal()
    file = await open_policy(path, journal=journal)

    def who(policy: Policy) -> list[Operation]:
        metadata = {"version": policy.version}
        entry = AuditEntry(action="policy.changed", actor="operator", metadata=metadata)
        return journal.audit.prepare(entry)

    journal.is_down = True
    with pytest.raises(Unavailable):
        await file.replace(NEW, also=who)
    assert path.read_text() == OLD
    await assert_agreed(journal, file, OLD)
    assert not (await journal.audit.query(AuditQuery(action="policy.changed"))).items

    journal.is_down = False
    for row_version in (2, 2):  # the same again: no new version, but who asked for it
        await file.replace(NEW, also=who)
        assert file.row_version == row_version
    rows = (await journal.audit.query(AuditQuery(action="policy.changed"))).items
    assert [row.metadata["version"] for row in rows] == [version_of(NEW)] * 2


@pytest.mark.parametrize("text", [OLD, None], ids=["a file", "the shipped policy"])
async def test_a_commit_that_was_made_though_it_failed_is_settled_by_the_next_look(
    path: Path, text: str | None
) -> None:
    """As where a database went away between the commit and its answer: the file wins."""
    journal = PolicyJournal()
    if text is None:
        path.unlink()
    file = await open_policy(path if text else None, journal=journal, keep_at=path)
    journal.after = Unavailable("the connection was lost")
    with pytest.raises(Unavailable):
        await file.replace(NEW)
    assert (await journal.policy_row()).value.decode() == version_of(NEW)
    for _ in range(2):
        await file.look()
    await assert_agreed(journal, file, text or default_policy_text())
    assert file.row_version == 3


async def test_memory_follows_the_commit_though_who_asked_for_it_is_gone(path: Path) -> None:
    class Slow(PolicyJournal):
        async def commit(self, *operations: Operation, durable: bool = True) -> list[Event]:
            committed = await super().commit(*operations, durable=durable)
            busy.set()
            await answered.wait()
            return committed

    journal, busy, answered = Slow(), asyncio.Event(), asyncio.Event()
    answered.set()
    file = await open_policy(path, journal=journal)
    answered.clear()
    busy.clear()
    replacing = asyncio.create_task(file.replace(NEW))
    await busy.wait()
    replacing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await replacing
    answered.set()
    await file.refresh()  # comes after the replacement
    await assert_agreed(journal, file, NEW)
    assert path.read_text() == NEW


async def test_a_file_that_cannot_be_replaced_after_the_commit_is_taken_back(path: Path) -> None:
    class Unplugged(PolicyJournal):
        async def commit(self, *operations: Operation, durable: bool = True) -> list[Event]:
            committed = await super().commit(*operations, durable=durable)
            shutil.rmtree(path.parent, ignore_errors=True)
            return committed

    file = await open_policy(path, journal=(journal := Unplugged()))
    path.parent.mkdir()
    path.write_text(OLD)
    with pytest.raises(Refused):
        await file.replace(NEW)
    await assert_agreed(journal, file, OLD)
    assert await journal.versions() == [version_of(text) for text in (OLD, NEW, OLD)]
    path.parent.mkdir(exist_ok=True)
    path.write_text(OLD)
    await file.refresh()
    await assert_agreed(journal, file, OLD)


async def test_what_cannot_be_taken_back_is_settled_by_a_later_look(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = PolicyJournal()
    file = await open_policy(path, journal=journal)

    def fail(*_: object) -> None:
        journal.is_down = True
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(policy_file, "_put", fail)
    with pytest.raises(Refused):
        await file.replace(NEW)
    assert "the disk is full" in file.error
    await assert_agreed(journal, file, NEW)
    journal.is_down = False
    await file.refresh()
    await assert_agreed(journal, file, OLD)
    assert file.error == ""


@pytest.mark.parametrize("shipped", [False, True])
@pytest.mark.parametrize(
    ("point", "wins"),
    [("before the commit", OLD), ("before the file", OLD), ("before its directory", NEW)],
)
async def test_a_start_after_a_kill_puts_what_the_file_says_in_force_and_on_record(
    path: Path, monkeypatch: pytest.MonkeyPatch, point: str, wins: str, shipped: bool
) -> None:
    journal = PolicyJournal()
    if shipped:
        path.unlink()
    given = None if shipped else path
    file = await open_policy(given, journal=journal, keep_at=path)

    def kill(_: Path) -> None:
        raise Killed

    if point == "before the commit":
        journal.before = Killed()
    elif point == "before the file":
        journal.after = Killed()
    else:
        monkeypatch.setattr(policy_file, "sync_directory", kill)
    with pytest.raises(Killed):
        await file.replace(NEW)

    again = await open_policy(given, journal=journal, keep_at=path)
    await assert_agreed(journal, again, default_policy_text() if shipped and wins == OLD else wins)
    assert path.exists() == (not shipped or wins == NEW)


async def test_a_row_that_another_process_changed_meanwhile_is_a_refusal_and_tried_again(
    path: Path,
) -> None:
    class Overtaken(PolicyJournal):
        async def get(self, collection: str, key: str) -> Row | None:
            row = await super().get(collection, key)
            if overtake:
                other = overtake.pop()
                other_file = path.with_name("other.yaml")
                other_file.write_text(other)
                await open_policy(other_file, journal=self)
            return row

    overtake: list[str] = []
    file = await open_policy(path, journal=(journal := Overtaken()))
    path.write_text(NEW)
    overtake.append(NEWER)
    assert not await file.refresh()
    assert file.error
    assert await file.refresh()
    await assert_agreed(journal, file, NEW)
