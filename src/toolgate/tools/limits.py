"""The terms of capabilities for whoever calls by another way than the gateway's commands.

An agent, a schedule, another's executor: what is offline, has expired or was called too often is so
for them too. A device's command has met its terms, and paid, when the gateway let it in.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from toolgate.access.rate_limits import Bucket, RateLimits
from toolgate.access.refusals import RateLimited
from toolgate.core.clock import Clock
from toolgate.core.enums import Level
from toolgate.core.tools import Caller, Tool, ToolOutput, ToolRequest
from toolgate.tools.capability_registry import Capabilities
from toolgate.tools.definitions import failed
from toolgate.tools.engine import Engine, Update, no_update
from toolgate.tools.routing import Route


@dataclass(frozen=True, slots=True)
class RefusedByTerms:
    reason: str
    ref: str

    async def run(self, request: ToolRequest, *, update: Update = no_update) -> ToolOutput:
        return failed(self.reason)


@dataclass(frozen=True, slots=True)
class Metered:
    """An engine whose calls are counted."""

    engine: Engine
    limits: RateLimits
    buckets: Sequence[Bucket]

    @property
    def ref(self) -> str:
        return self.engine.ref

    async def run(self, request: ToolRequest, *, update: Update = no_update) -> ToolOutput:
        try:
            paid = self.limits.take(*self.buckets)
        except RateLimited as too_soon:
            return failed(str(too_soon))
        try:
            await self.limits.journal.commit(*self.limits.writes(paid))
        except BaseException:
            self.limits.give_back(paid)
            raise
        return await self.engine.run(request, update=update)


@dataclass(slots=True)
class Terms:
    """There are none until the gateway has said what is registered."""

    clock: Clock
    capability_of: Callable[[str], str]  # the server that a tool is of; empty: none
    own: Mapping[str, str] = field(default_factory=dict)  # a tool of ours: its capability
    registered: tuple[Capabilities, RateLimits] | None = None

    def route(self) -> Route:
        """Takes no call; what of ours is registered as signing signs, whatever it says itself."""
        return Route(describe=self._describe)

    def _describe(self, tool: str, _caller: Caller) -> Tool | None:
        if self.registered is None:
            return None
        found = self.registered[0].get(self.own.get(tool, tool))
        signs = found is not None and found.level is Level.SIGN
        return Tool(tool, "", Level.SIGN, {}, False) if signs else None

    def hold(self, engine: Engine, request: ToolRequest) -> Engine:
        """The engine, on the terms of the call's capabilities."""
        if self.registered is None or request.caller.device:
            return engine
        capabilities, limits = self.registered
        tool = request.tool
        names = dict.fromkeys((self.capability_of(tool), self.own.get(tool, ""), tool))
        known = [found for name in names if (found := capabilities.get(name)) is not None]
        now = self.clock.now_ms()
        if refusal := next(filter(None, (one.refusal(now) for one in known)), ""):
            return RefusedByTerms(refusal, engine.ref)
        buckets = [
            Bucket(f"capability/{one.capability_id}", one.rate, f"capability {one.capability_id}")
            for one in known
            if one.rate is not None
        ]
        return Metered(engine, limits, buckets) if buckets else engine
