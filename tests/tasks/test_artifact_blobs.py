"""Where the bytes of artifacts are, and that nobody else's go with them."""

from pathlib import Path

from tests.tasks.runtimes import memory_journal
from toolgate import settings as table
from toolgate.adapters.blobs_disk import DiskBlobs
from toolgate.adapters.ids import RandomIds
from toolgate.bootstrap.browser import browser_tasks
from toolgate.domain.task_runs import ARTIFACT_TTL_MS
from toolgate.testing.clock import FakeClock


async def test_an_artifact_that_expires_takes_nothing_from_evidence_and_kept_files(
    tmp_path: Path,
) -> None:
    clock = FakeClock()
    kept = DiskBlobs(tmp_path / "blobs")  # as evidence and files have it
    settings = table.load({"TOOLGATE_HOME": str(tmp_path)})
    async with browser_tasks(
        settings,
        journal=memory_journal(clock),
        home=tmp_path,
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
