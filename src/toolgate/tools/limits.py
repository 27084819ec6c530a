"""The limits of capabilities, for every call: offline, expired, changed, called too often.

A tool has up to three capabilities: its MCP server's, that of a server of ours, and its own name.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from toolgate.access.rate_limits import Bucket, Charge, RateLimits
from toolgate.access.refusals import Forbidden
from toolgate.core.clock import Clock
from toolgate.core.enums import Level
from toolgate.core.tools import Caller, Tool
from toolgate.journal.journal import Check
from toolgate.policy.model import Effect
from toolgate.policy.refusal_texts import (
    CAPABILITY_EXPIRED,
    CAPABILITY_OFFLINE,
    TOOL_CHANGED,
    refusal_text,
)
from toolgate.tools.capabilities import Capability
from toolgate.tools.capability_registry import Capabilities
from toolgate.tools.routing import Route
from toolgate.tools.upstream.pins import Pins


class CapabilityRefusal(NamedTuple):
    rule_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class CapabilityLimits:
    clock: Clock
    capabilities: Capabilities
    rates: RateLimits
    capability_of: Callable[[str], str]  # the MCP server of a tool; empty: none
    own: Mapping[str, str] = field(default_factory=dict)  # the capability of a tool of ours
    pins: Pins | None = None  # of the tools of MCP servers; None: there are none

    def route(self) -> Route:
        """A route that takes no call; it raises the level of tools registered as `sign`."""
        return Route(describe=self._describe)

    def _describe(self, tool: str, _caller: Caller) -> Tool | None:
        found = self.capabilities.get(self.own.get(tool, tool))
        signs = found is not None and found.level is Level.SIGN
        return Tool(tool, "", Level.SIGN, {}, False) if signs else None

    def checks(self, tool: str) -> list[Check]:
        """The checks that the capabilities and the pinned definition of a tool are as in memory."""
        names = self.names(tool)
        if names == (tool,) and self.capabilities.registered(tool) is None:
            return []
        found = [self.capabilities.check_of(name) for name in names]
        if self.pins is not None and (server := self.capability_of(tool)):
            found.append(self.pins.check_of(server, tool.removeprefix(f"{server}.")))
        return [check for check in found if check is not None]

    def refusal(self, tool: str) -> CapabilityRefusal | None:
        """The reason why a tool may not be called now; rates are left to `charge`."""
        for one in self._capabilities(tool):
            now = self.clock.now_ms()
            if reason := one.refusal(now):
                rule_id = CAPABILITY_EXPIRED if one.is_expired(now) else CAPABILITY_OFFLINE
                return CapabilityRefusal(rule_id, reason)
        if self.pins is not None and (server := self.capability_of(tool)):
            action = tool.removeprefix(f"{server}.")
            if reason := self.pins.refusal(server, action):
                return CapabilityRefusal(TOOL_CHANGED, reason)
        return None

    def buckets(self, tool: str) -> list[Bucket]:
        """The buckets that one call of a tool takes from."""
        return [
            Bucket(f"capability/{one.capability_id}", one.rate, f"capability {one.capability_id}")
            for one in self._capabilities(tool)
            if one.rate is not None
        ]

    async def charge(self, buckets: Sequence[Bucket]) -> Charge:
        """Take one from each bucket; raises RateLimited. Reads only rows that changed elsewhere."""
        await self.rates.refresh(buckets)
        return self.rates.charge(buckets)

    def check_open(self, tool: str) -> None:
        """Check that a tool is neither offline nor expired; raises Forbidden."""
        if (refusal := self.refusal(tool)) is not None:
            text = refusal_text(
                tool=tool, rule_id=refusal.rule_id, reason=refusal.reason, effect=Effect.DENY
            )
            raise Forbidden(text)

    def check_together(self, tools: Sequence[str]) -> None:
        """Check that all these calls might be made now; takes nothing.

        Raises Forbidden if one is offline or expired, RateLimited if they are too many.
        """
        for tool in tools:
            self.check_open(tool)
        self.rates.check([bucket for tool in tools for bucket in self.buckets(tool)])

    def names(self, tool: str) -> Sequence[str]:
        """The names that the capabilities of a tool would have."""
        own = self.own.get(tool)
        if not own and "." not in tool:  # a server's tool has the server's name and a dot
            return (tool,)
        server = self.capability_of(tool)
        return [name for name in dict.fromkeys((server, own, tool)) if name]

    def _capabilities(self, tool: str) -> list[Capability]:
        names = self.names(tool)
        if names == (tool,) and self.capabilities.registered(tool) is None:
            return []
        found = (self.capabilities.get(name) for name in names)
        return [one for one in found if one is not None]
