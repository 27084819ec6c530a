"""Where commands stand: those in flight, those that wait for a person or a run, those that ended.

A command that waits is a sealed row. It is gone on with when what it waits for may be there: its
approval was decided or has expired, its run has moved, somebody asks for it, or we start again.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from toolgate.access.devices import Identity
from toolgate.commands.idempotency import UNFINISHED_KEPT_MS
from toolgate.commands.plans import Waiting
from toolgate.commands.reading import Entered
from toolgate.contracts import gateway_v1 as wire
from toolgate.core.clock import Clock
from toolgate.core.enums import CommandKind
from toolgate.core.errors import Conflict, NotFound, ToolgateError
from toolgate.journal.bus import Bus
from toolgate.journal.journal import Delete, Event, Journal, Operation, Overwrite, Put, Row
from toolgate.secrets.seal import Seal
from toolgate.tools.outcomes import APPROVALS

log = logging.getLogger(__name__)

OPEN: Final = "open_commands"  # those that wait for a person or for a run
STATES: Final = "commands"  # what GET /command/{requestId} answers
STATE_KEPT_MS: Final = 24 * 3600 * 1000  # once it has ended
RETRY_MS: Final = 30_000  # after a command that waits could not be gone on with
_DONE: Final = wire.CommandStatus.DONE
_PENDING: Final = wire.CommandStatus.PENDING


class OpenCommand(msgspec.Struct, frozen=True):
    """What is kept, sealed, of a command that waits."""

    kind: CommandKind
    who: str
    raw: bytes
    command_id: str
    request_id: str
    key: str
    request_hash: str
    trace_id: str
    at: int
    approval_id: str
    run_id: str
    ran: bytes = b""  # the answer's data, where the rest may not run any more


class State(msgspec.Struct, frozen=True):
    command_id: str
    status: wire.CommandStatus
    approval_id: str = ""
    run_id: str = ""
    body: bytes = b""


class _Decided(msgspec.Struct, frozen=True):
    """Of what an event of the approvals' stream says."""

    approval_id: str


_pack: Final = msgspec.msgpack.Encoder().encode
_unpack_open: Final = msgspec.msgpack.Decoder(OpenCommand).decode
_unpack_state: Final = msgspec.msgpack.Decoder(State).decode
_decode_decided: Final = msgspec.json.Decoder(_Decided).decode
_decode_answer: Final = msgspec.json.Decoder(wire.Answer).decode

Resume = Callable[[OpenCommand], Awaitable[None]]


@dataclass(slots=True)
class States:
    journal: Journal
    bus: Bus
    clock: Clock
    seal: Seal
    in_flight: dict[str, tuple[CommandKind, wire.InFlight]] = field(default_factory=dict)
    _ends: dict[str, asyncio.Event] = field(default_factory=dict)  # command id: it moved
    _by_request: dict[tuple[str, str], str] = field(default_factory=dict)
    _wanted: dict[str, str] = field(default_factory=dict)  # run or approval: who waits for it
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _going_on: set[str] = field(default_factory=set)
    _again: set[str] = field(default_factory=set)  # called for while they were being looked at
    _resume: Resume | None = None

    async def load(self, resume: Resume) -> None:
        """Take up the commands that waited when the last process ended."""
        self._resume = resume
        self.bus.subscribe(None, self._hear)
        async for waiting in self.open():
            self._want(waiting)
            self.go_on_soon(waiting.command_id)

    async def open(self) -> AsyncIterator[OpenCommand]:
        after = ""
        while rows := await self.journal.scan(OPEN, after=after):
            for row in rows:
                yield _unpack_open(self.seal.open(row.value))
            after = rows[-1].key

    async def stop(self) -> None:
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def enter(self, entered: Entered, name: str, run_id: str) -> None:
        flight = wire.InFlight(
            request_id=entered.request_id,
            name=name,
            started_at=entered.at,
            device_id=entered.identity.name,
            run_id=run_id or msgspec.UNSET,
        )
        self.in_flight[entered.command_id] = (entered.kind, flight)
        self._by_request[entered.identity.name, entered.request_id] = entered.command_id

    def leave(self, entered: Entered) -> None:
        self.in_flight.pop(entered.command_id, None)
        name = (entered.identity.name, entered.request_id)
        if self._by_request.get(name) == entered.command_id:  # not a later one's of that name
            del self._by_request[name]
        self._tell_end(entered.command_id)
        self._go_on_again(entered.command_id)

    def wait(self, entered: Entered, waiting: Waiting, *, due: int | None) -> Sequence[Operation]:
        """The rows of a command that waits from now on."""
        kept = OpenCommand(
            kind=entered.kind,
            who=entered.identity.name,
            raw=entered.raw,
            command_id=entered.command_id,
            request_id=entered.request_id,
            key=entered.key,
            request_hash=entered.request_hash,
            trace_id=entered.trace_id,
            at=entered.at,
            approval_id=waiting.approval_id,
            run_id=waiting.run_id,
            ran=waiting.ran,
        )
        self._want(kept)
        state = State(entered.command_id, _PENDING, waiting.approval_id, waiting.run_id)
        return (
            Overwrite(OPEN, entered.command_id, self.seal.close(_pack(kept)), due=due),
            self._row(entered, state),
        )

    def drop(self, entered: Entered) -> Sequence[Operation]:
        """Of one that is open and is not to be gone on with."""
        key = _state_key(entered.identity.name, entered.request_id)
        return (Delete(OPEN, entered.command_id), Delete(STATES, key))

    def end(self, entered: Entered, body: bytes, *, waited: bool) -> Sequence[Operation]:
        """The rows of a command that has ended: of one that anybody can ask for by its name."""
        if not (entered.named or waited):
            return ()
        row = self._row(entered, State(entered.command_id, _DONE, body=body))
        return (row, Delete(OPEN, entered.command_id)) if waited else (row,)

    def interrupted(self, who: str, request_id: str, body: bytes) -> Operation:
        """The row of one that ended with the last process, and of which only the names are left."""
        return self._put(who, request_id, State("", _DONE, body=body))

    async def waiting(self, command_id: str) -> OpenCommand | None:
        row = await self.journal.get(OPEN, command_id)
        return None if row is None else _unpack_open(self.seal.open(row.value))

    async def state(self, identity: Identity, request_id: str, *, wait: float) -> wire.CommandState:
        """Where a command of this caller stands, waiting so many seconds for its end."""
        ends_at = self.clock.monotonic() + wait
        tried = False
        while True:
            before = self._by_request.get((identity.name, request_id))
            found = await self.known_state(identity.name, request_id)
            running = self._by_request.get((identity.name, request_id))
            if running != before:  # it began or ended while its row was read
                continue
            if found is None and running is None:
                raise NotFound("command", request_id)
            command_id = running or (found.command_id if found is not None else "")
            waits = running is None and found is not None and found.status is not _DONE
            if waits and not tried:
                self.go_on_soon(command_id)
                tried = True
            left = ends_at - self.clock.monotonic()
            if (found is not None and found.status is _DONE and running is None) or left <= 0:
                return _told(request_id, found, running=running is not None)
            moved = self._ends.setdefault(command_id, asyncio.Event())
            try:
                async with asyncio.timeout(left):
                    await moved.wait()
            except TimeoutError:
                continue

    async def known_state(self, who: str, request_id: str) -> State | None:
        row = await self.journal.get(STATES, _state_key(who, request_id))
        return None if row is None else _unpack_state(self.seal.open(row.value))

    def go_on_soon(self, command_id: str) -> None:
        self._again.add(command_id)
        self._go_on_again(command_id)

    def _go_on_again(self, command_id: str) -> None:
        """Unless it is being looked at: then once that is over, for it may have looked too soon."""
        busy = command_id in self._going_on or command_id in self.in_flight
        if command_id in self._again and not busy:
            self._again.discard(command_id)
            self._going_on.add(command_id)
            task = asyncio.create_task(self._go_on(command_id))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _go_on(self, command_id: str) -> None:
        """Try again a command that waits: what it waited for may be there."""
        assert self._resume is not None
        try:
            kept = await self.waiting(command_id)
            if kept is not None and command_id not in self.in_flight:
                await self._resume(kept)
            # Who read its row before the end, and began to wait after it, would wait for nothing.
            if command_id in self._ends and await self.waiting(command_id) is None:
                self._tell_end(command_id)
        except Exception:
            log.exception("command_not_resumed command_id=%s", command_id)
            await self.try_later(command_id)
        finally:
            self._going_on.discard(command_id)
        self._go_on_again(command_id)

    async def try_later(self, command_id: str) -> None:
        """Try again a command that waits, after a while."""
        try:
            row = await self.journal.get(OPEN, command_id)
            if row is not None:
                due = self.clock.now_ms() + RETRY_MS
                await self.journal.commit(Put(OPEN, row.key, row.value, row.version, due))
        except ToolgateError as failed:
            log.error("command_not_put_off command_id=%s error=%s", command_id, failed)

    def _tell_end(self, command_id: str) -> None:
        if (moved := self._ends.pop(command_id, None)) is not None:
            moved.set()

    async def on_open_due(self, row: Row) -> None:
        """An approval's time is over, or it is to be tried again: the pipeline says what follows."""
        try:
            await self.journal.commit(Put(OPEN, row.key, row.value, expected=row.version))
        except Conflict:
            return  # it has ended, or waits for something else
        self.go_on_soon(row.key)

    async def on_state_due(self, row: Row) -> None:
        with contextlib.suppress(Conflict):  # a later command of that name has been written since
            await self.journal.commit(Delete(row.collection, row.key, expected=row.version))

    def forget(self, command_id: str) -> None:
        """It waits no more."""
        if self._wanted:
            gone = [name for name, who in self._wanted.items() if who == command_id]
            for name in gone:
                del self._wanted[name]

    def _hear(self, events: Sequence[Event]) -> None:
        if not self._wanted:
            return
        for event in events:
            decided = event.stream == APPROVALS
            name = _decode_decided(event.data).approval_id if decided else event.subject
            command_id = self._wanted.get(name)
            if command_id is not None and not event.stream.startswith("session/"):
                self.go_on_soon(command_id)

    def _want(self, kept: OpenCommand) -> None:
        for name in (kept.approval_id, kept.run_id):
            if name:
                self._wanted[name] = kept.command_id

    def _row(self, entered: Entered, state: State) -> Overwrite:
        return self._put(entered.identity.name, entered.request_id, state)

    def _put(self, who: str, request_id: str, state: State) -> Overwrite:
        due = self.clock.now_ms() + (STATE_KEPT_MS if state.status is _DONE else UNFINISHED_KEPT_MS)
        return Overwrite(
            STATES, _state_key(who, request_id), self.seal.close(_pack(state)), due=due
        )


def _state_key(who: str, request_id: str) -> str:
    return f"{who}\n{request_id}"


def _told(request_id: str, state: State | None, *, running: bool) -> wire.CommandState:
    if state is None or running:
        return wire.CommandState(status=wire.CommandStatus.RUNNING, request_id=request_id)
    status = state.status
    if status is _PENDING and not state.approval_id:
        status = wire.CommandStatus.RUNNING
    return wire.CommandState(
        status=status,
        request_id=request_id,
        approval_id=state.approval_id or msgspec.UNSET,
        run_id=state.run_id or msgspec.UNSET,
        answer=_decode_answer(state.body) if state.status is _DONE else msgspec.UNSET,
    )
