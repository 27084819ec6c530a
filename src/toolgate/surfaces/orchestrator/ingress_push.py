"""Push the events of a run to an ingress that runs apart, in order, until the run's end.

For an ingress that did not ask for a stream. The progress is a row, so that a restarted orchestrator
continues from there.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final

import aiohttp
import msgspec

from toolgate.core.clock import Clock
from toolgate.core.errors import Conflict, ToolgateError, Unavailable
from toolgate.journal.bus import Bus
from toolgate.journal.following import follow
from toolgate.journal.journal import Delete, Event, Journal, Operation, Put
from toolgate.journal.paging import all_rows
from toolgate.journal.rows import version_of
from toolgate.runs import records
from toolgate.runs.deliveries import APPROVAL_REQUIRED, ENDS, TOOL_REQUEST, of_fact
from toolgate.runs.originals import Originals

log = logging.getLogger(__name__)

PUSHES: Final = "pushes"
SEND_PATH: Final = "/internal/send"
ANSWER_S: Final = 10.0
LOOK_S: Final = 60.0  # of silence, before it is asked whether anything can still come
PAUSE_S: Final = 0.5  # before an ingress or a client that was away is tried again
TAKEN: Final = 200
AWAY: Final = 409
UNREADABLE: Final = frozenset({400, 413, 422})  # it will not take that later either
INGRESS_MS: Final = 300_000  # how long an ingress that is away is waited for: it may be restarting
ASKS: Final = frozenset({TOOL_REQUEST, APPROVAL_REQUIRED})
TOKENS: Final = " set INTERNAL_TOKEN to the same value for ingress and orchestrator"
NETWORK: Final = (aiohttp.ClientError, TimeoutError, OSError)

Offline = Callable[[str, str], Awaitable[None]]  # run, tool call: its client is not there


class PushRow(msgspec.Struct, frozen=True):
    session_id: str
    after: int


@dataclass(slots=True)
class _Patience:
    """Deadlines for an absent client and an absent ingress, shared by all events that wait."""

    client: int | None = None
    ingress: int | None = None


@dataclass(slots=True)
class IngressPush:
    url: str
    journal: Journal
    bus: Bus
    clock: Clock
    originals: Originals
    on_offline: Offline
    window_ms: int
    token: str = ""
    _http: aiohttp.ClientSession | None = None
    _tasks: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    _versions: dict[str, int] = field(default_factory=dict)  # of the rows, by run

    async def start(self) -> None:
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        self._http = aiohttp.ClientSession(headers=headers)
        async for row in all_rows(self.journal, PUSHES):
            at = msgspec.json.decode(row.value, type=PushRow)
            self._start(row.key, at.session_id, at.after, version=row.version)

    async def stop(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        if self._http is not None:
            await self._http.close()

    async def __call__(self, run_id: str, session_id: str) -> None:
        """Push a run from its start; after this returns, a restarted process continues it."""
        if run_id in self._tasks:
            return
        row = msgspec.json.encode(PushRow(session_id, 0))
        expected = 0
        try:
            await self.journal.commit(Put(PUSHES, run_id, row, expected=expected))
        except Conflict:  # an earlier push of this run could not delete its row
            expected = await version_of(self.journal, PUSHES, run_id)
            await self.journal.commit(Put(PUSHES, run_id, row, expected=expected))
        self._start(run_id, session_id, 0, version=expected + 1)

    def _start(self, run_id: str, session_id: str, after: int, *, version: int) -> None:
        if run_id not in self._tasks:
            task = asyncio.create_task(self._push(run_id, session_id, after))
            self._tasks[run_id] = task
            self._versions[run_id] = version
            task.add_done_callback(lambda _: self._stopped(run_id))

    def _stopped(self, run_id: str) -> None:
        del self._tasks[run_id], self._versions[run_id]

    async def _push(self, run_id: str, session_id: str, after: int) -> None:
        """Push a run to its end, also over failures of the journal: nothing else reports the run."""
        patience = _Patience()
        while True:
            try:
                async with aclosing(self._told(run_id, session_id, after, patience)) as told:
                    async for seq in told:
                        after = seq
            except Unavailable:
                log.exception("push_interrupted run_id=%s", run_id)
                await asyncio.sleep(PAUSE_S)
            except Exception:  # not foreseen, so that it may be so for long
                log.exception("push_broke run_id=%s", run_id)
                await asyncio.sleep(LOOK_S)
            else:
                return

    async def _told(
        self, run_id: str, session_id: str, after: int, patience: _Patience
    ) -> AsyncGenerator[int, None]:
        """Push the events, and yield the number of each."""
        stream = records.session_stream(session_id)
        if not after:
            first = await self.journal.read(stream, subject=run_id, limit=1)
            after = first[0].seq - 1 if first else 0
        latest = await self.journal.read_back(stream, subject=run_id, limit=1)
        moot = ASKS if latest and latest[0].type in ENDS else ()  # nobody waits for an answer
        if await self._end_was_forgotten(run_id, session_id, after, patience):
            return
        batches = follow(self.journal, self.bus, stream, after=after, recheck=LOOK_S)
        async with aclosing(batches):
            async for batch in batches:
                if not batch and await self._end_was_forgotten(run_id, session_id, after, patience):
                    return
                for event in batch:
                    if event.subject != run_id or event.type in moot:
                        continue
                    await self._deliver(session_id, event, patience)
                    if event.type in ENDS:
                        await self._note(Delete(PUSHES, run_id))
                        return
                    await self._note_progress(run_id, PushRow(session_id, event.seq))
                    after = event.seq
                    yield after

    async def _end_was_forgotten(
        self, run_id: str, session_id: str, after: int, patience: _Patience
    ) -> bool:
        """Push the end from the run itself if retention has deleted it in the session's stream."""
        stream = records.session_stream(session_id)
        if (
            (await self.journal.head(stream)).first <= after + 1
            or run_id in await records.open_of(self.journal, session_id)
            or await self.journal.read(stream, after=after, subject=run_id, limit=1)
        ):
            return False
        log.warning("push_of_forgotten run_id=%s", run_id)
        latest = await self.journal.read_back(records.run_stream(run_id), limit=1)
        state = await records.load(self.journal, run_id) if latest else None
        if state is not None:  # else it was forgotten too, as it is after a month
            end = of_fact(None, records.fact_of(latest[0]), state)[-1]
            told = msgspec.structs.replace(
                latest[0], type=end.type, data=records.encode(end.members)
            )
            await self._deliver(session_id, told, patience)
        await self._note(Delete(PUSHES, run_id))
        return True

    async def _note_progress(self, run_id: str, row: PushRow) -> None:
        version = self._versions[run_id]
        try:
            if await self._note(Put(PUSHES, run_id, msgspec.json.encode(row), expected=version)):
                self._versions[run_id] = version + 1
        except Conflict:  # another process pushes this run too; the next event is noted again
            log.warning("push_noted_elsewhere run_id=%s", run_id)
            self._versions[run_id] = await version_of(self.journal, PUSHES, run_id)

    async def _note(self, progress: Operation) -> bool:
        """Store the progress; if that fails, the next process sends some events again."""
        try:
            await self.journal.commit(progress, durable=False)
        except Conflict:
            raise
        except ToolgateError:
            log.exception("push_not_noted")
            return False
        return True

    async def _deliver(self, session_id: str, event: Event, patience: _Patience) -> None:
        """Send an event until it is accepted, or until its client or ingress was away too long."""
        began = self.clock.now_ms()
        while (status := await self._send(self._body(session_id, event))) not in UNREADABLE:
            if status == TAKEN:
                patience.client = patience.ingress = None
                return
            if status == AWAY:
                until = patience.client = _kept(patience.client, began + self.window_ms)
                patience.ingress = None
            else:
                until = patience.ingress = _kept(patience.ingress, began + INGRESS_MS)
            if self.clock.now_ms() >= until:
                break
            await asyncio.sleep(PAUSE_S)
        log.info("push_given_up session_id=%s type=%s", session_id, event.type)
        if event.type == TOOL_REQUEST:
            with contextlib.suppress(ToolgateError):  # someone else was first
                call_id = records.decode_members(event.data)["tool_call_id"]
                await self.on_offline(event.subject, call_id)

    def _body(self, session_id: str, event: Event) -> bytes:
        """The request for an event; made for each attempt, because a call may end meanwhile."""
        (shown,) = self.originals.restored([event], keep_redacted=True)
        told = {"type": shown.type, "ts": shown.at, **records.decode_members(shown.data)}
        # Identifies an event that is sent again; a power cut may give its position to another one.
        told["event_id"] = f"ev_{shown.position}_{shown.at}"
        return msgspec.json.encode({"session_id": session_id, "event": told})

    async def _send(self, body: bytes) -> int:
        """The status of the answer; 0 if there is none."""
        assert self._http is not None
        headers = {"Content-Type": "application/json"}
        try:
            async with (
                asyncio.timeout(ANSWER_S),
                self._http.post(self.url + SEND_PATH, data=body, headers=headers) as response,
            ):
                if response.status not in (TAKEN, AWAY):
                    hint = TOKENS if response.status == HTTPStatus.UNAUTHORIZED else ""
                    log.warning("push_refused status=%d%s", response.status, hint)
                return response.status
        except NETWORK as failed:
            log.warning("push_failed error=%r", failed)
            return 0


def _kept(until: int | None, otherwise: int) -> int:
    return otherwise if until is None else until
