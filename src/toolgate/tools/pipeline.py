"""The one way in which a tool is ever run: who asks, what the policy says, a person, evidence.

`_run` is the whole of it. What goes in is redacted before it is written, and what comes out before
it is shown; the response that is given is the one that is stored.
"""

import asyncio
import contextlib
import json
import logging
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple
from unicodedata import category

import msgspec

from toolgate.contracts import executor_v0 as wire
from toolgate.contracts.wire import given
from toolgate.core.enums import ApprovalStatus, Outcome
from toolgate.core.errors import (
    Conflict,
    Invalid,
    NotFound,
    Refused,
    ToolgateError,
    Unavailable,
)
from toolgate.core.tools import Caller, JsonValue, Tool, ToolOutput, ToolRequest
from toolgate.journal.journal import Operation
from toolgate.policy.model import Decision, Effect
from toolgate.policy.policies import Policies
from toolgate.secrets.redaction import MASK, RedactingStream, Redactor
from toolgate.tools.approval_records import Approvals
from toolgate.tools.approvals import POLICY, RUN, Approval
from toolgate.tools.calls import (
    Call,
    Entry,
    State,
    complete,
    described,
    is_interrupted,
    is_waiting,
    names_in,
    outcome_of,
)
from toolgate.tools.definitions import failed
from toolgate.tools.engine import Engine, Update, no_update
from toolgate.tools.gate import Answer, Denied, Pending, Ran, Rider, Started, not_told
from toolgate.tools.ledger import Ledger
from toolgate.tools.recovery import may_run_again, recover
from toolgate.tools.routing import Routing

log = logging.getLogger(__name__)

REJECTED: Final = "approval_rejected"
EXPIRED: Final = "approval_expired"
MISFIT: Final = "approval_does_not_fit"
REQUIRED: Final = "approval_required"
_CODES: Final = {REJECTED: "rejected", EXPIRED: "approval_timeout"}  # others: blocked

MAX_DETAIL: Final = 200  # characters of what a decision says beside its reason
MAX_SUMMARY: Final = 4_000  # characters of a call: a person approves its end too
_UNSEEN: Final = frozenset({"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp"})
MAX_TEXT: Final = 512 * 1024  # characters of stdout and of stderr
MAX_DATA_BYTES: Final = 1024 * 1024
ELSEWHERE_S: Final = 0.05
ATTEMPTS: Final = 600  # 30 s for a call that another process runs; a conflict takes one or two


class Waiting(NamedTuple):
    """Not decided yet: a person has been asked."""

    call: Call
    approval: Approval


class Settled(NamedTuple):
    response: wire.RunToolResponse
    isolation: str = ""
    output: ToolOutput | None = None  # where it has just run


class _Running:
    """One run that equal requests share. It can be stopped while its tool runs, and then only."""

    def __init__(self, engine: Engine, started: Started, rider: Rider) -> None:
        self.engine = engine
        self.started = started
        self.rider = rider
        self.task: asyncio.Task[Settled | Waiting]
        self.waiting: list[asyncio.Future[None]] = []
        self.in_tool = False
        self.stopped = False
        self.late = False

    def enter_tool(self) -> bool:
        """Whether the tool may still begin."""
        self.in_tool = not self.stopped
        return self.in_tool

    def stop(self) -> None:
        if not self.stopped:
            self.stopped = True
            if self.in_tool and not self.late:
                self.task.cancel()

    def expire(self) -> None:
        if not self.stopped:
            self.late = True
            self.task.cancel()

    def end(self) -> None:
        for waiter in self.waiting:
            if not waiter.done():
                waiter.set_result(None)


class Pipeline:
    """A `ToolPipeline` (`tools.gate`), and the executor contract's `run_tool`."""

    def __init__(
        self,
        *,
        policies: Policies,
        routing: Routing,
        ledger: Ledger,
        approvals: Approvals,
        redactor: Redactor,
        deadline_s: float = 600.0,
    ) -> None:
        self._policies = policies
        self._routing = routing
        self._ledger = ledger
        self._approvals = approvals
        self._redactor = redactor
        self._deadline_s = deadline_s
        self._running: dict[tuple[str, str], _Running] = {}

    async def run(
        self,
        request: ToolRequest,
        *,
        update: Update = no_update,
        started: Started = not_told,
        rider: Rider | None = None,
    ) -> Answer:
        return _answer(await self.settle(request, update=update, started=started, rider=rider))

    async def check(self, request: ToolRequest) -> Answer:
        return _answer(await self.settle(request, released=True))

    async def run_tool(
        self, request: ToolRequest, *, update: Update = no_update
    ) -> wire.RunToolResponse:
        """The executor contract: a call that waits for a person is denied until they have spoken."""
        match await self.settle(request, update=update):
            case Settled(response):
                return response
            case Waiting(call, approval):
                return _not_yet(call, approval)

    async def settle(
        self,
        request: ToolRequest,
        *,
        update: Update = no_update,
        started: Started = not_told,
        released: bool = False,
        rider: Rider | None = None,
    ) -> Settled | Waiting:
        """Equal requests that arrive together share one run; the last to leave stops it."""
        engine = self._routing.engine_for(request)
        call = self._take(request, engine)
        key = (call.id, call.fingerprint)
        running = self._running.get(key)
        if running is None:
            running = self._running[key] = _Running(engine, started, rider or Rider())
            work = self._attempt(call, running, update=update, released=released)
            running.task = asyncio.create_task(work)
            running.task.add_done_callback(lambda task: self._forget(key, task))
        waiter = asyncio.get_running_loop().create_future()
        running.waiting.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            running.waiting.remove(waiter)
            if not running.waiting:
                running.stop()
                await asyncio.wait([running.task])
            raise
        return running.task.result()

    def _forget(self, key: tuple[str, str], task: asyncio.Task[Settled | Waiting]) -> None:
        self._running.pop(key).end()
        if not task.cancelled() and (error := task.exception()) is not None:
            log.warning("call_failed request=%s error=%s", key[0], type(error).__name__)

    async def conclude(self, request_id: str, output: ToolOutput) -> Sequence[Operation]:
        return await self._ledger.conclude(request_id, clean_output(output, self._redactor))

    async def withdraw(self, request_id: str, *, reason: str) -> Sequence[Operation]:
        note = self._redactor.text(reason)
        with contextlib.suppress(NotFound, Conflict):
            _, closing = await self._approvals.withdraw(request_id, by=RUN, reason=note)
            return closing
        return ()

    async def decide_approval(
        self, approval_id: str, *, approve: bool, decided_by: str, reason: str
    ) -> str:
        if self._redactor.text(decided_by) != decided_by:  # it is written as it is
            raise Invalid("the name of whoever decides holds a secret", field="decided_by")
        decided = await self._approvals.decide(
            approval_id,
            approve=approve,
            decided_by=decided_by,
            reason=self._redactor.text(reason),
        )
        return decided.request_id

    def visible_tools(self, caller: Caller) -> Sequence[Tool]:
        offered = self._routing.tools(caller)
        return [tool for tool in offered if self._policies.may_pass(tool, caller)]

    async def recover(self) -> int:
        """At start: whatever was started and has no result gets its outcome; how many there were."""
        return await recover(self._ledger, is_repeatable=self._routing.is_repeatable)

    async def _attempt(
        self, call: Call, running: _Running, *, update: Update, released: bool
    ) -> Settled | Waiting:
        known: Entry | None = None  # as most are; a conflict tells of those that aren't
        for _ in range(ATTEMPTS):
            try:
                return await self._run(call, known, running, update=update, released=released)
            except Conflict:
                call, known = await self._ledger.find(call)
        raise Unavailable(f"request {call.id} is being written elsewhere")

    async def _run(
        self,
        call: Call,
        known: Entry | None,
        running: _Running,
        *,
        update: Update,
        released: bool,
    ) -> Settled | Waiting:
        if known is not None and (settled := await self._known(call, known)) is not None:
            return settled
        decision = self._decide(call)
        approval: Approval | None = None
        use: Sequence[Operation] = ()
        if decision.effect is Effect.ASK or is_waiting(known):
            approval = await self._ask(call, decision, asked=known is not None)
            if approval.status is not ApprovalStatus.PENDING:
                decision, use = await self._heed(call, decision, approval)
            elif decision.effect is Effect.DENY:  # the policy has become stricter meanwhile
                approval, use = await self._approvals.withdraw(
                    call.id, by=POLICY, reason=decision.reason
                )
            else:
                return Waiting(call, approval)
        rider = running.rider
        if decision.effect is Effect.DENY:
            refused = await self._ledger.refuse(
                call, decision, approval=approval, also=lambda told: (*use, *_both(rider, told))
            )
            rider.began = True
            rider.ended = rider.end is not None
            return Settled(refused)
        if released:
            await self._ledger.release(call, decision, approval=approval, operations=use)
            return _released(call)
        call = await self._ledger.start(
            call,
            decision,
            approval=approval,
            operations=use if rider.began else (*use, *rider.begin),
            again=is_interrupted(known),
        )
        rider.began = True
        output = await self._execute(call, running, update)
        response = await self._ledger.finish(
            call,
            decision,
            output,
            approval=approval,
            also=lambda told: _end(rider, Settled(told, output.isolation, output)),
        )
        rider.ended = rider.end is not None
        return Settled(response, output.isolation, output)

    def _take(self, request: ToolRequest, engine: Engine) -> Call:
        """Understand a request, before anything happens; raises Invalid."""
        request = complete(request)
        content = described(request)
        names = "\0".join(names_in(request))
        if not names.isprintable() and _readable(names) != names:
            raise Invalid("an id or a name in the request is no text", field="ctx")
        args = content["args"]
        # One search for all of it; only where that finds something, one for each.
        clean = args
        both: dict[str, JsonValue] = {"names": names, "args": args}
        if self._redactor.value(both) is not both:
            if self._redactor.text(names) != names:
                raise Invalid("an id or a name in the request holds a secret", field="ctx")
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
        )

    async def _known(self, call: Call, known: Entry) -> Settled | None:
        """The answer to a request that was seen before; None where the call has to go on."""
        if known.fingerprint != call.fingerprint:
            return Settled(await self._ledger.conflict(call))
        match known.state:
            case State.ENDED:
                return Settled(await self._ledger.response(call, known), known.isolation)
            case State.RELEASED:
                return _released(call)
            case State.WAITING:
                return None
            case State.INTERRUPTED if self._decide(call).effect is Effect.ALLOW:
                return None
            case State.STARTED if known.owner != self._ledger.owner:
                await asyncio.sleep(ELSEWHERE_S)
                raise Conflict(f"request {call.id} is being run by {known.owner}")
            case _:  # started here, but not by anyone who still waits for it
                again = known.state is State.STARTED and may_run_again(
                    known, is_repeatable=self._routing.is_repeatable
                )
                response = await self._ledger.interrupted(call, known, may_run_again=again)
                if response is None:
                    raise Conflict(f"request {call.id} may be run again")
                return Settled(response)

    def _decide(self, call: Call) -> Decision:
        decision = self._policies.decide(call.request, level=call.level)
        said = f"{decision.reason}\0{decision.detail}"
        if len(decision.detail) <= MAX_DETAIL and self._redactor.text(said) == said:
            return decision
        return decision._replace(
            reason=self._redactor.text(decision.reason),
            detail=self._redactor.text(decision.detail)[:MAX_DETAIL],
        )

    async def _ask(self, call: Call, decision: Decision, *, asked: bool) -> Approval:
        """The approval of this call as it is now; asked for, durably, where it was not yet."""
        if asked:
            return await self._approvals.get_for(call.request)
        place = await self._routing.place_of(call.request)
        try:
            args = self._redactor.fields(call.request.args)
            text = f"{call.request.tool} {_as_text(args)}"
            summary = _summary(self._redactor.preview(text, limit=len(MASK) * len(text)))
            approval, operations = self._approvals.new(
                call.request, decision, summary=summary, place=place
            )
        except RecursionError as deep:
            raise Invalid("args are nested too deeply to be shown", field="args") from deep
        await self._ledger.wait(call, decision, operations)
        return approval

    async def _heed(
        self, call: Call, decision: Decision, approval: Approval
    ) -> tuple[Decision, Sequence[Operation]]:
        """What a person's word makes of the policy's; the write uses the approval up."""
        deny = decision._replace(effect=Effect.DENY)
        if decision.effect is Effect.DENY:  # the policy has become stricter meanwhile
            return decision, ()
        if approval.status is ApprovalStatus.EXPIRED:
            return deny._replace(rule_id=EXPIRED, reason="Nobody approved it in time"), ()
        if approval.status is ApprovalStatus.REJECTED:
            note = f": {approval.note}" if approval.note else ""
            reason = f"Rejected by {approval.decided_by}{note}"
            return deny._replace(rule_id=REJECTED, reason=reason), ()
        try:
            place = await self._routing.place_of(call.request)
            return decision, [await self._approvals.use(call.request, decision, place=place)]
        except Refused as refused:
            return deny._replace(rule_id=MISFIT, reason=str(refused)), ()

    async def _execute(self, call: Call, running: _Running, update: Update) -> ToolOutput:
        """Run the tool; whatever becomes of it is an output, without a secret in it."""
        engine = running.engine
        stream: RedactingStream | None = None

        def shown(piece: str) -> None:
            nonlocal stream
            if stream is None:
                stream = self._redactor.stream()
            if clean := stream.feed(piece):
                update(clean)

        if not running.enter_tool():
            return failed("Cancelled")
        alarm = asyncio.get_running_loop().call_later(self._deadline_s, running.expire)
        try:
            await running.started()
            output = await engine.run(call.request, update=shown)
            if stream is not None and (rest := stream.close()):
                update(self._redactor.cut(rest) if output.truncated else rest)
        except TimeoutError:
            output = failed("The engine gave up waiting", outcome=Outcome.MAY_HAVE_EXECUTED)
        except (Invalid, Refused, NotFound) as refused:
            output = failed(str(refused))
        except ToolgateError as unavailable:
            output = failed(str(unavailable), outcome=Outcome.MAY_HAVE_EXECUTED)
        except asyncio.CancelledError:
            if not running.stopped and not running.late:
                raise  # the process ends; the next start says what is known
            running.task.uncancel()
            why = f"No end after {self._deadline_s} s" if running.late else "Cancelled"
            output = failed(why, outcome=Outcome.MAY_HAVE_EXECUTED)
        except Exception:
            log.exception("engine_failed engine=%s request=%s", engine.ref, call.id)
            output = failed("The engine failed", outcome=Outcome.MAY_HAVE_EXECUTED)
        finally:
            alarm.cancel()
            running.in_tool = False
        return clean_output(output, self._redactor)


def clean_output(output: ToolOutput, redactor: Redactor) -> ToolOutput:
    """The output as it may be shown and stored: no secrets, and no more than there is room for."""
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
    return output._replace(
        stdout=stdout,
        stderr=stderr,
        data=data,
        isolation=isolation,
        truncated=output.truncated or stdout_cut or stderr_cut or data_cut,
    )


def _readable(text: str) -> str:
    """What an engine took from bytes may hold halves of characters, which no JSON can."""
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


def _as_text(args: Mapping[str, JsonValue]) -> str:
    return _readable(json.dumps(dict(args), ensure_ascii=False))


def _summary(text: str) -> str:
    """For people: what is invisible or turns the direction of writing is spelt out."""
    if not text.isprintable():
        text = "".join(json.dumps(c)[1:-1] if category(c) in _UNSEEN else c for c in text)
    left = len(text) - MAX_SUMMARY
    return text if left <= 0 else f"{text[:MAX_SUMMARY]}… [cut: {left} more characters]"


def _released(call: Call) -> Settled:
    """A device runs it: there is no result of ours."""
    check = wire.PolicyCheck(wire.Decision.ALLOW, "Released to the caller's device")
    refs = call.refs(wire.ARTIFACTS_ON_DENY)
    result = wire.ToolResult(exit_code=0, stdout="", stderr="")
    return Settled(wire.RunToolResponse(True, check, refs, call.engine_ref, result))


def _not_yet(call: Call, approval: Approval) -> wire.RunToolResponse:
    reason = f"Waits for approval {approval.approval_id}: {approval.reason}"
    return wire.RunToolResponse(
        ok=False,
        policy_check=wire.PolicyCheck(wire.Decision.DENY, reason, REQUIRED),
        evidence_refs=call.refs(wire.ARTIFACTS_ON_DENY),
        engine_ref=call.engine_ref,
        run_id=call.request.run_id,
        step_id=call.request.step_id,
        outcome=Outcome.NOT_STARTED,
    )


def _end(rider: Rider, settled: Settled) -> Sequence[Operation]:
    return rider.end(_answer(settled)) if rider.end is not None else ()


def _both(rider: Rider, response: wire.RunToolResponse) -> Sequence[Operation]:
    """Of a call that is refused, which begins and ends in one commit."""
    return (*(() if rider.began else rider.begin), *_end(rider, Settled(response)))


def _answer(settled: Settled | Waiting) -> Answer:
    """The same, for the doors that are not the executor's."""
    if isinstance(settled, Waiting):
        approval = settled.approval
        return Pending(approval.approval_id, approval.summary, approval.reason, approval.expires_at)
    if settled.output is not None:
        return Ran(settled.output)
    response = settled.response
    result = given(response.tool_result, None)
    if result is None:
        rule_id = given(response.policy_check.rule_id, "")
        return Denied(_CODES.get(rule_id, "blocked"), rule_id, response.policy_check.reason)
    return Ran(
        ToolOutput(
            exit_code=result.exit_code,
            stdout=result.stdout,
            stderr=result.stderr,
            data=given(result.data, None),
            says_null=result.data is None,
            truncated=given(result.truncated, False),
            outcome=outcome_of(response),
            isolation=settled.isolation,
        )
    )
