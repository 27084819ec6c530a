"""Paths as a policy compares them: by their components, with `.` and `..` resolved.

Only by their spelling: links on the disk are the executor's to resolve, beneath the workspace.
A relative path is relative to the workspace; one that climbs out of it cannot be told.
"""

from collections.abc import Sequence
from typing import Final

from toolgate.domain.globs import Glob

MAX_PATH: Final = 4096


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

    __slots__ = ("_globs", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self._globs: tuple[Glob | None, ...] = tuple(
            None if part == "**" else Glob(part) for part in components(text)
        )

    def matches(self, parts: Sequence[str]) -> bool:
        return self._from(0, parts, 0)

    def may_match(self, parts: Sequence[str]) -> bool:
        """Also where the workspace may be the root of the disk: `/a/b` counts as `a/b` as well."""
        return self._from(0, parts, 0) or (parts[:1] == ("/",) and self._from(0, parts, 1))

    def _from(self, pattern_at: int, parts: Sequence[str], at: int) -> bool:
        while pattern_at < len(self._globs):
            glob = self._globs[pattern_at]
            if glob is None:
                if parts[at : at + 1] == ("/",):
                    return False
                return any(
                    self._from(pattern_at + 1, parts, skipped)
                    for skipped in range(at, len(parts) + 1)
                )
            if at == len(parts) or not glob.matches(parts[at]):
                return False
            if (parts[at] == "/") != (glob.text == "/"):
                return False
            pattern_at += 1
            at += 1
        return at == len(parts)
