"""Runs the attacks at a place, one after the other, each followed by its control."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Collection
from dataclasses import dataclass
from typing import Final

from tests.hostile.arena import Arena, host_has
from tests.hostile.cases import CASES, Case
from tests.hostile.places import Place
from toolgate.sandbox import cgroups
from toolgate.sandbox.sandbox import MIB

OUTER_PIDS: Final = 400  # whatever the attacks do, the machine keeps breathing
CASE_SECONDS: Final = 15.0
OUTER_BYTES: Final = 2048 * MIB


@dataclass(frozen=True, slots=True)
class Row:
    case: str
    escaped: str  # what got out; empty: it held
    control: str  # what went wrong afterwards; empty: nothing


async def try_case(case: Case, place: Place) -> Row:
    arena = Arena(place)
    try:
        await arena.open()
        try:
            async with asyncio.timeout(CASE_SECONDS):
                escaped = await case.attack(arena)
        except TimeoutError:
            escaped = "nothing ended it"
        control = await arena.control()
    finally:
        await arena.close()
    return Row(case.name, escaped, control)


async def run_battery(place: Place, *, only: Collection[str] = ()) -> list[Row]:
    """Every case, or those that are named."""
    return [await try_case(case, place) for case in CASES if not only or case.name in only]


@contextlib.asynccontextmanager
async def outer_limit() -> AsyncIterator[tuple[cgroups.Group, str]]:
    """A group around everything, and its name below our own."""
    name = f"hostile-{os.getpid()}"
    found = cgroups.find(name)
    group = cgroups.Group(found.parents, unified=found.version == 2)
    for folder in group.folders:
        for file, value in (
            ("pids.max", OUTER_PIDS),
            ("memory.limit_in_bytes", OUTER_BYTES),
            ("memory.max", OUTER_BYTES),
        ):
            if (folder / file).exists():
                (folder / file).write_text(str(value))
    try:
        yield group, name
    finally:
        for _ in range(100):
            group.kill()
            found.close()
            if not any(host_has(str(folder)) for folder in group.folders):
                break
            await asyncio.sleep(0.02)
