"""The rate limiter: bursts, pace, and what it tells."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolgate.core.rates import Rate, spend


def test_a_full_burst_and_then_one_per_step() -> None:
    rate, tat, now = Rate(4, 1000), 0.0, 10_000
    for left in (3, 2, 1, 0):
        spent = spend(rate, tat, now=now)
        assert (spent.allowed, spent.remaining) == (True, left)
        tat = spent.tat
    refused = spend(rate, tat, now=now)
    assert (refused.allowed, refused.remaining, refused.retry_ms) == (False, 0, 250)
    assert not spend(rate, tat, now=now + 249).allowed
    assert spend(rate, tat, now=now + 250).allowed


def test_looking_costs_nothing() -> None:
    rate = Rate(2, 1000)
    once = spend(rate, 0.0, now=5_000)
    seen = spend(rate, once.tat, now=5_000, cost=0)
    assert (seen.tat, seen.remaining) == (once.tat, 1)


def test_a_clock_that_was_set_back_locks_nobody_out() -> None:
    rate, an_hour = Rate(60, 60_000), 3_600_000
    before = spend(rate, 0.0, now=10_000_000)
    after = spend(rate, before.tat, now=10_000_000 - an_hour)
    assert after.allowed
    assert after.reset_ms <= rate.window_ms


def test_an_illegal_rate_cannot_be_built() -> None:
    for limit, window in ((0, 1), (1, 0), (-1, 5)):
        with pytest.raises(ValueError, match="at least 1"):
            Rate(limit, window)


@given(
    limit=st.integers(1, 200),
    window=st.integers(1, 100_000),
    gaps=st.lists(st.integers(0, 5_000), min_size=1, max_size=80),
)
def test_no_window_ever_lets_more_than_a_burst_and_its_pace_through(
    limit: int, window: int, gaps: list[int]
) -> None:
    rate, tat, now = Rate(limit, window), 0.0, 1_000_000
    passed: list[int] = []
    for gap in gaps:
        now += gap
        spent = spend(rate, tat, now=now)
        tat = spent.tat
        assert 0 <= spent.remaining <= limit
        if spent.allowed:
            passed.append(now)
        else:
            assert spend(rate, tat, now=now + spent.retry_ms).allowed
    allowed = limit + (passed[-1] - passed[0]) * limit / window if passed else 0
    assert len(passed) <= allowed + 1e-6
