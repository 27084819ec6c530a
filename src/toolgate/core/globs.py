"""Words with `*` in them: any run of characters, also none. No other character is special.

Matching takes time in proportion to the text for each part of the pattern; nothing backtracks.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Generic, TypeVar

W = TypeVar("W")


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
    def parts(self) -> list[str]:
        """The literal pieces between the stars."""
        return self.text.split("*")

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


class GlobRow(Generic[W]):
    """Globs for words in a row, with gaps (None) that any number of words may fill.

    `fits` says of one glob and one word: True, False, or None, "from here on it could be anything".
    Each piece between gaps takes the first place where it fits, so a row is read once per piece.
    """

    __slots__ = ("_fits", "_open_end", "_pieces")

    def __init__(
        self,
        globs: Sequence[Glob | None],
        *,
        open_end: bool,
        fits: Callable[[Glob, W], bool | None],
    ) -> None:
        pieces: list[list[Glob]] = [[]]
        for glob in globs:
            if glob is None:
                pieces.append([])
            else:
                pieces[-1].append(glob)
        self._pieces = pieces
        self._open_end = open_end
        self._fits = fits

    def matches(self, words: Sequence[W]) -> bool:
        first, *rest = self._pieces
        placed = self._place(first, words, 0)
        if placed is not True:
            return placed is None
        at = len(first)
        for number, piece in enumerate(rest, 1):
            anchored = number == len(rest) and not self._open_end
            end = len(words) - len(piece)
            while True:
                if at > end:
                    return self._reaches_unknown(piece, words, at)
                placed = self._place(piece, words, at)
                if placed is None:
                    return True
                if placed and (not anchored or at == end):
                    break
                at += 1
            at += len(piece)
        return self._open_end or at == len(words)

    def _place(self, piece: Sequence[Glob], words: Sequence[W], at: int) -> bool | None:
        for offset, glob in enumerate(piece):
            if at + offset >= len(words):
                return False
            fit = self._fits(glob, words[at + offset])
            if not fit:
                return fit
        return True

    def _reaches_unknown(self, piece: Sequence[Glob], words: Sequence[W], at: int) -> bool:
        """Whether a piece that is too long for what is left begins before a word of unknown extent."""
        return any(self._place(piece, words, start) is None for start in range(at, len(words)))
