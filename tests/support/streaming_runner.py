"""A foreign runner that streams its answer line by line, as the test sends it."""

import asyncio
import json
from typing import Any

from tests.support.runner import FakeRunner, whole

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/x-ndjson\r\nconnection: close\r\n\r\n"


class StreamingRunner(FakeRunner):
    """Use it as a context manager; each call is answered with the lines that come next."""

    def __init__(self) -> None:
        super().__init__(self._stream)
        self._lines: asyncio.Queue[bytes | None] = asyncio.Queue()

    def update(self, delta: str, at: str | None = None) -> None:
        self.send({"delta": delta} if at is None else {"delta": delta, "at": at})

    def result(self, output: str = "the end") -> None:
        self.send({"result": {"ok": True, "output": output}})

    def send(self, line: Any) -> None:
        self.send_bytes(json.dumps(line).encode() + b"\n")

    def send_bytes(self, data: bytes) -> None:
        self._lines.put_nowait(data)

    def end(self) -> None:
        self._lines.put_nowait(None)

    async def _stream(self, writer: asyncio.StreamWriter) -> None:
        if self.asked[-1].method != "POST":  # it knows one path
            await whole({"ok": False}, status=404)(writer)
            return
        writer.write(HEAD)
        while (line := await self._lines.get()) is not None:
            writer.write(line)
            await writer.drain()
        writer.close()
