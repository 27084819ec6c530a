"""Who did what: one row per command, in the order in which they were committed.

A row's id is its number in the journal's `audit` stream, so that pages stay as they are while new
rows come. A row is written in the same commit as what it is about: `prepare` gives the operation. The
journal adds the hash of a transaction's rows to the evidence (`LEAVES`), for every writer.
A row of RUN_ACTIONS is found by its run, any other by its action: most rows are tool calls, which a
search for all of them finds soon enough among the rest.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Protocol

import msgspec

from toolgate.core.errors import Invalid
from toolgate.core.tools import JsonValue
from toolgate.evidence import evidence
from toolgate.evidence.evidence import Scalar
from toolgate.evidence.records import plain_record
from toolgate.journal.journal import (
    Append,
    Event,
    Head,
    Journal,
    NewEvent,
    Operation,
    Put,
    StreamSummary,
)
from toolgate.secrets.redaction import Redactor

STREAM: Final = "audit"
TOOL_RUN: Final = "tool.run"
RUN_ACTIONS: Final = frozenset({TOOL_RUN, "run.cancelled"})  # those whose metadata has a runId
DEFAULT_LIMIT: Final = 50  # runner contract, "audit.query"
LARGEST_LIMIT: Final = 500
PAGE: Final = 1_000
# Rows are in commit order. Their times are the wall clock's, which may be set back: a search by
# time looks this much further.
CLOCK_SLACK_MS: Final = 3_600_000
IN_METADATA: Final = {"deviceId": "device_id", "runId": "run_id", "decision": "decision"}
FILTERS: Final = {  # of a query, over HTTP and in the terminal
    "tenantId": "only this tenant",
    "workspaceId": "only this workspace",
    "action": "only this action, exactly",
    "deviceId": "only this device",
    "runId": "only this run",
    "decision": "only this decision",
    "from": "not before this time (ISO 8601)",
    "to": "not after this time (ISO 8601)",
}
PARAMETERS: Final = frozenset({*FILTERS, "limit", "cursor"})


LEAF: Final = "audit"  # the kind of the records that hold the hash of rows
PRUNED: Final = "audit_pruned"  # and of those that say that retention has removed rows; its row too
KEY: Final = "through"


class Events(Protocol):
    """The part of a journal that a query reads."""

    async def read(
        self, stream: str, *, after: int = 0, limit: int = 1000, subject: str = ""
    ) -> list[Event]: ...

    async def read_back(
        self, stream: str, *, before: int | None = None, limit: int = 1000, subject: str = ""
    ) -> list[Event]: ...

    async def head(self, stream: str) -> Head: ...


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A row to be written. `metadata` holds deviceId, runId, decision, where there is one."""

    action: str
    actor: str
    tenant_id: str = "t_default"
    workspace_id: str = "w_default"
    resource_type: str = ""
    resource_id: str = ""
    metadata: Mapping[str, JsonValue] = {}
    artifacts: tuple[str, ...] = ()  # of the evidence, for an episode


class AuditRow(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """As the contract has it on the wire."""

    id: int
    tenant_id: str
    workspace_id: str
    action: str
    actor: str
    metadata: dict[str, Any]
    created_at: str
    resource_type: str | None = None
    resource_id: str | None = None


class AuditPage(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    items: list[AuditRow]
    next_cursor: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditQuery:
    """Which rows; None is any. Times are Unix ms and inclusive."""

    tenant_id: str | None = None
    workspace_id: str | None = None
    action: str | None = None
    device_id: str | None = None
    run_id: str | None = None
    decision: str | None = None
    since: int | None = None
    until: int | None = None
    limit: int = DEFAULT_LIMIT
    cursor: int | None = None

    @classmethod
    def parse(cls, parameters: Mapping[str, str]) -> "AuditQuery":
        """From the contract's parameters; raises Invalid naming the one that is wrong."""
        for name in parameters:
            if name not in PARAMETERS:
                raise Invalid(f"audit.query has no parameter {name}", field=name)
        given = {name: value for name, value in parameters.items() if value != ""}
        return cls(
            tenant_id=given.get("tenantId"),
            workspace_id=given.get("workspaceId"),
            action=given.get("action"),
            device_id=given.get("deviceId"),
            run_id=given.get("runId"),
            decision=given.get("decision"),
            since=_parsed(given, "from", parse_time),
            until=_parsed(given, "to", parse_time),
            limit=min(_parsed(given, "limit", _positive) or DEFAULT_LIMIT, LARGEST_LIMIT),
            cursor=_parsed(given, "cursor", _positive),
        )


class StoredRow(msgspec.Struct, rename="camel", omit_defaults=True):
    """The data of a row's event."""

    tenant_id: str
    workspace_id: str
    actor: str
    resource_type: str
    resource_id: str
    metadata: Mapping[str, Any]
    artifacts: tuple[str, ...] = ()


_encode = msgspec.json.Encoder().encode
decode_row: Final = msgspec.json.Decoder(StoredRow).decode


class AuditLog:
    def __init__(self, journal: Journal, *, redactor: Redactor) -> None:
        self._journal = journal
        self._redactor = redactor

    @property
    def redact(self) -> Callable[[str], str]:
        return self._redactor.text

    def note(
        self,
        action: str,
        *,
        actor: str,
        resource: tuple[str, str] = ("", ""),
        metadata: Mapping[str, JsonValue] | None = None,
        redacted: bool = False,
    ) -> Sequence[Operation]:
        """The operations that write a row about a resource (type, id); see `prepare`."""
        entry = AuditEntry(
            action=action,
            actor=actor,
            resource_type=resource[0],
            resource_id=resource[1],
            metadata=metadata or {},
        )
        return self.prepare(entry, redacted=redacted)

    def prepare(self, entry: AuditEntry, *, redacted: bool = False) -> list[Operation]:
        """The operations that write the row, redacted, unless the caller has done so already."""
        if not redacted:
            entry = self._masked(entry)
        action = entry.action
        run_id = entry.metadata.get("runId") if action in RUN_ACTIONS else None
        subject = run_id if isinstance(run_id, str) and run_id else action
        stored = StoredRow(
            entry.tenant_id,
            entry.workspace_id,
            entry.actor,
            entry.resource_type,
            entry.resource_id,
            entry.metadata,
            entry.artifacts,
        )
        return [Append(STREAM, (NewEvent(action, _encode(stored), subject),))]

    def _masked(self, entry: AuditEntry) -> AuditEntry:
        text = self._redactor.text
        return AuditEntry(
            action=text(entry.action),
            actor=text(entry.actor),
            tenant_id=text(entry.tenant_id),
            workspace_id=text(entry.workspace_id),
            resource_type=text(entry.resource_type),
            resource_id=text(entry.resource_id),
            metadata=self._redactor.fields(entry.metadata),
            artifacts=entry.artifacts,
        )

    async def record(self, entry: AuditEntry) -> int:
        committed = await self._journal.commit(*self.prepare(entry))
        return next(event.seq for event in committed if event.stream == STREAM)

    async def query(self, query: AuditQuery) -> AuditPage:
        return await search(self._journal, query)


class _Pruned(msgspec.Struct):
    """How far retention has come: rows that are removed, records that were looked at."""

    through: int = 0
    record: int = 0


class _LeafOfRows(msgspec.Struct):
    class Fields(msgspec.Struct):
        last: int

    fields: Fields


async def prune(journal: Journal, *, before: int, now: int) -> None:
    """Remove the rows whose leaves are older than a time; the leaves stay.

    A record that says so comes first: rows that are missing without one were removed by someone else.
    """
    row = await journal.get(PRUNED, KEY)
    found = _Pruned() if row is None else msgspec.json.decode(row.value, type=_Pruned)
    known = found.through
    events = await journal.read(evidence.STREAM, after=found.record, limit=PAGE)
    while events and events[0].at < before:
        for event in (one for one in events if one.at < before):
            if event.type == LEAF:
                leaf = msgspec.json.decode(evidence.record_of(event.data), type=_LeafOfRows)
                found.through = leaf.fields.last
            found.record = event.seq
        events = await journal.read(evidence.STREAM, after=found.record, limit=PAGE)
    if found.through > known:
        put = Put(
            PRUNED, KEY, msgspec.json.encode(found), expected=0 if row is None else row.version
        )
        record = plain_record(PRUNED, {"through": found.through}, at=now)
        await journal.commit(Append(evidence.STREAM, (record,)), put)
    await journal.forget(STREAM, through=found.through)


class RowsHash:
    """The hash of rows that follow each other: of every byte of them, and of their ids and times."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self.first = self.last = self.at = 0

    def add(self, row: Event) -> None:
        self.first, self.last, self.at = self.first or row.seq, row.seq, row.at
        action, subject = row.type.encode(), row.subject.encode()
        sizes = (row.seq, row.at, len(action), len(subject), len(row.data))
        self._hash.update(b"%d %d %d %d %d\n" % sizes + action + subject + row.data)

    @property
    def fields(self) -> dict[str, Scalar]:
        digest = f"sha256:{self._hash.hexdigest()}"
        return {"digest": digest, "first": self.first, "last": self.last}

    def leaf(self) -> NewEvent:
        return plain_record(LEAF, self.fields, at=self.at)


def _leaf_of(rows: Sequence[Event]) -> NewEvent:
    found = RowsHash()
    for row in rows:
        found.add(row)
    return found.leaf()


LEAVES: Final = StreamSummary(of=STREAM, into=evidence.STREAM, make=_leaf_of)


async def search(events: Events, query: AuditQuery) -> AuditPage:
    """The rows, newest first; `next_cursor` only where more rows follow."""
    limit = max(1, min(query.limit, LARGEST_LIMIT))
    rows: list[AuditRow] = []
    before = await _first_after(events, query)
    subject, needles = _subject_of(query), _needles_of(query)
    while len(rows) <= limit:
        page = await events.read_back(
            STREAM, before=before, limit=_page_for(query, limit), subject=subject
        )
        for event in page:
            if _too_old(event, query):
                return _answer(rows, limit)
            if any(needle not in event.data for needle in needles):
                continue
            row = _matching(event, query)
            if row is not None:
                rows.append(row)
        if not page:
            break
        before = page[-1].seq
    return _answer(rows, limit)


async def _first_after(events: Events, query: AuditQuery) -> int | None:
    """Below which id to begin: the cursor's, or the first row that is later than asked for."""
    if query.until is None:
        return query.cursor
    head = await events.head(STREAM)
    low, high = head.first, head.last + 1
    while low < high:
        middle = (low + high) // 2
        found = await events.read(STREAM, after=middle - 1, limit=1)
        if found and found[0].at <= query.until + CLOCK_SLACK_MS:
            low = found[0].seq + 1
        else:
            high = middle
    return low if query.cursor is None else min(low, query.cursor)


def format_time(at: int) -> str:
    """ISO 8601 with milliseconds and Z."""
    moment = datetime.fromtimestamp(at // 1000, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{at % 1000:03d}Z"


def parse_time(text: str) -> int:
    """Unix ms of an ISO 8601 time; one without an offset is taken as UTC."""
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    since_1970 = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return (since_1970.days * 86_400 + since_1970.seconds) * 1000 + since_1970.microseconds // 1000


def _parsed(given: Mapping[str, str], name: str, parse: Callable[[str], int]) -> int | None:
    if name not in given:
        return None
    try:
        return parse(given[name])
    except (ValueError, OverflowError) as wrong:
        raise Invalid(f"{name} cannot be {given[name][:40]!r}", field=name) from wrong


def _positive(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 18 or int(text) < 1:
        raise ValueError(text)
    return int(text)


def _page_for(query: AuditQuery, limit: int) -> int:
    filtered = query.tenant_id or query.workspace_id or query.device_id or query.decision
    return PAGE if filtered or query.action in RUN_ACTIONS else limit + 1


def _subject_of(query: AuditQuery) -> str:
    if query.run_id is not None:
        return query.run_id
    return "" if query.action in RUN_ACTIONS else query.action or ""


def _needles_of(query: AuditQuery) -> list[bytes]:
    """What the data of every row in question holds: few rows that hold it are not meant."""
    wanted = (query.tenant_id, query.workspace_id, query.device_id, query.run_id, query.decision)
    return [_encode(text) for text in wanted if text is not None]


def _too_old(event: Event, query: AuditQuery) -> bool:
    return query.since is not None and event.at < query.since - CLOCK_SLACK_MS


def _matching(event: Event, query: AuditQuery) -> AuditRow | None:
    if query.since is not None and event.at < query.since:
        return None
    if query.until is not None and event.at > query.until:
        return None
    if query.action is not None and event.type != query.action:
        return None
    stored = decode_row(event.data)
    if query.tenant_id is not None and stored.tenant_id != query.tenant_id:
        return None
    if query.workspace_id is not None and stored.workspace_id != query.workspace_id:
        return None
    for name, attribute in IN_METADATA.items():
        wanted = getattr(query, attribute)
        if wanted is not None and stored.metadata.get(name) != wanted:
            return None
    return AuditRow(
        id=event.seq,
        tenant_id=stored.tenant_id,
        workspace_id=stored.workspace_id,
        action=event.type,
        actor=stored.actor,
        metadata=dict(stored.metadata),
        created_at=format_time(event.at),
        resource_type=stored.resource_type or None,
        resource_id=stored.resource_id or None,
    )


def _answer(rows: list[AuditRow], limit: int) -> AuditPage:
    if len(rows) <= limit:
        return AuditPage(items=rows)
    return AuditPage(items=rows[:limit], next_cursor=rows[limit - 1].id)
