"""Ids: sortable by time, safe in paths."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolgate.core import ids

TIMES = st.integers(0, 2**48 - 1)
CHANCES = st.integers(0, 2**80 - 1)


@given(TIMES, CHANCES, TIMES, CHANCES)
def test_ids_sort_by_time_and_then_by_chance(t1: int, c1: int, t2: int, c2: int) -> None:
    one, two = ids.make("run", now_ms=t1, chance=c1), ids.make("run", now_ms=t2, chance=c2)
    assert (one < two) == ((t1, c1) < (t2, c2))
    assert len(one) == len("run_") + ids.LENGTH
    assert ids.is_path_safe(one)


@pytest.mark.parametrize("text", ["", ".", "..", "a/b", "a..b", "a\0", "x" * 129, "a\n", "ü", " "])
def test_what_could_leave_a_directory_is_not_path_safe(text: str) -> None:
    assert not ids.is_path_safe(text)
