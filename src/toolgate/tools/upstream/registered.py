"""The MCP servers of registered capabilities: their route, their tools' levels, their health."""

import logging
from collections.abc import Sequence
from dataclasses import replace

from toolgate.core.clock import Clock
from toolgate.core.concurrency import Background
from toolgate.core.enums import HealthStatus, Level
from toolgate.core.errors import ToolgateError
from toolgate.core.tools import Caller, Tool, ToolRequest
from toolgate.tools.capabilities import Capability, Server
from toolgate.tools.capability_registry import Capabilities
from toolgate.tools.engine import Engine
from toolgate.tools.routing import Route
from toolgate.tools.upstream.pins import Pins
from toolgate.tools.upstream.programs import Programs
from toolgate.tools.upstream.servers import McpUpstreams

log = logging.getLogger(__name__)


class RegisteredServers:
    def __init__(
        self, clock: Clock, capabilities: Capabilities | None, *, programs: Programs, pins: Pins
    ) -> None:
        """`capabilities` is None where nothing can be registered."""
        self._clock = clock
        self._capabilities = capabilities
        self._commits = Background()
        self.pins = pins
        self.sessions = McpUpstreams(
            self._server,
            clock=clock,
            report=self._report,
            level=self._level,
            programs=programs,
            pins=pins,
        )

    def route(self) -> Route:
        return Route(
            find=self._engine,
            offers=self._offers,
            describe=self._describe,
            place=self.sessions.place,
        )

    async def watch(self) -> None:
        await self.sessions.watch(registered=lambda: [each.capability_id for each in self._open()])

    def _engine(self, request: ToolRequest) -> Engine | None:
        return None if self._capability(request.tool) is None else self.sessions

    def _describe(self, tool: str, caller: Caller) -> Tool | None:
        capability = self._capability(tool)
        if capability is None:
            return None
        if (known := self.sessions.describe(tool, caller)) is not None:
            return known
        # Not listed yet: its level is the registered one, which a listing may raise.
        name = self.sessions.pin_of(tool)
        level, pin = self._level(*name), self.pins.get(*name)
        if level is not Level.SIGN and pin is None:
            return None
        level = level if level is Level.SIGN else Level.WRITE
        return Tool(tool, "", level, {}, False, definition="" if pin is None else pin.digest)

    def _level(self, capability_id: str, action: str) -> Level:
        """The registered level of a tool, else of its server."""
        if self._capabilities is None:
            return Level.WRITE
        for name in (f"{capability_id}.{action}", capability_id):
            if (registered := self._capabilities.registered(name)) is not None:
                return registered.level
        return Level.WRITE

    def _offers(self, _caller: Caller) -> Sequence[Tool]:
        """The listed tools, by the names under which agents call them."""
        return [
            replace(tool, name=f"{each.capability_id}.{tool.name}")
            for each in self._open()
            for tool in self.sessions.offered(each.capability_id)
        ]

    def _open(self) -> Sequence[Capability]:
        """The capabilities that have a server and may be called now."""
        now = self._clock.now_ms()
        every = () if self._capabilities is None else self._capabilities.all()
        return [each for each in every if each.server is not None and not each.refusal(now)]

    def _capability(self, tool: str) -> Capability | None:
        if self._capabilities is None or "." not in tool:
            return None
        name = self.sessions.capability_of(tool)
        return self._capabilities.get(name) if name else None

    def _server(self, capability_id: str) -> Server | None:
        found = self._capabilities.get(capability_id) if self._capabilities else None
        return None if found is None else found.server

    def _report(self, capability_id: str, health: HealthStatus, reason: str) -> None:
        """Note what a check found, and append the event of a change."""
        if self._capabilities is None:
            return
        before = self._capabilities.get(capability_id)
        if self._capabilities.report(capability_id, health, reason):
            log.info("capability_health id=%s health=%s why=%s", capability_id, health, reason)
        after = self._capabilities.get(capability_id)
        if after is not None and (before is None or after.status is not before.status):
            self._commits.start(self._commit_event(self._capabilities, after))

    async def _commit_event(self, capabilities: Capabilities, changed: Capability) -> None:
        try:
            await capabilities.journal.commit(
                *capabilities.tell(changed.capability_id, changed.status)
            )
        except ToolgateError as failed:
            log.warning("health_not_recorded id=%s error=%s", changed.capability_id, failed)
