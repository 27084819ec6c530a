"""Where the bytes of artifacts are, and that nobody else's go with them."""

import asyncio
import contextlib
import os
from pathlib import Path

import pytest

from tests.tasks.runtimes import memory_journal, until
from toolgate import settings as table
from toolgate.bootstrap.browser import browser_tasks
from toolgate.core.enums import TaskCode
from toolgate.core.errors import Damaged, Unavailable
from toolgate.core.random_ids import RandomIds
from toolgate.journal.disk_blobs import DiskBlobs
from toolgate.journal.journal import Event, Operation
from toolgate.journal.local_bus import LocalBus
from toolgate.tasks.artifacts import Artifacts
from toolgate.tasks.state import ARTIFACT_TTL_MS, TaskFailed
from toolgate.testing.clock import FakeClock
from toolgate.testing.gate import FakeGate
from toolgate.testing.journal import MemoryJournal


async def test_an_artifact_that_expires_takes_nothing_from_evidence_and_kept_files(
    tmp_path: Path,
) -> None:
    clock = FakeClock()
    kept = DiskBlobs(tmp_path / "blobs")  # as evidence and files have it
    settings = table.load({"TOOLGATE_HOME": str(tmp_path)})
    journal = memory_journal(clock)
    async with browser_tasks(
        settings,
        gate=FakeGate(journal=journal),
        journal=journal,
        bus=journal.bus,
        clock=clock,
        new_id=RandomIds(clock),
    ) as toolset:
        artifacts = toolset.runtime.artifacts
        digest = await kept.put(b"the same")
        mine = await artifacts.keep(b"the same", run_id="run_1", name="a", mime_type="text/plain")
        assert await artifacts.read(mine.artifact_id) == b"the same"
        clock.advance(ARTIFACT_TTL_MS)
        assert await artifacts.sweep() == 1
        assert await kept.get(digest) == b"the same"
    assert [file for file in (tmp_path / "blobs").rglob("*") if file.is_file()] == [
        tmp_path / "blobs" / digest[7:9] / digest[9:11] / digest[7:]
    ]


class SlowJournal(MemoryJournal):
    """Waits with each commit for as long as `gate` is shut."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(clock=clock, bus=LocalBus())
        self.gate = asyncio.Event()
        self.gate.set()
        self.asked = 0

    async def commit(self, *operations: Operation, durable: bool = True) -> list[Event]:
        self.asked += 1
        await self.gate.wait()
        return await super().commit(*operations, durable=durable)


async def test_content_that_is_kept_again_while_its_last_artifact_expires_stays(
    tmp_path: Path,
) -> None:
    clock = FakeClock()
    journal = SlowJournal(clock)
    artifacts = Artifacts(
        journal=journal, blobs=DiskBlobs(tmp_path), clock=clock, new_id=RandomIds(clock)
    )
    await artifacts.keep(b"x", run_id="run_1", name="a", mime_type="text/plain")
    clock.advance(ARTIFACT_TTL_MS)
    journal.gate.clear()
    sweeping = asyncio.create_task(artifacts.sweep())
    await until(lambda: journal.asked == 2)
    keeping = asyncio.create_task(
        artifacts.keep(b"x", run_id="run_2", name="a", mime_type="text/plain")
    )
    with contextlib.suppress(TimeoutError):  # unless it waits until the sweep is over
        await until(lambda: journal.asked == 3, within_s=0.2)
    journal.gate.set()
    await sweeping
    assert await artifacts.read((await keeping).artifact_id) == b"x"


async def test_an_artifact_whose_bytes_are_lost_is_no_longer_kept(tmp_path: Path) -> None:
    clock, blobs = FakeClock(), DiskBlobs(tmp_path)
    journal = memory_journal(clock)
    artifacts = Artifacts(journal=journal, blobs=blobs, clock=clock, new_id=RandomIds(clock))
    kept = await artifacts.keep(b"x", run_id="run_1", name="a", mime_type="text/plain")
    await blobs.delete(kept.digest)
    with pytest.raises(TaskFailed) as failed:
        await artifacts.read(kept.artifact_id)
    assert failed.value.code is TaskCode.ARTIFACT_EXPIRED


@pytest.mark.parametrize("mime_type", ["text/plain", "application/octet-stream"])
@pytest.mark.parametrize("offset", [0, 3, 9])
async def test_an_artifact_that_lost_some_of_its_bytes_is_said_to_be_damaged(
    tmp_path: Path, mime_type: str, offset: int
) -> None:
    clock, blobs = FakeClock(), DiskBlobs(tmp_path)
    journal = memory_journal(clock)
    artifacts = Artifacts(journal=journal, blobs=blobs, clock=clock, new_id=RandomIds(clock))
    kept = await artifacts.keep(b"0123456789", run_id="run_1", name="a", mime_type=mime_type)
    (file,) = [each for each in tmp_path.rglob("*") if each.is_file()]
    os.truncate(file, 4)
    with pytest.raises(Damaged):
        await artifacts.chunk(kept.artifact_id, offset=offset, length=100)


class StuckBlobs(DiskBlobs):
    """Cannot delete this one."""

    stuck = ""

    async def delete(self, digest: str) -> None:
        if digest == self.stuck:
            raise Unavailable("the disk is read-only")
        await super().delete(digest)


async def test_bytes_that_cannot_be_deleted_when_they_expire_are_deleted_later(
    tmp_path: Path,
) -> None:
    clock, blobs = FakeClock(), StuckBlobs(tmp_path)
    artifacts = Artifacts(
        journal=memory_journal(clock), blobs=blobs, clock=clock, new_id=RandomIds(clock)
    )
    kept = await artifacts.keep(b"private", run_id="run_1", name="a", mime_type="text/plain")
    await artifacts.keep(b"another", run_id="run_1", name="b", mime_type="text/plain")
    blobs.stuck = kept.digest
    clock.advance(ARTIFACT_TTL_MS)
    assert await artifacts.sweep() == 1  # the other one
    with pytest.raises(TaskFailed) as expired:
        await artifacts.get(kept.artifact_id)
    assert expired.value.code is TaskCode.ARTIFACT_EXPIRED
    blobs.stuck = ""
    assert await artifacts.sweep() == 1
    assert [file for file in tmp_path.rglob("*") if file.is_file()] == []


async def test_an_artifact_that_a_run_names_twice_ends_once(tmp_path: Path) -> None:
    clock = FakeClock()
    journal = memory_journal(clock)
    artifacts = Artifacts(
        journal=journal, blobs=DiskBlobs(tmp_path), clock=clock, new_id=RandomIds(clock)
    )
    kept = await artifacts.keep(b"x", run_id="run_1", name="a", mime_type="text/plain")
    ends = await artifacts.ended((kept.artifact_id, kept.artifact_id), at=clock.now_ms() + 7)
    await journal.commit(*ends)
    assert (await artifacts.get(kept.artifact_id)).ended_at == clock.now_ms() + 7
