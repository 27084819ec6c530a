"""Sizes and names of the sources that no linter counts: long functions, one class name in two places."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import toolgate

SOURCES = Path(toolgate.__file__).parent
LONGEST = 80  # lines of one function
LONG = {"open_execution", "_start"}  # to be split

# Class names that two rooms still share. Take a name off this list, never add one.
SHARED = {
    "Agent",
    "Answer",
    "Artifact",
    "Asked",
    "Call",
    "Change",
    "Channel",
    "Command",
    "Connection",
    "Decision",
    "Draft",
    "EndTurn",
    "Entry",
    "Events",
    "Found",
    "Guard",
    "Installation",
    "Known",
    "Limits",
    "Listener",
    "NoCwd",
    "Options",
    "Owner",
    "Pending",
    "Plan",
    "Programs",
    "Proof",
    "Records",
    "Refused",
    "Result",
    "Route",
    "Send",
    "Session",
    "Sessions",
    "Stream",
    "TabHome",
    "Usage",
}


def modules() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(SOURCES.rglob("*.py")):
        yield str(path.relative_to(SOURCES)), ast.parse(path.read_text(encoding="utf-8"))


def test_no_function_is_longer_than_a_page() -> None:
    long = {
        f"{name}:{node.name}": node.end_lineno - node.lineno + 1
        for name, tree in modules()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno is not None
        and node.end_lineno - node.lineno >= LONGEST
        and node.name not in LONG
    }
    assert not long


def test_a_public_class_has_a_name_of_its_own() -> None:
    """Contracts name the same thing as the rooms do, so they are left out."""
    places: dict[str, list[str]] = defaultdict(list)
    for name, tree in modules():
        if not name.startswith("contracts/"):
            for node in tree.body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    places[node.name].append(name)
    shared = {name: where for name, where in places.items() if len(where) > 1}
    assert shared.keys() == SHARED, shared
