"""The agent as a program of its own, spoken to byte by byte, without the host's end."""

import contextlib
import marshal
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from toolgate.sandbox import agent

BOUND = 10.0


class Program:
    def __init__(self, workspace: Path) -> None:
        self.ours, theirs = socket.socketpair()
        self.ours.settimeout(BOUND)
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-S", agent.__file__, str(workspace)],
            stdin=theirs.fileno(),
            stdout=theirs.fileno(),
        )
        theirs.close()
        assert self.frame()[0] == agent.READY

    def frame(self) -> tuple[int, bytes]:
        kind, _, length = agent.FRAME.unpack(self.ours.recv(agent.FRAME.size, socket.MSG_WAITALL))
        return kind, self.ours.recv(length, socket.MSG_WAITALL) if length else b""

    def send(self, *messages: dict[str, Any]) -> None:
        """All of them in one piece."""
        packed = [marshal.dumps(message, 2) for message in messages]
        self.ours.sendall(b"".join(agent.LENGTH.pack(len(each)) + each for each in packed))


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Program]:
    program = Program(tmp_path)
    yield program
    program.ours.close()
    program.process.kill()
    program.process.wait(BOUND)


def a_command(text: str, *, wall: float) -> dict[str, Any]:
    known = {"interpreter": "shell", "cwd": "", "env": {"PATH": os.defpath}, "drain": 0.1}
    return {
        "op": "exec",
        "id": 1,
        "text": text,
        "wall": wall,
        "keep": 1000,
        "flood": 10_000,
        "files": 10_000,
    } | known


def test_a_kill_that_comes_in_one_piece_with_its_command_is_heard(program: Program) -> None:
    program.send(a_command("sleep 30", wall=5), {"op": "kill", "id": 1})
    kind, payload = program.frame()
    assert kind == agent.ENDED
    assert agent.END.unpack(payload)[1] == agent.KILLED


def test_a_host_that_goes_without_having_read_all_leaves_no_command_behind(
    program: Program,
) -> None:
    program.send(a_command("echo $$; exec sleep 60", wall=60))
    head = program.ours.recv(agent.FRAME.size, socket.MSG_WAITALL)
    said = program.ours.recv(agent.FRAME.unpack(head)[2], socket.MSG_PEEK)  # stays unread
    command = int(said)
    try:
        program.ours.close()
        program.process.wait(BOUND)
        assert ended(command)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(command, signal.SIGKILL)


def ended(pid: int) -> bool:
    deadline = time.monotonic() + 2
    while time.monotonic() < deadline:
        state = Path(f"/proc/{pid}/stat")
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if state.read_text().rpartition(")")[2].split()[0] != "Z":
                time.sleep(0.01)
                continue
        return True
    return False
