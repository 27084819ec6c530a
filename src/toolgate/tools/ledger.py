"""The commits of a call: each step with its evidence.

Nothing runs before its decision is durable. A row moves on only from the version that was read and as
the table in `calls` allows; an evidence ref that is taken conflicts. The gate redacts all input.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

import msgspec
from msgspec import UNSET, UnsetType

from toolgate.contracts.wire import to_iso_ms
from toolgate.core.clock import Clock
from toolgate.core.enums import ApprovalStatus, CallStatus, Outcome
from toolgate.core.errors import Conflict, NotFound, ToolgateError
from toolgate.core.ids import Owner
from toolgate.core.tools import Caller, JsonValue, ToolOutput
from toolgate.evidence.audit import TOOL_RUN, AuditEntry, AuditLog
from toolgate.evidence.evidence import STREAM, Evidence
from toolgate.journal.journal import Check, Event, Journal, Operation, Put
from toolgate.journal.rows import store
from toolgate.policy.model import DENIAL_DIGESTS, REQUEST_ID_CONFLICT, Decision, Effect
from toolgate.policy.refusal_texts import APPROVAL_EXPIRED, APPROVAL_REJECTED
from toolgate.tools.approvals import Approval
from toolgate.tools.calls import (
    EXECUTIONS,
    FINISHED,
    Call,
    Details,
    Entry,
    call_of,
    decode_entry,
    encode,
    way,
)
from toolgate.tools.definitions import failed
from toolgate.tools.episodes import OK
from toolgate.tools.responses import (
    ALLOW,
    DENY,
    ON_ALLOW,
    ON_ANSWER,
    ON_DENY,
    Artifact,
    Response,
    StoredCheck,
    StoredResult,
    decode_response,
    refs_of,
)

# Calls that `close` ends: no caller in this process holds them.
UNHELD: Final = frozenset(
    {CallStatus.WAITING_APPROVAL, CallStatus.DISPATCHED, CallStatus.INTERRUPTED}
)
WithResponse = Callable[[Response], Sequence[Operation]]  # operations for the response's commit
DECISIONS_PER_NOTE: Final = 1_000  # a start reads the evidence records since the last note
REFUSED: Final = {  # by the rule of the refusal; others are BLOCKED
    APPROVAL_REJECTED: CallStatus.REJECTED,
    APPROVAL_EXPIRED: CallStatus.TIMEOUT,
}


class Ledger:
    """`owner` is this start of the node: recovery finds by it what earlier ones left open."""

    def __init__(
        self, journal: Journal, evidence: Evidence, audit: AuditLog, clock: Clock, owner: Owner
    ) -> None:
        self.journal = journal
        self.evidence = evidence
        self.audit = audit
        self.clock = clock
        self.owner = owner
        # The number of an evidence record before each call's decision: of running calls, and of
        # calls that are being started.
        self._running: dict[str, int] = {}
        self._starting: dict[int, int] = {}
        self._newest = 0  # the number of the newest known record
        self._starts = 0
        self._decisions = 0

    async def finished_through(self) -> int:
        """The number of an evidence record up to which every call of this node has ended."""
        row = await self.journal.get(FINISHED, self.owner.node)
        return 0 if row is None else int(row.value)

    async def note_finished(self, *, newest: int) -> None:
        """Store how far all calls have ended; `newest` is the number of an existing record.

        A number stays true, so that of two concurrent notes either may be the last.
        """
        self._newest = max(self._newest, newest)
        through = min([self._newest, *self._running.values(), *self._starting.values()])
        await store(self.journal, FINISHED, self.owner.node, str(through).encode())

    async def find(self, call: Call) -> tuple[Call, Entry | None]:
        """The row of a call, and the call with the row's version and state."""
        row = await self.journal.get(EXECUTIONS, call.id)
        if row is None:
            return call, None
        entry = decode_entry(row.value)
        return call._replace(version=row.version, status=entry.state), entry

    async def response(self, call: Call, entry: Entry) -> Response:
        """The answer of an ended call: from the row if nothing ran, else from the evidence."""
        if entry.response is not None:
            return entry.response
        return decode_response(await self.evidence.fetch(refs_of(call.id, [Artifact.RESPONSE])[0]))

    async def wait(
        self,
        call: Call,
        decision: Decision,
        approval: Approval,
        stored: Mapping[str, JsonValue],
        shown: Mapping[str, JsonValue],
        operations: Sequence[Operation],
    ) -> None:
        """Record that a person is asked; `operations` write the approval.

        The arguments are in the evidence as they are `stored`; as they are `shown`, by a commitment.
        """
        asked = {
            "approval_id": approval.approval_id,
            "args": stored,
            "hidden": approval.hidden,
            "shown": self.evidence.commitment(self.evidence.canonical(shown)),
            "expires_at": to_iso_ms(approval.expires_at),
            **msgspec.to_builtins(_Verdict.of(decision, call.definition)),
        }
        contents = {
            **self._of_request(call),
            Artifact.APPROVAL_REQUEST: self.evidence.canonical(asked),
        }
        await self._commit(
            self._entry(call, CallStatus.WAITING_APPROVAL, details=_details(call, decision, None)),
            await self._decided(call, decision, contents),
            *operations,
        )

    async def refuse(
        self,
        call: Call,
        decision: Decision,
        *,
        approval: Approval | None = None,
        also: WithResponse,
    ) -> Response:
        """Record a denial, and the response for the same request again."""
        response, ending = await self._refusing(call, decision, approval)
        await self._commit(*ending, *also(response))
        return response

    async def _refusing(
        self, call: Call, decision: Decision, approval: Approval | None
    ) -> tuple[Response, list[Operation]]:
        names = (*ON_DENY, *(ON_ANSWER if approval else ()))
        response = Response(
            ok=False,
            policy_check=check_of(decision),
            evidence_refs=refs_of(call.id, names),
            engine_ref=call.engine_ref,
            run_id=call.request.run_id,
            step_id=call.request.step_id,
        )
        status = REFUSED.get(decision.rule_id, CallStatus.BLOCKED)
        return response, [
            self._entry(call, status, response=response),
            await self._decided_after(call, decision, approval),
            *self._ended(call, response, names, approval),
        ]

    async def refuse_for_now(
        self, call: Call, decision: Decision, *, also: WithResponse
    ) -> Response:
        """Record a denial that is not final, and leave the call's row as it is.

        The decision is an artifact with a name of its own; the usual names are for the final decision.
        """
        name = f"{decision.rule_id}_{self.clock.now_ms()}_{self._decisions}"
        response = Response(
            ok=False,
            policy_check=check_of(decision),
            evidence_refs=refs_of(call.id, [name]),
            engine_ref=call.engine_ref,
            run_id=call.request.run_id,
            step_id=call.request.step_id,
        )
        await self._commit(
            Check(EXECUTIONS, call.id, call.version),  # an ended call has another answer
            await self._decided(
                call,
                decision,
                {name: self.evidence.canonical(_Verdict.of(decision, call.definition))},
            ),
            *self._ended(call, response, (name,), None),
            *also(response),
        )
        return response

    async def start(
        self,
        call: Call,
        decision: Decision,
        *,
        approval: Approval | None = None,
        operations: Sequence[Operation] = (),
        again: bool = False,
    ) -> Call:
        """Record that the call is allowed: after this commit the tool may have run."""
        record = await (
            self._decided(call, decision, {})
            if again
            else self._decided_after(call, decision, approval)
        )
        self._starts += 1
        number, before = self._starts, self._newest
        self._starting[number] = before
        try:
            await self._commit(
                self._entry(call, CallStatus.RUNNING, details=_details(call, decision, approval)),
                record,
                *operations,
            )
        except ToolgateError:  # nothing was written
            del self._starting[number]
            raise
        except asyncio.CancelledError:  # perhaps it was: see `look_for_start`
            del self._starting[number]
            self._running[call.id] = before
            raise
        del self._starting[number]
        self._running[call.id] = before
        return running(call)

    async def look_for_start(self, call: Call) -> bool:
        """Tell if a cancelled `start` was committed, after all commits before this one."""
        if not await self._has_moved(call):
            self._running.pop(call.id, None)
            return False
        return True

    async def look_for_end(self, call: Call) -> Response | None:
        """The response of a cancelled `finish`; None if it was not committed."""
        if not await self._has_moved(call):
            return None
        self._running.pop(call.id, None)
        _, entry = await self.find(call)
        assert entry is not None
        return await self.response(call, entry)

    async def _has_moved(self, call: Call) -> bool:
        """Tell if the next version of the call's row exists; the journal commits in order."""
        try:
            await self.journal.commit(Check(EXECUTIONS, call.id, call.version + 1))
        except Conflict:
            return False
        return True

    async def release(
        self,
        call: Call,
        decision: Decision,
        *,
        due: int,
        approval: Approval | None = None,
        operations: Sequence[Operation] = (),
    ) -> None:
        """Record that the call is allowed and that a device runs it; `close` ends it."""
        await self._commit(
            self._entry(
                call,
                CallStatus.DISPATCHED,
                due=due,
                details=_details(call, decision, approval),
            ),
            await self._decided_after(call, decision, approval),
            *operations,
        )

    async def interrupted(
        self, call: Call, entry: Entry, *, may_run_again: bool, also: Sequence[Operation] = ()
    ) -> Response | None:
        """Record a call that was started and has no result; None if it may be run again."""
        assert entry.details is not None
        if may_run_again:
            await self.journal.commit(
                self._entry(call, CallStatus.INTERRUPTED, details=entry.details),
                await self._outcome(call, interrupted_output(), {}, kind="outcome"),
                *also,
            )
            self._running.pop(call.id, None)
            return None
        return await self.finish(
            call,
            entry.details.decision,
            interrupted_output(),
            approval=entry.details.approval,
            kind="outcome",
            also=also,
        )

    async def finish(
        self,
        call: Call,
        decision: Decision,
        output: ToolOutput,
        *,
        approval: Approval | None = None,
        kind: str = "result",
        also: Sequence[Operation] = (),
    ) -> Response:
        """Record the redacted output of a tool that has ended."""
        response, ending = await self._ending(call, decision, output, approval, kind)
        await self.journal.commit(*ending, *also)
        self._running.pop(call.id, None)
        return response

    async def run_of(self, request_id: str) -> str:
        """The run that a call belongs to; NotFound if there is no such call."""
        row = await self.journal.get(EXECUTIONS, request_id)
        run_id = "" if row is None else decode_entry(row.value).run_id
        if not run_id:
            raise NotFound("tool call", request_id)
        return run_id

    async def close(
        self, request_id: str, output: ToolOutput, *, status: CallStatus | None = None
    ) -> Sequence[Operation]:
        """Operations that end a call which a device has run or which was interrupted.

        Empty if it is not open. `status` is the final state, where the output does not say it.
        """
        call, details = await self._unheld(request_id)
        if call is None or details is None or call.status is CallStatus.WAITING_APPROVAL:
            return ()
        _, ending = await self._ending(
            call, details.decision, output, details.approval, "result", status=status
        )
        return ending

    async def close_waiting(self, approval: Approval, *, reason: str) -> Sequence[Operation]:
        """Operations that end a call which waits for this approval; empty if it does not wait."""
        call, details = await self._unheld(approval.request_id)
        if call is None or details is None or call.status is not CallStatus.WAITING_APPROVAL:
            return ()
        decision = unapproved(details.decision, approval)
        if decision is None:  # approved, but no longer needed
            decision = details.decision._replace(effect=Effect.DENY, reason=reason)
        _, ending = await self._refusing(call, decision, approval)
        return ending

    async def _unheld(self, request_id: str) -> tuple[Call | None, Details | None]:
        row = await self.journal.get(EXECUTIONS, request_id)
        entry = None if row is None else decode_entry(row.value)
        if row is None or entry is None or entry.state not in UNHELD or entry.details is None:
            return None, None
        return call_of(request_id, entry, version=row.version), entry.details

    async def _ending(
        self,
        call: Call,
        decision: Decision,
        output: ToolOutput,
        approval: Approval | None,
        kind: str,
        *,
        status: CallStatus | None = None,
    ) -> tuple[Response, list[Operation]]:
        names = (*ON_ALLOW, *(ON_ANSWER if approval else ()))
        response = response_of(call, decision, output, names)
        canonical = self.evidence.canonical
        contents: dict[str, bytes] = {
            Artifact.TOOL_RESULT: canonical(_Result.of(output)),
            Artifact.RESPONSE: canonical(response),
        }
        return response, [
            self._entry(call, status or _ended_as(output), isolation=output.isolation),
            await self._outcome(call, output, contents, kind=kind),
            *self._ended(call, response, names, approval),
        ]

    async def conflict(self, call: Call) -> Response:
        """Record the denial of a request whose id another request has used.

        The evidence of the first request stays as it is. The same wrong request again gets the same
        answer.
        """
        decision = Decision(
            Effect.DENY,
            REQUEST_ID_CONFLICT,
            f"Request id {call.id} was used for another request",
            "",
            call.request.policy_ref,
            rule_digest=DENIAL_DIGESTS[REQUEST_ID_CONFLICT],
        )
        name = f"{REQUEST_ID_CONFLICT}_{call.fingerprint[-16:]}"
        names = (*ON_DENY, name)
        response = Response(
            ok=False,
            policy_check=check_of(decision),
            evidence_refs=refs_of(call.id, names),
            engine_ref=call.engine_ref,
            run_id=call.request.run_id,
            step_id=call.request.step_id,
        )
        row = f"{call.id}/{name}"
        if await self.journal.get(EXECUTIONS, row) is None:
            await self._commit(
                Put(EXECUTIONS, row, b"{}", expected=0),
                await self._decided(call, decision, {name: call.shown}),
                *self._ended(call, response, names, None),
            )
        return response

    def _of_request(self, call: Call) -> dict[str, bytes]:
        """The artifacts of a call that is decided for the first time."""
        return {
            Artifact.REQUEST: call.shown,
            Artifact.ENGINE_IDENTITY: _identity(call.engine_ref, self.owner.node),
        }

    async def _decided_after(
        self, call: Call, decision: Decision, approval: Approval | None
    ) -> Operation:
        """The record of a final decision, with the person's answer if one was asked."""
        # A call that is closed by its row alone has it in its approval only.
        definition = call.definition or (approval.definition if approval else "")
        verdict = self.evidence.canonical(_Verdict.of(decision, definition))
        if approval is None:
            contents = {**self._of_request(call), Artifact.POLICY_DECISION: verdict}
            return await self._decided(call, decision, contents)
        answer = {
            "approval_id": approval.approval_id,
            "status": approval.status.value,
            "decided_by": approval.decided_by,
            "decided_at": to_iso_ms(approval.decided_at) if approval.decided_at else None,
            "note": approval.note,
            "decision": decision.effect.value,
            "rule_id": decision.rule_id,
            "reason": decision.reason,
            "policy_version": decision.policy_version,
        }
        contents = {
            Artifact.APPROVAL: self.evidence.canonical(answer),
            Artifact.POLICY_DECISION: verdict,
        }
        return await self._decided(call, decision, contents)

    async def _commit(self, *operations: Operation) -> None:
        """Commit a decision; after every DECISIONS_PER_NOTE store how far all calls have ended."""
        committed = await self.journal.commit(*operations)
        self._newest = max(self._newest, _number_in(committed))
        self._decisions += 1
        if self._decisions % DECISIONS_PER_NOTE == 0:
            await self.note_finished(newest=self._newest)

    async def _decided(
        self, call: Call, decision: Decision, contents: Mapping[str, bytes]
    ) -> Operation:
        request = call.request
        caller = request.caller
        fields = _DecisionFields(
            caller.agent,
            call.fingerprint,
            decision.effect,
            call.definition or UNSET,
            caller.device,
            call.engine_ref,
            call.level,
            decision.policy_version,
            caller.role,
            decision.rule_id,
            request.run_id,
            request.step_id,
            caller.tenant,
            request.tool,
            caller.user,
            caller.workspace,
        )
        return await self.evidence.of_call("decision", fields, call_id=call.id, contents=contents)

    async def _outcome(
        self, call: Call, output: ToolOutput, contents: Mapping[str, bytes], *, kind: str
    ) -> Operation:
        fields = _OutcomeFields(
            call.engine_ref,
            output.exit_code,
            output.isolation,
            output.outcome,
            call.request.tool,
        )
        return await self.evidence.of_call(kind, fields, call_id=call.id, contents=contents)

    def _entry(
        self, call: Call, status: CallStatus, *, due: int | None = None, **members: Any
    ) -> Put:
        """The row of a call in its next state; Conflict if the table does not allow it."""
        way(call.id, call.status, status)
        entry = Entry(
            fingerprint=call.fingerprint,
            state=status,
            owner=self.owner.name,
            run_id=call.request.run_id,
            **members,
        )
        return Put(EXECUTIONS, call.id, encode(entry), expected=call.version, due=due)

    def _ended(
        self,
        call: Call,
        response: Response,
        artifacts: tuple[str, ...],
        approval: Approval | None,
    ) -> list[Operation]:
        """The audit row of an ended call; the search for episodes reads it."""
        check, request = response.policy_check, call.request
        denied = check.decision == DENY
        row = AuditEntry(
            action=TOOL_RUN,
            actor=actor_of(request.caller),
            tenant_id=request.caller.tenant,
            workspace_id=request.caller.workspace,
            resource_type="tool",
            resource_id=request.tool,
            metadata={
                "requestId": call.id,
                "runId": request.run_id,
                "stepId": request.step_id,
                "deviceId": request.caller.device,
                "decision": check.decision,
                "ruleId": response.rule_id,
                "riskLevel": call.level,
                "confirmation": _confirmation(approval),
                "result": "denied" if denied else OK if response.ok else "failed",
            },
            artifacts=artifacts,
        )
        return self.audit.prepare(row, redacted=True)


class _DecisionFields(msgspec.Struct):
    """The fields of a `decision` record; here as below, the members are in the canonical order."""

    agent: str
    content: str  # the call's fingerprint
    decision: str
    definition_digest: str | UnsetType  # of a pinned tool
    device: str
    engine: str
    level: str  # the tool's own, for a simulation of a policy
    policy_version: str
    role: str
    rule_id: str
    run_id: str
    step_id: str
    tenant: str
    tool: str
    user: str
    workspace: str


class _OutcomeFields(msgspec.Struct):
    """The fields of a `result` or an `outcome` record."""

    engine: str
    exit_code: int
    isolation: str
    outcome: str
    tool: str


@lru_cache(maxsize=256)
def _identity(engine_ref: str, executor: str) -> bytes:
    """The `engine_identity` artifact."""
    return encode({"engine_ref": engine_ref, "executor": executor})


class _Verdict(msgspec.Struct):
    """The `policy_decision` artifact."""

    decision: str
    definition_digest: str | UnsetType  # of a pinned tool
    detail: str
    policy_ref: str
    policy_version: str
    reason: str
    rule_id: str

    @classmethod
    def of(cls, decision: Decision, definition: str) -> "_Verdict":
        return cls(
            decision.effect,
            definition or UNSET,
            decision.detail,
            decision.policy_ref,
            decision.policy_version,
            decision.reason,
            decision.rule_id,
        )


class _Result(msgspec.Struct):
    """The `tool_result` artifact."""

    data: Any
    exit_code: int
    isolation: str
    outcome: str
    stderr: str
    stdout: str
    truncated: bool

    @classmethod
    def of(cls, output: ToolOutput) -> "_Result":
        return cls(
            output.data,
            output.exit_code,
            output.isolation,
            output.outcome,
            output.stderr,
            output.stdout,
            output.truncated,
        )


def _details(call: Call, decision: Decision, approval: Approval | None) -> Details:
    return Details(
        tool=call.request.tool,
        step_id=call.request.step_id,
        caller=call.request.caller,
        engine_ref=call.engine_ref,
        level=call.level,
        decision=decision,
        approval=approval,
    )


def unapproved(decision: Decision, approval: Approval) -> Decision | None:
    """The denial of a call that nobody has approved; None if its approval is open or approved."""
    match approval.status:
        case ApprovalStatus.EXPIRED:
            rule_id, reason = APPROVAL_EXPIRED, "Nobody approved it in time"
        case ApprovalStatus.REJECTED:
            note = f": {approval.note}" if approval.note else ""
            rule_id, reason = APPROVAL_REJECTED, f"Rejected by {approval.decided_by}{note}"
        case _:
            return None
    return decision._replace(effect=Effect.DENY, rule_id=rule_id, reason=reason)


def running(call: Call) -> Call:
    """A call after the commit of its `start`."""
    definition = call.definition
    return Call(*call[:5], call.version + 1, CallStatus.RUNNING, definition)  # as in `complete`


def _ended_as(output: ToolOutput) -> CallStatus:
    return CallStatus.SUCCEEDED if output.ok else CallStatus.FAILED


def _confirmation(approval: Approval | None) -> str:
    """`none`, the approval's status, or `self` if the operator approved their own call."""
    if approval is None:
        return "none"
    if approval.status is ApprovalStatus.APPROVED and approval.confirmation:
        return approval.confirmation
    return approval.status.value


def _number_in(events: Iterable[Event]) -> int:
    """The number of the last evidence record among a commit's events."""
    return max((event.seq for event in events if event.stream == STREAM), default=0)


def interrupted_output() -> ToolOutput:
    message = "The executor stopped while the tool ran; it may have been executed"
    return failed(message, outcome=Outcome.MAY_HAVE_EXECUTED)


def actor_of(caller: Caller) -> str:
    named = (("agent", caller.agent), ("device", caller.device), ("user", caller.user))
    return next((f"{kind}:{who}" for kind, who in named if who), "system")


def check_of(decision: Decision) -> StoredCheck:
    """The decision as the response keeps it: a call that a person approved is allowed."""
    denied = decision.effect is Effect.DENY
    return StoredCheck(
        decision=DENY if denied else ALLOW,
        reason=decision.reason,
        rule_id=decision.rule_id or UNSET,
    )


def response_of(
    call: Call, decision: Decision, output: ToolOutput, artifacts: tuple[str, ...]
) -> Response:
    has_data = output.data is not None or output.says_null
    return Response(
        ok=output.ok,
        tool_result=StoredResult(
            exit_code=output.exit_code,
            stdout=output.stdout,
            stderr=output.stderr,
            data=output.data if has_data else UNSET,
            truncated=True if output.truncated else UNSET,
        ),
        policy_check=check_of(decision),
        evidence_refs=refs_of(call.id, artifacts),
        engine_ref=call.engine_ref,
        run_id=call.request.run_id,
        step_id=call.request.step_id,
        outcome=UNSET if output.ok else output.outcome,
    )
