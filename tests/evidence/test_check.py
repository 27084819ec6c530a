"""The log checked offline: whatever was changed, taken out or put in is found."""

import asyncio
import random
import shutil
from pathlib import Path

import msgspec
import pytest

from tests.evidence.evidence_home import check_home, fill, in_file, key_of, running
from toolgate.core.errors import Invalid, NotFound
from toolgate.evidence.check import ClosedHome, check_log, check_proof
from toolgate.evidence.evidence import STREAM
from toolgate.evidence.signer import Ed25519Signer
from toolgate.journal.journal import Append, NewEvent


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
    for first, count in ((0, 100), (100, 180), (280, 10)):  # partial tiles of each are there
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
