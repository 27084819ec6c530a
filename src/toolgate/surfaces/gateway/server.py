"""The gateway: the HTTP control plane, from a socket's bytes to an answer's.

Routes of the contract are served straight from ASGI; whatever else is mounted here (console, MCP,
metrics) is Starlette's business.
"""

import logging
import re
from collections.abc import Coroutine, Sequence
from typing import Any, Final
from urllib.parse import parse_qsl, unquote

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from toolgate.access.audit import Trail
from toolgate.access.devices import Identity
from toolgate.access.refusals import Forbidden
from toolgate.commands.answers import (
    EXPECTED,
    Code,
    Problem,
    Reply,
    failure,
    problem_of,
    success,
)
from toolgate.commands.commands import Commands
from toolgate.commands.plans import RawCommand
from toolgate.contracts import gateway_v1 as wire
from toolgate.contracts.wire import UNREADABLE
from toolgate.core.clock import Clock
from toolgate.core.concurrency import Stopped, unless
from toolgate.core.enums import CommandKind
from toolgate.core.errors import Invalid, NotFound, ToolgateError
from toolgate.core.rates import Rate, spend
from toolgate.http import asgi
from toolgate.http.bodies import parse
from toolgate.http.traces import trace_id_of
from toolgate.journal.journal import Journal
from toolgate.surfaces.gateway.authentication import Doors, RawHeaders, text
from toolgate.surfaces.gateway.docs_page import DOCS_PATH, docs_page
from toolgate.surfaces.gateway.events import Events
from toolgate.surfaces.gateway.openapi import OPENAPI_PATH, document
from toolgate.surfaces.gateway.routes import Access, Call, Route
from toolgate.surfaces.gateway.v2 import SocketDoor, Verify

log = logging.getLogger(__name__)

UNREAD_WRITTEN: Final = Rate(60)  # audit rows a minute for commands of a caller that cannot be read
_JSON: Final = (b"content-type", b"application/json")
_NAMES: Final = {name: name.lower().encode() for name in wire.HEADERS}
_KEY: Final = _NAMES[wire.HEADER_IDEMPOTENCY_KEY]
_REQUEST_ID: Final = _NAMES[wire.HEADER_REQUEST_ID]
_TRACEPARENT: Final = _NAMES[wire.HEADER_TRACEPARENT]
_LAST_EVENT_ID: Final = _NAMES[wire.HEADER_LAST_EVENT_ID]


class Found(msgspec.Struct, frozen=True):
    route: Route
    path: dict[str, str]


class Table:
    """Routes by path: those without a parameter by name, the few others by pattern."""

    def __init__(self, routes: Sequence[Route]) -> None:
        self.routes = tuple(routes)
        self._exact: dict[str, dict[str, Route]] = {}
        self._patterns: list[tuple[re.Pattern[str], dict[str, Route]]] = []
        patterns: dict[str, dict[str, Route]] = {}
        for route in routes:
            known = patterns if "{" in route.path else self._exact
            known.setdefault(route.path, {})[route.method] = route
        for path, by_method in patterns.items():
            pattern = re.compile(re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", path))
            self._patterns.append((pattern, by_method))

    def find(self, method: str, path: str, raw_path: bytes) -> Found | None:
        """None where the path is nobody's; Problem 405 where only the method is wrong."""
        by_method = self._exact.get(path, {})
        if (route := by_method.get(method)) is not None:
            return Found(route, {})
        if method == "POST" and path.startswith("/command/"):  # no id, but an unknown type
            raise NotFound("command type", path.removeprefix("/command/")[:80])
        known = set(by_method)
        raw = raw_path.decode("latin-1")  # where a slash within a name is still told apart
        for pattern, candidates in self._patterns:  # a name may be as a route's own word
            if match := pattern.fullmatch(raw):
                if (route := candidates.get(method)) is not None:
                    values = {name: unquote(text) for name, text in match.groupdict().items()}
                    return Found(route, values)
                known.update(candidates)
        if not known:
            return None
        allowed = ", ".join(sorted(known))
        raise Problem(
            Code.INVALID_REQUEST,
            f"{path[:80]} takes {allowed}",
            status=405,
            headers=(("Allow", allowed),),
        )


class Gateway:
    def __init__(
        self,
        routes: Sequence[Route],
        *,
        doors: Doors,
        commands: Commands,
        events: Events,
        trail: Trail,
        journal: Journal,
        clock: Clock,
        version: str,
        verify: Verify,
    ) -> None:
        self.table = Table(routes)
        self.doors = doors
        self.commands = commands
        self.events = events
        self._trail = trail
        self._journal = journal
        self._clock = clock
        self._version = version
        self._socket = SocketDoor(
            registry=doors.registry,
            doors=doors,
            commands=commands,
            events=events,
            clock=clock,
            verify=verify,
            routes={route.v2: route for route in routes if route.v2},
            answer=self.call,
        )
        self._unread: dict[str, float] = {}
        self._document: bytes | None = None
        self._docs: str | None = None

    def app(self) -> "GatewayApp":
        return GatewayApp(self)

    async def serve(self, scope: asgi.Scope, receive: asgi.Receive, send: asgi.Send) -> bool:
        """Answer what is a route of the contract; False for what is not."""
        headers: RawHeaders = dict(scope["headers"])
        trace_id = ""
        try:
            if not self.doors.is_ours(text(headers, b"host")):
                raise Forbidden("this Host is not one of ours; see ALLOWED_HOSTS")
            found = self.table.find(scope["method"], scope["path"], scope["raw_path"])
            if found is None:
                return False
            if found.route.stream:
                return await self._stream(headers, scope, receive, send)
            if found.route.command is not None:
                reply = await self._command(found.route.command, headers, scope, receive)
            else:
                trace_id = trace_id_of("", text(headers, _TRACEPARENT))
                identity = await self._identify(found.route.access, headers, scope)
                reply = await self._answer(found, identity, trace_id, scope, receive)
        except EXPECTED as wrong:
            trace_id = trace_id or trace_id_of("", text(headers, _TRACEPARENT))
            problem = problem_of(wrong)
            if problem.code is Code.INTERNAL:
                log.error("request_failed trace_id=%s", trace_id, exc_info=wrong)
            reply = failure(problem, trace_id)
        except Exception:
            trace_id = trace_id or trace_id_of("", "")
            log.exception("request_crashed trace_id=%s path=%s", trace_id, scope["path"])
            reply = failure(Problem(Code.INTERNAL, "the gateway failed"), trace_id)
        await _send(send, reply)
        return True

    async def _command(
        self, kind: CommandKind, headers: RawHeaders, scope: asgi.Scope, receive: asgi.Receive
    ) -> Reply:
        identity = await self._identify(Access.CALLER, headers, scope)
        assert identity is not None
        try:
            raw = await self._body_of(Access.CALLER, headers, scope, receive)
        except EXPECTED as refusal:
            await self._note_unread(kind, identity, refusal)
            raise
        return await self.commands.post(
            RawCommand(
                kind=kind,
                identity=identity,
                raw=raw,
                request_id=text(headers, _REQUEST_ID),
                key=text(headers, _KEY),
                traceparent=text(headers, _TRACEPARENT),
            )
        )

    async def _body_of(
        self, access: Access, headers: RawHeaders, scope: asgi.Scope, receive: asgi.Receive
    ) -> bytes:
        """Raises InvalidToken where the sender, who may take long, was revoked meanwhile."""
        registry = self.doors.registry
        cuts = registry.cuts
        declared = text(headers, b"content-length")
        raw = await asgi.receive_body(declared, receive, limit=wire.MAX_BODY_BYTES)
        if registry.cuts != cuts:
            await self._identify(access, headers, scope)
        return raw

    async def _note_unread(self, kind: CommandKind, identity: Identity, refusal: Exception) -> None:
        """A row for a command whose body cannot be read; so many a minute, or the disk fills."""
        now = self._clock.now_ms()
        spent = spend(UNREAD_WRITTEN, self._unread.get(identity.name, 0.0), now=now)
        self._unread[identity.name] = spent.tat
        if not spent.allowed:
            return
        note = self._trail.note(
            f"command.{kind}",
            actor=identity.name,
            metadata={
                "deviceId": identity.name,
                "decision": "deny",
                "code": problem_of(refusal).code,
            },
        )
        try:
            await self._journal.commit(*note)
        except ToolgateError as unavailable:  # the journal has logged that it fails, once
            log.debug("refusal_not_recorded error=%s", unavailable)

    async def _identify(
        self, access: Access, headers: RawHeaders, scope: asgi.Scope
    ) -> Identity | None:
        if b"cookie" in headers and (operator := self.doors.signed_in(scope, access)) is not None:
            return operator
        return await self._by_token(access, headers, scope)

    async def _by_token(
        self, access: Access, headers: RawHeaders, scope: asgi.Scope
    ) -> Identity | None:
        return await self.doors.identify(
            self.doors.credentials(headers),
            access,
            ip=_ip(scope),
            user_agent=text(headers, b"user-agent"),
        )

    async def _answer(
        self,
        found: Found,
        identity: Identity | None,
        trace_id: str,
        scope: asgi.Scope,
        receive: asgi.Receive,
    ) -> Reply:
        body = None
        if found.route.takes is not None:
            raw = await self._body_of(found.route.access, dict(scope["headers"]), scope, receive)
            parse(raw)
            body = decode(raw, found.route.takes)
        query = dict(parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True))
        answering = self.call(
            found.route, Call(identity, trace_id, path=found.path, query=query, body=body)
        )
        return await (_unless_gone(answering, receive) if found.route.may_wait else answering)

    async def call(self, route: Route, call: Call) -> Reply:
        """The answer of a route, by whichever door; raises what the route raises."""
        result = await route.handle(call)
        extra = result.extra
        if extra.bare:
            is_file = isinstance(result.data, bytes)
            body = result.data if is_file else wire.encode(result.data)
            return Reply(extra.status, body, extra.headers)
        return success(result.data, call.trace_id, status=extra.status, headers=extra.headers)

    async def _stream(
        self, headers: RawHeaders, scope: asgi.Scope, receive: asgi.Receive, send: asgi.Send
    ) -> bool:
        identity = await self._by_token(Access.READER, headers, scope)
        assert identity is not None
        query = dict(parse_qsl(scope["query_string"].decode("latin-1")))
        since = self.events.cursor_of(text(headers, _LAST_EVENT_ID) or query.get("since"))
        with self.doors.registry.watch(identity.name) as cut:
            response = asgi.event_stream(self.events.stream(identity, cut, since))
            await response(scope, receive, send)
        return True

    async def socket(self, scope: asgi.Scope, receive: asgi.Receive, send: asgi.Send) -> None:
        await self._socket(scope, receive, send)

    async def openapi(self, _: Request) -> Response:
        if self._document is None:
            self._document = wire.encode(document(self.table.routes, version=self._version))
        return Response(self._document, media_type="application/json")

    async def docs(self, _: Request) -> Response:
        if self._docs is None:
            routes = self.table.routes
            self._docs = docs_page(routes, document(routes, version=self._version))
        return Response(
            self._docs,
            media_type="text/html; charset=utf-8",
            headers={"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'"},
        )


class GatewayApp(Starlette):
    """The contract's routes first, then whatever is mounted beside them."""

    def __init__(self, gateway: Gateway) -> None:
        super().__init__(exception_handlers={HTTPException: _http_error})
        self._gateway = gateway
        self.add_route(OPENAPI_PATH, gateway.openapi, methods=["GET"])
        self.add_route(DOCS_PATH, gateway.docs, methods=["GET"])

    async def __call__(self, scope: asgi.Scope, receive: asgi.Receive, send: asgi.Send) -> None:
        kind = scope["type"]
        if kind == "http" and await self._gateway.serve(scope, receive, send):
            return
        if kind == "websocket" and scope["path"] == wire.V2_PATH:
            await self._gateway.socket(scope, receive, send)
            return
        await super().__call__(scope, receive, send)


async def _http_error(request: Request, error: Exception) -> Response:
    """What Starlette refuses (no such route, wrong method), in the envelope."""
    assert isinstance(error, HTTPException)
    known = error.status_code in wire.INVALID_REQUEST_STATUSES
    code = Code.INVALID_REQUEST if known or error.status_code < 500 else Code.INTERNAL
    trace_id = trace_id_of("", request.headers.get("traceparent", ""))
    reply = failure(Problem(code, error.detail, status=error.status_code), trace_id)
    headers = dict(error.headers or {})
    return Response(reply.body, reply.status, headers, media_type="application/json")


def decode(raw: bytes, model: type[Any]) -> Any:
    """Raises Invalid, with where in the body it went wrong."""
    try:
        return msgspec.json.decode(raw, type=model)
    except UNREADABLE as unreadable:
        raise Invalid(problem_of(unreadable).message) from unreadable


async def _unless_gone(answering: Coroutine[Any, Any, Reply], receive: asgi.Receive) -> Reply:
    """The answer, as long as somebody waits for it; raises Invalid."""
    try:
        return await unless(_gone(receive), answering)
    except Stopped:
        raise Invalid("the sender went away before the answer") from None


async def _gone(receive: asgi.Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _send(send: asgi.Send, reply: Reply) -> None:
    given = [
        (_NAMES.get(name) or name.lower().encode(), value.encode()) for name, value in reply.headers
    ]
    kind = () if any(name == _JSON[0] for name, _ in given) else (_JSON,)
    headers = [*kind, (b"content-length", b"%d" % len(reply.body)), *given]
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    await send({"type": "http.response.body", "body": reply.body})


def _ip(scope: asgi.Scope) -> str:
    client = scope.get("client")
    return str(client[0]) if client else ""
