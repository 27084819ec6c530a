"""The whole pipeline for `echo`, evidence and audit on, beside the bare commits that it makes.

What the journal alone takes for the same operations is the floor: nothing may run before its
decision is on disk, and nothing is answered before its result is.
"""

import asyncio
import itertools
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from bench.measure import Result, interleave_async, run, table, timed_async
from tests.support.pipelines import Rig, open_rig
from toolgate.core.system_clock import SystemClock
from toolgate.core.tools import ToolRequest
from toolgate.journal.journal import (
    Append,
    Delete,
    Event,
    Journal,
    NewEvent,
    Operation,
    Overwrite,
    Put,
)

CALLS: Final = 2_000
AT_ONCE: Final = 32
ROUNDS: Final = 5
BUDGET: Final = 2_000
SAMPLE: Final = "sample_0"


async def captured(rig: Rig) -> list[Sequence[Operation]]:
    """The commits of one call."""
    commits: list[Sequence[Operation]] = []
    commit = rig.journal.commit

    async def noted(*operations: Operation, durable: bool = True) -> list[Event]:
        commits.append(operations)
        return await commit(*operations, durable=durable)

    setattr(rig.journal, "commit", noted)  # noqa: B010  a method of a class that is not ours
    await rig.run(ToolRequest(SAMPLE, "echo", {"text": "hello"}))
    setattr(rig.journal, "commit", commit)  # noqa: B010
    return commits


def renamed(operation: Operation, name: str) -> Operation:
    match operation:
        case Put() | Overwrite() | Delete():
            return msgspec.structs.replace(operation, key=operation.key.replace(SAMPLE, name))
        case Append():
            events = [
                NewEvent(new.type, new.data, new.subject.replace(SAMPLE, name))
                for new in operation.events
            ]
            # Kept from the streams of the real ones, so that the evidence is not published twice.
            return Append(f"bare/{operation.stream}", events)
        case _:
            return operation


async def many(work: Callable[[int], Awaitable[object]], numbers: "itertools.count[int]") -> None:
    left = iter(range(CALLS))

    async def worker() -> None:
        for _ in left:
            await work(next(numbers))

    await asyncio.gather(*(worker() for _ in range(AT_ONCE)))


async def measure(home: Path) -> list[Result]:
    async with open_rig(home, clock=SystemClock()) as rig:
        commits = await captured(rig)
        journal: Journal = rig.journal
        numbers = itertools.count(1)

        async def through(number: int) -> None:
            await rig.run(ToolRequest(f"call_{number}", "echo", {"text": "hello"}))

        async def bare(number: int) -> None:
            for operations in commits:
                await journal.commit(*(renamed(one, f"bare_{number}") for one in operations))

        async def again(_: int) -> None:
            await rig.run(ToolRequest(SAMPLE, "echo", {"text": "hello"}))

        costs = await interleave_async(
            {
                "pipeline": lambda: timed_async(lambda: many(through, numbers)),
                "bare": lambda: timed_async(lambda: many(bare, numbers)),
                "again": lambda: timed_async(lambda: many(again, numbers)),
            },
            rounds=ROUNDS,
        )
        rates = {name: CALLS / cost.wall for name, cost in costs.items()}
        cpu = {name: cost.cpu / CALLS * 1e6 for name, cost in costs.items()}
        count = sum(len(operations) for operations in commits)
        return [
            Result(
                f"echo through the pipeline, {AT_ONCE} at once",
                f"{rates['pipeline']:,.0f} calls/s, {cpu['pipeline']:.0f} us of CPU",
                f">= {BUDGET:,}",
                rates["pipeline"] >= BUDGET,
            ),
            Result(
                f"floor: its {len(commits)} commits ({count} operations) alone",
                f"{rates['bare']:,.0f} calls/s, {cpu['bare']:.0f} us of CPU",
            ),
            Result(
                "the pipeline's own share",
                f"{cpu['pipeline'] - cpu['bare']:.0f} us of CPU a call",
            ),
            Result(
                "a request that is known, answered from the store",
                f"{rates['again']:,.0f} calls/s, {cpu['again']:.0f} us of CPU",
            ),
        ]


def main() -> list[str]:
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as home:
        return table("Gate", run(measure(Path(home))))


if __name__ == "__main__":
    for line in main():
        print(line)
