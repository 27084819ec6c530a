"""Ended calls, found in the audit by id, beginning of an id, decision, tool and time.

A row says what each thousand audit rows hold, so that a search reads only those that may match.
"""

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Final, NamedTuple

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
from toolgate.core.errors import Conflict, Invalid, Unavailable
from toolgate.evidence import evidence
from toolgate.evidence.audit import STREAM, TOOL_RUN, decode_row
from toolgate.journal.journal import Event, Journal, Put
from toolgate.journal.paging import all_events, all_rows

BLOCK: Final = 1000  # audit rows that share a summary
BLOCKS: Final = "episode_blocks"
PAGE: Final = 1000
BUDGET_S: Final = 5.0  # then a search says how far it came
OK: Final = "ok"  # what the audit calls the result of a call that went well


class _Fields(msgspec.Struct):
    run_id: str


class _Record(msgspec.Struct):
    """Of a decision in the evidence, what leads to its audit row."""

    fields: _Fields


class _Said(msgspec.Struct, rename="camel"):
    request_id: str
    decision: str


class _Ended(msgspec.Struct, rename="camel"):
    """The members of an audit row that a search compares."""

    resource_id: str
    metadata: _Said


class Block(msgspec.Struct, frozen=True):
    """What a search may find in BLOCK audit rows; made when a search first reads them."""

    tools: frozenset[str]
    decisions: frozenset[str]
    first_id: str
    last_id: str
    earliest: int
    latest: int


_decode_record: Final = msgspec.json.Decoder(_Record).decode
_decode_ended: Final = msgspec.json.Decoder(_Ended).decode
_decode_block: Final = msgspec.json.Decoder(Block).decode


class Found(NamedTuple):
    episodes: list[Episode]
    stopped_at: int | None = None  # the time of the last row that was read, if not all were


async def search_episodes(
    journal: Journal, search: EpisodeSearch, *, budget_s: float = BUDGET_S
) -> Found:
    since, until = _time(search.since_ts, "since_ts"), _time(search.until_ts, "until_ts")
    if isinstance(search.id, str):
        rows = await _rows_of(journal, search.id, forward=search.order is Order.ASC)
        matching = [one for one in rows if _is_wanted(one, search, since, until)]
        return Found([_episode(one) for one in matching[: search.limit]])
    return await _search_blocks(journal, search, since=since, until=until, budget_s=budget_s)


async def _search_blocks(
    journal: Journal,
    search: EpisodeSearch,
    *,
    since: int | None,
    until: int | None,
    budget_s: float,
) -> Found:
    now = asyncio.get_running_loop().time
    began, found = now(), list[Episode]()
    reached: int | None = None
    head, known = await journal.head(STREAM), await _blocks(journal)
    numbers = range((head.first - 1) // BLOCK, (head.last - 1) // BLOCK + 1 if head.last else 0)
    for number in numbers if search.order is Order.ASC else reversed(numbers):
        block = known.get(number)
        if block is not None and not _may_hold(block, search, since, until):
            continue
        if reached is not None and now() - began > budget_s:
            return Found(found, reached)
        events = await _events_of(journal, number, until=head.last)
        if block is None and len(events) == BLOCK:
            await _remember(journal, number, events)
        ordered = events if search.order is Order.ASC else reversed(events)
        found += [_episode(one) for one in ordered if _is_wanted(one, search, since, until)]
        if len(found) >= search.limit:
            return Found(found[: search.limit])
        if events:
            reached = (events[-1] if search.order is Order.ASC else events[0]).at
    return Found(found)


async def _blocks(journal: Journal) -> dict[int, Block]:
    rows = all_rows(journal, BLOCKS, page=PAGE)
    return {int(row.key): _decode_block(row.value) async for row in rows}


async def _events_of(journal: Journal, number: int, *, until: int) -> list[Event]:
    first, end = number * BLOCK + 1, min((number + 1) * BLOCK, until)
    events = await journal.read(STREAM, after=first - 1, limit=BLOCK)
    return [event for event in events if event.seq <= end]


async def _remember(journal: Journal, number: int, events: Sequence[Event]) -> None:
    runs = [_decode_ended(event.data) for event in events if event.type == TOOL_RUN]
    ids = [one.metadata.request_id for one in runs]
    block = Block(
        tools=frozenset(one.resource_id for one in runs),
        decisions=frozenset(one.metadata.decision for one in runs),
        first_id=min(ids, default=""),
        last_id=max(ids, default=""),
        earliest=min(event.at for event in events),
        latest=max(event.at for event in events),
    )
    row = Put(BLOCKS, f"{number:012d}", msgspec.json.encode(block), expected=0)
    with contextlib.suppress(Conflict, Unavailable):  # another search made it; or it is made later
        await journal.commit(row, durable=False)


def _may_hold(block: Block, search: EpisodeSearch, since: int | None, until: int | None) -> bool:
    prefix = search.id_prefix if isinstance(search.id_prefix, str) else ""
    return (
        (since is None or block.latest >= since)
        and (until is None or block.earliest <= until)
        and (isinstance(search.type, UnsetType) or search.type in block.tools)
        and (isinstance(search.decision, UnsetType) or search.decision in block.decisions)
        and block.first_id[: len(prefix)] <= prefix <= block.last_id
    )


def _is_wanted(event: Event, search: EpisodeSearch, since: int | None, until: int | None) -> bool:
    if event.type != TOOL_RUN:
        return False
    if (since is not None and event.at < since) or (until is not None and event.at > until):
        return False
    ended = _decode_ended(event.data)
    request_id = ended.metadata.request_id
    wanted = (
        (search.id, request_id),
        (search.decision, ended.metadata.decision),
        (search.type, ended.resource_id),
    )
    prefix = search.id_prefix if isinstance(search.id_prefix, str) else ""
    return request_id.startswith(prefix) and all(
        isinstance(asked, UnsetType) or asked == has for asked, has in wanted
    )


async def _rows_of(journal: Journal, request_id: str, *, forward: bool) -> list[Event]:
    """The audit rows of the runs in which this id was used."""
    found: list[Event] = []
    for run_id in await _runs_of(journal, request_id):
        rows = all_events(journal, STREAM, subject=run_id, page=PAGE)
        found += [event async for event in rows]
    return sorted(found, key=lambda event: event.seq, reverse=not forward)


async def _runs_of(journal: Journal, request_id: str) -> set[str]:
    """The runs in which this id was used, as the decisions say: one, but for a wrong request."""
    events = await journal.read(evidence.STREAM, limit=PAGE, subject=request_id)
    return {
        _decode_record(evidence.record_of(event.data)).fields.run_id
        for event in events
        if event.type == "decision"
    }


def _episode(event: Event) -> Episode:
    ended = decode_row(event.data)
    said = ended.metadata
    request_id = said["requestId"]
    return Episode(
        id=request_id,
        type=ended.resource_id,
        decision=Decision(said["decision"]),
        ok=said["result"] == OK,
        ts=to_iso_ms(event.at),
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
