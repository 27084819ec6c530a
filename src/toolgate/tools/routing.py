"""The choice of an engine for a call: the first route that takes it.

Routes are made in this order: an execution target that the call names, the tools that always run on
a target, what the session's own client offers, MCP servers upstream, other installations, and last
the built-in tools.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from toolgate.core.enums import Level
from toolgate.core.tools import Caller, Tool, ToolOutput, ToolRequest
from toolgate.policy.inputs import COMMAND_TOOLS
from toolgate.policy.model import rules_name
from toolgate.tools.definitions import failed
from toolgate.tools.engine import Engine, Update, no_update

# These run on the chosen execution target, whichever door the call came in by (runner contract).
TARGET_TOOLS: Final = COMMAND_TOOLS | {"python.exec", "http.request"}
TARGET_FILES: Final = "file."

UNOFFERED: Final = (COMMAND_TOOLS - {"shell"}) | {"web.fetch"}  # models get shell and http.fetch

Find = Callable[[ToolRequest], Engine | None]
Offers = Callable[[Caller], Sequence[Tool]]
Describe = Callable[[str, Caller], Tool | None]
Place = Callable[[ToolRequest], Awaitable[str]]  # where a call would run now
CanBeClean = Callable[[ToolRequest], Awaitable[bool]]  # does its place promise a fixed environment?


def takes_nothing(_: ToolRequest) -> Engine | None:
    return None


def offers_nothing(_: Caller) -> Sequence[Tool]:
    return ()


async def as_named(request: ToolRequest) -> str:
    return request.target_id


async def is_clean_here(_: ToolRequest) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Route:
    """`find` gives the engine where this route takes the call; the others say what it has.

    What stays the same needs no asking: `named` are tools by their names, all of them `engine`'s
    where there is one.
    """

    find: Find = takes_nothing
    offers: Offers = offers_nothing
    describe: Describe | None = None
    place: Place = as_named
    can_be_clean: CanBeClean = is_clean_here
    named: Mapping[str, Tool] = field(default_factory=dict)
    engine: Engine | None = None


class UnknownTool:
    """The engine of tools that nobody has."""

    ref: Final = "toolgate_router"

    async def run(self, request: ToolRequest, *, update: Update = no_update) -> ToolOutput:
        return failed(f"Unknown tool: {request.tool}")


class Routing:
    def __init__(self, routes: Sequence[Route]) -> None:
        self._routes = tuple(routes)
        self._unknown = UnknownTool()

    def engine_for(self, request: ToolRequest) -> Engine:
        taken = self._take(request)
        return self._unknown if taken is None else taken[1]

    async def place_of(self, request: ToolRequest) -> str:
        """The place where the call would run now; an approval is bound to it."""
        taken = self._take(request)
        return await (as_named if taken is None else taken[0].place)(request)

    async def can_be_clean(self, request: ToolRequest) -> bool:
        """True if a command of the call would run in a fixed environment where it asks for one."""
        taken = self._take(request)
        return taken is None or await taken[0].can_be_clean(request)

    def _take(self, request: ToolRequest) -> tuple[Route, Engine] | None:
        """The first route that takes the call, and its engine."""
        tool = request.tool
        for route in self._routes:
            if route.engine is not None:
                if tool in route.named:
                    return route, route.engine
            elif (engine := route.find(request)) is not None:
                return route, engine
        return None

    def tools(self, caller: Caller) -> list[Tool]:
        """The tools of this caller; if two routes offer a name, the first has it."""
        named: dict[str, Tool] = {}
        for route in self._routes:
            for tool in route.offers(caller):
                named.setdefault(tool.name, tool)
        return list(named.values())

    def describe(self, tool: str, caller: Caller) -> Tool | None:
        for route in self._routes:
            known = route.named.get(tool)
            if known is None and route.describe is not None:
                known = route.describe(tool, caller)
            if known is not None:
                return known
        return None

    def definition_of(self, request: ToolRequest) -> str:
        """The digest of the tool's pinned definition; empty for a tool that is not pinned."""
        if "." not in request.tool:  # a server's tool has the server's name and a dot
            return ""
        taken = self._take(request)
        if taken is None or taken[0].describe is None:
            return ""
        known = taken[0].describe(request.tool, request.caller)
        return "" if known is None else known.definition

    def level_of(self, request: ToolRequest) -> Level:
        """The tool's own level, or that of the template it runs; write if nobody has described it."""
        known = self.describe(rules_name(request), request.caller)
        return known.level if known is not None else Level.WRITE

    def known_level(self, tool: str) -> Level | None:
        """The level of a tool that somebody here runs; None for one that nobody does."""
        request = ToolRequest("", tool, {})
        if self._take(request) is None:
            return None
        return self.level_of(request)

    def is_repeatable(self, tool: str, caller: Caller) -> bool:
        """True if a tool may run again when it is not known to have run."""
        known = self.describe(tool, caller)
        return known is not None and known.repeatable


def named_tools(engine: Engine, tools: Sequence[Tool]) -> Route:
    """A route for an engine whose tools are known and stay the same."""
    return Route(offers=offering(tools), named={tool.name: tool for tool in tools}, engine=engine)


def offering(tools: Sequence[Tool]) -> Offers:
    """Offer the tools, each by one of its names."""
    offered = [tool for tool in tools if tool.name not in UNOFFERED]
    return lambda _caller: offered


def runs_on_target(tool: str) -> bool:
    return tool in TARGET_TOOLS or tool.startswith(TARGET_FILES)


def on_target(
    target: Callable[[str], Engine | None],
    *,
    tools: Sequence[Tool] = (),
    place: Place = as_named,
    can_be_clean: CanBeClean = is_clean_here,
) -> Route:
    """A route for calls that run on an execution target; an empty id asks for the default one."""

    def find(request: ToolRequest) -> Engine | None:
        return target(request.target_id) if runs_on_target(request.tool) else None

    return Route(
        find,
        offers=offering(tools),
        place=place,
        can_be_clean=can_be_clean,
        named={tool.name: tool for tool in tools},
    )
