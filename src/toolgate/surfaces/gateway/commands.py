"""Commands: let in, run once, answered, remembered. The same by HTTP and by WebSocket.

In this order: read it, look for its key, pay for it, check its rights, write down that it begins,
run its plan, write down how it ended, answer. Each of the two writings is one commit.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from toolgate.admission.admit import Bucket, Claim, Keys, Paid, RateLimits, first_use, request_hash
from toolgate.admission.audit import Trail
from toolgate.admission.capabilities import Capabilities
from toolgate.admission.refusals import Forbidden, RateLimited
from toolgate.admission.registry import Registry
from toolgate.contracts import gateway_v1 as wire
from toolgate.contracts.wire import given
from toolgate.domain.devices import Identity, Kind, Who
from toolgate.domain.errors import Conflict, Invalid, NotFound, Refused, Unavailable
from toolgate.domain.idempotency import Known
from toolgate.domain.ratelimit import Rate
from toolgate.domain.tools import JsonValue, Level
from toolgate.ports.bus import Bus
from toolgate.ports.clock import Clock
from toolgate.ports.ids import NewId
from toolgate.ports.journal import Append, Delete, Event, Journal, NewEvent, Operation, Put, Row
from toolgate.ports.seal import Seal
from toolgate.surfaces.gateway.answers import (
    EXPECTED,
    Code,
    Headers,
    Problem,
    Reply,
    failure,
    problem_of,
    rate_headers,
    success,
)
from toolgate.surfaces.gateway.bodies import canonical, check_id
from toolgate.surfaces.gateway.plans import Done, Plan, Planner, Ticket, Waiting
from toolgate.surfaces.gateway.traces import trace_id_of

log = logging.getLogger(__name__)

STREAM: Final = "gateway"  # what /events/poll reads
OPEN: Final = "open_commands"  # those that wait for a person or for a run
STATES: Final = "commands"  # what GET /command/{requestId} answers
SOON_S: Final = 0.02
STATE_KEPT_MS: Final = 24 * 3600 * 1000
EVENT_TYPES: Final = {
    Kind.AGENT: wire.EventType.AGENT,
    Kind.TOOL: wire.EventType.TOOL,
    Kind.SYSTEM: wire.EventType.TOOL,
    Kind.MCP: wire.EventType.MCP,
}


@dataclass(frozen=True, slots=True)
class Asked:
    """A command as it came in, by whichever door."""

    kind: Kind
    identity: Identity
    raw: bytes
    request_id: str = ""  # X-Request-Id
    key: str = ""  # Idempotency-Key
    traceparent: str = ""


class Entered(msgspec.Struct, frozen=True):
    """A command that could be read, with the names it goes by."""

    kind: Kind
    identity: Identity
    raw: bytes
    command: Any
    level: Level | None  # as declared
    command_id: str
    request_id: str
    named: bool  # the caller chose the request id
    key: str
    request_hash: str
    trace_id: str
    at: int
    started: float


class OpenCommand(msgspec.Struct, frozen=True):
    """What is kept, sealed, of a command that waits."""

    kind: Kind
    who: str
    raw: bytes
    command_id: str
    request_id: str
    key: str
    request_hash: str
    trace_id: str
    at: int
    approval_id: str
    run_id: str


class State(msgspec.Struct, frozen=True):
    command_id: str
    status: wire.CommandStatus
    approval_id: str = ""
    run_id: str = ""
    body: bytes = b""


_pack: Final = msgspec.msgpack.Encoder().encode
_unpack_open: Final = msgspec.msgpack.Decoder(OpenCommand).decode
_unpack_state: Final = msgspec.msgpack.Decoder(State).decode
_decode_answer: Final = msgspec.json.Decoder(wire.Answer).decode


@dataclass(slots=True)
class Commands:
    journal: Journal
    bus: Bus
    clock: Clock
    new_id: NewId
    seal: Seal
    registry: Registry
    limits: RateLimits
    keys: Keys
    capabilities: Capabilities
    trail: Trail
    planners: Mapping[Kind, Planner]
    rate: Rate
    wake_at: Callable[[int], None] = lambda _due: None
    in_flight: dict[str, tuple[Kind, wire.InFlight]] = field(default_factory=dict)
    _ends: dict[str, asyncio.Event] = field(default_factory=dict)  # command id: it moved
    _by_request: dict[tuple[str, str], str] = field(default_factory=dict)
    _wanted: dict[str, str] = field(default_factory=dict)  # run or approval: who waits for it
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _going_on: set[str] = field(default_factory=set)
    _unwritten: dict[str, list[Operation]] = field(default_factory=dict)

    async def load(self) -> None:
        """Take up the commands that waited when the last process ended."""
        self.bus.subscribe(None, self._hear)
        after = ""
        while rows := await self.journal.scan(OPEN, after=after):
            for row in rows:
                waiting = _unpack_open(self.seal.open(row.value))
                self._want(waiting)
                self._go_on_soon(waiting.command_id)
            after = rows[-1].key

    async def stop(self) -> None:
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def post(self, asked: Asked) -> Reply:
        """Never raises but when cancelled."""
        started = self.clock.monotonic()
        bucket = self._bucket(asked.identity)
        try:
            entered = self._read(asked, started)
        except EXPECTED as wrong:
            return await self._refuse_unread(asked, bucket, wrong)
        try:
            return await self._post(entered, bucket)
        except EXPECTED as wrong:
            problem = _problem(wrong, entered)
            return failure(problem, entered.trace_id, headers=self._headers(entered, bucket))

    def _read(self, asked: Asked, started: float) -> Entered:
        text = canonical(asked.raw)
        command = self.planners[asked.kind].decode(asked.raw)
        request_id = _one("X-Request-Id", asked.request_id, given(command.request_id, ""))
        key = _one("Idempotency-Key", asked.key, given(command.idempotency_key, ""))
        declared = None
        if command.security is not msgspec.UNSET:
            declared = given(command.security.level, None)
        body_trace = "" if command.trace is msgspec.UNSET else given(command.trace.trace_id, "")
        command_id = self.new_id("cmd")
        return Entered(
            kind=asked.kind,
            identity=asked.identity,
            raw=asked.raw,
            command=command,
            level=None if declared is None else Level(declared),
            command_id=command_id,
            request_id=request_id or command_id,
            named=bool(request_id),
            key=key,
            request_hash=request_hash("POST", f"/command/{asked.kind}", text),
            trace_id=trace_id_of(body_trace, asked.traceparent),
            at=self.clock.now_ms(),
            started=started,
        )

    async def _post(self, entered: Entered, bucket: Bucket) -> Reply:
        who, key = entered.identity.name, entered.key
        if key and (known := await self._known(who, key, entered.request_hash)) is not None:
            return await self._again(entered, known, bucket)
        try:
            paid = self.limits.take(bucket)
        except RateLimited as too_soon:
            return await self._refuse(entered, None, too_soon, bucket)
        try:
            plan = await self.planners[entered.kind].plan(entered.command, entered.identity)
            self._check_rights(entered, plan)
            paid = self._pay_capabilities(plan, paid)
        except EXPECTED as refusal:
            return await self._refuse(entered, paid, refusal, bucket)
        if key and (known := await self._known(who, key, entered.request_hash)) is not None:
            self.limits.give_back(paid)  # someone was faster while the plan was made
            return await self._again(entered, known, bucket)
        return await self._begin(entered, plan, paid)

    async def _known(self, who: str, key: str, request_hash: str) -> Known | None:
        """What is known of a key, without a read where nothing is; raises KeyConflict."""
        while True:
            known = self.keys.remembered(who, key, request_hash)
            if known is not None or not self.keys.is_used(who, key):
                return known
            known = await self.keys.settled(who, key, request_hash)
            if known is not None or not self.keys.running(who, key):
                return known

    def _check_rights(self, entered: Entered, plan: Plan) -> None:
        declared = entered.level
        if declared is not None and declared.rank < plan.level.rank:
            raise Forbidden(f"{plan.name} is of level {plan.level}, above the declared {declared}")
        level = plan.level if declared is None else declared
        if outside := entered.identity.scope.refusal(entered.kind, level):
            raise Forbidden(outside)
        now = self.clock.now_ms()
        for name in plan.capabilities:
            capability = self.capabilities.get(name)
            if capability is not None and (refusal := capability.refusal(now)):
                raise Forbidden(refusal)
        if level is not Level.READ and not entered.key:
            raise Invalid(f"a command of level {level} needs an Idempotency-Key")

    def _pay_capabilities(self, plan: Plan, paid: Paid) -> Paid:
        buckets = [
            Bucket(f"capability/{name}", capability.rate, f"capability {name}")
            for name in plan.capabilities
            if (capability := self.capabilities.get(name)) is not None and capability.rate
        ]
        if not buckets:
            return paid
        more = self.limits.take(*buckets)
        return Paid(paid.spent, paid.before + more.before, paid.writes + more.writes)

    async def _begin(self, entered: Entered, plan: Plan, paid: Paid) -> Reply:
        """Hold the key, write down that it begins, run it."""
        begun: list[Operation] = [
            self._event(entered, plan, wire.EventStatus.STARTED),
            *self._audit_row(entered, plan.capabilities),
            *paid.writes,
        ]
        ticket = Ticket(entered.command_id, entered.request_id)
        claim = self._claim(entered) if entered.key else None
        if plan.level is Level.READ:
            self._write_soon(entered.command_id, begun)
            return await self._run(entered, plan, claim, ticket)
        assert claim is not None  # a write without a key was refused
        try:
            await self.journal.commit(*begun, self.keys.begin(claim))
        except BaseException:
            self.keys.release(claim, None)
            self.limits.give_back(paid)
            raise
        return await self._run(entered, plan, claim, ticket)

    def _claim(self, entered: Entered) -> Claim:
        first = first_use(
            entered.request_hash,
            command_id=entered.command_id,
            request_id=entered.request_id,
            now=entered.at,
        )
        return self.keys.claim(entered.identity.name, entered.key, first)

    def _write_soon(self, command_id: str, begun: list[Operation]) -> None:
        """That a reading command begins goes to the disk with its end, where that comes soon.

        Nothing depends on it: only what writes or signs must be on record before it runs.
        """
        self._unwritten[command_id] = begun

        def write() -> None:
            if self._unwritten.pop(command_id, None) is not None:
                self._in_background(self.journal.commit(*begun))

        asyncio.get_running_loop().call_later(SOON_S, write)

    async def _again(self, entered: Entered, known: Known, bucket: Bucket) -> Reply:
        """The first answer; or, of a command that was interrupted or waits, go on with it."""
        headers = self._headers(entered, bucket)
        if known.done:
            replayed = (wire.HEADER_IDEMPOTENT_REPLAYED, "true")
            return Reply(known.status, known.body, (*headers, replayed))
        who = entered.identity.name
        while self.keys.running(who, entered.key):
            settled = await self.keys.settled(who, entered.key, entered.request_hash)
            if settled is not None and settled.done:
                return await self._again(entered, settled, bucket)
        claim = self.keys.claim(who, entered.key, known)
        try:
            entered = msgspec.structs.replace(
                entered, command_id=known.command_id, request_id=known.request_id
            )
            plan = await self.planners[entered.kind].plan(entered.command, entered.identity)
            waiting = await self._waiting(known.command_id)
            ticket = Ticket(known.command_id, known.request_id, waiting.run_id if waiting else "")
        except BaseException:
            self.keys.release(claim, None)
            raise
        return await self._run(entered, plan, claim, ticket, again=True)

    async def _run(
        self,
        entered: Entered,
        plan: Plan,
        claim: Claim | None,
        ticket: Ticket,
        *,
        again: bool = False,
    ) -> Reply:
        headers = self._headers(entered, self._bucket(entered.identity))
        self._enter(entered, plan, ticket)
        known: Known | None = None
        try:
            outcome = await self._outcome(entered, plan, ticket)
            if isinstance(outcome, Waiting):
                return await self._wait(entered, plan, claim, outcome, headers, again=again)
            known, reply = await self._finish(entered, plan, claim, outcome, headers, again=again)
            return reply
        finally:
            self._leave(entered, ticket)
            if claim is not None:
                self.keys.release(claim, known)

    async def _outcome(self, entered: Entered, plan: Plan, ticket: Ticket) -> Done | Waiting:
        """What the plan came to. A fault of ours is no answer: the same key may try again."""
        try:
            return await plan.run(ticket)
        except (Problem, Invalid, Refused, Conflict, NotFound) as refusal:
            problem = problem_of(refusal)
            return Done(problem.data, problem)
        except Exception:
            begun = self._unwritten.pop(entered.command_id, ())
            failed = self._event(entered, plan, wire.EventStatus.FAILED)
            await self._try_commit([*begun, failed])
            raise

    async def _finish(
        self,
        entered: Entered,
        plan: Plan,
        claim: Claim | None,
        done: Done,
        headers: Headers,
        *,
        again: bool,
    ) -> tuple[Known | None, Reply]:
        if done.problem is None:
            status, reply = wire.EventStatus.SUCCEEDED, success(done.data, entered.trace_id)
        else:
            refused = done.problem.code is Code.PERMISSION_DENIED
            status = wire.EventStatus.REFUSED if refused else wire.EventStatus.FAILED
            reply = failure(done.problem, entered.trace_id)
        ended: list[Operation] = [
            *self._unwritten.pop(entered.command_id, ()),
            self._event(entered, plan, status),
        ]
        known = None
        if claim is not None:
            known, write = self.keys.answer(claim, reply.status, reply.body)
            ended.append(write)
        if entered.named or again:
            state = State(entered.command_id, wire.CommandStatus.DONE, body=reply.body)
            ended.append(self._state_row(entered, state))
        if again:
            ended.append(Delete(OPEN, entered.command_id))
        await self.journal.commit(*ended)
        self._forget(entered.command_id)
        return known, Reply(reply.status, reply.body, (*headers, *reply.headers))

    async def _wait(
        self,
        entered: Entered,
        plan: Plan,
        claim: Claim | None,
        waiting: Waiting,
        headers: Headers,
        *,
        again: bool,
    ) -> Reply:
        status = wire.CommandStatus.PENDING
        state = State(entered.command_id, status, waiting.approval_id, waiting.run_id)
        kept = OpenCommand(
            kind=entered.kind,
            who=entered.identity.name,
            raw=entered.raw,
            command_id=entered.command_id,
            request_id=entered.request_id,
            key=entered.key,
            request_hash=entered.request_hash,
            trace_id=entered.trace_id,
            at=entered.at,
            approval_id=waiting.approval_id,
            run_id=waiting.run_id,
        )
        before = await self._waiting(entered.command_id) if again else None
        if before is None or (before.approval_id, before.run_id) != (
            waiting.approval_id,
            waiting.run_id,
        ):
            due = waiting.expires_at + 1 if waiting.expires_at else None
            self._want(kept)
            await self.journal.commit(
                *self._unwritten.pop(entered.command_id, ()),
                *((self.keys.begin(claim),) if claim is not None else ()),
                Put(OPEN, entered.command_id, self.seal.close(_pack(kept)), due=due),
                self._state_row(entered, state),
                self._event(entered, plan, wire.EventStatus.PENDING, timed=False),
            )
            if due is not None:
                self.wake_at(due)
        data = wire.CommandState(
            status=status,
            request_id=entered.request_id,
            approval_id=waiting.approval_id or msgspec.UNSET,
            run_id=waiting.run_id or msgspec.UNSET,
        )
        return success(data, entered.trace_id, status=202, headers=headers)

    async def state(self, identity: Identity, request_id: str, *, wait: float) -> wire.CommandState:
        """Where a command of this caller stands, waiting so many seconds for its end."""
        ends_at = self.clock.monotonic() + wait
        while True:
            running = self._by_request.get((identity.name, request_id))
            found = await self._known_state(identity, request_id)
            if found is None and running is None:
                raise NotFound("command", request_id)
            command_id = running or (found.command_id if found is not None else "")
            if running is None and found is not None and found.status is not _DONE:
                self._go_on_soon(found.command_id)
            left = ends_at - self.clock.monotonic()
            if (found is not None and found.status is _DONE and running is None) or left <= 0:
                return _told(request_id, found, running=running is not None)
            moved = self._ends.setdefault(command_id, asyncio.Event())
            try:
                async with asyncio.timeout(left):
                    await moved.wait()
            except TimeoutError:
                continue

    async def _known_state(self, identity: Identity, request_id: str) -> State | None:
        row = await self.journal.get(STATES, _state_key(identity.name, request_id))
        return None if row is None else _unpack_state(self.seal.open(row.value))

    def _go_on_soon(self, command_id: str) -> None:
        if command_id not in self._going_on:
            self._going_on.add(command_id)
            self._in_background(self._go_on(command_id))

    async def _go_on(self, command_id: str) -> None:
        """Try again a command that waits: what it waited for may be there."""
        try:
            kept = await self._waiting(command_id)
            if kept is None or command_id in self.in_flight:
                return
            identity = self.registry.identity(kept.who)
            if identity is None:
                identity = Identity(Who.DEVICE, kept.who)  # revoked: it has no right left
            if kept.key and self.keys.running(kept.who, kept.key):
                return
            planner = self.planners[kept.kind]
            entered = Entered(
                kind=kept.kind,
                identity=identity,
                raw=kept.raw,
                command=planner.decode(kept.raw),
                level=None,
                command_id=kept.command_id,
                request_id=kept.request_id,
                named=True,
                key=kept.key,
                request_hash=kept.request_hash,
                trace_id=kept.trace_id,
                at=kept.at,
                started=self.clock.monotonic() - (self.clock.now_ms() - kept.at) / 1000,
            )
            claim = self._claim(entered) if kept.key else None
            plan = await self._plan_again(entered)
            ticket = Ticket(kept.command_id, kept.request_id, kept.run_id)
            await self._run(entered, plan, claim, ticket, again=True)
        except Exception:
            log.exception("command_not_resumed command_id=%s", command_id)
        finally:
            self._going_on.discard(command_id)

    async def _plan_again(self, entered: Entered) -> Plan:
        """As before; where the right to it was taken away meanwhile, a plan that says so."""
        try:
            plan = await self.planners[entered.kind].plan(entered.command, entered.identity)
            if outside := entered.identity.scope.refusal(entered.kind, plan.level):
                raise Forbidden(outside)
        except EXPECTED as refusal:
            problem = _problem(refusal, entered)

            async def refuse(_: Ticket) -> Done:
                return Done(problem.data, problem)

            return Plan(Level.READ, str(entered.kind), (), refuse)
        return plan

    async def on_open_due(self, row: Row) -> None:
        """An approval's time is over: the pipeline says what becomes of the call."""
        await self.journal.commit(Put(OPEN, row.key, row.value))
        self._go_on_soon(row.key)

    async def on_state_due(self, row: Row) -> None:
        await self.journal.commit(Delete(row.collection, row.key))

    def approval_decided(self, approval_id: str) -> None:
        if command_id := self._wanted.get(approval_id):
            self._go_on_soon(command_id)

    def _hear(self, events: Sequence[Event]) -> None:
        if not self._wanted:
            return
        for event in events:
            command_id = self._wanted.get(event.subject)
            if command_id is not None and not event.stream.startswith("session/"):
                self._go_on_soon(command_id)

    async def _waiting(self, command_id: str) -> OpenCommand | None:
        row = await self.journal.get(OPEN, command_id)
        return None if row is None else _unpack_open(self.seal.open(row.value))

    def _want(self, kept: OpenCommand) -> None:
        for name in (kept.approval_id, kept.run_id):
            if name:
                self._wanted[name] = kept.command_id

    def _forget(self, command_id: str) -> None:
        if self._wanted:
            gone = [name for name, who in self._wanted.items() if who == command_id]
            for name in gone:
                del self._wanted[name]

    def _enter(self, entered: Entered, plan: Plan, ticket: Ticket) -> None:
        flight = wire.InFlight(
            request_id=entered.request_id,
            name=plan.name,
            started_at=entered.at,
            device_id=entered.identity.name,
            run_id=ticket.run_id or msgspec.UNSET,
        )
        self.in_flight[entered.command_id] = (entered.kind, flight)
        self._by_request[entered.identity.name, entered.request_id] = entered.command_id

    def _leave(self, entered: Entered, ticket: Ticket) -> None:
        self.in_flight.pop(ticket.command_id, None)
        self._by_request.pop((entered.identity.name, entered.request_id), None)
        if (moved := self._ends.pop(ticket.command_id, None)) is not None:
            moved.set()

    async def _refuse_unread(self, asked: Asked, bucket: Bucket, wrong: Exception) -> Reply:
        problem = problem_of(wrong)
        trace_id = trace_id_of("", asked.traceparent)
        try:
            paid = self.limits.take(bucket)
        except RateLimited as too_soon:
            problem, paid = problem_of(too_soon), None
        if problem.code is Code.INTERNAL:
            log.error("command_unread trace_id=%s", trace_id, exc_info=wrong)
        metadata: dict[str, JsonValue] = {
            "deviceId": asked.identity.name,
            "decision": "deny",
            "code": problem.code,
            "traceId": trace_id,
        }
        note = self.trail.note(
            f"command.{asked.kind}", actor=asked.identity.name, metadata=metadata
        )
        await self._try_commit([*note, *(paid.writes if paid else ())])
        headers = rate_headers(self.limits.look(bucket))
        return failure(problem, trace_id, headers=_without(headers, problem.headers))

    async def _refuse(
        self, entered: Entered, paid: Paid | None, refusal: Exception, bucket: Bucket
    ) -> Reply:
        problem = _problem(refusal, entered)
        writes: list[Operation] = [
            *self._audit_row(entered, (), code=problem.code),
            *(paid.writes if paid else ()),
        ]
        if paid is not None:  # a caller that asks too often does not fill the stream
            named = Plan(Level.READ, _name_of(entered), (), _never)
            writes.append(self._event(entered, named, wire.EventStatus.STARTED))
            writes.append(self._event(entered, named, wire.EventStatus.REFUSED))
        await self._try_commit(writes)
        headers = self._headers(entered, bucket)
        return failure(problem, entered.trace_id, headers=_without(headers, problem.headers))

    async def _try_commit(self, writes: Sequence[Operation]) -> None:
        """For what is refused anyway: it is refused whether or not that can be written down."""
        try:
            await self.journal.commit(*writes)
        except Unavailable as unavailable:
            log.error("not_recorded error=%s", unavailable)

    def _audit_row(
        self, entered: Entered, capabilities: Sequence[str], *, code: str = ""
    ) -> Sequence[Operation]:
        metadata: dict[str, JsonValue] = {
            "deviceId": entered.identity.name,
            "capabilityId": ",".join(capabilities) or _name_of(entered),
            "idempotencyKey": entered.key or None,
            "requestHash": entered.request_hash,
            "requestId": entered.request_id,
            "traceId": entered.trace_id,
            "decision": "deny" if code else "allow",
        }
        if code:
            metadata["code"] = code
        return self.trail.note(
            f"command.{entered.kind}",
            actor=entered.identity.name,
            resource=("command", entered.command_id),
            metadata=metadata,
        )

    def _event(
        self, entered: Entered, plan: Plan, status: wire.EventStatus, *, timed: bool = True
    ) -> Append:
        ended = timed and status is not wire.EventStatus.STARTED
        took = max(0, int((self.clock.monotonic() - entered.started) * 1000))
        body = {
            "status": status,
            "source": entered.identity.name,
            "message": f"{plan.name} {status}",
            **({"durationMs": took} if ended else {}),
            "metadata": {
                "requestId": entered.request_id,
                "command": entered.kind,
                "traceId": entered.trace_id,
            },
        }
        return Append(STREAM, [NewEvent(EVENT_TYPES[entered.kind], wire.encode(body))])

    def _state_row(self, entered: Entered, state: State) -> Put:
        key = _state_key(entered.identity.name, entered.request_id)
        due = self.clock.now_ms() + STATE_KEPT_MS
        return Put(STATES, key, self.seal.close(_pack(state)), due=due)

    def _bucket(self, identity: Identity) -> Bucket:
        return Bucket(f"device/{identity.name}", self.rate, "this device")

    def _headers(self, entered: Entered, bucket: Bucket) -> Headers:
        told = rate_headers(self.limits.look(bucket))
        return (*told, (wire.HEADER_REQUEST_ID, entered.request_id)) if entered.named else told

    def _in_background(self, work: Any) -> None:
        async def quietly() -> None:
            try:
                await work
            except Unavailable as unavailable:
                log.error("not_written error=%s", unavailable)

        task = asyncio.create_task(quietly())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


_DONE: Final = wire.CommandStatus.DONE


async def _never(_: Ticket) -> Done:  # pragma: no cover - of a command that is refused
    raise AssertionError


def _one(header: str, from_header: str, from_body: str) -> str:
    """One thing that can be said in two places; raises Invalid where they differ."""
    if from_header and from_body and from_header != from_body:
        raise Invalid(f"{header} and the body do not say the same")
    value = from_header or from_body
    return check_id(header, value) if value else ""


def _problem(error: Exception, entered: Entered) -> Problem:
    problem = problem_of(error)
    if problem.code is Code.INTERNAL and not isinstance(error, Problem):
        log.error(
            "command_failed command_id=%s trace_id=%s",
            entered.command_id,
            entered.trace_id,
            exc_info=error,
        )
    return problem


def _name_of(entered: Entered) -> str:
    """What the caller asked for, as far as it can be told."""
    payload = entered.command.payload
    match entered.kind:
        case Kind.AGENT:
            name = payload.agent_id
        case Kind.SYSTEM:
            name = payload.action
        case Kind.MCP:
            name = payload.capability_id
        case _:
            calls = given(payload.tool_calls, [])
            name = calls[0].name if calls else given(payload.name, "")
    return str(name)[:80]


def _state_key(who: str, request_id: str) -> str:
    return f"{who}\n{request_id}"


def _without(headers: Headers, given_later: Headers) -> Headers:
    later = {name for name, _ in given_later}
    return tuple((name, value) for name, value in headers if name not in later)


def _told(request_id: str, state: State | None, *, running: bool) -> wire.CommandState:
    if state is None or running:
        return wire.CommandState(status=wire.CommandStatus.RUNNING, request_id=request_id)
    pending = state.status is wire.CommandStatus.PENDING
    status = state.status
    if pending and not state.approval_id:
        status = wire.CommandStatus.RUNNING
    return wire.CommandState(
        status=status,
        request_id=request_id,
        approval_id=state.approval_id or msgspec.UNSET,
        run_id=state.run_id or msgspec.UNSET,
        answer=_decode_answer(state.body) if state.status is _DONE else msgspec.UNSET,
    )
