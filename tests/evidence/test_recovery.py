"""The log taken up at a start: after a stop, a crash, a loss, or with another in its place."""

import logging
import shutil
from pathlib import Path

import pytest

from tests.evidence.evidence_home import check_home, checkpoint_of, fill, key_of, running, until
from toolgate.core.errors import Damaged
from toolgate.evidence.check import ClosedHome, check_log
from toolgate.evidence.log import Options
from toolgate.journal.sqlite.clean_shutdown_marker import witness_path


async def test_the_log_goes_on_after_a_restart_from_its_right_edge_alone(tmp_path: Path) -> None:
    notes = []
    total = 0
    for count in (1, 254, 1, 3, 300, 0, 260):
        async with running(tmp_path) as home:
            await fill(home, count)
        total += count
        notes.append((tmp_path / "evidence" / "checkpoint").read_text(encoding="utf-8"))
        assert checkpoint_of(tmp_path).size == total
        for note in notes:
            assert check_home(tmp_path, since=note) == []


async def test_what_a_crash_kept_from_being_published_is_published_at_the_next_start(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as home:
        await fill(home, 20)
    crashed = tmp_path / "crashed"
    async with running(tmp_path, options=Options(publish_every=60)) as home:
        await fill(home, 1)
        await until(lambda: checkpoint_of(tmp_path).size == 21)
        await fill(home, 500)
        shutil.copytree(tmp_path, crashed, ignore=shutil.ignore_patterns("crashed", "lock"))
    assert checkpoint_of(crashed).size == 21
    with ClosedHome(crashed) as closed:
        report = check_log(closed.log.root, key=key_of(crashed), journal=closed.records())
    assert report.problems == []
    assert report.notes == ["500 records are not yet under a checkpoint"]
    async with running(crashed):
        assert checkpoint_of(crashed).size == 521
    assert check_home(crashed) == []


async def test_lost_tiles_are_made_again_from_the_journal(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(tmp_path) as home:
        await fill(home, 700)
    before = checkpoint_of(tmp_path)
    shutil.rmtree(tmp_path / "evidence" / "tile" / "0")
    with caplog.at_level(logging.WARNING):
        async with running(tmp_path):
            pass
    assert "evidence_rebuilt" in caplog.text
    assert checkpoint_of(tmp_path) == before
    assert check_home(tmp_path) == []


async def test_a_log_that_lost_its_directory_is_published_again_whole(tmp_path: Path) -> None:
    async with running(tmp_path) as home:
        await fill(home, 300)
    before = checkpoint_of(tmp_path)
    shutil.rmtree(tmp_path / "evidence")
    async with running(tmp_path):
        pass
    assert checkpoint_of(tmp_path) == before
    assert check_home(tmp_path) == []


async def test_a_journal_with_fewer_records_than_were_signed_stops_the_start(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as home:
        await fill(home, 5)
    (tmp_path / "journal.db").unlink()
    witness_path(tmp_path / "journal.db").unlink()
    with pytest.raises(Damaged, match="vouches for 5"):
        async with running(tmp_path):
            pass


async def test_a_journal_with_other_records_than_were_signed_stops_the_start(
    tmp_path: Path,
) -> None:
    async with running(tmp_path / "a") as home:
        await fill(home, 5)
    async with running(tmp_path / "b") as home:
        home.clock.advance(1)
        await fill(home, 6)
    shutil.rmtree(tmp_path / "b" / "evidence")
    shutil.copytree(tmp_path / "a" / "evidence", tmp_path / "b" / "evidence")
    shutil.copytree(tmp_path / "a" / "keys", tmp_path / "b" / "keys", dirs_exist_ok=True)
    with pytest.raises(Damaged):
        async with running(tmp_path / "b"):
            pass
    shutil.rmtree(tmp_path / "b" / "evidence" / "tile")
    with pytest.raises(Damaged):
        async with running(tmp_path / "b"):
            pass


async def test_a_checkpoint_that_is_not_ours_stops_the_start(tmp_path: Path) -> None:
    async with running(tmp_path) as home:
        await fill(home, 5)
    shutil.rmtree(tmp_path / "keys")
    with pytest.raises(Damaged):
        async with running(tmp_path):
            pass
