"""Reads documents in processes of their own, so that a hostile one costs nobody else any time."""

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

import msgspec

from toolgate.tasks.document_worker import Asked, Found

log = logging.getLogger(__name__)

WORKERS: Final = 2
CPU_S: Final = 20  # of one document; a usual page takes 0.1 s
LIMIT_S: Final = 120.0  # of one document, on a machine however busy; its CPU has a limit of its own
LARGEST_ANSWER: Final = 64 * 1024**2

_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(Found).decode


@dataclass(eq=False)
class _Worker:
    process: asyncio.subprocess.Process

    async def read(self, asked: Asked) -> Found:
        stdin, stdout = self.process.stdin, self.process.stdout
        assert stdin is not None
        assert stdout is not None
        message = _encode(asked)
        stdin.write(len(message).to_bytes(4) + message)
        await stdin.drain()
        length = int.from_bytes(await stdout.readexactly(4))
        if length > LARGEST_ANSWER:
            raise ValueError("the answer is too large")
        return _decode(await stdout.readexactly(length))

    async def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        await self.process.wait()


class DocumentReader:
    """Starts its workers when the first document comes; one that fails or hangs is replaced."""

    def __init__(self, *, workers: int = WORKERS, cpu_s: int = CPU_S) -> None:
        self._room = asyncio.Semaphore(workers)
        self._cpu_s = cpu_s
        self._idle: list[_Worker] = []
        self._all: set[_Worker] = set()

    async def read_html(self, html: str, *, url: str) -> Found | None:
        """The main text of a page as it is rendered; None if it could not be read in time."""
        return await self._read(Asked("html", url, html.encode("utf-8", "replace")))

    async def read_pdf(self, content: bytes, *, url: str) -> Found | None:
        return await self._read(Asked("pdf", url, content))

    async def close(self) -> None:
        for worker in list(self._all):
            await worker.end()
        self._all.clear()
        self._idle.clear()

    async def _read(self, asked: Asked) -> Found | None:
        try:
            async with self._worker() as worker:
                async with asyncio.timeout(LIMIT_S):
                    return await worker.read(asked)
        except (TimeoutError, OSError, EOFError, ValueError, msgspec.DecodeError) as failed:
            log.warning("document_unread kind=%s error=%s", asked.kind, type(failed).__name__)
            return None

    @asynccontextmanager
    async def _worker(self) -> AsyncIterator[_Worker]:
        async with self._room:
            worker = self._idle.pop() if self._idle else await self._start()
            try:
                yield worker
            except BaseException:  # it may be in the middle of something
                self._all.discard(worker)
                await asyncio.shield(worker.end())
                raise
            self._idle.append(worker)

    async def _start(self) -> _Worker:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "toolgate.tasks.document_worker", str(self._cpu_s),
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        worker = _Worker(process)
        self._all.add(worker)
        return worker
