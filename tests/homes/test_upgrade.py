"""The homes of 0.1.0 after the upgrade, before anything else of a start has looked at them."""

import contextlib
import hashlib
import logging
import os
import sqlite3
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
from click.testing import CliRunner

from tests.homes.killed_upgrade import NOW
from toolgate import settings as table
from toolgate.bootstrap.sealing import KEY_FILE, LOST
from toolgate.bootstrap.upgrading import upgrade_of
from toolgate.cli.main import main
from toolgate.core.errors import Damaged, Misconfigured, ToolgateError
from toolgate.evidence.signer import Commitments
from toolgate.journal.sqlite import schema
from toolgate.journal.sqlite.upgrade import kept_path
from toolgate.secrets.aesgcm_seal import AesGcmSeal
from toolgate.tools.approval_records import decode as decode_approval
from toolgate.tools.approvals import Approval, binding_of

HERE: Final = Path(__file__).parent
HOMES: Final = ("up", "ingress", "orchestrator")
KILLED: Final = HERE / "killed_upgrade.py"


@pytest.fixture
def homes(tmp_path: Path) -> Path:
    """The homes, on the disk where they were written: their files say their inode and boot."""
    with tarfile.open(HERE / "0.1.0.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    for name in HOMES:
        path = tmp_path / name / "journal.db"
        with contextlib.closing(sqlite3.connect(path)) as connection, connection:
            schema.write_meta(connection, "inode", str(path.stat().st_ino))
            schema.write_meta(connection, "boot", schema.BOOT_ID.read_text().strip())
    return tmp_path


class Content:
    """All that a file holds."""

    def __init__(self, path: Path) -> None:
        with contextlib.closing(sqlite3.connect(path)) as connection:
            (self.version,) = connection.execute("PRAGMA user_version").fetchone()
            self.rows = {
                (collection, key): (version, value, due)
                for collection, key, version, value, due in connection.execute("SELECT * FROM rows")
            }
            self.events: list[Any] = connection.execute(
                "SELECT position, stream, seq, type, at, subject, data"
                " FROM events JOIN segments ON segments.id = segment ORDER BY position"
            ).fetchall()
            self.fences = connection.execute("SELECT * FROM fences").fetchall()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Content) and vars(self) == vars(other)

    def of(self, collection: str) -> dict[str, bytes]:
        return {key: row[1] for (name, key), row in self.rows.items() if name == collection}

    def json(self, collection: str) -> dict[str, Any]:
        return {key: msgspec.json.decode(value) for key, value in self.of(collection).items()}


def approvals_of(home: Path) -> dict[str, Approval]:
    rows = Content(home / "journal.db").of("approvals")
    return {key: decode_approval(value).at(NOW) for key, value in sorted(rows.items())}


def upgrade(home: Path, **settings: str) -> str:
    """The epoch of the home after its upgrade."""
    given = table.load({"TOOLGATE_HOME": str(home), **settings}, environment={})
    change = upgrade_of(given, now=NOW, redact=str)
    opened = schema.open_file(home / "journal.db", now=NOW, upgrade=change)
    opened.connection.close()
    opened.witness.close()
    return opened.vouches_since


def refusal(home: Path, **settings: str) -> ToolgateError:
    """The error of an upgrade that changes nothing."""
    before = Content(home / "journal.db")
    with pytest.raises(ToolgateError) as refused:
        upgrade(home, **settings)
    assert "\n" not in str(refused.value)
    assert Content(home / "journal.db") == before
    return refused.value


def files_of(directory: Path) -> dict[str, str]:
    return {
        str(file.relative_to(directory)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in directory.rglob("*")
        if file.is_file()
    }


def verified(home: Path) -> str:
    """What `toolgate evidence verify` says of a home that it finds whole."""
    ran = CliRunner().invoke(main, ["evidence", "verify", "--home", str(home)])
    assert ran.exit_code == 0, ran.output
    return ran.output


@pytest.mark.parametrize("name", HOMES)
def test_epoch_positions_audit_and_evidence_stay_as_they_were(homes: Path, name: str) -> None:
    home = homes / name
    before, evidence = Content(home / "journal.db"), files_of(home)
    inode = (home / "journal.db").stat().st_ino
    with contextlib.closing(sqlite3.connect(home / "journal.db")) as connection:
        epoch = schema.read_meta(connection, "epoch")
    assert upgrade(home) == epoch
    assert (home / "journal.db").stat().st_ino == inode
    after = Content(home / "journal.db")
    assert after.version == schema.VERSION
    assert after.events[: len(before.events)] == before.events
    assert {event[1] for event in after.events[len(before.events) :]} <= {"gateway"}
    assert after.fences == before.fences
    kept = files_of(home)
    assert {name: kept[name] for name in evidence if "journal.db" not in name} == {
        name: digest for name, digest in evidence.items() if "journal.db" not in name
    }
    assert Content(kept_path(home / "journal.db")) == before


@pytest.mark.parametrize("name", ["up", "orchestrator"])
def test_the_evidence_verifies_before_and_after(homes: Path, name: str) -> None:
    before = verified(homes / name)
    upgrade(homes / name)
    assert verified(homes / name) == before


def test_rows_that_nothing_changes_in_keep_their_version(homes: Path) -> None:
    before = Content(homes / "up" / "journal.db")
    upgrade(homes / "up")
    after = Content(homes / "up" / "journal.db")
    for name in ("devices", "services", "kv", "schedules", "sessions", "session_runs", "ended_runs",
                 "requests", "agents", "capabilities", "execution_targets", "policy_on_record",
                 "file_artifacts", "task_artifacts", "executions_finished"):  # fmt: skip
        assert {key: row for key, row in before.rows.items() if key[0] == name} == {
            key: row for key, row in after.rows.items() if key[0] == name
        }
    for name in ("calls", "run_approvals", "untold_ends"):
        assert not after.of(name)


def test_what_was_sealed_still_is(homes: Path) -> None:
    upgrade(homes / "up")
    seal = AesGcmSeal.in_file(homes / "up" / KEY_FILE)
    after = Content(homes / "up" / "journal.db")
    for name in ("open_commands", "commands"):
        assert after.of(name)
        for value in after.of(name).values():
            assert isinstance(msgspec.msgpack.decode(seal.open(value)), dict)
    for secret in (b'"requestId": "waiting"', b'"name":"math.add","success"'):
        assert not [key for key, row in after.rows.items() if secret in row[1]]


def test_calls_have_their_states_runs_and_deadlines(homes: Path) -> None:
    before = Content(homes / "up" / "journal.db")
    upgrade(homes / "up")
    after = Content(homes / "up" / "journal.db")
    calls = after.json("executions")
    states = {key: call["state"] for key, call in calls.items() if key.startswith("call-")}
    assert states == {
        "call-ended": "SUCCEEDED",
        "call-denied": "BLOCKED",
        "call-waiting": "WAITING_APPROVAL",
        "call-running": "RUNNING",
    }
    assert all(call["run_id"] for call in calls.values())
    of_runs = before.json("calls")
    for key in of_runs:
        assert calls[key]["run_id"] == of_runs[key]["run_id"]
    released = [key for key, call in calls.items() if call["state"] == "DISPATCHED"]
    for key in released:
        assert after.rows["executions", key][2] == before.rows["calls", key][2]
    for call in calls.values():
        is_open = call["state"] in {"WAITING_APPROVAL", "RUNNING", "DISPATCHED"}
        assert ("details" in call) == is_open
        if is_open:
            assert call["details"]["caller"]["tenant"] == "t_default"


def test_waiting_approvals_are_bound_to_their_rule(homes: Path) -> None:
    before = Content(homes / "up" / "journal.db")
    upgrade(homes / "up")
    after = Content(homes / "up" / "journal.db")
    pending = after.of("open_approvals")
    assert pending.keys() == before.of("open_approvals").keys()
    for key, value in pending.items():
        approval, old = decode_approval(value), decode_approval(before.of("open_approvals")[key])
        assert approval.rule_digest
        assert approval.binding != old.binding
        assert approval.expires_at == old.expires_at
        assert after.of("approvals")[key] == value
        assert after.rows["approvals", key][2] == before.rows["approvals", key][2]


def test_an_approval_whose_rule_is_gone_expires_at_the_next_look(homes: Path) -> None:
    (homes / "up" / "policy.yaml").write_text("version: 1\nname: other\ndefault: deny\nrules: []\n")
    before = Content(homes / "up" / "journal.db")
    upgrade(homes / "up")
    after = Content(homes / "up" / "journal.db")
    for key, value in after.of("open_approvals").items():
        assert decode_approval(value).at(NOW).status == "EXPIRED"
        assert after.rows["approvals", key][2] <= NOW
    assert after.of("open_approvals").keys() == before.of("open_approvals").keys()


def test_only_an_approval_whose_arguments_are_not_known_any_more_expires(homes: Path) -> None:
    """Where the evidence has them redacted, a run and a command still have them."""
    path = homes / "up" / "journal.db"
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(
            "UPDATE events SET data = CAST(replace(CAST(data AS TEXT), ?, ?) AS BLOB)"
            " WHERE type = 'decision'",
            ('"args":{"a":1,"b":2}', '"args":{"a":"[secret]"}'),
        )
    upgrade(homes / "up")
    waiting = [key for key, one in approvals_of(homes / "up").items() if one.status == "PENDING"]
    assert [key.partition("_")[2].partition("_")[0] for key in waiting] == ["cmd", "tc"]


def test_an_approval_stays_bound_to_its_place(homes: Path) -> None:
    home = homes / "up"
    target = AesGcmSeal.in_file(home / KEY_FILE).open(
        Content(home / "journal.db").of("execution_targets")["runner"]
    )
    place = f"runner docker-runner {msgspec.json.decode(target)['endpoint']}"
    commit = Commitments.in_home(home)
    old = approvals_of(home)["apr_call-waiting"]

    def bound(rule: str) -> str:
        return commit(binding_of(old.tool, {"a": 1, "b": 2}, target=place, rule=rule).encode())

    with contextlib.closing(sqlite3.connect(home / "journal.db")) as connection, connection:
        connection.execute(
            "UPDATE rows SET value = CAST(replace(CAST(value AS TEXT), ?, ?) AS BLOB)"
            " WHERE key = 'apr_call-waiting'",
            (old.binding, bound(old.policy_version)),
        )
    upgrade(home)
    new = approvals_of(home)["apr_call-waiting"]
    assert new.status == "PENDING"
    assert new.binding == bound(new.rule_digest)


@pytest.mark.parametrize("is_same_policy", [True, False])
def test_an_answer_that_was_given_counts_under_the_same_policy_only(
    homes: Path, is_same_policy: bool
) -> None:
    home = homes / "up"
    with contextlib.closing(sqlite3.connect(home / "journal.db")) as connection, connection:
        connection.execute(
            "UPDATE rows SET value = CAST(replace(CAST(value AS TEXT), ?, ?) AS BLOB)"
            " WHERE key = 'apr_call-waiting' AND collection = 'approvals'",
            ('"PENDING"', '"APPROVED"'),
        )
    if not is_same_policy:
        policy = home / "policy.yaml"
        policy.write_text(policy.read_text().replace("A person decides", "Somebody decides"))
    upgrade(home)
    approval = approvals_of(home)["apr_call-waiting"]
    assert approval.status == "APPROVED"
    assert bool(approval.rule_digest) == is_same_policy


def test_keys_keep_their_answers_and_commands_that_wait_keep_waiting(homes: Path) -> None:
    upgrade(homes / "up")
    after = Content(homes / "up" / "journal.db")
    seal = AesGcmSeal.in_file(homes / "up" / KEY_FILE)

    def opened(name: str) -> dict[str, Any]:
        return {
            key: msgspec.msgpack.decode(seal.open(value)) for key, value in after.of(name).items()
        }

    ended, waiting, keys = opened("commands"), opened("open_commands"), after.of("idempotency")
    assert len(keys) == 6
    for slot, used_by in keys.items():
        command = ended.get(used_by.decode()) or waiting[used_by.decode()]
        assert command["key"] == slot.partition("\n")[2]
        assert command["request_hash"]
    by_request = {key.split("\n")[1]: command for key, command in ended.items()}
    assert {name: one["status"] for name, one in by_request.items()} == {
        "ended": 200, "approve": 200, "reject": 403, "rated": 200, "running": 500,
    }  # fmt: skip
    assert b"may_have_executed" in by_request["running"]["body"]
    assert {key.split("\n")[1] for key in waiting} == {"waiting", "run"}


def test_a_command_that_left_no_row_has_one_end(homes: Path) -> None:
    upgrade(homes / "up")
    events = [
        (msgspec.json.decode(data), at)
        for _, stream, _, _, at, _, data in Content(homes / "up" / "journal.db").events
        if stream == "gateway"
    ]
    of_running = [
        (event, at) for event, at in events if event["metadata"].get("requestId") == "running"
    ]
    (started, _), (failed, at) = of_running
    assert (started["status"], failed["status"]) == ("started", "failed")
    assert failed["metadata"] == started["metadata"]
    assert (failed["message"], at) == ("file.read failed", NOW)
    for waiting in ("waiting", "run"):
        statuses = [e["status"] for e, _ in events if e["metadata"].get("requestId") == waiting]
        assert statuses == ["started", "pending"]


def test_a_write_that_was_interrupted_is_not_run_again_under_its_key(homes: Path) -> None:
    path = homes / "up" / "journal.db"
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(  # as of a command that ran when 0.1.0 was killed
            "DELETE FROM rows WHERE collection = 'open_commands' AND key IN"
            " (SELECT substr(subject, 1, length(subject) - 2) FROM events"
            " WHERE subject LIKE 'cmd_%' AND type = 'decision')"
        )
    upgrade(homes / "up")
    after = Content(path)
    seal = AesGcmSeal.in_file(homes / "up" / KEY_FILE)
    used_by = after.of("idempotency")["phone\nkey-waiting"].decode()
    ended = msgspec.msgpack.decode(seal.open(after.of("commands")[used_by]))
    assert (ended["status"], ended["key"]) == (500, "key-waiting")
    assert b"may_have_executed" in ended["body"]
    assert after.rows["commands", used_by][2] == NOW + 600_000
    ends = [
        msgspec.json.decode(event[-1])["metadata"]["requestId"]
        for event in after.events
        if event[1] == "gateway" and b'"durationMs"' in event[-1]
    ]
    assert ends.count("waiting") == 1


def test_task_runs_and_their_keys_are_the_operators(homes: Path) -> None:
    before = Content(homes / "up" / "journal.db")
    upgrade(homes / "up")
    after = Content(homes / "up" / "journal.db")
    tasks = after.json("task_runs")
    assert tasks.keys() == before.of("task_runs").keys()
    assert {one["owner"] for one in tasks.values()} == {"operator"}
    assert sorted(after.of("task_keys").values()) == sorted(before.of("task_keys").values())
    assert not after.of("task_keys").keys() & before.of("task_keys").keys()


CHANGED: Final = {
    "up": (
        "approvals", "capabilities", "commands", "execution_targets", "executions", "idempotency",
        "open_commands", "open_runs", "task_runs",
    ),
    "orchestrator": ("approvals", "executions", "open_runs"),
}  # fmt: skip


@pytest.mark.parametrize(
    ("home", "collection"), [(home, name) for home, names in CHANGED.items() for name in names]
)
def test_a_damaged_row_is_named_and_nothing_is_changed(
    homes: Path, home: str, collection: str
) -> None:
    path = homes / home / "journal.db"
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        (key,) = connection.execute(
            "SELECT max(key) FROM rows WHERE collection = ?", (collection,)
        ).fetchone()
        connection.execute(
            "UPDATE rows SET value = ? WHERE collection = ? AND key = ?",
            (b'{"state": 3' + bytes(30), collection, key),
        )
    refused = refusal(homes / home)
    assert isinstance(refused, Damaged)
    if (home, collection) != ("up", "execution_targets"):  # the only row: the key cannot be right
        assert repr(key) in str(refused)
        assert collection in str(refused)


@pytest.mark.parametrize(
    ("stream", "kind", "data"),
    [
        ("run/%", "turn_ended", b'{"text": 3}'),
        ("gateway", "tool", b'{"metadata": {"command": "tool"}}'),
        ("evidence", "decision", b'{"fields": [], "artifacts": {"requests/a/request.json": ""}}'),
    ],
)
def test_a_damaged_event_is_named_and_nothing_is_changed(
    homes: Path, stream: str, kind: str, data: bytes
) -> None:
    path = homes / "up" / "journal.db"
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(
            "UPDATE events SET data = ? WHERE type = ? AND segment IN"
            " (SELECT id FROM segments WHERE stream LIKE ?)",
            (data, kind, stream),
        )
    refused = refusal(homes / "up")
    assert isinstance(refused, Damaged)
    assert f"of {stream.rstrip('%')}" in str(refused)


def test_a_lost_seal_key_is_asked_for_before_anything_is_changed(
    homes: Path, caplog: pytest.LogCaptureFixture
) -> None:
    home = homes / "up"
    (home / KEY_FILE).unlink()
    assert LOST in str(refusal(home))
    assert not (home / KEY_FILE).exists()
    (home / LOST).touch()
    with caplog.at_level(logging.WARNING):
        upgrade(home)
    after = Content(home / "journal.db")
    for name in ("open_commands", "commands", "idempotency"):
        assert not after.of(name)
    assert after.of("agents"), (
        "the start that follows forgets them, with the others that it can name"
    )
    (line,) = [text for text in caplog.messages if "upgrade_dropped" in text]
    assert "open_commands=2 commands=6 idempotency=6" in line


def test_a_wrong_seal_key_is_refused(homes: Path) -> None:
    (homes / "up" / KEY_FILE).write_bytes(bytes(32))
    assert isinstance(refusal(homes / "up"), Damaged)


def test_a_policy_that_does_not_load_is_refused(homes: Path) -> None:
    (homes / "up" / "policy.yaml").write_text("rules: 3")
    assert isinstance(refusal(homes / "up"), Misconfigured)


@pytest.mark.soak("kills", rounds=200, short=20)
def test_a_kill_at_any_step_leaves_the_old_file_or_the_new_one(
    homes: Path, tmp_path: Path, rounds: int
) -> None:
    """The upgrade of this home has some 200 steps."""
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    before = Content(homes / "up" / "journal.db")
    subprocess.run(["cp", "-a", homes / "up", whole], check=True)
    upgrade(whole)
    reference = Content(whole / "journal.db")
    subprocess.run(
        [sys.executable, KILLED, homes / "up", killed, "1", str(200 // rounds)],
        check=True,
        capture_output=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    versions = []
    for home in sorted(killed.iterdir(), key=lambda each: int(each.name)):
        left = Content(home / "journal.db")
        versions.append(left.version)
        if left.version == 1:
            assert left == before
        upgrade(home)
        done = Content(home / "journal.db")
        assert done.version == schema.VERSION
        assert done.rows.keys() == reference.rows.keys()
        assert done.events == reference.events
        assert Content(kept_path(home / "journal.db")) == before
        assert not [each for each in home.iterdir() if "part" in each.name]
    assert versions == sorted(versions)
    assert {1, schema.VERSION} <= set(versions)
    assert len(versions) >= rounds // 2
