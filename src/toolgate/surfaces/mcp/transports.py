"""MCP's three transports: stdio, server-sent events, streamable HTTP.

One ASGI app has `/mcp`, `/mcp/sse` and `/mcp/message`; whoever mounts it authenticates. The SDK is
imported when the first request comes.
"""

import asyncio
import contextlib
import os
import re
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qs

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from toolgate.contracts.wire import UNREADABLE
from toolgate.core.enums import TrustLevel
from toolgate.core.tools import Caller
from toolgate.http.asgi import App, Message, Receive, Scope, Send, Streams
from toolgate.tasks.toolset import LOCAL, LOOPBACK, Toolset

if TYPE_CHECKING:
    from mcp.server.lowlevel import Server
    from mcp.server.sse import SseServerTransport
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

HTTP_PATH: Final = "/mcp"
SSE_PATH: Final = "/mcp/sse"
MESSAGE_PATH: Final = "/mcp/message"
BODY_LIMIT: Final = 4 * 1024 * 1024
MOST_DUE: Final = 100  # calls of a stream
CANCELLED: Final = "notifications/cancelled"
LOOPBACK_HOSTS: Final = ("127.0.0.1", "localhost", "[::1]")

_SDK_SESSION: Final = re.compile(rb"\?session_id=([0-9a-f]{32})")


class McpDoors:
    """The HTTP transports, trust `remote`; an ASGI app and something to be closed."""

    def __init__(
        self,
        toolset: Toolset,
        *,
        hosts: Sequence[str] | None = LOOPBACK_HOSTS,
        caller: Caller = LOOPBACK,
        extend: "Callable[[Server[Any]], None] | None" = None,
    ) -> None:
        """`hosts` are the names by which clients may call this server (Host and Origin).

        None where whoever mounts it has looked at them. A session is its opener's alone, where
        that one is the scope's `user`; who asks is the scope's CALLER, or else `caller`. `extend`
        may add to what the server answers, before anybody asks.
        """
        self._toolset = toolset
        self._hosts = hosts
        self._caller = caller
        self._extend = extend
        self._open: asyncio.Future[_Open] | None = None
        self._life: asyncio.Task[None] | None = None
        self._closing = asyncio.Event()
        self._streams = Streams()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise RuntimeError(f"no such thing here: {scope['type']}")
        opened = await self._opened()
        await opened.route(scope["path"])(opened.named(scope), receive, send)

    def end_streams(self) -> None:
        """The process is about to stop: those on which no answer is due end, the others soon."""
        self._streams.end()

    async def close(self) -> None:
        self._closing.set()
        if self._life is not None:
            await self._life

    async def _opened(self) -> "_Open":
        if self._open is None:
            self._open = asyncio.get_running_loop().create_future()
            self._life = asyncio.ensure_future(self._live(self._open))
        return await asyncio.shield(self._open)  # who came first may go before they are open

    async def _live(self, ready: "asyncio.Future[_Open]") -> None:
        """The manager's task group must be left by the task that entered it: this one."""
        try:
            opened = await asyncio.to_thread(
                _import_and_build,
                self._toolset,
                self._hosts,
                self._caller,
                self._extend,
                self._streams,
            )
        except Exception as failed:  # noqa: BLE001 - whoever waits must hear of it, whatever it is
            self._open = None  # it may be installed meanwhile
            ready.set_exception(failed)
            ready.exception()  # nobody may wait for it any more
            return
        async with opened.manager.run():
            ready.set_result(opened)
            await self._closing.wait()


class _Open:
    def __init__(
        self,
        toolset: Toolset,
        server: "Server[Any]",
        manager: "StreamableHTTPSessionManager",
        sse: "SseServerTransport",
        named: Callable[[Scope], Scope],
        streams: Streams,
    ) -> None:
        self.named = named
        self._streams = streams
        self._due: dict[str, set[int | None]] = {}  # by client, the calls that its stream owes
        self.manager = manager
        self._toolset = toolset
        self._server = server
        self._sse = sse

    def route(self, path: str) -> App:
        routes: dict[str, App] = {
            HTTP_PATH: self._http,
            SSE_PATH: self._listen,
            MESSAGE_PATH: self._post,
        }
        return routes.get(path.rstrip("/"), Response(status_code=404))

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        # The SDK compares headers with the body; the space around a value is no part of it, but
        # not every HTTP parser takes it away (RFC 9110, 5.5).
        trimmed = [(name, value.strip(b" \t")) for name, value in scope["headers"]]
        status = 0

        async def answer(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        scope = {**scope, "headers": trimmed}
        if scope["method"] == "GET":  # it has only what nobody asked for: answers go with calls
            handle = self.manager.handle_request
            await self._streams.serve(handle, scope, receive, answer, owes=lambda: False)
        else:
            await self.manager.handle_request(scope, receive, answer)
        if scope["method"] == "DELETE" and status == HTTPStatus.OK:
            name = Request(scope).headers.get("mcp-session-id", "")
            self._toolset.runtime.sessions.client_gone(f"http:{name}")

    async def _listen(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] != "GET":
            await Response(status_code=405, headers={"Allow": "GET"})(scope, receive, send)
            return
        due: set[int | None] = set()
        await self._streams.serve(
            lambda *ends: self._hold(due, *ends), scope, receive, send, owes=lambda: bool(due)
        )

    async def _hold(self, due: set[int | None], scope: Scope, receive: Receive, send: Send) -> None:
        client = ""

        async def rename(message: Message) -> None:
            """The contract spells the session's parameter sessionId; the SDK, session_id."""
            nonlocal client
            body = message.get("body", b"")
            if not client and (found := _SDK_SESSION.search(body)):
                client = f"sse:{found[1].decode()}"
                self._due[client] = due
                message = {**message, "body": body.replace(b"?session_id=", b"?sessionId=")}
            await send(message)
            if due:
                due.discard(_call_of(body.partition(b"data: ")[2], is_answer=True))

        try:
            async with self._sse.connect_sse(scope, receive, rename) as (incoming, outgoing):
                options = self._server.create_initialization_options()
                await self._server.run(incoming, outgoing, options)
        except ValueError:
            return  # refused by Host or Origin, and answered
        finally:
            self._due.pop(client, None)
            self._toolset.runtime.sessions.client_gone(client)

    async def _post(self, scope: Scope, receive: Receive, send: Send) -> None:
        query = bytes(scope.get("query_string", b"")).replace(b"sessionId=", b"session_id=")
        named = parse_qs(query.decode(errors="replace")).get("session_id", [""])[0]
        due = self._due.get(f"sse:{named}", set())
        body = b""
        asked: int | None = None

        async def noting() -> Message:
            nonlocal body, asked
            message = await receive()
            body += message.get("body", b"")
            is_whole = message["type"] == "http.request" and not message.get("more_body")
            if is_whole and len(due) < MOST_DUE and (asked := _call_of(body)) is not None:
                due.add(asked)
            if is_whole and due:
                due.discard(_cancelled_by(body))  # that one is never answered
            return message

        async def answer(message: Message) -> None:
            if message.get("status", HTTPStatus.ACCEPTED) != HTTPStatus.ACCEPTED:
                due.discard(asked)
            await send(message)

        await self._sse.handle_post_message({**scope, "query_string": query}, noting, answer)


class _Message(msgspec.Struct):
    id: int | str | None = None
    method: str = ""


_decode: Final = msgspec.json.Decoder(_Message).decode


def _call_of(body: bytes, *, is_answer: bool = False) -> int | None:
    """A key for the id of a call, or of the answer to one; None for anything else."""
    try:
        message = _decode(body)
    except UNREADABLE:
        return None
    if message.id is None or is_answer == bool(message.method):
        return None
    return hash(message.id)  # it may be a long one


class _Params(msgspec.Struct, frozen=True, rename="camel"):
    request_id: int | str | None = None


class _Cancelled(msgspec.Struct):
    params: _Params = _Params()
    method: str = ""


_decode_cancelled: Final = msgspec.json.Decoder(_Cancelled).decode


def _cancelled_by(body: bytes) -> int | None:
    """The call that a client no longer wants; None of a message that says nothing of the kind."""
    if CANCELLED.encode() not in body:
        return None
    try:
        message = _decode_cancelled(body)
    except UNREADABLE:
        return None
    named = message.params.request_id
    return None if named is None or message.method != CANCELLED else hash(named)


async def serve_stdio(toolset: Toolset) -> None:
    """Serve one client on stdin and stdout, trust `local`, until it closes them or is left.

    The caller is whoever started the process.
    """
    from mcp.server.stdio import stdio_server  # noqa: PLC0415 - a second of CPU

    from toolgate.surfaces.mcp.server import BrowserTools  # noqa: PLC0415 - imports the SDK

    server = BrowserTools(toolset, trust=TrustLevel.LOCAL, caller=LOCAL, stdio=True).server()
    with _stdin_that_can_end() as end_stdin:
        async with stdio_server() as (incoming, outgoing):
            try:
                await server.run(incoming, outgoing, server.create_initialization_options())
            finally:
                end_stdin()


@contextlib.contextmanager
def _stdin_that_can_end() -> Iterator[Callable[[], None]]:
    """Stdin through a socket of ours, which ends with it or when told to.

    The SDK's reader cannot be called back from a stdin that stays silent, and would hold us there.
    """
    client = os.dup(0)
    inside, outside = socket.socketpair()

    def end() -> None:
        with contextlib.suppress(OSError):  # it has ended already
            outside.shutdown(socket.SHUT_RDWR)

    def carry() -> None:
        with contextlib.suppress(OSError):
            while data := os.read(client, 65536):
                outside.sendall(data)
        end()

    os.dup2(inside.fileno(), 0)
    inside.close()
    # A daemon: it may wait for a client that never says anything again.
    threading.Thread(target=carry, daemon=True).start()
    try:
        yield end
    finally:
        end()


def _import_and_build(
    toolset: Toolset,
    hosts: Sequence[str] | None,
    caller: Caller,
    extend: "Callable[[Server[Any]], None] | None",
    streams: Streams,
) -> _Open:
    # The SDK costs a second of CPU and 45 MB: paid by the first request, in a thread.
    from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser  # noqa: PLC0415
    from mcp.server.auth.provider import AccessToken  # noqa: PLC0415
    from mcp.server.sse import SseServerTransport  # noqa: PLC0415
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager  # noqa: PLC0415
    from mcp.server.transport_security import TransportSecuritySettings  # noqa: PLC0415

    from toolgate.surfaces.mcp.server import BrowserTools  # noqa: PLC0415

    forms = [form for host in hosts or () for form in (host, f"{host}:*")]
    security = TransportSecuritySettings(
        enable_dns_rebinding_protection=hosts is not None,
        allowed_hosts=forms,
        allowed_origins=[f"{scheme}://{form}" for scheme in ("http", "https") for form in forms],
    )

    def named(scope: Scope) -> Scope:
        """The caller as the SDK knows callers; it keeps their sessions apart."""
        user = scope.get("user")
        if user is None:
            return scope
        token = AccessToken(token="", client_id=user.display_name, scopes=[])
        return {**scope, "user": AuthenticatedUser(token)}

    server = BrowserTools(toolset, trust=TrustLevel.REMOTE, caller=caller).server()
    if extend is not None:
        extend(server)
    manager = StreamableHTTPSessionManager(
        server, security_settings=security, max_request_body_size=BODY_LIMIT
    )
    sse = SseServerTransport(MESSAGE_PATH, security, max_request_body_size=BODY_LIMIT)
    return _Open(toolset, server, manager, sse, named, streams)
