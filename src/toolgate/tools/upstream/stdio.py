"""A program on stdio that speaks MCP: a transport for the SDK, and beside it a short way for calls.

The SDK shakes hands and lists. A call through it costs milliseconds, so tool calls go over the same
pipe under ids of our own; every other message is the SDK's. A message has a largest size.
"""

import asyncio
import contextlib
import itertools
import logging
import os
import re
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final, cast

import msgspec

from toolgate.contracts.wire import UNREADABLE
from toolgate.core.enums import Outcome
from toolgate.core.errors import Unavailable
from toolgate.sandbox.programs import Launch

log = logging.getLogger(__name__)

MAX_MESSAGE: Final = 8 * 1024 * 1024
STDERR: Final = 2
MAX_COMPLAINT: Final = 4096  # bytes kept of stderr
LEAVE_S: Final = 2.0  # for a program to go by itself once its stdin is closed
AHEAD: Final = 16  # messages that may wait for the SDK
OUR_ID: Final = "call-"  # the SDK's own ids are numbers
_NAMED: Final = re.compile(rb'"id"\s*:\s*"(call-\d+)"')


# JSON-RPC's own: no JSON, no request, no such method, invalid params (as an unknown tool has).
NOT_UNDERSTOOD: Final = frozenset({-32700, -32600, -32601, -32602})


class ServerError(Exception):
    """A JSON-RPC error: the server lives, and refuses the call or breaks it off."""

    def __init__(self, message: str, *, code: int = 0) -> None:
        super().__init__(message)
        self.outcome = Outcome.NOT_STARTED if code in NOT_UNDERSTOOD else Outcome.MAY_HAVE_EXECUTED


class NotRead(ServerError):
    """The server is busy with what it was sent before; the call was not sent."""

    def __init__(self) -> None:
        super().__init__("it does not read what it is sent: try later")
        self.outcome = Outcome.NOT_STARTED


class NotBegun(Unavailable):
    """The session is of no more use; whatever was asked, the server has not begun it."""


class _Error(msgspec.Struct, frozen=True):
    code: int = 0
    message: str = ""


class _Message(msgspec.Struct, frozen=True):
    """The members of a message that say whose it is."""

    id: int | str | float | None = None
    method: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET  # a request, under an id of its own
    result: msgspec.Raw = msgspec.Raw(b"null")
    error: msgspec.Raw = msgspec.Raw(b"null")  # as some say where there is none


_decode: Final = msgspec.json.Decoder(_Message).decode
_decode_error: Final = msgspec.json.Decoder(_Error | None).decode
_encode: Final = msgspec.json.Encoder().encode
_NOT_READ: Final = msgspec.Raw(_encode(_Error(message="it answered what cannot be read")))


def _error_of(message: _Message) -> ServerError | None:
    try:
        error = _decode_error(message.error)
    except UNREADABLE:
        return ServerError("it answered with an error that cannot be read")
    return None if error is None else ServerError(error.message, code=error.code)


class Pipe(asyncio.SubprocessProtocol):
    """The program's ends: `call` for us, `feed` and `lines` for the SDK's transport."""

    def __init__(self, name: str, launch: Launch) -> None:
        self._name = name
        self._launch = launch
        self._complaint = b""  # the end of what the program wrote to stderr
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.SubprocessTransport | None = None
        self._numbers = itertools.count(1)
        self._calls: dict[int | str | float | None, asyncio.Future[bytes]] = {}
        self._parts: list[bytes] = []  # of a line that is not whole yet
        self._size = 0
        self._gone = False
        # What the SDK puts in the `_meta` of its requests goes into ours too.
        self._stamp: dict[str, Any] = {}
        self.lines: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.ended = self._loop.create_future()  # the process

    @property
    def is_gone(self) -> bool:
        """True if no call can be answered any more."""
        return self._gone

    @property
    def complaint(self) -> str:
        """The last line that the program wrote to stderr."""
        lines = self._complaint.decode("utf-8", "replace").split("\n")
        return next((line.strip()[:200] for line in reversed(lines) if line.strip()), "")

    async def settle(self) -> None:
        """Read the last output of a program that has just ended."""
        if not self._gone and self._has_exited():
            await asyncio.wait({self.ended}, timeout=LEAVE_S)
            self._give_up("has gone away")

    def _has_exited(self) -> bool:
        assert self._transport is not None
        pid, look = self._transport.get_pid(), os.WEXITED | os.WNOHANG | os.WNOWAIT
        try:
            return os.waitid(os.P_PID, pid, look) is not None
        except ChildProcessError:  # the loop has seen it, and will tell us
            return True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.SubprocessTransport, transport)

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if fd == STDERR:
            self._complaint = (self._complaint + data)[-MAX_COMPLAINT:]
            return
        if self._gone:
            return
        head, newline, rest = data.partition(b"\n")
        while newline:
            line = b"".join((*self._parts, head)) if self._parts else head
            self._parts, self._size = [], 0
            self._take(line)
            head, newline, rest = rest.partition(b"\n")
        if head:
            self._parts.append(head)
            self._size += len(head)
        if self._size > MAX_MESSAGE:
            log.warning("mcp_message_too_large name=%s limit=%d", self._name, MAX_MESSAGE)
            self._give_up("said more than one message may hold")

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        if fd != STDERR:
            self._give_up("has gone away")

    def process_exited(self) -> None:
        self._give_up("has gone away")
        if not self.ended.done():
            self.ended.set_result(None)

    def _take(self, line: bytes) -> None:
        try:
            message = _decode(line)
        except UNREADABLE:
            message = self._unreadable(line)
        is_answer = message.method is msgspec.UNSET
        waiting = self._calls.get(message.id) if is_answer else None
        if waiting is None:
            if is_answer and type(message.id) is str and message.id.startswith(OUR_ID):
                return  # the answer to a call that was given up
            self.lines.put_nowait(line)
            if self.lines.qsize() > AHEAD:
                self._reading().pause_reading()
        elif not waiting.done():
            if (error := _error_of(message)) is not None:
                waiting.set_exception(error)
            else:
                waiting.set_result(bytes(message.result))

    def _unreadable(self, line: bytes) -> _Message:
        """An answer in half letters, or too deep, is one all the same: who waits for it is told."""
        for name in _NAMED.findall(line):
            if name.decode() in self._calls:
                return _Message(id=name.decode(), error=_NOT_READ)
        return _Message()  # the SDK says what it thinks of it

    def _give_up(self, why: str) -> None:
        if self._gone:
            return
        self._gone = True
        self._parts = []
        self.lines.put_nowait(None)
        for waiting in self._calls.values():
            if not waiting.done():
                waiting.set_exception(Unavailable(f"{self._name} {why}"))

    async def next_line(self) -> bytes | None:
        """For the SDK; None at the end."""
        line = await self.lines.get()
        if self.lines.qsize() == AHEAD and not self._gone:
            self._reading().resume_reading()
        return line

    def feed(self, message: Mapping[str, Any]) -> None:
        """A message of the SDK's; raises OSError where nobody reads."""
        if "id" in message and "method" in message:
            stamp = dict(message.get("params", {}).get("_meta") or {})
            stamp.pop("progressToken", None)
            self._stamp = stamp
        self._write(message)

    async def call(self, params: dict[str, Any], *, seconds: float) -> bytes:
        """The result of `tools/call`, as JSON; raises ServerError, NotBegun, Unavailable."""
        if meta := {**(params.get("_meta") or {}), **self._stamp}:
            params["_meta"] = meta
        name = f"{OUR_ID}{next(self._numbers)}"
        answered: asyncio.Future[bytes] = self._loop.create_future()
        self._calls[name] = answered
        timer = self._loop.call_later(seconds, self._too_late, answered, seconds)
        try:
            try:
                request = {"jsonrpc": "2.0", "id": name, "method": "tools/call", "params": params}
                self._write(request)
            except BlockingIOError as full:
                raise NotRead from full
            except OSError as gone:
                raise NotBegun(f"{self._name} has gone away") from gone
            return await answered
        except (asyncio.CancelledError, Unavailable):
            self._cancel(name)
            raise
        finally:
            timer.cancel()
            del self._calls[name]

    def _too_late(self, answered: asyncio.Future[bytes], seconds: float) -> None:
        if not answered.done():
            late = f"{self._name} did not answer in {seconds:.0f} s"
            answered.set_exception(Unavailable(late))

    def _cancel(self, name: str) -> None:
        """Nobody waits any more: the server is told, if it can be."""
        params: dict[str, Any] = {"requestId": name}
        if self._stamp:
            params["_meta"] = self._stamp
        with contextlib.suppress(OSError):
            self._write({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params})

    def _write(self, message: Mapping[str, Any]) -> None:
        assert self._transport is not None
        stdin = cast(asyncio.WriteTransport, self._transport.get_pipe_transport(0))
        if self._gone or stdin.is_closing():
            raise BrokenPipeError(self._name)
        if stdin.get_write_buffer_size() > MAX_MESSAGE:
            raise BlockingIOError(f"{self._name} does not read")
        stdin.write(_encode(message) + b"\n")

    def _reading(self) -> asyncio.ReadTransport:
        assert self._transport is not None
        return cast(asyncio.ReadTransport, self._transport.get_pipe_transport(1))

    async def stop(self) -> None:
        """Close its stdin, give it a moment, then kill it and everything it has started."""
        assert self._transport is not None
        self._give_up("was let go")
        stdin = self._transport.get_pipe_transport(0)
        if stdin is not None:
            stdin.close()
        with contextlib.suppress(OSError, RuntimeError, AttributeError):
            # A program that is stuck in writing cannot see that its stdin is closed.
            self._reading().resume_reading()
        await asyncio.wait({self.ended}, timeout=LEAVE_S)
        await self._launch.kill(self._transport.get_pid(), self.ended)
        self._transport.close()


@contextlib.asynccontextmanager
async def open_pipe(launch: Launch, *, name: str) -> AsyncIterator[Pipe]:
    """Raises OSError where the program cannot be started."""
    _, pipe = await asyncio.get_running_loop().subprocess_exec(
        lambda: Pipe(name, launch),
        *launch.command,
        pass_fds=launch.pass_fds,
        env=dict(launch.env),
        start_new_session=True,
    )
    try:
        yield pipe
    finally:
        await pipe.stop()


@contextlib.asynccontextmanager
async def stdio_transport(pipe: Pipe) -> AsyncIterator[tuple[Any, Any]]:
    """The SDK's two streams over a pipe."""
    import anyio  # noqa: PLC0415 - comes with the SDK, which is imported with the first server

    into, read = anyio.create_memory_object_stream[Any](AHEAD)
    write, out_of = anyio.create_memory_object_stream[Any](AHEAD)
    tasks = [
        asyncio.create_task(_read(pipe, into)),
        asyncio.create_task(_write(pipe, out_of, into)),
    ]
    try:
        yield read, write
    finally:
        for stream in (read, write):
            stream.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for stream in (into, out_of):
            stream.close()


async def _read(pipe: Pipe, into: Any) -> None:
    from mcp import types  # noqa: PLC0415
    from mcp.shared.message import SessionMessage  # noqa: PLC0415

    with into:
        while (line := await pipe.next_line()) is not None:
            try:
                message = types.jsonrpc_message_adapter.validate_json(line, by_name=False)
                await into.send(SessionMessage(message))
            except ValueError as garbage:
                await into.send(garbage)


async def _write(pipe: Pipe, out_of: Any, into: Any) -> None:
    try:
        async for message in out_of:
            pipe.feed(message.message.model_dump(mode="json", by_alias=True, exclude_unset=True))
    except OSError:
        into.close()  # the session learns that nobody listens
