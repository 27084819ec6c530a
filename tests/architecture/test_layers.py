"""Imports point downwards: the same rule as import-linter's `layers`, with the standard library only."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet

PACKAGE = Path(__file__).parents[2] / "src" / "toolgate"
LAYERS = [  # high to low; names on one row may not import each other
    {"cli", "testing"},
    {"bootstrap"},
    {"settings"},
    {"surfaces", "adapters", "client"},
    {"asgi"},
    {"admission", "orchestration", "execution", "tasks"},
    {"ports"},
    {"domain", "contracts"},
]
RANK = {name: rank for rank, row in enumerate(LAYERS) for name in row}


def modules() -> Iterator[ParameterSet]:
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        if parts[0] not in {"__init__", "__main__"}:
            yield pytest.param(path, parts[0], id=".".join(parts))


def imported_layers(path: Path) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            root, _, rest = name.partition(".")
            if root == PACKAGE.name and rest:
                yield node.lineno, rest.split(".")[0]


@pytest.mark.parametrize(("path", "layer"), list(modules()))
def test_a_module_imports_only_from_layers_below_its_own(path: Path, layer: str) -> None:
    for line, target in imported_layers(path):
        assert target == layer or RANK[target] > RANK[layer], f"{path}:{line}: {layer} -> {target}"


def test_every_top_level_name_has_a_layer() -> None:
    names = {
        p.stem
        for p in PACKAGE.iterdir()
        if p.suffix == ".py" or (p.is_dir() and p.name != "__pycache__")
    }
    assert names - {"__init__", "__main__", "py"} == set(RANK)
