"""Every row of a collection and every event of a stream, read page by page."""

from collections.abc import AsyncIterator
from typing import Final

from toolgate.journal.journal import Event, Journal, Row

PAGE: Final = 1000


async def all_rows(
    journal: Journal, collection: str, *, after: str = "", page: int = PAGE
) -> AsyncIterator[Row]:
    """The rows in the order of their keys; those of a page may be changed or deleted meanwhile."""
    size = page
    while size == page:
        rows = await journal.scan(collection, after=after, limit=page)
        for row in rows:
            after = row.key
            yield row
        size = len(rows)


async def all_events(
    journal: Journal, stream: str, *, after: int = 0, subject: str = "", page: int = PAGE
) -> AsyncIterator[Event]:
    """The events of a stream, oldest first."""
    size = page
    while size == page:
        events = await journal.read(stream, after=after, limit=page, subject=subject)
        for event in events:
            after = event.seq
            yield event
        size = len(events)


async def newest_events(
    journal: Journal, stream: str, *, before: int | None = None, subject: str = "", page: int = PAGE
) -> AsyncIterator[Event]:
    """The events of a stream, newest first."""
    size = page
    while size == page:
        events = await journal.read_back(stream, before=before, limit=page, subject=subject)
        for event in events:
            before = event.seq
            yield event
        size = len(events)
