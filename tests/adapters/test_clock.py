"""Time and the ids made from it only go forwards."""

import re

from toolgate.adapters.clock import SystemClock
from toolgate.adapters.ids import RandomIds
from toolgate.testing.clock import FakeClock


def test_the_wall_clock_never_goes_back() -> None:
    clock = SystemClock()
    times = [clock.now_ms() for _ in range(1000)]
    assert times == sorted(times)
    assert times[0] > 1_700_000_000_000
    assert clock.monotonic() <= clock.monotonic()


def test_ids_are_unique_and_sort_in_the_order_they_were_made() -> None:
    new_id = RandomIds(SystemClock())
    made = [new_id("run") for _ in range(5000)]
    assert made == sorted(made)
    assert len(set(made)) == len(made)
    assert all(re.fullmatch(r"run_[0-9a-z]{26}", one) for one in made)


def test_ids_keep_sorting_while_the_clock_stands_still_or_goes_back() -> None:
    clock = FakeClock()
    new_id = RandomIds(clock)
    made = [new_id("run") for _ in range(100_000)]
    clock.advance(-1000)
    made += [new_id("run") for _ in range(10)]
    clock.advance(5000)
    made.append(new_id("run"))
    assert made == sorted(made)
    assert len(set(made)) == len(made)


def test_two_makers_of_ids_do_not_make_the_same() -> None:
    clock = FakeClock()
    assert RandomIds(clock)("run") != RandomIds(clock)("run")
