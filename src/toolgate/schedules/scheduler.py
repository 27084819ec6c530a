"""Heartbeat and cron: jobs that run at their times, each time once.

A schedule is a row whose `due` is its next time. Taking a time is a compare-and-set on the row, so
no two processes take the same one. The job's id is made from the time, so an interrupted job is
resumed and not run again.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

import msgspec

from toolgate.core.clock import Clock
from toolgate.core.concurrency import Background
from toolgate.core.errors import Conflict, ToolgateError, Unavailable
from toolgate.journal.journal import Delete, Journal, Operation, Put, Row
from toolgate.schedules.cron import Cron, Schedule, parse

log = logging.getLogger(__name__)

SCHEDULES: Final = "schedules"
HEARTBEAT: Final = "heartbeat"
CRON: Final = "cron"
RETRY_S: float = 5.0  # before the end of a job is told again that could not be written down
LOOK_S: Final = 60.0  # between two looks at whether the clock was set back
REMEMBERED: Final = 64  # times that were taken: an hour of a line that is due each minute


class Waits(Protocol):
    """Publish that a job waits for a person, and for what."""

    async def __call__(self, text: str) -> None: ...


class Job(Protocol):
    """A job; it returns why it failed, or an empty text."""

    async def __call__(self, job_id: str, *, waits: Waits) -> str: ...


async def nothing(job_id: str, *, waits: Waits) -> str:
    """The job of a heartbeat."""
    return ""


@dataclass(frozen=True, slots=True)
class Entry:
    name: str
    kind: str  # heartbeat | cron
    line: str
    job: Job = nothing


class _Kept(msgspec.Struct, frozen=True):
    kind: str
    line: str
    taken: int = 0  # the time that was taken last
    ended: int = 0  # as `taken` where no job is under way
    going: tuple[int, ...] = ()  # the times whose jobs have not ended: a later one may overlap
    past: tuple[int, ...] = ()  # what a cron line was due at and was taken, newest last


class Tell(Protocol):
    """The operation that publishes one step of a schedule."""

    def __call__(
        self, kind: str, name: str, *, status: str, duration_ms: int, text: str = ""
    ) -> Operation: ...


_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(_Kept).decode


@dataclass(slots=True)
class Scheduler:
    journal: Journal
    clock: Clock
    tell: Tell
    entries: Sequence[Entry]
    wake_at: Callable[[int], None]
    _plans: dict[str, tuple[Entry, Schedule]] = field(default_factory=dict)
    _last: dict[str, int] = field(default_factory=dict)
    _tasks: Background = field(default_factory=Background)

    async def load(self) -> None:
        """Write rows for new schedules and delete those of old ones; raises Invalid for a wrong line."""
        self._plans = {one.name: (one, parse(one.line)) for one in self.entries}
        known = {row.key: row for row in await self.journal.scan(SCHEDULES)}
        for name, row in known.items():
            kept = _decode(row.value)
            if kept.taken:
                self._last[kept.kind] = max(self._last.get(kept.kind, 0), kept.taken)
            if name not in self._plans:
                await self._drop(row)
        for name in self._plans:
            try:
                kept = await self._align(name, known.get(name))
            except Conflict:  # another process has just written it
                kept = await self._align(name, await self.journal.get(SCHEDULES, name))
            if kept.taken != kept.ended:
                for taken in kept.going or (kept.taken,):
                    self._go(name, kept.kind, taken)

    async def _align(self, name: str, before: Row | None) -> _Kept:
        """Write a schedule's row if it is new, has another line or is late; return the row's value."""
        entry, schedule = self._plans[name]
        kept = _Kept(entry.kind, entry.line) if before is None else _decode(before.value)
        due = _next(schedule, self.clock.now_ms(), kept.past)
        late = before is not None and due is not None and (before.due or due) > due
        if before is None or late or kept.line != entry.line:  # late: the clock was set back
            # What was taken under another line is still to be gone on with.
            named = msgspec.structs.replace(kept, kind=entry.kind, line=entry.line)
            expected = 0 if before is None else before.version
            await self.journal.commit(Put(SCHEDULES, name, _encode(named), expected, due))
        return kept

    async def _drop(self, row: Row) -> None:
        with contextlib.suppress(Conflict):  # another process has just written it
            await self.journal.commit(Delete(SCHEDULES, row.key, expected=row.version))

    async def keep_time(self) -> None:
        """Check every minute, because the clock may be set while this runs."""
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                await self.realign()
            except Exception:  # whatever one look brings, the next one comes
                log.exception("schedules_unread")

    async def realign(self) -> None:
        """Bring forward each time that a clock set back has put off."""
        for name, (_, schedule) in self._plans.items():
            row = await self.journal.get(SCHEDULES, name)
            if row is None:
                continue
            due = _next(schedule, self.clock.now_ms(), _decode(row.value).past)
            if due is None or (row.due or due) <= due:
                continue
            with contextlib.suppress(Conflict):  # it has just been taken
                await self.journal.commit(
                    Put(SCHEDULES, name, row.value, due=due, expected=row.version)
                )
                self.wake_at(due)

    def last_at(self, kind: str) -> int | None:
        return self._last.get(kind)

    async def on_due(self, row: Row) -> None:
        """Take the time, durably, then run the job: once for all the times that were missed."""
        if row.key not in self._plans:
            await self._drop(row)
            return
        entry, schedule = self._plans[row.key]
        now = self.clock.now_ms()
        before = _decode(row.value)
        going = (*before.going, now)
        past = (*before.past, row.due or now)[-REMEMBERED:] if isinstance(schedule, Cron) else ()
        kept = _Kept(entry.kind, entry.line, taken=now, ended=before.ended, going=going, past=past)
        due = _next(schedule, now, past)
        operations: list[Operation] = [
            Put(SCHEDULES, row.key, _encode(kept), due=due, expected=row.version)
        ]
        if entry.kind == CRON:
            operations.append(self.tell(entry.kind, entry.name, status="started", duration_ms=0))
        try:
            await self.journal.commit(*operations)
        except Conflict:
            return  # another process took it
        self._last[entry.kind] = now
        if due is not None:
            self.wake_at(due)
        self._go(row.key, entry.kind, now)

    async def stop(self) -> None:
        await self._tasks.stop()

    def _go(self, name: str, kind: str, taken: int) -> None:
        self._tasks.start(self._do(name, kind, taken), name=f"schedule {name}")

    async def _do(self, name: str, kind: str, taken: int) -> None:
        entry, _ = self._plans[name]
        started = self.clock.monotonic()

        def took_ms() -> int:
            return int((self.clock.monotonic() - started) * 1000)

        async def waits(text: str) -> None:
            told = self.tell(
                entry.kind, entry.name, status="pending", duration_ms=took_ms(), text=text
            )
            await self.journal.commit(told)

        try:
            why = await entry.job(f"{kind}_{name}_{taken}", waits=waits)
        except ToolgateError as failed:
            log.warning("schedule_failed name=%s error=%s", name, failed)
            why = str(failed)
        except Exception:
            log.exception("schedule_crashed name=%s", name)
            why = "the job broke; the server's log has why"
        status = "failed" if why else "succeeded"
        told = self.tell(entry.kind, entry.name, status=status, duration_ms=took_ms(), text=why)
        await self._ended(name, taken, told)

    async def _ended(self, name: str, taken: int, told: Operation) -> None:
        """Write a job's end, and retry if the row has changed: the next time may have been taken."""
        while True:
            try:
                await self._write_end(name, taken, told)
            except Conflict:
                continue
            except Unavailable as full:  # else it would go on at the next start, as if not done
                log.warning("schedule_end_unwritten name=%s error=%s", name, full)
                await asyncio.sleep(RETRY_S)
                continue
            return

    async def _write_end(self, name: str, taken: int, told: Operation) -> None:
        row = await self.journal.get(SCHEDULES, name)
        if row is None:
            await self.journal.commit(told)
            return
        kept = _decode(row.value)
        going = tuple(one for one in kept.going if one != taken)
        ended = kept.ended if going else kept.taken
        kept = msgspec.structs.replace(kept, ended=ended, going=going)
        put = Put(SCHEDULES, name, _encode(kept), due=row.due, expected=row.version)
        await self.journal.commit(put, told)


def _next(schedule: Schedule, now: int, past: Sequence[int]) -> int | None:
    """The next time that was not taken: a clock that was set back comes by the others once more."""
    due = schedule.next_after(now)
    while due is not None and due in past:
        due = schedule.next_after(due)
    return due
