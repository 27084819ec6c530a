"""The log on a real home: commits, tiles, checkpoints, restarts, damage, and checking it offline."""

import asyncio
import contextlib
import json
import logging
import random
import shutil
import sqlite3
import stat
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from toolgate.adapters.blobs_disk import DiskBlobs
from toolgate.adapters.bus_local import LocalBus
from toolgate.adapters.evidence_check import ClosedHome, check_log, check_proof
from toolgate.adapters.evidence_log import EvidenceLog, Options
from toolgate.adapters.evidence_tiles import TileFiles
from toolgate.adapters.journal_sqlite import SqliteJournal
from toolgate.adapters.journal_sqlite_witness import witness_path
from toolgate.adapters.patterns_re2 import SecretPatterns
from toolgate.adapters.signer_ed25519 import Commitments, Ed25519Signer, check_signature
from toolgate.domain import checkpoints, evidence
from toolgate.domain.checkpoints import Checkpoint, VerifierKey
from toolgate.domain.errors import Conflict, Damaged, Invalid, NotFound
from toolgate.domain.redaction import MASK
from toolgate.ports.evidence import STREAM, record_of
from toolgate.ports.journal import Append, Journal, NewEvent, Put
from toolgate.testing.clock import FakeClock
from toolgate.testing.journal import MemoryJournal

SECRET = "swordfish-9000"
QUICK = Options(publish_every=0.01, look_again_after=0.05, inline_limit=200, page=100)


class Home:
    """One installation's parts, as long as they run."""

    def __init__(self, home: Path, journal: Journal, log: EvidenceLog, clock: FakeClock) -> None:
        self.home = home
        self.journal = journal
        self.log = log
        self.clock = clock


@asynccontextmanager
async def running(
    home: Path, *, files: TileFiles | None = None, options: Options = QUICK
) -> AsyncIterator[Home]:
    clock = FakeClock()
    bus = LocalBus()
    patterns = SecretPatterns([SECRET])
    journal = await SqliteJournal.open(home / "journal.db", clock=clock, bus=bus)
    try:
        log = await EvidenceLog.open(
            files or TileFiles(home / "evidence"),
            journal=journal,
            blobs=DiskBlobs(home / "blobs"),
            bus=bus,
            clock=clock,
            signer=Ed25519Signer.in_home(home, name="test/log"),
            redactor=patterns.redactor(),
            commit=Commitments.in_home(home),
            options=options,
        )
        try:
            yield Home(home, journal, log, clock)
        finally:
            await log.close()
    finally:
        await journal.close()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.005)


def key_of(home: Path) -> VerifierKey:
    return Ed25519Signer.in_home(home, name="test/log").key


def checkpoint_of(home: Path) -> Checkpoint:
    note = TileFiles(home / "evidence").checkpoint()
    assert note is not None
    return checkpoints.open_checkpoint(note, key=key_of(home), check=check_signature)


def in_file(home: Path, sql: str, *values: bytes) -> list[tuple[bytes]]:
    """What someone does to the journal behind its back."""
    with contextlib.closing(sqlite3.connect(home / "journal.db")) as connection, connection:
        connection.execute("PRAGMA synchronous=OFF")
        return connection.execute(sql, values).fetchall()


def check_home(home: Path, *, since: str = "") -> list[str]:
    with ClosedHome(home) as closed:
        return check_log(
            closed.log.root,
            key=key_of(home),
            since=since,
            read_artifact=closed.artifact,
            journal=closed.filed(),
        ).problems


async def fill(home: Home, count: int, *, artifacts: bool = False, first: int = 0) -> None:
    async def one(number: int) -> None:
        kept = []
        if artifacts:
            for name in ("request", "tool_result"):
                text = f"{name} " * (40 if name == "tool_result" else 1)
                ref = f"requests/r{number}/{name}.json"
                kept.append(await home.log.store(ref, {"text": text, "number": number}))
        await home.log.record(
            "decision", {"number": number, "tool": "echo"}, subject=f"r{number}", artifacts=kept
        )

    for start in range(first, first + count, 100):
        numbers = range(start, min(start + 100, first + count))
        await asyncio.gather(*(one(number) for number in numbers))


async def test_a_record_is_in_the_journal_canonical_and_in_one_commit_with_what_it_accompanies(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as home:
        artifact = await home.log.store("requests/r1/request.json", {"b": 1, "a": "ü\n"})
        index = await home.log.record(
            "decision",
            {"tool": "echo", "allowed": True, "exit": -3, "rule": None},
            subject="r1",
            artifacts=[artifact],
            with_operations=[Put("runs", "run_1", b"{}", expected=0)],
        )
        assert index == 0
        [event] = await home.journal.read(STREAM)
        record = json.loads(record_of(event.data))
        assert record == {
            "artifacts": {"requests/r1/request.json": artifact.digest},
            "at": home.clock.now_ms(),
            "fields": {"tool": "echo", "allowed": True, "exit": -3, "rule": None},
            "kind": "decision",
            "subject": "r1",
            "v": 1,
        }
        canonical = json.dumps(record, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        assert event.data == canonical.encode() + '\n{"a":"ü\\n","b":1}'.encode()
        assert await home.journal.get("runs", "run_1") is not None
        assert await home.log.fetch("requests/r1/request.json") == '{"a":"ü\\n","b":1}'.encode()


async def test_where_the_commit_is_refused_there_is_no_record_and_no_artifact(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as home:
        row = Put("calls", "r1", b"{}", expected=0)
        first = await home.log.store("requests/r1/request.json", {"a": 1})
        await home.log.record(
            "decision", {}, subject="r1", artifacts=[first], with_operations=[row]
        )
        late = await home.log.store("requests/r1/response.json", {"a": 2})
        with pytest.raises(Conflict):
            await home.log.record(
                "result", {}, subject="r1", artifacts=[late], with_operations=[row]
            )
        assert (await home.journal.head(STREAM)).last == 1
        assert await home.log.fetch("requests/r1/request.json") == b'{"a":1}'
        for ref in ("requests/r1/response.json", "requests/r1", "other/r1/request.json"):
            with pytest.raises(NotFound):
                await home.log.fetch(ref)


async def test_a_ref_that_is_given_again_never_hides_what_it_was_given_first(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as home:
        for number in (1, 2):
            artifact = await home.log.store("requests/r1/request.json", {"a": number})
            await home.log.record("decision", {}, subject="r1", artifacts=[artifact])
        assert await home.log.fetch("requests/r1/request.json") == b'{"a":1}'
    assert check_home(tmp_path) == []


async def test_an_artifact_of_another_subject_is_refused(tmp_path: Path) -> None:
    async with running(tmp_path) as home:
        artifact = await home.log.store("requests/r1/x.json", {})
        for subject in ("", "r2", "r"):
            with pytest.raises(Invalid):
                home.log.prepare("result", {}, subject=subject, artifacts=[artifact])


@pytest.mark.parametrize(
    "ref", ["", "/etc/passwd", "requests/../x", "a b", "requests/r\x00", "x" * 513, "ü"]
)
async def test_a_ref_that_cannot_be_one_is_refused(tmp_path: Path, ref: str) -> None:
    async with running(tmp_path) as home:
        with pytest.raises(Invalid):
            await home.log.store(ref, {})


@pytest.mark.parametrize(
    "fields", [{"a": 1.5}, {"a": [1]}, {"a": {}}, {"a": 2**53}, {"é": 1}, {"": 1}, {"a b": 1}]
)
async def test_a_record_holds_only_what_has_one_canonical_form(
    tmp_path: Path, fields: dict[str, int]
) -> None:
    async with running(tmp_path) as home:
        with pytest.raises(Invalid):
            home.log.prepare("decision", fields)
        with pytest.raises(Invalid):
            home.log.prepare("Not A Kind", {})


async def test_a_record_that_is_too_large_is_refused_and_a_long_text_is_cut(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as home:
        await home.log.record("decision", {"text": "word " * 10_000})
        [event] = await home.journal.read(STREAM)
        assert len(json.loads(event.data)["fields"]["text"]) == QUICK.text_limit
        with pytest.raises(Invalid):
            home.log.prepare("decision", {f"text{number}": "ü" * 1900 for number in range(20)})


async def test_broken_unicode_is_recorded_as_far_as_it_can_be(tmp_path: Path) -> None:
    async with running(tmp_path) as home:
        artifact = await home.log.store("requests/r1/x.json", {"out": "a\udcffb"})
        await home.log.record("result", {"out": "a\udcffb"}, subject="r1", artifacts=[artifact])
        assert await home.log.fetch("requests/r1/x.json") == b'{"out":"a?b"}'


async def test_secrets_in_fields_subject_and_artifacts_are_masked_and_a_ref_with_one_is_refused(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as home:
        artifact = await home.log.store("requests/r1/x.json", {"out": [f"a{SECRET}b"], "n": 1})
        await home.log.record(
            "result",
            {"note": f"said {SECRET}", "password": "x"},
            subject=f"r-{SECRET}",
        )
        await home.log.record("result", {}, subject="r1", artifacts=[artifact])
        [event, _] = await home.journal.read(STREAM)
        record = json.loads(event.data)
        assert record["fields"] == {"note": f"said {MASK}", "password": MASK}
        assert record["subject"] == event.subject == f"r-{MASK}"
        assert await home.log.fetch("requests/r1/x.json") == (
            f'{{"n":1,"out":["a{MASK}b"]}}'.encode()
        )
        with pytest.raises(Invalid):
            await home.log.store(f"requests/{SECRET}/x.json", {})


async def test_a_commitment_hides_the_value_and_ignores_the_order_of_members(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as home:
        one = home.log.commitment(home.log.canonical({"a": 1, "b": SECRET}))
        assert one == home.log.commitment(home.log.canonical({"b": SECRET, "a": 1}))
        assert one != home.log.commitment(home.log.canonical({"a": 2, "b": SECRET}))
        assert SECRET not in one
        assert one.startswith("hmac-sha256:")


async def test_a_large_artifact_goes_to_the_blobs_and_a_damaged_one_is_not_given_out(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as home:
        artifact = await home.log.store("requests/r1/x.json", {"out": "long " * 100})
        assert artifact.inline is None
        await home.log.record("result", {}, subject="r1", artifacts=[artifact])
        content = await home.log.fetch("requests/r1/x.json")
        assert json.loads(content) == {"out": "long " * 100}
        [blob] = [path for path in (tmp_path / "blobs").rglob("*") if path.is_file()]
        blob.write_bytes(content[:-2] + b"x}")
        with pytest.raises(Damaged):
            await home.log.fetch("requests/r1/x.json")


async def test_a_checkpoint_follows_while_records_come_and_at_the_close(tmp_path: Path) -> None:
    async with running(tmp_path) as home:
        assert checkpoint_of(tmp_path).size == 0
        await fill(home, 3)
        await until(lambda: checkpoint_of(tmp_path).size == 3)
        await fill(home, 300)
    checkpoint = checkpoint_of(tmp_path)
    assert checkpoint.size == 303
    with ClosedHome(tmp_path) as closed:
        assert checkpoint.root == evidence.root_of(map(evidence.leaf_hash, closed.records()))
    assert check_home(tmp_path) == []


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


async def test_a_journal_that_lost_a_record_before_it_was_published_is_never_signed(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as home:
        await fill(home, 5)
    before = checkpoint_of(tmp_path)
    journal = await SqliteJournal.open(tmp_path / "journal.db", clock=FakeClock(), bus=LocalBus())
    for _ in range(3):
        await journal.commit(Append(STREAM, (NewEvent("decision", b"{}"),)))
    await journal.close()
    in_file(tmp_path, "DELETE FROM events WHERE seq = 7")
    with pytest.raises(Damaged, match="records are missing"):
        async with running(tmp_path):
            pass
    assert checkpoint_of(tmp_path) == before


async def test_a_checkpoint_that_is_not_ours_stops_the_start(tmp_path: Path) -> None:
    async with running(tmp_path) as home:
        await fill(home, 5)
    shutil.rmtree(tmp_path / "keys")
    with pytest.raises(Damaged):
        async with running(tmp_path):
            pass


class FailingFiles(TileFiles):
    """A disk that refuses for a while."""

    failing = False

    def write(self, path: str, content: bytes) -> None:
        if self.failing:
            raise OSError(28, "No space left on device")
        super().write(path, content)


async def test_a_full_disk_stops_publishing_not_recording_and_is_made_up_for(
    tmp_path: Path,
) -> None:
    files = FailingFiles(tmp_path / "evidence")
    async with running(tmp_path, files=files) as home:
        await fill(home, 200)
        await until(lambda: checkpoint_of(tmp_path).size == 200)
        files.failing = True
        await fill(home, 400)
        await until(lambda: "No space left" in home.log.failure)
        assert checkpoint_of(tmp_path).size == 200
        files.failing = False
        await until(lambda: checkpoint_of(tmp_path).size == 600)
        await until(lambda: home.log.failure == "")
    assert check_home(tmp_path) == []


async def test_a_caller_that_gives_up_leaves_the_log_whole(tmp_path: Path) -> None:
    async with running(tmp_path) as home:
        given_up = []
        for _ in range(20):
            await fill(home, 30)
            given_up.append(asyncio.create_task(home.log.publish()))
            await asyncio.sleep(0)
            given_up[-1].cancel()
        await asyncio.gather(*given_up, return_exceptions=True)
    assert checkpoint_of(tmp_path).size == 600
    assert check_home(tmp_path) == []


async def test_events_whose_hint_was_lost_are_published_all_the_same(tmp_path: Path) -> None:
    clock = FakeClock()
    deaf = LocalBus()  # not the journal's
    journal = MemoryJournal(clock=clock, bus=LocalBus())
    log = await EvidenceLog.open(
        TileFiles(tmp_path / "evidence"),
        journal=journal,
        blobs=DiskBlobs(tmp_path / "blobs"),
        bus=deaf,
        clock=clock,
        signer=Ed25519Signer.in_home(tmp_path, name="test/log"),
        redactor=SecretPatterns().redactor(),
        commit=Commitments.in_home(tmp_path),
        options=QUICK,
    )
    await log.record("decision", {"n": 1})
    await until(lambda: checkpoint_of(tmp_path).size == 1)
    await log.close()


async def test_the_files_are_their_owners_alone(tmp_path: Path) -> None:
    async with running(tmp_path) as home:
        await fill(home, 300)
    for path in (tmp_path / "evidence").rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path
        assert path.is_dir() or path.parent.name != "unfinished"


async def test_a_proof_of_any_record_verifies_with_the_server_gone(tmp_path: Path) -> None:
    proofs = {}
    async with running(tmp_path) as home:
        await fill(home, 300, artifacts=True)
        for index in (0, 1, 255, 256, 299):
            proofs[index] = await home.log.prove(index)
        with pytest.raises(NotFound):
            await home.log.prove(300)
    key = key_of(tmp_path)
    for index, raw in proofs.items():
        proven = check_proof(raw, key=key)
        assert proven.index == index
        assert proven.record["fields"]["number"] == int(proven.record["subject"][1:])
        assert len(proven.artifacts) == 2


async def test_what_cannot_be_published_for_long_does_not_fill_the_memory(tmp_path: Path) -> None:
    async with running(tmp_path) as home:
        checkpoint = tmp_path / "evidence" / "checkpoint"
        aside = checkpoint.rename(tmp_path / "aside")
        checkpoint.mkdir()
        for number in range(3 * QUICK.page):
            await home.log.record("result", {"number": number})
        await until(lambda: "Is a directory" in home.log.failure)
        for number in range(3 * QUICK.page):
            await home.log.record("result", {"number": number})
        assert len(home.log._arrived) <= 2 * QUICK.page
        checkpoint.rmdir()
        aside.rename(checkpoint)
        await until(lambda: home.log.failure == "")
        assert (await home.log.publish()).size == 6 * QUICK.page
    assert check_home(tmp_path) == []


async def test_no_byte_of_a_proof_can_be_changed(tmp_path: Path) -> None:
    async with running(tmp_path) as home:
        await fill(home, 300, artifacts=True)
        raw = await home.log.prove(200)
    chance = random.Random(7)
    for position in range(len(raw)):
        changed = bytearray(raw)
        changed[position] ^= 1 << chance.randrange(8)
        with pytest.raises(Invalid):
            check_proof(bytes(changed), key=None)
    other = Ed25519Signer(b"\x09" * 32, name="test/log")
    with pytest.raises(Invalid):
        check_proof(raw, key=other.key)


async def test_a_proof_without_one_of_its_artifacts_is_refused(tmp_path: Path) -> None:
    async with running(tmp_path) as home:
        await fill(home, 3, artifacts=True)
        document = msgspec.json.decode(await home.log.prove(1))
    document["artifacts"].popitem()
    with pytest.raises(Invalid):
        check_proof(msgspec.json.encode(document, order="sorted") + b"\n")


async def test_any_changed_byte_of_any_file_of_the_log_is_found(tmp_path: Path) -> None:
    for first, count in ((0, 100), (100, 400), (500, 10)):  # partial tiles of each are there
        async with running(tmp_path) as home:
            await fill(home, count, artifacts=True, first=first)
    assert check_home(tmp_path) == []
    chance = random.Random(11)
    files = sorted(path for path in (tmp_path / "evidence").rglob("*") if path.is_file())
    assert len(files) > 8
    for path in files:
        content = path.read_bytes()
        for position in {len(content) - 1, chance.randrange(len(content))}:
            changed = bytearray(content)
            changed[position] ^= 1 << chance.randrange(8)
            path.write_bytes(changed)
            assert check_home(tmp_path), (path, position)
        path.write_bytes(content[:-1])
        assert check_home(tmp_path), path
        path.write_bytes(content)
    assert check_home(tmp_path) == []
    stray = tmp_path / "evidence" / "tile" / "0" / "note.txt"
    stray.write_text("hello")
    assert check_home(tmp_path) == ["tile/0/note.txt: it is no part of the log"]


async def test_any_changed_byte_of_an_artifact_is_found(tmp_path: Path) -> None:
    async with running(tmp_path) as home:
        await fill(home, 10, artifacts=True)  # under a checkpoint or not
        chance = random.Random(13)
        blobs = [path for path in (tmp_path / "blobs").rglob("*") if path.is_file()]
        assert len(blobs) == 10
        for blob in blobs:
            content = blob.read_bytes()
            changed = bytearray(content)
            changed[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
            blob.write_bytes(changed)
            assert await asyncio.to_thread(check_home, tmp_path)
            blob.write_bytes(content)
        assert await asyncio.to_thread(check_home, tmp_path) == []
    [(data,)] = in_file(tmp_path, "SELECT data FROM events WHERE subject = 'r3'")
    # In the record, between the two, and in the artifact behind it.
    for position in {*range(0, len(data), 5), data.index(b"\n"), len(data) - 1}:
        changed = bytearray(data)
        changed[position] ^= 1 << chance.randrange(8)
        in_file(tmp_path, "UPDATE events SET data = ? WHERE subject = 'r3'", bytes(changed))
        assert check_home(tmp_path), changed
    in_file(tmp_path, "UPDATE events SET data = ? WHERE subject = 'r3'", data)
    assert check_home(tmp_path) == []


async def test_a_log_that_grows_meanwhile_is_verified_all_the_same(tmp_path: Path) -> None:
    async with running(tmp_path) as home:
        await fill(home, 200, artifacts=True)
        filling = asyncio.create_task(fill(home, 1200, first=200))
        while not filling.done():
            assert await asyncio.to_thread(check_home, tmp_path) == []
        await filling
    assert check_home(tmp_path) == []


async def test_a_record_changed_in_the_journal_is_found(tmp_path: Path) -> None:
    async with running(tmp_path) as home:
        await fill(home, 5)
        await home.log.publish()
    async with running(tmp_path / "other") as other:
        records = [event.data for event in await other.journal.read(STREAM)]
        assert records == []
        with ClosedHome(tmp_path) as closed:
            originals = list(closed.records())
        originals[2] = originals[2].replace(b'"number":2', b'"number":3')
        events = [NewEvent(type="decision", data=data) for data in originals]
        await other.journal.commit(Append(STREAM, events))
    with ClosedHome(tmp_path / "other") as closed:
        report = check_log(tmp_path / "evidence", key=key_of(tmp_path), journal=closed.records())
    assert report.problems == ["journal, record 2: it is another in the log"]


OF_THE_LOG = "segment IN (SELECT id FROM segments WHERE stream = 'evidence')"


@pytest.mark.parametrize(
    ("behind", "which"),
    [
        (f"DELETE FROM events WHERE {OF_THE_LOG} AND seq = 8", 7),
        (f"UPDATE events SET subject = 'other' WHERE {OF_THE_LOG} AND seq = 8", 7),
        (f"UPDATE events SET subject = 'other' WHERE {OF_THE_LOG} AND seq = 3", 2),
        (f"UPDATE events SET type = 'result' WHERE {OF_THE_LOG} AND seq = 3", 2),
    ],
)
async def test_a_record_that_was_taken_out_of_the_journal_or_hidden_in_it_is_missed(
    tmp_path: Path, behind: str, which: int
) -> None:
    async with running(tmp_path) as home:
        await fill(home, 5)
    signed = tmp_path / "signed"
    shutil.copytree(tmp_path / "evidence", signed)
    async with running(tmp_path) as home:
        await fill(home, 5, first=5)
    shutil.rmtree(tmp_path / "evidence")
    signed.rename(tmp_path / "evidence")  # as if the last five were not under a checkpoint yet
    assert check_home(tmp_path) == []
    in_file(tmp_path, behind)
    assert [problem.partition(":")[0] for problem in check_home(tmp_path)] == [
        f"journal, record {which}"
    ]


async def test_nothing_is_shown_in_the_place_of_a_record_that_was_taken_out(tmp_path: Path) -> None:
    async with running(tmp_path) as home:
        await fill(home, 5)
    with ClosedHome(tmp_path) as closed:
        after = closed.at(3)
    in_file(tmp_path, f"DELETE FROM events WHERE {OF_THE_LOG} AND seq = 3")
    with ClosedHome(tmp_path) as closed:
        with pytest.raises(NotFound):
            closed.at(2)
        assert closed.at(3) == after


async def test_a_log_that_was_replaced_is_told_from_one_that_was_continued(tmp_path: Path) -> None:
    for name, count in (("a", 5), ("b", 9)):
        if name == "b":
            shutil.copytree(tmp_path / "a" / "keys", tmp_path / "b" / "keys")
        async with running(tmp_path / name) as home:
            home.clock.advance(count)
            await fill(home, count)
    notes = {n: (tmp_path / n / "evidence" / "checkpoint").read_text("utf-8") for n in "ab"}
    assert check_home(tmp_path / "b", since=notes["b"]) == []
    assert check_home(tmp_path / "b", since=notes["a"])
    assert check_home(tmp_path / "a", since=notes["b"])
