"""Ended calls, found again in the audit: by id, by the beginning of one, by decision, tool and time."""

from collections.abc import AsyncIterator
from typing import Final

import msgspec
from msgspec import UNSET, UnsetType

from toolgate.contracts.executor_v0 import (
    EVIDENCE_REF,
    Decision,
    Episode,
    EpisodeSearch,
    Order,
)
from toolgate.contracts.wire import from_iso_ms, to_iso_ms
from toolgate.core.errors import Invalid
from toolgate.evidence import evidence
from toolgate.evidence.audit import STREAM, TOOL_RUN, StoredRow, decode_row
from toolgate.journal.journal import Event, Head, Journal

PAGE: Final = 500
MAX_LOOKED_AT: Final = 100_000  # a search for what is nowhere must end
OK: Final = "ok"  # what the audit calls the result of a call that went well


class _Fields(msgspec.Struct):
    run_id: str


class _Record(msgspec.Struct):
    """Of a decision in the evidence, what leads to its audit row."""

    fields: _Fields


_decode_record: Final = msgspec.json.Decoder(_Record).decode


async def search_episodes(journal: Journal, search: EpisodeSearch) -> list[Episode]:
    since, until = _time(search.since_ts, "since_ts"), _time(search.until_ts, "until_ts")
    found: list[Episode] = []
    looked_at = 0
    async for event in _events(journal, search, since=since, until=until):
        looked_at += 1
        if looked_at > MAX_LOOKED_AT or len(found) >= search.limit:
            break
        if (since is not None and event.at < since) or (until is not None and event.at > until):
            continue
        ended = decode_row(event.data)
        if _matches(ended, search):
            found.append(_episode(ended, at=event.at))
    return found


async def _events(
    journal: Journal, search: EpisodeSearch, *, since: int | None, until: int | None
) -> AsyncIterator[Event]:
    forward = search.order is Order.ASC
    if not isinstance(search.id, str):
        after, before = await _bounds(journal, since=since, until=until)
        async for event in _rows(journal, "", forward=forward, after=after, before=before):
            if event.type == TOOL_RUN:
                yield event
        return
    found = [
        event
        for run_id in await _runs_of(journal, search.id)
        async for event in _rows(journal, run_id, forward=forward)
        if event.type == TOOL_RUN
    ]
    for event in sorted(found, key=lambda event: event.seq, reverse=not forward):
        yield event


async def _bounds(
    journal: Journal, *, since: int | None, until: int | None
) -> tuple[int, int | None]:
    """Between which numbers to look, where there are more rows than are looked at."""
    head = await journal.head(STREAM)
    if head.last - head.first < MAX_LOOKED_AT:
        return 0, None
    after = 0 if since is None else await _first_at(journal, head, since) - 1
    return after, None if until is None else await _first_at(journal, head, until + 1)


async def _first_at(journal: Journal, head: Head, at: int) -> int:
    """The number of the first row of this time or later."""
    low, high = head.first, head.last + 1
    while low < high:
        middle = (low + high) // 2
        row = await journal.read(STREAM, after=middle - 1, limit=1)
        if row and row[0].at < at:
            low = middle + 1
        else:
            high = middle
    return low


async def _rows(
    journal: Journal, subject: str, *, forward: bool, after: int = 0, before: int | None = None
) -> AsyncIterator[Event]:
    if forward:
        while page := await journal.read(STREAM, after=after, limit=PAGE, subject=subject):
            for event in page:
                yield event
            after = page[-1].seq
        return
    while page := await journal.read_back(STREAM, before=before, limit=PAGE, subject=subject):
        for event in page:
            yield event
        before = page[-1].seq


async def _runs_of(journal: Journal, request_id: str) -> set[str]:
    """The runs in which this id was used, as the decisions say: one, but for a wrong request."""
    events = await journal.read(evidence.STREAM, limit=PAGE, subject=request_id)
    return {
        _decode_record(evidence.record_of(event.data)).fields.run_id
        for event in events
        if event.type == "decision"
    }


def _matches(ended: StoredRow, search: EpisodeSearch) -> bool:
    request_id = ended.metadata["requestId"]
    wanted = (
        (search.id, request_id),
        (search.decision, ended.metadata["decision"]),
        (search.type, ended.resource_id),
    )
    prefix = search.id_prefix if isinstance(search.id_prefix, str) else ""
    return request_id.startswith(prefix) and all(
        isinstance(asked, UnsetType) or asked == has for asked, has in wanted
    )


def _episode(ended: StoredRow, *, at: int) -> Episode:
    said = ended.metadata
    request_id = said["requestId"]
    return Episode(
        id=request_id,
        type=ended.resource_id,
        decision=Decision(said["decision"]),
        ok=said["result"] == OK,
        ts=to_iso_ms(at),
        evidence_refs=[
            EVIDENCE_REF.format(request_id=request_id, artifact=name) for name in ended.artifacts
        ],
        rule_id=said["ruleId"] or UNSET,
        run_id=said["runId"],
        step_id=said["stepId"],
    )


def _time(text: str | UnsetType, field: str) -> int | None:
    if isinstance(text, UnsetType):
        return None
    try:
        return from_iso_ms(text)
    except ValueError as wrong:
        raise Invalid(f"{field} is not a time", field=field) from wrong
