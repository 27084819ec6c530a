"""A runner that a test writes the answers of, down to the bytes; it remembers what it was asked."""

import asyncio
import contextlib
import json
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any


@dataclass(frozen=True, slots=True)
class Asked:
    method: str
    target: str
    headers: dict[str, str]  # names in lower case
    body: Any


Answer = Callable[[asyncio.StreamWriter], Awaitable[None]]


def whole(
    body: object, *, status: int = 200, content_type: str = "application/json", **headers: str
) -> Answer:
    """An answer of one piece; bytes are sent as they are, anything else as JSON."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()

    async def answer(writer: asyncio.StreamWriter) -> None:
        lines = {"content-type": content_type, "content-length": str(len(content)), **headers}
        head = f"HTTP/1.1 {status} X\r\n" + "".join(f"{k}: {v}\r\n" for k, v in lines.items())
        writer.write(head.encode() + b"\r\n" + content)

    return answer


class FakeRunner:
    def __init__(self, answer: Answer, *, tls: ssl.SSLContext | None = None) -> None:
        self.answer = answer
        self._tls = tls
        self.asked: list[Asked] = []
        self.heard = asyncio.Event()  # a request has come
        self.connections = 0
        self.gone = asyncio.Event()  # a caller has closed its connection
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        assert self._server is not None
        scheme = "https" if self._tls else "http"
        return f"{scheme}://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/execute"

    async def __aenter__(self) -> "FakeRunner":
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0, ssl=self._tls)
        return self

    async def __aexit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.ensure_future(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                self.asked.append(await _read(reader))
                self.heard.set()
                answering = asyncio.ensure_future(self.answer(writer))
                closing = asyncio.ensure_future(self._watch(reader))
                try:
                    await asyncio.wait([answering, closing], return_when=asyncio.FIRST_COMPLETED)
                    if not answering.done():
                        return
                    await writer.drain()
                finally:
                    answering.cancel()
                    closing.cancel()
                    await asyncio.gather(answering, closing, return_exceptions=True)
        except (asyncio.IncompleteReadError, OSError):
            self.gone.set()
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _watch(self, reader: asyncio.StreamReader) -> None:
        """Ends when the caller hangs up; a caller waits for its answer before it says more."""
        while not reader.at_eof():
            await asyncio.sleep(0.005)
        self.gone.set()


async def _read(reader: asyncio.StreamReader) -> Asked:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    method, target, _ = head[0].split(" ")
    pairs = (line.partition(":") for line in head[1:] if line)
    headers = {name.lower(): value.strip() for name, _, value in pairs}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Asked(method, target, headers, json.loads(body) if body else None)
