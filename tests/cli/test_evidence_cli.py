"""`toolgate evidence` and `toolgate audit` as someone types them, with the server gone."""

import asyncio
import json
import re
import shutil
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result

from tests.evidence.evidence_home import record_call
from tests.support.pipelines import open_rig
from toolgate.cli.main import main
from toolgate.core.tools import ToolRequest
from toolgate.evidence.audit import AuditEntry, AuditLog
from toolgate.evidence.checkpoints import Checkpoint, sign_note
from toolgate.evidence.evidence import STREAM
from toolgate.evidence.log import EvidenceLog
from toolgate.evidence.records import PROOF_FORMAT
from toolgate.evidence.signer import Commitments, Ed25519Signer
from toolgate.evidence.tiles import TileFiles
from toolgate.evidence.tree import leaf_hash
from toolgate.journal.disk_blobs import DiskBlobs
from toolgate.journal.journal import Append, NewEvent
from toolgate.journal.local_bus import LocalBus
from toolgate.journal.sqlite.journal import SqliteJournal
from toolgate.secrets.patterns import SecretPatterns
from toolgate.testing.clock import FakeClock

REF = "requests/r7/tool_result.json"


async def make_home(home: Path, *, close: bool = True) -> None:
    clock = FakeClock()
    bus = LocalBus()
    redactor = SecretPatterns().redactor()
    journal = await SqliteJournal.open(home / "journal.db", clock=clock, bus=bus)
    log = await EvidenceLog.open(
        TileFiles(home / "evidence"),
        journal=journal,
        blobs=DiskBlobs(home / "blobs"),
        bus=bus,
        clock=clock,
        signer=Ed25519Signer.in_home(home),
        redactor=redactor,
        commit=Commitments.in_home(home),
    )
    audit = AuditLog(journal, redactor=redactor)
    for number in range(10):
        size = 20_000 if number == 3 else 1  # one in the blobs
        await record_call(
            log,
            journal,
            f"r{number}",
            fields={"number": number},
            artifacts={"tool_result": {"out": "ok " * size}},
            with_operations=audit.prepare(AuditEntry(action="tool.run", actor=f"dev_{number}")),
        )
    await log.close()
    await journal.close()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("home")
    asyncio.run(make_home(home))
    return home


@pytest.fixture
def home(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made, tmp_path / "home")
    return tmp_path / "home"


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def test_a_whole_home_is_verified(home: Path) -> None:
    result = run("evidence", "verify", "--home", home)
    assert result.exit_code == 0, result.output
    assert "verified: 10 records, 10 artifacts" in result.output


def test_the_home_is_the_one_of_the_settings_unless_told(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOOLGATE_HOME", str(home))
    assert run("evidence", "verify").exit_code == 0
    assert "dev_9" in run("audit", "query", "--limit", "1").output


@pytest.mark.parametrize("what", ["7", "r7", REF])
def test_a_record_is_shown_by_index_request_or_ref(home: Path, what: str) -> None:
    result = run("evidence", "show", what, "--home", home)
    assert result.exit_code == 0, result.output
    assert "record 7" in result.output
    assert '"number": 7' in result.output
    assert '{"out":"ok "}' in result.output


@pytest.mark.parametrize("what", ["10", "9" * 30, "r10", "requests/r7/other.json"])
def test_what_is_not_there_is_said_so(home: Path, what: str) -> None:
    result = run("evidence", "show", what, "--home", home)
    assert result.exit_code == 1
    assert "not found" in result.output


@pytest.mark.parametrize("what", ["0", "r3", REF])
def test_one_record_is_exported_to_a_file_that_proves_it_alone(
    home: Path, tmp_path: Path, what: str
) -> None:
    proof = tmp_path / "proof.json"
    assert run("evidence", "export", what, "-o", proof, "--home", home).exit_code == 0
    key = (home / "keys" / "evidence.vkey").read_text(encoding="utf-8").strip()
    shutil.copy(home / "keys" / "evidence.vkey", tmp_path / "key")
    shutil.rmtree(home)
    for given in (["--key", key], ["--key", tmp_path / "key"], []):
        result = run("evidence", "verify", proof, *given)
        assert result.exit_code == 0, result.output
        assert "of 10 (result), 1 artifacts" in result.output
        assert ("came with the file" in result.output) == (not given)
    other = str(Ed25519Signer(b"\x05" * 32).key)
    assert run("evidence", "verify", proof, "--key", other).exit_code == 1
    proof.write_bytes(proof.read_bytes().replace(b"ok ", b"no ", 1))
    result = run("evidence", "verify", proof, "--key", key)
    assert result.exit_code == 1
    assert "not what was recorded" in result.output


@pytest.mark.parametrize("request_id", ["1763290000123", "17632900001234567890123"])
async def test_a_request_whose_id_is_a_number_is_shown_and_exported(
    tmp_path: Path, request_id: str
) -> None:
    async with open_rig(tmp_path) as rig:
        await rig.run(ToolRequest(request_id, "echo", {"text": "x"}))
        await rig.evidence.publish()
        shown = run("evidence", "show", request_id, "--json", "--home", tmp_path)
        assert shown.exit_code == 0, shown.output
        records = [json.loads(line)["record"] for line in shown.output.splitlines()]
        assert [record["subject"] for record in records] == [request_id, request_id]
        proof = tmp_path / "proof.json"
        exported = run("evidence", "export", request_id, "-o", proof, "--home", tmp_path)
        assert exported.exit_code == 0, exported.output
        none = run("evidence", "show", "9" * 5000, "--home", tmp_path)
        assert isinstance(none.exception, SystemExit)


def test_the_whole_log_is_exported_and_verified_elsewhere(home: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    assert run("evidence", "export", "--all", "-o", copy, "--home", home).exit_code == 0
    shutil.rmtree(home)
    result = run("evidence", "verify", copy)
    assert result.exit_code == 0, result.output
    assert "verified: 10 records, 10 artifacts" in result.output
    for path in sorted(path for path in copy.rglob("*") if path.is_file()):
        content = path.read_bytes()
        path.write_bytes(bytes([content[0] ^ 1]) + content[1:])
        assert run("evidence", "verify", copy).exit_code == 1, path
        path.write_bytes(content)
    assert run("evidence", "verify", copy).exit_code == 0


async def test_only_what_is_signed_is_exported_and_counted(home: Path, tmp_path: Path) -> None:
    journal = await SqliteJournal.open(home / "journal.db", clock=FakeClock(), bus=LocalBus())
    record = b'{"artifacts":{},"at":1,"fields":{},"kind":"result","subject":"r10","v":1}'
    await journal.commit(Append(STREAM, [NewEvent("result", record, "r10")]))
    await journal.close()
    exported = run("evidence", "export", "--all", "-o", tmp_path / "log", "--home", home, "--json")
    assert json.loads(exported.output)["records"] == 10
    tiles = {path.name for path in (tmp_path / "log" / "tile").rglob("*") if path.is_file()}
    assert tiles == {"10"}  # none of an earlier size
    verified = run("evidence", "verify", tmp_path / "log", "--json")
    assert json.loads(verified.output)["records"] == 10, verified.output


def test_what_is_left_is_shown_and_exported_where_a_blob_was_lost(
    home: Path, tmp_path: Path
) -> None:
    shutil.rmtree(home / "blobs")
    shown = run("evidence", "show", "r3", "--home", home)
    assert (shown.exit_code, '"number": 3' in shown.stdout) == (1, True)
    assert "requests/r3/tool_result.json" in shown.stderr
    exported = run("evidence", "export", "--all", "-o", tmp_path / "log", "--home", home)
    assert exported.exit_code == 1
    assert "requests/r3/tool_result.json" in exported.stderr
    assert len(list((tmp_path / "log" / "artifacts").iterdir())) == 1  # the nine others are alike
    checked = json.loads(run("evidence", "verify", tmp_path / "log", "--json").stdout)
    assert (checked["records"], checked["artifacts"]) == (10, 9)
    assert checked["problems"] == ["record 3: artifact requests/r3/tool_result.json not found"]


def test_the_log_alone_is_verified_and_says_that_artifacts_were_not(home: Path) -> None:
    result = run("evidence", "verify", home / "evidence")
    assert result.exit_code == 0, result.output
    assert "no artifacts" in result.output


def test_a_changed_byte_is_named(home: Path) -> None:
    path = home / "evidence" / "tile" / "entries" / "000.p" / "10"
    content = path.read_bytes()
    path.write_bytes(content.replace(b'"number":4', b'"number":5'))
    result = run("evidence", "verify", "--home", home)
    assert result.exit_code == 1
    assert "tile/0/000.p/10: it is not what the records hash to" in result.output
    assert "journal, record 4" in result.output


def test_an_older_checkpoint_must_be_a_beginning(home: Path, tmp_path: Path) -> None:
    older = tmp_path / "checkpoint"
    shutil.copy(home / "evidence" / "checkpoint", older)
    assert run("evidence", "verify", "--home", home, "--since", older).exit_code == 0
    older.write_text(older.read_text(encoding="utf-8").replace("\n10\n", "\n11\n"), "utf-8")
    assert run("evidence", "verify", "--home", home, "--since", older).exit_code == 1


@pytest.mark.parametrize("arguments", [[], ["3", "--all"]])
def test_export_wants_one_record_or_all(home: Path, tmp_path: Path, arguments: list[str]) -> None:
    result = run("evidence", "export", *arguments, "-o", tmp_path / "x", "--home", home)
    assert result.exit_code == 2


@pytest.mark.parametrize(
    "arguments", [["evidence", "verify"], ["evidence", "show", "1"], ["audit", "query"]]
)
def test_a_home_without_anything_is_said_so(tmp_path: Path, arguments: list[str]) -> None:
    result = run(*arguments, "--home", tmp_path)
    assert result.exit_code == 1
    assert "not found" in result.output


def test_audit_rows_are_printed_and_paged(home: Path) -> None:
    result = run("audit", "query", "--home", home, "--limit", "4", "--json")
    page = json.loads(result.output)
    assert [row["id"] for row in page["items"]] == [10, 9, 8, 7]
    assert page["nextCursor"] == 7
    again = run("audit", "query", "--home", home, "--cursor", "7", "--limit", "2")
    assert again.exit_code == 0, again.output
    assert "dev_5" in again.output
    assert "dev_6" not in again.output
    assert "more: --cursor 5" in again.output
    for row in page["items"]:  # whole, for whoever looks for an id in it
        shown = run("audit", "query", "--home", home, "--cursor", row["id"] + 1, "--limit", "1")
        lines = [line.strip() for line in shown.output.splitlines()]
        assert json.dumps(row["metadata"], separators=(",", ":")) in lines


def test_audit_filters_and_refuses_as_the_contract_says(home: Path) -> None:
    result = run("audit", "query", "--home", home, "--action", "no.such", "--json")
    assert json.loads(result.output) == {"items": []}
    assert run("audit", "query", "--home", home, "--from", "never").exit_code == 1
    result = run("audit", "query", "--home", home, "--to", "2001-01-01T00:00:00Z", "--json")
    assert json.loads(result.output) == {"items": []}


def test_a_time_is_shown_with_its_zone_and_one_that_is_none_with_how_to_write_it(
    home: Path,
) -> None:
    wrong = run("audit", "query", "--home", home, "--from", "yesterday")
    form = re.search(r"\S+Z\b", wrong.output)
    assert form is not None
    assert run("audit", "query", "--home", home, "--from", form[0]).exit_code == 0
    _, when, *_ = run("audit", "query", "--home", home, "--limit", "1").output.split()
    assert when.endswith("Z")


def forged(path: Path, record: object) -> Path:
    """A proof of whatever a stranger likes, under a key of theirs."""
    signer = Ed25519Signer(b"s" * 32)
    content = json.dumps(record, separators=(",", ":")).encode()
    checkpoint = Checkpoint(signer.key.name, 1, leaf_hash(content))
    note = sign_note(checkpoint.text(), key=signer.key, sign=signer.sign)
    proof = {
        "artifacts": {},
        "checkpoint": note,
        "format": PROOF_FORMAT,
        "index": 0,
        "key": str(signer.key),
        "proof": [],
        "record": content.decode(),
    }
    path.write_bytes(msgspec.json.encode(proof, order="sorted") + b"\n")
    return path


def test_a_strangers_proof_cannot_steer_the_terminal(tmp_path: Path) -> None:
    record = {"artifacts": {}, "kind": "\x1b[2Jdecision\u202e"}
    shown = run("evidence", "verify", forged(tmp_path / "proof.json", record))
    assert shown.exit_code == 0, shown.output
    assert "\x1b" not in shown.output
    assert "\u202e" not in shown.output
    assert "decision" in shown.output


def test_a_size_that_no_number_can_be_is_refused_with_a_sentence(home: Path) -> None:
    signer = Ed25519Signer.in_home(home)
    text = Checkpoint(signer.key.name, 7, bytes(32)).text().replace("\n7\n", f"\n{'9' * 5000}\n")
    place = home / "evidence" / "checkpoint"
    place.write_text(sign_note(text, key=signer.key, sign=signer.sign), encoding="utf-8")
    exporting = run("evidence", "export", "r7", "-o", home / "x.json", "--home", home)
    for result in (run("evidence", "verify", home), exporting):
        assert (result.exit_code, type(result.exception)) == (1, SystemExit)
        assert "decimal number" in result.stderr


@pytest.mark.parametrize("record", [{}, [], "x", 1, {"artifacts": 1}, {"artifacts": {}}])
def test_a_proof_of_what_is_no_record_is_refused(tmp_path: Path, record: object) -> None:
    shown = run("evidence", "verify", forged(tmp_path / "proof.json", record))
    assert shown.exit_code == 1
    assert isinstance(shown.exception, SystemExit)
    assert "no record" in shown.stderr


def test_a_log_that_claims_more_than_it_holds_is_refused_before_long(home: Path) -> None:
    signer = Ed25519Signer.in_home(home)
    claimed = Checkpoint(signer.key.name, 10**14, bytes(32))
    note = sign_note(claimed.text(), key=signer.key, sign=signer.sign)
    (home / "evidence" / "checkpoint").write_text(note, encoding="utf-8")
    result = run("evidence", "verify", home / "evidence", "--json")
    assert result.exit_code == 1
    assert 0 < len(json.loads(result.output)["problems"]) < 2000


def test_where_there_is_no_log_it_is_said_so_and_not_that_a_key_is_missing(tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "nowhere"):
        ended = CliRunner().invoke(main, ["evidence", "verify", "--home", str(place)])
        assert ended.exit_code == 1
        assert ended.stderr.startswith(f"toolgate: a log was not found in {place}: say with --home")


def test_what_is_in_the_way_of_an_export_is_named_in_words(home: Path, tmp_path: Path) -> None:
    over = run("evidence", "export", "--all", "-o", tmp_path, "--home", home)
    nowhere = run("evidence", "export", "r7", "-o", tmp_path / "no" / "proof", "--home", home)
    assert over.stderr == f"toolgate: {tmp_path}: File exists\n"
    assert nowhere.stderr == f"toolgate: {tmp_path}/no/proof: No such file or directory\n"
