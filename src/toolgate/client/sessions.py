"""Talk to agents from Python: a session that survives its connections.

    async with connect("ws://127.0.0.1:8090/ws", user_id="me") as session:
        async for event in session.invoke("hello", agent_id="echo"):
            ...

Events are the messages of the ingress contract. A connection that breaks is opened again, what was
missed is replayed, and nothing is told twice.
"""

import asyncio
import contextlib
import itertools
import logging
import secrets
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from toolgate.client.sockets import Closed, Socket, open_socket
from toolgate.client.toolbox import Toolbox
from toolgate.contracts import ingress_v1 as wire
from toolgate.contracts.ingress_v1 import CloseCode, Reason
from toolgate.contracts.wire import UNREADABLE, field_of
from toolgate.core.enums import Decision, RunStatus

log = logging.getLogger(__name__)

Decide = Callable[[wire.ApprovalRequired], Awaitable[bool]]
Sleep = Callable[[float], Awaitable[None]]
Said = wire.ToolResult | wire.ApprovalDecision | wire.CancelRun

HELLO_S: Final = 10.0
BEYOND: Final = 2**53 - 1  # no session has so many events: it is answered with what is open now
HEARD: Final = 1000  # event ids that are remembered beside the number of the last
ASK_AGAIN_S: Final = 1.0  # after an approval that needs the operator first
FINAL: Final = frozenset({CloseCode.UNAUTHENTICATED, CloseCode.MESSAGE_TOO_BIG})


TOO_LARGE: Final = (
    "result_too_large: the tool's result is larger than a message to the server may be"
)


class Refused(Exception):
    """The server said no; `code` is its error code."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code


class Disconnected(Exception):
    """The connection is gone and could not be had again."""


class Superseded(Exception):
    """The same request was asked for again in this session: what comes of it goes there."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """How to come back: the seed's RECONNECT_CONFIG. `retries=None` never gives up."""

    initial_s: float = wire.RECONNECT.initial_delay_ms / 1000
    longest_s: float = wire.RECONNECT.max_delay_ms / 1000
    multiplier: float = wire.RECONNECT.multiplier
    retries: int | None = wire.RECONNECT.max_retries

    def pauses(self) -> Iterable[float]:
        endless = (
            min(self.initial_s * self.multiplier**attempt, self.longest_s)
            for attempt in itertools.count()
        )
        return itertools.islice(endless, self.retries)


@dataclass(slots=True)
class _Run:
    """One invocation, and what was heard of it and not yet read."""

    invoke: wire.AgentInvoke
    events: asyncio.Queue[wire.AnySessionEvent | Exception] = field(default_factory=asyncio.Queue)
    run_id: str = ""
    last_seq: int = 0


@dataclass(slots=True)
class Session:
    """Made by `connect`."""

    url: str
    user_id: str
    api_key: str = ""
    toolbox: Toolbox = field(default_factory=Toolbox)
    decide: Decide | None = None
    backoff: Backoff = field(default_factory=Backoff)
    sleep: Sleep = asyncio.sleep
    session_id: str = ""
    last_seq: int = 0
    epoch: str = ""
    connections: int = 0  # how often it was connected
    _socket: Socket | None = None
    _keeper: asyncio.Task[None] | None = None
    _work: set[asyncio.Task[None]] = field(default_factory=set)
    _asked: dict[str, _Run] = field(default_factory=dict)  # by request id
    _runs: dict[str, _Run] = field(default_factory=dict)  # by run id
    # The requests whose run this connection was told of.
    _started: deque[str] = field(default_factory=lambda: deque(maxlen=HEARD))
    # The tool calls at work and the questions to a person, by call and approval, with their run.
    _running: dict[str, tuple[str, asyncio.Task[None]]] = field(default_factory=dict)
    _questions: dict[str, tuple[str, asyncio.Task[None]]] = field(default_factory=dict)
    _decided: dict[str, wire.ApprovalRequired] = field(default_factory=dict)  # those of open runs
    _unheard: dict[str, Said] = field(default_factory=dict)  # not known to have arrived, by its id
    _missing: set[str] = field(default_factory=set)  # runs that a snapshot has not named so far
    _mark: str = ""  # what comes after it is no part of the snapshot
    _heard: deque[str] = field(default_factory=lambda: deque(maxlen=HEARD))
    _over: Exception | None = None

    async def open(self) -> None:
        """Connect and say hello; raises Refused or Disconnected."""
        try:
            await self._connect()
        except Closed as closed:
            raise Disconnected(str(closed)) from closed
        self._keeper = asyncio.create_task(self._keep(), name="toolgate session")

    async def close(self) -> None:
        tasks = [task for task in (self._keeper, *self._work) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._socket is not None:
            await self._socket.close()
        self._end(Disconnected("the session was closed"))

    async def invoke(
        self, content: str, *, agent_id: str, request_id: str = "", role: str = "user"
    ) -> AsyncIterator[wire.AnySessionEvent]:
        """Ask an agent; every event of the run, the last one `Done` or `Error`.

        Raises Superseded where the same request is asked for again meanwhile.
        """
        if self._over is not None:
            raise self._over
        request_id = request_id or f"req_{secrets.token_hex(8)}"
        message = wire.Message(role, content)
        run = _Run(wire.AgentInvoke(agent_id, message, request_id, ts=_now()))
        wire.encode(run.invoke)  # what cannot be sent is refused now, not at the next connection
        self._supersede(request_id)
        self._asked[request_id] = run
        if request_id in self._started and self._socket is not None:
            await self._socket.close()  # only who connects anew is told of a run from its start
        else:
            self._say(run.invoke)
        try:
            while True:
                event = await run.events.get()
                if isinstance(event, Exception):
                    raise event
                yield event
                if isinstance(event, wire.Done | wire.Error):
                    return
        finally:  # which may come when it was asked for again
            if self._asked.get(request_id) is run:
                del self._asked[request_id]
            if self._runs.get(run.run_id) is run:
                del self._runs[run.run_id]

    def _supersede(self, request_id: str) -> None:
        """A run has one reader here: who asked for it before would wait in vain."""
        if (earlier := self._asked.get(request_id)) is not None:
            self._runs.pop(earlier.run_id, None)
            earlier.events.put_nowait(Superseded(f"request {request_id} was asked for again"))

    async def ask(self, content: str, *, agent_id: str) -> str:
        """The whole of an agent's answer; raises Refused where the run ends badly."""
        said: list[str] = []
        async for event in self.invoke(content, agent_id=agent_id):
            if isinstance(event, wire.Delta):
                said.append(event.text)
            elif isinstance(event, wire.State) and (back := retracted(event)):
                said = ["".join(said)[:-back]]
            elif isinstance(event, wire.State) and event.state == RunStatus.CANCELLED:
                raise Refused("cancelled", "the run was cancelled")
            elif isinstance(event, wire.Error):
                raise Refused(event.code, event.message)
        return "".join(said)

    def approve(self, asked: wire.ApprovalRequired, *, reason: str = "") -> None:
        self._decide(asked, Decision.APPROVE, reason)

    def reject(self, asked: wire.ApprovalRequired, *, reason: str = "") -> None:
        self._decide(asked, Decision.REJECT, reason)

    def cancel(self, run_id: str) -> None:
        self._say_surely(run_id, wire.CancelRun(run_id, ts=_now()))

    def _decide(self, asked: wire.ApprovalRequired, decision: Decision, reason: str) -> None:
        said = wire.ApprovalDecision(asked.approval_id, decision, asked.run_id, reason, ts=_now())
        self._say_surely(asked.approval_id, said)

    def _say_surely(self, key: str, message: Said) -> None:
        """Now, and by each next connection until its run goes on or it is refused for good."""
        message = msgspec.structs.replace(message, request_id=key)  # a refusal names it so
        wire.encode(message)
        self._unheard[key] = message
        self._say(message)

    def _say(self, message: wire.AnyClientMessage) -> None:
        """Now, where there is a connection; what must not be lost is said again by the next."""
        if self._socket is not None and self._socket.is_open:
            with contextlib.suppress(Closed):
                self._socket.send(wire.encode(message))

    async def _connect(self) -> None:
        socket = await open_socket(self.url)
        try:
            async with asyncio.timeout(HELLO_S):
                socket.send(wire.encode(self._hello()))
                ack = wire.decode_server(await socket.receive())
        except TimeoutError as silent:
            await socket.close()
            raise Closed(1006, "no answer to hello") from silent
        except UNREADABLE as unreadable:
            await socket.close()
            raise Disconnected(f"no answer to hello: {unreadable}") from unreadable
        except BaseException:
            await socket.close()
            raise
        if isinstance(ack, wire.Error):
            await socket.close()
            raise Refused(ack.code, ack.message)
        if not isinstance(ack, wire.HelloAck):
            await socket.close()
            raise Disconnected("no answer to hello")
        if not ack.resumed or not self._knows_its_place:
            self.last_seq = 0 if isinstance(ack.seq, msgspec.UnsetType) else ack.seq
            self._heard.clear()  # a restored journal gives numbers and ids anew
            for run in self._runs.values():
                run.last_seq = self.last_seq
        self.session_id, self.epoch = ack.session_id, ack.epoch
        self._socket = socket
        self._started.clear()
        self.connections += 1
        for run in self._asked.values():
            if not run.run_id:
                self._say(run.invoke)  # the same request_id is the same run
        for said in self._unheard.values():
            self._say(said)
        if not ack.resumed and self._runs:
            self._look_for_ended()

    def _look_for_ended(self) -> None:
        """A snapshot names the open runs and has no end: a second hello is refused after it."""
        self._missing = set(self._runs)
        self._mark = f"mark_{secrets.token_hex(8)}"
        self._say(msgspec.structs.replace(self._hello(), request_id=self._mark))

    def _snapshot_ended(self) -> None:
        self._mark = ""
        for run_id in self._missing:
            if (run := self._runs.get(run_id)) is not None:
                gone = Disconnected(f"run {run_id} ended while the connection was gone")
                run.events.put_nowait(gone)
                self._stop_work_of(run_id)

    def _hello(self) -> wire.Hello:
        tools: list[wire.ClientTool | str] = [*self.toolbox.described]
        return wire.Hello(
            ts=_now(),
            user_id=self.user_id,
            api_key=self.api_key,
            client_meta=wire.ClientMeta(app="toolgate.client", tools=tools),
            session_id=self.session_id,
            last_seq=self.last_seq if self._knows_its_place else BEYOND,
            epoch=self.epoch,
        )

    @property
    def _knows_its_place(self) -> bool:
        """Or else it asks for what waits now, not for all that was ever done in the session."""
        return bool(self.connections or self.last_seq)

    async def _keep(self) -> None:
        """Read what comes; connect again when it ends."""
        try:
            while True:
                why = await self._read()
                too_big = why.code == CloseCode.MESSAGE_TOO_BIG
                if why.code in FINAL and not (too_big and self._give_up_the_largest(why)):
                    raise Disconnected(str(why))
                await self._reconnect(why)
        except (Disconnected, Refused) as over:
            self._end(over)

    async def _read(self) -> Closed:
        assert self._socket is not None
        try:
            while True:
                received = await self._socket.receive()
                try:
                    message = wire.decode_server(received)
                except msgspec.ValidationError as unreadable:
                    if field_of(unreadable) != "$.type":
                        raise
                    log.info("unknown_message error=%s", unreadable)
                    continue
                self._take(message)
        except Closed as closed:
            return closed
        except UNREADABLE as unreadable:
            await self._socket.close()
            raise Disconnected(f"what came cannot be read: {unreadable}") from unreadable

    def _give_up_the_largest(self, why: Closed) -> bool:
        """Whether it is known what was too big: who asked is told, or a tool's agent in its place."""
        unanswered = {key: run.invoke for key, run in self._asked.items() if not run.run_id}
        sizes = {
            key: len(wire.encode(said)) for key, said in {**unanswered, **self._unheard}.items()
        }
        key = max(sizes, key=sizes.__getitem__, default="")
        if key in unanswered:
            self._asked.pop(key).events.put_nowait(Disconnected(str(why)))
            return True
        said = self._unheard.get(key)
        if not isinstance(said, wire.ToolResult) or said.error == TOO_LARGE:
            return False
        self._unheard[key] = msgspec.structs.replace(
            said, ok=False, result=msgspec.UNSET, error=TOO_LARGE
        )
        return True

    async def _reconnect(self, why: Closed) -> None:
        for pause in self.backoff.pauses():
            log.info("reconnecting session_id=%s pause_s=%.1f", self.session_id, pause)
            await self.sleep(pause)
            try:
                await self._connect()
            except Closed as again:
                why = again
            except Refused as refused:
                if refused.code != wire.ErrorCode.INTERNAL_ERROR:
                    raise
                why = Closed(CloseCode.INTERNAL_ERROR, str(refused))  # it may pass
            else:
                return
        raise Disconnected(str(why))

    def _take(self, message: wire.AnyServerMessage) -> None:
        if isinstance(message, wire.HelloAck) or self._is_known(message):
            return
        if isinstance(message, wire.Error) and self._mark and message.request_id == self._mark:
            self._snapshot_ended()
            return
        run = self._runs.get(message.run_id) or self._asked.get(message.request_id)
        if isinstance(message, wire.RunStarted):
            self._started.append(message.request_id)
        if isinstance(message, wire.RunStarted) and run is not None:
            run.run_id = message.run_id
            self._runs[message.run_id] = run
        if isinstance(message, wire.Error) and not message.seq:
            log.warning("refused code=%s message=%s", message.code, message.message)
            is_hidden = (
                isinstance(message.detail, dict)
                and message.detail.get("reason") == Reason.HIDDEN_ARGUMENTS
            )
            if message.code == wire.ErrorCode.INVALID_MESSAGE or is_hidden:
                self._unheard.pop(message.request_id, None)
            if is_hidden and (asked := self._decided.get(message.request_id)) is not None:
                self._ask(asked, after_s=ASK_AGAIN_S)
            if run is None or run.run_id:
                return  # about a result or a decision that came too late, not the run's end
        elif message.run_id:
            self._missing.discard(message.run_id)
            self._forget_heard(message)
        if isinstance(message, wire.ToolRequest) and self._is_ours_to_run(message):
            self._run(message)
        if isinstance(message, wire.ApprovalRequired) and self._is_ours_to_decide(message):
            self._ask(message)
        if isinstance(message, wire.Done | wire.Error):
            self._stop_work_of(message.run_id)
        if run is not None:
            run.events.put_nowait(message)

    def _is_known(self, event: wire.AnySessionEvent) -> bool:
        """Whether it was heard before, on this connection or an earlier one."""
        # A run of an earlier process is told from its start, though the session is far beyond, and
        # some of it was heard before it was asked for.
        run = self._runs.get(event.run_id) or self._asked.get(event.request_id)
        has_number_of_run = run is not None and event.seq
        if event.event_id and event.event_id in self._heard and not has_number_of_run:
            return True
        if event.event_id:
            self._heard.append(event.event_id)
        if not event.seq:
            return False
        if event.seq <= (self.last_seq if run is None else run.last_seq):
            return True
        if run is not None:
            run.last_seq = event.seq
        self.last_seq = max(self.last_seq, event.seq)
        return False

    def _forget_heard(self, event: wire.AnySessionEvent) -> None:
        """A run that goes on has had its results and decisions, and one that ended its cancel."""
        if isinstance(event, wire.ToolRequest | wire.ApprovalRequired | wire.State):
            return
        ended = isinstance(event, wire.Done | wire.Error)
        for key, said in tuple(self._unheard.items()):
            if said.run_id == event.run_id and (ended or not isinstance(said, wire.CancelRun)):
                del self._unheard[key]

    def _is_ours_to_run(self, request: wire.ToolRequest) -> bool:
        """A snapshot asks again for what it does not know to be at work or done."""
        call_id = request.tool_call_id
        at_work = call_id in self._running or call_id in self._unheard
        return request.tool_name in self.toolbox and not at_work

    def _is_ours_to_decide(self, asked: wire.ApprovalRequired) -> bool:
        """A snapshot asks again for what a person is being asked, or has answered."""
        key = asked.approval_id
        return self.decide is not None and key not in self._questions and key not in self._unheard

    def _ask(self, asked: wire.ApprovalRequired, *, after_s: float = 0) -> None:
        key, asking = asked.approval_id, self._start(self._ask_person(asked, after_s))
        self._questions[key] = asked.run_id, asking
        asking.add_done_callback(lambda _: self._questions.pop(key, None))

    def _stop_work_of(self, run_id: str) -> None:
        """The run has ended: others gave its results and decisions, or nobody needs them any more."""
        for of_run, work in (*self._questions.values(), *self._running.values()):
            if of_run == run_id:
                work.cancel()
        for key in [key for key, asked in self._decided.items() if asked.run_id == run_id]:
            del self._decided[key]

    def _run(self, request: wire.ToolRequest) -> None:
        key, running = request.tool_call_id, self._start(self._run_tool(request))
        self._running[key] = request.run_id, running
        running.add_done_callback(lambda _: self._running.pop(key, None))

    async def _run_tool(self, request: wire.ToolRequest) -> None:
        result = await self.toolbox.run(request, now=_now())
        self._say_surely(request.tool_call_id, result)

    async def _ask_person(self, asked: wire.ApprovalRequired, after_s: float) -> None:
        assert self.decide is not None
        if after_s:
            await self.sleep(after_s)
        self._decided[asked.approval_id] = asked
        try:
            approved = await self.decide(asked)
        except Exception as failed:  # whatever it is, whoever waits for the run would wait in vain
            log.exception("not_asked approval_id=%s", asked.approval_id)
            if (run := self._runs.get(asked.run_id)) is not None:
                run.events.put_nowait(failed)
            return
        if approved:
            self.approve(asked)
        else:
            self.reject(asked)

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._work.add(task)
        task.add_done_callback(self._work.discard)
        return task

    def _end(self, why: Exception) -> None:
        self._over = self._over or why
        for run in self._asked.values():
            run.events.put_nowait(why)


def retracted(event: wire.State) -> int:
    """How much of what was said last does not count: the agent was interrupted, and begins anew."""
    back = event.detail.get(wire.RETRACTED) if isinstance(event.detail, dict) else None
    return back if isinstance(back, int) and back > 0 else 0


def _now() -> int:
    return time.time_ns() // 1_000_000


@contextlib.asynccontextmanager
async def connect(
    url: str,
    *,
    user_id: str,
    api_key: str = "",
    session_id: str = "",
    toolbox: Toolbox | None = None,
    decide: Decide | None = None,
    backoff: Backoff | None = None,
) -> AsyncIterator[Session]:
    """A session with an ingress; with `session_id`, an earlier one of this user's."""
    session = Session(
        url,
        user_id,
        api_key,
        toolbox=toolbox or Toolbox(),
        decide=decide,
        backoff=backoff or Backoff(),
        session_id=session_id,
    )
    await session.open()
    try:
        yield session
    finally:
        await session.close()
