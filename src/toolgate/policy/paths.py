"""Paths as a policy compares them: by their components, with `.` and `..` resolved.

Only by their spelling: where a policy has rules about paths, the executor follows no link on the disk.
A relative path is relative to the workspace; one that climbs out of it cannot be told.
"""

from collections.abc import Sequence
from typing import Final

from toolgate.core.globs import Glob, GlobRow

MAX_PATH: Final = 4096
SANDBOX_ROOT: Final = "workspace"  # /workspace is where a sandbox has its workspace


class BadPath(ValueError):
    """A path that cannot be brought into one spelling."""


def components(text: str) -> tuple[str, ...]:
    """The parts of a path, resolved; an absolute one begins with "/". Raises BadPath."""
    if not text or len(text) > MAX_PATH or not text.isprintable():
        raise BadPath("it is empty, too long or holds characters that do not print")
    if text[0] == "~" or "\\" in text:
        raise BadPath("it is not a plain path")
    parts: list[str] = ["/"] if text[0] == "/" else []
    floor = len(parts)
    for part in text.split("/"):
        if part in {"", "."}:
            continue
        if part == "..":
            if len(parts) == floor:
                raise BadPath("it climbs out of its root")
            parts.pop()
        else:
            parts.append(part)
    return tuple(parts)


class PathPattern:
    """`notes/*.md`, `src/**`, `/etc/**`: `*` within a component, `**` for any number of them."""

    __slots__ = ("_absolute", "_anywhere", "_row", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        parts = components(text)
        self._absolute = parts[:1] == ("/",)
        globs = [None if part == "**" else Glob(part) for part in parts if part != "/"]
        self._row: GlobRow[str] = GlobRow(globs, open_end=False, fits=Glob.matches)
        self._anywhere: GlobRow[str] = GlobRow([None, *globs], open_end=False, fits=Glob.matches)

    def matches(self, parts: Sequence[str]) -> bool:
        absolute = parts[:1] == ("/",)
        return absolute is self._absolute and self._row.matches(parts[1:] if absolute else parts)

    def may_match(self, parts: Sequence[str]) -> bool:
        """Also where an absolute path may lie in the workspace: `/a/b` counts as `a/b` and `b`."""
        if parts[:1] == ("/",):
            return (self._row if self._absolute else self._anywhere).matches(parts[1:])
        if self._row.matches(parts):  # the workspace may be the root of the disk
            return True
        return self._absolute and self._row.matches((SANDBOX_ROOT, *parts))
