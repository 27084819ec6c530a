"""The journal: what happened, in order, and the rows that follow from it, in one commit.

An event belongs to one stream and has the next number in it; `position` counts over all streams.
A row is a document under (collection, key) that changes in the same commit as the events that
explain it: the state of a run, a deadline (`due`), an idempotency entry. Nothing here knows what
events or rows mean.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol


class NewEvent(
    NamedTuple
):  # as all that many are made of: a frozen dataclass takes four times as long
    type: str
    data: bytes  # JSON
    # The id of what it is about (a run, an action), whose events can be read alone. An id, not a
    # kind: a journal may find a subject's events by it first, in whatever streams they are.
    subject: str = ""


class Event(NamedTuple):
    position: int
    stream: str
    seq: int
    type: str
    at: int  # Unix ms
    data: bytes
    subject: str


class Row(NamedTuple):
    collection: str
    key: str
    version: int  # 1 when first put, one more with each change
    value: bytes
    due: int | None


class Append(NamedTuple):
    """Add events to a stream; with `expected_seq`, only if that is its last number."""

    stream: str
    events: Sequence[NewEvent]
    expected_seq: int | None = None


class Put(NamedTuple):
    """Write a row, only over the version `expected` (0: only where there is no such row)."""

    collection: str
    key: str
    value: bytes
    expected: int
    due: int | None = None


class Overwrite(NamedTuple):
    """Write a row over any version.

    Deprecated: for modules that do not keep the versions of their rows yet. A test lists them; new
    code uses `Put`.
    """

    collection: str
    key: str
    value: bytes
    due: int | None = None


class Delete(NamedTuple):
    """Remove a row; with `expected`, only that version (0: only where there is no such row).

    The next row of this key starts at version 1, so that a `Check` of the removed row may hold for
    the new one. Keep an empty row where that matters.
    """

    collection: str
    key: str
    expected: int | None = None


class Check(NamedTuple):
    """Let the commit through only if this row is at this version (0: there is no such row).

    Writes nothing: it repeats in the commit what its caller read before it.
    """

    collection: str
    key: str
    version: int


class Fence(NamedTuple):
    """Let the commit through only while no higher epoch has been seen under this name.

    A higher epoch than the stored one takes over: from then on the lower ones are refused.
    """

    name: str
    epoch: int


Operation = Append | Put | Overwrite | Delete | Check | Fence


@dataclass(frozen=True, slots=True)
class StreamSummary:
    """Each transaction that adds events to `of` adds one event to `into` that is made from them."""

    of: str
    into: str
    make: Callable[[Sequence[Event]], NewEvent]


@dataclass(frozen=True, slots=True)
class Head:
    """The ends of a stream: `first` is the oldest kept, `last` the newest.

    Where nothing is kept `first` is `last + 1`; of a stream that never was, `last` is 0.
    """

    first: int
    last: int


class Journal(Protocol):
    async def commit(self, *operations: Operation, durable: bool = True) -> list[Event]:
        """Do all of it or none; return the events, numbered, once they are on disk.

        Raises Conflict where an expectation does not hold, Fenced where a fence does not, and
        Unavailable where the disk refuses. With `durable=False` the commit survives a killed
        process but perhaps not a power cut. The operations hold in their order, each seeing what
        those before it change. The bus is told before this returns. Cancelling the wait does not
        take the commit back.
        """
        ...

    async def read(
        self, stream: str, *, after: int = 0, limit: int = 1000, subject: str = ""
    ) -> list[Event]:
        """The events of a stream with a number above `after`, oldest first."""
        ...

    async def read_back(
        self, stream: str, *, before: int | None = None, limit: int = 1000, subject: str = ""
    ) -> list[Event]:
        """The events of a stream with a number below `before`, newest first."""
        ...

    async def read_all(self, *, after: int = 0, limit: int = 1000) -> list[Event]:
        """The events of every stream with a position above `after`, oldest first."""
        ...

    async def head(self, stream: str) -> Head: ...

    async def last_position(self) -> int: ...

    async def get(self, collection: str, key: str) -> Row | None: ...

    async def scan(
        self, collection: str, *, after: str = "", limit: int = 1000, newest_first: bool = False
    ) -> list[Row]:
        """Rows in the order of their keys, from just past `after` (before it, newest first)."""
        ...

    async def due(self, *, until: int, limit: int = 1000) -> list[Row]:
        """The rows whose `due` is at or before `until`, earliest first."""
        ...

    async def next_due(self) -> int | None: ...

    async def epoch(self, name: str) -> int:
        """The highest epoch a fence of this name has seen; 0 where none has."""
        ...

    async def forget(self, stream: str, *, through: int) -> None:
        """Drop a stream's events up to and including number `through` (retention)."""
        ...

    @property
    def fault(self) -> str:
        """The reason why commits are refused now; empty while they are accepted."""
        ...

    @property
    def vouches_since(self) -> str:
        """A name that changes when what was delivered before can no longer be vouched for."""
        ...
