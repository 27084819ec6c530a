"""The pipe to a browser: what closes it closes nothing else."""

import asyncio
import os
import threading
from pathlib import Path

import pytest
import uvloop

from toolgate.browser.cdp.connection import CdpConnection
from toolgate.core.errors import Unavailable

LAUNCHES = 10


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


class Files:
    """Opens and closes files in a thread of its own, as a reader of the journal does."""

    def __init__(self) -> None:
        self.stolen = 0  # files that somebody else closed
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work)

    def _work(self) -> None:
        while not self._stop.is_set():
            files = [os.open(os.devnull, os.O_RDONLY) for _ in range(8)]
            for file in files:
                try:
                    os.close(file)
                except OSError:
                    self.stolen += 1

    def __enter__(self) -> "Files":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


def test_a_browser_that_does_not_come_up_closes_no_file_of_another_thread(tmp_path: Path) -> None:
    async def launch() -> None:
        for _ in range(LAUNCHES):
            with pytest.raises(Unavailable):
                await CdpConnection(lost=lambda: None).start("/bin/false", home=tmp_path)

    with Files() as files:
        uvloop.run(launch())
    assert files.stolen == 0


async def test_a_browser_that_does_not_come_up_leaves_no_pipe(tmp_path: Path) -> None:
    before = open_files()
    with pytest.raises(Unavailable):
        await CdpConnection(lost=lambda: None).start("/bin/false", home=tmp_path)
    await asyncio.sleep(0)
    assert open_files() == before
