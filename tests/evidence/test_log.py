"""The log on a real home: commits, artifacts, tiles, checkpoints, a full disk."""

import asyncio
import json
import stat
from pathlib import Path

import pytest

from tests.evidence.evidence_home import (
    QUICK,
    SECRET,
    check_home,
    checkpoint_of,
    fill,
    in_file,
    key_of,
    record_call,
    running,
    until,
)
from toolgate.core.errors import Conflict, Damaged, Invalid, NotFound
from toolgate.core.tools import JsonValue
from toolgate.evidence import tree as evidence
from toolgate.evidence.check import ClosedHome, check_proof
from toolgate.evidence.evidence import STREAM, Scalar
from toolgate.evidence.log import EvidenceLog
from toolgate.evidence.signer import Commitments, Ed25519Signer
from toolgate.evidence.tiles import TileFiles
from toolgate.journal.disk_blobs import DiskBlobs
from toolgate.journal.journal import Append, NewEvent, Put
from toolgate.journal.local_bus import LocalBus
from toolgate.journal.sqlite.journal import SqliteJournal
from toolgate.secrets.patterns import SecretPatterns
from toolgate.secrets.redaction import MASK
from toolgate.testing.clock import FakeClock
from toolgate.testing.journal import MemoryJournal


async def test_a_record_is_in_the_journal_canonical_and_in_one_commit_with_what_it_accompanies(
    tmp_path: Path,
) -> None:
    row = Put("runs", "run_1", b"{}", expected=0)
    fields: dict[str, Scalar] = {"tool": "echo", "allowed": True, "exit": -3, "rule": None}
    async with running(tmp_path) as home:
        index = await home.log.record("decision", fields, subject="r1", with_operations=[row])
        assert index == 0
        [event] = await home.journal.read(STREAM)
        record = json.loads(event.data)
        assert record == {
            "artifacts": {},
            "at": home.clock.now_ms(),
            "fields": fields,
            "kind": "decision",
            "subject": "r1",
            "v": 1,
        }
        canonical = json.dumps(record, sort_keys=True, separators=(",", ":"))
        assert event.data == canonical.encode()
        assert await home.journal.get("runs", "run_1") is not None


async def test_where_the_commit_is_refused_there_is_no_record_and_no_artifact(
    tmp_path: Path,
) -> None:
    row = Put("calls", "r1", b"{}", expected=0)
    async with running(tmp_path) as home:
        await record_call(
            home.log, home.journal, "r1", artifacts={"request": {"a": 1}}, with_operations=[row]
        )
        with pytest.raises(Conflict):
            await record_call(
                home.log,
                home.journal,
                "r1",
                artifacts={"response": {"a": 2}},
                with_operations=[row],
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
            await record_call(home.log, home.journal, "r1", artifacts={"request": {"a": number}})
        assert await home.log.fetch("requests/r1/request.json") == b'{"a":1}'
    assert check_home(tmp_path) == []


async def test_a_record_that_is_too_large_is_refused_and_a_long_text_is_cut(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as home:
        await home.log.record("decision", {"text": "word " * 10_000})
        [event] = await home.journal.read(STREAM)
        assert len(json.loads(event.data)["fields"]["text"]) == QUICK.text_limit
        with pytest.raises(Invalid):
            home.log.prepare("decision", {f"text{number}": "ü" * 1900 for number in range(20)})


async def test_secrets_in_fields_and_subject_are_masked(tmp_path: Path) -> None:
    async with running(tmp_path) as home:
        fields: dict[str, Scalar] = {"note": f"said {SECRET}", "password": "x"}
        await home.log.record("result", fields, subject=f"r-{SECRET}")
        [event] = await home.journal.read(STREAM)
        record = json.loads(event.data)
        assert record["fields"] == {"note": f"said {MASK}", "password": MASK}
        assert record["subject"] == event.subject == f"r-{MASK}"


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
        artifacts: dict[str, JsonValue] = {"x": {"out": "long " * 100}, "y": {}}
        await record_call(home.log, home.journal, "r1", artifacts=artifacts)
        assert await home.log.fetch("requests/r1/y.json") == b"{}"
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
