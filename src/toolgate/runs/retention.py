"""Deletes session events, ended runs and other registered data after their time (ingress contract, "Offline").

The audit and the evidence of a run stay.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from toolgate.core.clock import Clock
from toolgate.core.errors import Unavailable
from toolgate.journal.journal import Delete, Journal, Put, Row
from toolgate.journal.paging import all_rows
from toolgate.runs import records
from toolgate.runs.conversations import HISTORY_RUNS
from toolgate.runs.records import Owner

log = logging.getLogger(__name__)

KEPT_MS: Final = 24 * 3_600_000
KEPT_EVENTS: Final = 10_000
KEPT_RUNS_MS: Final = 30 * KEPT_MS
EVERY_S: Final = 600.0
PAGE: Final = 200  # runs looked at at a time
SWEPT: Final = 1000  # rows of a collection without an order looked at at a time

Forget = Callable[[int], Awaitable[int]]  # deletes older data; returns how much


class Prunes(Journal, Protocol):
    async def prune(self, prefix: str, *, before: int, keep: int) -> int: ...


@dataclass(slots=True)
class Sweep:
    """Pages through a collection, and from its end back to its start."""

    journal: Journal
    collection: str
    _after: str = ""

    async def page(self) -> list[Row]:
        rows = await self.journal.scan(self.collection, after=self._after, limit=SWEPT)
        self._after = rows[-1].key if len(rows) == SWEPT else ""
        return rows


@dataclass(slots=True)
class Retention:
    journal: Prunes
    clock: Clock
    kept_ms: int = KEPT_MS
    kept_events: int = KEPT_EVENTS
    kept_runs_ms: int = KEPT_RUNS_MS
    every_s: float = EVERY_S
    more: Sequence[Forget] = ()
    _task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._keep_on(), name="retention")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def once(self) -> int:
        """Delete data that is too old or too much, and return the number of events."""
        now = self.clock.now_ms()
        prefix = records.session_stream("")
        pruned = await self.journal.prune(prefix, before=now - self.kept_ms, keep=self.kept_events)
        runs = await self._forget_runs(now - self.kept_runs_ms)
        for forget in self.more:
            await forget(now - self.kept_runs_ms)
        return pruned + runs

    async def _forget_runs(self, before: int) -> int:
        """Delete the runs that ended before a time; never an open one."""
        forgotten = 0
        end = records.ended_key(before, "")
        async for row in all_rows(self.journal, records.ENDED_RUNS, page=PAGE):
            if row.key >= end:
                break
            try:
                forgotten += await self._forget_run(row, before)
            except Unavailable:
                raise
            except Exception:  # the runs after it must still be deleted
                log.exception("run_not_forgotten key=%s", row.key)
        return forgotten

    async def _forget_run(self, row: Row, before: int) -> int:
        owner = records.decode_owner(row.value)
        if await self._is_remembered(owner, before):
            later = records.ended_key(self.clock.now_ms(), owner.run_id)
            await self.journal.commit(
                Delete(row.collection, row.key, expected=row.version),
                Put(row.collection, later, row.value, expected=0),
                durable=False,
            )
            return 0
        stream = records.run_stream(owner.run_id)
        head = await self.journal.head(stream)
        # A run that is partly deleted has no rows any more.
        is_whole = head.first == 1
        if is_whole:
            session_key = records.session_key(owner.session_id, owner.run_id)
            await self.journal.commit(
                Delete(records.RUNS, owner.run_id),
                Delete(records.SESSION_RUNS, session_key),
                durable=False,
            )
        await self.journal.forget(stream, through=head.last)
        # Last, so that a run that a killed process has partly deleted is found again.
        await self.journal.commit(
            Delete(row.collection, row.key, expected=row.version), durable=False
        )
        return head.last - head.first + 1

    async def _is_remembered(self, owner: Owner, before: int) -> bool:
        """Tell if the session is still in use and its agents receive this run as history."""
        newer = await self.journal.scan(
            records.SESSION_RUNS,
            after=records.session_key(owner.session_id, owner.run_id),
            limit=HISTORY_RUNS,
        )
        own = [
            run_id
            for session_id, run_id in (records.session_and_run(row.key) for row in newer)
            if session_id == owner.session_id
        ]
        if len(own) >= HISTORY_RUNS:
            return False
        latest = await self.journal.read_back(records.session_stream(owner.session_id), limit=1)
        if latest and latest[0].at >= before:
            return True
        # Session events are deleted after a day; the newest run may have ended later.
        newest = await records.load(self.journal, own[-1]) if own else None
        return newest is not None and (not newest.ended or newest.ended_at >= before)

    async def _keep_on(self) -> None:
        while True:
            try:
                forgotten = await self.once()
                if forgotten:
                    log.info("events_forgotten count=%d", forgotten)
            except Exception:  # the next round must still come
                log.exception("retention_failed")
            await asyncio.sleep(self.every_s)
