"""One connection to an MCP server, from its handshake to its end; a failure ends it for good.

One task owns it, as the SDK asks. Calls to a program on stdio go past the SDK (see `mcp_stdio`).
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable
from contextvars import ContextVar
from dataclasses import dataclass, field
from http import HTTPStatus
from importlib import import_module
from typing import Any, Final

import msgspec

from toolgate.core.clock import Clock
from toolgate.core.errors import Unavailable
from toolgate.sandbox.programs import NotIsolated
from toolgate.tools.capabilities import Server
from toolgate.tools.upstream.outputs import Result, decode_result
from toolgate.tools.upstream.programs import Programs
from toolgate.tools.upstream.stdio import (
    MAX_MESSAGE,
    NotBegun,
    Pipe,
    ServerError,
    open_pipe,
    stdio_transport,
)

log = logging.getLogger(__name__)

OPEN_S: Final = 20.0  # to start a server and shake hands with it
CALL_S: Final = 60.0
CHECK_S: Final = 5.0
MAX_TOOLS: Final = 1000
MAX_PAGES: Final = 100  # of a listing: a page may be empty, and name another
SILENCE_S: Final = 300.0  # of a stream of a server's own; a call has its own deadline
# The SDK says so too of an answer that it cannot read: then the server has understood very well.
UNREADABLE: Final = frozenset({-32700, -32600})
REFUSED: Final = "Server returned an error response"  # the SDK's, for a status with no reason
SHUT: Final = frozenset({HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN})


@dataclass(slots=True)
class _Refusal:
    """The HTTP refusal of one question, if there was one."""

    status: int = 0
    names_session: bool = False


# Of the question that a request is made for: the SDK makes it in the context of who asked.
_refusal: Final[ContextVar[_Refusal]] = ContextVar("refusal")


@dataclass(slots=True)
class Session:
    name: str
    server: Server
    clock: Clock
    programs: Programs
    last_heard: float = 0.0
    used_at: float = 0.0
    calls: int = 0  # under way
    has_failed: bool = False  # and that was counted
    failure: str = ""  # why it could not be opened
    cannot_start: bool = False  # before its registration or this machine is changed
    tools: list[Any] | None = None  # the SDK's, as last listed, until they are pinned
    _client: Any = None
    _pipe: Pipe | None = None
    _opened: asyncio.Future[None] | None = None
    _leave: asyncio.Event = field(default_factory=asyncio.Event)
    _task: asyncio.Task[None] | None = None

    @property
    def is_open(self) -> bool:
        return self._opened is not None and self._opened.done()

    @property
    def dead(self) -> bool:
        gone = self._pipe is not None and self._pipe.is_gone
        return gone or self._leave.is_set() or (self._task is not None and self._task.done())

    async def open(self) -> None:
        """Raises Unavailable."""
        if self._opened is not None and self._opened.done():
            return self._opened.result()
        if self._opened is None:
            self._opened = asyncio.get_running_loop().create_future()
            self._task = asyncio.create_task(self._live(), name=f"mcp {self.name}")
        try:
            async with asyncio.timeout(OPEN_S):
                await asyncio.shield(self._opened)
        except TimeoutError as late:
            raise Unavailable(f"{self.name} did not start in {OPEN_S:.0f} s") from late

    async def close(self) -> None:
        self._leave.set()
        if self._task is not None:
            if not self.is_open:
                self._task.cancel()  # it shakes hands, and would not see that it is to leave
            _, late = await asyncio.wait({self._task}, timeout=CHECK_S)
            for task in late:
                task.cancel()
                await asyncio.wait({task}, timeout=CHECK_S)

    async def is_fit(self, *, after_s: float) -> bool:
        """Check a session that was silent, and list its tools again: they may have changed."""
        if self._pipe is not None:
            await self._pipe.settle()
        if self.dead:
            return False
        if self.calls or not self.is_open:
            return True  # many servers do one thing at a time; each call has its own deadline
        if self.clock.monotonic() - self.last_heard < after_s:
            return True
        try:
            self.tools = await self.check()
        except Unavailable:
            return False
        except ServerError:
            return True
        return True

    async def check(self) -> list[Any]:
        """List the tools within the time of a health check; raises Unavailable, ServerError."""
        return await self._list_all(seconds=CHECK_S)

    async def list_all(self) -> list[Any]:
        """List the tools, as the SDK has them; raises Unavailable, ServerError."""
        return await self._list_all(seconds=OPEN_S)

    async def _list_all(self, *, seconds: float) -> list[Any]:
        """Each page in its time."""
        found: list[Any] = []
        cursor: str | None = None
        for _ in range(MAX_PAGES):
            page = await self._ask(self._client.list_tools(cursor=cursor), seconds=seconds)
            found.extend(page.tools)
            cursor = page.next_cursor
            if not cursor or len(found) >= MAX_TOOLS:
                break
        return found[:MAX_TOOLS]

    async def call(
        self, action: str, args: dict[str, Any], *, meta: dict[str, Any] | None
    ) -> Result:
        """Raises NotBegun, Unavailable, and then the session is of no more use; ServerError."""
        self.calls += 1
        try:
            if self._pipe is not None:
                return await self._call_by_pipe(self._pipe, action, args, meta)
            calling = self._client.call_tool(action, args, read_timeout_seconds=CALL_S, meta=meta)
            told = await self._ask(calling, seconds=CALL_S)
            return msgspec.convert(told.model_dump(mode="json", by_alias=True), Result)
        finally:
            self.calls -= 1
            self.used_at = self.clock.monotonic()

    async def _call_by_pipe(
        self, pipe: Pipe, action: str, args: dict[str, Any], meta: dict[str, Any] | None
    ) -> Result:
        params: dict[str, Any] = {"name": action, "arguments": args}
        if meta:
            params["_meta"] = meta
        try:
            result = decode_result(await pipe.call(params, seconds=CALL_S))
        except Unavailable:
            self._leave.set()
            raise
        except (msgspec.DecodeError, UnicodeDecodeError) as garbage:
            self._leave.set()
            raise Unavailable(f"{self.name}: {_plainly(garbage)}") from garbage
        finally:
            self.last_heard = self.clock.monotonic()
        if result.result_type != "complete":
            raise ServerError(
                f"it asks for more ({result.result_type[:40]}), which nobody can give"
            )
        return result

    async def _ask(self, question: Awaitable[Any], *, seconds: float) -> Any:
        """Raises Unavailable, and then the session is of no more use; ServerError."""
        refusal = _Refusal()
        _refusal.set(refusal)
        answering = asyncio.ensure_future(question)
        assert self._task is not None
        try:
            done, _ = await asyncio.wait(
                {answering, self._task}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED
            )
            if answering in done:
                answer = await answering
                self.last_heard = self.clock.monotonic()
                return answer
        except Exception as failed:
            from mcp import MCPError  # noqa: PLC0415 - see `_live`

            if isinstance(failed, MCPError) and _is_forgotten(failed, refusal):
                self._leave.set()
                raise NotBegun(f"{self.name} does not know the session: {failed}") from failed
            if isinstance(failed, MCPError) and not self._is_cut(failed, refusal):
                self.last_heard = self.clock.monotonic()
                code = 0 if failed.code in UNREADABLE else failed.code
                raise ServerError(str(failed), code=code) from failed
            self._leave.set()
            raise Unavailable(f"{self.name}: {_plainly(failed)}") from failed
        finally:
            answering.cancel()
        gone = self._task.done()
        self._leave.set()
        if gone:
            raise Unavailable(f"{self.name} has gone away")
        raise Unavailable(f"{self.name} did not answer in {seconds:.0f} s")

    def _is_cut(self, failed: Exception, refusal: _Refusal) -> bool:
        shut = refusal.status in SHUT or refusal.status >= HTTPStatus.INTERNAL_SERVER_ERROR
        refused = shut and str(failed) == REFUSED
        return self.dead or refused or "connection closed" in str(failed).lower()

    async def _look(self, response: Any) -> None:
        if response.status_code >= HTTPStatus.BAD_REQUEST:
            with contextlib.suppress(LookupError):  # of no question: the handshake, a stream
                refusal = _refusal.get()
                refusal.status = response.status_code
                refusal.names_session = "mcp-session-id" in response.request.headers
        if not response.headers.get("content-type", "").startswith("text/event-stream"):
            response.stream = _bounded(response)  # the SDK reads it whole
            response.headers.pop("content-encoding", None)

    async def _live(self) -> None:
        assert self._opened is not None
        try:
            async with self._connected() as client:
                self._client = client
                with contextlib.suppress(ServerError):  # it may have tools all the same
                    self.tools = await self.list_all()
                self.last_heard = self.used_at = self.clock.monotonic()
                self._opened.set_result(None)
                await self._leave.wait()
        except Exception as failed:  # noqa: BLE001 - whatever a server does, it ends its own session
            if not self._opened.done():
                self._opened.set_exception(Unavailable(self._why_not_opened(failed)))
                self._opened.exception()  # retrieved here: perhaps nobody waits for it
            else:
                log.warning("mcp_session_ended name=%s error=%s", self.name, _plainly(failed))
        finally:
            if not self._opened.done():  # it was cancelled; those who wait were not
                self._opened.set_exception(Unavailable(f"{self.name} was let go"))
                self._opened.exception()

    def _why_not_opened(self, failed: Exception) -> str:
        self.cannot_start = isinstance(failed, NotIsolated)
        if self.cannot_start:
            self.failure = str(failed)
        else:
            complaint = "" if self._pipe is None else self._pipe.complaint
            self.failure = f"{_plainly(failed)}{f'; it wrote: {complaint}' if complaint else ''}"
        return f"{self.name}: {self.failure}"

    @contextlib.asynccontextmanager
    async def _connected(self) -> AsyncIterator[Any]:
        # Imported with the first server: about a second of CPU and 45 MB (DESIGN, "The browser"). In
        # a thread: that may be while the installation starts, and others are served meanwhile.
        await asyncio.to_thread(import_module, "mcp.client.streamable_http")
        import httpx2  # noqa: PLC0415
        from mcp import Client  # noqa: PLC0415
        from mcp.client.streamable_http import streamable_http_client  # noqa: PLC0415

        if self.server.command:
            async with (
                self.programs.start(self.name, self.server) as launch,
                open_pipe(launch, name=self.name) as pipe,
            ):
                self._pipe = pipe
                async with Client(stdio_transport(pipe)) as client:
                    yield client
        else:
            async with (
                httpx2.AsyncClient(
                    headers=dict(self.server.headers),
                    timeout=httpx2.Timeout(CALL_S, read=SILENCE_S),
                    event_hooks={"response": [self._look]},
                ) as http,
                Client(
                    streamable_http_client(
                        self.server.url, http_client=http, max_sse_event_size=MAX_MESSAGE
                    )
                ) as client,
            ):
                yield client


def _is_forgotten(failed: Exception, refusal: _Refusal) -> bool:
    """By the protocol it says 404; some say 400, and why."""
    unknown = refusal.status == HTTPStatus.BAD_REQUEST and "session" in str(failed).lower()
    return refusal.names_session and (unknown or refusal.status == HTTPStatus.NOT_FOUND)


def _bounded(response: Any) -> Any:
    """The decoded body; reading it fails once it is larger than a message may be."""
    import httpx2  # noqa: PLC0415 - see `_connected`

    coded = httpx2.Response(response.status_code, headers=response.headers, stream=response.stream)

    class Bounded(httpx2.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            size = 0
            async with contextlib.aclosing(coded.aiter_bytes()) as chunks:
                async for chunk in chunks:
                    size += len(chunk)
                    if size > MAX_MESSAGE:
                        raise httpx2.StreamError("it said more than one message may hold")
                    yield chunk

        async def aclose(self) -> None:
            await coded.aclose()

    return Bounded()


def _plainly(failed: BaseException) -> str:
    """The first cause in a group, in one line."""
    while isinstance(failed, BaseExceptionGroup):
        failed = failed.exceptions[0]
    return f"{type(failed).__name__}: {failed}"[:300]
