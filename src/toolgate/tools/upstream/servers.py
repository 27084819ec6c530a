"""MCP servers upstream, over stdio and streamable HTTP: their sessions, their tools, their health.

A session is opened when it is first needed, and again when it has died. Callers share one session
of a capability; a caller that names a session has one of its own. The number of those is limited:
the one that was idle longest is ended.
"""

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

import msgspec

from toolgate.access.devices import named_session
from toolgate.core.clock import Clock
from toolgate.core.enums import HealthStatus, Level, Outcome
from toolgate.core.errors import Unavailable
from toolgate.core.json_schema import MAX_SCHEMA, Unusable, compiled
from toolgate.core.tools import Caller, JsonValue, Tool, ToolOutput, ToolRequest
from toolgate.tools.capabilities import FAILURES_OFFLINE, Server, health_after
from toolgate.tools.definitions import UPSTREAM, failed
from toolgate.tools.engine import Update, no_update
from toolgate.tools.upstream.outputs import Result, output_of
from toolgate.tools.upstream.pins import Pins, definition_of, place_of
from toolgate.tools.upstream.programs import Programs
from toolgate.tools.upstream.session import Session
from toolgate.tools.upstream.stdio import NotBegun, ServerError

log = logging.getLogger(__name__)

STALE_S: Final = 2.0  # a session that was silent for longer is checked before it is used
WATCH_S: Final = 15.0
TOOLS_KEPT_S: Final = 60.0
MAX_OFFERED: Final = 128  # of one server: a model reads every tool in each turn
MAX_NAMED: Final = 8  # sessions of callers' own, for one capability
IDLE_S: Final = 300.0  # after which such a session ends

FindServer = Callable[[str], Server | None]
Report = Callable[[str, HealthStatus, str], object]  # with the reason, where it is not healthy
RegisteredLevel = Callable[[str, str], Level]  # of a capability's tool


class _Key(NamedTuple):
    capability_id: str
    session: str  # empty: the one that is shared


class _Listed(NamedTuple):
    at: float
    server: Server
    said: list[Any]  # by the SDK
    tools: dict[str, Tool]  # each with the level that its annotations raise it to
    offered: Sequence[str]
    checks: dict[str, Any]  # by tool: what its structured answer must fit


class _Failed(Exception):
    """A call that brought no result, and what became of it."""

    def __init__(self, message: str, outcome: Outcome) -> None:
        super().__init__(message)
        self.outcome = outcome


class McpUpstreams:
    """The upstream MCP servers, and the engine behind `<capability>.<tool>`."""

    ref: Final = "mcp_upstream"

    def __init__(
        self,
        find: FindServer,
        *,
        clock: Clock,
        report: Report,
        level: RegisteredLevel,
        programs: Programs,
        pins: Pins,
    ) -> None:
        self._find = find
        self._clock = clock
        self._report = report
        self._level = level
        self._programs = programs
        self._pins = pins
        self._sessions: dict[_Key, Session] = {}
        self._failures: dict[str, tuple[Server, int]] = {}  # in a row, of the server it has
        self._listed: dict[str, _Listed] = {}

    def knows(self, capability_id: str) -> bool:
        return self._find(capability_id) is not None

    def capability_of(self, tool: str) -> str:
        return self._split(tool)[0]

    def describe(self, tool: str, _caller: Caller) -> Tool | None:
        capability_id, action = self._split(tool)
        return self._tool(capability_id, action)

    async def place(self, request: ToolRequest) -> str:
        """The server and the tool definition that the call would be made with now."""
        capability_id, action = self._split(request.tool)
        server = self._find(capability_id)
        if server is None:
            return ""
        pin = self._pins.get(capability_id, action)
        return place_of(server) + ("" if pin is None else f" {pin.digest}")

    def pin_of(self, tool: str) -> tuple[str, str]:
        """The capability and the server's name of a tool, by which its pin is found."""
        return self._split(tool)

    def offered(self, capability_id: str) -> Sequence[Tool]:
        """The tools that a model can be offered; none if the server has not listed them yet."""
        known = self._known(capability_id)
        if known is None:
            return ()
        found = (
            self._tool(capability_id, name)
            for name in known.offered
            if not self._pins.refusal(capability_id, name)
        )
        return [tool for tool in found if tool is not None]

    async def tools(self, capability_id: str, *, session: str = "") -> Mapping[str, Tool]:
        known = await self._listing(capability_id, session)
        found = ((name, self._tool(capability_id, name)) for name in known.tools)
        return {name: tool for name, tool in found if tool is not None}

    async def _listing(self, capability_id: str, session: str) -> _Listed:
        if (known := self._lately(capability_id)) is not None:
            return known
        connection = await self._session(_Key(capability_id, session))
        if (known := self._lately(capability_id)) is None:
            try:
                said = await self._heard(connection, connection.list_all())
                known = await self._learn(connection, said)
            except ServerError as no:
                raise Unavailable(f"{capability_id} does not list its tools: {no}"[:1000]) from no
        return known

    def _tool(self, capability_id: str, action: str) -> Tool | None:
        """A listed tool, with its level and the digest of its pinned definition."""
        known = self._known(capability_id)
        tool = None if known is None else known.tools.get(action)
        if tool is None:
            return None
        registered, pin = self._level(capability_id, action), self._pins.get(capability_id, action)
        level = _higher(registered, tool.level)
        return replace(tool, level=level, definition="" if pin is None else pin.digest)

    async def run(self, request: ToolRequest, *, update: Update = no_update) -> ToolOutput:
        server = self._find(self._split(request.tool)[0])
        output = await self._run(request)
        if server is None:
            return output
        isolation = "remote" if server.url else server.isolation.value
        return msgspec.structs.replace(output, isolation=isolation)

    async def _run(self, request: ToolRequest) -> ToolOutput:
        capability_id, action = self._split(request.tool)
        args = dict(request.args)
        meta = args.pop("_meta", None)
        name = named_session(request.caller.device, request.caller.session)
        key = _Key(capability_id, name and request.caller.session)
        try:
            result = await self._call(key, action, args, meta=_context(meta))
        except _Failed as why:
            return failed(str(why), outcome=why.outcome, code=UPSTREAM)
        known = self._known(capability_id)
        check = None if known is None else known.checks.get(action)
        if check is not None and not result.is_error and not check(result.structured_content):
            return failed(
                f"{capability_id}: the answer does not fit the schema that the server gave",
                outcome=Outcome.MAY_HAVE_EXECUTED,
                code=UPSTREAM,
            )
        return output_of(result)

    async def _call(
        self,
        key: _Key,
        action: str,
        args: dict[str, Any],
        *,
        meta: dict[str, Any] | None,
    ) -> Result:
        """Raises _Failed. A server that has gone, or forgotten the session, is started again.

        It may list other definitions then: the call is made only with the one it was decided on.
        """
        decided_on = self._listed.get(key.capability_id)
        for is_last in (False, True):
            try:
                session = await self._session(key)
            except Unavailable as gone:
                raise _Failed(str(gone), Outcome.NOT_STARTED) from gone
            if why := self._pins.refusal(key.capability_id, action):
                accept = f"toolgate mcp accept {key.capability_id} {action}"
                raise _Failed(f"{why}: a person must accept it ({accept})", Outcome.NOT_STARTED)
            if self._does_more(key.capability_id, action, decided_on):
                why = f"{key.capability_id}.{action} has a higher level than was known"
                raise _Failed(f"{why}: call it again", Outcome.NOT_STARTED)
            try:
                calling = session.call(action, args, meta=meta)
                result: Result = await self._heard(session, calling)
            except NotBegun as gone:
                if is_last:
                    raise _Failed(str(gone), Outcome.NOT_STARTED) from gone
            except Unavailable as gone:
                raise _Failed(str(gone), Outcome.MAY_HAVE_EXECUTED) from gone
            except ServerError as no:
                raise _Failed(f"{key.capability_id}: {no}"[:1000], no.outcome) from no
            else:
                return result
        raise AssertionError

    async def check(self, capability_id: str) -> bool:
        """Check a server's health; return whether it answers."""
        named = [key for key in self._sessions if key.capability_id == capability_id]
        try:
            session = await self._session(named[0] if named else _Key(capability_id, ""))
            if session.calls:
                return True  # the call under way decides its health
            await self._learn(session, await self._heard(session, session.check()))
        except (Unavailable, ServerError):
            return False
        return True

    async def watch(
        self, *, every_s: float = WATCH_S, registered: Callable[[], Iterable[str]] = tuple
    ) -> None:
        """Check the servers that were used, for ever: only a check finds that one is back.

        A registered server that was never used is asked once for its tools, so that they are offered.
        """
        while True:
            try:
                await self.end_idle()
                used = {key.capability_id for key in self._sessions}
                unknown = {name for name in registered() if self._known(name) is None}
                looked_after = filter(self.knows, used | unknown | self._failures.keys())
                # All at once: one that hangs must not delay the others.
                checks = map(self.check, looked_after)
                for failed in await asyncio.gather(*checks, return_exceptions=True):
                    if isinstance(failed, Exception):
                        log.error("mcp_check_failed", exc_info=failed)
            except Exception:  # the next round tries again
                log.exception("mcp_watch_failed")
            await asyncio.sleep(every_s)

    async def end_idle(self, *, after_s: float = IDLE_S) -> None:
        """End the sessions that callers named and have not used for so long.

        Also those with a server that is no longer the capability's.
        """
        since = self._clock.monotonic() - after_s
        for key, session in list(self._sessions.items()):
            idle = bool(key.session) and session.used_at <= since
            if not session.calls and (idle or not self._has(key.capability_id, session.server)):
                await self._end(key)

    async def forget(self, capability_id: str) -> None:
        """End the sessions of a capability; the next call starts its server again."""
        self._listed.pop(capability_id, None)
        for key in [key for key in self._sessions if key.capability_id == capability_id]:
            await self._end(key)

    async def close(self) -> None:
        await asyncio.gather(*(self._end(key) for key in list(self._sessions)))

    async def _end(self, key: _Key) -> None:
        session = self._sessions.pop(key, None)
        if session is not None:
            await session.close()

    async def _session(self, key: _Key) -> Session:
        server = self._find(key.capability_id)
        if server is None:
            raise Unavailable(f"no MCP server is configured for {key.capability_id}")
        session = self._sessions.get(key)
        if session is not None and (
            not self._has(key.capability_id, session.server)
            or not await session.is_fit(after_s=STALE_S)
        ):
            if self._sessions.get(key) is session:
                await self._end(key)
            session = self._sessions.get(key)  # another may have opened it meanwhile
        if session is None:
            await self._make_room(key)
            session = self._sessions.get(key)
        if session is None:
            session = Session(key.capability_id, server, self._clock, self._programs)
            session.used_at = self._clock.monotonic()
            self._sessions[key] = session
        try:
            await session.open()
        except Unavailable:
            self._failed(session)
            if self._sessions.get(key) is session:
                await self._end(key)
            raise
        if session.tools is not None:
            await self._learn(session, session.tools)
            session.tools = None
            self._well(session)
        return session

    async def _make_room(self, key: _Key) -> None:
        """Raises Unavailable where every session of its kind is busy."""
        others = [
            (session.used_at, other)
            for other, session in self._sessions.items()
            if key.session and other.session and other.capability_id == key.capability_id
        ]
        if len(others) < MAX_NAMED:
            return
        idle = [one for one in others if not self._sessions[one[1]].calls]
        if not idle:
            raise Unavailable(f"{MAX_NAMED} sessions of {key.capability_id} are busy: try later")
        await self._end(min(idle)[1])

    async def _heard(self, session: Session, question: Awaitable[Any]) -> Any:
        try:
            answer = await question
        except Unavailable:
            self._failed(session)
            raise
        self._well(session)
        return answer

    def _well(self, session: Session) -> None:
        if self._has(session.name, session.server):
            self._failures.pop(session.name, None)
            self._report(session.name, HealthStatus.HEALTHY, "")

    def _failed(self, session: Session) -> None:
        """Count a failure, once for each session; one that cannot start is offline at once.

        The failure of a server that is no longer the capability's does not count.
        """
        if session.has_failed or not self._has(session.name, session.server):
            return
        session.has_failed = True
        server, before = self._failures.get(session.name, (session.server, 0))
        failures = before + 1 if server == session.server else 1
        if session.cannot_start:
            failures = max(failures, FAILURES_OFFLINE)
        self._failures[session.name] = (session.server, failures)
        self._report(session.name, health_after(failures), session.failure)

    async def _learn(self, session: Session, said: list[Any]) -> _Listed:
        """Keep what a server has just listed; its definitions are pinned before they are used."""
        known, now = self._known(session.name), self._clock.monotonic()
        if known is not None and known.said == said:
            known = known._replace(at=now)  # its schemas need not be compiled again
        else:
            listed = {one.name: one for one in said}
            if self._has(session.name, session.server):
                definitions = [definition_of(one) for one in listed.values()]
                await self._pins.observe(session.name, session.server, definitions)
            tools = {name: _tool(one) for name, one in listed.items()}
            checks = {name: _check_of(one.output_schema) for name, one in listed.items()}
            known = _Listed(now, session.server, said, tools, _handy(tools.values()), checks)
        self._listed[session.name] = known
        return known

    def _lately(self, capability_id: str) -> _Listed | None:
        known = self._known(capability_id)
        fresh = known is not None and self._clock.monotonic() - known.at < TOOLS_KEPT_S
        return known if fresh else None

    def _does_more(self, capability_id: str, action: str, before: _Listed | None) -> bool:
        """True if a tool's level is higher than in an earlier listing; not listed counts as write."""
        if self._listed.get(capability_id) is before:
            return False
        registered, tool = self._level(capability_id, action), self._tool(capability_id, action)
        was = None if before is None else before.tools.get(action)
        level = _higher(registered, Level.WRITE if was is None else was.level)
        return tool is not None and tool.level.rank > level.rank

    def _known(self, capability_id: str) -> _Listed | None:
        """The tools that a server listed, if it is still the capability's server."""
        listed = self._listed.get(capability_id)
        return listed if listed is not None and self._has(capability_id, listed.server) else None

    def _has(self, capability_id: str, server: Server) -> bool:
        """True if a server is still the capability's."""
        now = self._find(capability_id)
        return now is server or now == server  # the same object, unless it was registered again

    def _split(self, tool: str) -> tuple[str, str]:
        """Split `mcp.docs.search` into `mcp.docs` and `search`, if there is such a capability."""
        capability_id, dot, action = tool.rpartition(".")
        while dot:
            if self._find(capability_id) is not None:
                return capability_id, action
            capability_id, dot, head = capability_id.rpartition(".")
            action = f"{head}.{action}"
        return "", ""


def _higher(one: Level, other: Level) -> Level:
    return one if one.rank > other.rank else other


def _tool(listed: Any) -> Tool:
    """A tool with the level that its annotations raise it to: they never lower one."""
    hints = listed.annotations
    writes = hints is not None and (hints.destructive_hint or hints.read_only_hint is False)
    repeats = hints is not None and (hints.read_only_hint or hints.idempotent_hint)
    return Tool(
        name=listed.name,
        description=(listed.description or "")[:4096],
        level=Level.WRITE if writes else Level.READ,
        schema=listed.input_schema,
        repeatable=bool(repeats),
    )


def _handy(tools: Iterable[Tool]) -> Sequence[str]:
    """The names of the tools that a model can be offered."""
    small = (tool.name for tool in tools if len(msgspec.json.encode(tool.schema)) <= MAX_SCHEMA)
    return list(itertools.islice(small, MAX_OFFERED))


def _check_of(schema: dict[str, Any] | None) -> Callable[[Any], bool] | None:
    """A check of structured answers against the server's schema; None if it gave none."""
    if schema is None or len(msgspec.json.encode(schema)) > MAX_SCHEMA:
        return None
    errors: Callable[[Any], Iterator[Any]] | None = None

    def fits(value: Any) -> bool:
        # Imported late: a schema costs milliseconds, and most tools are never called.
        from jsonschema.exceptions import (  # type: ignore[import-untyped]  # noqa: PLC0415
            SchemaError,
        )
        from referencing.exceptions import Unresolvable  # noqa: PLC0415

        nonlocal errors
        try:
            errors = errors or compiled(schema)
            return next(errors(value), None) is None
        except (SchemaError, Unresolvable):
            return False
        except (Unusable, RecursionError, OverflowError) as beyond:  # us: nothing is wrong with it
            log.info("mcp_schema_unusable error=%s", beyond)
            return True

    return fits


def _context(meta: JsonValue) -> dict[str, Any] | None:
    return {"toolgate/context": meta} if meta else None
