"""Someone puts back a home, or takes something out of it: the mark outside of the home tells."""

import contextlib
import json
import shutil
import sqlite3
import subprocess
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.e2e.forked import toolgate
from tests.e2e.harness import PROGRAM, Client, Program, environment, running
from tests.e2e.test_bad_starts import refused
from toolgate.evidence.check import ClosedHome

EVENTS = 500  # how many the attack takes away
OPERATOR = "operator-of-this-test"
SETTINGS = {"OPERATOR_TOKEN": OPERATOR, "HEARTBEAT": "", "LOG_LEVEL": "warning"}


class Gateway:
    def __init__(self, program: Program, http: aiohttp.ClientSession) -> None:
        self.url, self.http = program.urls["gateway"], http

    async def operator(self, method: str, path: str, body: Any = None) -> Any:
        headers = {"Authorization": f"Bearer {OPERATOR}"}
        async with self.http.request(method, self.url + path, json=body, headers=headers) as answer:
            told = await answer.json()
            assert answer.status == 200, told
            return told["data"]


async def act(program: Program, *, calls: int, first: int = 0) -> None:
    """Tools that run, and things that the operator changes."""
    token = (program.home / "executor.token").read_text().strip()
    headers = {"Authorization": f"Bearer {token}"}
    async with aiohttp.ClientSession() as http:
        url = f"{program.urls['gateway']}/tool/run"
        for number in range(first, first + calls):
            args = {"a": number, "b": 1}
            body = {"request_id": f"call-{number}", "tool_id": "math.add", "args": args}
            async with http.post(url, json=body, headers=headers) as answer:
                assert answer.status == 200, await answer.text()
        gateway = Gateway(program, http)
        for number in range(first, first + 10):
            await gateway.operator("POST", "/tokens", {"name": f"script-{number}"})


def verify(home: Path) -> tuple[int, str]:
    ran = toolgate("evidence", "verify", "--home", str(home), env=environment({}))
    return ran.returncode, ran.stdout + ran.stderr


def change(home: Path, *statements: str) -> None:
    with contextlib.closing(sqlite3.connect(home / "journal.db")) as connection, connection:
        for statement in statements:
            connection.execute(statement)


AUDIT = "segment IN (SELECT id FROM segments WHERE stream = 'audit')"


@pytest.mark.requirement("001/resume/restored")
async def test_events_taken_from_the_end_together_with_the_evidence_are_found_at_the_start(
    tmp_path: Path,
) -> None:
    home = tmp_path / "home"
    async with running(home, **SETTINGS) as program:
        await act(program, calls=120)
        await program.stop()
    assert verify(home)[0] == 0
    change(
        home,
        f"DELETE FROM events WHERE position > (SELECT max(position) FROM events) - {EVENTS}",
        "UPDATE segments SET first = first",
    )
    (home / "journal.db-witness").unlink()
    shutil.rmtree(home / "evidence")
    code, said = verify(home)
    assert (code, "its mark" in said) == (1, True), said
    code, said = await refused(home, **SETTINGS)
    assert (code, "toolgate restore accept" in said) == (1, True), said


@pytest.mark.requirement("002/audit/recounted")
async def test_audit_rows_taken_away_or_changed_are_named_by_verify(tmp_path: Path) -> None:
    home = tmp_path / "home"
    async with running(home, **SETTINGS) as program:
        await act(program, calls=200)
        await program.stop()
    code, said = verify(home)
    assert (code, "audit rows" in said) == (0, True), said
    attacks: dict[str, tuple[tuple[str, ...], str]] = {
        "200 in the middle": (
            (f"DELETE FROM events WHERE {AUDIT} AND seq BETWEEN 5 AND 204",),
            "audit rows 5 to 204: missing",
        ),
        "all": ((f"DELETE FROM events WHERE {AUDIT}",), "audit rows 1 to 211: missing"),
        "the last": (
            (f"DELETE FROM events WHERE {AUDIT} AND seq = (SELECT max(seq) FROM events WHERE {AUDIT})",),
            "missing",
        ),
        "the first ten": ((f"DELETE FROM events WHERE {AUDIT} AND seq <= 10",), "audit rows 1 to 10: missing"),
        "one byte": (
            (f"UPDATE events SET data = CAST(replace(data, 'math.add', 'math.mul') AS BLOB) WHERE {AUDIT} AND seq = 7",),
            "audit row 7: not as",
        ),
        "a time": ((f"UPDATE events SET at = at + 1 WHERE {AUDIT} AND seq = 7",), "row 7: not as"),
        "one more": (
            (
                "INSERT INTO events SELECT position + 1000000, segment, seq + 1, type, at, subject,"
                f" data FROM events WHERE {AUDIT} ORDER BY seq DESC LIMIT 1",
            ),
            "under no record",
        ),
    }  # fmt: skip
    for name, (statements, expected) in attacks.items():
        copy = tmp_path / "copy"
        shutil.copytree(home, copy)
        change(copy, *statements)
        code, said = verify(copy)
        assert (code, expected in said) == (1, True), (name, said)
        shutil.rmtree(copy)


@pytest.mark.requirement("001/resume/restored")
async def test_the_documented_restore_is_accepted_once_and_clients_get_a_snapshot(
    tmp_path: Path,
) -> None:
    home, backup = tmp_path / "home", tmp_path / "backup"
    program = Program(home, SETTINGS, installed=True)
    await program.start()
    await act(program, calls=3)
    client = await Client.connect(program.urls["ingress_ws"])
    await client.invoke("before the copy")
    await client.hear_until("done")
    await client.close()
    assert await program.stop() == 0
    subprocess.run(["cp", "-a", home, backup], check=True)
    await program.start()
    back = await Client.connect(
        program.urls["ingress_ws"], session_id=client.session_id, last_seq=client.last_seq,
        epoch=client.ack["epoch"],
    )  # fmt: skip
    assert back.ack["resumed"] is True
    await back.invoke("after the copy", request_id="r2")
    await back.hear_until("done")
    await back.close()
    assert await program.stop() == 0
    subprocess.run(["cp", "-a", f"{backup}/.", f"{home}/"], check=True)

    code, said = await refused(home, **SETTINGS)
    assert (code, "toolgate restore accept" in said) == (1, True), said
    accepted = command("restore", "accept", home=home)
    assert accepted.returncode == 0, accepted.stderr
    assert "new epoch" in accepted.stdout
    again = command("restore", "accept", home=home)
    assert (again.returncode, "nothing to accept" in again.stdout) == (0, True), again

    await program.start()
    returned = await Client.connect(
        program.urls["ingress_ws"], session_id=client.session_id, last_seq=back.last_seq,
        epoch=back.ack["epoch"],
    )  # fmt: skip
    assert returned.ack["epoch"] != back.ack["epoch"]
    assert returned.ack["resumed"] is False
    await returned.close()
    await act(program, calls=3, first=50)
    await program.stop()
    code, said = verify(home)
    assert code == 0, said
    rows = json.loads(
        command("audit", "query", "--action", "restore.accepted", "--json", home=home).stdout
    )
    assert rows["items"][0]["metadata"]["to_position"] > 0
    records = [json.loads(line) for line in _records(home)]
    assert [one["kind"] for one in records if one["kind"] == "restored"] == ["restored"]


def command(*words: str, home: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [PROGRAM, *words, "--home", home],
        env=environment({}), capture_output=True, text=True, check=False, cwd=home.parent,
    )  # fmt: skip


def _records(home: Path) -> list[bytes]:
    with ClosedHome(home) as closed:
        return list(closed.records())
