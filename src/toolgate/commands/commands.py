"""Commands: admitted, run once, answered, recorded. The same over HTTP and WebSocket.

The order: parse, look up the idempotency key, charge the device's rate limit, plan, run, answer. The
gate decides whether the caller may make the calls of the plan.
A command's begin and end are written in the commits that the gate makes for its calls. What is open
when the process is stopped is resumed at the next start.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import msgspec

from toolgate.access.devices import OPERATOR, Identity, Who, kind_of
from toolgate.access.rate_limits import Bucket, Paid, RateLimits
from toolgate.access.refusals import Forbidden, KeyConflict, RateLimited
from toolgate.access.registry import Registry
from toolgate.access.revocations import REASON
from toolgate.commands.answers import (
    EXPECTED,
    TEMPORARY,
    Code,
    Headers,
    Problem,
    Reply,
    failure,
    problem_of,
    rate_headers,
    success,
)
from toolgate.commands.plans import (
    Command,
    Done,
    NotAdmitted,
    Plan,
    Planner,
    RawCommand,
    Waiting,
    denied,
    name_of,
    problem_with,
    read,
)
from toolgate.commands.records import OPEN, EndedCommand, OpenCommand, Records, Rows
from toolgate.commands.states import KeyLock, Keys, States
from toolgate.contracts import gateway_v1 as wire
from toolgate.core.clock import Clock
from toolgate.core.enums import CommandKind, Level, Outcome
from toolgate.core.errors import Conflict, Invalid, NotFound, Refused, Unavailable
from toolgate.core.ids import NewId
from toolgate.core.rates import Rate, Spent
from toolgate.core.tools import CommandScope, ToolOutput
from toolgate.http.traces import trace_id_of
from toolgate.journal.journal import Delete, Journal, Operation, Row
from toolgate.policy.model import REQUEST_ID_CONFLICT
from toolgate.policy.refusal_texts import OUTSIDE_SCOPE
from toolgate.tools.definitions import failed
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

# The longest approval (APPROVAL_TIMEOUT_MS) is a week. A command that cannot be planned is given up then.
OPEN_KEPT_MS: Final = 8 * 24 * 3600 * 1000

_LOST_RIGHT: Final = Denied("blocked", OUTSIDE_SCOPE, REASON)


class _Work(msgspec.Struct):
    """A command that was admitted, and how much of it is on disk."""

    command: Command
    plan: Plan
    lock: KeyLock | None
    paid: Paid | None = None  # of a new command
    begun: bool = False
    version: int = 0  # of its open row; 0 if it has none
    waiting: Waiting | None = None  # as the open row has it
    resumed: bool = False

    @property
    def needs_row(self) -> bool:
        """True if the command has an open row from its begin."""
        plan = self.plan
        return bool(self.command.key) or len(plan.requests) > 1 or plan.start is not None


class _End(msgspec.Struct, frozen=True):
    """A command's answer, and the operations that must be on disk before it is sent."""

    reply: Reply
    ended: EndedCommand
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
    rows: Rows
    states: States
    planners: Mapping[CommandKind, Planner]
    gate: ToolGate
    rate: Rate
    wake_at: Callable[[int], None] = lambda _due: None

    async def load(self) -> None:
        """Read the keys in use, and resume what was left open. The gate has recovered its calls."""
        await self.keys.load()
        await self.states.load(self._resume)

    async def post(self, asked: RawCommand) -> Reply:
        """Answer a command; raises CancelledError only."""
        try:
            command = read(
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
            return await self._post(command, bucket)
        except Exception as wrong:  # noqa: BLE001 -- a fault of ours is logged as such
            problem = problem_with(command, wrong)
            headers = _headers(command, self.limits.look(bucket))
            return failure(problem, command.trace_id, headers=_without(headers, problem.headers))

    async def _post(self, command: Command, bucket: Bucket) -> Reply:
        conflict: KeyConflict | None = None
        reply: Reply | None = None
        try:
            reply = await self._known(command, bucket)
        except KeyConflict as other:
            conflict = other  # it costs what any refusal costs: it leaves a row
        if reply is not None:
            return reply
        try:
            paid = self.limits.take(bucket)
        except RateLimited as too_soon:
            return await self._refuse(command, None, too_soon, bucket)
        try:
            if conflict is not None:
                raise conflict
            plan = await self.planners[command.kind].plan(
                command.body, command.identity, command.command_id
            )
            paid = self._admit(command, plan, paid)
            reply = await self._known(command, bucket)  # another request may have been faster
        except EXPECTED as refusal:
            return await self._refuse(command, paid, refusal, bucket)
        if reply is not None:
            self.limits.give_back(paid)
            return reply
        lock = self.keys.lock(command) if command.key else None
        work = _Work(command, plan, lock, paid)
        try:
            reply = await self._run(work)
        except Conflict:
            # Another node may have begun a command with this key.
            if work.begun or (reply := await self._known(command, bucket)) is None:
                raise
            return reply
        except Unavailable as failing:
            problem = problem_of(failing)
            problem.outcome = Outcome.MAY_HAVE_EXECUTED if work.begun else Outcome.NOT_STARTED
            raise problem from failing
        return _with_headers(reply, command, paid.spent)

    async def _known(self, command: Command, bucket: Bucket) -> Reply | None:
        """The answer to the command that has this key, resumed if it is open; None for a free key.

        Raises KeyConflict.
        """
        if not command.key:
            return None
        while (found := await self.keys.find(command)) is not None:
            if isinstance(found, EndedCommand):
                replayed = (wire.HEADER_IDEMPOTENT_REPLAYED, "true")
                reply = Reply(found.status, found.body, (replayed,))
                return _with_headers(reply, command, self.limits.look(bucket))
            resumed = await self.states.resume(found.key)
            if resumed is not None:
                return _with_headers(resumed, command, self.limits.look(bucket))
        return None

    def _admit(self, command: Command, plan: Plan, paid: Paid) -> Paid:
        """Check what must hold before any call of a command is begun; returns what it costs.

        Raises Forbidden, Invalid or RateLimited. The gate decides whether the caller may make each
        call; but an agent's run is no call, and several calls are refused together.
        """
        declared = command.declared
        if declared is not None and declared.rank < plan.level.rank:
            raise Forbidden(f"{plan.name} is of level {plan.level}, above the declared {declared}")
        level = plan.level if declared is None else declared
        if plan.start is not None:
            needed = CommandScope((command.kind,), level)
            if outside := self.registry.scope_refusal(command.who, needed):
                raise Forbidden(outside)
            self.capability_limits.check_together(plan.capabilities)
        elif len(plan.requests) > 1:
            self.capability_limits.check_together([request.tool for request in plan.requests])
        if level is not Level.READ and not command.key:
            raise Invalid(f"a command of level {level} needs an Idempotency-Key")
        if plan.start is not None:
            buckets = [
                b for name in plan.capabilities for b in self.capability_limits.buckets(name)
            ]
            if buckets:
                return Paid(paid.spent, paid.taken + self.limits.take(*buckets).taken)
        return paid

    async def _resume(self, row: Row) -> Reply | None:
        """Continue an open command, from its row alone; None if it runs."""
        opened = self.rows.read_open(row)
        command = self._command_of(opened)
        lock: KeyLock | None = None
        if opened.key:
            if self.keys.is_locked(command.slot):
                return None
            lock = self.keys.lock(command)
        try:
            plan = await self._plan_again(command, opened)
        except BaseException:
            if lock is not None:
                self.keys.release(lock, None)
            raise
        waiting: Waiting | None = None
        if opened.approval_id or opened.run_id:
            waiting = Waiting(opened.approval_id, opened.run_id, ran=opened.ran)
        return await self._run(
            _Work(
                command,
                plan,
                lock,
                begun=True,
                version=row.version,
                waiting=waiting,
                resumed=True,
            )
        )

    def _command_of(self, opened: OpenCommand) -> Command:
        return Command(
            kind=opened.kind,
            identity=self._identity_of(opened),
            raw=opened.raw,
            body=self.planners[opened.kind].decode(opened.raw),
            command_id=opened.command_id,
            request_id=opened.request_id,
            key=opened.key,
            request_hash=opened.request_hash,
            trace_id=opened.trace_id,
            at=opened.at,
            started=self.clock.monotonic() - (self.clock.now_ms() - opened.at) / 1000,
        )

    def _identity_of(self, opened: OpenCommand) -> Identity:
        """The caller as at the begin: the gate knows the calls by it, and checks the present rights."""
        who = opened.who
        if who == OPERATOR.name:
            return OPERATOR
        kind = kind_of(who) or Who.DEVICE
        if opened.scope is not None:
            return Identity(kind, who, opened.scope)
        return self.registry.identity(who) or Identity(kind, who)

    async def _plan_again(self, command: Command, opened: OpenCommand) -> Plan:
        """The plan as before; if it cannot be made any more, a plan that returns the reason."""
        try:
            return await self.planners[command.kind].plan(
                command.body, command.identity, command.command_id
            )
        except EXPECTED as refusal:
            problem = problem_with(command, refusal)
            is_old = self.clock.now_ms() - command.at > OPEN_KEPT_MS
            if problem.code in TEMPORARY and not is_old:
                raise  # that may pass: the command stays open
            if not opened.approval_id or opened.owner != self.rows.owner.name:
                problem.outcome = Outcome.MAY_HAVE_EXECUTED

            async def refuse(_: str) -> Done:
                # Calls that ran before have results to return.
                return Done(msgspec.Raw(opened.ran)) if opened.ran else Done(problem.data, problem)

            return Plan(Level.READ, name_of(command), (), start=refuse)

    async def _run(self, work: _Work) -> Reply:
        command, ended = work.command, None
        self.states.enter(command, work.plan.name, work.waiting.run_id if work.waiting else "")
        try:
            came = await self._carry_out(work)
            if isinstance(came, Waiting):
                return await self._wait(work, came)
            ended = came.ended
            if work.waiting is not None:
                self.states.unwatch(command.row_key)
            return came.reply
        except BaseException as failed:
            if not work.begun:
                if work.paid is not None:
                    self.limits.give_back(work.paid)
                if work.lock is not None and not isinstance(failed, NotAdmitted):
                    self.keys.note_unknown(work.lock)
            raise
        finally:
            self.states.leave(command)
            if work.lock is not None:
                self.keys.release(work.lock, ended)

    async def _carry_out(self, work: _Work) -> _End | Waiting:
        """Run the plan to its end, or until it waits.

        A fault of ours is no answer: the same key may try again.
        """
        plan = work.plan
        try:
            if plan.start is None:
                return await self._call_tools(work)
            if not work.begun:  # the run continues after a restart: its end must be reported then
                await self.journal.commit(*self._begin(work))
                self._note_begun(work)
            came = await plan.start(work.waiting.run_id if work.waiting is not None else "")
        except NotAdmitted:
            raise
        except (Problem, Invalid, Refused, Conflict, NotFound) as refusal:
            if isinstance(refusal, Conflict) and not work.begun:
                raise
            problem = problem_of(refusal)
            came = Done(problem.data, problem)
        except Exception:
            await self._note_failure(work)
            raise
        return came if isinstance(came, Waiting) else await self._write_end(work, came)

    async def _call_tools(self, work: _Work) -> _End | Waiting:
        """Make the plan's calls, one after the other; the last one's commit has the command's end."""
        plan = work.plan
        scope = CommandScope(plan.kinds, work.command.declared or plan.level)
        answers: list[Answer | Pending] = []
        for number, request in enumerate(plan.requests):
            is_last = number + 1 == len(plan.requests)
            begun = partial(self._begun, work, tuple(answers), is_last=is_last)
            outcome = await self.gate.begin(
                msgspec.structs.replace(request, scope=scope), also=begun
            )
            match outcome:
                case Denied(rule_id=rule) if rule == REQUEST_ID_CONFLICT:
                    # Resumed, and the tool or the caller's level has changed since the call began.
                    answers.append(Ran(failed(outcome.reason, outcome=Outcome.MAY_HAVE_EXECUTED)))
                case Denied() if _is_not_admitted(work, answers, outcome):
                    raise _not_admitted(outcome)
                case Pending():
                    if not outcome.known and _settled(answers) is not None:
                        self._note_begun(work, _waiting_for(outcome))
                    answers.append(outcome)
                case Denied():
                    self._note_begun(work)
                    answers.append(outcome)
                    settled = _settled(answers) if is_last else None
                    if settled is not None and not outcome.known:
                        return self._end(work, _done(work, settled))
                case allowed:
                    self._note_begun(work)
                    output = await self._run_tool(work, allowed)
                    answers.append(Ran(output))
                    settled = _settled(answers) if is_last else None
                    if settled is None:
                        await allowed.finish(output)
                        continue
                    end = self._end(work, _done(work, settled))
                    await allowed.finish(output, also=end.operations)
                    return end
        if (settled := _settled(answers)) is not None:
            return await self._write_end(work, _done(work, settled))
        first = next(one for one in answers if isinstance(one, Pending))
        ran = any(isinstance(one, Ran) for one in answers)
        gone = [_LOST_RIGHT if isinstance(one, Pending) else one for one in answers]
        return msgspec.structs.replace(
            _waiting_for(first), ran=wire.encode(plan.done(gone).data) if ran else b""
        )

    async def _run_tool(self, work: _Work, allowed: Allowed) -> ToolOutput:
        """Run a call; its updates are events between the command's start and its end."""

        async def write(pieces: Sequence[Piece]) -> None:
            append = self.records.updates(work.command, pieces)
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
        """The operations that a command adds to the commit in which the gate decides a call."""
        match outcome:
            case Pending() if _settled(before) is not None:  # the first that waits
                return self._wait_rows(work, _waiting_for(outcome), publish=True)
            case Denied() if _is_not_admitted(work, before, outcome):
                if work.resumed:
                    return ()  # it stays open
                return self._refusal_rows(work.command, work.paid, denied(outcome).code)
            case Denied() if is_last and (settled := _settled([*before, outcome])) is not None:
                return self._begin_and_end(work, self._end(work, _done(work, settled)))
            case _:
                return self._begin(work)

    def _begin(self, work: _Work, waiting: Waiting | None = None) -> Sequence[Operation]:
        """The operations that begin a command; none if it has begun."""
        if work.begun:
            return ()
        command, plan = work.command, work.plan
        has_row = work.needs_row or waiting is not None
        subject = "" if has_row else command.command_id
        begin = [*self.records.begin(command, plan.name, plan.capabilities, subject=subject)]
        if work.lock is not None:
            begin.append(self.rows.use_key(command, expected=work.lock.version))
        if has_row:
            begin.append(self.rows.open(command, waiting or Waiting(), expected=0))
        return begin

    def _begin_and_end(self, work: _Work, end: _End) -> Sequence[Operation]:
        """The operations of an end, after those of the begin if it has not begun."""
        if work.begun:
            return end.operations
        command, plan = work.command, work.plan
        begin = [*self.records.begin(command, plan.name, plan.capabilities)]
        if work.lock is not None:
            begin.append(self.rows.use_key(command, expected=work.lock.version))
        return (*begin, *end.operations)

    def _note_begun(self, work: _Work, waiting: Waiting | None = None) -> None:
        """Note that the begin, or that the command waits, is on disk."""
        if waiting is not None or (not work.begun and work.needs_row):
            work.version += 1
            work.waiting = waiting
        if not work.begun and work.lock is not None:
            self.keys.note_written(work.lock)
        work.begun = True

    async def _write_end(self, work: _Work, done: Done) -> _End:
        end = self._end(work, done)
        await self.journal.commit(*self._begin_and_end(work, end))
        self._note_begun(work)
        return end

    async def _note_failure(self, work: _Work) -> None:
        """Record a fault of ours. A command that has a key or waits stays open, and is resumed later."""
        command, name = work.command, work.plan.name
        if work.resumed:
            return
        if work.version and (command.key or work.waiting is not None):
            await self.states.try_later(command.row_key)
            return
        writes: list[Operation] = []
        if not work.begun:
            writes += self.records.begin(command, name, work.plan.capabilities)
        failed = wire.EventStatus.FAILED
        writes.append(self.records.event(command, name, failed, subject=command.command_id))
        if work.version:
            writes.append(Delete(OPEN, command.row_key, expected=work.version))
        await self._try_commit(writes)

    def _end(self, work: _Work, done: Done) -> _End:
        """The answer, and the operations that must be on disk before it is sent."""
        command, plan = work.command, work.plan
        if done.problem is None:
            status = wire.EventStatus.SUCCEEDED if done.succeeded else wire.EventStatus.FAILED
            reply = success(done.data, command.trace_id)
        else:
            refused = done.problem.code is Code.PERMISSION_DENIED
            status = wire.EventStatus.REFUSED if refused else wire.EventStatus.FAILED
            reply = failure(done.problem, command.trace_id)
        is_unnamed = not command.is_named and work.waiting is None
        ended = EndedCommand(
            status=reply.status,
            body=reply.body,
            request_hash=command.request_hash,
            at=command.at,
            ended_at=self.clock.now_ms(),
            key=command.key,
            is_unnamed=is_unnamed,
        )
        operations: list[Operation] = [self.records.event(command, plan.name, status)]
        if command.key or not is_unnamed:
            operations.append(self.rows.end(command.row_key, ended))
        if work.version:
            operations.append(Delete(OPEN, command.row_key, expected=work.version))
        if work.paid is not None:
            operations.extend(self.limits.writes(work.paid))
        return _End(reply, ended, operations)

    def _wait_rows(self, work: _Work, waiting: Waiting, *, publish: bool) -> Sequence[Operation]:
        """The operations of a command that begins to wait."""
        command, paid = work.command, work.paid
        self.states.watch(command.row_key, waiting)
        begin = self._begin(work, waiting)
        event = self.records.event(command, work.plan.name, wire.EventStatus.PENDING)
        return (
            *(begin or (self.rows.open(command, waiting, expected=work.version),)),
            *(self.limits.writes(paid) if paid is not None else ()),
            *((event,) if publish else ()),
        )

    async def _wait(self, work: _Work, waiting: Waiting) -> Reply:
        command, before = work.command, work.waiting
        is_same = before is not None and _same(before, waiting)
        if before is None or not is_same or before.ran != waiting.ran:
            await self.journal.commit(*self._wait_rows(work, waiting, publish=not is_same))
            self._note_begun(work, waiting)
        if (not work.resumed or not is_same) and waiting.expires_at:
            self.wake_at(waiting.expires_at + 1)
        if not is_same:  # the decision may have come before this row
            self.states.resume_soon(command.row_key)
        data = wire.CommandState(
            status=wire.CommandStatus.PENDING,
            request_id=command.request_id,
            approval_id=waiting.approval_id or msgspec.UNSET,
            run_id=waiting.run_id or msgspec.UNSET,
            message=waiting.message or msgspec.UNSET,
        )
        return success(data, command.trace_id, status=202)

    async def refuse(self, asked: RawCommand, wrong: Exception) -> Reply:
        """Refuse a command that cannot be read, or whose sender may send none."""
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
        self, command: Command, paid: Paid | None, refusal: Exception, bucket: Bucket
    ) -> Reply:
        problem = problem_with(command, refusal)
        await self._try_commit(self._refusal_rows(command, paid, problem.code))
        headers = _headers(command, self.limits.look(bucket))
        return failure(problem, command.trace_id, headers=_without(headers, problem.headers))

    def _refusal_rows(self, command: Command, paid: Paid | None, code: Code) -> Sequence[Operation]:
        """The rows of a command that was not admitted; its key may be used again."""
        row = self.records.row(command, code=code)
        if paid is None:  # a caller that asks too often does not fill the stream
            return row
        name = name_of(command)
        return (
            *row,
            *self.limits.writes(paid),
            self.records.event(command, name, wire.EventStatus.STARTED),
            self.records.event(command, name, wire.EventStatus.REFUSED),
        )

    def _bucket_of(self, identity: Identity) -> Bucket:
        return Bucket(f"device/{identity.name}", self.rate, "this device")

    async def _try_commit(self, writes: Sequence[Operation]) -> None:
        """Commit the record of a refusal or fault, which is answered also if the disk refuses."""
        try:
            await self.journal.commit(*writes)
        except Unavailable as unavailable:  # the journal has logged that it fails, once
            log.debug("not_recorded error=%s", unavailable)


def _is_not_admitted(work: _Work, before: Sequence[Answer | Pending], denied: Denied) -> bool:
    """Whether a denial is no answer: of the first call, or of a resumed one that came too soon."""
    if work.resumed:
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
    """The data of the answers; results from before the caller lost the right to it are kept."""
    ran = work.waiting.ran if work.waiting is not None else b""
    if ran and all(isinstance(answer, Denied) for answer in settled):
        return Done(msgspec.Raw(ran))
    return work.plan.done(settled)


def _waiting_for(pending: Pending) -> Waiting:
    return Waiting(pending.approval_id, expires_at=pending.expires_at, message=pending.text)


def _settled(answers: Sequence[Answer | Pending]) -> list[Answer] | None:
    """The answers, unless a call still waits for a person."""
    settled = [one for one in answers if not isinstance(one, Pending)]
    return settled if len(settled) == len(answers) else None


def _same(before: Waiting, now: Waiting) -> bool:
    """Whether both wait for the same approval or run."""
    return (before.approval_id, before.run_id) == (now.approval_id, now.run_id)


def _with_headers(reply: Reply, command: Command, spent: Spent) -> Reply:
    headers = _headers(command, spent)
    if not reply.headers:
        return Reply(reply.status, reply.body, headers)
    given = (*_without(headers, reply.headers), *reply.headers)
    return msgspec.structs.replace(reply, headers=given)


def _headers(command: Command, spent: Spent) -> Headers:
    headers = rate_headers(spent)
    named = (wire.HEADER_REQUEST_ID, command.request_id)
    return (*headers, named) if command.is_named else headers


def _without(headers: Headers, given_later: Headers) -> Headers:
    later = {name for name, _ in given_later}
    return tuple((name, value) for name, value in headers if name not in later)
