"""A WebSocket client made by hand: it can break every rule, and it can stop reading."""

import asyncio
import base64
import contextlib
import os
import socket as sockets
import struct
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

from tests.e2e.harness import PATIENCE

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10


class Raw:
    """A WebSocket client that can break every rule."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, head: bytes
    ) -> None:
        self._reader = reader
        self._writer = writer
        self.head = head  # how the server took up the connection

    @classmethod
    async def open(
        cls, url: str, *, receive_buffer: int = 0, headers: str = "", patience: float = PATIENCE
    ) -> "Raw":
        parts = urlsplit(url)
        connected = sockets.socket(sockets.AF_INET, sockets.SOCK_STREAM)
        if receive_buffer:
            connected.setsockopt(sockets.SOL_SOCKET, sockets.SO_RCVBUF, receive_buffer)
        connected.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(connected, (parts.hostname, parts.port))
        reader, writer = await asyncio.open_connection(
            sock=connected, limit=receive_buffer or 2**16
        )
        key = base64.b64encode(os.urandom(16)).decode()
        writer.write(
            f"GET {parts.path} HTTP/1.1\r\nHost: {parts.netloc}\r\nUpgrade: websocket\r\n"
            f"Connection: Upgrade\r\nSec-WebSocket-Key: {key}\r\n"
            f"Sec-WebSocket-Version: 13\r\n{headers}\r\n".encode()
        )
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), patience)
        assert b" 101 " in head
        return cls(reader, writer, head)

    def send(self, data: bytes) -> None:
        self._writer.write(data)

    def send_text(self, text: str) -> None:
        self.send(frame(TEXT, text.encode()))

    async def receive(self) -> tuple[int, bytes]:
        return await asyncio.wait_for(self._receive(), PATIENCE)

    async def receive_many(self, count: int, *, patience: float = PATIENCE) -> list[bytes]:
        """The payloads of so many frames; one bound for all of them."""
        async with asyncio.timeout(patience):
            return [(await self._receive())[1] for _ in range(count)]

    async def _receive(self) -> tuple[int, bytes]:
        first, second = await self._reader.readexactly(2)
        size = second & 0x7F
        if size == 126:
            (size,) = struct.unpack("!H", await self._reader.readexactly(2))
        elif size == 127:
            (size,) = struct.unpack("!Q", await self._reader.readexactly(8))
        return first & 0x0F, await self._reader.readexactly(size)

    async def until_cut(self) -> None:
        with contextlib.suppress(ConnectionError):
            assert await asyncio.wait_for(self._reader.read(), PATIENCE) is not None

    def stop_reading(self) -> None:
        self._writer.transport.pause_reading()  # type: ignore[attr-defined]

    def read_on(self) -> None:
        self._writer.transport.resume_reading()  # type: ignore[attr-defined]

    async def close(self) -> None:
        self._writer.transport.abort()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()


def frame(
    opcode: int,
    payload: bytes = b"",
    *,
    fin: bool = True,
    rsv: int = 0,
    masked: bool = True,
    length: bytes | None = None,
) -> bytes:
    head = bytes([(0x80 if fin else 0) | rsv << 4 | opcode])
    mask_bit = 0x80 if masked else 0
    if length is not None:
        head += bytes([mask_bit | length[0]]) + length[1:]
    elif len(payload) < 126:
        head += bytes([mask_bit | len(payload)])
    elif len(payload) < 2**16:
        head += bytes([mask_bit | 126]) + struct.pack("!H", len(payload))
    else:
        head += bytes([mask_bit | 127]) + struct.pack("!Q", len(payload))
    if not masked:
        return head + payload
    key = b"\x01\x02\x03\x04"
    size = len(payload)
    mask = int.from_bytes((key * (size // 4 + 1))[:size])
    return head + key + (int.from_bytes(payload) ^ mask).to_bytes(size)


@contextlib.asynccontextmanager
async def raw_client(url: str, *, receive_buffer: int = 0, headers: str = "") -> AsyncIterator[Raw]:
    raw = await Raw.open(url, receive_buffer=receive_buffer, headers=headers)
    try:
        yield raw
    finally:
        await raw.close()
