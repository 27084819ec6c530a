"""Commands: let in, run once, answered, remembered. The same by HTTP and by WebSocket.

In this order: read it, look for its key, pay for it, check its rights, write down that it begins,
run its plan, write down how it ended, answer. The two writings go into the commits that the tool
pipeline makes anyway, where the plan is a tool call.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from toolgate.access.devices import Identity, Scope, Who
from toolgate.access.rate_limits import Bucket, Paid, RateLimits
from toolgate.access.ratelimit import Rate, Spent
from toolgate.access.refusals import Forbidden, InvalidToken, KeyConflict, RateLimited
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
from toolgate.commands.plans import Came, Done, Plan, Planner, Ticket, Waiting
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
from toolgate.http.traces import trace_id_of
from toolgate.journal.journal import Journal, Operation
from toolgate.tools.capability_registry import Capabilities
from toolgate.tools.gate import Rider

log = logging.getLogger(__name__)

_INTERRUPTED: Final = Problem(
    Code.INTERNAL,
    "the gateway was stopped while this ran; the same Idempotency-Key tells what is known",
    outcome=Outcome.MAY_HAVE_EXECUTED,
)


@dataclass(frozen=True, slots=True)
class Commands:
    journal: Journal
    clock: Clock
    new_id: NewId
    registry: Registry
    limits: RateLimits
    keys: Keys
    capabilities: Capabilities
    records: Records
    states: States
    planners: Mapping[CommandKind, Planner]
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
            return failure(problem, entered.trace_id, headers=headers)

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
            plan = await self.planners[entered.kind].plan(entered.command, entered.identity)
            self._check_rights(entered, plan)
            paid = self._pay_capabilities(plan, paid)
            known = None
            if slot and self.keys.is_used(slot):  # someone may have been faster meanwhile
                known = await self._known(slot, entered.request_hash)
            self._check_token(entered)
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

    def _check_token(self, entered: Entered) -> None:
        """Just before it runs: planning it, or waiting for another with its key, may take long."""
        if self.registry.identity(entered.identity.name) != entered.identity:
            raise InvalidToken("the token was revoked or replaced")

    def _check_rights(self, entered: Entered, plan: Plan) -> None:
        declared = entered.level
        if declared is not None and declared.rank < plan.level.rank:
            raise Forbidden(f"{plan.name} is of level {plan.level}, above the declared {declared}")
        level = plan.level if declared is None else declared
        if outside := entered.identity.scope.refusal(entered.kind, level):
            raise Forbidden(outside)
        self._check_terms(plan)
        if level is not Level.READ and not entered.key:
            raise Invalid(f"a command of level {level} needs an Idempotency-Key")

    def _check_terms(self, plan: Plan) -> None:
        for name in plan.capabilities:
            capability = self.capabilities.get(name)
            if capability is not None and (refusal := capability.refusal(self.clock.now_ms())):
                raise Forbidden(refusal)

    def _check_terms_again(self, plan: Plan, waiting: OpenCommand) -> None:
        """Unless something of it has begun: what came of that is to be told."""
        if plan.calls == 1 and not waiting.run_id:
            self._check_terms(plan)

    def _pay_capabilities(self, plan: Plan, paid: Paid) -> Paid:
        buckets = [
            Bucket(f"capability/{name}", capability.rate, f"capability {name}")
            for name in plan.charged or plan.capabilities
            if (capability := self.capabilities.get(name)) is not None and capability.rate
        ]
        taken = Paid(paid.spent)
        try:
            for bucket in buckets:  # one may be there several times
                taken = Paid(paid.spent, taken.taken + self.limits.take(bucket).taken)
        except RateLimited:
            self.limits.give_back(taken)
            raise
        return Paid(paid.spent, paid.taken + taken.taken)

    async def _begin(self, entered: Entered, plan: Plan, paid: Paid) -> Reply:
        """Hold the key, and run it; what writes or signs is on record before it does."""
        begin = [*self.records.begin(entered, plan.name, plan.capabilities)]
        claim = None
        if entered.key:
            claim = self._claim(entered, plan.name)
            if _keeps_key(plan):
                begin.append(self.keys.begin(claim))
        ticket = Ticket(entered.command_id, entered.request_id, rider=Rider(begin))
        if not plan.rides:
            # Its run goes on after a restart: so that it is told then what came of it.
            begin += self.states.wait(entered, Waiting(), due=None)
            try:
                await self.journal.commit(*begin)
            except BaseException:
                if claim is not None:
                    self.keys.release(claim, None)
                self.limits.give_back(paid)
                raise
            ticket.rider.began = True
        return await self._run(entered, plan, claim, ticket, paid.spent, paid=paid)

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
            plan = await self.planners[entered.kind].plan(entered.command, entered.identity)
            if outside := entered.identity.scope.refusal(entered.kind, plan.level):
                raise Forbidden(outside)  # it was taken away meanwhile
            waiting = await self.states.waiting(known.command_id)
            if waiting is not None:
                self._check_terms_again(plan, waiting)
            self._check_token(entered)
            ticket = _taken_up(known.command_id, known.request_id, waiting)
        except BaseException:
            self.keys.release(claim, None)
            raise
        return await self._run(entered, plan, claim, ticket, spent, again=True)

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
        ticket = _taken_up(kept.command_id, kept.request_id, kept)
        spent = self.limits.look(self._bucket_of(identity))
        await self._run(entered, plan, claim, ticket, spent, again=True)

    async def _plan_again(self, entered: Entered, kept: OpenCommand) -> Plan:
        """As before; where the right to it was taken away meanwhile, a plan that says so."""
        try:
            self._scope_of(entered)  # or a server would be asked for one who was revoked
            plan = await self.planners[entered.kind].plan(entered.command, entered.identity)
            if outside := self._scope_of(entered).refusal(entered.kind, plan.level):
                raise Forbidden(outside)
            self._check_terms_again(plan, kept)
        except EXPECTED as refusal:
            problem = problem_with(entered, refusal)
            if problem.code is Code.INTERNAL:
                raise  # that may pass: the command goes on waiting

            async def refuse(_: Ticket) -> Done:
                # Of several calls, those that ran before have their results to tell.
                return Done(msgspec.Raw(kept.ran)) if kept.ran else Done(problem.data, problem)

            return Plan(Level.READ, str(entered.kind), (), refuse)
        return plan

    def _scope_of(self, entered: Entered) -> Scope:
        """What whoever asked may do now; raises Forbidden."""
        known = self.registry.identity(entered.identity.name)
        if known is None:
            raise Forbidden(REASON)
        return known.scope

    async def _run(
        self,
        entered: Entered,
        plan: Plan,
        claim: Claim | None,
        ticket: Ticket,
        spent: Spent,
        *,
        paid: Paid | None = None,
        again: bool = False,
    ) -> Reply:
        answered: tuple[Known | None, Reply] = (None, Reply(500, b""))

        def end(done: Done) -> Sequence[Operation]:
            nonlocal answered
            known, reply, ended = self._ended(entered, plan, claim, done, again=again)
            answered = (known, reply)
            return (*ended, *(self.limits.writes(paid) if paid is not None else ()))

        ticket.end = end
        known: Known | None = None
        headers = _headers(entered, spent)
        self.states.enter(entered, plan.name, ticket.run_id)
        try:
            outcome = await self._outcome(entered, plan, claim, ticket)
            if isinstance(outcome, Waiting):
                return await self._wait(entered, plan, claim, ticket, outcome, headers, paid)
            if not ticket.rider.ended:
                await self.journal.commit(*ticket.unwritten(), *end(outcome))
            known, reply = answered
            self.states.forget(entered.command_id)
            return Reply(reply.status, reply.body, (*headers, *reply.headers))
        except BaseException:
            if paid is not None and not ticket.rider.began:
                self.limits.give_back(paid)
            raise
        finally:
            ticket.let_go()
            self.states.leave(entered)
            if claim is not None:
                self.keys.release(claim, known)

    async def _outcome(
        self, entered: Entered, plan: Plan, claim: Claim | None, ticket: Ticket
    ) -> Came:
        """What the plan came to. A fault of ours is no answer: the same key may try again."""
        try:
            return await plan.run(ticket)
        except (Problem, Invalid, Refused, Conflict, NotFound) as refusal:
            problem = problem_of(refusal)
            return Done(problem.data, problem)
        except Exception:
            failed: list[Operation] = [
                self.records.event(entered, plan.name, wire.EventStatus.FAILED)
            ]
            if claim is not None and _keeps_key(plan):
                failed.append(self.keys.told(claim.slot, claim.known))
            if not plan.rides and ticket.waited is None:
                failed += self.states.drop(entered)  # it was told to have failed
            await self._try_commit([*ticket.unwritten(), *failed])
            raise

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

    def _ended(
        self, entered: Entered, plan: Plan, claim: Claim | None, done: Done, *, again: bool
    ) -> tuple[Known | None, Reply, Sequence[Operation]]:
        """The answer, and what has to be written before it is given."""
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
        ended.extend(self.states.end(entered, reply.body, waited=again or not plan.rides))
        return known, reply, ended

    async def _wait(
        self,
        entered: Entered,
        plan: Plan,
        claim: Claim | None,
        ticket: Ticket,
        waiting: Waiting,
        headers: Headers,
        paid: Paid | None,
    ) -> Reply:
        before = ticket.waited
        told = before is not None and _same(before, waiting)
        if before is None or not told or before.ran != waiting.ran:
            due = waiting.expires_at + 1 if waiting.expires_at else None
            event = self.records.event(entered, plan.name, wire.EventStatus.PENDING)
            await self.journal.commit(
                *ticket.unwritten(),
                *((self.keys.begin(claim),) if claim is not None else ()),
                *self.states.wait(entered, waiting, due=due),
                *(self.limits.writes(paid) if paid is not None else ()),
                *(() if told else (event,)),
            )
            if due is not None:
                self.wake_at(due)
            # What it waits for may have come before anybody could know that it waits.
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
        writes: list[Operation] = [*self.records.row(entered, code=problem.code)]
        if paid is not None:  # a caller that asks too often does not fill the stream
            name = name_of(entered)
            writes += [
                *self.limits.writes(paid),
                self.records.event(entered, name, wire.EventStatus.STARTED),
                self.records.event(entered, name, wire.EventStatus.REFUSED),
            ]
        await self._try_commit(writes)
        headers = _headers(entered, self.limits.look(bucket))
        return failure(problem, entered.trace_id, headers=_without(headers, problem.headers))

    def _bucket_of(self, identity: Identity) -> Bucket:
        return Bucket(f"device/{identity.name}", self.rate, "this device")

    async def _try_commit(self, writes: Sequence[Operation]) -> None:
        """For what is refused anyway: it is refused whether or not that can be written down."""
        try:
            await self.journal.commit(*writes)
        except Unavailable as unavailable:
            log.error("not_recorded error=%s", unavailable)


def _keeps_key(plan: Plan) -> bool:
    """Whether its key is written as it begins: what it did may be known to none but the pipeline,
    or to a run of an agent, which goes on without us."""
    return plan.level is not Level.READ or not plan.rides


def _taken_up(command_id: str, request_id: str, waiting: OpenCommand | None) -> Ticket:
    """The ticket of a command that was let in before, and perhaps has waited."""
    ticket = Ticket(command_id, request_id, waiting.run_id if waiting else "")
    if waiting is not None:
        ticket.waited = Waiting(waiting.approval_id, waiting.run_id, ran=waiting.ran)
    ticket.rider.began = True
    return ticket


def _same(before: Waiting, now: Waiting) -> bool:
    """Whether it waits for what it waited for."""
    return (before.approval_id, before.run_id) == (now.approval_id, now.run_id)


def _headers(entered: Entered, spent: Spent) -> Headers:
    told = rate_headers(spent)
    return (*told, (wire.HEADER_REQUEST_ID, entered.request_id)) if entered.named else told


def _without(headers: Headers, given_later: Headers) -> Headers:
    later = {name for name, _ in given_later}
    return tuple((name, value) for name, value in headers if name not in later)
