"""Which engine takes a call."""

import pytest

from toolgate.core.enums import Level
from toolgate.core.tools import Caller, Tool, ToolOutput, ToolRequest
from toolgate.tools.engine import Engine, Update, no_update
from toolgate.tools.routing import Route, Routing, named_tools, on_target


class Named:
    def __init__(self, ref: str) -> None:
        self.ref = ref

    async def run(self, request: ToolRequest, *, update: Update = no_update) -> ToolOutput:
        return ToolOutput(0, stdout=self.ref)


def tool(name: str, level: Level = Level.READ) -> Tool:
    return Tool(name, "", level, {}, repeatable=True)


TARGETS: dict[str, Engine] = {"": Named("local"), "docker-1": Named("docker")}
BUILT_IN = [tool("echo"), tool("file.read"), tool("shell", Level.WRITE)]


def find_upstream(request: ToolRequest) -> Engine | None:
    return Named("upstream") if request.tool.startswith("mcp.search.") else None


@pytest.fixture
def routing() -> Routing:
    return Routing(
        [
            on_target(lambda target: TARGETS.get(target) if target else None),
            Route(find_upstream),
            named_tools(Named("builtin"), BUILT_IN),
        ]
    )


@pytest.mark.parametrize(
    ("name", "target", "engine"),
    [
        ("echo", "", "builtin"), ("file.read", "", "builtin"), ("file.read", "docker-1", "docker"),
        ("bash.exec", "docker-1", "docker"), ("mcp.search.query", "", "upstream"),
        ("mcp.searching", "", "toolgate_router"), ("bash.exec", "gone", "toolgate_router"),
        ("echo", "docker-1", "builtin"), ("nothing", "", "toolgate_router"),
    ],
)  # fmt: skip
def test_the_first_route_that_takes_a_call_has_it(
    routing: Routing, name: str, target: str, engine: str
) -> None:
    request = ToolRequest("r", name, {}, target_id=target)
    assert routing.engine_for(request).ref == engine


async def test_a_tool_that_nobody_has_ends_with_exit_code_1(routing: Routing) -> None:
    request = ToolRequest("r", "no.such", {})
    output = await routing.engine_for(request).run(request)
    assert (output.exit_code, output.stderr) == (1, "Unknown tool: no.such")


def test_a_tool_that_nobody_describes_counts_as_writing(routing: Routing) -> None:
    assert routing.level_of(ToolRequest("r", "echo", {})) is Level.READ
    assert routing.level_of(ToolRequest("r", "no.such", {})) is Level.WRITE


def test_a_name_is_offered_once(routing: Routing) -> None:
    assert [offered.name for offered in routing.tools(Caller())] == ["echo", "file.read", "shell"]


@pytest.mark.requirement("000/commands/offered")
def test_a_model_is_offered_each_tool_by_one_of_its_names_and_may_call_it_by_all() -> None:
    names = ("shell", "exec", "bash.exec", "system.exec", "http.fetch", "web.fetch", "python.exec")
    here = Named("here")
    for routing in (
        Routing([named_tools(here, list(map(tool, names)))]),
        Routing(
            [
                on_target(lambda _: here, tools=list(map(tool, names[:4]))),
                named_tools(here, list(map(tool, names[4:]))),
            ]
        ),
    ):
        offered = {each.name for each in routing.tools(Caller())}
        assert offered == {"shell", "http.fetch", "python.exec"}
        assert all(routing.known_level(name) is Level.READ for name in names)
