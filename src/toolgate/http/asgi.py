"""What every HTTP surface shares: JSON answers, bearer checks, body limits, server-sent events.

It knows no contract: a surface says what its own errors look like on the wire.
"""

import asyncio
import contextlib
import errno
import hmac
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, MutableMapping
from functools import lru_cache
from ipaddress import ip_address
from typing import Any, Final

import msgspec
import uvicorn
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from toolgate.core.concurrency import Stopped, unless
from toolgate.core.errors import Invalid, Misconfigured

log = logging.getLogger(__name__)

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Refused = Callable[[str, str], None]
"""(address, path) of a caller that nobody knows, and who is not let in."""
Endpoint = Callable[[Request], Awaitable[Response]]

# In a request's scope: the gate's caller, as whoever authenticated the request knows it.
CALLER: Final = "toolgate.caller"

UNAUTHENTICATED: Final = 4401  # the close code of every WebSocket contract
DEFAULT_BODY_LIMIT: Final = 1_000_000  # "413 over 1 MB" (gateway contract)

# Longer than our own clients keep a connection that they do not use (aiohttp: 15 s): what is sent
# just as it closes is lost, and nobody could say whether it was done.
KEEP_ALIVE_S: Final = 30
HEAD_LIMIT: Final = (
    16_384  # bytes of a request before its body; as the WebSocket listener (picows) has it
)
PATIENCE_S: float = 30.0  # for a whole head to come, and for more of a body
LATE_S: Final = 0.02  # a loop so late was busy: data may wait that it has not read
UNREAD_MS: int = 60_000  # for a reader to take what it was sent
_STATUS_LINE: Final = b"HTTP/1.1 "
_HEAD_TOO_LARGE: Final = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\n"
    b"content-length: 0\r\nconnection: close\r\n\r\n"
)

DRAIN_S: Final = 5  # how long requests under way may take when a listener stops
ENDING_S: Final = 3.0  # and those that are cut off then, to end what they began
LOOK_S: Final = 0.05  # between two looks at what streams owe, when one is about to


LOCAL_NAMES: Final = frozenset({"localhost", "localhost.localdomain"})
EVENT_STREAM: Final = "text/event-stream"
STREAM_HEADERS: Final = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


class BodyTooLarge(Exception):
    def __init__(self, limit: int) -> None:
        super().__init__(f"the body is larger than {limit} bytes")
        self.limit = limit


class HalfBody(Invalid, ClientDisconnect):
    """The sender has gone: nobody reads an answer, and the log has no failure."""


class Json(Response):
    """An answer whose content is already the thing to encode."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return msgspec.json.encode(content)


async def read_body(request: Request, *, limit: int = DEFAULT_BODY_LIMIT) -> bytes:
    """The whole body; raises as `receive_body`."""
    declared = request.headers.get("content-length", "")
    return await receive_body(declared, request.receive, limit=limit)


async def receive_body(
    declared: str, receive: Receive, *, limit: int = DEFAULT_BODY_LIMIT
) -> bytes:
    """The whole body; `declared` is its Content-Length.

    Raises BodyTooLarge as soon as the limit is passed, declared or not; HalfBody.
    """
    if declared.isdigit() and int(declared) > limit:
        raise BodyTooLarge(limit)
    message = await receive()
    chunks = [message.get("body", b"")]
    size = len(chunks[0])
    while size <= limit and message.get("more_body"):
        message = await receive()
        chunks.append(message.get("body", b""))
        size += len(chunks[-1])
    if size > limit:
        raise BodyTooLarge(limit)
    if message["type"] == "http.disconnect":
        raise HalfBody("the sender went away before the end of the body")
    return b"".join(chunks)


def bearer(request: Request) -> str:
    """The bearer token of a request; empty where it has none."""
    # Callers write it as UTF-8; it was read as if each byte were a character.
    header = request.headers.get("authorization", "").encode("latin-1").decode("utf-8", "replace")
    scheme, _, token = header.partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def is_of_a_page(request: Request) -> bool:
    """Whether a page in a browser sends it, and not a program or whoever sits there.

    Any page can reach loopback, and needs no answer to have done something. One that lets its own
    name stand for our address reads without an Origin: the Host tells.
    """
    headers = request.headers
    return (
        "origin" in headers
        or headers.get("sec-fetch-site", "none") != "none"
        or _may_be_rebound(headers.get("host", ""))
    )


def _may_be_rebound(host: str) -> bool:
    """Tell if somebody elsewhere can let this name stand for any address.

    Not a name without a dot, such as a compose service's: there are none in the public DNS.
    """
    name, is_address = host_name(host)
    is_local = is_address or name in LOCAL_NAMES or name.endswith(".localhost")
    return "." in name and not is_local


@lru_cache(maxsize=256)
def host_name(host: str) -> tuple[str, bool]:
    """Without its port, an IPv6 address without its brackets; and whether it is an address."""
    host = host.strip().lower()
    if host.startswith("["):
        name = host[1:].partition("]")[0]
    else:
        name = host.partition(":")[0].rstrip(".")
    try:
        ip_address(name)
    except ValueError:
        return name, False
    return name, True


def same_secret(given: str, expected: str) -> bool:
    return hmac.compare_digest(given.encode(), expected.encode())


def server_sent_event(data: bytes, *, event: str = "", event_id: str = "") -> bytes:
    """One event in the standard's framing; `data` must hold no line break (JSON does not)."""
    head = (f"id: {event_id}\n" if event_id else "") + (f"event: {event}\n" if event else "")
    return head.encode() + b"data: " + data + b"\n\n"


def event_stream(chunks: AsyncIterator[bytes]) -> StreamingResponse:
    return StreamingResponse(chunks, media_type=EVENT_STREAM, headers=STREAM_HEADERS)


class Streams:
    """Answers without an end of their own: a listener that stops would wait for them in vain.

    Once told to end, each of them does so as soon as it owes its reader nothing more: it hears that
    the reader has gone, which is what it must cope with anyway, and the reader gets a proper end.
    """

    def __init__(self) -> None:
        self._open: dict[asyncio.Event, Callable[[], bool]] = {}
        self._ending = False

    async def serve(
        self, app: App, scope: Scope, receive: Receive, send: Send, *, owes: Callable[[], bool]
    ) -> None:
        over = asyncio.Event()
        begun = finished = False

        async def hearing() -> Message:
            try:
                return await unless(over.wait(), receive())
            except Stopped:
                return {"type": "http.disconnect"}

        async def noting(message: Message) -> None:
            nonlocal begun, finished
            begun, finished = (
                True,
                message["type"].endswith("body") and not message.get("more_body"),
            )
            await send(message)

        self._open[over] = owes
        if self._ending:
            asyncio.get_running_loop().call_soon(self._look)
        try:
            await app(scope, hearing, noting)
        finally:
            self._open.pop(over, None)
        if over.is_set() and begun and not finished:
            await send({"type": "http.response.body", "body": b""})

    def end(self) -> None:
        self._ending = True
        self._look()

    def _look(self) -> None:
        for over, owes in tuple(self._open.items()):
            if not owes():
                del self._open[over]
                over.set()
        if self._open:
            asyncio.get_running_loop().call_later(LOOK_S, self._look)


class EventStream(StreamingResponse):
    """One of these streams, of server-sent events."""

    def __init__(
        self, chunks: AsyncIterator[bytes], streams: Streams, owes: Callable[[], bool]
    ) -> None:
        super().__init__(chunks, media_type=EVENT_STREAM, headers=STREAM_HEADERS)
        self._streams = streams
        self._owes = owes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._streams.serve(super().__call__, scope, receive, send, owes=self._owes)


class _Joined:
    """A transport that sends a response's head together with the first bytes of its body.

    uvicorn writes them apart, and each write is a system call that wakes the client. It has the
    members that uvicorn uses: a `__getattr__` would slow every access down.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self.whole = transport
        self.is_closing = transport.is_closing
        self.get_extra_info = transport.get_extra_info
        self.pause_reading = transport.pause_reading
        self.resume_reading = transport.resume_reading
        self.set_protocol = transport.set_protocol
        self._call_soon = loop.call_soon
        self._head = b""

    def write(self, data: bytes) -> None:
        if self._head:
            head, self._head = self._head, b""
            self.whole.writelines((head, data))
        elif data.startswith(_STATUS_LINE):
            self._head = data
            self._call_soon(self._flush)  # a body may come much later
        else:
            self.whole.write(data)

    def close(self) -> None:
        self._flush()
        self.whole.close()

    def _flush(self) -> None:
        if self._head:
            self.write(b"")


class _Connection(HttpToolsProtocol):
    """A connection whose requests have an end: a head of some size, and no silence in the middle.

    Nobody is known yet who sends a head; uvicorn would take one of any size, and wait for ever.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(_Joined(transport, self.loop))  # type: ignore[arg-type]
        self._in_head, self._is_whole = True, False
        self._head_size = 0
        self._began = False  # a head, in what is being read
        self._heard_at = self.loop.time()
        self._look_later(PATIENCE_S)

    def connection_lost(self, exc: Exception | None) -> None:
        self._looking.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if not self._in_head:
            self._heard_at = self.loop.time()  # a head has its time once
        self._began = False
        super().data_received(data)
        if self._in_head and not self._began:  # the read it began in may hold others' bodies
            self._head_size += len(data)
        if self._head_size > HEAD_LIMIT and not self.transport.is_closing():
            self.transport.write(_HEAD_TOO_LARGE)
            self.transport.close()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head, self._is_whole = True, False
        self._head_size, self._began = 0, True
        self._heard_at = self.loop.time()

    def on_headers_complete(self) -> None:
        lines = sum(len(name) + len(value) + 4 for name, value in self.headers)  # with ": \r\n"
        first = len(self.parser.get_method()) + len(self.url) + len(" HTTP/1.1 \r\n")
        if first + lines + len("\r\n") > HEAD_LIMIT:  # one that came in a single read
            self._head_size = HEAD_LIMIT + 1
            raise ValueError("the head is too large")
        super().on_headers_complete()
        self._in_head = False

    def send_400_response(self, msg: str) -> None:
        if self._head_size <= HEAD_LIMIT:  # else it is refused as too large
            super().send_400_response(msg)

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._is_whole = True

    def handle_websocket_upgrade(self) -> None:
        self._looking.cancel()
        if isinstance(self.transport, _Joined):
            self.transport = self.transport.whole
        super().handle_websocket_upgrade()

    def _look_later(self, seconds: float) -> None:
        self._looking = self.loop.call_later(seconds, self._look)

    def _look(self) -> None:
        """Now and then, as long as there is a connection: cheaper than a timer for each request."""
        late = self.loop.time() - self._looking.when()
        if self._is_whole or self.flow.read_paused or late > LATE_S:  # it is we who do not listen
            self._heard_at = self.loop.time()
        left = self._heard_at + PATIENCE_S - self.loop.time()
        if left > 0:
            self._look_later(left)
        else:
            self.transport.close()


def uncounted(_address: str, _path: str) -> None:
    """For whoever does not count refusals."""


def _telling_failures(app: App, refused: Refused) -> App:
    """The app, and a line in the log for what it did not foresee; the server answers 500.

    `refused` gets each answer that lets nobody in.
    """

    async def told(scope: Scope, receive: Receive, send: Send) -> None:
        def noting(message: Message) -> Awaitable[None]:
            if message.get("status") == 401 or message.get("code") == UNAUTHENTICATED:
                refused(scope["client"][0] if scope.get("client") else "", scope["path"])
            return send(message)

        try:
            await app(scope, receive, noting)
        except ClientDisconnect:
            raise  # whoever went away in the middle of a body
        except Exception:
            log.exception(
                "request_failed method=%s path=%s", scope.get("method", "-"), scope.get("path")
            )
            raise

    return told


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are the process's business, not a listener's."""
        yield


class Listener:
    """One HTTP listener on a socket that is bound already."""

    def __init__(
        self,
        app: App,
        bound: socket.socket,
        *,
        websockets: bool = False,
        refused: Refused = uncounted,
    ) -> None:
        config = uvicorn.Config(
            _telling_failures(app, refused),
            loop="none",
            http=_Connection,
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
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # what it accepts has it too
            bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNREAD_MS)
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
        if cut_off := tuple(self._server.server_state.tasks):  # it does not wait for their end
            await asyncio.wait(cut_off, timeout=ENDING_S)


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
