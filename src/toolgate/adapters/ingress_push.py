"""Tell an ingress that runs apart what happens in a run: event by event, in order, until its end.

For an ingress that did not ask for a stream. How far it was told is a row, so that a restart of
the orchestrator goes on from there.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Final

import aiohttp
import msgspec

from toolgate.domain.deliveries import ENDS, TOOL_REQUEST
from toolgate.domain.errors import ToolgateError
from toolgate.orchestration import records
from toolgate.ports.bus import Bus
from toolgate.ports.clock import Clock
from toolgate.ports.journal import Delete, Event, Journal, Operation, Put
from toolgate.ports.journal_follow import follow

log = logging.getLogger(__name__)

PUSHES: Final = "pushes"
SEND_PATH: Final = "/internal/send"
ANSWER_S: Final = 10.0
PAUSE_S: Final = 0.5  # before an ingress or a client that was away is tried again
TAKEN: Final = 200
AWAY: Final = 409
NETWORK: Final = (aiohttp.ClientError, TimeoutError, OSError)

Offline = Callable[[str, str], Awaitable[None]]  # run, tool call: its client is not there


class PushRow(msgspec.Struct, frozen=True):
    session_id: str
    after: int


@dataclass(slots=True)
class IngressPush:
    url: str
    journal: Journal
    bus: Bus
    clock: Clock
    on_offline: Offline
    window_ms: int
    token: str = ""
    _http: aiohttp.ClientSession | None = None
    _tasks: dict[str, asyncio.Task[None]] = field(default_factory=dict)

    async def start(self) -> None:
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        self._http = aiohttp.ClientSession(headers=headers)
        after = ""
        while rows := await self.journal.scan(PUSHES, after=after):
            for row in rows:
                at = msgspec.json.decode(row.value, type=PushRow)
                self._start(row.key, at.session_id, at.after)
            after = rows[-1].key

    async def stop(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        if self._http is not None:
            await self._http.close()

    async def __call__(self, run_id: str, session_id: str) -> None:
        """Push a run from its start; once this returns, the next process would too."""
        if run_id in self._tasks:
            return
        row = msgspec.json.encode(PushRow(session_id, 0))
        await self.journal.commit(Put(PUSHES, run_id, row))
        self._start(run_id, session_id, 0)

    def _start(self, run_id: str, session_id: str, after: int) -> None:
        if run_id not in self._tasks:
            task = asyncio.create_task(self._push(run_id, session_id, after))
            self._tasks[run_id] = task
            task.add_done_callback(lambda _: self._tasks.pop(run_id, None))

    async def _push(self, run_id: str, session_id: str, after: int) -> None:
        stream = records.session_stream(session_id)
        if not after:
            first = await self.journal.read(stream, subject=run_id, limit=1)
            after = first[0].seq - 1 if first else 0
        batches = follow(self.journal, self.bus, stream, after=after)
        until: int | None = None  # how long a client that went away is waited for
        async with aclosing(batches):
            async for batch in batches:
                for event in batch:
                    if event.subject != run_id:
                        continue
                    until = await self._deliver(session_id, event, until)
                    if event.type in ENDS:
                        await self._note(Delete(PUSHES, run_id))
                        return
                    row = msgspec.json.encode(PushRow(session_id, event.seq))
                    await self._note(Put(PUSHES, run_id, row))

    async def _note(self, progress: Operation) -> None:
        """How far it came; where that is lost, the next process tells some of it again."""
        try:
            await self.journal.commit(progress, durable=False)
        except ToolgateError:
            log.exception("push_not_noted")

    async def _deliver(self, session_id: str, event: Event, until: int | None) -> int | None:
        """Until it is taken; a client that stays away beyond its window does not get it.

        The window is one for all that comes while the client is away; it is returned.
        """
        told = {"type": event.type, "ts": event.at, **records.decode_members(event.data)}
        body = msgspec.json.encode({"session_id": session_id, "event": told})
        if until is None:
            until = self.clock.now_ms() + self.window_ms
        while True:
            status = await self._send(body)
            if status == TAKEN:
                return None
            if self.clock.now_ms() >= until:
                break
            await asyncio.sleep(PAUSE_S)
        log.info("push_given_up session_id=%s type=%s", session_id, event.type)
        if event.type == TOOL_REQUEST:
            with contextlib.suppress(ToolgateError):  # someone else was first
                await self.on_offline(event.subject, str(told["tool_call_id"]))
        return until if status == AWAY else None

    async def _send(self, body: bytes) -> int:
        """The status of its answer; 0 where there is none."""
        assert self._http is not None
        headers = {"Content-Type": "application/json"}
        try:
            async with (
                asyncio.timeout(ANSWER_S),
                self._http.post(self.url + SEND_PATH, data=body, headers=headers) as response,
            ):
                if response.status not in (TAKEN, AWAY):
                    log.warning("push_refused status=%d", response.status)
                return response.status
        except NETWORK as failed:
            log.warning("push_failed error=%r", failed)
            return 0
