"""MCP servers upstream, over stdio and streamable HTTP, on the official SDK.

A session is opened when it is first needed and opened anew when it has died; one task owns it from
its beginning to its end, as the SDK asks. What a server says is cut to size before anyone sees it.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from toolgate.adapters.mcp_stdio import stdio_transport
from toolgate.domain.capabilities import Health, Server, health_after
from toolgate.domain.errors import Unavailable
from toolgate.domain.tools import Caller, JsonValue, Level, Outcome, Tool, ToolOutput, ToolRequest
from toolgate.ports.clock import Clock
from toolgate.ports.engine import Update, no_update

log = logging.getLogger(__name__)

OPEN_S: Final = 20.0  # to start a server and shake hands with it
CALL_S: Final = 60.0
CHECK_S: Final = 5.0
STALE_S: Final = 2.0  # a session that was silent for longer is looked at before it is used
WATCH_S: Final = 15.0
TOOLS_KEPT_S: Final = 60.0
MAX_TOOLS: Final = 1000
MAX_TEXT: Final = 256 * 1024  # characters of one text
MAX_OUTPUT: Final = 512 * 1024  # characters of all that a call brought

FindServer = Callable[[str], Server | None]
Report = Callable[[str, Health], object]


@dataclass(slots=True)
class _Session:
    """One connection; `close` and a failure end it for good."""

    name: str
    server: Server
    clock: Clock
    client: Any = None
    last_heard: float = 0.0
    tools: Sequence[Tool] = ()
    tools_at: float = -TOOLS_KEPT_S
    _opened: asyncio.Future[None] | None = None
    _leave: asyncio.Event = field(default_factory=asyncio.Event)
    _task: asyncio.Task[None] | None = None

    @property
    def dead(self) -> bool:
        return self._task is not None and self._task.done()

    async def open(self) -> None:
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
            _, late = await asyncio.wait({self._task}, timeout=CHECK_S)
            for task in late:
                task.cancel()
                await asyncio.wait({task}, timeout=CHECK_S)

    async def ask(self, question: Awaitable[Any], *, seconds: float) -> Any:
        """Raises Unavailable, and then the session is of no more use."""
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
            from mcp import MCPError  # noqa: PLC0415 - a second of CPU, and only with a server

            if isinstance(failed, MCPError) and not self._is_cut(failed):
                self.last_heard = self.clock.monotonic()
                raise _ServerSaidNo(str(failed)) from failed
            self._leave.set()
            raise Unavailable(f"{self.name}: {_plainly(failed)}") from failed
        finally:
            answering.cancel()
        self._leave.set()
        if self.dead:
            raise Unavailable(f"{self.name} has gone away")
        raise Unavailable(f"{self.name} did not answer in {seconds:.0f} s")

    def _is_cut(self, failed: Exception) -> bool:
        return self.dead or "connection closed" in str(failed).lower()

    async def _live(self) -> None:
        assert self._opened is not None
        try:
            async with _client(self.name, self.server) as client:
                self.client = client
                self.last_heard = self.clock.monotonic()
                self._opened.set_result(None)
                await self._leave.wait()
        except Exception as failed:  # noqa: BLE001 - whatever a server does, it ends its own session
            if not self._opened.done():
                self._opened.set_exception(Unavailable(f"{self.name}: {_plainly(failed)}"))
                self._opened.exception()  # whoever waits is told; nobody has to
            else:
                log.warning("mcp_session_ended name=%s error=%s", self.name, _plainly(failed))
        finally:
            if not self._opened.done():
                self._opened.cancel()


class _ServerSaidNo(Exception):
    """A JSON-RPC error: the server lives, and refuses the call."""


def _client(name: str, server: Server) -> Any:
    # Imported with the first server: about a second of CPU and 45 MB (DESIGN, "The browser").
    import httpx2  # noqa: PLC0415
    from mcp import Client  # noqa: PLC0415
    from mcp.client.streamable_http import streamable_http_client  # noqa: PLC0415

    if server.command:
        return Client(stdio_transport(server, name=name))
    if not server.headers:
        return Client(server.url)
    http = httpx2.AsyncClient(headers=dict(server.headers), timeout=CALL_S)
    return Client(streamable_http_client(server.url, http_client=http))


class McpUpstreams:
    """ports.upstreams.Upstreams, and the Engine behind `<capability>.<tool>`."""

    ref: Final = "mcp_upstream"

    def __init__(self, find: FindServer, *, clock: Clock, report: Report) -> None:
        self._find = find
        self._clock = clock
        self._report = report
        self._sessions: dict[str, _Session] = {}
        self._failures: dict[str, int] = {}
        self._levels: dict[str, Tool] = {}

    def knows(self, capability_id: str) -> bool:
        return self._find(capability_id) is not None

    def takes(self, tool: str) -> bool:
        return bool(self._split(tool)[0])

    def describe(self, tool: str, _caller: Caller) -> Tool | None:
        return self._levels.get(tool)

    async def tools(self, capability_id: str) -> Sequence[Tool]:
        session = await self._session(capability_id)
        if self._clock.monotonic() - session.tools_at > TOOLS_KEPT_S:
            listed = await self._heard(capability_id, _list_all(session))
            session.tools = [_tool(one) for one in listed[:MAX_TOOLS]]
            session.tools_at = self._clock.monotonic()
            for tool in session.tools:
                self._levels[f"{capability_id}.{tool.name}"] = tool
        return session.tools

    async def run(self, request: ToolRequest, *, update: Update = no_update) -> ToolOutput:
        capability_id, action = self._split(request.tool)
        args = dict(request.args)
        meta = args.pop("_meta", None)
        try:
            session = await self._session(capability_id)
        except Unavailable as gone:
            return _failed(str(gone), Outcome.NOT_STARTED)
        calling = session.client.call_tool(
            action, args, read_timeout_seconds=CALL_S, meta=_context(meta)
        )
        try:
            result = await self._heard(capability_id, session.ask(calling, seconds=CALL_S))
        except Unavailable as gone:
            return _failed(str(gone), Outcome.MAY_HAVE_EXECUTED)
        except _ServerSaidNo as no:
            return _failed(f"{capability_id}: {no}"[:1000], Outcome.NOT_STARTED)
        return _output(result)

    async def check(self, capability_id: str) -> bool:
        """Whether the server answers; its health follows from that."""
        try:
            session = await self._session(capability_id)
            await self._heard(
                capability_id, session.ask(session.client.list_tools(), seconds=CHECK_S)
            )
        except (Unavailable, _ServerSaidNo):
            return False
        return True

    async def watch(self, *, every_s: float = WATCH_S) -> None:
        """Look after those that were used, for ever: one that is offline comes back only so."""
        while True:
            await asyncio.sleep(every_s)
            for capability_id in [*self._sessions, *self._failures]:
                if self.knows(capability_id):
                    await self.check(capability_id)

    async def forget(self, capability_id: str) -> None:
        """Its server was changed: the next call finds the new one."""
        session = self._sessions.pop(capability_id, None)
        if session is not None:
            await session.close()

    async def close(self) -> None:
        for capability_id in list(self._sessions):
            await self.forget(capability_id)

    async def _session(self, capability_id: str) -> _Session:
        server = self._find(capability_id)
        if server is None:
            raise Unavailable(f"no MCP server is configured for {capability_id}")
        session = self._sessions.get(capability_id)
        if session is not None and session.server != server:
            await self.forget(capability_id)
            session = None
        if session is not None and not await self._is_fit(session):
            await self.forget(capability_id)
            session = None
        if session is None:
            session = self._sessions.get(capability_id)  # another may have opened it meanwhile
        if session is None:
            session = _Session(capability_id, server, self._clock)
            self._sessions[capability_id] = session
        try:
            await session.open()
        except (Unavailable, asyncio.CancelledError):
            if self._sessions.get(capability_id) is session:
                del self._sessions[capability_id]
            self._failed(capability_id)
            raise
        return session

    async def _is_fit(self, session: _Session) -> bool:
        """A silent session may be that of a server that was restarted."""
        if session.dead or session._leave.is_set():
            return False
        if session.client is None or self._clock.monotonic() - session.last_heard < STALE_S:
            return True
        try:
            await session.ask(session.client.list_tools(), seconds=CHECK_S)
        except Unavailable:
            return False
        except _ServerSaidNo:
            return True
        return True

    async def _heard(self, capability_id: str, question: Awaitable[Any]) -> Any:
        try:
            answer = await question
        except Unavailable:
            self._failed(capability_id)
            raise
        self._failures.pop(capability_id, None)
        self._report(capability_id, Health.HEALTHY)
        return answer

    def _failed(self, capability_id: str) -> None:
        self._failures[capability_id] = self._failures.get(capability_id, 0) + 1
        self._report(capability_id, health_after(self._failures[capability_id]))

    def _split(self, tool: str) -> tuple[str, str]:
        """`mcp.docs.search` is `search` of `mcp.docs`, where there is such a capability."""
        capability_id, dot, action = tool.rpartition(".")
        while dot:
            if self._find(capability_id) is not None:
                return capability_id, action
            capability_id, dot, head = capability_id.rpartition(".")
            action = f"{head}.{action}"
        return "", ""


async def _list_all(session: _Session) -> list[Any]:
    found: list[Any] = []
    cursor: str | None = None
    while len(found) < MAX_TOOLS:
        page = await session.ask(session.client.list_tools(cursor=cursor), seconds=OPEN_S)
        found.extend(page.tools)
        cursor = page.next_cursor
        if not cursor:
            break
    return found


def _tool(listed: Any) -> Tool:
    hints = listed.annotations
    read_only = bool(hints is not None and hints.read_only_hint)
    return Tool(
        name=listed.name,
        description=(listed.description or "")[:4096],
        level=Level.READ if read_only else Level.WRITE,
        schema=listed.input_schema,
        repeatable=read_only or bool(hints is not None and hints.idempotent_hint),
    )


def _context(meta: JsonValue) -> dict[str, Any] | None:
    return {"toolgate/context": meta} if meta else None


def _output(result: Any) -> ToolOutput:
    """The result as JSON, no larger than there is room for."""
    is_error = bool(result.is_error)
    content, cut = _capped(one.model_dump(mode="json", by_alias=True) for one in result.content)
    data: dict[str, JsonValue] = {"content": content, "isError": is_error}
    structured = result.structured_content
    if structured is not None:
        if len(str(structured)) <= MAX_OUTPUT:
            data["structuredContent"] = structured
        else:
            cut = True
    if cut:
        data["truncated"] = True
    texts = [str(part["text"]) for part in content if isinstance(part, dict) and "text" in part]
    return ToolOutput(
        exit_code=1 if is_error else 0,
        stdout="" if is_error else "\n".join(texts),
        stderr="\n".join(texts) if is_error else "",
        data=data,
        truncated=cut,
    )


def _capped(parts: Iterable[dict[str, Any]]) -> tuple[list[JsonValue], bool]:
    kept: list[JsonValue] = []
    left, cut = MAX_OUTPUT, False
    for part in parts:
        text = part.get("text")
        if isinstance(text, str):
            room = min(MAX_TEXT, left)
            cut = cut or len(text) > room
            part["text"] = text[:room]
        size = sum(len(value) for value in part.values() if isinstance(value, str))
        if size > left:
            cut = True
            continue
        left -= size
        kept.append({name: value for name, value in part.items() if value is not None})
    return kept, cut


def _failed(message: str, outcome: Outcome) -> ToolOutput:
    return ToolOutput(exit_code=1, stderr=message, outcome=outcome)


def _plainly(failed: BaseException) -> str:
    """The first cause in a group, in one line."""
    while isinstance(failed, BaseExceptionGroup):
        failed = failed.exceptions[0]
    return f"{type(failed).__name__}: {failed}"[:300]
