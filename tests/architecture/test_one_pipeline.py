"""There is one way to run a tool: nothing but the pipeline takes an engine to a request."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "src" / "toolgate"
PIPELINE = "execution/pipeline.py"
ROUTING = "execution/routing.py"  # where the answer is made
# The runner is the far end of an engine: what reaches it has passed the gateway's pipeline.
FAR_END = "surfaces/runner/"
DOORS = ("surfaces", "orchestration", "admission", "tasks", "client")
ENGINES = ("toolgate.tools.engine", "toolgate.tools.engines.builtin.registry", "toolgate.tools.routing")


def modules() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).as_posix()
        yield name, ast.parse(path.read_text(encoding="utf-8"))


@pytest.mark.requirement("003/pipeline/one-way")
def test_only_the_pipeline_asks_which_engine_runs_a_call() -> None:
    callers = {
        name
        for name, module in modules()
        for node in ast.walk(module)
        if isinstance(node, ast.Attribute) and node.attr == "engine_for"
    }
    assert callers - {ROUTING} == {PIPELINE}


@pytest.mark.requirement("003/pipeline/one-way")
def test_no_door_knows_an_engine() -> None:
    for name, module in modules():
        if name.split("/")[0] not in DOORS or name.startswith(FAR_END):
            continue
        for node in ast.walk(module):
            if isinstance(node, ast.ImportFrom) and node.module in ENGINES:
                taken = {alias.name for alias in node.names}
                assert taken <= {"Update", "no_update"}, f"{name} imports {taken}"
