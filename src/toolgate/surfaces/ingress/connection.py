"""One WebSocket: frames in, effects out. `conversation` decides what each message means.

A connection is live (each event is written as it comes) or catching up (it reads the journal at
the pace of its reader). It begins by catching up, and goes back to it when its socket is full.
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Protocol, assert_never

import msgspec
from picows import (
    WSCloseCode,
    WSFrame,
    WSListener,
    WSMsgType,
    WSProtocolError,
    WSTransport,
)

from toolgate.access.authentication import Authenticator
from toolgate.contracts import ingress_v1 as wire
from toolgate.contracts.ingress_v1 import CloseCode, ConnectionState, ErrorCode
from toolgate.core.clock import Clock
from toolgate.core.errors import NotFound, ToolgateError
from toolgate.core.tools import Tool
from toolgate.journal.journal import Event, Journal
from toolgate.runs.deliveries import APPROVAL_REQUIRED, RUN_STARTED, TOOL_REQUEST
from toolgate.runs.orchestrator import Orchestrator
from toolgate.surfaces.ingress import recall
from toolgate.surfaces.ingress.conversation import (
    Close,
    Conversation,
    Effect,
    Forward,
    Open,
    Send,
    error,
    is_utf8,
)
from toolgate.surfaces.ingress.dispatch import Command, client_tools, dispatch
from toolgate.surfaces.ingress.frames import joined, single, snapshot_frame, source_of
from toolgate.surfaces.ingress.hub import Channel, Hub
from toolgate.surfaces.ingress.sessions import Opening, Sessions, stream_of

log = logging.getLogger(__name__)

PAGE: Final = 256  # events a reader that lags is given at a time
INBOX: Final = 64  # messages of a client that may wait for an earlier one of its own
ASKS: Final = frozenset({TOOL_REQUEST, APPROVAL_REQUIRED})
SENT: Final = range(1000, 5000)  # close codes (RFC 6455, 7.4); picows knows those left free in it
ABNORMAL: Final = 1006  # stands for a connection that was lost
SLOW_S: Final = 1.0  # until the next message is handled beside an invoke that is not answered yet
CLOSING_S: Final = 1.0  # how long the other side may take to answer a close


@dataclass(frozen=True, slots=True)
class Options:
    max_message_bytes: int
    write_wait_ms: int
    hello_wait_ms: int = wire.HELLO_WAIT_MS
    max_queued_messages: int = wire.MAX_QUEUED_MESSAGES
    max_queued_bytes: int = wire.MAX_QUEUED_BYTES
    max_connections_of_user: int = 10_000  # ours: one user must not take every socket
    pages_of: frozenset[str] = frozenset()  # hosts whose pages may connect without a key; * is any


class Parts(Protocol):
    """The objects that all connections share."""

    options: Options
    authenticator: Authenticator
    hub: Hub
    sessions: Sessions
    journal: Journal
    orchestrator: Orchestrator
    clock: Clock

    def refused(self, address: str, path: str, /) -> None: ...

    def joined(self, connection: "Connection") -> None: ...

    def left(self, connection: "Connection") -> None: ...


class Connection(WSListener):
    def __init__(self, parts: Parts) -> None:
        super().__init__()
        self.ponged_at = parts.clock.monotonic()
        self.pinged_at = self.ponged_at
        self.tools: tuple[Tool, ...] = ()
        self._parts = parts
        self._conversation = Conversation(parts.authenticator.client)
        self._transport: WSTransport | None = None
        self._inbox: deque[bytes | None] = deque()  # None stands for a binary message
        self._begun: bytearray | None = None  # a message of which more fragments are to come
        self._begun_binary = False
        self._reading = True
        self._closing = False
        self._worker: asyncio.Task[None] | None = None
        self._reader: asyncio.Task[None] | None = None
        self._channel: Channel | None = None
        self._cursor = 0  # the number of the last event this reader was given
        self._began = 0  # the number of the last event it was not given, as it came later
        self._writable = asyncio.Event()
        self._writable.set()
        self._hello_due: asyncio.TimerHandle | None = None
        self._write_due: asyncio.TimerHandle | None = None
        self._missed = 0
        self._missed_bytes = 0
        self._missed_source = ""
        self._unanswered_ping: bytes | None = None
        self._invoking: set[asyncio.Task[None]] = set()
        self._watch = contextlib.ExitStack()
        self._cutting: asyncio.Task[None] | None = None

    def on_ws_connected(self, transport: WSTransport) -> None:
        self._transport = transport
        self._parts.joined(self)
        wait = self._parts.options.hello_wait_ms / 1000
        self._hello_due = asyncio.get_running_loop().call_later(wait, self._hello_overdue)

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        if frame.rsv1 or frame.rsv2 or frame.rsv3:
            raise WSProtocolError(WSCloseCode.PROTOCOL_ERROR, "no extension was agreed on")
        match frame.msg_type:
            case WSMsgType.PONG:
                self.ponged_at = self._parts.clock.monotonic()
            case WSMsgType.TEXT | WSMsgType.BINARY | WSMsgType.CONTINUATION:
                self._collect(frame)
            case WSMsgType.PING:
                self._answer_ping(transport, frame.get_payload_as_bytes())
            case WSMsgType.CLOSE:
                self._say_goodbye(transport, frame)

    def _answer_ping(self, transport: WSTransport, payload: bytes) -> None:
        if self._writable.is_set():
            transport.send_pong(payload)
        else:
            self._unanswered_ping = payload  # the last one will do (RFC 6455, 5.5.3)

    def _say_goodbye(self, transport: WSTransport, frame: WSFrame) -> None:
        code = int.from_bytes(frame.get_payload_as_bytes()[:2], "big")
        if frame.payload_size and (code not in SENT or code == ABNORMAL):
            raise WSProtocolError(WSCloseCode.PROTOCOL_ERROR, f"close code {code}")
        if not is_utf8(frame.get_payload_as_bytes()[2:]):
            raise WSProtocolError(WSCloseCode.INVALID_TEXT, "the reason is not UTF-8")
        if not transport.is_close_frame_sent:
            transport.send_close(WSCloseCode.OK)
        transport.disconnect()

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        self._transport = None
        self._writable.set()
        self._parts.left(self)
        for deadline in (self._hello_due, self._write_due):
            if deadline is not None:
                deadline.cancel()
        # What it said before it left is done to its end: half of a command is worse than none.
        for task in (self._reader, self._cutting):
            if task is not None:
                task.cancel()
        self._watch.close()
        self._leave()

    def pause_writing(self) -> None:
        """Leave new events in the journal while the socket is full, for a bounded time."""
        self.fall_behind()
        self._writable.clear()
        self._missed = self._missed_bytes = 0
        self._missed_source = ""
        wait = self._parts.options.write_wait_ms / 1000
        if self._write_due is not None:
            self._write_due.cancel()
        self._write_due = asyncio.get_running_loop().call_later(wait, self._too_slow)

    def resume_writing(self) -> None:
        self._writable.set()
        if self._write_due is not None:
            self._write_due.cancel()
            self._write_due = None
        ping, self._unanswered_ping = self._unanswered_ping, None
        if ping is not None and self._transport is not None and not self._closing:
            self._transport.send_pong(ping)
        if self._channel is not None and self._conversation.state is ConnectionState.ACTIVE:
            self._read_on(lagging=True)

    def _read_on(self, *, lagging: bool) -> None:
        if self._reader is None or self._reader.done():
            self._reader = asyncio.create_task(self._catch_up_or_close(lagging=lagging))

    def fall_behind(self) -> None:
        given = None if self._channel is None else self._channel.leave_live(self)
        if given is not None:
            self._cursor = given  # what was written, a full socket included
            if self._writable.is_set() and not self._closing:
                self._read_on(lagging=True)

    def miss(self, event: Event, data: bytes) -> None:
        if not self._writable.is_set():
            self._count_missed(event, data)

    def ping(self, now: float) -> None:
        if self._transport is not None:
            self.pinged_at = now
            self._transport.send_ping()

    def close(self, code: CloseCode, reason: str, *, linger_s: float = CLOSING_S) -> None:
        """Send a close frame; disconnect if the client has not answered after `linger_s`."""
        transport = self._transport
        if transport is None or self._closing:
            return
        self._closing = True
        if code is CloseCode.UNAUTHENTICATED:
            peer = transport.underlying_transport.get_extra_info("peername")
            self._parts.refused(str(peer[0]) if peer else "", "/ws")
        self._conversation.state = ConnectionState.CLOSED
        self.fall_behind()
        if self._reader is not None and self._reader is not asyncio.current_task():
            self._reader.cancel()
        transport.send(WSMsgType.CLOSE, code.to_bytes(2, "big") + reason.encode())
        asyncio.get_running_loop().call_later(linger_s, transport.disconnect, False)

    def _collect(self, frame: WSFrame) -> None:
        """Put a message together from its frames; the conversation sees whole ones only."""
        if self._closing:
            return
        begun, binary = self._begun, frame.msg_type is WSMsgType.BINARY
        if (frame.msg_type is WSMsgType.CONTINUATION) is (begun is None):
            raise WSProtocolError(WSCloseCode.PROTOCOL_ERROR, "a fragment out of place")
        size = frame.payload_size + (0 if begun is None else len(begun))
        if size > self._parts.options.max_message_bytes:
            self.close(CloseCode.MESSAGE_TOO_BIG, "message too big")
            return
        message = frame.get_payload_as_bytes()
        if begun is None and not frame.fin:
            self._begun, self._begun_binary = bytearray(message), binary
            return
        if begun is not None:
            begun += message
            if not frame.fin:
                return
            message, binary, self._begun = bytes(begun), self._begun_binary, None
        self.take(message, binary=binary)

    def take(self, message: bytes, *, binary: bool) -> None:
        """Queue a whole message behind the client's earlier ones."""
        self._inbox.append(None if binary else message)
        if len(self._inbox) >= INBOX and self._reading and self._transport is not None:
            self._reading = False
            self._transport.underlying_transport.pause_reading()
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._work())

    async def _work(self) -> None:
        """Handle the client's messages, one after the other."""
        while self._inbox and not self._closing:
            message = self._inbox.popleft()
            if not self._reading and len(self._inbox) < INBOX and self._transport is not None:
                self._reading = True
                self.ponged_at = self._parts.clock.monotonic()  # its pongs waited with the rest
                self._transport.underlying_transport.resume_reading()
            now = self._parts.clock.now_ms()
            try:
                for effect in self._understand(message, now):
                    await self._perform(effect)
            except Exception:
                log.exception("message_failed session_id=%s", self._conversation.session_id)
                failed = error(ErrorCode.INTERNAL_ERROR, "the ingress failed", now)
                self._write(wire.encode(failed.message))
                if self._conversation.state is ConnectionState.AUTHENTICATING:
                    self._leave()
                    self.close(CloseCode.INTERNAL_ERROR, "the session cannot be opened")

    def _understand(self, message: bytes | None, now: int) -> list[Effect]:
        if message is None:
            return self._conversation.receive_binary(now=now)
        return self._conversation.receive(message, now=now)

    @property
    def listens(self) -> bool:
        """True while frames are read; no pong can arrive while they are not."""
        return self._reading

    async def _perform(self, effect: Effect) -> None:
        match effect:
            case Send(message):
                await self._writable.wait()  # or who never reads would fill our memory
                self._write(wire.encode(message))
            case Close(code, reason):
                self.close(code, reason)
            case Open(hello):
                await self._open(hello)
            case Forward(message):
                if self._transport is not None:
                    self._parts.hub.touch(self._conversation.session_id)
                await self._forward(message)
            case _:
                assert_never(effect)

    async def _forward(self, message: Command) -> None:
        """Carry out a command; an invoke of a slow orchestrator does not hold up the next message."""
        if not isinstance(message, wire.AgentInvoke):
            await self._carry_out(message)
            return
        if not message.request_id:
            made = self._parts.sessions.new_id("req")
            message = msgspec.structs.replace(message, request_id=made)
        if not self._parts.orchestrator.is_slow:
            await self._carry_out(message)
            return
        invoking = asyncio.create_task(self._carry_out(message))
        self._invoking.add(invoking)
        invoking.add_done_callback(self._invoking.discard)
        await asyncio.wait({invoking}, timeout=None if len(self._invoking) > INBOX else SLOW_S)

    async def _carry_out(self, message: Command) -> None:
        assert self._conversation.identity is not None
        answer = await dispatch(
            message,
            self._parts.orchestrator,
            session_id=self._conversation.session_id,
            identity=self._conversation.identity,
            clock=self._parts.clock,
        )
        if not isinstance(answer, str):
            await self._writable.wait()
            self._write(wire.encode(answer))
        elif isinstance(message, wire.AgentInvoke) and self._began:
            await self._tell_again(answer, message)

    async def _open(self, hello: wire.Hello) -> None:
        parts = self._parts
        if self._too_many(hello.user_id):
            return
        self._watch_key()
        last_seq = None if isinstance(hello.last_seq, msgspec.UnsetType) else hello.last_seq
        try:
            opening = await parts.sessions.open(
                user_id=hello.user_id,
                session_id=hello.session_id,
                last_seq=last_seq,
                epoch=hello.epoch,
            )
            if not self._join(opening):
                return
            await self._register(opening.session_id, client_tools(hello))
        except NotFound as missing:
            self._leave()
            await self._refuse(ErrorCode.SESSION_NOT_FOUND, str(missing), hello)
            return
        except ToolgateError:
            log.exception("hello_failed")
            self._leave()
            await self._refuse(ErrorCode.INTERNAL_ERROR, "the session cannot be opened now", hello)
            return
        if self._hello_due is not None:
            self._hello_due.cancel()
            self._hello_due = None
        await self._begin(opening)

    def _watch_key(self) -> None:
        """Close the connection when its named token is revoked or expires."""
        identity = self._conversation.identity
        if identity is None or identity.via or self._cutting is not None:
            return
        registry = self._parts.authenticator.registry
        cut = self._watch.enter_context(registry.watch(identity.name))

        async def close_when_cut() -> None:
            await cut.wait()
            self.close(CloseCode.UNAUTHENTICATED, "the key was revoked or has expired")

        self._cutting = asyncio.create_task(close_when_cut())

    def _join(self, opening: Opening) -> bool:
        """Join the session's channel, so that no event is missed; False if the connection has ended."""
        # It may have left while we looked, or others of its user may have come.
        if self._transport is None or self._closing:
            return False
        if self._too_many(self._conversation.user_id):
            return False
        self._cursor = self._began = opening.after
        self._conversation.session_id = opening.session_id
        self._channel = self._parts.hub.join(opening.session_id, self._conversation.user_id, self)
        return True

    def _leave(self) -> None:
        if self._channel is not None:
            self._channel = None
            self._parts.hub.leave(self._conversation.session_id, self._conversation.user_id, self)

    def _too_many(self, user_id: str) -> bool:
        if self._parts.hub.count_of_user(user_id) < self._parts.options.max_connections_of_user:
            return False
        self.close(CloseCode.TRY_AGAIN_LATER, "too many connections of this user")
        return True

    async def _register(self, session_id: str, tools: Sequence[Tool] | None) -> None:
        """Register the tools of all devices of the session; the latest definition of a name counts."""
        if tools is None:
            return
        self.tools = tuple(tools)
        others = (
            tool
            for device in self._parts.hub.connections(session_id)
            if isinstance(device, Connection)
            for tool in device.tools
        )
        together = {tool.name: tool for tool in (*others, *tools)}
        await self._parts.orchestrator.register_tools(session_id, list(together.values()))

    async def _refuse(self, code: ErrorCode, why: str, hello: wire.Hello) -> None:
        now = self._parts.clock.now_ms()
        effects = self._conversation.refused(code, why, request_id=hello.request_id, now=now)
        for effect in effects:
            await self._perform(effect)
        due = self._hello_due
        if due is not None and due.when() <= asyncio.get_running_loop().time():
            self._hello_overdue()  # its time was over while we looked

    async def _begin(self, opening: Opening) -> None:
        """Send `hello_ack` and the snapshot if there is one, then catch up."""
        if self._transport is None or self._closing:
            return
        parts, now = self._parts, self._parts.clock.now_ms()
        recalled: list[bytes] | None = None
        if opening.recall and (recalled := await self._recall(opening)) is None:
            opening = replace(opening, resumed=False, snapshot=True)
        effects = self._conversation.opened(
            opening.session_id,
            resumed=opening.resumed,
            seq=opening.last_seq,
            epoch=parts.journal.vouches_since,
            now=now,
        )
        for effect in effects:
            await self._perform(effect)
        if opening.snapshot:
            try:
                told = await parts.orchestrator.snapshot(opening.session_id)
            except ToolgateError:
                log.exception("snapshot_failed session_id=%s", opening.session_id)
                self.close(CloseCode.INTERNAL_ERROR, "the session cannot be read now")
                return
            for delivery in told:
                self._write(snapshot_frame(parts.hub.originals.restore(delivery), now=now))
        for data in recalled or ():
            await self._writable.wait()
            self._write(data)
        if self._channel is None or self._closing:
            return  # it has left meanwhile
        new = not opening.resumed and not opening.snapshot  # there is nothing to catch up with
        if not (new and self._writable.is_set() and self._go_live()):
            self._read_on(lagging=False)

    async def _recall(self, opening: Opening) -> list[bytes] | None:
        """The frames that a client without a position has missed; None if some are not kept."""
        parts, stream = self._parts, stream_of(opening.session_id)
        try:
            told = await parts.orchestrator.snapshot(opening.session_id)
            runs = await parts.orchestrator.open_runs(opening.session_id)
        except ToolgateError:
            log.exception("recall_failed session_id=%s", opening.session_id)
            return None
        upto = opening.after
        since = parts.clock.now_ms() - parts.hub.resume_window_ms
        ended = await recall.ended_since(parts.journal, stream, since)
        # A run whose end comes after what is recalled was open then, also if it has ended meanwhile.
        still_open = [run for run, _ in runs] + [run for run, end in ended.items() if end > upto]
        events = await recall.missed(
            parts.journal, stream, open_runs=still_open, ended=ended, upto=upto
        )
        if events is None:
            return None
        asks = {str(one.members[recall.ASKS[one.type]]) for one in told if one.type in recall.ASKS}
        return recall.frames(parts.hub.originals.restored(events), open_asks=asks)

    async def _tell_again(self, run_id: str, asked: wire.AgentInvoke) -> None:
        """Send the events of a run again, for a request that an earlier connection made.

        Whoever asks so may have heard nothing of it: it is told again what it was told, numbered
        as then, but for the tools and approvals that the run asked for.
        """
        stream = stream_of(self._conversation.session_id)
        journal = self._parts.journal
        told = await journal.read(stream, subject=run_id, limit=1)
        if told and told[0].seq > self._began:
            return  # it comes as any other
        while told and (page := await journal.read(stream, after=told[-1].seq, subject=run_id)):
            told += page
        is_over = not told and not await self._is_open(run_id)
        await self._writable.wait()
        if not told or told[0].type != RUN_STARTED:
            self._write(self._in_place_of_start(run_id, asked, is_over=is_over))
        live = None if self._channel is None else self._channel.given(self)
        given = self._cursor if live is None else live
        for number, data in single(event for event in told if event.type not in ASKS):
            if number <= given:  # what is above is yet to come
                self._write(data)

    async def _is_open(self, run_id: str) -> bool:
        session_id = self._conversation.session_id
        return (run_id, session_id) in await self._parts.orchestrator.open_runs(session_id)

    def _in_place_of_start(self, run_id: str, asked: wire.AgentInvoke, *, is_over: bool) -> bytes:
        """A `run_started`, or an error if the run is over, in place of one that is not kept any more."""
        now = self._parts.clock.now_ms()
        if is_over:
            why = f"run {run_id} of this request has ended, and what it told is not kept any more"
            gone = error(ErrorCode.INVALID_MESSAGE, why, now, request_id=asked.request_id)
            return wire.encode(gone.message)
        started = wire.RunStarted(
            ts=now,
            request_id=asked.request_id,
            session_id=self._conversation.session_id,
            run_id=run_id,
            agent_id=asked.agent_id,
        )
        return wire.encode(started)

    async def _catch_up_or_close(self, *, lagging: bool) -> None:
        """Catch up; close the connection if that fails, because it would receive nothing more."""
        try:
            await self._catch_up(lagging=lagging)
        except Exception:
            log.exception("catch_up_failed session_id=%s", self._conversation.session_id)
            self.close(CloseCode.INTERNAL_ERROR, "the session cannot be read now")

    async def _catch_up(self, *, lagging: bool) -> None:
        """Read on from the cursor until there is nothing left, then go live.

        Who comes back is given every event as it was; who lags is given deltas joined.
        """
        assert self._channel is not None
        stream = stream_of(self._conversation.session_id)
        while self._transport is not None:
            await self._writable.wait()
            events = await self._parts.journal.read(stream, after=self._cursor, limit=PAGE)
            if not events and self._writable.is_set() and self._go_live():
                return
            if await self._was_forgotten(stream, events):
                self._too_slow()
                return
            shown = self._parts.hub.originals.restored(events)
            frames = joined(shown) if lagging else single(shown)
            for number, data in frames:
                await self._writable.wait()
                self._cursor = number
                self._write(data)

    async def _was_forgotten(self, stream: str, events: Sequence[Event]) -> bool:
        """True if events after the cursor are not kept any more, so that a snapshot is needed."""
        first = events[0].seq if events else (await self._parts.journal.head(stream)).first
        return first > self._cursor + 1

    def _go_live(self) -> bool:
        assert self._channel is not None
        if self._transport is None:
            return False
        write = partial(self._transport.send, WSMsgType.TEXT)
        return self._channel.go_live(self, self._cursor, write)

    def _write(self, data: bytes) -> None:
        if self._transport is not None and not self._closing:
            self._transport.send(WSMsgType.TEXT, data)

    def _count_missed(self, event: Event, data: bytes) -> None:
        """Count the events that wait for this reader; those that will be joined count as one."""
        source = source_of(event)
        self._missed += 0 if source and source == self._missed_source else 1
        self._missed_source = source
        self._missed_bytes += len(data)
        options = self._parts.options
        if (
            self._missed > options.max_queued_messages
            or self._missed_bytes > options.max_queued_bytes
        ):
            self._too_slow()

    def _too_slow(self) -> None:
        transport = self._transport
        if transport is None:
            return
        log.info("slow_consumer session_id=%s", self._conversation.session_id)
        # What it was given before the goodbye stands in front of it: leave time to read that.
        linger_s = self._parts.options.write_wait_ms / 1000
        self.close(CloseCode.SLOW_CONSUMER, "too slow", linger_s=linger_s)

    def _hello_overdue(self) -> None:
        for effect in self._conversation.hello_overdue():
            self.close(effect.code, effect.reason)
