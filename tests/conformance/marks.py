"""Which tests say that they prove which requirement, read from their source without importing them."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MARK = "requirement"
NOT_RUN = {"skip", "xfail"}


@dataclass(frozen=True, slots=True, order=True)
class Mark:
    """One use of the mark. `test` is a pytest node id, or None where no test that runs carries it."""

    requirement: str
    path: str
    line: int
    test: str | None


class UnreadableMark(Exception):
    """A mark whose id is not written out as a string."""


def find_marks(tests: Path, *, root: Path) -> list[Mark]:
    """Every mark in the test modules below `tests`, with paths relative to `root`."""
    return sorted(
        mark
        for path in sorted(tests.rglob("*.py"))
        for mark in marks_in(
            path.read_text(encoding="utf-8"), path=path.relative_to(root).as_posix()
        )
    )


def marks_in(source: str, *, path: str) -> Iterator[Mark]:
    """The marks of one module: on functions, classes, parameters, or the whole module."""
    module = ast.parse(source, filename=path)
    yield from _marks_below(module, path=path, node_id=path, runs=_has_tests(module))


def _marks_below(
    node: ast.Module | ast.ClassDef, *, path: str, node_id: str, runs: bool
) -> Iterator[Mark]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            test = f"{node_id}::{child.name}" if _is_test(child) else None
            yield from _marks_of(child, path=path, test=test)
        elif isinstance(child, ast.ClassDef):
            inner = f"{node_id}::{child.name}"
            collected = _is_test_class(child)
            for decorator in child.decorator_list:
                yield from _marks_of(decorator, path=path, test=inner if collected else None)
            body = ast.ClassDef(child.name, [], [], child.body, [])
            yield from _marks_below(body, path=path, node_id=inner, runs=collected)
        else:
            yield from _marks_of(child, path=path, test=node_id if runs else None)


def _marks_of(node: ast.AST, *, path: str, test: str | None) -> Iterator[Mark]:
    for call in ast.walk(node):
        if isinstance(call, ast.Call) and _last_name(call.func) == MARK:
            for argument in call.args:
                if not (isinstance(argument, ast.Constant) and isinstance(argument.value, str)):
                    raise UnreadableMark(
                        f"{path}:{call.lineno}: write the requirement's id as a string"
                    )
                yield Mark(argument.value, path, call.lineno, test)


def _has_tests(node: ast.Module | ast.ClassDef) -> bool:
    return any(
        _is_test(child)
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
        else isinstance(child, ast.ClassDef) and _is_test_class(child)
        for child in node.body
    )


def _is_test_class(node: ast.ClassDef) -> bool:
    return node.name.startswith("Test") and _may_run(node) and _has_tests(node)


def _is_test(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return node.name.startswith("test") and _may_run(node)


def _may_run(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> bool:
    """Neither skipped nor expected to fail, whatever happens."""
    return not {_last_name(decorator) for decorator in node.decorator_list} & NOT_RUN


def _last_name(node: ast.expr) -> str:
    match node:
        case ast.Call(func=func):
            return _last_name(func)
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
        case _:
            return ""
