"""Rows and events of an ingress that runs apart, about runs that another process works on.

The session's stream, and rows: `remote_runs` (a run's session, and how far its stream was read),
`remote_open` (the runs that have not ended, by session), `remote_calls` (tool calls that wait for a
device; `due` is their deadline), `remote_approvals`, and `call_args` (see `runs/originals.py`).
"""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final
from urllib.parse import quote, unquote

import msgspec

from toolgate.contracts.wire import MAX_INT
from toolgate.core.clock import Clock
from toolgate.core.enums import RunStatus
from toolgate.core.errors import Conflict, NotFound, ToolgateError
from toolgate.core.tools import JsonValue
from toolgate.core.visible import visible
from toolgate.journal.dispatcher import Dispatcher
from toolgate.journal.journal import Delete, Event, Journal, Operation, Put, Row
from toolgate.journal.paging import all_rows, newest_events
from toolgate.journal.rows import ATTEMPTS, version_of
from toolgate.runs import deliveries, records
from toolgate.runs.deliveries import Delivery
from toolgate.runs.originals import ARGS, CALL_ARGS, REDACTED_ARGS, SUMMARY, Originals
from toolgate.runs.retention import Sweep
from toolgate.secrets.approver_view import summary_of, with_texts
from toolgate.secrets.redaction import UNCHECKED

RUNS: Final = "remote_runs"
OPEN: Final = "remote_open"
CALLS: Final = "remote_calls"
APPROVALS: Final = "remote_approvals"
ASKS: Final = {
    deliveries.TOOL_REQUEST: (CALLS, "tool_call_id"),
    deliveries.APPROVAL_REQUIRED: (APPROVALS, "approval_id"),
}
REQUEST_KEPT_MS: Final = 24 * 3_600_000
MOST_AHEAD_MS: Final = 300_000  # that two clocks may differ; what says it was said longer ago was


class RunRow(msgspec.Struct, frozen=True):
    session_id: str
    agent_id: str = ""
    request_id: str = ""
    pushed: bool = False  # its events come by push, not by a stream that we read
    ended: bool = False
    ended_at: int = 0  # 0 also where it ended before this was written down
    last_id: str = ""  # the last event we took, as its orchestrator counts: to go on reading there
    version: int = 0  # the row's, as it was read; 0 where there was none


class WaitingRow(msgspec.Struct, frozen=True):
    """A tool call or an approval that waits for the session's client."""

    run_id: str
    session_id: str
    settled: bool = False
    verdict: str = ""  # how an approval was decided


_decode_run: Final = msgspec.json.Decoder(RunRow).decode
_decode_waiting: Final = msgspec.json.Decoder(WaitingRow).decode
encode: Final = msgspec.json.Encoder().encode


@dataclass(slots=True)
class RemoteRuns:
    journal: Journal
    clock: Clock
    dispatcher: Dispatcher
    originals: Originals
    redact_fields: Callable[[Mapping[str, JsonValue]], dict[str, JsonValue]] = dict
    _sweeps: dict[str, Sweep] = field(init=False)

    def __post_init__(self) -> None:
        self._sweeps = {name: Sweep(self.journal, name) for name in (RUNS, CALLS, APPROVALS)}

    async def find(self, run_id: str) -> RunRow:
        row = await self.journal.get(RUNS, run_id)
        if row is None:
            raise NotFound("run", run_id)
        return msgspec.structs.replace(_decode_run(row.value), version=row.version)

    async def of_session(self, run_id: str, session_id: str) -> RunRow:
        run = await self.find(run_id)
        if session_id and run.session_id != session_id:
            raise NotFound("run", run_id)
        return run

    async def asked(self, session_id: str, request_id: str) -> str:
        """The run that this request started; empty for a new request."""
        if not request_id:
            return ""
        key = records.request_key(session_id, request_id)
        row = await self.journal.get(records.REQUESTS, key)
        return "" if row is None else records.decode_text(row.value)

    async def begin(
        self, run_id: str, run: RunRow, told: Sequence[Delivery], *, expected: int | None = None
    ) -> RunRow:
        """Store a run in one commit with its first events.

        Over any version of the run's row unless `expected` is given: its events may have come first.
        """
        for _ in range(ATTEMPTS - 1 if expected is None else 0):
            with contextlib.suppress(Conflict):
                seen = await version_of(self.journal, RUNS, run_id)
                return await self._begin(run_id, run, told, expected=seen)
        if expected is None:
            expected = await version_of(self.journal, RUNS, run_id)
        return await self._begin(run_id, run, told, expected=expected)

    async def _begin(
        self, run_id: str, run: RunRow, told: Sequence[Delivery], *, expected: int
    ) -> RunRow:
        key = _open_key(run.session_id, run_id)
        opened = await version_of(self.journal, OPEN, key) if expected else 0
        operations: list[Operation] = [Put(OPEN, key, b"null", expected=opened)]
        if run.request_id:
            key = records.request_key(run.session_id, run.request_id)
            due = self.clock.now_ms() + REQUEST_KEPT_MS
            operations.append(
                Put(records.REQUESTS, key, records.encode(run_id), due=due, expected=0)
            )
        await self._commit(run_id, run, told, operations, expected=expected, durable=True)
        return msgspec.structs.replace(run, version=expected + 1)

    async def tell(
        self, run_id: str, run: RunRow, told: Sequence[Delivery], *, last_id: str = ""
    ) -> RunRow:
        """Store events of a run in its session's stream; nothing is stored after its end.

        A tool request or approval that comes by stream and by push is stored once.
        """
        told = await self._news(run_id, told)
        ends = [number for number, one in enumerate(told) if one.type in deliveries.ENDS]
        if ends:
            told = told[: ends[0] + 1]
        operations: list[Operation] = []
        if ends:
            operations.append(Delete(OPEN, _open_key(run.session_id, run_id)))
        durable = not all(map(deliveries.is_passing, told))
        while told and not run.ended:
            seen = run.version
            run = msgspec.structs.replace(
                run,
                ended=bool(ends),
                ended_at=self.clock.now_ms() if ends else 0,
                last_id=last_id or run.last_id,
            )
            try:
                await self._commit(run_id, run, told, operations, expected=seen, durable=durable)
            except Conflict:  # someone else told of it meanwhile
                run = await self.find(run_id)
                told = [] if was_told(run, last_id) else await self._news(run_id, told)
            else:
                return msgspec.structs.replace(run, version=seen + 1)
        return run

    async def tell_session(self, session_id: str, told: Delivery) -> None:
        """Store an event that belongs to no run."""
        await self.journal.commit(records.delivery_append(session_id, [told]))

    async def _commit(
        self,
        run_id: str,
        run: RunRow,
        told: Sequence[Delivery],
        operations: Sequence[Operation],
        *,
        expected: int,
        durable: bool,
    ) -> None:
        rows = [row for one in told for row in await self._waiting(run_id, run, one)]
        told, sealed = await self._without_secrets(run_id, told)
        self.originals.follow(sealed)  # before the commit: the bus makes frames of its events
        ended = self.originals.of_run(run_id) if run.ended else ()
        deleted = [Delete(CALL_ARGS, call_id) for call_id in ended]
        try:
            await self.journal.commit(
                records.delivery_append(run.session_id, told),
                Put(RUNS, run_id, encode(run), expected=expected),
                *operations,
                *rows,
                *sealed,
                *deleted,
                durable=durable,
            )
        except ToolgateError:
            await self.originals.reload(sealed)
            raise
        self.originals.follow(deleted)
        for row in rows:
            if row.due is not None:
                self.dispatcher.wake_at(row.due)

    async def _without_secrets(
        self, run_id: str, told: Sequence[Delivery]
    ) -> tuple[Sequence[Delivery], list[Put]]:
        """The events as they are stored, and the sealed rows of arguments that redaction changed."""
        if all(one.type not in ASKS for one in told):
            return told, []
        stored, sealed = list(told), list[Put]()
        for number, one in enumerate(told):
            if one.type not in ASKS:
                continue
            kept, original = self._redacted(one)
            stored[number] = replace(one, members=kept)
            if original is not None:
                _, key = _asks_for(one)
                expected = await version_of(self.journal, CALL_ARGS, key)
                sealed.append(self.originals.put(key, run_id, original, expected=expected))
        return stored, sealed

    def _redacted(self, asks: Delivery) -> tuple[dict[str, Any], dict[str, Any] | None]:
        """The members to store, and what they lack: a call's arguments, or members of an approval."""
        members = dict(asks.members)
        given: dict[str, Any] = {name: members[name] for name in (ARGS, SUMMARY) if name in members}
        if asks.type == deliveries.APPROVAL_REQUIRED:  # maybe of an orchestrator of another make
            given = {name: with_texts(value, visible) for name, value in given.items()}
        redacted = members.pop(REDACTED_ARGS, None)
        kept = {**members, **given}
        if ARGS in given:
            kept[ARGS] = self.redact_fields(given[ARGS] if redacted is None else redacted)
        if SUMMARY in given and redacted is not None:
            kept[SUMMARY] = summary_of(str(members["tool_name"]), kept[ARGS])
        elif SUMMARY in given:
            clean = self.redact_fields({SUMMARY: given[SUMMARY]})
            kept[SUMMARY] = clean.get(SUMMARY, UNCHECKED)
        if all(kept[name] == given[name] for name in given):
            return kept, None
        return kept, given if asks.type == deliveries.APPROVAL_REQUIRED else given[ARGS]

    async def _waiting(self, run_id: str, run: RunRow, told: Delivery) -> list[Put]:
        collection, key = _asks_for(told)
        if not collection:
            return []
        waiting = encode(WaitingRow(run_id, run.session_id))
        due = self._due(told) if collection == CALLS else None
        expected = await version_of(self.journal, collection, key)
        return [Put(collection, key, waiting, expected, due)]

    def _due(self, told: Delivery) -> int | None:
        """A call's deadline by our own clock; the orchestrator's clock may differ."""
        deadline: int | None = told.members.get("deadline_ts") or None
        ahead = self.clock.now_ms() - told.said_at
        if deadline is None or abs(ahead) > MOST_AHEAD_MS:
            return deadline
        return min(deadline + ahead, MAX_INT)

    async def _news(self, run_id: str, told: Sequence[Delivery]) -> list[Delivery]:
        return [one for one in told if not await self._was_asked(run_id, one)]

    async def _was_asked(self, run_id: str, told: Delivery) -> bool:
        collection, key = _asks_for(told)
        row = await self.journal.get(collection, key) if collection else None
        return row is not None and _decode_waiting(row.value).run_id == run_id

    async def waiting(
        self, collection: str, key: str, *, session_id: str, run_id: str
    ) -> tuple[Row, WaitingRow]:
        """The row of a call or approval of this session; NotFound for another session's."""
        kind = "tool call" if collection == CALLS else "approval"
        row = await self.journal.get(collection, key)
        if row is None:
            raise NotFound(kind, key)
        found = _decode_waiting(row.value)
        if (session_id and found.session_id != session_id) or (run_id and found.run_id != run_id):
            raise NotFound(kind, key)
        return row, found

    async def close(self, row: Row, found: WaitingRow, *, verdict: str = "") -> None:
        """Mark a waiting call or approval as answered; Conflict if it was before."""
        if found.settled:
            raise Conflict(f"{row.key} has ended already")
        settled = encode(msgspec.structs.replace(found, settled=True, verdict=verdict))
        operations: list[Operation] = [Put(row.collection, row.key, settled, expected=row.version)]
        operations.append(Delete(CALL_ARGS, row.key))
        await self.journal.commit(*operations)
        self.originals.follow(operations)

    async def postpone(self, row: Row, *, due: int | None) -> None:
        """Change the deadline of a row that is still open."""
        now = await self.journal.get(row.collection, row.key)
        if now is None or now.due is None:
            return
        with contextlib.suppress(Conflict):
            await self.journal.commit(
                Put(now.collection, now.key, now.value, due=due, expected=now.version)
            )
        if due is not None:
            self.dispatcher.wake_at(due)

    async def open_runs(self, session_id: str = "") -> list[tuple[str, str]]:
        if session_id:
            runs = await records.runs_of(self.journal, OPEN, session_id)
            return [(unquote(run_id), session_id) for run_id in runs]
        rows = all_rows(self.journal, OPEN)
        owners = [records.session_and_run(row.key) async for row in rows]
        return [(unquote(run_id), owner) for owner, run_id in owners]

    async def forget(self, before: int) -> int:
        """Delete the runs that ended before a time, with their calls and approvals; the number of rows."""
        forgotten = 0
        for row in await self._sweeps[RUNS].page():
            run = _decode_run(row.value)
            if run.ended and not run.ended_at:
                run = msgspec.structs.replace(run, ended_at=self.clock.now_ms())
                with contextlib.suppress(Conflict):
                    await self.journal.commit(
                        Put(RUNS, row.key, encode(run), expected=row.version), durable=False
                    )
            elif run.ended and run.ended_at < before:
                forgotten += await self._forget(row)
        for collection in (CALLS, APPROVALS):
            for row in await self._sweeps[collection].page():
                if await self.journal.get(RUNS, _decode_waiting(row.value).run_id) is None:
                    forgotten += await self._forget(row)
        return forgotten

    async def _forget(self, row: Row) -> bool:
        try:
            await self.journal.commit(
                Delete(row.collection, row.key, expected=row.version), durable=False
            )
        except Conflict:  # its orchestrator has given the same name anew
            return False
        return True

    async def snapshot(self, session_id: str) -> list[Delivery]:
        """The state of the session's open runs, as far as their events have arrived."""
        told: list[Delivery] = []
        for run_id, _ in await self.open_runs(session_id):
            events = await self._states_and_asks(session_id, run_id)
            states = [one for one in events if one.type == deliveries.STATE]
            name = records.decode_members(states[0].data)["state"] if states else "RUNNING"
            told.append(deliveries.state(run_id, name))
            for event in reversed(events):
                if event.type not in ASKS:
                    continue
                asked = Delivery(event.type, run_id, records.decode_members(event.data))
                row = await self.journal.get(*_asks_for(asked))
                if row is not None and not _decode_waiting(row.value).settled:
                    told.append(asked)
        return told

    async def state_of(self, run_id: str) -> str:
        """The state of a run as far as its events have arrived."""
        run = await self.find(run_id)
        stream = records.session_stream(run.session_id)
        latest: str = RunStatus.RUNNING
        async for event in newest_events(self.journal, stream, subject=run_id):
            if event.type == deliveries.ERROR:
                return RunStatus.FAILED
            if event.type == deliveries.DONE:
                latest = RunStatus.DONE  # if it was not cancelled just before
            elif event.type == deliveries.STATE:
                name = str(records.decode_members(event.data)["state"])
                done = latest == RunStatus.DONE and name != RunStatus.CANCELLED
                return latest if done else name
        return latest

    async def _states_and_asks(self, session_id: str, run_id: str) -> list[Event]:
        """The states and requests of a run in the session's stream, newest first."""
        stream = records.session_stream(session_id)
        events = newest_events(self.journal, stream, subject=run_id)
        return [one async for one in events if one.type == deliveries.STATE or one.type in ASKS]


def was_told(run: RunRow, event_id: str) -> bool:
    """True if a push repeats the event that came last."""
    return run.pushed and bool(event_id) and run.last_id == event_id


def _open_key(session_id: str, run_id: str) -> str:
    """The key of an open run; another orchestrator's ids may contain a slash."""
    return records.session_key(session_id, quote(run_id, safe=""))


def _asks_for(told: Delivery) -> tuple[str, str]:
    """The collection and key of the row for a request to the client; empty for other events."""
    collection, member = ASKS.get(told.type, ("", ""))
    return collection, str(told.members[member]) if collection else ""
