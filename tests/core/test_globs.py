"""Globs, alone and in a row, against the plainest way to say what they mean."""

import re

from hypothesis import given
from hypothesis import strategies as st

from toolgate.core.globs import Glob, GlobRow, one_of

letters = st.text(alphabet="ab*", max_size=8)
words = st.lists(st.sampled_from(["a", "b", "ab"]), max_size=7)
patterns = st.lists(st.sampled_from(["a", "b", "*", "**"]), max_size=6)


@given(pattern=letters, text=st.text(alphabet="ab", max_size=10))
def test_a_star_is_any_run_of_characters_and_nothing_else_is_special(
    pattern: str, text: str
) -> None:
    meaning = ".*".join(re.escape(part) for part in pattern.split("*"))
    assert Glob(pattern).matches(text) is (re.fullmatch(meaning, text) is not None)


@given(pattern=letters, text=st.text(alphabet="ab", max_size=10), known=st.integers(0, 10))
def test_what_matches_may_begin_as_it_begins(pattern: str, text: str, known: int) -> None:
    if Glob(pattern).matches(text):
        assert Glob(pattern).may_begin_with(text[:known])


@given(pattern=patterns, row=words, open_end=st.booleans())
def test_a_row_of_globs_matches_as_every_way_to_fill_its_gaps_would(
    pattern: list[str], row: list[str], open_end: bool
) -> None:
    globs = [None if each == "**" else Glob(each) for each in pattern]
    matcher: GlobRow[str] = GlobRow(globs, open_end=open_end, fits=Glob.matches)
    assert matcher.matches(row) is _tries_everything(globs, row, open_end=open_end)


def _tries_everything(globs: list[Glob | None], row: list[str], *, open_end: bool) -> bool:
    if not globs:
        return open_end or not row
    first, *rest = globs
    if first is None:
        return any(
            _tries_everything(rest, row[skipped:], open_end=open_end)
            for skipped in range(len(row) + 1)
        )
    return (
        bool(row) and first.matches(row[0]) and _tries_everything(rest, row[1:], open_end=open_end)
    )


def test_no_pattern_matches_nothing() -> None:
    assert not one_of([])("")
    assert one_of(["a*", "b"])("b")
    assert one_of(["a*", "b"])("axe")
    assert not one_of(["a*", "b"])("bx")
