"""`/v2/ws`: every route of v1 as a request, and events pushed. One connection, one caller.

What a request means is decided by the same code as over HTTP; here is only how it is framed.
"""

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
from msgspec import UNSET, UnsetType

from toolgate.access.devices import Contact, Identity
from toolgate.access.refusals import InvalidToken
from toolgate.access.registry import Credentials, Registry
from toolgate.commands.answers import EXPECTED, Code, Problem, Reply, failure, problem_of
from toolgate.commands.commands import Commands
from toolgate.commands.plans import RawCommand
from toolgate.contracts import gateway_v1 as wire
from toolgate.contracts.wire import MAX_ID_CHARS, UNREADABLE, given
from toolgate.core.clock import Clock
from toolgate.core.errors import Invalid
from toolgate.http import asgi
from toolgate.http.bodies import check_id, parse
from toolgate.surfaces.gateway.authentication import Doors, text
from toolgate.surfaces.gateway.events import Events
from toolgate.surfaces.gateway.routes import Call, Route
from toolgate.surfaces.gateway.translate import scope_out

log = logging.getLogger(__name__)

Verify = Callable[[str, bytes, str], bool]  # public key, message, signature
Answer = Callable[[Route, Call], Any]

CONNECT_S: Final = 10.0  # to prove who one is
WRITE_S: Final = 10.0  # for one frame to a client that reads slowly
AT_ONCE: Final = 64  # requests of one connection that may run together
WAITING: Final = 1000  # frames that may wait for a client
NONCE_BYTES: Final = 32

_decode_answer: Final = msgspec.json.Decoder(wire.Answer).decode


class _Named(msgspec.Struct):
    """As much of a frame that makes no sense as tells who waits for its answer."""

    id: str = ""


_decode_named: Final = msgspec.json.Decoder(_Named).decode


class _Unreadable(Invalid):
    def __init__(self, wrong: Exception, content: bytes) -> None:
        super().__init__(problem_of(wrong).message)
        self.request_id = ""
        with contextlib.suppress(*UNREADABLE):
            self.request_id = _decode_named(content).id[:MAX_ID_CHARS]


class _Closed(Exception):
    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


@dataclass(frozen=True, slots=True)
class SocketDoor:
    registry: Registry
    doors: Doors
    commands: Commands
    events: Events
    clock: Clock
    verify: Verify
    routes: Mapping[str, Route]
    answer: Answer

    async def __call__(self, scope: asgi.Scope, receive: asgi.Receive, send: asgi.Send) -> None:
        headers = dict(scope["headers"])
        host, origin = text(headers, b"host"), text(headers, b"origin")
        await receive()  # websocket.connect
        if not self.doors.is_ours(host) or not self.doors.is_same_site(origin, host):
            await send({"type": "websocket.close", "code": 1008})  # before accept: a 403
            return
        await send({"type": "websocket.accept"})
        client = scope.get("client")
        connection = _Connection(
            self,
            receive,
            send,
            credentials=self.doors.credentials(headers),
            ip=str(client[0]) if client else "",
            user_agent=text(headers, b"user-agent"),
        )
        await connection.live()


@dataclass(slots=True)
class _Connection:
    door: SocketDoor
    receive: asgi.Receive
    send: asgi.Send
    credentials: Credentials
    ip: str
    user_agent: str
    _out: asyncio.Queue[bytes] = field(default_factory=lambda: asyncio.Queue(WAITING))
    _running: set[asyncio.Task[None]] = field(default_factory=set)
    _polls: set[asyncio.Task[None]] = field(default_factory=set)  # of them, those that only wait
    _room: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(AT_ONCE))
    _cut: asyncio.Event = field(default_factory=asyncio.Event)  # its right to be here has ended
    _broken: asyncio.Future[None] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )  # an answer could not be given

    async def live(self) -> None:
        """Until either side goes away; commands that were begun go on to their end."""
        code: int | None = None
        writing = asyncio.create_task(self._write())
        parts: list[asyncio.Future[None]] = [writing, self._broken]
        try:
            identity = await self._connect()
            since = self.door.events.cursor  # as the client was just told
            with self.door.registry.watch(identity.name) as self._cut:
                parts += [
                    asyncio.create_task(self._read(identity)),
                    asyncio.create_task(self._push(identity, since)),
                    asyncio.create_task(_until(self._cut)),
                ]
                done, _ = await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
        except _Closed as closed:
            code = closed.code
        finally:
            for task in (*parts, *self._polls):
                task.cancel()
            await asyncio.gather(*parts, return_exceptions=True)
            if code is not None:
                await self._close(code)

    async def _close(self, code: int) -> None:
        """What waits is written first, as it says why; but not to one that was cut."""
        with contextlib.suppress(Exception):
            async with asyncio.timeout(1):
                while not self._out.empty() and not self._cut.is_set():
                    await self.send(
                        {"type": "websocket.send", "text": self._out.get_nowait().decode()}
                    )
                await self.send({"type": "websocket.close", "code": code})

    async def _connect(self) -> Identity:
        nonce = secrets.token_urlsafe(NONCE_BYTES)
        expires_at = self.door.clock.now_ms() + int(CONNECT_S * 1000)
        challenge = wire.Challenge(nonce=nonce, expires_at=expires_at)
        self._tell(wire.Pushed(event=wire.CHALLENGE_EVENT, data=challenge))
        try:
            async with asyncio.timeout(CONNECT_S):
                frame = await self._frame()
                if not isinstance(frame, wire.Connect):
                    raise Invalid("the first frame is connect")
                identity = await self._prove(frame, nonce)
        except TimeoutError:
            raise _Closed(wire.CloseCode.UNAUTHENTICATED) from None
        except EXPECTED as refusal:
            self._answer(wire.CONNECT_ID, failure(problem_of(refusal), secrets.token_hex(16)))
            raise _Closed(wire.CloseCode.UNAUTHENTICATED) from refusal
        data = {
            "deviceId": identity.name,
            "scope": scope_out(identity.scope),
            "cursor": self.door.events.cursor,
        }
        trace_id = secrets.token_hex(16)
        self._tell(wire.Res(id=wire.CONNECT_ID, ok=True, data=data, trace_id=trace_id))
        return identity

    async def _prove(self, frame: wire.Connect, nonce: str) -> Identity:
        """Raises AuthRequired or InvalidToken."""
        registry, auth = self.door.registry, frame.auth
        self.door.doors.authenticator.check_gateway_token(self.credentials.gateway_token)
        device_id = check_id("deviceId", frame.device_id)
        if given(frame.challenge, nonce) != nonce:
            raise InvalidToken("the challenge is another's")
        key, signature = given(auth.public_key, ""), given(auth.signature, "")
        signed = bool(key) and self.door.verify(key, nonce.encode(), signature)
        if key and not signed:
            raise InvalidToken("the signature is wrong")
        device = registry.device(device_id)
        if not isinstance(auth.token, UnsetType):
            identity = self._by_token(device_id, auth.token)
            if signed and device is not None and not device.public_key:
                await self.door.doors.pairing.bind_key(device_id, key)
                return self._by_token(device_id, auth.token)  # it may have been revoked meanwhile
            return identity
        if device is not None and device.active and device.public_key:
            if device.public_key != key:
                raise InvalidToken("the key is not this device's")
            known = registry.identity(device_id)
            assert known is not None
            return known
        contact = Contact(device_id, self.ip, self.user_agent, public_key=key)
        raise await self.door.doors.pairing.knock(contact)

    def _by_token(self, device_id: str, token: str) -> Identity:
        authenticator = self.door.doors.authenticator
        if self.door.registry.device(device_id) is None:
            with contextlib.suppress(InvalidToken):
                return authenticator.bearer(token)
        given_token = Credentials(
            device_id=device_id,
            device_token=token,
            gateway_token=self.credentials.gateway_token,
        )
        return authenticator.device(given_token)

    async def _read(self, identity: Identity) -> None:
        while True:
            await self._room.acquire()
            try:
                frame = await self._frame()
            except _Unreadable as unreadable:
                self._room.release()
                self._answer(
                    unreadable.request_id, failure(problem_of(unreadable), secrets.token_hex(16))
                )
                continue
            except BaseException:
                self._room.release()
                raise
            task = asyncio.create_task(self._serve(identity, frame))
            self._running.add(task)
            if isinstance(frame, wire.Req) and self._only_waits(frame.method):
                self._polls.add(task)
            task.add_done_callback(self._served)

    def _only_waits(self, method: str) -> bool:
        route = self.door.routes.get(method)
        return route is not None and route.may_wait

    def _served(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self._polls.discard(task)
        self._room.release()
        failed = None if task.cancelled() else task.exception()
        if failed is not None and not self._broken.done():
            self._broken.set_exception(failed)

    async def _serve(self, identity: Identity, frame: wire.Connect | wire.Req) -> None:
        if self._cut.is_set():  # as the frame came in: nobody is there who may ask
            return
        trace_id = secrets.token_hex(16)
        if isinstance(frame, wire.Connect):
            problem = Problem(Code.INVALID_REQUEST, "connected already")
            self._answer(wire.CONNECT_ID, failure(problem, trace_id))
            return
        try:
            reply, bare = await self._reply(identity, frame, trace_id)
        except EXPECTED as refusal:
            reply, bare = failure(problem_of(refusal), trace_id), False
        except Exception:
            log.exception("request_crashed trace_id=%s method=%s", trace_id, frame.method)
            reply, bare = failure(Problem(Code.INTERNAL, "the gateway failed"), trace_id), False
        self._answer(frame.id, reply, bare=bare, trace_id=trace_id)

    async def _reply(
        self, identity: Identity, frame: wire.Req, trace_id: str
    ) -> tuple[Reply, bool]:
        route = self.door.routes.get(frame.method)
        if route is None:
            raise Problem(Code.INVALID_REQUEST, f"no method {frame.method[:80]}", status=404)
        if route.command is not None:
            asked = RawCommand(
                kind=route.command,
                identity=identity,
                raw=wire.encode(frame.params),
                key=given(frame.idempotency_key, ""),
            )
            try:
                self.door.doors.allow(identity, route.access)
            except EXPECTED as refusal:
                return await self.door.commands.refuse(asked, refusal), False
            return await self.door.commands.post(asked), False
        self.door.doors.allow(identity, route.access)
        reply = await self.door.answer(route, _call(route, identity, frame.params, trace_id))
        return reply, route.bare

    async def _push(self, identity: Identity, since: int) -> None:
        async for events in self.door.events.follow(identity, self._cut, since):
            for event in events:
                pushed = wire.Pushed(event=wire.GATEWAY_EVENT, data=event, cursor=event.id)
                try:
                    async with asyncio.timeout(WRITE_S):
                        await self._out.put(wire.encode(pushed))
                except TimeoutError:
                    raise _Closed(wire.CloseCode.SLOW_CONSUMER) from None
        if not self._cut.is_set():  # it is told elsewhere that it was cut
            raise _Closed(wire.CloseCode.GOING_AWAY)

    async def _write(self) -> None:
        while True:
            frame = await self._out.get()
            if self._cut.is_set():
                raise _Closed(wire.CloseCode.UNAUTHENTICATED)
            try:
                async with asyncio.timeout(WRITE_S):
                    await self.send({"type": "websocket.send", "text": frame.decode()})
            except TimeoutError:
                raise _Closed(wire.CloseCode.SLOW_CONSUMER) from None
            except (OSError, RuntimeError):  # gone: the reader is told
                return

    async def _frame(self) -> wire.Connect | wire.Req:
        """Raises _Unreadable for what is no frame of ours, _Closed when the client has gone."""
        message = await self.receive()
        if message["type"] == "websocket.disconnect":
            raise _Closed(int(message.get("code") or wire.CloseCode.GOING_AWAY))
        raw = message.get("text")
        if raw is None:
            raise _Unreadable(Invalid("frames are text"), b"")
        content = raw.encode("utf-8", "surrogatepass")
        try:
            parse(content)
            frame: wire.Connect | wire.Req = wire.decode_client_frame(content)
        except EXPECTED as unreadable:
            raise _Unreadable(unreadable, content) from unreadable
        return frame

    def _answer(
        self, request_id: str, reply: Reply, *, bare: bool = False, trace_id: str = ""
    ) -> None:
        if bare:
            body = msgspec.json.decode(reply.body)
            self._tell(wire.Res(id=request_id, ok=True, data=body, trace_id=trace_id))
            return
        answer = _decode_answer(reply.body)
        headers = dict(reply.headers)
        seconds = headers.get(wire.HEADER_RETRY_AFTER)
        self._tell(
            wire.Res(
                id=request_id,
                ok=answer.ok,
                data=answer.data,
                trace_id=answer.trace_id,
                error=answer.error,
                replayed=True if wire.HEADER_IDEMPOTENT_REPLAYED in headers else UNSET,
                retry_after=UNSET if seconds is None else int(seconds),
            )
        )

    def _tell(self, frame: wire.Res | wire.Pushed) -> None:
        try:
            self._out.put_nowait(wire.encode(frame))
        except asyncio.QueueFull:
            raise _Closed(wire.CloseCode.SLOW_CONSUMER) from None


async def _until(cut: asyncio.Event) -> None:
    await cut.wait()
    raise _Closed(wire.CloseCode.UNAUTHENTICATED)


def _call(route: Route, identity: Identity, params: Mapping[str, Any], trace_id: str) -> Call:
    """The members of a request as v1 has them: in the path, as parameters, as the body."""
    names = [word.strip("{}") for word in route.path.split("/") if word.startswith("{")]
    path: dict[str, str] = {}
    for name in names:
        value = params.get(name)
        if not isinstance(value, str) or not value:
            raise Invalid(f"{name} is required", field=name)
        path[name] = value
    rest = {name: value for name, value in params.items() if name not in names}
    if route.takes is not None:
        return Call(identity, trace_id, path=path, body=msgspec.convert(rest, route.takes))
    query = {name: _text(value) for name, value in rest.items()}
    return Call(identity, trace_id, path=path, query=query)


def _text(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise Invalid("a parameter is a text or a number")
    return str(value)
