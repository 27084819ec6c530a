"""Refusals of callers that nobody knows, counted: one audit row per minute and source.

A row for each would let anyone fill the disk.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from toolgate.access.audit import Trail
from toolgate.core.clock import Clock
from toolgate.core.errors import Unavailable
from toolgate.journal.journal import Journal, Operation

log = logging.getLogger(__name__)

ACTION: Final = "access.refused"
MINUTE_S: Final = 60.0
LOOK_S: Final = 1.0
MOST_SOURCES: Final = 256  # in a minute; more are one source
OTHERS: Final = "others"
SHOWN: Final = 120  # characters of a path, which the caller chooses


@dataclass(slots=True)
class _Source:
    written: float = -MINUTE_S
    count: int = 0
    path: str = ""


@dataclass(slots=True)
class RefusalCounts:
    journal: Journal
    trail: Trail
    clock: Clock
    _sources: dict[str, _Source] = field(default_factory=dict)
    _woken: asyncio.Event = field(default_factory=asyncio.Event)

    def count(self, source: str, path: str) -> None:
        """One more from this address. The first of a minute gets its row at once."""
        if source not in self._sources and len(self._sources) >= MOST_SOURCES:
            source = OTHERS
        found = self._sources.setdefault(source, _Source())
        found.count += 1
        found.path = path[:SHOWN]
        self._woken.set()

    async def keep(self) -> None:
        """Write the rows that are due."""
        while True:
            await self._woken.wait()
            await self.write(MINUTE_S)
            if not self._sources:
                self._woken.clear()
            await asyncio.sleep(LOOK_S)

    async def close(self) -> None:
        await self.write(0.0)

    async def write(self, after_s: float) -> None:
        """Write a row for each source whose last one is as old as this."""
        now = self.clock.monotonic()
        due = {
            name: found
            for name, found in self._sources.items()
            if found.count and now - found.written >= after_s
        }
        counted = {name: found.count for name, found in due.items()}
        rows: list[Operation] = []
        for name, found in due.items():
            rows += self._row(name, found)
        try:
            if rows:
                await self.journal.commit(*rows)
        except Unavailable as refused:  # counted on, and written when the journal works again
            log.error("refusals_not_written error=%s", refused)
            return
        for name, found in due.items():
            found.count -= counted[name]
            found.written = now
        self._sources = {
            name: found
            for name, found in self._sources.items()
            if found.count or now - found.written < MINUTE_S
        }

    def _row(self, source: str, found: _Source) -> Sequence[Operation]:
        return self.trail.note(
            ACTION,
            actor="unknown",
            resource=("address", source),
            metadata={"decision": "deny", "count": found.count, "path": found.path},
        )
