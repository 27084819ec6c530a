"""Words with `*` in them: any run of characters, also none. No other character is special.

Matching takes time in proportion to the text for each part of the pattern; nothing backtracks.
"""

from collections.abc import Callable, Iterable


class Glob:
    __slots__ = ("_exact", "_first", "_last", "_middle", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        parts = text.split("*")
        self._exact = len(parts) == 1
        self._first = parts[0]
        self._last = parts[-1]
        self._middle = [part for part in parts[1:-1] if part]

    def matches(self, text: str) -> bool:
        if self._exact:
            return text == self._first
        if not text.startswith(self._first):
            return False
        at = len(self._first)
        end = len(text) - len(self._last)
        if end < at or not text.endswith(self._last):
            return False
        for part in self._middle:
            found = text.find(part, at, end)
            if found < 0:
                return False
            at = found + len(part)
        return True

    def may_begin_with(self, prefix: str) -> bool:
        """Whether a text that begins with `prefix` could match."""
        if self._exact:
            return self._first.startswith(prefix)
        return self._first.startswith(prefix) or prefix.startswith(self._first)

    @property
    def is_exact(self) -> bool:
        return self._exact


def one_of(patterns: Iterable[str]) -> Callable[[str], bool]:
    """Whether a text matches any of the patterns; plain words cost one lookup together."""
    globs = [Glob(pattern) for pattern in patterns]
    exact = frozenset(glob.text for glob in globs if glob.is_exact)
    rest = [glob for glob in globs if not glob.is_exact]
    if not rest:
        return exact.__contains__
    return lambda text: text in exact or any(glob.matches(text) for glob in rest)
