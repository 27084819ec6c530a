"""The journal's file, read by someone else than its process: no lock, no thread, no writing."""

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Self

from toolgate.core.errors import NotFound
from toolgate.journal.journal import Event, Head
from toolgate.journal.sqlite.schema import HEAD, from_sqlite, last_numbers, open_for_reading

JOURNAL_FILE: Final = "journal.db"
_EVENTS: Final = (
    "SELECT position, stream, seq, type, at, data, subject"
    " FROM events JOIN segments ON segments.id = events.segment WHERE stream = :stream"
)
_OF_SUBJECT: Final = f"{_EVENTS} AND subject = :subject AND subject <> ''"  # as its index has it


class ClosedJournal:
    def __init__(self, path: Path) -> None:
        if not path.is_file():
            raise NotFound("journal", str(path))
        self._path = path
        with self._ours():
            self._connection = open_for_reading(path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    async def read(
        self, stream: str, *, after: int = 0, limit: int = 1000, subject: str = ""
    ) -> list[Event]:
        return list(self.events(stream, after=after, limit=limit, subject=subject))

    async def read_back(
        self, stream: str, *, before: int | None = None, limit: int = 1000, subject: str = ""
    ) -> list[Event]:
        found = self._query(
            f"{_OF_SUBJECT if subject else _EVENTS} AND (:before IS NULL OR seq < :before) ORDER BY seq DESC LIMIT :limit",
            stream=stream,
            subject=subject,
            before=before,
            limit=limit,
        )
        return [Event(*row) for row in found]

    async def head(self, stream: str) -> Head:
        return self.ends(stream)

    def ends(self, stream: str) -> Head:
        for first, last, *_ in self._query(HEAD, stream=stream):
            return Head(first, last)
        return Head(first=1, last=0)

    def events(
        self, stream: str, *, after: int = 0, limit: int = -1, subject: str = ""
    ) -> Iterator[Event]:
        found = self._query(
            f"{_OF_SUBJECT if subject else _EVENTS} AND seq > :after ORDER BY seq LIMIT :limit",
            stream=stream,
            subject=subject,
            after=after,
            limit=limit,
        )
        return (Event(*row) for row in found)

    def last_position(self) -> int:
        with self._ours():
            return last_numbers(self._connection)[0]

    def row(self, collection: str, key: str) -> bytes | None:
        for (value,) in self._query(
            "SELECT value FROM rows WHERE collection = :collection AND key = :key",
            collection=collection,
            key=key,
        ):
            return bytes(value)
        return None

    def _query(self, sql: str, **values: object) -> Iterator[Any]:
        with self._ours():
            # Not `yield from`: that would close the cursor, perhaps after the connection.
            for row in self._connection.execute(sql, values):  # noqa: UP028
                yield row

    @contextlib.contextmanager
    def _ours(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as refused:
            raise from_sqlite(refused, self._path) from refused
