"""The ingress: the WebSocket listener for clients and the internal HTTP for the orchestrator."""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

from picows import (
    WSUpgradeRequest,
    WSUpgradeResponse,
    WSUpgradeResponseWithListener,
    ws_create_server,
)
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from toolgate.access.authentication import Authenticator
from toolgate.access.refusals import InvalidToken
from toolgate.contracts import ingress_v1 as wire
from toolgate.contracts.ingress_v1 import CloseCode
from toolgate.contracts.wire import UNREADABLE, field_of
from toolgate.core.clock import Clock
from toolgate.core.errors import Conflict, NotFound, ToolgateError, Unavailable
from toolgate.http import accepting, asgi
from toolgate.journal.journal import Event, Journal
from toolgate.runs.deliveries import TOOL_REQUEST
from toolgate.runs.orchestrator import Declined, Orchestrator
from toolgate.surfaces.ingress.connection import Connection, Options
from toolgate.surfaces.ingress.frames import delivery_of, message_of
from toolgate.surfaces.ingress.hub import Hub
from toolgate.surfaces.ingress.sessions import Sessions, stream_of

log = logging.getLogger(__name__)

READ_BUFFER: Final = 2048  # bytes to begin with; 5,000 idle connections must not cost 16 KiB each
BACKLOG: Final = 4096  # connections that may wait while 2,000 come back at once
STOP_S: Final = 2.0  # how long clients may take to answer the close at the end
TOLD_AGAIN_S: Final = (1, 2, 4, 8, 16, 32, 60, 60)  # for an orchestrator that is away
NOT_ALLOWED: Final = (
    "the bearer token is missing or wrong; where there is none, web pages and public names are"
    " refused"
)
SWEEPS: Final = 4  # looks at every connection per ping interval
PAGE_REFUSED: Final = b"web pages of other hosts need an API_KEY other than none\n"


@dataclass(slots=True)
class Ingress:
    """What the connections share, and what keeps them."""

    options: Options
    authenticator: Authenticator
    hub: Hub
    sessions: Sessions
    journal: Journal
    orchestrator: Orchestrator
    clock: Clock
    ping_interval_ms: int
    pong_wait_ms: int
    cancel_when_gone: bool
    metrics: Callable[[], bytes]
    refused: asgi.Refused = field(default=asgi.uncounted)
    told_again_s: Sequence[float] = TOLD_AGAIN_S
    connections: set[Connection] = field(default_factory=set)
    _server: asyncio.Server | None = None
    _heart: asyncio.Task[None] | None = None
    _started: float = 0.0
    _empty: asyncio.Event = field(default_factory=asyncio.Event)

    async def start(self, bound: socket.socket) -> int:
        """Listen for clients on a bound socket; the port it has."""
        self._started = self.clock.monotonic()
        self._empty.set()
        self.hub.on_gone = self._session_gone
        self.hub.on_undelivered = self._tool_request_undelivered
        self._server = await ws_create_server(
            self._accept,
            sock=bound,
            max_frame_size=self.options.max_message_bytes,
            read_buffer_init_size=READ_BUFFER,
            enable_auto_pong=False,  # a ping with a reserved bit must not be answered
            backlog=BACKLOG,
            **accepting.fast(),
        )
        self._heart = asyncio.create_task(self._beat(), name="heartbeat")
        for session_id in {owner for _, owner in await self.orchestrator.open_runs()}:
            if await self.sessions.knows(session_id):
                self.hub.expect(session_id)
        return int(self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        """Say goodbye to everyone; whoever was here may come back to the next process."""
        self.hub.close()
        if self._server is not None:
            self._server.close()
        if self._heart is not None:
            self._heart.cancel()
        for connection in tuple(self.connections):
            connection.close(CloseCode.GOING_AWAY, "the server is stopping")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_S):
                await self._empty.wait()

    def joined(self, connection: Connection) -> None:
        self.connections.add(connection)
        self._empty.clear()

    def left(self, connection: Connection) -> None:
        self.connections.discard(connection)
        if not self.connections:
            self._empty.set()

    def health(self) -> wire.Health:
        return wire.Health(
            status=wire.FAILING if self.journal.fault else wire.HEALTHY,
            connections=len(self.connections),
            uptime_seconds=int(self.clock.monotonic() - self._started),
            problem=self.journal.fault,
            internal_auth="" if self.authenticator.has_internal else wire.NO_AUTH,
        )

    def _accept(
        self, request: WSUpgradeRequest
    ) -> Connection | WSUpgradeResponseWithListener | None:
        path = request.path.split(b"?", 1)[0].decode(errors="replace")
        if path == wire.WS_PATH:
            origin = request.headers.get("Origin", "")
            if not self._may_be_opened_by(origin):
                log.warning("page_refused origin=%r", origin)
                refusal = WSUpgradeResponse.create_error_response(
                    HTTPStatus.FORBIDDEN, PAGE_REFUSED
                )
                return WSUpgradeResponseWithListener(refusal, None)
            return Connection(self)
        if path == wire.HEALTH_PATH:
            return _plain(wire.encode(self.health()), "application/json")
        if path == "/metrics":
            return _plain(self.metrics(), "text/plain; version=0.0.4")
        return None

    def _may_be_opened_by(self, origin: str) -> bool:
        """Where there is no key, any page in a browser could speak for whoever looks at it.

        So only those of this machine may; what is no page has no Origin.
        """
        if not self.authenticator.any_key or not origin:
            return True
        try:
            name = urlsplit(origin).hostname or ""
        except ValueError:
            return False
        return is_local(name) or not self.options.pages_of.isdisjoint({name, "*"})

    async def _beat(self) -> None:
        """Ping those whose time has come, and part with those that are silent."""
        interval, wait = self.ping_interval_ms / 1000, self.pong_wait_ms / 1000
        while True:
            await asyncio.sleep(min(interval, wait) / SWEEPS)
            now = self.clock.monotonic()
            for connection in tuple(self.connections):
                try:
                    if connection.listens and now - connection.ponged_at > wait:
                        connection.close(CloseCode.PONG_TIMEOUT, "no pong")
                    elif now - connection.pinged_at >= interval:
                        connection.ping(now)
                except Exception:  # whatever is wrong with one, the others are looked after
                    log.exception("ping_failed")

    async def _session_gone(self, session_id: str, untaken: Sequence[Event] = ()) -> None:
        """Fail the calls that wait for the session's devices, then cancel its runs."""
        for event in untaken:
            await self._tool_request_undelivered(session_id, event)
        await self._repeat(self._fail_calls, session_id)
        if self.cancel_when_gone:
            await self._repeat(self._cancel_runs, session_id)

    async def _repeat(self, step: Callable[[str], Awaitable[bool]], session_id: str) -> None:
        """Repeat a step, with pauses, until the orchestrator could be reached for all of it."""
        for pause in self.told_again_s:
            try:
                if await step(session_id):
                    return
            except Unavailable:
                log.exception("runs_unknown session_id=%s", session_id)
            await asyncio.sleep(pause)

    async def _fail_calls(self, session_id: str) -> bool:
        """Fail the calls that devices of the session have; False if one could not be failed."""
        done = True
        for waiting in await self.orchestrator.snapshot(session_id):
            if self.hub.is_online(session_id):
                return True  # it has come back meanwhile
            if waiting.type != TOOL_REQUEST:
                continue
            call_id = waiting.members["tool_call_id"]
            try:
                await self.orchestrator.client_offline(waiting.run_id, call_id, taken=True)
            except Unavailable:
                log.exception("call_not_failed call_id=%s", call_id)
                done = False
            except ToolgateError as ended:  # its result was first
                log.info("call_ended call_id=%s why=%s", call_id, ended)
        return done

    async def _cancel_runs(self, session_id: str) -> bool:
        """Cancel the session's open runs; False if one could not be cancelled."""
        told = True
        for run_id, _ in await self.orchestrator.open_runs(session_id):
            if self.hub.is_online(session_id):
                return True  # it has come back meanwhile
            try:
                await self.orchestrator.cancel(
                    run_id, session_id=session_id, reason="the client went away"
                )
            except ToolgateError as failed:  # its others must not go on for that
                log.exception("cancel_failed run_id=%s", run_id)
                told = told and not isinstance(failed, Unavailable)
        return told

    async def _tool_request_undelivered(self, session_id: str, event: Event) -> None:
        request = message_of(event)
        assert isinstance(request, wire.ToolRequest)
        log.info("client_offline session_id=%s call_id=%s", session_id, request.tool_call_id)
        for pause in self.told_again_s:
            if self.hub.is_online(session_id):
                return  # it has come back meanwhile, and reads what waits for it
            try:
                with contextlib.suppress(Conflict, NotFound, Declined):  # its end was first
                    await self.orchestrator.client_offline(event.subject, request.tool_call_id)
            except Unavailable:
                log.exception("offline_untold call_id=%s", request.tool_call_id)
                await asyncio.sleep(pause)
            else:
                return

    async def forget_sessions(self, before: int) -> int:
        """Those that were not in use since then; how many."""
        return await self.sessions.forget(before, is_in_use=self._is_in_use)

    async def _is_in_use(self, session_id: str) -> bool:
        if self.hub.is_online(session_id):
            return True
        told = await self.journal.read_back(stream_of(session_id), limit=1)
        return bool(told or await self.orchestrator.open_runs(session_id))

    async def push(self, session_id: str, event: wire.AnySessionEvent) -> bool:
        """An orchestrator's event for a session; False where nobody is connected."""
        online = self.hub.is_online(session_id)
        if online or await self._ends_open_run(session_id, event):
            await self.orchestrator.receive(session_id, delivery_of(event))
        return online

    async def _ends_open_run(self, session_id: str, event: wire.AnySessionEvent) -> bool:
        """Whoever comes back must not wait for a run that its orchestrator has done with."""
        if not isinstance(event, wire.Done | wire.Error):
            return False
        return (event.run_id, session_id) in await self.orchestrator.open_runs(session_id)

    def internal_app(self) -> Starlette:
        return Starlette(
            routes=[
                Route(wire.SEND_PATH, self._send, methods=["POST"]),
                Route(wire.SESSION_STATUS_PATH, self._status, methods=["GET"]),
                Route(wire.HEALTH_PATH, self._health, methods=["GET"]),
            ]
        )

    def _may(self, request: Request) -> bool:
        if not self.authenticator.has_internal:
            return not asgi.is_of_a_page(request)
        try:
            self.authenticator.internal(asgi.bearer(request))
        except InvalidToken:
            return False
        return True

    async def _send(self, request: Request) -> Response:
        if not self._may(request):
            return _refusal(401, wire.ErrorCode.AUTH_FAILED, NOT_ALLOWED)
        try:
            body = await asgi.read_body(request)
            asked = wire.decode_send(body)
        except asgi.BodyTooLarge as large:
            return _refusal(413, wire.ErrorCode.INVALID_MESSAGE, str(large))
        except UNREADABLE as unreadable:
            why = f"{field_of(unreadable)}: {unreadable}"
            return _refusal(400, wire.ErrorCode.INVALID_MESSAGE, why)
        if not asked.session_id and not asked.event.run_id:
            return _refusal(400, wire.ErrorCode.INVALID_MESSAGE, "$.session_id: missing")
        session_id = asked.session_id
        try:
            session_id = session_id or await self.orchestrator.session_of(asked.event.run_id)
            taken = await self.push(session_id, asked.event)
        except NotFound as missing:
            return _refusal(409, wire.ErrorCode.CLIENT_OFFLINE, str(missing))
        except ToolgateError:
            log.exception("push_failed session_id=%s", session_id)
            return _refusal(500, wire.ErrorCode.INTERNAL_ERROR, "the event cannot be taken now")
        if not taken:
            why = f"session {session_id} has no active connections"
            return _refusal(409, wire.ErrorCode.CLIENT_OFFLINE, why)
        return asgi.Json(wire.SendAnswer(ok=True))

    async def _status(self, request: Request) -> Response:
        if not self._may(request):
            return _refusal(401, wire.ErrorCode.AUTH_FAILED, NOT_ALLOWED)
        session_id = request.path_params["session_id"]
        return asgi.Json(
            wire.SessionStatus(
                session_id=session_id,
                online=self.hub.is_online(session_id),
                connection_count=self.hub.count(session_id),
                last_activity_at=(
                    self.hub.last_activity(session_id)
                    or await self.sessions.last_activity(session_id)
                ),
            )
        )

    async def _health(self, _: Request) -> Response:
        return asgi.Json(self.health())


def is_local(name: str) -> bool:
    """Whether a host's name can only be this machine's."""
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return name == "localhost" or name.endswith(".localhost")


def _plain(body: bytes, content_type: str) -> WSUpgradeResponseWithListener:
    answer = WSUpgradeResponse.create_ok_response(body, {"Content-Type": content_type})
    assert answer.status is HTTPStatus.OK
    return WSUpgradeResponseWithListener(answer, None)


def _refusal(status: int, error: str, message: str) -> Response:
    return asgi.Json(wire.SendAnswer(ok=False, error=error, message=message), status_code=status)
