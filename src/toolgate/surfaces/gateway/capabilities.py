"""`/capabilities` and `/definitions`: registered capabilities, and the tools of MCP servers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from msgspec import UnsetType

from toolgate.access.devices import Who
from toolgate.access.refusals import Forbidden
from toolgate.commands.answers import Result
from toolgate.contracts import gateway_v1 as wire
from toolgate.core.clock import Clock
from toolgate.core.enums import Level
from toolgate.http.bodies import check_id
from toolgate.surfaces.gateway.routes import Access, Call, Parameter, Route
from toolgate.surfaces.gateway.translate import capability_in, capability_out, definition_out
from toolgate.tools.capabilities import Capability
from toolgate.tools.capability_registry import Capabilities
from toolgate.tools.upstream.pins import Pin, Pins


@dataclass(frozen=True, slots=True)
class CapabilityRoutes:
    capabilities: Capabilities
    clock: Clock

    def routes(self) -> Sequence[Route]:
        return (
            Route(
                "POST",
                "/capabilities/register",
                Access.TRUSTED,
                "Register a capability, or change its terms.",
                self._register,
                wire.Capability,
                v2="capabilities.register",
                takes=wire.CapabilityRegister,
            ),
            Route(
                "GET",
                "/capabilities",
                Access.READER,
                "The capabilities that there are.",
                self._list,
                wire.CapabilityList,
                v2="capabilities.list",
            ),
            Route(
                "DELETE",
                "/capabilities/{capabilityId}",
                Access.OPERATOR,
                "Remove a capability; one that is built in goes back to its own terms.",
                self._remove,
                wire.Capability,
                v2="capabilities.remove",
                statuses=(200, 404),
            ),
        )

    async def _register(self, call: Call) -> Result:
        wanted: wire.CapabilityRegister = call.body
        check_id("capabilityId", wanted.capability_id)
        known = self.capabilities.registered(wanted.capability_id)
        capability = capability_in(wanted, now=self.clock.now_ms())
        if call.caller.who is not Who.OPERATOR:
            self._check_script(wanted, known)
        kept = await self.capabilities.register(capability, by=call.caller.name)
        return Result(capability_out(kept))

    def _check_script(self, wanted: wire.CapabilityRegister, known: Capability | None) -> None:
        """Refuse what a service token may not change, whatever its scope; raises Forbidden."""
        if not isinstance(wanted.server, UnsetType):
            # A server is a program that runs here, or an address that is asked from here.
            raise Forbidden("only the operator may say where a capability's server is")
        before = Level.WRITE if known is None else known.level
        if wanted.level.rank < before.rank:  # it may be the level of an MCP server's tool
            raise Forbidden(f"only the operator may register a level below {before}")

    async def _list(self, call: Call) -> Result:
        is_operator = call.caller.who is Who.OPERATOR
        found = [
            capability_out(
                one,
                registered=self.capabilities.registered(one.capability_id) if is_operator else None,
            )
            for one in self.capabilities.all()
        ]
        return Result(wire.CapabilityList(items=found))

    async def _remove(self, call: Call) -> Result:
        capability_id = check_id("capabilityId", call.path["capabilityId"])
        before = self.capabilities.get(capability_id)
        await self.capabilities.remove(capability_id, by=call.caller.name)
        assert before is not None  # or it could not have been removed
        return Result(capability_out(before))


@dataclass(frozen=True, slots=True)
class DefinitionRoutes:
    pins: Pins
    level_of: Callable[[str], Level | None]

    def routes(self) -> Sequence[Route]:
        return (
            Route(
                "GET",
                "/definitions",
                Access.OPERATOR,
                "The tools of MCP servers, as they were pinned; those of one capability in full.",
                self._list,
                wire.ToolDefinitionList,
                v2="definitions.list",
                query=(Parameter("capabilityId", "only its tools, with their definitions"),),
            ),
            Route(
                "POST",
                "/definitions/accept",
                Access.OPERATOR,
                "Accept the definition that a server has changed.",
                self._accept,
                wire.ToolDefinition,
                v2="definitions.accept",
                takes=wire.AcceptDefinition,
                statuses=(200, 404, 409),
            ),
        )

    async def _list(self, call: Call) -> Result:
        name = call.query.get("capabilityId", "")
        found = self.pins.of(name) if name else self.pins.all()
        return Result(wire.ToolDefinitionList([self._out(pin, whole=bool(name)) for pin in found]))

    async def _accept(self, call: Call) -> Result:
        wanted: wire.AcceptDefinition = call.body
        accepted = await self.pins.accept(
            wanted.capability_id, wanted.tool, wanted.digest, by=call.caller.name
        )
        return Result(self._out(accepted, whole=True))

    def _out(self, pin: Pin, *, whole: bool) -> wire.ToolDefinition:
        return definition_out(pin, level=self.level_of(pin.name) or Level.WRITE, whole=whole)
