"""`Overwrite` is deprecated: the modules that still use it, a list that only gets shorter."""

import ast
from pathlib import Path

import toolgate

SOURCE = Path(toolgate.__file__).parent
STILL = {
    "access/rate_limits.py",
}


def test_no_other_module_writes_a_row_without_its_version() -> None:
    using = {
        path.relative_to(SOURCE).as_posix()
        for path in SOURCE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "Overwrite"
    }
    assert using <= STILL
    assert using >= STILL, "take these from the list"
