"""A batch of commits as one statement: what must hold, and what is written.

A batch is first tried on assumptions: each row is at the version that its commit expects, each stream at the
number, no fence is higher. The database checks them. If one does not hold, or the commits of a batch
contradict each other, the states are read (`Known`), each commit is decided alone, and the batch is tried again.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar, assert_never

from toolgate.core.errors import Conflict, Fenced
from toolgate.journal.batching import Forget, NewEpoch
from toolgate.journal.journal import (
    Append,
    Check,
    Delete,
    Fence,
    Operation,
    Overwrite,
    Put,
)

RowKey = tuple[str, str]
K = TypeVar("K")
V = TypeVar("V")


class Known(NamedTuple):
    """The states that the commits of a batch depend on; what is not there has none."""

    streams: Mapping[str, int]  # last numbers
    versions: Mapping[RowKey, int]
    epochs: Mapping[str, int]


class Unsure(Exception):
    """The commits of a batch contradict each other, if the assumptions hold."""


class Placed(NamedTuple):
    """An event of the batch: `offset` counts from the last number of its stream before the batch."""

    stream: str
    offset: int
    type: str
    subject: str
    data: bytes


class _Stream(NamedTuple):
    added: int
    before: int | None  # the last number before the batch, if known or assumed
    is_checked: bool


class _Row(NamedTuple):
    before: int | None  # the version before the batch, if known or assumed
    is_checked: bool
    is_deleted: bool  # before what is written
    added: int  # to the version; 0 where nothing is written
    value: bytes
    due: int | None

    @property
    def version(self) -> int | None:
        if self.is_deleted:
            return self.added
        return None if self.before is None else self.before + self.added


class _Fence(NamedTuple):
    least: int  # the highest epoch that may stand before the batch
    epoch: int


_NEW_STREAM: Final = _Stream(0, None, is_checked=False)
_NEW_ROW: Final = _Row(None, is_checked=False, is_deleted=False, added=0, value=b"", due=None)


class Draft:
    def __init__(self, known: Known | None = None) -> None:
        self._known = known
        self._streams: dict[str, _Stream] = {}
        self._rows: dict[RowKey, _Row] = {}
        self._fences: dict[str, _Fence] = {}
        self._events: list[Placed] = []
        self._changed: list[tuple[dict[Any, Any], Any, Any]] = []

    def add(self, operations: Sequence[Operation | Forget | NewEpoch]) -> list[int]:
        """Add a commit; return the places of its events in the batch.

        Raises Conflict or Fenced, and adds nothing, if it does not hold; Unsure if only the database can tell.
        """
        self._changed.clear()
        begun = len(self._events)
        try:
            for operation in operations:
                self._add(operation)
        except Conflict as refused:
            if self._known is None:
                raise Unsure from refused
            for kind, key, before in reversed(self._changed):
                if before is None:
                    del kind[key]
                else:
                    kind[key] = before
            del self._events[begun:]
            raise
        return list(range(begun, len(self._events)))

    @property
    def streams(self) -> list[str]:
        return list(self._streams)

    @property
    def events(self) -> Sequence[Placed]:
        return self._events

    def values(self) -> list[object]:
        """The arguments of `commit_v1` from the streams on."""
        streams, events = self._streams.values(), self._events
        checked = [(key, row) for key, row in self._rows.items() if row.is_checked]
        deleted = [key for key, row in self._rows.items() if row.is_deleted]
        written = [(key, row) for key, row in self._rows.items() if row.added]
        return [
            list(self._streams),
            [stream.added for stream in streams],
            [stream.before if stream.is_checked else None for stream in streams],
            [event.stream for event in events],
            [event.offset for event in events],
            [event.type for event in events],
            [event.subject for event in events],
            [event.data for event in events],
            [key[0] for key, _ in checked],
            [key[1] for key, _ in checked],
            [row.before for _, row in checked],
            [key[0] for key in deleted],
            [key[1] for key in deleted],
            [key[0] for key, _ in written],
            [key[1] for key, _ in written],
            [row.value for _, row in written],
            [row.due for _, row in written],
            [row.added for _, row in written],
            list(self._fences),
            [fence.least for fence in self._fences.values()],
            [fence.epoch for fence in self._fences.values()],
        ]

    def _add(self, operation: Operation | Forget | NewEpoch) -> None:
        match operation:
            case Append():
                self._append(operation)
            case Put(collection, key, value, expected, due):
                row = self._expect((collection, key), expected)
                self._write((collection, key), row, value, due)
            case Overwrite(collection, key, value, due):
                self._write((collection, key), self._row((collection, key)), value, due)
            case Delete(collection, key, expected):
                row = self._row((collection, key))
                if expected is not None:
                    row = self._expect((collection, key), expected)
                row = row._replace(is_deleted=True, added=0, value=b"", due=None)
                self._change(self._rows, (collection, key), row)
            case Check(collection, key, version):
                self._expect((collection, key), version)
            case Fence(name, epoch):
                self._fence(name, epoch)
            case Forget() | NewEpoch():
                raise AssertionError("the database has functions of its own for these")
            case _:
                assert_never(operation)

    def _append(self, append: Append) -> None:
        name = append.stream
        stream = self._streams.get(name, _NEW_STREAM)
        if stream.before is None and self._known is not None:
            stream = stream._replace(before=self._known.streams.get(name, 0))
        if append.expected_seq is not None:
            if stream.before is None:
                if stream.added:
                    raise Unsure
                stream = stream._replace(before=append.expected_seq)
            last = stream.added + (stream.before or 0)
            if last != append.expected_seq:
                raise Conflict(f"{name} is at {last}, not at {append.expected_seq}")
            stream = stream._replace(is_checked=True)
        offset = stream.added
        for kind, data, subject in append.events:
            offset += 1
            self._events.append(Placed(name, offset, kind, subject, data))
        self._change(self._streams, name, stream._replace(added=offset))

    def _row(self, key: RowKey) -> _Row:
        row = self._rows.get(key, _NEW_ROW)
        if row.before is None and self._known is not None:
            row = row._replace(before=self._known.versions.get(key, 0))
        return row

    def _expect(self, key: RowKey, version: int) -> _Row:
        row = self._row(key)
        if row.version is None:
            if row.added:
                raise Unsure
            row = row._replace(before=version)
        if row.version != version:
            raise Conflict(f"{key[0]}/{key[1]} is at version {row.version}, not at {version}")
        row = row._replace(is_checked=row.before is not None)
        self._change(self._rows, key, row)
        return row

    def _write(self, key: RowKey, row: _Row, value: bytes, due: int | None) -> None:
        row = row._replace(added=row.added + 1, value=value, due=due)
        self._change(self._rows, key, row)

    def _fence(self, name: str, epoch: int) -> None:
        fence = self._fences.get(name)
        if fence is None:
            held = 0 if self._known is None else self._known.epochs.get(name, 0)
            fence = _Fence(epoch, held)
        if epoch < fence.epoch:
            raise Fenced(name, held=fence.epoch, offered=epoch)
        self._change(self._fences, name, fence._replace(epoch=epoch))

    def _change(self, kind: dict[K, V], key: K, value: V) -> None:
        self._changed.append((kind, key, kind.get(key)))
        kind[key] = value


def touched(
    commits: Sequence[Sequence[Operation | Forget | NewEpoch]],
) -> tuple[list[str], list[RowKey], list[str]]:
    """The streams, rows and fences that commits depend on."""
    streams: dict[str, None] = {}
    rows: dict[RowKey, None] = {}
    fences: dict[str, None] = {}
    for operations in commits:
        for operation in operations:
            match operation:
                case Append(stream):
                    streams[stream] = None
                case Fence(name):
                    fences[name] = None
                case Put() | Overwrite() | Delete() | Check():
                    rows[operation.collection, operation.key] = None
                case _:
                    pass
    return list(streams), list(rows), list(fences)
