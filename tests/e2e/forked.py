"""`toolgate up`, to be killed by the hundred: each process is forked from one that has imported it."""

import asyncio
import json
import multiprocessing
import os
import signal
import sys
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Self

from tests.e2e.harness import ANY_PORT, PATIENCE, environment
from toolgate.cli.start import run

_forks = multiprocessing.get_context("forkserver")
_forks.set_forkserver_preload(["toolgate.cli.up", __name__])


@dataclass
class ForkedProgram:
    """As Program, but for the time that the imports take."""

    home: Path
    settings: dict[str, str]
    urls: dict[str, str] = field(default_factory=dict)
    process: ForkServerProcess | None = None

    async def start(self) -> Self:
        given = environment({**ANY_PORT, "TOOLGATE_HOME": str(self.home), **self.settings})
        ready, told = _forks.Pipe(duplex=False)
        with ready, told:
            self.process = _forks.Process(target=_up, args=(given, self.home, told))
            await asyncio.to_thread(self.process.start)
            told.close()
            with os.fdopen(os.dup(ready.fileno())) as lines:
                line = await asyncio.wait_for(asyncio.to_thread(lines.readline), 3 * PATIENCE)
        assert line, f"it did not start: {self.home.with_suffix('.log').read_text()[-2000:]}"
        self.urls = json.loads(line)["urls"]
        return self

    async def kill(self) -> None:
        """As the kernel would, with no chance to tidy up."""
        assert self.process is not None
        self.process.kill()
        await asyncio.to_thread(self.process.join, PATIENCE)
        assert self.process.exitcode == -signal.SIGKILL
        self.process.close()


def _up(given: dict[str, str], home: Path, told: Connection) -> None:
    """In the forked process: what a shell does before it starts a program, then the program."""
    os.environ.clear()
    os.environ.update(given)
    os.chdir(home.parent)
    log = os.open(home.with_suffix(".log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for number, name in ((told.fileno(), "stdout"), (log, "stderr")):
        stream = getattr(sys, name)
        os.dup2(number, stream.fileno())
        setattr(sys, name, os.fdopen(stream.fileno(), "w", closefd=False))
    sys.argv = ["toolgate", "up"]
    run()
