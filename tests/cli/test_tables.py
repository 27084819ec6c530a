"""Tables: whole ids on whole lines in a pipe, whole words in a narrow terminal."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import termios

import pytest
from click.testing import CliRunner

from tests.e2e.harness import PATIENCE, PROGRAM, environment
from toolgate.cli.main import main
from toolgate.cli.operator import show
from toolgate.settings import table

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


def in_a_terminal_of(columns: int, *arguments: str) -> str:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    with subprocess.Popen(
        [PROGRAM, *arguments],
        env=environment({"TERM": "xterm"}),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    ) as process:
        os.close(theirs)
        written = b""
        try:
            while chunk := os.read(ours, 65536):
                written += chunk
        except OSError:  # how Linux says that the other side is closed
            pass
        finally:
            os.close(ours)
        process.wait(timeout=PATIENCE)
    return re.sub(r"\x1b\[[0-9;]*m", "", written.decode())


def test_a_narrow_terminal_breaks_no_word() -> None:
    shown = in_a_terminal_of(30, "settings")
    assert all(one.name in shown for one in table())
    assert "How long a session may be away" not in shown  # sentences are broken, between words
    assert all(word in shown.split() for one in table() for word in one.meaning.split())
