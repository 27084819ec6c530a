"""Commands in this process: the keys they hold, which of them run, and which wait to be resumed.

A command that waits is a row and not a task. It is resumed when what it waits for may be there: its
approval was decided or has expired, its run has moved, a caller asks for it, or the node starts.
"""

import asyncio
import contextlib
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import msgspec

from toolgate.access.devices import Identity
from toolgate.access.refusals import KeyConflict
from toolgate.commands.answers import Reply
from toolgate.commands.plans import Command, NotAdmitted, Waiting, row_key, slot_of
from toolgate.commands.records import ENDED, ENDED_KEPT_MS, KEYS, OPEN, EndedCommand, Rows
from toolgate.contracts import gateway_v1 as wire
from toolgate.core.clock import Clock
from toolgate.core.enums import CommandKind
from toolgate.core.errors import Conflict, NotFound, ToolgateError
from toolgate.journal.bus import Bus
from toolgate.journal.journal import Delete, Event, Journal, Operation, Put, Row
from toolgate.journal.paging import all_rows
from toolgate.tools.outcomes import APPROVALS, DECIDED, EXPIRED

log = logging.getLogger(__name__)

REMEMBERED_KEYS: Final = 20_000  # answers kept in memory; the journal has the others
REMEMBERED_BODY: Final = 16 * 1024  # bytes of an answer that memory keeps
RETRY_MS: Final = 30_000  # after a command could not be resumed


class KeyLock:
    """An idempotency key that a command of this process holds while it runs."""

    def __init__(self, slot: str, request_hash: str, version: int) -> None:
        self.slot = slot
        self.request_hash = request_hash
        self.version = version  # of the key's row, which the command's begin writes
        self.released: asyncio.Future[EndedCommand | None] = (
            asyncio.get_running_loop().create_future()
        )


@dataclass(slots=True)
class Keys:
    """Idempotency keys by their slots (`slot_of`)."""

    journal: Journal
    clock: Clock
    rows: Rows
    _recent: OrderedDict[str, EndedCommand] = field(default_factory=OrderedDict)
    _locks: dict[str, KeyLock] = field(default_factory=dict)
    # The version of each key's row, so that a new key costs no read; 0 if it must be looked up.
    _versions: dict[str, int] = field(default_factory=dict)

    async def load(self) -> None:
        self._versions.update(
            [(row.key, row.version) async for row in all_rows(self.journal, KEYS)]
        )

    def is_locked(self, slot: str) -> bool:
        return slot in self._locks

    async def find(self, command: Command) -> EndedCommand | Row | None:
        """The answer of the command that has this key, or its open row; None if the key is free.

        Waits while that command runs here. Raises KeyConflict if it was another request.
        """
        slot = command.slot
        while True:
            lock = self._locks.get(slot)
            if lock is not None:
                self._check(command, lock.request_hash)
                answer = await asyncio.shield(lock.released)
                if answer is None:
                    continue
                return answer
            recent = self._recent.get(slot)
            if recent is not None and self.clock.now_ms() < recent.key_expires_at:
                self._check(command, recent.request_hash)
                return recent
            if slot not in self._versions:
                return None
            found = await self._look_up(command)
            if slot not in self._locks:
                return found

    async def _look_up(self, command: Command) -> EndedCommand | Row | None:
        slot = command.slot
        row = await self.journal.get(KEYS, slot)
        if row is None:
            self._versions.pop(slot, None)
            return None
        self._versions[slot] = row.version
        key = row.value.decode()
        opened = await self.journal.get(OPEN, key)
        if opened is None:
            ended_row = await self.journal.get(ENDED, key)
            ended = None if ended_row is None else self.rows.read_ended(ended_row)
            if ended is None or ended.key_expires_at <= self.clock.now_ms():
                return None
            self._check(command, ended.request_hash)
            return ended
        self._check(command, self.rows.read_open(opened).request_hash)
        return opened

    def _check(self, command: Command, request_hash: str) -> None:
        if request_hash != command.request_hash and request_hash != command.whole_hash:
            raise KeyConflict

    def lock(self, command: Command) -> KeyLock:
        """Hold a key that nothing holds."""
        slot = command.slot
        assert slot not in self._locks
        lock = KeyLock(slot, command.request_hash, self._versions.get(slot, 0))
        self._locks[slot] = lock
        return lock

    def note_written(self, lock: KeyLock) -> None:
        """Note that the key's row was written with the lock's command."""
        self._versions[lock.slot] = lock.version + 1

    def note_unknown(self, lock: KeyLock) -> None:
        """Note that the key's row may have been written: the next command reads it."""
        self._versions[lock.slot] = 0

    def release(self, lock: KeyLock, ended: EndedCommand | None) -> None:
        """Release the key and give the answer, if there is one, to the requests that wait for it."""
        if self._locks.get(lock.slot) is lock:
            del self._locks[lock.slot]
        if ended is not None and len(ended.body) <= REMEMBERED_BODY:
            self._recent[lock.slot] = ended
            self._recent.move_to_end(lock.slot)
            while len(self._recent) > REMEMBERED_KEYS:
                self._recent.popitem(last=False)
        else:
            self._recent.pop(lock.slot, None)
        if not lock.released.done():
            lock.released.set_result(ended)

    async def on_ended_due(self, row: Row) -> None:
        """Free the key of an ended command, and later delete its row."""
        ended = self.rows.read_ended(row)
        forget_at = ended.ended_at + ENDED_KEPT_MS
        is_over = ended.is_unnamed or self.clock.now_ms() >= forget_at
        writes: list[Operation] = [
            Delete(ENDED, row.key, expected=row.version)
            if is_over
            else Put(ENDED, row.key, row.value, expected=row.version, due=forget_at)
        ]
        slot = slot_of(row.key.partition("\n")[0], ended.key)
        use = await self.journal.get(KEYS, slot) if ended.key else None
        frees = use is not None and use.value.decode() == row.key and slot not in self._locks
        if use is not None and frees:
            writes.append(Delete(KEYS, slot, expected=use.version))
        with contextlib.suppress(Conflict):  # the key was used again meanwhile
            await self.journal.commit(*writes)
            if frees and slot not in self._locks:
                self._versions.pop(slot, None)
                self._recent.pop(slot, None)


class _Decided(msgspec.Struct, frozen=True):
    """The member that is read of an event about an approval."""

    approval_id: str


_decode_decided: Final = msgspec.json.Decoder(_Decided).decode
_decode_answer: Final = msgspec.json.Decoder(wire.Answer).decode

Resume = Callable[[Row], Awaitable[Reply | None]]


@dataclass(slots=True)
class States:
    """The commands that run here, and those that wait; each by the key of its row."""

    journal: Journal
    bus: Bus
    clock: Clock
    rows: Rows
    in_flight: dict[str, tuple[CommandKind, wire.InFlight]] = field(default_factory=dict)
    _moved: dict[str, asyncio.Event] = field(default_factory=dict)  # set when it ends or waits
    _by_request: dict[tuple[str, str], str] = field(default_factory=dict)
    _wanted: dict[str, str] = field(default_factory=dict)  # run or approval: which waits for it
    _resuming: dict[str, asyncio.Task[Reply | None]] = field(default_factory=dict)
    _again: set[str] = field(default_factory=set)  # to be resumed when the present run is over
    _resume: Resume | None = None

    async def load(self, resume: Resume) -> None:
        """Resume the commands that this node left open when it was stopped."""
        self._resume = resume
        self.bus.subscribe(None, self._on_events)
        async for row in all_rows(self.journal, OPEN):
            opened = self.rows.read_open(row)
            if self.rows.owner.is_same_node(opened.owner):
                self.watch(row.key, Waiting(opened.approval_id, opened.run_id))
                self.resume_soon(row.key)

    async def stop(self) -> None:
        tasks = tuple(self._resuming.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def enter(self, command: Command, name: str, run_id: str) -> None:
        flight = wire.InFlight(
            request_id=command.request_id,
            name=name,
            started_at=command.at,
            device_id=command.who,
            run_id=run_id or msgspec.UNSET,
        )
        self.in_flight[command.row_key] = (command.kind, flight)
        self._by_request[command.who, command.request_id] = command.row_key

    def leave(self, command: Command) -> None:
        key = command.row_key
        self.in_flight.pop(key, None)
        name = (command.who, command.request_id)
        if self._by_request.get(name) == key:  # not a later command of that request id
            del self._by_request[name]
        self._wake(key)
        self._resume_again(key)

    def watch(self, key: str, waiting: Waiting) -> None:
        """Resume a command when its approval is decided or its run moves."""
        for name in (waiting.approval_id, waiting.run_id):
            if name:
                self._wanted[name] = key

    def unwatch(self, key: str) -> None:
        gone = [name for name, waits in self._wanted.items() if waits == key]
        for name in gone:
            del self._wanted[name]

    async def resume(self, key: str) -> Reply | None:
        """Continue an open command; None if it is not open, or runs. Equal requests share it."""
        task = self._resuming.get(key) or self._start_resuming(key)
        return await asyncio.shield(task)

    def resume_soon(self, key: str) -> None:
        """Resume a command in the background; once more if it runs: it may have read old state."""
        self._again.add(key)
        self._resume_again(key)

    def _resume_again(self, key: str) -> None:
        if key in self._again and key not in self._resuming and key not in self.in_flight:
            self._again.discard(key)
            self._start_resuming(key)

    def _start_resuming(self, key: str) -> asyncio.Task[Reply | None]:
        task = self._resuming[key] = asyncio.create_task(self._resume_now(key))
        task.add_done_callback(partial(self._resumed, key))
        return task

    def _resumed(self, key: str, task: "asyncio.Task[Reply | None]") -> None:
        del self._resuming[key]
        if task.cancelled():
            return
        task.exception()  # it was logged; perhaps no caller waits for it
        self._wake(key)
        self._resume_again(key)

    async def _resume_now(self, key: str) -> Reply | None:
        assert self._resume is not None
        try:
            row = await self.journal.get(OPEN, key)
            if row is None:
                return None
            if row.due is not None and row.due <= self.clock.now_ms():
                row = msgspec.structs.replace(row, version=row.version + 1, due=None)
                await self.journal.commit(Put(OPEN, key, row.value, row.version - 1))
            return await self._resume(row)
        except NotAdmitted as too_soon:
            log.info("command_waits command=%r reason=%s", key, too_soon)
            await self.try_later(key)
            raise
        except Exception:
            log.exception("command_not_resumed command=%r", key)
            await self.try_later(key)
            raise

    async def try_later(self, key: str) -> None:
        """Resume an open command after a while."""
        try:
            row = await self.journal.get(OPEN, key)
            if row is not None:
                due = self.clock.now_ms() + RETRY_MS
                await self.journal.commit(Put(OPEN, key, row.value, row.version, due))
        except ToolgateError as failed:
            log.error("command_not_put_off command=%r error=%s", key, failed)

    async def on_open_due(self, row: Row) -> None:
        """Resume a command whose approval has expired, or that is to be tried again."""
        task = self._resuming.get(row.key)
        if task is None:
            self.resume_soon(row.key)
        else:
            await asyncio.wait([task])

    async def state(self, identity: Identity, request_id: str, *, wait: float) -> wire.CommandState:
        """The state of a caller's command, after at most so many seconds to wait for its end."""
        ends_at = self.clock.monotonic() + wait
        name = (identity.name, request_id)
        tried = False
        while True:
            before = self._by_request.get(name)
            found = await self._find(*name)
            running = self._by_request.get(name)
            if running != before:  # it began or ended while its row was read
                continue
            if found is None and running is None:
                raise NotFound("command", request_id)
            is_over = running is None and found is not None and found.collection == ENDED
            key = running or (found.key if found is not None else "")
            if running is None and not is_over and not tried:
                self.resume_soon(key)
                tried = True
            left = ends_at - self.clock.monotonic()
            if is_over or left <= 0:
                return self._state(request_id, None if running is not None else found)
            moved = self._moved.setdefault(key, asyncio.Event())
            try:
                async with asyncio.timeout(left):
                    await moved.wait()
            except TimeoutError:
                continue

    async def _find(self, who: str, request_id: str) -> Row | None:
        """The row of the newest command of a request id."""
        start = row_key(who, request_id, "")
        after = f"{start}\x7f"  # past every command's id
        found: list[Row] = []
        for collection in (OPEN, ENDED):  # in this order: a command moves from the first
            rows = await self.journal.scan(collection, after=after, limit=1, newest_first=True)
            found += [row for row in rows if row.key.startswith(start)]
        return max(found, key=lambda row: (row.key, row.collection == ENDED), default=None)

    def _state(self, request_id: str, row: Row | None) -> wire.CommandState:
        """The state by the command's row; None while it runs."""
        if row is None:
            return wire.CommandState(status=wire.CommandStatus.RUNNING, request_id=request_id)
        if row.collection == ENDED:
            answer = _decode_answer(self.rows.read_ended(row).body)
            return wire.CommandState(
                status=wire.CommandStatus.DONE, request_id=request_id, answer=answer
            )
        opened = self.rows.read_open(row)
        pending = wire.CommandStatus.PENDING
        return wire.CommandState(
            status=pending if opened.approval_id else wire.CommandStatus.RUNNING,
            request_id=request_id,
            approval_id=opened.approval_id or msgspec.UNSET,
            run_id=opened.run_id or msgspec.UNSET,
        )

    def _wake(self, key: str) -> None:
        if (moved := self._moved.pop(key, None)) is not None:
            moved.set()

    def _on_events(self, events: Sequence[Event]) -> None:
        if not self._wanted:
            return
        for event in events:
            is_approval = event.stream == APPROVALS
            if is_approval and event.type not in (DECIDED, EXPIRED):
                continue  # asked
            name = _decode_decided(event.data).approval_id if is_approval else event.subject
            key = self._wanted.get(name)
            if key is not None and not event.stream.startswith("session/"):
                self.resume_soon(key)
