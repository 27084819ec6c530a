"""Tables: whole ids on whole lines in a pipe, whole words in a narrow terminal."""

import asyncio
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.cli.terminals import in_a_terminal
from toolgate.cli.events import _print as print_event
from toolgate.cli.main import main
from toolgate.cli.operator import show
from toolgate.evidence.audit import AuditEntry, AuditLog
from toolgate.journal.local_bus import LocalBus
from toolgate.journal.sqlite.journal import SqliteJournal
from toolgate.secrets.patterns import SecretPatterns
from toolgate.settings import table
from toolgate.testing.clock import FakeClock

DEVICE = {
    "deviceId": "a-device-with-a-rather-long-name-0123456789-0123456789-abcdefghijklmnop",
    "code": "C9NJMK",
    "ip": "127.0.0.1",
    "userAgent": "Mozilla/5.0 (X11; Linux x86_64; rv:109.0) Gecko/20100101 Firefox/115.0",
}
COLUMNS = {"device": "deviceId", "code": "code", "from": "ip", "program": "userAgent"}


def test_a_row_is_one_line_in_a_pipe_with_every_value_whole(
    capsys: pytest.CaptureFixture[str],
) -> None:
    show([DEVICE, {**DEVICE, "deviceId": "phone"}], COLUMNS, as_json=False)
    head, first, second = capsys.readouterr().out.splitlines()
    assert head.split() == list(COLUMNS)
    assert all(value in first for value in DEVICE.values())
    assert second.startswith("phone ")
    assert first == first.rstrip()


def test_the_settings_are_a_line_each_in_a_pipe() -> None:
    lines = CliRunner().invoke(main, ["settings"]).stdout.splitlines()
    assert [line.split()[0] for line in lines[1:]] == [one.name for one in table()]
    assert [line for line in lines[1:] if not line.endswith(".")] == []


def test_the_tests_of_a_policy_are_a_line_each_in_a_pipe() -> None:
    lines = CliRunner().invoke(main, ["policy", "test"]).stdout.splitlines()
    assert {line.split()[0] for line in lines[1:-1]} == {"pass"}
    assert "rules[0] (never-destroy).tests[0]" in "\n".join(lines)
    assert "…" not in "".join(lines)


def test_a_narrow_terminal_breaks_no_word() -> None:
    shown = re.sub(r"\x1b\[[0-9;]*m", "", in_a_terminal("settings", columns=30))
    assert all(one.name in shown for one in table())
    assert "How long a session may be away" not in shown  # sentences are broken, between words
    assert all(word in shown.split() for one in table() for word in one.meaning.split())


FORGED = "x\n999  2026-11-16T15:00:00  policy.changed  operator  policy/team"


def test_a_name_with_a_line_break_makes_no_row_of_its_own(
    capsys: pytest.CaptureFixture[str],
) -> None:
    show([{"deviceId": FORGED}], {"device": "deviceId"}, as_json=False)
    assert len(capsys.readouterr().out.splitlines()) == 2
    event: dict[str, object] = {"id": 1, "type": "tool", "source": "gateway", "message": FORGED}
    print_event(event, as_json=False)
    assert len(capsys.readouterr().out.splitlines()) == 1


def test_a_tool_with_a_line_break_in_its_name_forges_no_row_of_the_audit(tmp_path: Path) -> None:
    async def write() -> None:
        clock = FakeClock()
        bus = LocalBus()
        journal = await SqliteJournal.open(tmp_path / "journal.db", clock=clock, bus=bus)
        audit = AuditLog(journal, redactor=SecretPatterns().redactor())
        await audit.record(AuditEntry(action="tool.run", actor="system", resource_id=FORGED))
        await journal.close()

    asyncio.run(write())
    rows = CliRunner().invoke(main, ["audit", "query", "--home", str(tmp_path)]).stdout
    assert "policy.changed" in rows
    assert len(rows.splitlines()) == 2
