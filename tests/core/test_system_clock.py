"""Time and the ids made from it only go forwards."""

import re

import pytest

from toolgate.core.random_ids import RandomIds
from toolgate.core.system_clock import SystemClock
from toolgate.testing.clock import FakeClock


def test_the_wall_clock_never_goes_back() -> None:
    clock = SystemClock()
    times = [clock.now_ms() for _ in range(1000)]
    assert times == sorted(times)
    assert times[0] > 1_700_000_000_000
    assert clock.monotonic() <= clock.monotonic()


class Machine:
    """Its two clocks, of which one can be set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.wall_ms, self.up_ms = 1_800_000_000_000, 5_000
        monkeypatch.setattr("time.time_ns", lambda: self.wall_ms * 1_000_000)
        monkeypatch.setattr("time.monotonic_ns", lambda: self.up_ms * 1_000_000)

    def wait(self, ms: int) -> None:
        self.wall_ms += ms
        self.up_ms += ms


def test_what_is_due_comes_though_the_wall_clock_was_set_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as patched:
        machine = Machine(patched)
        clock = SystemClock()
        before = clock.now_ms()
        machine.wall_ms -= 8 * 3_600_000  # a machine whose clock was in local time at its start
        times = []
        for _ in range(120_000):
            machine.wait(1)
            times.append(clock.now_ms())
        late = clock.now_ms() - before
        machine.wait(16 * 3_600_000)
        caught_up = clock.now_ms() == machine.wall_ms
    assert times == sorted(times)
    assert late >= 60_000
    assert caught_up


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
