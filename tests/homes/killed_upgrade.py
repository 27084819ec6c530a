"""Upgrade copies of a home, each killed at another step: a statement, a sync or a change of a name.

    killed_upgrade.py HOME DIRECTORY FIRST STRIDE

makes DIRECTORY/<step> from HOME for FIRST, FIRST + STRIDE, ... until one is upgraded to the end.
"""

import os
import shutil
import signal
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from toolgate import settings as table
from toolgate.bootstrap.upgrading import upgrade_of
from toolgate.journal.sqlite import schema

NOW = 1_795_002_300_000


def upgrade(home: Path) -> None:
    settings = table.load({"TOOLGATE_HOME": str(home)}, environment={})
    change = upgrade_of(settings, now=NOW, redact=str)
    schema.open_file(home / "journal.db", now=NOW, upgrade=change).connection.close()


def kill_at(step: int) -> None:
    """Let this process die at the step of this number."""
    passed = 0

    def at_step(*_: object) -> None:
        nonlocal passed
        passed += 1
        if passed == step:
            os.kill(os.getpid(), signal.SIGKILL)

    def first(call: Callable[..., Any]) -> Callable[..., Any]:
        def stepping(*args: Any, **more: Any) -> Any:
            at_step()
            return call(*args, **more)

        return stepping

    connect = sqlite3.connect

    def traced(*args: Any, **more: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(*args, **more)
        connection.set_trace_callback(at_step)
        return connection

    sqlite3.connect = first(traced)
    for name in ("fsync", "rename", "open"):
        setattr(os, name, first(getattr(os, name)))


def main() -> None:
    home, directory, step, stride = Path(sys.argv[1]), Path(sys.argv[2]), *map(int, sys.argv[3:])
    while True:
        copy = directory / str(step)
        shutil.copytree(home, copy)
        child = os.fork()
        if child == 0:
            kill_at(step)
            upgrade(copy)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if status == 0:
            return
        if not os.WIFSIGNALED(status):
            sys.exit(f"step {step} failed")
        step += stride


if __name__ == "__main__":
    main()
