"""A forward proxy behind the guard: the way out for a sandbox or a browser, and the only one.

It speaks CONNECT and absolute-form HTTP/1.1 with one request per connection, so that a second
request can never ride on the check of the first. Each target is resolved here, checked here, and
connected to at the address that was checked.
"""

import asyncio
import base64
import binascii
import contextlib
import hmac
import logging
import re
import socket
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from toolgate.core.addresses import Host
from toolgate.core.concurrency import Background
from toolgate.core.errors import Invalid, ToolgateError, Unavailable
from toolgate.core.urls import parse_url, split_authority
from toolgate.web.guard import Guard, connect
from toolgate.web.web import Blocked

log = logging.getLogger(__name__)

CHUNK: Final = 65536
UNREACHABLE: Final = "unreachable"  # the reason of a decision that came to nothing
_REQUEST_LINE: Final = re.compile(r"([A-Z]{3,16}) ([\x21-\x7e]{1,8192}) HTTP/1\.[01]")
# The blanks around a value are taken off afterwards: a pattern can part them in too many ways.
_HEADER: Final = re.compile(r"([A-Za-z0-9!#$%&'*+.^_`|~-]+):([\t\x20-\x7e\x80-\xff]*)")
_CHUNK_SIZE: Final = re.compile(rb"([0-9A-Fa-f]{1,8})(?:;[\x20-\x7e\t]*)?\r\n")
_HOP_BY_HOP: Final = frozenset(
    {"connection", "keep-alive", "te", "trailer", "upgrade", "host", "expect", "via"}
)


@dataclass(frozen=True, slots=True)
class ProxyLimits:
    connections: int = 256
    head_bytes: int = 32 * 1024
    head_s: float = 10.0
    connect_s: float = 10.0
    idle_s: float = 60.0
    bytes_each_way: int = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Client:
    """Who is behind a connection, and which hosts they may reach."""

    name: str = ""
    allows: Callable[[str, int], bool] = lambda _host, _port: True


@dataclass(frozen=True, slots=True)
class EgressDecision:
    client: str
    method: str
    host: str
    port: int
    allowed: bool
    reason: str = ""


Decided = Callable[[EgressDecision], Awaitable[None] | None]  # awaited before a byte goes out

ANYONE: Final = Client()
DEFAULT_LIMITS: Final = ProxyLimits()
NO_PAGES: Final[Mapping[str, str]] = {}


def unnoted(_: EgressDecision) -> None:
    """For a proxy whose decisions nobody records."""


@dataclass(frozen=True, slots=True)
class _Head:
    method: str
    target: str
    headers: tuple[tuple[str, str], ...]

    def all(self, name: str) -> list[str]:
        return [value for key, value in self.headers if key.lower() == name]


class _Answer(Exception):
    """The request ends here, with this status and sentence."""

    def __init__(self, status: int, reason: str, *, headers: str = "") -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason
        self.headers = headers


class _Activity:
    """When bytes last moved in either direction."""

    def __init__(self) -> None:
        self._last = asyncio.get_running_loop().time()

    async def wait(self, reading: Coroutine[None, None, bytes], idle_s: float) -> bytes:
        loop = asyncio.get_running_loop()
        task = loop.create_task(reading)
        try:
            while not task.done():
                left = self._last + idle_s - loop.time()
                if left <= 0:
                    raise TimeoutError
                await asyncio.wait([task], timeout=left)
        finally:
            task.cancel()
        self.moved()
        return task.result()

    def moved(self) -> None:
        self._last = asyncio.get_running_loop().time()


class EgressProxy:
    """Listens until closed. With `clients`, a request must carry one of their tokens."""

    def __init__(
        self,
        guard: Guard,
        *,
        clients: Mapping[str, Client] | None = None,
        default: Client = ANYONE,
        decided: Decided = unnoted,
        limits: ProxyLimits = DEFAULT_LIMITS,
        pages: Mapping[str, str] = NO_PAGES,
    ) -> None:
        """`clients` maps a token (the password of Proxy-Authorization: Basic) to who has it;
        `pages` are addresses that are answered here, with this HTML, and lead nowhere."""
        self._guard = guard
        self._clients = clients
        self._default = default
        self._decided = decided
        self._limits = limits
        self._pages = pages
        self._servers: list[asyncio.Server] = []
        self._open = Background()

    async def listen_tcp(self, host: str = "127.0.0.1", port: int = 0) -> int:
        """Listen on a loopback address; returns the port."""
        server = await asyncio.start_server(self._accept, host, port, limit=self._limits.head_bytes)
        self._servers.append(server)
        return int(server.sockets[0].getsockname()[1])

    async def listen_unix(self, path: Path) -> None:
        server = await asyncio.start_unix_server(self._accept, path, limit=self._limits.head_bytes)
        self._servers.append(server)

    async def close(self) -> None:
        for server in self._servers:
            server.close()
        await self._open.stop()
        for server in self._servers:
            await server.wait_closed()
        self._servers.clear()

    async def __aenter__(self) -> "EgressProxy":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._open) >= self._limits.connections:
            writer.write(_status(503, "too many connections"))
            writer.close()
            return
        self._open.start(self._serve(reader, writer))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._serve_one(reader, writer)
        except _Answer as answer:
            with contextlib.suppress(OSError):
                writer.write(_status(answer.status, answer.reason, answer.headers))
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError) as gone:
            log.debug("egress_gone error=%s", type(gone).__name__)
        finally:
            await self._hang_up(writer)

    async def _serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await self._read_head(reader)
        client = self._identify(head)
        if head.method == "GET" and head.target in self._pages:
            writer.write(_reply("200 OK", "text/html", self._pages[head.target]))
            await writer.drain()
            return
        host, port, onward = _plan(head)
        if _length(head) > self._limits.bytes_each_way:
            raise _Answer(413, f"a body has at most {self._limits.bytes_each_way} bytes")
        upstream_reader, upstream = await self._reach(client, head.method, host, port)
        try:
            if head.method == "CONNECT":
                writer.write(b"HTTP/1.1 200 Connection Established\r\n\r\n")
                await self._tunnel(reader, writer, upstream_reader, upstream)
            else:
                upstream.write(onward)
                activity = _Activity()
                async with asyncio.TaskGroup() as both:
                    sending = both.create_task(self._send_body(head, reader, upstream, activity))
                    await self._pump(upstream_reader, writer, activity)
                    sending.cancel()
        except* (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as gone:
            log.debug("egress_ended errors=%d", len(gone.exceptions))
        finally:
            await self._hang_up(upstream)

    async def _hang_up(self, writer: asyncio.StreamWriter) -> None:
        """Let out what is still to be sent, to one who reads it; not where the proxy closes."""
        task = asyncio.current_task()
        writer.close()
        try:
            if task is not None and not task.cancelling():
                async with asyncio.timeout(self._limits.idle_s):
                    await writer.wait_closed()
        except OSError as gone:
            log.debug("egress_gone error=%s", type(gone).__name__)
        finally:
            writer.transport.abort()

    async def _read_head(self, reader: asyncio.StreamReader) -> _Head:
        try:
            async with asyncio.timeout(self._limits.head_s):
                raw = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            raise _Answer(431, "the head of the request is too large") from None
        except TimeoutError:
            raise _Answer(408, "the head of the request took too long") from None
        return _parse_head(raw)

    def _identify(self, head: _Head) -> Client:
        if self._clients is None:
            return self._default
        token = _token(head)
        for known, client in self._clients.items():
            if hmac.compare_digest(known.encode(), token.encode()):
                return client
        raise _Answer(
            407,
            "the proxy needs a token",
            headers='Proxy-Authenticate: Basic realm="toolgate"\r\n',
        )

    async def _reach(
        self, client: Client, method: str, host: Host, port: int
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        decision = EgressDecision(client.name, method, host.name, port, allowed=True)
        try:
            if not client.allows(host.name, port):
                raise Blocked(f"{host.name}:{port}", "not a host that was granted")
            sock = await connect(self._guard, host, port, timeout_s=self._limits.connect_s)
        except Blocked as blocked:
            await self._tell(replace(decision, allowed=False, reason=blocked.reason))
            raise _Answer(403, str(blocked)) from None
        except (Unavailable, TimeoutError) as unavailable:
            await self._tell(replace(decision, reason=UNREACHABLE))
            raise _Answer(502, str(unavailable) or f"{host.name}:{port} is too slow") from None
        try:
            await self._tell(decision)
        except BaseException:
            sock.close()
            raise
        return await _streams(sock)

    async def _tell(self, decision: EgressDecision) -> None:
        """What cannot be recorded does not happen."""
        try:
            told = self._decided(decision)
            if told is not None:
                await told
        except ToolgateError as unrecorded:
            log.warning("egress_unrecorded error=%s", type(unrecorded).__name__)
            raise _Answer(503, "the connection could not be recorded") from None

    async def _tunnel(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        upstream_reader: asyncio.StreamReader,
        upstream: asyncio.StreamWriter,
    ) -> None:
        activity = _Activity()
        async with asyncio.TaskGroup() as both:
            both.create_task(self._pump(reader, upstream, activity))
            both.create_task(self._pump(upstream_reader, writer, activity))

    async def _pump(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, activity: "_Activity"
    ) -> None:
        """Copy until the end, a silence both ways that is too long, or the limit."""
        room = self._limits.bytes_each_way
        while chunk := await activity.wait(source.read(CHUNK), self._limits.idle_s):
            room -= len(chunk)
            if room < 0:
                raise ConnectionAbortedError("byte limit")
            sink.write(chunk)
            async with asyncio.timeout(self._limits.idle_s):
                await sink.drain()
        if sink.can_write_eof():
            with contextlib.suppress(OSError):
                sink.write_eof()

    async def _send_body(
        self,
        head: _Head,
        reader: asyncio.StreamReader,
        upstream: asyncio.StreamWriter,
        activity: _Activity,
    ) -> None:
        """Exactly the body of this request, and not a byte of a next one."""
        if head.all("transfer-encoding"):
            await self._send_chunks(reader, upstream, activity)
            return
        room = _length(head)
        while room > 0:
            async with asyncio.timeout(self._limits.idle_s):
                chunk = await reader.read(min(CHUNK, room))
            if not chunk:
                raise ConnectionAbortedError("the body is incomplete")
            upstream.write(chunk)
            await upstream.drain()
            activity.moved()
            room -= len(chunk)

    async def _send_chunks(
        self, reader: asyncio.StreamReader, upstream: asyncio.StreamWriter, activity: _Activity
    ) -> None:
        size = sent = 1
        while size:
            async with asyncio.timeout(self._limits.idle_s):
                line = await reader.readuntil(b"\r\n")
                framed = _CHUNK_SIZE.fullmatch(line)
                if framed is None:
                    raise ConnectionAbortedError("not a chunk")
                size = int(framed[1], 16)
                sent += size
                if sent > self._limits.bytes_each_way:
                    raise ConnectionAbortedError("byte limit")
                upstream.write(b"%x\r\n" % size)
                left = size
                while left:
                    piece = await reader.read(min(CHUNK, left))
                    if not piece:
                        raise ConnectionAbortedError("the body is incomplete")
                    upstream.write(piece)
                    await upstream.drain()
                    activity.moved()
                    left -= len(piece)
                if await reader.readexactly(2) != b"\r\n":  # trailers aren't passed on
                    raise ConnectionAbortedError("not the end of a chunk")
                upstream.write(b"\r\n")
        await upstream.drain()


async def _streams(sock: socket.socket) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection(sock=sock)


def _parse_head(raw: bytes) -> _Head:
    lines = raw[:-4].decode("latin-1").split("\r\n")
    first = _REQUEST_LINE.fullmatch(lines[0])
    headers = [_HEADER.fullmatch(line) for line in lines[1:]]
    if first is None or len(headers) > 200:
        raise _Answer(400, "not a request that a proxy understands")
    pairs: list[tuple[str, str]] = []
    for header in headers:
        if header is None:
            raise _Answer(400, "not a header")
        pairs.append((header[1], header[2].strip(" \t")))
    head = _Head(first[1], first[2], tuple(pairs))
    lengths, codings = head.all("content-length"), head.all("transfer-encoding")
    if len(lengths) + len(codings) > 1:
        raise _Answer(400, "the length of the body is said twice")
    if any(not re.fullmatch(r"[0-9]{1,15}", length) for length in lengths):
        raise _Answer(400, "not a length")
    if any(coding.lower() != "chunked" for coding in codings):
        raise _Answer(501, "only chunked bodies are understood")
    return head


def _length(head: _Head) -> int:
    return int((head.all("content-length") or ["0"])[0])


def _token(head: _Head) -> str:
    scheme, _, value = (head.all("proxy-authorization") or [""])[0].partition(" ")
    if scheme.lower() == "bearer":
        return value.strip()
    if scheme.lower() != "basic":
        return ""
    try:
        return base64.b64decode(value, validate=True).decode().partition(":")[2]
    except (binascii.Error, UnicodeDecodeError):
        return ""


def _plan(head: _Head) -> tuple[Host, int, bytes]:
    """Where a request wants to go, and its head as the other side shall see it."""
    try:
        if head.method == "CONNECT":
            host, port = split_authority(head.target)
            return host, port, b""
        url = parse_url(head.target)
    except Invalid as invalid:
        raise _Answer(403, f"refused: {invalid}") from None
    if url.scheme != "http":
        raise _Answer(403, "refused: https goes through CONNECT")
    dropped = _HOP_BY_HOP | {
        name.strip().lower() for value in head.all("connection") for name in value.split(",")
    }
    kept = [
        f"{name}: {value}"
        for name, value in head.headers
        if name.lower() not in dropped - {"content-length", "transfer-encoding"}
        and not name.lower().startswith("proxy-")
    ]
    lines = [f"{head.method} {url.target} HTTP/1.1", f"Host: {url.authority}", *kept]
    onward = "\r\n".join([*lines, "Connection: close", "", ""]).encode("latin-1")
    return url.host, url.port, onward


_PHRASES: Final = {
    400: "Bad Request", 403: "Forbidden", 407: "Proxy Authentication Required",
    408: "Request Timeout", 413: "Content Too Large", 431: "Request Header Fields Too Large",
    501: "Not Implemented", 502: "Bad Gateway", 503: "Service Unavailable",
}  # fmt: skip


def _status(status: int, reason: str, headers: str = "") -> bytes:
    line = f"{status} {_PHRASES[status]}"
    return _reply(line, "text/plain", f"toolgate: {reason}\n", headers)


def _reply(status: str, kind: str, text: str, headers: str = "") -> bytes:
    body = text.encode()
    return (
        f"HTTP/1.1 {status}\r\n{headers}"
        f"Content-Type: {kind}; charset=utf-8\r\nContent-Length: {len(body)}\r\n"
        "Connection: close\r\n\r\n"
    ).encode() + body
