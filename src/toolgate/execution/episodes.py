"""Ended calls, found again: by id, by the beginning of one, by decision, tool and time."""

from collections.abc import AsyncIterator
from typing import Final

import msgspec
from msgspec import UnsetType

from toolgate.contracts.executor_v0 import Episode, EpisodeSearch, Order
from toolgate.contracts.wire import from_iso_ms, to_iso_ms
from toolgate.domain.errors import Invalid
from toolgate.execution.calls import STREAM, EndedCall
from toolgate.ports.journal import Event, Journal

PAGE: Final = 500
MAX_LOOKED_AT: Final = 100_000  # a search for what is nowhere must end

_decode: Final = msgspec.json.Decoder(EndedCall).decode


async def search_episodes(journal: Journal, search: EpisodeSearch) -> list[Episode]:
    since, until = _time(search.since_ts, "since_ts"), _time(search.until_ts, "until_ts")
    found: list[Episode] = []
    looked_at = 0
    async for event in _events(journal, search):
        looked_at += 1
        if looked_at > MAX_LOOKED_AT or len(found) >= search.limit:
            break
        if (since is not None and event.at < since) or (until is not None and event.at > until):
            continue
        ended = _decode(event.data)
        if _matches(ended, search):
            found.append(_episode(ended, at=event.at))
    return found


async def _events(journal: Journal, search: EpisodeSearch) -> AsyncIterator[Event]:
    subject = search.id if isinstance(search.id, str) else ""
    if search.order is Order.ASC:
        after = 0
        while page := await journal.read(STREAM, after=after, limit=PAGE, subject=subject):
            for event in page:
                yield event
            after = page[-1].seq
        return
    before: int | None = None
    while page := await journal.read_back(STREAM, before=before, limit=PAGE, subject=subject):
        for event in page:
            yield event
        before = page[-1].seq


def _matches(episode: EndedCall, search: EpisodeSearch) -> bool:
    wanted = (
        (search.id, episode.id),
        (search.decision, episode.decision),
        (search.type, episode.type),
    )
    prefix = search.id_prefix if isinstance(search.id_prefix, str) else ""
    return episode.id.startswith(prefix) and all(
        isinstance(asked, UnsetType) or asked == has for asked, has in wanted
    )


def _episode(ended: EndedCall, *, at: int) -> Episode:
    return Episode(
        id=ended.id,
        type=ended.type,
        decision=ended.decision,
        ok=ended.ok,
        ts=to_iso_ms(at),
        evidence_refs=ended.evidence_refs,
        rule_id=ended.rule_id,
        run_id=ended.run_id,
        step_id=ended.step_id,
    )


def _time(text: str | UnsetType, field: str) -> int | None:
    if isinstance(text, UnsetType):
        return None
    try:
        return from_iso_ms(text)
    except ValueError as wrong:
        raise Invalid(f"{field} is not a time", field=field) from wrong
