"""The agent as a program of its own, spoken to byte by byte, without the host's end."""

import marshal
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from toolgate.adapters import sandbox_agent as agent

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
    } | known


def test_a_kill_that_comes_in_one_piece_with_its_command_is_heard(program: Program) -> None:
    program.send(a_command("sleep 30", wall=5), {"op": "kill", "id": 1})
    kind, payload = program.frame()
    assert kind == agent.ENDED
    assert agent.END.unpack(payload)[1] == agent.KILLED
