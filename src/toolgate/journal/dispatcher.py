"""One process works on all runs: an asyncio task per run that has something to do, and one timer.

A run that waits has no task; its deadline is a row in the journal, and the timer sleeps until the
earliest one.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from toolgate.core.clock import Clock
from toolgate.core.errors import Unavailable
from toolgate.journal.journal import Journal, Row

log = logging.getLogger(__name__)

Advance = Callable[[str], Awaitable[None]]
OnDue = Callable[[Row], Awaitable[None]]

AT_ONCE: Final = 1000  # deadlines, beside those that could not be handled
LONGEST_SLEEP_S: Final = 60.0  # the wall clock may be set while the timer sleeps
RETRY_S: Final = 1.0  # after a deadline could not be handled, or a run not gone on with
HANDLING_S: Final = 1.0  # for which the others wait for one that is being handled
SHORTEST_SLEEP_S: Final = 0.02  # a row that stays due must not keep the loop busy


class Dispatcher:
    def __init__(self, journal: Journal, clock: Clock) -> None:
        self._journal = journal
        self._clock = clock
        self._advance: Advance | None = None
        self._on_due: Mapping[str, OnDue] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._again: set[str] = set()
        self._handling: dict[tuple[str, str], asyncio.Task[bool]] = {}  # by collection and key
        self._stuck = 0  # how many could not be handled when it last looked
        self._unknown: set[str] = set()  # collections whose deadlines nobody here handles
        self._timer: asyncio.Task[None] | None = None
        self._earlier = asyncio.Event()
        self._sleeping_until: int | None = None
        self._draining = False

    @property
    def working_on(self) -> list[str]:
        return list(self._tasks)

    def is_working_on(self, run_id: str) -> bool:
        return run_id in self._tasks

    def start(self, advance: Advance, on_due: Mapping[str, OnDue]) -> None:
        self._advance = advance
        self._on_due = on_due
        self._timer = asyncio.create_task(self._keep_time(), name="deadlines")
        while self._again:
            self.dispatch(self._again.pop())

    def dispatch(self, run_id: str) -> None:
        """Call `advance(run_id)` soon, after `start`; calls for one run never overlap."""
        if self._draining:
            return  # the next start picks it up
        if self._advance is None:
            self._again.add(run_id)
            return
        if run_id in self._tasks:
            self._again.add(run_id)
            return
        task = asyncio.create_task(self._work(run_id), name=run_id)
        self._tasks[run_id] = task
        # Not at the end of `_work`: one that is interrupted before it began never gets there.
        task.add_done_callback(lambda _: self._worked(run_id))

    def interrupt(self, run_id: str) -> None:
        """Cancel the call of `advance` that is under way for this run, if there is one."""
        task = self._tasks.get(run_id)
        if task is not None and task is not asyncio.current_task():
            task.cancel()

    def wake_at(self, due: int) -> None:
        """Wake the timer earlier if this deadline is the next one."""
        if self._sleeping_until is None or due < self._sleeping_until:
            self._earlier.set()

    async def drain(self, *, seconds: float) -> None:
        """Let running work finish for `seconds`, then cancel it; the journal has its state."""
        self._draining = True
        if self._timer is not None:
            self._timer.cancel()
        handling = tuple(self._handling.values())
        for one in handling:
            one.cancel()
        await asyncio.gather(*handling, return_exceptions=True)
        tasks = set(self._tasks.values())
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=seconds)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    async def _work(self, run_id: str) -> None:
        assert self._advance is not None
        try:
            while True:
                self._again.discard(run_id)
                await self._advance(run_id)
                if run_id not in self._again:
                    return
        except asyncio.CancelledError:
            log.info("run_interrupted run_id=%s", run_id)
        except Unavailable as unavailable:  # nobody else would go on with it
            if not self._journal.fault:  # which is logged once
                log.warning("run_put_off run_id=%s error=%s", run_id, unavailable)
            asyncio.get_running_loop().call_later(RETRY_S, self.dispatch, run_id)
        except Exception:
            log.exception("run_crashed run_id=%s", run_id)

    def _worked(self, run_id: str) -> None:
        del self._tasks[run_id]
        if run_id in self._again and not self._draining:
            self._again.discard(run_id)
            self.dispatch(run_id)

    async def _keep_time(self) -> None:
        while True:
            self._earlier.clear()
            self._sleeping_until = None  # while it looks, any deadline may be one it does not see
            try:
                failed = await self._handle_due()
                due = await self._journal.next_due()
            except Exception:
                log.exception("deadlines_failed")
                failed, due = True, None
            self._sleeping_until = due
            left = LONGEST_SLEEP_S if due is None else (due - self._clock.now_ms()) / 1000
            left = min(max(left, SHORTEST_SLEEP_S), LONGEST_SLEEP_S)
            if failed:  # what could not be handled stays due: look again, but not at once
                await asyncio.sleep(RETRY_S)
                continue
            try:
                async with asyncio.timeout(left):
                    await self._earlier.wait()
            except TimeoutError:
                continue

    async def _handle_due(self) -> bool:
        """Call the handlers of the rows that are due; return whether a row is due still."""
        # What stays due comes first each time: those after it must not wait for ever.
        limit = AT_ONCE + self._stuck
        due = await self._journal.due(until=self._clock.now_ms(), limit=limit)
        fresh = [row for row in due if (row.collection, row.key) not in self._handling]
        self._stuck = len(due) - len(fresh)
        if fresh:
            done, late = await asyncio.wait(map(self._begin, fresh), timeout=HANDLING_S)
            failed = [task for task in done if task.cancelled() or not task.result()]
            self._stuck += len(late) + len(failed)
        return self._stuck > 0

    def _begin(self, row: Row) -> asyncio.Task[bool]:
        """Handle a row in a task of its own: one that hangs must not delay the others."""
        name = (row.collection, row.key)
        task = self._handling[name] = asyncio.create_task(self._handle(row))
        task.add_done_callback(lambda _: self._handling.pop(name))
        return task

    async def _handle(self, row: Row) -> bool:
        handle = self._on_due.get(row.collection)
        if handle is None:
            if row.collection not in self._unknown:  # as of a role that once had this home
                self._unknown.add(row.collection)
                log.error("deadline_without_handler collection=%s key=%s", row.collection, row.key)
            return False
        try:
            await handle(row)
        except Exception:
            log.exception("deadline_failed collection=%s key=%s", row.collection, row.key)
            return False
        return True
