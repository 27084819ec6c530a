"""The calls of the past, as a pipeline's ledger has recorded them."""

import json
from collections.abc import Sequence
from pathlib import Path

from click.testing import CliRunner

from toolgate.cli.main import main
from toolgate.core.enums import Level
from toolgate.core.ids import Owner
from toolgate.core.tools import Caller, ToolRequest
from toolgate.evidence.audit import AuditLog
from toolgate.evidence.check import ClosedHome
from toolgate.evidence.log import EvidenceLog
from toolgate.evidence.signer import Commitments, Ed25519Signer
from toolgate.evidence.tiles import TileFiles
from toolgate.journal.disk_blobs import DiskBlobs
from toolgate.journal.local_bus import LocalBus
from toolgate.journal.sqlite.journal import SqliteJournal
from toolgate.policy.history import recorded_calls
from toolgate.policy.model import Decision, Effect
from toolgate.policy.simulate import RecordedCall
from toolgate.secrets.patterns import SecretPatterns
from toolgate.testing.clock import FakeClock
from toolgate.tools.calls import Call, described
from toolgate.tools.ledger import Ledger

CALLER = Caller(role="dev", device="d1", agent="script", level=Level.SIGN, session="s1")
CALLS = [
    RecordedCall(ToolRequest("r1", "kv.get", {"key": "x"}, CALLER), Level.READ, Effect.DENY, "a"),
    RecordedCall(ToolRequest("r2", "shell", {"command": "ls"}), Level.WRITE, Effect.DENY, "b"),
]
POLICY = """
version: 1
rules:
  - {id: devs, allow: kv.get, match: {level: read}, for: {role: dev}, reason: It only reads}
"""


async def record_calls(home: Path, calls: Sequence[RecordedCall] = CALLS) -> None:
    clock, bus = FakeClock(), LocalBus()
    redactor = SecretPatterns().redactor()
    journal = await SqliteJournal.open(home / "journal.db", clock=clock, bus=bus)
    evidence = await EvidenceLog.open(
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
    ledger = Ledger(journal, evidence, audit, clock, owner=Owner("test", "1"))
    for each in calls:
        request = each.call
        call = Call(
            request=request,
            shown=evidence.canonical(described(request)),
            fingerprint="f",
            engine_ref="e",
            level=each.level,
        )
        await ledger.refuse(
            call,
            Decision(each.effect, each.rule_id, "why", "v", "policy.default"),
            also=lambda _: (),
        )
    await evidence.close()
    await journal.close()


async def test_what_was_decided_can_be_decided_again(tmp_path: Path) -> None:
    await record_calls(tmp_path)
    with ClosedHome(tmp_path) as home:
        assert list(recorded_calls(home)) == CALLS


async def test_a_call_whose_request_is_gone_is_passed_over(tmp_path: Path) -> None:
    """The record says that there was one; what it was cannot be decided again."""
    large = ToolRequest("r3", "shell", {"command": "ls " + "x" * 100_000})
    await record_calls(tmp_path, [RecordedCall(large, Level.WRITE, Effect.DENY, "c"), *CALLS])
    (blob,) = [path for path in (tmp_path / "blobs").rglob("*") if path.is_file()]
    blob.unlink()
    with ClosedHome(tmp_path) as home:
        assert list(recorded_calls(home)) == CALLS


async def test_a_candidate_is_tried_on_the_calls_of_a_home(tmp_path: Path) -> None:
    await record_calls(tmp_path)
    candidate = tmp_path / "candidate.yaml"
    candidate.write_text(POLICY)
    asked = ["policy", "simulate", str(candidate), "--home", str(tmp_path), "--json"]
    result = CliRunner().invoke(main, asked)
    facts = json.loads(result.stdout)
    assert (facts["calls"], facts["changed"]) == (2, 1)
    assert facts["changes"][0]["would_be"]["rule_id"] == "devs"
    assert result.exit_code == 1


def test_a_home_that_is_none_is_said_so(tmp_path: Path) -> None:
    candidate = tmp_path / "candidate.yaml"
    candidate.write_text(POLICY)
    result = CliRunner().invoke(
        main, ["policy", "simulate", str(candidate), "--home", str(tmp_path / "nowhere")]
    )
    assert result.exit_code == 1
    assert "not found" in result.stderr
