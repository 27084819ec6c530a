"""The disk as a power cut leaves it: everything acknowledged is there, and the home starts."""

import random
import shutil
from pathlib import Path

import pytest

from tests.evidence.test_marks import grown, problems_of, started
from toolgate.evidence.audit import AuditEntry
from toolgate.evidence.check import ClosedHome
from toolgate.evidence.evidence import STREAM

LOG = "journal.db-wal"


def _take_image(home: Path, state: Path, image: Path) -> None:
    """The marks first and the journal last: what was written later may be on disk, or not."""
    shutil.copytree(state, image / "state")
    (image / "home").mkdir()
    for name in ("keys", "evidence"):
        shutil.copytree(home / name, image / "home" / name, ignore=shutil.ignore_patterns("unf*"))
    for name in ("journal.db", LOG):
        shutil.copy(home / name, image / "home" / name)


def _tear(log: Path, later: bytes, by: random.Random) -> None:
    """Let the writes after the last sync arrive in part: a prefix, and then anything."""
    here = log.read_bytes()
    changed = [n for n, (a, b) in enumerate(zip(here, later, strict=False)) if a != b]
    if not changed:
        return
    end = by.randrange(changed[0], changed[-1] + 2)
    torn = bytearray(later[:end] + here[end:])
    if by.random() < 0.5:
        torn[end : end + 512] = by.randbytes(len(torn[end : end + 512]))
    log.write_bytes(bytes(torn))


@pytest.mark.soak("faults", rounds=80, short=6)
async def test_a_crash_image_has_all_that_was_acknowledged_and_starts(
    tmp_path: Path, rounds: int
) -> None:
    home, state = tmp_path / "home", tmp_path / "state"
    by = random.Random(rounds)
    acknowledged: list[int] = []
    async with started(home, state) as here:
        await here.act(3)
        for number in range(rounds):
            for _ in range(by.randrange(1, 4)):
                await here.act(1)
            acknowledged.append((await here.journal.head(STREAM)).last)
            _take_image(home, state, tmp_path / str(number))
        await here.audit.record(AuditEntry(action="last", actor="x"))
        _take_image(home, state, tmp_path / str(rounds))
    for number, size in enumerate(acknowledged):
        image = tmp_path / str(number)
        later = (tmp_path / str(number + 1) / "home" / LOG).read_bytes()
        _tear(image / "home" / LOG, later, by)
        await grown(image / "home", image / "state", 2)
        with ClosedHome(image / "home") as closed:
            assert sum(1 for _ in closed.records()) >= size + 4, number
        assert problems_of(image / "home", image / "state") == [], number
