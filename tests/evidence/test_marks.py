"""The mark of a home: what it finds, what it lets through, and that no kill leaves it ahead."""

import json
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.evidence.evidence_home import QUICK, in_file
from toolgate.core.errors import Damaged, Misconfigured
from toolgate.evidence.audit import LEAVES, AuditEntry, AuditLog, prune
from toolgate.evidence.check import ClosedHome, check_home
from toolgate.evidence.log import EvidenceLog
from toolgate.evidence.marks import COLLECTION, HighWater, Mark, Marks, accept
from toolgate.evidence.signer import Commitments, Ed25519Signer
from toolgate.evidence.tiles import TileFiles
from toolgate.journal.disk_blobs import DiskBlobs
from toolgate.journal.journal import Append, NewEvent
from toolgate.journal.local_bus import LocalBus
from toolgate.journal.sqlite.journal import SqliteJournal
from toolgate.secrets.patterns import SecretPatterns
from toolgate.testing.clock import FakeClock

ROOT = Path(__file__).parents[2]
AUDIT = "segment IN (SELECT id FROM segments WHERE stream = 'audit')"
REDACTOR = SecretPatterns().redactor()


class Running:
    def __init__(
        self, home: Path, journal: SqliteJournal, log: EvidenceLog, clock: FakeClock
    ) -> None:
        self.home = home
        self.clock = clock
        self.journal = journal
        self.log = log
        self.audit = AuditLog(journal, redactor=REDACTOR)

    async def act(self, count: int) -> None:
        for number in range(count):
            await self.log.record("decision", {"home": self.home.name, "number": number})
            await self.audit.record(AuditEntry(action="act", actor=f"dev_{number}"))


@asynccontextmanager
async def started(home: Path, state: Path) -> AsyncIterator[Running]:
    """As `open_core` and `open_gate_parts` start it."""
    bus, clock = LocalBus(), FakeClock()
    home.mkdir(exist_ok=True)
    journal = await SqliteJournal.open(home / "journal.db", clock=clock, bus=bus, summary=LEAVES)
    try:
        audit = AuditLog(journal, redactor=REDACTOR)
        mark = await HighWater.open(state, home, journal, audit)
        log = await EvidenceLog.open(
            TileFiles(home / "evidence"),
            journal=journal,
            blobs=DiskBlobs(home / "blobs"),
            bus=bus,
            clock=clock,
            signer=Ed25519Signer.in_home(home),
            redactor=REDACTOR,
            commit=Commitments.in_home(home),
            published=mark.published,
            options=QUICK,
        )
        yield Running(home, journal, log, clock)
        await log.close()
        await mark.close()
    finally:
        await journal.close()


async def grown(home: Path, state: Path, count: int = 20) -> str:
    """The epoch of the home after so many acts."""
    async with started(home, state) as here:
        await here.act(count)
        return here.journal.vouches_since


async def accepted(home: Path, state: Path) -> Mark | None:
    journal = await SqliteJournal.open(
        home / "journal.db", clock=FakeClock(), bus=LocalBus(), summary=LEAVES
    )
    try:
        return await accept(state, home, journal, AuditLog(journal, redactor=REDACTOR), at=1)
    finally:
        await journal.close()


def mark_of(state: Path) -> Mark:
    (path,) = (state / "marks").glob("*.json")
    mark = Marks(state).read(path.stem)
    assert mark is not None
    return mark


def problems_of(home: Path, state: Path) -> list[str]:
    with ClosedHome(home) as closed:
        (mark,) = Marks(state).find(closed.installation(), home)
        return check_home(closed, key=Ed25519Signer.in_home(home).key, mark=mark).problems


def keep_inode(home: Path, copy: Path) -> None:
    """Put the copy in place as `cp -a copy/. home/` does."""
    subprocess.run(["cp", "-a", f"{copy}/.", f"{home}/"], check=True)


async def test_a_home_keeps_its_epoch_over_starts_and_its_mark_follows_it(tmp_path: Path) -> None:
    home, state = tmp_path / "home", tmp_path / "state"
    epochs = {await grown(home, state) for _ in range(3)}
    assert len(epochs) == 1
    mark = mark_of(state)
    assert (mark.size, mark.epoch) == (120 + 0, epochs.pop())
    assert mark.home == str(home)
    assert problems_of(home, state) == []


async def test_a_mark_that_is_gone_begins_a_new_epoch_and_says_so(tmp_path: Path) -> None:
    home, state = tmp_path / "home", tmp_path / "state"
    before = await grown(home, state)
    shutil.rmtree(state)
    async with started(home, state) as here:
        assert here.journal.vouches_since != before
        assert (await here.journal.read("audit", after=20))[0].type == "epoch.begun"
    assert mark_of(state).size > 40


Attack = Callable[[Path], None]


def _last_events_and_evidence(home: Path) -> None:
    in_file(home, "DELETE FROM events WHERE position > (SELECT max(position) FROM events) - 15")
    shutil.rmtree(home / "evidence")
    (home / "journal.db-witness").unlink()


def _other_records_and_more_of_them(home: Path) -> None:
    in_file(home, "UPDATE events SET data = replace(data, '7', '8') || '' WHERE 0")
    rows = in_file(
        home, "SELECT position FROM events JOIN segments ON id = segment WHERE stream = 'evidence'"
    )
    for (position,) in rows[10:15]:
        in_file(home, "UPDATE events SET data = X'7B7D' WHERE position = ?", position)
    shutil.rmtree(home / "evidence")


def _its_name_too(home: Path) -> None:
    _last_events_and_evidence(home)
    in_file(home, f"DELETE FROM rows WHERE collection = '{COLLECTION}'")


def _its_name_for_another(home: Path) -> None:
    _last_events_and_evidence(home)
    in_file(home, f"UPDATE rows SET value = X'696E5F31' WHERE collection = '{COLLECTION}'")


def _its_name_and_key(home: Path) -> None:
    _its_name_too(home)
    shutil.rmtree(home / "keys")


async def test_a_home_that_does_not_continue_its_mark_is_refused_and_accepted_once(
    tmp_path: Path,
) -> None:
    attacks: list[Attack] = [
        _last_events_and_evidence,
        _other_records_and_more_of_them,
        _its_name_too,
        _its_name_for_another,
        _its_name_and_key,
    ]
    for attack in attacks:
        place = tmp_path / attack.__name__
        home, state = place / "home", place / "state"
        place.mkdir()
        before = await grown(home, state)
        attack(home)
        with pytest.raises(Damaged, match="toolgate restore accept"):
            await grown(home, state)
        mark = await accepted(home, state)
        assert mark is not None, attack
        assert await accepted(home, state) is None, attack
        assert await grown(home, state) == mark.epoch != before, attack
        with ClosedHome(home) as closed:
            (restored,) = [json.loads(r) for r in closed.records() if b'"restored"' in r]
        assert restored["fields"]["from_size"] == 40


async def test_a_restored_home_is_refused_then_goes_on_and_verifies(tmp_path: Path) -> None:
    home, state, backup = tmp_path / "home", tmp_path / "state", tmp_path / "backup"
    await grown(home, state)
    subprocess.run(["cp", "-a", home, backup], check=True)
    before = await grown(home, state, 300)
    keep_inode(home, backup)
    with pytest.raises(Damaged, match="ends at position"):
        await grown(home, state)
    mark = await accepted(home, state)
    assert mark is not None
    assert mark.epoch != before
    await grown(home, state, 400)
    assert problems_of(home, state) == []
    kept = [path.name for path in home.glob("evidence.before-*")]
    assert kept == [f"evidence.before-{mark.installation}"]


async def test_of_two_copies_of_a_home_each_goes_on_once_it_is_accepted(tmp_path: Path) -> None:
    one, two, state = tmp_path / "one", tmp_path / "two", tmp_path / "state"
    await grown(one, state)
    shutil.copytree(one, two)
    await grown(two, state)
    with pytest.raises(Damaged, match="toolgate restore accept"):
        await grown(one, state)
    assert await accepted(one, state) is not None
    for _ in range(2):
        await grown(one, state)
        await grown(two, state)
    assert problems_of(one, state) == problems_of(two, state) == []


async def test_a_home_that_is_moved_or_made_anew_is_no_restore(tmp_path: Path) -> None:
    home, state = tmp_path / "home", tmp_path / "state"
    await grown(home, state)
    home.rename(tmp_path / "moved")
    await grown(tmp_path / "moved", state)
    await grown(home, state)  # another installation, where the first one was
    shutil.rmtree(home)
    async with started(home, state) as here:
        (row,) = await here.journal.read("audit", limit=1)
        assert row.type == "home.replaced"
    assert problems_of(home, state) == problems_of(tmp_path / "moved", state) == []


async def test_rows_of_another_installation_are_found(tmp_path: Path) -> None:
    state = tmp_path / "state"
    for name in ("one", "two"):
        await grown(tmp_path / name, state, 20 if name == "one" else 60)
    shutil.copy(tmp_path / "two" / "journal.db", tmp_path / "one" / "journal.db")
    shutil.rmtree(tmp_path / "one" / "evidence")
    with pytest.raises(Damaged, match="toolgate restore accept"):
        await grown(tmp_path / "one", state)


async def test_a_mark_that_cannot_be_read_or_written_is_one_clear_error(tmp_path: Path) -> None:
    home, state = tmp_path / "home", tmp_path / "state"
    await grown(home, state)
    path = Marks(state).path(mark_of(state).installation)
    good = path.read_bytes()
    for bad in (
        b"",
        good[: len(good) // 2],
        b"garbage",
        b"{}",
        good.replace(b'"root":"', b'"root":"zz'),
    ):
        path.write_bytes(bad)
        with pytest.raises(Damaged, match="toolgate restore accept"):
            await grown(home, state)
    assert await accepted(home, state) is not None
    await grown(home, state)
    other = tmp_path / "other"
    (tmp_path / "file").write_text("in the way")
    for directory in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(Misconfigured, match="STATE_DIR"):
            await grown(other, directory)
    with pytest.raises(Misconfigured, match=r"inside of TOOLGATE_HOME"):
        await grown(other, other / "state")


def _after_kills(home: Path, state: Path, what: str, first: int, stride: int = 1) -> list[str]:
    arguments = [str(home), str(state), what, str(first), str(stride)]
    ended = subprocess.run(
        [sys.executable, "-m", "tests.evidence.marking_process", *arguments],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.splitlines()


@pytest.mark.soak("kills", rounds=16, short=2)
async def test_a_kill_at_a_sync_or_a_rename_leaves_a_home_that_goes_on(
    tmp_path: Path, rounds: int
) -> None:
    """A home that is new, one that goes on, and one whose restore is being accepted."""
    home, state, backup = tmp_path / "home", tmp_path / "state", tmp_path / "backup"
    stride = 16 // rounds
    new = _after_kills(home, state, "start", 1, stride)
    assert len(new) > 3
    assert all(one.startswith("ep_") for one in new), new
    subprocess.run(["cp", "-a", home, backup], check=True)
    going_on = _after_kills(home, state, "start", 1, stride)
    assert set(going_on) == {new[-1]}
    assert problems_of(home, state) == []
    keep_inode(home, backup)
    accepting = _after_kills(home, state, "accept", 1)
    refused = [one for one in accepting if "toolgate restore accept" in one]
    begun = [one for one in accepting if one.startswith("ep_")]
    assert refused + begun == accepting, "refused until it was accepted, then never again"
    assert len(set(begun)) == 1
    assert begun[0] != new[-1]
    assert problems_of(home, state) == []


async def test_rows_that_retention_removed_are_not_missed_and_others_are(tmp_path: Path) -> None:
    home, state = tmp_path / "home", tmp_path / "state"
    async with started(home, state) as here:
        await here.act(10)
        here.clock.advance(10_000)
        between = here.clock.now_ms()
        await here.act(10)
        here.clock.advance(10_000)
        for _ in range(2):
            await prune(here.journal, before=between, now=here.clock.now_ms())
        assert (await here.journal.head("audit")).first == 11
        await here.act(1)
    assert problems_of(home, state) == []
    copy = tmp_path / "copy"
    shutil.copytree(home, copy)
    in_file(copy, "DELETE FROM rows WHERE collection = 'audit_pruned'")
    assert problems_of(copy, state) == [], "the record says it, not the row"
    in_file(home, f"DELETE FROM events WHERE {AUDIT} AND seq <= 13")
    (wrong,) = problems_of(home, state)
    assert "audit rows 11 to 13: missing" in wrong


async def test_events_that_no_sync_has_kept_are_not_in_the_mark(tmp_path: Path) -> None:
    home, state = tmp_path / "home", tmp_path / "state"
    async with started(home, state) as here:
        await here.act(3)
        synced = here.journal.synced_position
        await here.journal.commit(Append("s", [NewEvent("delta", b"{}")]), durable=False)
        assert here.journal.synced_position == synced
        assert await here.journal.last_position() == synced + 1
