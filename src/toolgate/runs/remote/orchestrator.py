"""The orchestrator behind HTTP, for an ingress that runs alone: ours, or any that knows the seed.

It answers an invoke with a stream of events (SSE) or with JSON, and then pushes them; both end in
the ingress's own journal, from which clients are served as everywhere.
"""

import asyncio
import contextlib
import logging
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import quote
from weakref import WeakValueDictionary

import aiohttp
import msgspec

from toolgate.access.devices import Identity
from toolgate.contracts import orchestrator_v1 as wire
from toolgate.contracts.wire import UNREADABLE
from toolgate.core.enums import ApprovalStatus, Decision, RunStatus
from toolgate.core.errors import Conflict, NotFound, ToolgateError, Unavailable
from toolgate.core.ids import NewId
from toolgate.core.tools import Tool
from toolgate.http.keepalive import kept_alive
from toolgate.http.sse import SseEvent, SseParser, TooLong
from toolgate.journal.journal import Row
from toolgate.runs import deliveries
from toolgate.runs.deliveries import Delivery
from toolgate.runs.orchestrator import Accepted, Declined, Invocation, UnknownAgent
from toolgate.runs.remote import records as rows
from toolgate.runs.remote.events import Garbage, batches, first_events, told_of
from toolgate.runs.remote.records import RemoteRuns, RunRow, WaitingRow
from toolgate.tools.approvals import HiddenArguments

log = logging.getLogger(__name__)

ANSWER_S: Final = 10.0  # how long an answer may take
AGENT_S: Final = (
    wire.AGENT_TIMEOUT_MS / 1000
)  # an invoke may be answered with the model's first word
CONNECT_S: Final = 5.0
TOOLS_S: Final = (
    2.0  # how long a hello waits until its tools are known there; else the next run does
)
BODY_LIMIT: Final = 1_000_000
TEXT_LIMIT: Final = 500  # characters of an orchestrator's own words (ingress spec)
TRY_AGAIN: Final = frozenset({401, 408, 425, 429})  # it may take the same command later
RESUMES: Final = 15  # how often a stream that broke off is taken up again: for five minutes
RESUMES_OF_UNKNOWN: Final = 5  # the same, where the orchestrator says that it has no such stream
RESUME_PAUSE_S: Final = 0.5  # before the second attempt; doubled each time
LONGEST_PAUSE_S: Final = 30.0
NO_SUCH_STREAM: Final = frozenset({404, 405, 410, 501})
CANCELLED_S: Final = 2.0  # how long the orchestrator may take to say that a run is cancelled
LOOKS: Final = 20  # meanwhile, whether it has ended otherwise
MAX_UNTOLD: Final = 1000  # sessions whose tools wait for an orchestrator that is away
RETRY_MS: Final = 5_000  # before an orchestrator that was away is told again
# What an orchestrator may push though the run's stream is read (seed 001, M2 and M3).
BESIDE: Final = frozenset({deliveries.TOOL_REQUEST, deliveries.APPROVAL_REQUIRED, deliveries.STATE})
NETWORK: Final = (aiohttp.ClientError, TimeoutError, OSError)
VERDICTS: Final = {
    Decision.APPROVE: ApprovalStatus.APPROVED.value,
    Decision.REJECT: ApprovalStatus.REJECTED.value,
}
CALL_ENDS: Final = frozenset({"SUCCEEDED", "FAILED", "TIMEOUT", "BLOCKED", "REJECTED"})
APPROVAL_ENDS: Final = frozenset({"APPROVED", "REJECTED", "EXPIRED"})
OTHER_ENDS: Final = frozenset({"DONE", "FAILED"})  # of a run, than that it was cancelled
BROKE_OFF: Final = "the orchestrator's stream broke off"


@dataclass(slots=True)
class HttpOrchestrator:
    url: str
    runs: RemoteRuns
    new_id: NewId
    token: str = ""
    answer_s: float = ANSWER_S
    agent_s: float = AGENT_S
    is_slow: bool = field(default=True, init=False)
    _http: aiohttp.ClientSession | None = None
    _asking: dict[tuple[str, str], asyncio.Task[str]] = field(default_factory=dict)
    _reading: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    _turns: WeakValueDictionary[str, asyncio.Lock] = field(default_factory=WeakValueDictionary)
    _deciding: dict[str, asyncio.Task[str]] = field(default_factory=dict)
    _untold: dict[str, wire.RegisterTools] = field(default_factory=dict)  # by session
    _cancelling: set[str] = field(default_factory=set)

    async def start(self) -> None:
        """Open for business, and go on with the streams that a restart cut off."""
        headers = {wire.HEADER_AUTHORIZATION: f"Bearer {self.token}"} if self.token else {}
        self._http = aiohttp.ClientSession(
            headers=headers,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S),
            connector=aiohttp.TCPConnector(limit=0, socket_factory=kept_alive),
        )
        for run_id, _ in await self.runs.open_runs():
            run = await self.runs.find(run_id)
            if not run.pushed:
                self._read_on(run_id, run, None, [])

    async def stop(self) -> None:
        tasks: list[asyncio.Task[Any]] = [*self._reading.values(), *self._asking.values()]
        tasks += self._deciding.values()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._http is not None:
            await self._http.close()

    async def invoke(self, invocation: Invocation) -> str:
        key = (invocation.session_id, invocation.request_id or self.new_id("ask"))
        task = self._asking.get(key)
        if task is None:
            task = self._asking[key] = asyncio.create_task(self._invoke(invocation))
            task.add_done_callback(lambda _: self._asking.pop(key, None))
        return await asyncio.shield(task)

    async def _invoke(self, invocation: Invocation) -> str:
        known = await self.runs.asked(invocation.session_id, invocation.request_id)
        if known:
            return known
        body = wire.InvokeRequest(
            session_id=invocation.session_id,
            agent_id=invocation.agent_id,
            message=wire.Message(invocation.role, invocation.content),
            request_id=invocation.request_id,
            context={**invocation.context, "user_id": invocation.user_id},
        )
        run = RunRow(invocation.session_id, invocation.agent_id, invocation.request_id)
        if (tools := self._untold.pop(invocation.session_id, None)) is not None:
            await self._tell_tools(invocation.session_id, tools)
        try:
            response = await self._post(
                wire.INVOKE_PATH, body, accept=wire.EVENT_STREAM_TYPE, within_s=self.agent_s
            )
        except _AgentUnknown as unknown:
            raise UnknownAgent(invocation.agent_id) from unknown
        if response.content_type == wire.EVENT_STREAM_TYPE:
            return await self._begin_stream(run, response)
        async with response:
            try:
                answer = await self._json(response)
            except Garbage as garbage:
                raise Unavailable(
                    f"the orchestrator's answer cannot be read: {garbage}"
                ) from garbage
        run_id = answer.get("run_id")
        if not isinstance(run_id, str) or not run_id:
            raise Unavailable("the orchestrator's answer has no run_id")
        run = msgspec.structs.replace(run, pushed=True)
        await self.runs.begin(run_id, run, [_run_started(run_id, run)])
        return run_id

    async def _begin_stream(self, run: RunRow, response: aiohttp.ClientResponse) -> str:
        """Wait for the first event; the rest is read on by a task of its own."""
        parser = SseParser()
        try:
            async with asyncio.timeout(self.agent_s):
                first, told, more = await first_events(response, parser)
        except (*NETWORK, Garbage, TooLong) as failed:
            response.close()
            raise Unavailable(f"the orchestrator's stream cannot be read: {failed!r}") from failed
        run_id = told.run_id
        if not run_id and told.type == deliveries.ERROR:
            response.close()
            raise Unavailable(str(told.members.get("message", "the orchestrator failed")))
        run_id = run_id or self.new_id("run")
        started = [_run_started(run_id, run)]
        if told.type != deliveries.RUN_STARTED:
            more = [first, *more]
        run = msgspec.structs.replace(run, last_id=first.event_id)
        run = await self.runs.begin(run_id, run, started)
        self._read_on(run_id, run, (response, parser), more)
        return run_id

    def _read_on(
        self,
        run_id: str,
        run: RunRow,
        opened: tuple[aiohttp.ClientResponse, SseParser] | None,
        heard: Sequence[SseEvent],
    ) -> None:
        task = asyncio.create_task(self._read(run_id, run, opened, heard), name=f"read {run_id}")
        self._reading[run_id] = task
        task.add_done_callback(lambda _: self._reading.pop(run_id, None))

    async def _read(
        self,
        run_id: str,
        run: RunRow,
        opened: tuple[aiohttp.ClientResponse, SseParser] | None,
        heard: Sequence[SseEvent],
    ) -> None:
        """A run's events, to their end; a stream that breaks off is taken up again where it can be."""
        why = BROKE_OFF
        failures, most = 0, RESUMES
        while failures < most:
            most = RESUMES
            try:
                if opened is None:
                    opened = await self._reopen(run_id, run)
                async for batch in batches(*opened, heard):
                    failures = 0
                    told = told_of(run_id, batch)
                    run = await self.runs.tell(run_id, run, told, last_id=batch[-1].event_id)
                    if run.ended:
                        return
            except TooLong as too_long:
                why = f"the orchestrator's stream cannot be read: {too_long}"
                break
            except (*NETWORK, ToolgateError) as failed:
                if isinstance(failed, NotFound):
                    most = RESUMES_OF_UNKNOWN
                log.warning("stream_broken run_id=%s error=%r", run_id, failed)
            except Exception:  # whatever it is, whoever waits for the run must hear of its end
                log.exception("stream_failed run_id=%s", run_id)
                why = "the ingress failed"
                break
            finally:
                if opened is not None:
                    opened[0].close()
            opened, heard = None, ()
            if not run.last_id:
                break  # it does not number its events: nobody could say where to go on
            await asyncio.sleep(min(RESUME_PAUSE_S * 2**failures, LONGEST_PAUSE_S))
            failures += 1
        if run_id in self._cancelling:
            return  # whoever cancels it tells how it ended
        while True:  # nobody else would tell of its end
            try:
                await self._broke_off(run_id, run, why)
            except Unavailable:
                log.exception("end_not_told run_id=%s", run_id)
                await asyncio.sleep(RESUME_PAUSE_S)
            else:
                return

    async def _broke_off(self, run_id: str, run: RunRow, why: str) -> None:
        ended = deliveries.failure(
            run_id, code="orchestrator_error", message=why, request_id=run.request_id
        )
        await self.runs.tell(run_id, run, [ended])

    async def _reopen(self, run_id: str, run: RunRow) -> tuple[aiohttp.ClientResponse, SseParser]:
        path = wire.RUN_EVENTS_PATH.format(run_id=_quoted(run_id))
        url = f"{self.url}{path}?{wire.AFTER_PARAMETER}={_quoted(run.last_id or '0')}"
        assert self._http is not None
        async with asyncio.timeout(self.answer_s):
            response = await self._http.get(
                url, headers={wire.HEADER_ACCEPT: wire.EVENT_STREAM_TYPE}
            )
        if response.status in NO_SUCH_STREAM:
            response.close()
            raise NotFound("the stream of run", run_id)
        if response.status != 200 or response.content_type != wire.EVENT_STREAM_TYPE:
            response.close()
            raise Unavailable(f"the orchestrator answered {response.status}")
        return response, SseParser()

    async def receive(self, session_id: str, delivery: Delivery) -> None:
        """An event that the orchestrator pushed. It may come before its invoke was answered."""
        if not delivery.run_id:
            await self.runs.tell_session(session_id, delivery)
            return
        run = await self._known(session_id, delivery.run_id)
        if run is None:
            run = RunRow(session_id, pushed=True, last_id=delivery.event_id)
            if delivery.type in deliveries.ENDS:
                await self.runs.tell(delivery.run_id, run, [delivery])
                return
            try:
                await self.runs.begin(delivery.run_id, run, [delivery], expected=0)
            except Conflict:  # another event of it came first
                run = await self.runs.find(delivery.run_id)
            else:
                return
        if run.session_id != session_id:
            raise NotFound("run", delivery.run_id)
        reads = delivery.run_id in self._reading
        if delivery.type == deliveries.RUN_STARTED or (reads and delivery.type not in BESIDE):
            return  # the client has been told, or will be by the stream
        event_id = delivery.event_id if run.pushed else ""
        if rows.was_told(run, event_id):
            return  # it is pushed again, as our answer was too late
        await self.runs.tell(delivery.run_id, run, [delivery], last_id=event_id)

    async def _known(self, session_id: str, run_id: str) -> RunRow | None:
        """A run that we know of, or shall once what is asked for in its session is answered."""
        with contextlib.suppress(NotFound):
            return await self.runs.find(run_id)
        asking = [task for key, task in self._asking.items() if key[0] == session_id]
        if asking:
            await asyncio.wait(asking, timeout=self.answer_s)
            with contextlib.suppress(NotFound):
                return await self.runs.find(run_id)
        return None

    async def submit_result(
        self, call_id: str, *, session_id: str, run_id: str, ok: bool, result: Any, error: Any
    ) -> Accepted:
        status = "SUCCEEDED" if ok else "FAILED"
        turn = self._turns.setdefault(call_id, asyncio.Lock())
        async with turn:  # or two of ours would both be first
            row, found = await self.runs.waiting(
                rows.CALLS, call_id, session_id=session_id, run_id=run_id
            )
            if (await self.runs.find(found.run_id)).ended:
                raise Conflict(f"run {found.run_id} has ended")
            if found.settled:
                raise Conflict(f"tool call {call_id} has ended already")
            body: dict[str, Any] = {"run_id": found.run_id, "tool_call_id": call_id}
            body |= {"ok": ok, "status": status}
            body |= {"result": result} if ok else {"error": _as_text(error)}
            stands = await self._submit(row, found, body)
        if stands != status:
            raise Conflict(f"tool call {call_id} is {stands}")
        return await self._accepted(found.run_id)

    async def client_offline(self, run_id: str, call_id: str, *, taken: bool = False) -> None:
        offline = {
            "code": wire.ErrorCode.CLIENT_OFFLINE.value,
            "message": "the client is not connected",
        }
        await self.submit_result(
            call_id, session_id="", run_id=run_id, ok=False, result=None, error=offline
        )

    async def _submit(self, row: Row, found: WaitingRow, body: dict[str, Any]) -> str:
        """Send a result and return the final status; the row is closed only if it was taken."""
        answer = await self._ask(wire.SUBMIT_PATH.format(tool_call_id=_quoted(row.key)), body)
        await self.runs.close(row, found)
        return _stands(answer, CALL_ENDS, body["status"])

    async def decide_approval(
        self,
        approval_id: str,
        *,
        session_id: str,
        run_id: str,
        approve: bool,
        reason: str,
        decided_by: Identity,
    ) -> Accepted:
        row, found = await self.runs.waiting(
            rows.APPROVALS, approval_id, session_id=session_id, run_id=run_id
        )
        if found.settled:
            raise Conflict(f"approval {approval_id} is {found.verdict.lower()} already")
        if (await self.runs.find(found.run_id)).ended:
            raise Conflict(f"run {found.run_id} has ended")
        deciding = self._deciding.get(approval_id)
        if deciding is not None:  # someone of ours was first: what comes of it stands
            stands = await asyncio.shield(deciding)
            raise Conflict(f"approval {approval_id} is {stands.lower()} already")
        decision = Decision.APPROVE if approve else Decision.REJECT
        body = wire.ApprovalDecide(decision, reason, decided_by.user)
        deciding = asyncio.create_task(self._decide(row, found, body))
        self._deciding[approval_id] = deciding
        deciding.add_done_callback(lambda _: self._deciding.pop(approval_id, None))
        stands = await asyncio.shield(deciding)
        if stands != VERDICTS[decision]:
            raise Conflict(f"approval {approval_id} is {stands.lower()} already")
        return await self._accepted(found.run_id)

    async def _accepted(self, run_id: str) -> Accepted:
        return Accepted(run_id, await self.runs.state_of(run_id))

    async def _decide(self, row: Row, found: WaitingRow, body: wire.ApprovalDecide) -> str:
        """Hand a decision over; the verdict that stands."""
        answer = await self._ask(wire.DECIDE_PATH.format(approval_id=_quoted(row.key)), body)
        stands = _stands(answer, APPROVAL_ENDS, VERDICTS[body.decision])
        await self.runs.close(row, found, verdict=stands)
        return stands

    async def cancel(self, run_id: str, *, session_id: str, reason: str) -> Accepted:
        run = await self.runs.of_session(run_id, session_id)
        if not run.ended:
            await self._cancel(run_id, run, reason)
        state = await self.runs.state_of(run_id)
        return Accepted(run_id, state, already=run.ended)

    async def _cancel(self, run_id: str, run: RunRow, reason: str) -> None:
        self._cancelling.add(run_id)
        answer: Mapping[str, Any] = {}
        try:
            with contextlib.suppress(_NotKnownThere):
                answer = await self._ask(
                    wire.CANCEL_PATH.format(run_id=_quoted(run_id)), wire.CancelRequest(reason)
                )
            status = str(answer.get("status")).upper()
            if status in OTHER_ENDS:  # that was first, and is on its way to us
                await self._let_end(run_id, run, status)
                return
            reading = self._reading.get(run_id)
            if reading is not None:
                await asyncio.wait([reading], timeout=CANCELLED_S)
                reading.cancel()
        except ToolgateError:
            await self._leave_end(run_id, run)
            raise
        finally:
            self._cancelling.discard(run_id)
        run = await self.runs.find(run_id)
        await self.runs.tell(run_id, run, deliveries.cancelled(run_id, reason, {}))

    async def _leave_end(self, run_id: str, run: RunRow) -> None:
        """To whoever tells of the run; where its reader has left it to us, there is nobody else."""
        if not run.pushed and run_id not in self._reading:
            await self._broke_off(run_id, run, BROKE_OFF)

    async def _let_end(self, run_id: str, run: RunRow, status: str) -> None:
        """As its orchestrator says that it has; a push of that may have been given up long ago."""
        if not run.pushed:
            await self._leave_end(run_id, run)
            return
        for _ in range(LOOKS):
            run = await self.runs.find(run_id)
            if run.ended:
                return
            await asyncio.sleep(CANCELLED_S / LOOKS)
        if status == RunStatus.DONE:
            members = {"run_id": run_id, "usage": {}}
            await self.runs.tell(run_id, run, [Delivery(deliveries.DONE, run_id, members)])
        else:
            await self._broke_off(run_id, run, "the run failed")

    async def register_tools(self, session_id: str, tools: Sequence[Tool]) -> None:
        named: list[wire.ClientTool | str] = [
            wire.ClientTool(
                name=tool.name,
                description=tool.description,
                input_schema=dict(tool.schema),
                level=tool.level,
                repeatable=tool.repeatable,
            )
            for tool in tools
        ]
        self._untold.pop(session_id, None)
        await self._tell_tools(session_id, wire.RegisterTools(named))

    async def _tell_tools(self, session_id: str, tools: wire.RegisterTools) -> None:
        path = wire.SESSION_TOOLS_PATH.format(session_id=_quoted(session_id))
        try:
            async with asyncio.timeout(TOOLS_S):
                await self._ask(path, tools)
        except (ToolgateError, TimeoutError) as failed:
            log.warning("tools_not_registered session_id=%s error=%r", session_id, failed)
            away = isinstance(failed, Unavailable | TimeoutError)
            if away and len(self._untold) < MAX_UNTOLD:
                self._untold.setdefault(session_id, tools)

    async def session_of(self, run_id: str) -> str:
        return (await self.runs.find(run_id)).session_id

    async def open_runs(self, session_id: str = "") -> list[tuple[str, str]]:
        return await self.runs.open_runs(session_id)

    async def snapshot(self, session_id: str) -> list[Delivery]:
        return await self.runs.snapshot(session_id)

    async def on_call_deadline(self, row: Row) -> None:
        """A device did not answer in time: the orchestrator is told, and told again where away."""
        timeout = {"code": wire.ErrorCode.TOOL_TIMEOUT.value, "message": "no result in time"}
        try:
            await self.submit_result(
                row.key, session_id="", run_id="", ok=False, result=None, error=timeout
            )
        except Unavailable:
            await self.runs.postpone(row, due=self.runs.clock.now_ms() + RETRY_MS)
        except ToolgateError as settled:
            log.info("deadline_moot call_id=%s why=%s", row.key, settled)
            await self.runs.postpone(row, due=None)

    async def _ask(self, path: str, body: Any) -> Mapping[str, Any]:
        """Who answers 2xx has taken it, whatever else it says: the seed has no form for that."""
        response = await self._post(path, body)
        async with response:
            try:
                return await self._json(response)
            except Garbage:
                return {}

    async def _post(
        self,
        path: str,
        body: Any,
        *,
        accept: str = "application/json",
        within_s: float | None = None,
    ) -> aiohttp.ClientResponse:
        """An answer of 2xx; any other raises Declined or Unavailable."""
        assert self._http is not None
        headers = {wire.HEADER_ACCEPT: accept, "Content-Type": "application/json"}
        try:
            async with asyncio.timeout(within_s or self.answer_s):
                response = await self._http.post(
                    self.url + path, data=wire.encode(body), headers=headers
                )
                if response.status < 300:
                    return response
                refusal = await response.content.read(BODY_LIMIT)
                response.close()
        except NETWORK as failed:
            raise Unavailable("the orchestrator does not answer") from failed
        if response.status == HTTPStatus.UNAUTHORIZED:
            log.error(
                "orchestrator_refused status=401 set INTERNAL_TOKEN to the same value for ingress"
                " and orchestrator"
            )
        raise _refused(response.status, refusal)

    async def _json(self, response: aiohttp.ClientResponse) -> Mapping[str, Any]:
        try:
            async with asyncio.timeout(self.answer_s):
                body = await response.content.read(BODY_LIMIT)
            answer = msgspec.json.decode(body) if body.strip() else {}
        except NETWORK as failed:
            raise Unavailable("the orchestrator's answer cannot be read") from failed
        except UNREADABLE as unreadable:
            raise Garbage(str(unreadable)) from unreadable
        if not isinstance(answer, dict):
            raise Garbage("it is not an object")
        return answer


def _stands(answer: Mapping[str, Any], ends: Set[str], said: str) -> str:
    """How something ended, as an answer tells; what was said, where it tells nothing of that."""
    status = str(answer.get("status")).upper()
    return status if status in ends else said


def _quoted(name: str) -> str:
    """One part of a path, whatever signs another orchestrator's ids are made of."""
    return quote(name, safe="")


def _as_text(error: Any) -> str:
    """A device's error as one string: the contract has no other form for it."""
    match error:
        case str() if error:
            return error
        case {"code": str(code), "message": str(message)}:
            return f"{code}: {message}"
        case dict() if error:
            return wire.encode(error).decode()
        case _:
            return "the tool failed"


class _AgentUnknown(Declined):
    """Our own orchestrator has no such agent."""


class _NotKnownThere(Declined):
    """404: the orchestrator does not know the run, call or approval."""


def _refused(status: int, body: bytes) -> ToolgateError:
    """An answer that is not 2xx, with the orchestrator's own words."""
    said, code = body.decode(errors="replace"), ""
    with contextlib.suppress(*UNREADABLE):
        refusal = msgspec.json.decode(body)
        if isinstance(refusal, dict):
            code = str(refusal.get("error", ""))
            said = str(refusal.get("message") or refusal.get("error") or said)
    said = " ".join(said.split())[:TEXT_LIMIT]
    text = f"the orchestrator answered {status}" + (f": {said}" if said else "")
    if status >= 500 or status in TRY_AGAIN:
        return Unavailable(text)
    if code == wire.ErrorCode.UNKNOWN_AGENT:
        return _AgentUnknown(text)
    if code == wire.ErrorCode.HIDDEN_ARGUMENTS:
        return HiddenArguments(text)
    return _NotKnownThere(text) if status == 404 else Declined(text)


def _run_started(run_id: str, run: RunRow) -> Delivery:
    members = {
        "request_id": run.request_id,
        "run_id": run_id,
        "session_id": run.session_id,
        "agent_id": run.agent_id,
    }
    named = {name: value for name, value in members.items() if value}
    return Delivery(deliveries.RUN_STARTED, run_id, named)
