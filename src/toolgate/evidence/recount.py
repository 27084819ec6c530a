"""Counts the audit rows again and compares them with the leaves that hold their hashes."""

from collections.abc import Iterator
from itertools import chain
from typing import Final

import msgspec

from toolgate.evidence.audit import LEAF, PRUNED, RowsHash
from toolgate.journal.journal import Event, Head

_MARKER: Final = f'"kind":"{LEAF}'.encode()  # of most records it is known without decoding


class _Fields(msgspec.Struct):
    digest: str = ""
    first: int = 0
    last: int = 0
    through: int = 0


class _Leaf(msgspec.Struct):
    kind: str
    fields: _Fields


_decode: Final = msgspec.json.Decoder(_Leaf).decode


class AuditRows:
    """The rows of a journal; give it every record, in order, then ask for `rest`.

    `head` was read before the records: a running Toolgate may have added rows since.
    """

    def __init__(self, rows: Iterator[Event], head: Head) -> None:
        self._rows = rows
        self._head = head
        self._covered = 0
        self._gone: list[tuple[int, int]] = []  # of whole leaves, first and last
        self._pruned = 0  # up to here retention has removed them, says a record
        self.counted = 0

    def compare(self, record: bytes) -> list[str]:
        """The things that are wrong with the rows of this record; most records have none."""
        if _MARKER not in record:
            return []
        try:
            leaf = _decode(record)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return []
        if leaf.kind == PRUNED:
            self._pruned = max(self._pruned, leaf.fields.through)
        return self._recount(leaf.fields) if leaf.kind == LEAF else []

    def rest(self) -> list[str]:
        """The things that are wrong when no record follows."""
        gone = [(max(first, self._pruned + 1), last) for first, last in self._gone]
        wrong = [
            f"{_rows(first, last)}: missing, and retention has not removed them"
            for first, last in gone
            if first <= last
        ]
        left = [row.seq for row in self._rows if row.seq <= self._head.last]
        if left:
            wrong.append(f"{_rows(left[0], left[-1])}: under no record")
        return wrong

    def _recount(self, leaf: _Fields) -> list[str]:
        wrong: list[str] = []
        if leaf.first != self._covered + 1:
            wrong.append(f"{_rows(self._covered + 1, leaf.first - 1)}: under no record")
        self._covered = leaf.last
        found, many = RowsHash(), 0
        for row in self._rows:
            if row.seq > leaf.last:
                self._rows = chain((row,), self._rows)
                break
            if row.seq < leaf.first:
                continue
            found.add(row)
            many += 1
            if row.seq == leaf.last:
                break
        self.counted += many
        missing = leaf.last - leaf.first + 1 - many
        if many == 0:
            self._note_gone(leaf)
        elif missing > 0:
            wrong.append(f"{_rows(leaf.first, leaf.last)}: {missing} of them are missing")
        elif found.fields["digest"] != leaf.digest:
            wrong.append(f"{_rows(leaf.first, leaf.last)}: not as they were written")
        return wrong

    def _note_gone(self, leaf: _Fields) -> None:
        if self._gone and self._gone[-1][1] == leaf.first - 1:
            self._gone[-1] = (self._gone[-1][0], leaf.last)
        else:
            self._gone.append((leaf.first, leaf.last))


def _rows(first: int, last: int) -> str:
    return f"audit row {last}" if first >= last else f"audit rows {first} to {last}"
