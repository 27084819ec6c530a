"""Draw docs/reference/ from the code: settings, codes, messages, tools, commands, states, routes.

--check   fail if a page is stale
"""

import ast
import importlib
import sys
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import click
import msgspec

from toolgate import settings
from toolgate.cli.main import COMMANDS, EXIT_CODES
from toolgate.contracts import (
    executor_v0,
    gateway_v1,
    ingress_v1,
    orchestrator_v1,
    runner_v1,
    tasks_v1,
)
from toolgate.contracts.wire import Code
from toolgate.core.tools import Tool
from toolgate.runs import state as runs
from toolgate.tasks import state as task_runs
from toolgate.tools import approvals
from toolgate.tools.calls import TRANSITIONS as CALL_TRANSITIONS
from toolgate.tools.engines.builtin.registry import BUILT_IN
from toolgate.tools.targets.tools import TOOLS as TARGET_TOOLS

OUT = Path(__file__).parents[1] / "docs" / "reference"
SOURCES = Path(__file__).parents[1] / "src" / "toolgate"
CONTRACTS: Sequence[types.ModuleType] = (
    runner_v1,
    ingress_v1,
    orchestrator_v1,
    gateway_v1,
    executor_v0,
    tasks_v1,
)
MACHINES: Mapping[str, Mapping[Any, Iterable[Any]]] = {
    "Run": runs.TRANSITIONS,
    "Tool call": CALL_TRANSITIONS,
    "Approval": approvals.TRANSITIONS,
    "Browser task run": task_runs.TRANSITIONS,
}


def row(*cells: object) -> str:
    return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"


def head(*cells: str) -> list[str]:
    return [row(*cells), "|" + "---|" * len(cells)]


def settings_page() -> Iterator[str]:
    yield "The environment comes first, then `toolgate.toml`, then the default."
    yield ""
    yield from head("setting", "default", "meaning")
    for entry in settings.table():
        yield row(f"`{entry.name}`", f"`{entry.default}`" if entry.default else "", entry.meaning)


def codes_page() -> Iterator[str]:
    for module in CONTRACTS:
        yield f"## {module.__name__.rpartition('.')[2]}"
        yield ""
        yield from head("code", "HTTP", "meaning", "what to do")
        for table in ("ERROR_CODES", "CLOSE_CODES"):
            codes: Mapping[Any, Code] = getattr(module, table, {})
            for code, says in codes.items():
                yield row(f"`{code}`", says.status or "", says.meaning, says.action)
        yield ""


def messages_page() -> Iterator[str]:
    unions = {
        "From client to ingress": ingress_v1.AnyClientMessage,
        "From ingress to client": ingress_v1.AnyServerMessage,
        "From orchestrator, as server-sent events": orchestrator_v1.AnyEvent,
    }
    for title, union in unions.items():
        yield f"## {title}"
        yield ""
        yield from head("type", "members")
        for model in get_args(union):
            fields = msgspec.structs.fields(model)
            members = ", ".join(
                f"`{field.encode_name}`" + ("" if field.required else "?") for field in fields
            )
            yield row(f"`{model.__struct_config__.tag}`", members)
        yield ""


def tools_page() -> Iterator[str]:
    yield "What every installation has. A `read` tool changes nothing; one that is repeatable may be"
    yield "run again after a crash."
    yield ""
    yield from head("tool", "level", "repeatable", "what it does", "arguments")
    for _, built_in in sorted(BUILT_IN.items()):
        if built_in.tool.name not in {tool.name for tool in TARGET_TOOLS}:
            yield _tool(built_in.tool)
    yield ""
    yield from ["## On an execution target", ""]
    yield "These run where the call's target says: this machine's sandbox, or a runner (docs/runner.md)."
    yield ""
    yield from head("tool", "level", "repeatable", "what it does", "arguments")
    yield from (_tool(tool) for tool in sorted(TARGET_TOOLS, key=lambda tool: tool.name))


def _tool(tool: Tool) -> str:
    properties = tool.schema.get("properties", {})
    assert isinstance(properties, dict)
    arguments = ", ".join(f"`{argument}`" for argument in properties)
    repeatable = "yes" if tool.repeatable else "no"
    return row(f"`{tool.name}`", tool.level, repeatable, tool.description, arguments)


def commands_page() -> Iterator[str]:
    yield "`--json` makes stdout JSON and nothing else; what goes wrong is a sentence on stderr."
    yield ""
    yield from head("exit code", "means")
    for code, means in EXIT_CODES.items():
        yield row(code, means)
    yield ""
    for name in COMMANDS:
        command = importlib.import_module(f"toolgate.cli.{COMMANDS[name][0]}").command
        yield from _command(command, f"toolgate {name}")


def _command(command: click.Command, name: str) -> Iterator[str]:
    context = click.Context(command, info_name=name, terminal_width=88, max_content_width=88)
    yield from [f"## `{name}`", "", "```text", command.get_help(context), "```", ""]
    if isinstance(command, click.Group):
        for child in command.list_commands(context):
            found = command.get_command(context, child)
            if found is not None:
                yield from _command(found, f"{name} {child}")


def states_page() -> Iterator[str]:
    for title, table in MACHINES.items():
        yield from [f"## {title}", "", "```mermaid", "stateDiagram-v2"]
        for state, after in table.items():
            yield from (f"    {state} --> {one}" for one in sorted(after))
            if not after:
                yield f"    {state} --> [*]"
        yield from ["```", ""]


def routes_page() -> Iterator[str]:
    """From the sources: a route is a path constant of a contract, or a row of a surface's table."""
    for module in CONTRACTS:
        paths = {
            name: value
            for name, value in vars(module).items()
            if name.endswith("_PATH") and isinstance(value, str)
        }
        if paths:
            yield from [f"## {module.__name__.rpartition('.')[2]}", ""]
            yield from head("path", "name")
            for name, path in paths.items():
                yield row(f"`{path}`", name.removesuffix("_PATH").lower().replace("_", " "))
            yield ""
    yield from ["## gateway", "", "As `GET /openapi.json` of a running gateway says in full.", ""]
    yield from head("method", "path", "who", "what")
    for found in _gateway_routes():
        yield row(*found)
    yield ""
    yield from [
        "## console",
        "",
        "The pages call the gateway's routes for everything else. All but the first two need a session; see docs/security.",
        "",
    ]
    yield from head("method", "path")
    for method, path in (
        ("POST", "/sign-in"),
        ("POST", "/links"),
        ("GET", "/live"),
        *_console_routes(),
    ):
        yield row(method, f"`/console/api{path}`")


def _gateway_routes() -> Iterator[tuple[str, str, str, str]]:
    """Every `Route(method, path, Access.X, "what", ...)` in the gateway's modules."""
    folder = SOURCES / "surfaces" / "gateway"
    for path in sorted(folder.glob("*.py")):
        names: dict[str, str] = {}
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
                for target in node.targets:
                    if isinstance(target, ast.Name):
                        names[target.id] = str(node.value.value)
            if not (isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Route"):
                continue
            said = [_text(argument, names) for argument in node.args[:4]]
            if len(said) == 4 and said[1].startswith("/"):
                yield said[0], f"`{said[1]}`", said[2].lower(), said[3]


def _text(node: ast.expr, names: Mapping[str, str]) -> str:
    match node:
        case ast.Constant(value=value):
            return str(value)
        case ast.Name(id=name):
            return names.get(name, "")
        case ast.Attribute(attr=name):
            found = getattr(gateway_v1, name, name)
            return found if isinstance(found, str) else name
        case _:
            return ""


def _console_routes() -> Iterator[tuple[str, str]]:
    tree = ast.parse((SOURCES / "surfaces" / "console" / "server.py").read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Tuple) and len(node.elts) == 3:
            method, path, _ = node.elts
            if isinstance(method, ast.Constant) and isinstance(path, ast.Constant):
                yield str(method.value), str(path.value)


PAGES = {
    "settings.md": ("Settings", settings_page),
    "codes.md": ("Error and close codes", codes_page),
    "messages.md": ("Messages", messages_page),
    "tools.md": ("Built-in tools", tools_page),
    "commands.md": ("Commands", commands_page),
    "states.md": ("States", states_page),
    "routes.md": ("Routes", routes_page),
}


def drawn() -> dict[Path, str]:
    pages = {}
    for name, (title, body) in PAGES.items():
        lines = [f"# {title}", "", "Drawn by `make docs`; do not edit.", "", *body()]
        pages[OUT / name] = "\n".join(lines).rstrip() + "\n"
    return pages


if __name__ == "__main__":
    for path, text in drawn().items():
        if "--check" not in sys.argv:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != text:
            sys.exit(f"{path.name} is stale: run `make docs`")
