"""What every HTTP surface shares: JSON answers, bearer checks, body limits, server-sent events.

It knows no contract: a surface says what its own errors look like on the wire.
"""

import asyncio
import contextlib
import errno
import hmac
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, MutableMapping
from typing import Any, Final

import msgspec
import uvicorn
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from toolgate.domain.errors import Misconfigured

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Endpoint = Callable[[Request], Awaitable[Response]]

DEFAULT_BODY_LIMIT: Final = 1_000_000  # "413 over 1 MB" (gateway contract)

# Longer than our own clients keep a connection that they do not use (aiohttp: 15 s): what is sent
# just as it closes is lost, and nobody could say whether it was done.
KEEP_ALIVE_S: Final = 30
DRAIN_S: Final = 5  # how long requests under way may take when a listener stops


class BodyTooLarge(Exception):
    def __init__(self, limit: int) -> None:
        super().__init__(f"the body is larger than {limit} bytes")
        self.limit = limit


class Json(Response):
    """An answer whose content is already the thing to encode."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return msgspec.json.encode(content)


async def read_body(request: Request, *, limit: int = DEFAULT_BODY_LIMIT) -> bytes:
    """The whole body; raises BodyTooLarge as soon as the limit is passed, declared or not."""
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > limit:
        raise BodyTooLarge(limit)
    chunks: list[bytes] = []
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > limit:
            raise BodyTooLarge(limit)
        chunks.append(chunk)
    return b"".join(chunks)


def bearer(request: Request) -> str:
    """The bearer token of a request; empty where it has none."""
    # Callers write it as UTF-8; it was read as if each byte were a character.
    header = request.headers.get("authorization", "").encode("latin-1").decode("utf-8", "replace")
    scheme, _, token = header.partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def same_secret(given: str, expected: str) -> bool:
    return hmac.compare_digest(given.encode(), expected.encode())


def server_sent_event(data: bytes, *, event: str = "", event_id: str = "") -> bytes:
    """One event in the standard's framing; `data` must hold no line break (JSON does not)."""
    head = (f"id: {event_id}\n" if event_id else "") + (f"event: {event}\n" if event else "")
    return head.encode() + b"data: " + data + b"\n\n"


def event_stream(chunks: AsyncIterator[bytes]) -> StreamingResponse:
    return StreamingResponse(
        chunks,
        media_type="text/event-stream",
        headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
    )


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are the process's business, not a listener's."""
        yield


class Listener:
    """One HTTP listener on a socket that is bound already."""

    def __init__(self, app: App, bound: socket.socket, *, websockets: bool = False) -> None:
        config = uvicorn.Config(
            app,
            loop="none",
            http="httptools",
            ws="websockets-sansio" if websockets else "none",
            ws_max_size=DEFAULT_BODY_LIMIT,
            lifespan="off",
            access_log=False,
            log_config=None,
            server_header=False,
            date_header=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=DRAIN_S,
        )
        self._bound = bound
        self._server = _Server(config)
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._task = asyncio.create_task(self._server.serve(sockets=[self._bound]))
        while not self._server.started and not self._task.done():  # noqa: ASYNC110 - no event
            await asyncio.sleep(0)
        if self._task.done():
            await self._task  # it says why it does not listen

    async def stop(self) -> None:
        self._server.should_exit = True
        if self._task is not None:
            await self._task


def bind(host: str, port: int, *, setting: str, listen: bool = False) -> socket.socket:
    """A socket to listen on; Misconfigured, naming the setting, where it cannot be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Named, because asyncio turns Nagle's delay off only for sockets whose protocol it can see.
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((host, port))
        if listen:  # of two that are bound at the same time only one may
            bound.listen()
    except OSError as refused:
        bound.close()
        raise Misconfigured(f"{host}:{port} {_why_not(refused, setting)}") from refused
    bound.setblocking(False)
    return bound


def _why_not(refused: OSError, setting: str) -> str:
    another = f"set {setting} to another port (0: any)"
    if refused.errno == errno.EADDRINUSE:
        return f"is in use; stop what holds it, or {another}"
    if isinstance(refused, socket.gaierror) or refused.errno == errno.EADDRNOTAVAIL:
        return f"cannot be had: {refused}; set HOST to an address of this machine"
    return f"cannot be had: {refused}; {another}"
