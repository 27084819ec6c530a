"""Measuring side by side: what is compared takes turns, and medians are compared.

Who is next is drawn by lot in each round: whoever ran before leaves the cores warm, or cold.
"""

import asyncio
import os
import random
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")

# The marks of measured homes go away with them.
_state = tempfile.TemporaryDirectory(prefix="toolgate-state-")
os.environ["XDG_STATE_HOME"] = _state.name


@dataclass(frozen=True, slots=True)
class Cost:
    """What one thing took: seconds on the wall, and of the process's CPU over all its threads."""

    wall: float
    cpu: float

    def each(self, count: int) -> "Cost":
        return Cost(self.wall / count, self.cpu / count)


@dataclass(frozen=True, slots=True)
class Result:
    """One line of a table; with a budget, one that can fail."""

    what: str
    measured: str
    budget: str = ""
    passed: bool = True


def process_cpu(pid: int) -> float:
    """Seconds of CPU of all threads of a process, by the name that Linux gives its clock."""
    return time.clock_gettime((~pid << 3) | 2)


def timed(work: Callable[[], object]) -> Cost:
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return Cost(time.perf_counter() - wall, time.process_time() - cpu)


async def timed_async(work: Callable[[], Awaitable[object]]) -> Cost:
    wall, cpu = time.perf_counter(), time.process_time()
    await work()
    return Cost(time.perf_counter() - wall, time.process_time() - cpu)


def median(costs: Sequence[Cost]) -> Cost:
    return Cost(
        statistics.median(cost.wall for cost in costs),
        statistics.median(cost.cpu for cost in costs),
    )


def interleave(cases: Mapping[str, Callable[[], Cost]], *, rounds: int) -> dict[str, Cost]:
    """The median of each case, all of them measured once in every round; the first is warming up."""
    measured: dict[str, list[Cost]] = {name: [] for name in cases}
    chance = random.Random(1)
    for turn in range(rounds + 1):
        for name in chance.sample(list(cases), len(cases)):
            cost = cases[name]()
            if turn > 0:
                measured[name].append(cost)
    return {name: median(costs) for name, costs in measured.items()}


async def interleave_async(
    cases: Mapping[str, Callable[[], Awaitable[Cost]]], *, rounds: int
) -> dict[str, Cost]:
    """As `interleave`, for cases that are awaited."""
    measured: dict[str, list[Cost]] = {name: [] for name in cases}
    chance = random.Random(1)
    for turn in range(rounds + 1):
        for name in chance.sample(list(cases), len(cases)):
            cost = await cases[name]()
            if turn > 0:
                measured[name].append(cost)
    return {name: median(costs) for name, costs in measured.items()}


def run(main: Coroutine[Any, Any, T]) -> T:
    """As Toolgate itself runs: on its event loop, its collector as seldom at work."""
    import uvloop  # noqa: PLC0415  not every benchmark has a loop

    from toolgate.cli.serving import collect_seldom  # noqa: PLC0415

    collect_seldom()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)


def at_most(what: str, measured: float, budget: float, *, detail: str = "") -> Result:
    return Result(what, _with(f"{measured:.2f}x", detail), f"<= {budget}x", measured <= budget)


def at_least(what: str, measured: float, budget: float, *, detail: str = "") -> Result:
    return Result(what, _with(f"{measured:.2f}x", detail), f">= {budget}x", measured >= budget)


def _with(measured: str, detail: str) -> str:
    return f"{measured} ({detail})" if detail else measured


def table(title: str, results: Sequence[Result]) -> list[str]:
    rows = [(r.what, r.measured, r.budget, _verdict(r)) for r in results]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    return [title] + [
        "  "
        + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def _verdict(result: Result) -> str:
    if not result.budget:
        return ""
    return "PASS" if result.passed else "FAIL"
