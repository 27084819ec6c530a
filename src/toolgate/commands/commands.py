"""Commands: admitted, run once, answered, remembered. The same by HTTP and by WebSocket.

The order: parse, look up the idempotency key, charge the device's rate limit, plan, run, answer. The
gate decides whether the caller may make the calls of the plan.
A command's start and end are written in the commits that the gate makes for its calls.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import msgspec

from toolgate.access.devices import Identity, Who
from toolgate.access.rate_limits import Bucket, Paid, RateLimits
from toolgate.access.ratelimit import Rate, Spent
from toolgate.access.refusals import Forbidden, KeyConflict, RateLimited
from toolgate.access.registry import Registry
from toolgate.access.revocations import REASON
from toolgate.commands.answers import (
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
from toolgate.commands.idempotency import Known
from toolgate.commands.keys import Claim, Keys, first_use
from toolgate.commands.plans import Done, Plan, Planner, Waiting, denied
from toolgate.commands.reading import (
    Asked,
    Entered,
    name_of,
    problem_with,
    read,
)
from toolgate.commands.records import Records
from toolgate.commands.states import OpenCommand, States
from toolgate.contracts import gateway_v1 as wire
from toolgate.core.clock import Clock
from toolgate.core.enums import CommandKind, Level, Outcome
from toolgate.core.errors import Conflict, Invalid, NotFound, Refused, Unavailable
from toolgate.core.ids import NewId
from toolgate.core.tools import CommandScope, ToolOutput
from toolgate.http.traces import trace_id_of
from toolgate.journal.journal import Journal, Operation
from toolgate.policy.refusal_texts import OUTSIDE_SCOPE
from toolgate.tools.limits import CapabilityLimits
from toolgate.tools.outcomes import (
    NOT_ADMITTED,
    Allowed,
    Answer,
    Begun,
    Denied,
    Pending,
    Ran,
    ToolGate,
)
from toolgate.tools.updates import Piece, Updates

log = logging.getLogger(__name__)

_INTERRUPTED: Final = Problem(
    Code.INTERNAL,
    "the gateway was stopped while this ran; the same Idempotency-Key tells what is known",
    outcome=Outcome.MAY_HAVE_EXECUTED,
)


_NOT_ANY_MORE: Final = Denied("blocked", OUTSIDE_SCOPE, REASON)


class NotAdmitted(Problem):
    """No answer of the command: the same key may try again."""


@dataclass(slots=True)
class _Work:
    """A command that was admitted, and how much of it is on disk."""

    entered: Entered
    plan: Plan
    claim: Claim | None
    paid: Paid | None = None  # of a command that is new
    begin: Sequence[Operation] = ()  # its start, until `began`
    began: bool = False
    again: bool = False  # taken up after it waited or was interrupted
    run_id: str = ""
    waited: Waiting | None = None  # what the row says that it waits for

    def unwritten(self) -> Sequence[Operation]:
        return () if self.began else self.begin


@dataclass(frozen=True, slots=True)
class _End:
    """A command's answer, and what must be on disk before it is given."""

    known: Known | None
    reply: Reply
    operations: Sequence[Operation]


@dataclass(frozen=True, slots=True)
class Commands:
    journal: Journal
    clock: Clock
    new_id: NewId
    registry: Registry
    limits: RateLimits
    keys: Keys
    capability_limits: CapabilityLimits
    records: Records
    states: States
    planners: Mapping[CommandKind, Planner]
    gate: ToolGate
    rate: Rate
    wake_at: Callable[[int], None] = lambda _due: None

    async def load(self) -> None:
        for slot, known in await self.keys.load():
            await self._tell_interrupted(slot, known)
        await self.states.load(self._resume)

    async def post(self, asked: Asked) -> Reply:
        """Never raises but when cancelled."""
        try:
            entered = read(
                asked,
                self.planners[asked.kind],
                command_id=self.new_id("cmd"),
                at=self.clock.now_ms(),
                started=self.clock.monotonic(),
            )
        except EXPECTED as wrong:
            return await self.refuse(asked, wrong)
        bucket = self._bucket_of(asked.identity)
        try:
            return await self._post(entered, bucket)
        except Exception as wrong:  # noqa: BLE001 -- a fault of ours is logged as such
            problem = problem_with(entered, wrong)
            headers = _headers(entered, self.limits.look(bucket))
            return failure(problem, entered.trace_id, headers=_without(headers, problem.headers))

    async def _post(self, entered: Entered, bucket: Bucket) -> Reply:
        slot = entered.slot
        conflict: KeyConflict | None = None
        if slot and self.keys.is_used(slot):
            try:
                known = await self._known(slot, entered.request_hash)
            except KeyConflict as other:
                conflict = other  # paid for as any other refusal is: it leaves a row
            else:
                if known is not None:
                    return await self._again(entered, known, bucket)
        try:
            paid = self.limits.take(bucket)
        except RateLimited as too_soon:
            return await self._refuse(entered, None, too_soon, bucket)
        try:
            if conflict is not None:
                raise conflict
            plan = await self.planners[entered.kind].plan(
                entered.command, entered.identity, entered.command_id
            )
            paid = self._admit(entered, plan, paid)
            known = None
            if slot and self.keys.is_used(slot):  # someone may have been faster meanwhile
                known = await self._known(slot, entered.request_hash)
        except EXPECTED as refusal:
            return await self._refuse(entered, paid, refusal, bucket)
        if known is not None:
            self.limits.give_back(paid)
            return await self._again(entered, known, bucket)
        return await self._begin(entered, plan, paid)

    async def _known(self, slot: str, request_hash: str) -> Known | None:
        """What is known of a key, without a read where nothing is; raises KeyConflict."""
        while True:
            known = self.keys.remembered(slot, request_hash)
            if known is not None or not self.keys.is_used(slot):
                return known
            known = await self.keys.settled(slot, request_hash)
            if known is not None or not self.keys.running(slot):
                return known

    def _admit(self, entered: Entered, plan: Plan, paid: Paid) -> Paid:
        """Check what must hold before any call of a command is begun; returns what it costs.

        Raises Forbidden, Invalid or RateLimited. Whether the caller may make each call is for the
        gate; but an agent's run is no call, and several calls are refused together.
        """
        declared = entered.level
        if declared is not None and declared.rank < plan.level.rank:
            raise Forbidden(f"{plan.name} is of level {plan.level}, above the declared {declared}")
        level = plan.level if declared is None else declared
        if plan.start is not None:
            needed = CommandScope((entered.kind,), level)
            if outside := self.registry.scope_refusal(entered.identity.name, needed):
                raise Forbidden(outside)
            self.capability_limits.check_together(plan.capabilities)
        elif len(plan.requests) > 1:
            self.capability_limits.check_together([request.tool for request in plan.requests])
        if level is not Level.READ and not entered.key:
            raise Invalid(f"a command of level {level} needs an Idempotency-Key")
        if plan.start is not None:
            buckets = [
                b for name in plan.capabilities for b in self.capability_limits.buckets(name)
            ]
            if buckets:
                return Paid(paid.spent, paid.taken + self.limits.take(*buckets).taken)
        return paid

    async def _begin(self, entered: Entered, plan: Plan, paid: Paid) -> Reply:
        """Hold the key, and run it; what writes or signs is on record before it does."""
        begin = [*self.records.begin(entered, plan.name, plan.capabilities)]
        claim = None
        if entered.key:
            claim = self._claim(entered, plan.name)
            if _keeps_key(plan):
                begin.append(self.keys.begin(claim))
        work = _Work(entered, plan, claim, paid, begin)
        if plan.start is not None:
            # Its run goes on after a restart, so that its end can be reported then.
            begin += self.states.wait(entered, Waiting(), due=None)
            try:
                await self.journal.commit(*begin)
            except BaseException:
                if claim is not None:
                    self.keys.release(claim, None)
                self.limits.give_back(paid)
                raise
            work.began = True
        return await self._run(work, paid.spent)

    def _claim(self, entered: Entered, name: str) -> Claim:
        first = first_use(
            entered.request_hash,
            command_id=entered.command_id,
            request_id=entered.request_id,
            now=entered.at,
            kind=entered.kind,
            name=name,
            trace_id=entered.trace_id,
        )
        return self.keys.claim(entered.slot, first)

    async def _again(self, entered: Entered, known: Known, bucket: Bucket) -> Reply:
        """The first answer; or, of a command that was interrupted or waits, go on with it."""
        spent = self.limits.look(bucket)
        if known.done:
            replayed = (wire.HEADER_IDEMPOTENT_REPLAYED, "true")
            return Reply(known.status, known.body, (*_headers(entered, spent), replayed))
        slot = entered.slot
        while self.keys.running(slot):
            settled = await self.keys.settled(slot, entered.request_hash)
            if settled is not None and settled.done:
                return await self._again(entered, settled, bucket)
        claim = self.keys.claim(slot, known)
        try:
            entered = msgspec.structs.replace(
                entered, command_id=known.command_id, request_id=known.request_id
            )
            plan = await self.planners[entered.kind].plan(
                entered.command, entered.identity, entered.command_id
            )
            waiting = await self.states.waiting(known.command_id)
        except BaseException:
            self.keys.release(claim, None)
            raise
        return await self._run(_taken_up(entered, plan, claim, waiting), spent)

    async def _resume(self, kept: OpenCommand) -> None:
        """Go on with a command that waits."""
        identity = self.registry.identity(kept.who)
        if identity is None:
            identity = Identity(Who.DEVICE, kept.who)
        entered = Entered(
            kind=kept.kind,
            identity=identity,
            raw=kept.raw,
            command=self.planners[kept.kind].decode(kept.raw),
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
        if kept.key and self.keys.running(entered.slot):
            return
        claim = self._claim(entered, name_of(entered)) if kept.key else None
        try:
            plan = await self._plan_again(entered, kept)
        except BaseException:
            if claim is not None:
                self.keys.release(claim, None)
            raise
        spent = self.limits.look(self._bucket_of(identity))
        try:
            await self._run(_taken_up(entered, plan, claim, kept), spent)
        except NotAdmitted as too_soon:
            log.info("command_waits command_id=%s reason=%s", kept.command_id, too_soon)
            await self.states.try_later(kept.command_id)

    async def _plan_again(self, entered: Entered, kept: OpenCommand) -> Plan:
        """The plan as before; if it cannot be made any more, a plan that says why."""
        try:
            return await self.planners[entered.kind].plan(
                entered.command, entered.identity, entered.command_id
            )
        except EXPECTED as refusal:
            problem = problem_with(entered, refusal)
            if problem.code is Code.INTERNAL:
                raise  # that may pass: the command goes on waiting

            async def refuse(_: str) -> Done:
                # Of several calls, those that ran before have results to return.
                return Done(msgspec.Raw(kept.ran)) if kept.ran else Done(problem.data, problem)

            return Plan(Level.READ, str(entered.kind), (), start=refuse)

    async def _run(self, work: _Work, spent: Spent) -> Reply:
        entered = work.entered
        known: Known | None = None
        headers = _headers(entered, spent)
        self.states.enter(entered, work.plan.name, work.run_id)
        try:
            came = await self._carry_out(work)
            if isinstance(came, Waiting):
                return await self._wait(work, came, headers)
            known = came.known
            self.states.forget(entered.command_id)
            return Reply(came.reply.status, came.reply.body, (*headers, *came.reply.headers))
        except BaseException:
            if work.paid is not None and not work.began:
                self.limits.give_back(work.paid)
            raise
        finally:
            self.states.leave(entered)
            if work.claim is not None:
                self.keys.release(work.claim, known)

    async def _carry_out(self, work: _Work) -> _End | Waiting:
        """Run the plan to its end, or until it waits.

        A fault of ours is no answer: the same key may try again.
        """
        try:
            if work.plan.start is None:
                return await self._call_tools(work)
            came = await work.plan.start(work.run_id)
        except NotAdmitted:
            raise
        except (Problem, Invalid, Refused, Conflict, NotFound) as refusal:
            problem = problem_of(refusal)
            came = Done(problem.data, problem)
        except Exception:
            await self._write_failure(work)
            raise
        return came if isinstance(came, Waiting) else await self._write_end(work, came)

    async def _call_tools(self, work: _Work) -> _End | Waiting:
        """Make the plan's calls, one after the other; the command's end goes with the last one's."""
        plan = work.plan
        scope = CommandScope(plan.kinds, work.entered.level or plan.level)
        answers: list[Answer | Pending] = []
        for number, request in enumerate(plan.requests):
            is_last = number + 1 == len(plan.requests)
            begun = partial(self._begun, work, tuple(answers), is_last=is_last)
            outcome = await self.gate.begin(request._replace(scope=scope), also=begun)
            work.began |= not outcome.known
            match outcome:
                case Pending():
                    if not outcome.known and _settled(answers) is not None:
                        work.waited = _waiting_for(outcome)
                    answers.append(outcome)
                case Denied() if _is_not_admitted(work, answers, outcome):
                    raise _not_admitted(outcome)
                case Denied():
                    answers.append(outcome)
                    settled = _settled(answers) if is_last else None
                    if settled is not None and not outcome.known:
                        return self._end(work, _done(work, settled))
                case allowed:
                    output = await self._run_tool(work, allowed)
                    answers.append(Ran(output))
                    settled = _settled(answers) if is_last else None
                    if settled is None:
                        await allowed.finish(output)
                        continue
                    end = self._end(work, _done(work, settled))
                    await allowed.finish(output, also=(*work.unwritten(), *end.operations))
                    return end
        if (settled := _settled(answers)) is not None:
            return await self._write_end(work, _done(work, settled))
        first = next(one for one in answers if isinstance(one, Pending))
        ran = any(isinstance(one, Ran) for one in answers)
        gone = [_NOT_ANY_MORE if isinstance(one, Pending) else one for one in answers]
        return replace(_waiting_for(first), ran=wire.encode(plan.done(gone).data) if ran else b"")

    async def _run_tool(self, work: _Work, allowed: Allowed) -> ToolOutput:
        """Run a call; its updates are events between the command's start and its end."""
        if not work.began:
            return await allowed.run()

        async def write(pieces: Sequence[Piece]) -> None:
            append = self.records.updates(work.entered, pieces)
            await self.journal.commit(append, durable=False)

        updates = Updates(write, self.clock)
        try:
            return await allowed.run(updates)
        finally:
            await updates.close()

    def _begun(
        self,
        work: _Work,
        before: Sequence[Answer | Pending],
        outcome: Begun,
        *,
        is_last: bool,
    ) -> Sequence[Operation]:
        """What a command adds to the commit in which the gate decides one of its calls."""
        match outcome:
            case Pending() if _settled(before) is not None:  # the first that waits
                return self._wait_rows(work, _waiting_for(outcome), told=False)
            case Denied() if _is_not_admitted(work, before, outcome):
                if work.again:
                    return ()  # it goes on waiting
                return self._refusal_rows(work.entered, work.paid, denied(outcome).code)
            case Denied() if is_last and (settled := _settled([*before, outcome])) is not None:
                end = self._end(work, _done(work, settled))
                return (*work.unwritten(), *end.operations)
            case _:
                return work.unwritten()

    async def _write_end(self, work: _Work, done: Done) -> _End:
        end = self._end(work, done)
        await self.journal.commit(*work.unwritten(), *end.operations)
        work.began = True
        return end

    async def _write_failure(self, work: _Work) -> None:
        """Record that a command failed by a fault of ours."""
        entered, plan, claim = work.entered, work.plan, work.claim
        failed: list[Operation] = [self.records.event(entered, plan.name, wire.EventStatus.FAILED)]
        if claim is not None and _keeps_key(plan):
            failed.append(self.keys.told(claim.slot, claim.known))
        if plan.start is not None and work.waited is None:
            failed += self.states.drop(entered)  # its failure is the answer
        await self._try_commit([*work.unwritten(), *failed])

    async def _tell_interrupted(self, slot: str, known: Known) -> None:
        """The end of a command that ran when the last process was stopped.

        Nothing is run: the same key goes on with it, and is told what the pipeline knows.
        """
        if await self.states.waiting(known.command_id) is not None:
            return
        who = slot.partition("\n")[0]
        entered = Entered(
            kind=CommandKind(known.kind),
            identity=self.registry.identity(who) or Identity(Who.DEVICE, who),
            raw=b"",
            command=None,
            level=None,
            command_id=known.command_id,
            request_id=known.request_id,
            named=True,
            key="",
            request_hash=known.request_hash,
            trace_id=known.trace_id,
            at=known.at,
            started=self.clock.monotonic() - (self.clock.now_ms() - known.at) / 1000,
        )
        writes: list[Operation] = [
            self.records.event(entered, known.name, wire.EventStatus.FAILED),
            self.keys.told(slot, known),
        ]
        if await self.states.known_state(who, known.request_id) is None:
            body = failure(_INTERRUPTED, known.trace_id).body
            writes += self.states.end(entered, body, waited=False)
        await self._try_commit(writes)

    def _end(self, work: _Work, done: Done) -> _End:
        """The answer, and what has to be on disk before it is given."""
        entered, plan, claim = work.entered, work.plan, work.claim
        if done.problem is None:
            status, reply = wire.EventStatus.SUCCEEDED, success(done.data, entered.trace_id)
        else:
            refused = done.problem.code is Code.PERMISSION_DENIED
            status = wire.EventStatus.REFUSED if refused else wire.EventStatus.FAILED
            reply = failure(done.problem, entered.trace_id)
        ended: list[Operation] = [self.records.event(entered, plan.name, status)]
        known = None
        if claim is not None:
            known, write = self.keys.answer(claim, reply.status, reply.body)
            ended.append(write)
        waited = work.again or work.waited is not None or plan.start is not None
        ended.extend(self.states.end(entered, reply.body, waited=waited))
        if work.paid is not None:
            ended.extend(self.limits.writes(work.paid))
        return _End(known, reply, ended)

    def _wait_rows(self, work: _Work, waiting: Waiting, *, told: bool) -> Sequence[Operation]:
        """The rows of a command that waits from now on; its event, unless it was published before."""
        entered, claim, paid = work.entered, work.claim, work.paid
        due = waiting.expires_at + 1 if waiting.expires_at else None
        event = self.records.event(entered, work.plan.name, wire.EventStatus.PENDING)
        return (
            *work.unwritten(),
            *((self.keys.begin(claim),) if claim is not None else ()),
            *self.states.wait(entered, waiting, due=due),
            *(self.limits.writes(paid) if paid is not None else ()),
            *(() if told else (event,)),
        )

    async def _wait(self, work: _Work, waiting: Waiting, headers: Headers) -> Reply:
        entered, before = work.entered, work.waited
        told = before is not None and _same(before, waiting)
        if before is None or not told or before.ran != waiting.ran:
            await self.journal.commit(*self._wait_rows(work, waiting, told=told))
            work.began = True
        if not work.again or not told:
            if waiting.expires_at:
                self.wake_at(waiting.expires_at + 1)
            # The decision may have come before the row that waits for it.
            self.states.go_on_soon(entered.command_id)
        data = wire.CommandState(
            status=wire.CommandStatus.PENDING,
            request_id=entered.request_id,
            approval_id=waiting.approval_id or msgspec.UNSET,
            run_id=waiting.run_id or msgspec.UNSET,
        )
        return success(data, entered.trace_id, status=202, headers=headers)

    async def refuse(self, asked: Asked, wrong: Exception) -> Reply:
        """Of one that makes no sense, or is of nobody who may send any."""
        bucket = self._bucket_of(asked.identity)
        problem = problem_of(wrong)
        trace_id = trace_id_of("", asked.traceparent)
        writes: Sequence[Operation] = ()
        try:
            writes = self.limits.writes(self.limits.take(bucket))
        except RateLimited as too_soon:
            problem = problem_of(too_soon)
        if problem.code is Code.INTERNAL:
            log.error("command_unread trace_id=%s", trace_id, exc_info=wrong)
        row = self.records.unread_row(asked, code=problem.code, trace_id=trace_id)
        await self._try_commit([*row, *writes])
        headers = rate_headers(self.limits.look(bucket))
        return failure(problem, trace_id, headers=_without(headers, problem.headers))

    async def _refuse(
        self, entered: Entered, paid: Paid | None, refusal: Exception, bucket: Bucket
    ) -> Reply:
        problem = problem_with(entered, refusal)
        await self._try_commit(self._refusal_rows(entered, paid, problem.code))
        headers = _headers(entered, self.limits.look(bucket))
        return failure(problem, entered.trace_id, headers=_without(headers, problem.headers))

    def _refusal_rows(self, entered: Entered, paid: Paid | None, code: Code) -> Sequence[Operation]:
        """The rows of a command that was not admitted; its key may be used again."""
        row = self.records.row(entered, code=code)
        if paid is None:  # a caller that asks too often does not fill the stream
            return row
        name = name_of(entered)
        return (
            *row,
            *self.limits.writes(paid),
            self.records.event(entered, name, wire.EventStatus.STARTED),
            self.records.event(entered, name, wire.EventStatus.REFUSED),
        )

    def _bucket_of(self, identity: Identity) -> Bucket:
        return Bucket(f"device/{identity.name}", self.rate, "this device")

    async def _try_commit(self, writes: Sequence[Operation]) -> None:
        """For what is refused anyway: it is refused whether or not that can be written down."""
        try:
            await self.journal.commit(*writes)
        except Unavailable as unavailable:
            log.error("not_recorded error=%s", unavailable)


def _keeps_key(plan: Plan) -> bool:
    """Whether the key is written as the command begins.

    After a kill only the gate, or a run of an agent, may know what the command did.
    """
    return plan.level is not Level.READ or plan.start is not None


def _taken_up(entered: Entered, plan: Plan, claim: Claim | None, kept: OpenCommand | None) -> _Work:
    """The work of a command that was admitted before, and perhaps has waited."""
    work = _Work(entered, plan, claim, began=True, again=True)
    if kept is not None:
        work.run_id = kept.run_id
        work.waited = Waiting(kept.approval_id, kept.run_id, ran=kept.ran)
    return work


def _is_not_admitted(work: _Work, before: Sequence[Answer | Pending], denied: Denied) -> bool:
    """Whether a denial is no answer of the command: of its first call, or of one to be retried."""
    if work.again:
        return denied.spent is not None
    return not before and denied.rule_id in NOT_ADMITTED


def _not_admitted(answer: Denied) -> NotAdmitted:
    problem = denied(answer)
    return NotAdmitted(
        problem.code,
        problem.message,
        data=problem.data,
        headers=problem.headers,
        outcome=problem.outcome,
    )


def _done(work: _Work, settled: Sequence[Answer]) -> Done:
    """What the answers come to; results from before the caller lost the right to it are kept."""
    ran = work.waited.ran if work.waited is not None else b""
    if ran and all(isinstance(answer, Denied) for answer in settled):
        return Done(msgspec.Raw(ran))
    return work.plan.done(settled)


def _waiting_for(pending: Pending) -> Waiting:
    return Waiting(pending.approval_id, expires_at=pending.expires_at)


def _settled(answers: Sequence[Answer | Pending]) -> list[Answer] | None:
    """The answers, unless a call still waits for a person."""
    settled = [one for one in answers if not isinstance(one, Pending)]
    return settled if len(settled) == len(answers) else None


def _same(before: Waiting, now: Waiting) -> bool:
    """Whether it waits for what it waited for."""
    return (before.approval_id, before.run_id) == (now.approval_id, now.run_id)


def _headers(entered: Entered, spent: Spent) -> Headers:
    told = rate_headers(spent)
    return (*told, (wire.HEADER_REQUEST_ID, entered.request_id)) if entered.named else told


def _without(headers: Headers, given_later: Headers) -> Headers:
    later = {name for name, _ in given_later}
    return tuple((name, value) for name, value in headers if name not in later)
