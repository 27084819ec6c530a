"""The one way in which a tool is ever run: `begin` decides and records, `run` runs, `finish` records.

Arguments are decided on as they are and stored redacted; output is redacted before anyone sees it.
Every step of a call is one commit, in which the caller's own operations go along.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Final, TypeVar

import msgspec

from toolgate.access.devices import Identity
from toolgate.access.refusals import RateLimited
from toolgate.access.registry import Registry
from toolgate.core.enums import ApprovalStatus, CallStatus, Level, Outcome
from toolgate.core.errors import (
    Conflict,
    Invalid,
    NotFound,
    Refused,
    ToolgateError,
    Unavailable,
)
from toolgate.core.rates import Spent
from toolgate.core.tools import Caller, JsonValue, Tool, ToolOutput, ToolRequest
from toolgate.journal.journal import Check, Operation
from toolgate.journal.rows import version_of
from toolgate.policy.model import ACTIVE_POLICY, Decision, Effect
from toolgate.policy.policies import Policies
from toolgate.policy.records import COLLECTION as POLICY_ROWS
from toolgate.policy.refusal_texts import (
    APPROVAL_DOES_NOT_FIT,
    APPROVAL_EXPIRED,
    APPROVAL_REJECTED,
    OUTSIDE_SCOPE,
    RATE_LIMITED,
)
from toolgate.secrets.approver_view import summary_of
from toolgate.secrets.redaction import RedactingStream, Redactor
from toolgate.tools import outcomes
from toolgate.tools.approval_records import Approvals, approval_id_of
from toolgate.tools.approvals import POLICY, RUN, Approval, MayNotDecide, Question
from toolgate.tools.calls import (
    TERMINAL,
    Call,
    Entry,
    complete,
    described,
    is_in,
    names_in,
)
from toolgate.tools.definitions import failed
from toolgate.tools.engine import Engine, Update, no_update
from toolgate.tools.ledger import Ledger, running, unapproved
from toolgate.tools.limits import CapabilityLimits
from toolgate.tools.outcomes import Also, Denied, Pending, nothing_also
from toolgate.tools.recovery import AlsoOfCall, may_run_again, nothing_of_call, recover
from toolgate.tools.responses import DENY, ON_WAIT, Response, StoredCheck, refs_of
from toolgate.tools.routing import Routing
from toolgate.tools.updates import with_time_of

log = logging.getLogger(__name__)

REQUIRED: Final = "approval_required"
_CODES: Final = {  # others: blocked
    APPROVAL_REJECTED: "rejected",
    APPROVAL_EXPIRED: "approval_timeout",
    RATE_LIMITED: "rate_limited",
}
REVOKED: Final = "the caller's token was revoked or replaced"

MAX_DETAIL: Final = 200  # characters of what a decision says beside its reason
ELSEWHERE_S: Final = 0.05
ATTEMPTS: Final = 600  # 30 s for a call that another process runs; a conflict takes one or two
FOLLOWED: Final = 20  # looks, ELSEWHERE_S apart, at an approval given under a changed policy
STALE_S: Final = 0.01  # until memory has the row that a commit has found changed

MAX_TEXT: Final = 512 * 1024  # characters of stdout and of stderr
MAX_DATA_BYTES: Final = 1024 * 1024

T = TypeVar("T")


class _Open:
    """A call between its decision and its result; equal requests share it."""

    def __init__(self, call: Call, engine: Engine, decision: Decision) -> None:
        self.call = call
        self.engine = engine
        self.decision = decision
        self.approval: Approval | None = None
        self.holders = 0  # callers that want its result
        self.running: asyncio.Task[ToolOutput] | None = None
        self.finishing: asyncio.Future[None] | None = None
        self.response: Response | None = None  # once it is finished
        self.stopped = False  # the last caller has left
        self.late = False  # the deadline has passed


class AllowedCall:
    """A call that may run, held by one caller (`outcomes.Allowed`)."""

    def __init__(self, gate: "Gate", shared: _Open, *, known: bool = False) -> None:
        self._gate = gate
        self._shared = shared
        self.known = known
        self._cancelled = False
        self.response: Response | None = None
        shared.holders += 1

    async def run(self, update: Update = no_update) -> ToolOutput:
        shared = self._shared
        if self._cancelled and shared.running is None:
            return failed("Cancelled")
        if shared.running is None:
            shared.running = asyncio.create_task(self._gate._execute(shared, update))
        try:
            return await asyncio.shield(shared.running)
        except asyncio.CancelledError:
            if shared.running.cancelled():
                raise  # the process ends; the next start says what is known
            shared.holders -= 1
            if shared.holders:
                raise
            self._cancelled = True
            shared.stopped = True
            shared.running.cancel()
            return await _uninterrupted(shared.running)

    async def finish(self, output: ToolOutput, *, also: Sequence[Operation] = ()) -> None:
        shared = self._shared
        while shared.finishing is not None:  # by another caller of an equal request
            await asyncio.wait([shared.finishing])
        if shared.response is None:
            await self._finish(output, also)
        else:
            await self._gate.commit(also)
        self.response = shared.response
        if self._cancelled:
            raise asyncio.CancelledError

    async def _finish(self, output: ToolOutput, also: Sequence[Operation]) -> None:
        shared = self._shared
        finishing = shared.finishing = asyncio.get_running_loop().create_future()
        try:
            shared.response = await self._gate._finish(shared, output, also)
        except asyncio.CancelledError:
            finishing_again = asyncio.create_task(self._gate._finish_again(shared, output, also))
            self.response = shared.response = await _uninterrupted(finishing_again)
            raise
        finally:
            shared.finishing = None
            finishing.set_result(None)

    def cancel(self) -> None:
        """Run nothing: the caller was cancelled before the tool could begin."""
        self._cancelled = True


class KnownCall:
    """A call that has ended before (`outcomes.Allowed`)."""

    known: Final = True

    def __init__(self, gate: "Gate", response: Response, output: ToolOutput) -> None:
        self._gate = gate
        self._output = output
        self.response: Response | None = response

    async def run(self, update: Update = no_update) -> ToolOutput:
        return self._output

    async def finish(self, output: ToolOutput, *, also: Sequence[Operation] = ()) -> None:
        await self._gate.commit(also)


class ReleasedCall:
    """A call that a device of the caller's session runs (`outcomes.Allowed`)."""

    response: Response | None = None

    def __init__(self, gate: "Gate", call_id: str, *, known: bool) -> None:
        self._gate = gate
        self._call_id = call_id
        self.known = known

    async def run(self, update: Update = no_update) -> ToolOutput:
        raise Invalid(f"call {self._call_id} runs on a device of the session")

    async def finish(self, output: ToolOutput, *, also: Sequence[Operation] = ()) -> None:
        await self._gate.finish_call(self._call_id, output, also=also)


class _Decided(msgspec.Struct, frozen=True):
    """The decision of the policy and, if asked, of a person."""

    decision: Decision
    approval: Approval | None = None
    operations: Sequence[Operation] = ()  # among them the checks of what it was decided on


class _CallerRow(msgspec.Struct, frozen=True):
    """The caller's rights as the surface has looked at them."""

    check: Check | None
    is_revoked: bool = False


class Gate:
    """Every tool call passes here (`outcomes.ToolGate`)."""

    def __init__(
        self,
        *,
        policies: Policies,
        routing: Routing,
        ledger: Ledger,
        approvals: Approvals,
        redactor: Redactor,
        registry: Registry | None = None,
        limits: CapabilityLimits | None = None,
        deadline_s: float = 600.0,
        unanswered: str = "",
    ) -> None:
        """`unanswered` says why nobody can be asked here; empty where somebody can."""
        self._registry = registry
        self._limits = limits
        self._policies = policies
        self._routing = routing
        self._ledger = ledger
        self._approvals = approvals
        self._redactor = redactor
        self._deadline_s = deadline_s
        self._unanswered = unanswered
        self._open: dict[tuple[str, str], _Open] = {}
        self._beginning: dict[tuple[str, str], asyncio.Future[None]] = {}

    async def begin(
        self, request: ToolRequest, *, also: Also = nothing_also, due: int | None = None
    ) -> outcomes.Begun:
        engine = self._routing.engine_for(request)
        call = self._take(request, engine)
        key = (call.id, call.fingerprint)
        while (earlier := self._beginning.get(key)) is not None:
            await asyncio.wait([earlier])
        if (shared := self._open.get(key)) is not None:
            return AllowedCall(self, shared, known=True)
        # Now, before anything else can run: these are the rights that the surface has looked at.
        caller = self._caller(request)
        begun = self._beginning[key] = asyncio.get_running_loop().create_future()
        try:
            return await self._begin(call, engine, caller, also=also, due=due)
        finally:
            del self._beginning[key]
            begun.set_result(None)

    async def authorize(self, request: ToolRequest) -> Denied | None:
        call = self._take(request, self._routing.engine_for(request))
        decision = self._decide(call, is_revoked=self._caller(request).is_revoked)
        limits = self._limits
        if decision.effect is Effect.ASK:
            decision = _not_asked(decision, f"nobody is asked about {request.tool}")
        elif decision.effect is Effect.ALLOW:
            if limits is None or not (buckets := limits.buckets(request.tool)):
                return None
            try:
                await limits.rates.commit(buckets)
            except RateLimited as too_soon:
                refused = _Decided(_refused(decision, RATE_LIMITED, str(too_soon)))
                return await self._deny(call, refused, nothing_also, spent=too_soon.spent)
            return None
        return await self._deny(call, _Decided(decision), nothing_also)

    async def finish_call(
        self,
        call_id: str,
        output: ToolOutput,
        *,
        status: CallStatus | None = None,
        also: Sequence[Operation] = (),
    ) -> None:
        clean = _clean_output(output, self._redactor)
        ending = await self._ledger.close(call_id, clean, status=status)
        await self.commit((*ending, *also))

    async def abandon(
        self,
        waiting: Sequence[str],
        dispatched: Mapping[str, ToolOutput],
        *,
        reason: str,
        also: Sequence[Operation],
    ) -> None:
        note = self._redactor.text(reason)
        operations: list[Operation] = []
        for call_id in waiting:
            try:
                approval, closing = await self._approvals.close(call_id, by=RUN, reason=note)
            except NotFound:
                continue
            except Conflict:  # decided already
                approval, closing = await self._approvals.get(approval_id_of(call_id)), []
            operations += closing
            operations += await self._ledger.close_waiting(approval, reason=note)
        for call_id, output in dispatched.items():
            clean = _clean_output(output, self._redactor)
            operations += await self._ledger.close(call_id, clean)
        await self.commit((*operations, *also))

    async def commit(self, operations: Sequence[Operation]) -> None:
        """Commit operations of a caller alone, where the call itself has nothing to write."""
        if operations:
            await self._ledger.journal.commit(*operations)

    async def run_of(self, call_id: str) -> str:
        return await self._ledger.run_of(call_id)

    async def approval(self, approval_id: str) -> Question:
        return await self._approvals.question(await self._approvals.get(approval_id))

    async def reveal_approval(self, approval_id: str, *, by: str) -> Question:
        return await self._approvals.reveal(approval_id, by=by)

    async def decide_approval(
        self, approval_id: str, *, approve: bool, decided_by: Identity, reason: str
    ) -> str:
        who = decided_by.principal
        if self._redactor.text(who) != who:  # it is written as it is
            raise Invalid("the name of who decides holds a secret", field="decided_by")
        asked = await self._approvals.get(approval_id)
        level = self._routing.known_level(asked.tool) or Level.WRITE
        if not decided_by.may_decide_level(level):
            raise MayNotDecide(f"{asked.tool} is of level {level}, above that of {who}")
        overtaken = ""
        if approve and not self._policies.has_rule(asked.rule_digest):
            overtaken = f"rule {asked.rule_id}, which asked, is no longer in force as it was"
        decided = await self._approvals.decide(
            approval_id,
            approve=approve,
            decided_by=decided_by,
            reason=self._redactor.text(reason),
            overtaken=overtaken,
        )
        if approve and asked.policy_version != self._policies.version:
            decided = await self._followed(decided)
        if approve and decided.status is not ApprovalStatus.APPROVED:
            raise Conflict(f"approval {approval_id} does not count any more: {decided.note}")
        return decided.request_id

    async def _followed(self, approval: Approval) -> Approval:
        """An approval a moment later: its call is decided again, and another rule may deny it."""
        for _ in range(FOLLOWED):
            if approval.used or approval.status is not ApprovalStatus.APPROVED:
                break
            await asyncio.sleep(ELSEWHERE_S)
            approval = await self._approvals.get(approval.approval_id)
        return approval

    def visible_tools(self, caller: Caller) -> Sequence[Tool]:
        offered = self._routing.tools(caller)
        return [tool for tool in offered if self._policies.may_pass(tool, caller)]

    async def recover(self, *, also: AlsoOfCall = nothing_of_call) -> int:
        """Give each call that an earlier start left open its outcome; return their number."""
        return await recover(self._ledger, is_repeatable=self._routing.is_repeatable, also=also)

    async def _begin(
        self,
        call: Call,
        engine: Engine,
        caller: _CallerRow,
        *,
        also: Also,
        due: int | None,
    ) -> outcomes.Begun:
        """Try as if the call were new, as most are; a conflict shows those that are not."""
        known: Entry | None = None
        for _ in range(ATTEMPTS):
            tried, checks = call.version, self._checks(call, caller)
            try:
                return await self._decide_and_record(
                    call,
                    engine,
                    known,
                    also,
                    checks,
                    is_revoked=caller.is_revoked,
                    due=due,
                )
            except _Elsewhere:
                await asyncio.sleep(ELSEWHERE_S)
                call, known = await self._ledger.find(call)
            except _RatesChanged:
                call, known = await self._ledger.find(call)
            except Conflict:
                call, known = await self._ledger.find(call)
                stale = await self._stale(checks)
                if stale is None and call.version == tried:
                    raise  # of the caller's own operations
                if stale is not None:  # decide again, on what is in force now
                    caller = msgspec.structs.replace(
                        caller, is_revoked=caller.is_revoked or stale == caller.check
                    )
                    await asyncio.sleep(STALE_S)
        raise Unavailable(f"request {call.id} is being run by another process")

    def _caller(self, request: ToolRequest) -> _CallerRow:
        if self._registry is None or not request.caller.device:
            return _CallerRow(None)
        try:
            return _CallerRow(self._registry.check_of(request.caller.device))
        except NotFound:
            return _CallerRow(None, is_revoked=True)

    def _checks(self, call: Call, caller: _CallerRow) -> Sequence[Check]:
        """The rows that a decision made now stands on: the caller's, the tool's and the policy's."""
        checks = [] if self._limits is None else self._limits.checks(call.request.tool)
        if caller.check is not None and not caller.is_revoked:
            checks.append(caller.check)
        version = self._policies.row_version
        if version and call.request.policy_ref == ACTIVE_POLICY:
            checks.append(Check(POLICY_ROWS, ACTIVE_POLICY, version))
        return checks

    async def _stale(self, checks: Sequence[Check]) -> Check | None:
        """The first row among these that has changed."""
        for check in checks:
            found = await version_of(self._ledger.journal, check.collection, check.key)
            if found != check.version:
                return check
        return None

    async def _decide_and_record(
        self,
        call: Call,
        engine: Engine,
        known: Entry | None,
        also: Also,
        checks: Sequence[Check],
        *,
        is_revoked: bool,
        due: int | None,
    ) -> outcomes.Begun:
        decision = self._decide(call, is_revoked=is_revoked)
        if decision.clean and not await self._routing.can_be_clean(call.request):
            decision = self._decide(call, is_revoked=is_revoked, can_be_clean=False)
        if known is not None:
            if known.fingerprint != call.fingerprint and decision.rule_id == OUTSIDE_SCOPE:
                # A caller is described with their rights: with fewer, it is another request.
                decided = _Decided(decision, operations=checks)
                return await self._deny(call, decided, also, for_now=True)
            if (answer := await self._known(call, known, decision)) is not None:
                return answer
        approval: Approval | None = None
        use: Sequence[Operation] = ()
        if decision.effect is Effect.ASK and known is None:
            return await self._ask(call, decision, checks, also)
        if decision.effect is Effect.ASK or is_in(known, CallStatus.WAITING_APPROVAL):
            approval = await self._approvals.get_for(call.request)
            if approval.status is not ApprovalStatus.PENDING:
                decision, approval, use = await self._apply_approval(call, decision, approval)
            elif decision.effect is Effect.DENY:  # the policy has become stricter meanwhile
                approval, use = await self._approvals.close(
                    call.id, by=POLICY, reason=decision.reason
                )
            else:
                stored = self._approvals.view.store(call.request.args)
                return _pending(call, approval, stored, known=True)
        decided = _Decided(decision, approval, (*checks, *use))
        if decision.effect is Effect.DENY:
            return await self._deny(call, decided, also)
        again = is_in(known, CallStatus.INTERRUPTED)
        limits = self._limits
        if limits is None or again or not (buckets := limits.buckets(call.request.tool)):
            return await self._start(call, engine, decided, also, due=due, again=again)
        try:
            charge = await limits.charge(buckets)
        except RateLimited as too_soon:
            refused = _refused(decision, RATE_LIMITED, str(too_soon))
            decided = _Decided(refused, operations=checks)
            return await self._deny(call, decided, also, for_now=True, spent=too_soon.spent)
        decided = msgspec.structs.replace(
            decided, operations=(*decided.operations, *charge.operations)
        )
        try:
            return await self._start(call, engine, decided, also, due=due)
        except Conflict:
            limits.rates.undo(charge)
            if await limits.rates.was_stale(charge):
                raise _RatesChanged from None
            raise
        except BaseException:  # the commit may have been done
            limits.rates.undo(charge)
            raise

    async def _start(
        self,
        call: Call,
        engine: Engine,
        decided: _Decided,
        also: Also,
        *,
        due: int | None,
        again: bool = False,
    ) -> outcomes.Begun:
        if due is None:
            return await self._allow(call, engine, decided, also, again=again)
        released = ReleasedCall(self, call.id, known=False)
        operations = (*decided.operations, *also(released))
        await self._ledger.release(
            call, decided.decision, due=due, approval=decided.approval, operations=operations
        )
        return released

    async def _deny(
        self,
        call: Call,
        decided: _Decided,
        also: Also,
        *,
        for_now: bool = False,
        spent: Spent | None = None,
    ) -> Denied:
        """Deny a call; if only for now, it may be begun again under its id."""
        decision = decided.decision
        code = _CODES.get(decision.rule_id, "blocked")
        tool = call.request.tool
        denied = Denied(code, decision.rule_id, decision.reason, tool=tool, spent=spent)

        def with_response(response: Response) -> Sequence[Operation]:
            return (*decided.operations, *also(denied._replace(response=response)))

        if for_now:
            response = await self._ledger.refuse_for_now(call, decision, also=with_response)
        else:
            response = await self._ledger.refuse(
                call, decision, approval=decided.approval, also=with_response
            )
        return denied._replace(response=response)

    async def _allow(
        self, call: Call, engine: Engine, decided: _Decided, also: Also, *, again: bool
    ) -> AllowedCall:
        if decided.decision.clean:
            request = msgspec.structs.replace(call.request, clean=True)
            call = msgspec.structs.replace(call, request=request)
        shared = _Open(call, engine, decided.decision)
        shared.approval = decided.approval
        allowed = AllowedCall(self, shared)
        operations = (*decided.operations, *also(allowed))
        starting = self._ledger.start(
            call, decided.decision, approval=decided.approval, operations=operations, again=again
        )
        try:
            shared.call = await starting
        except asyncio.CancelledError:  # its commit may be on its way: then the caller finishes it
            looking = asyncio.create_task(self._ledger.look_for_start(call))
            if not await _uninterrupted(looking):
                raise
            shared.call = running(call)
            allowed.cancel()
        self._open[call.id, call.fingerprint] = shared
        return allowed

    async def _finish(
        self, shared: _Open, output: ToolOutput, also: Sequence[Operation]
    ) -> Response:
        call = shared.call
        response = await self._ledger.finish(
            call, shared.decision, output, approval=shared.approval, also=also
        )
        self._open.pop((call.id, call.fingerprint), None)
        return response

    async def _finish_again(
        self, shared: _Open, output: ToolOutput, also: Sequence[Operation]
    ) -> Response:
        """Finish a call whose finish was cancelled, unless its commit went through."""
        call = shared.call
        response = await self._ledger.look_for_end(call)
        if response is None:
            return await self._finish(shared, output, also)
        self._open.pop((call.id, call.fingerprint), None)
        return response

    def _take(self, request: ToolRequest, engine: Engine) -> Call:
        """Understand a request, before anything happens; raises Invalid."""
        ids = f"{request.request_id}\0{request.run_id}\0{request.step_id}"  # without derived ones
        request = complete(request)
        content = described(request)
        names = "\0".join(names_in(request))
        if _readable(ids) != ids or _readable(names) != names:
            raise Invalid(
                "ids and names must be valid UTF-8 text without control characters", field="ctx"
            )
        args = content["args"]
        # One search for ids and arguments; only where that finds something, one for each.
        clean = args
        both: dict[str, JsonValue] = {"ids": ids, "args": args}
        is_clean = self._redactor.value(both) is both
        named = names if is_clean else f"{ids}\0{names}"
        if self._redactor.text(named) != named:
            raise Invalid("an id or a name in the request holds a secret", field="ctx")
        if not is_clean:
            clean = self._redactor.value(args)
            if not isinstance(clean, dict):  # nobody could tell, nor see, what is asked
                raise Invalid("args cannot be looked through for secrets", field="args")
        evidence = self._ledger.evidence
        try:
            shown = whole = evidence.canonical(content)
            if clean is not args:
                shown = evidence.canonical({**content, "args": clean})
        except (TypeError, ValueError, OverflowError, RecursionError) as unreadable:
            raise Invalid("args cannot be written as JSON", field="args") from unreadable
        return Call(
            request,
            shown,
            fingerprint=evidence.commitment(whole),
            engine_ref=engine.ref,
            level=self._routing.level_of(request),
            definition=self._routing.definition_of(request),
        )

    async def _known(self, call: Call, known: Entry, decision: Decision) -> outcomes.Begun | None:
        """The answer to a request that was seen before; None where the call has to go on."""
        if known.fingerprint != call.fingerprint:
            return _denied(call, await self._ledger.conflict(call), known=False)
        match known.state:
            case status if status in TERMINAL:
                response = await self._ledger.response(call, known)
                output = response.output(known.isolation)
                if output is None:
                    return _denied(call, response, known=True)
                return KnownCall(self, response, output)
            case CallStatus.DISPATCHED:
                return ReleasedCall(self, call.id, known=True)
            case CallStatus.WAITING_APPROVAL:
                return None
            case CallStatus.INTERRUPTED if decision.effect is Effect.ALLOW:
                return None
            case CallStatus.RUNNING if not self._ledger.owner.is_same_node(known.owner):
                raise _Elsewhere(f"request {call.id} is being run by {known.owner}")
            case _:  # started here, but by no caller that still holds it
                again = known.state is CallStatus.RUNNING and may_run_again(
                    known, is_repeatable=self._routing.is_repeatable
                )
                response_or_none = await self._ledger.interrupted(call, known, may_run_again=again)
                if response_or_none is None:
                    raise Conflict(f"request {call.id} may be run again")
                output = response_or_none.output("")
                assert output is not None
                return KnownCall(self, response_or_none, output)

    def _decide(self, call: Call, *, is_revoked: bool, can_be_clean: bool = True) -> Decision:
        """The decision by the caller's rights, the policy and the tool's capabilities."""
        decision = self._policies.decide(call.request, level=call.level, can_be_clean=can_be_clean)
        if outside := REVOKED if is_revoked else self._outside_scope(call):
            return _refused(decision, OUTSIDE_SCOPE, outside)
        if decision.effect is not Effect.DENY and self._limits is not None:
            refusal = self._limits.refusal(call.request.tool)
            if refusal is not None:
                return _refused(decision, refusal.rule_id, refusal.reason)
        if self._unanswered and decision.effect is Effect.ASK:
            decision = _not_asked(decision, self._unanswered)
        text = f"{decision.reason}\0{decision.detail}"
        if len(decision.detail) <= MAX_DETAIL and self._redactor.text(text) == text:
            return decision
        return decision._replace(
            reason=self._redactor.text(decision.reason),
            detail=self._redactor.text(decision.detail)[:MAX_DETAIL],
        )

    def _outside_scope(self, call: Call) -> str:
        """Why the caller may not give the command that a call is part of; empty if they may."""
        needed = call.request.scope
        if needed is None or self._registry is None:
            return ""
        if call.level.rank > needed.level.rank:
            needed = msgspec.structs.replace(needed, level=call.level)
        return self._registry.scope_refusal(call.request.caller.device, needed)

    async def _ask(
        self, call: Call, decision: Decision, checks: Sequence[Check], also: Also
    ) -> Pending:
        """Ask a person: the approval, the call that waits and the caller's operations, one commit."""
        place = await self._routing.place_of(call.request)
        try:
            shown = self._approvals.view.show(call.request.args)
            stored = self._approvals.view.store(call.request.args)
            approval, operations = self._approvals.new(
                call.request,
                decision,
                stored=stored,
                hidden=shown.hidden,
                place=place,
                definition=call.definition,
            )
        except RecursionError as deep:
            raise Invalid("args are nested too deeply to be shown", field="args") from deep
        pending = _pending(call, approval, stored, known=False)
        await self._ledger.wait(
            call, decision, approval, stored, shown.args, (*checks, *operations, *also(pending))
        )
        return pending

    async def _apply_approval(
        self, call: Call, decision: Decision, approval: Approval
    ) -> tuple[Decision, Approval, Sequence[Operation]]:
        """The decision after a person's answer, and the approval as the operations write it."""
        by_person = approval.decided_by != POLICY
        is_rejected = approval.status is ApprovalStatus.REJECTED
        if decision.effect is Effect.ALLOW and not (is_rejected and by_person):
            return decision, approval, ()  # the policy asks no longer
        if decision.effect is not Effect.DENY:
            if (denied := unapproved(decision, approval)) is not None:
                return denied, approval, ()
            try:
                place = await self._routing.place_of(call.request)
                use = await self._approvals.use(call.request, decision, place=place)
                return decision, approval, [use]
            except Refused as refused:
                decision = decision._replace(
                    effect=Effect.DENY, rule_id=APPROVAL_DOES_NOT_FIT, reason=str(refused)
                )
        if approval.status is not ApprovalStatus.APPROVED:
            return decision, approval, ()
        overtaken, closing = await self._approvals.overtake(call.id, reason=decision.reason)
        return decision, overtaken, closing

    async def _execute(self, shared: _Open, update: Update) -> ToolOutput:
        """Run the tool; every end, also a failure, is a redacted output."""
        call, engine = shared.call, shared.engine
        task = asyncio.current_task()
        assert task is not None
        stream: RedactingStream | None = None
        latest = ""

        def show(piece: str) -> None:
            nonlocal stream, latest
            latest = piece
            if stream is None:
                stream = self._redactor.stream()
            if clean := stream.feed(_readable(piece)):
                update(with_time_of(clean, piece))

        def expire() -> None:
            if not shared.stopped:
                shared.late = True
                task.cancel()

        alarm = asyncio.get_running_loop().call_later(self._deadline_s, expire)
        try:
            output = await engine.run(call.request, update=show)
            if stream is not None and (rest := stream.close()):
                rest = self._redactor.cut(rest) if output.truncated else rest
                update(with_time_of(rest, latest))
        except TimeoutError:
            output = failed("The engine gave up waiting", outcome=Outcome.MAY_HAVE_EXECUTED)
        except (Invalid, Refused, NotFound) as refused:
            output = failed(str(refused))
        except ToolgateError as unavailable:
            output = failed(str(unavailable), outcome=Outcome.MAY_HAVE_EXECUTED)
        except asyncio.CancelledError:
            if not shared.stopped and not shared.late:
                raise  # the process ends; the next start says what is known
            task.uncancel()
            why = f"No end after {self._deadline_s} s" if shared.late else "Cancelled"
            output = failed(why, outcome=Outcome.MAY_HAVE_EXECUTED)
        except Exception:
            log.exception("engine_failed engine=%s request=%s", engine.ref, call.id)
            output = failed("The engine failed", outcome=Outcome.MAY_HAVE_EXECUTED)
        finally:
            alarm.cancel()
        return _clean_output(output, self._redactor)


class _Elsewhere(Exception):
    """Another process runs this call."""


def _not_asked(decision: Decision, why: str) -> Decision:
    """A refusal in place of a question to a person."""
    reason = f"A person must approve it ({decision.reason}); {why}"
    return decision._replace(effect=Effect.DENY, reason=reason)


class _RatesChanged(Exception):
    """The row of a rate limit was written elsewhere since it was read."""


async def _uninterrupted(task: "asyncio.Task[T]") -> T:
    """The task's result, also where the caller is cancelled again meanwhile."""
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            continue
    return task.result()


def _pending(
    call: Call, approval: Approval, stored: dict[str, JsonValue], *, known: bool
) -> Pending:
    reason = f"Waits for approval {approval.approval_id}: {approval.reason}"
    response = Response(
        ok=False,
        policy_check=StoredCheck(DENY, reason, REQUIRED),
        evidence_refs=refs_of(call.id, ON_WAIT),
        engine_ref=call.engine_ref,
        run_id=call.request.run_id,
        step_id=call.request.step_id,
        outcome=Outcome.NOT_STARTED,
    )
    return Pending(
        approval.approval_id,
        summary_of(approval.tool, stored),
        approval.reason,
        approval.expires_at,
        approval.rule_id,
        known,
        response,
        call.request.tool,
        stored,
        approval.hidden,
    )


def _refused(decision: Decision, rule_id: str, reason: str) -> Decision:
    """A denial by no rule of the policy."""
    return decision._replace(
        effect=Effect.DENY, rule_id=rule_id, reason=reason, detail="", rule_digest=""
    )


def _denied(call: Call, response: Response, *, known: bool) -> Denied:
    rule_id, reason = response.rule_id, response.policy_check.reason
    code = _CODES.get(rule_id, "blocked")
    return Denied(code, rule_id, reason, known, response, call.request.tool)


def _clean_output(output: ToolOutput, redactor: Redactor) -> ToolOutput:
    """The output without secrets and within its limits."""
    out, err, isolation = _readable(output.stdout), _readable(output.stderr), output.isolation
    texts = f"{out}\0{err}\0{isolation}"
    if redactor.text(texts) != texts:
        out, err, isolation = map(redactor.text, (out, err, isolation))
    if output.truncated:
        out, err = redactor.cut(out), redactor.cut(err)
    stdout, stdout_cut = _capped(out)
    stderr, stderr_cut = _capped(err)
    data, data_cut = _bounded(output.data, redactor, cut=output.truncated)
    unchanged = stdout is output.stdout and stderr is output.stderr
    if unchanged and data is None and isolation == output.isolation:
        return output
    return msgspec.structs.replace(
        output,
        stdout=stdout,
        stderr=stderr,
        data=data,
        isolation=isolation,
        truncated=output.truncated or stdout_cut or stderr_cut or data_cut,
    )


def _readable(text: str) -> str:
    """The text with halves of characters replaced: an engine may have decoded bytes to them."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace").decode()
    return text


def _capped(text: str) -> tuple[str, bool]:
    if len(text) <= MAX_TEXT:
        return text, False
    return f"{text[:MAX_TEXT]}\n[cut: {MAX_TEXT} of {len(text)} characters]\n", True


def _bounded(data: JsonValue, redactor: Redactor, *, cut: bool) -> tuple[JsonValue, bool]:
    """Structured data without secrets; a note in its place where there is too much of it."""
    if data is None:
        return None, False
    clean = redactor.value(data)
    try:
        if cut:
            clean = redactor.cut_value(clean)
        fits = len(msgspec.json.encode(clean)) <= MAX_DATA_BYTES
    except (TypeError, ValueError, RecursionError):
        return {"unreadable": True}, True
    return (clean, False) if fits else ({"truncated": True}, True)
