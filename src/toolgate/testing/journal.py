"""A journal in memory, with the semantics of the real ones and none of their durability."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import TypeVar, assert_never

from toolgate.core.clock import Clock
from toolgate.core.errors import Conflict, Fenced
from toolgate.journal.bus import Bus
from toolgate.journal.journal import (
    Append,
    Check,
    Delete,
    Event,
    Fence,
    Head,
    Operation,
    Overwrite,
    Put,
    Row,
)

T = TypeVar("T")


@dataclass(slots=True)
class _State:
    events: list[Event] = field(default_factory=list)
    position: int = 0
    heads: dict[str, Head] = field(default_factory=dict)
    rows: dict[tuple[str, str], Row] = field(default_factory=dict)
    fences: dict[str, int] = field(default_factory=dict)

    def copy(self) -> "_State":
        return _State(
            self.events.copy(),
            self.position,
            self.heads.copy(),
            self.rows.copy(),
            self.fences.copy(),
        )


class MemoryJournal:
    """Written for plainness: a commit works on a copy of everything, and takes its place."""

    def __init__(self, *, clock: Clock, bus: Bus, vouches_since: str = "ep_memory") -> None:
        self._clock = clock
        self.bus = bus
        self._state = _State()
        self._vouches_since = vouches_since

    @property
    def fault(self) -> str:
        return ""

    @property
    def vouches_since(self) -> str:
        return self._vouches_since

    async def close(self) -> None:
        """Nothing to let go of."""

    async def commit(self, *operations: Operation, durable: bool = True) -> list[Event]:
        state = self._state.copy()
        known = len(state.events)
        for operation in operations:
            _apply(state, operation, now=self._clock.now_ms())
        self._state = state
        committed = state.events[known:]
        if committed:
            self.bus.publish(committed)
        return committed

    async def read(
        self, stream: str, *, after: int = 0, limit: int = 1000, subject: str = ""
    ) -> list[Event]:
        return _first(limit, (e for e in self._of(stream, subject) if e.seq > after))

    async def read_back(
        self, stream: str, *, before: int | None = None, limit: int = 1000, subject: str = ""
    ) -> list[Event]:
        newest_first = reversed(self._of(stream, subject))
        return _first(limit, (e for e in newest_first if before is None or e.seq < before))

    async def read_all(self, *, after: int = 0, limit: int = 1000) -> list[Event]:
        return _first(limit, (e for e in self._state.events if e.position > after))

    async def head(self, stream: str) -> Head:
        return self._state.heads.get(stream, Head(first=1, last=0))

    async def last_position(self) -> int:
        return self._state.position

    async def get(self, collection: str, key: str) -> Row | None:
        return self._state.rows.get((collection, key))

    async def scan(
        self, collection: str, *, after: str = "", limit: int = 1000, newest_first: bool = False
    ) -> list[Row]:
        rows = sorted(
            (row for row in self._state.rows.values() if row.collection == collection),
            key=lambda row: row.key.encode(),
            reverse=newest_first,
        )
        bound = after.encode()
        if newest_first:
            return _first(limit, (r for r in rows if not after or r.key.encode() < bound))
        return _first(limit, (r for r in rows if r.key.encode() > bound))

    async def due(self, *, until: int, limit: int = 1000) -> list[Row]:
        waiting = [
            (r.due, r.collection, r.key, r) for r in self._state.rows.values() if r.due is not None
        ]
        waiting.sort(key=lambda entry: entry[:3])
        return _first(limit, (entry[3] for entry in waiting if entry[0] <= until))

    async def next_due(self) -> int | None:
        return min((r.due for r in self._state.rows.values() if r.due is not None), default=None)

    async def epoch(self, name: str) -> int:
        return self._state.fences.get(name, 0)

    async def forget(self, stream: str, *, through: int) -> None:
        head = await self.head(stream)
        through = min(through, head.last)
        if through >= head.first:
            self._state.heads[stream] = replace(head, first=through + 1)
            self._state.events = [
                e for e in self._state.events if e.stream != stream or e.seq > through
            ]

    def _of(self, stream: str, subject: str) -> list[Event]:
        return [e for e in self._state.events if e.stream == stream and subject in ("", e.subject)]


def _first(limit: int, found: Iterable[T]) -> list[T]:
    return [one for _, one in zip(range(limit), found, strict=False)]


def _apply(state: _State, operation: Operation, *, now: int) -> None:
    match operation:
        case Append(stream, events):
            head = state.heads.get(stream, Head(first=1, last=0))
            if operation.expected_seq is not None and operation.expected_seq != head.last:
                raise Conflict(f"{stream} is at {head.last}, not at {operation.expected_seq}")
            for seq, new in enumerate(events, head.last + 1):
                state.position += 1
                state.events.append(
                    Event(state.position, stream, seq, new.type, now, new.data, new.subject)
                )
            if events:
                state.heads[stream] = replace(head, last=head.last + len(events))
        case Put(collection, key, value, expected, due):
            version = _expected_version(state, operation, expected)
            state.rows[collection, key] = Row(collection, key, version + 1, value, due)
        case Overwrite(collection, key, value, due):
            version = _expected_version(state, operation, None)
            state.rows[collection, key] = Row(collection, key, version + 1, value, due)
        case Delete(collection, key):
            _expected_version(state, operation, operation.expected)
            state.rows.pop((collection, key), None)
        case Check():
            _expected_version(state, operation, operation.version)
        case Fence(name, epoch):
            held = state.fences.get(name, 0)
            if epoch < held:
                raise Fenced(name, held=held, offered=epoch)
            if epoch > held:
                state.fences[name] = epoch
        case _:
            assert_never(operation)


def _expected_version(
    state: _State, operation: Put | Overwrite | Delete | Check, expected: int | None
) -> int:
    row = state.rows.get((operation.collection, operation.key))
    version = 0 if row is None else row.version
    if expected is not None and expected != version:
        raise Conflict(
            f"{operation.collection}/{operation.key} is at version {version}, not at {expected}"
        )
    return version
