"""There is one way to run a tool: nothing but the pipeline takes an engine to a request."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "src" / "toolgate"
PIPELINE = "tools/pipeline.py"
ROUTING = "tools/routing.py"  # where the answer is made
# The runner is the far end of an engine: what reaches it has passed the gateway's pipeline.
FAR_END = "surfaces/runner/"
DOORS = ("surfaces", "orchestration", "admission", "tasks", "client")
ENGINES = (
    "toolgate.tools.engine",
    "toolgate.tools.engines.builtin.registry",
    "toolgate.tools.routing",
)


def modules_with(*words: str) -> Iterator[tuple[str, ast.Module]]:
    """The modules whose text has one of the words; only those are parsed."""
    for path in sorted(PACKAGE.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if any(word in text for word in words):
            yield path.relative_to(PACKAGE).as_posix(), ast.parse(text)


@pytest.mark.requirement("003/pipeline/one-way")
def test_only_the_pipeline_asks_which_engine_runs_a_call() -> None:
    callers = {
        name
        for name, module in modules_with("engine_for")
        for node in ast.walk(module)
        if isinstance(node, ast.Attribute) and node.attr == "engine_for"
    }
    assert callers - {ROUTING} == {PIPELINE}


@pytest.mark.requirement("003/pipeline/one-way")
def test_no_door_knows_an_engine() -> None:
    for name, module in modules_with(*ENGINES):
        if name.split("/")[0] not in DOORS or name.startswith(FAR_END):
            continue
        for node in ast.walk(module):
            if isinstance(node, ast.ImportFrom) and node.module in ENGINES:
                taken = {alias.name for alias in node.names}
                assert taken <= {"Update", "no_update"}, f"{name} imports {taken}"
