"""What the pipeline writes down: each step of a call, with its evidence, in one commit.

Nothing runs before its decision is durable, and nothing that was written is written over: a row
moves on only from the version that was read, and a ref that is taken conflicts. Whatever comes in
here has been redacted by the pipeline.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

import msgspec
from msgspec import UNSET

from toolgate.contracts.wire import to_iso_ms
from toolgate.core.clock import Clock
from toolgate.core.enums import Outcome
from toolgate.core.errors import Conflict, ToolgateError
from toolgate.core.tools import Caller, ToolOutput
from toolgate.evidence.audit import TOOL_RUN, AuditEntry, AuditLog
from toolgate.evidence.evidence import STREAM, Evidence
from toolgate.journal.journal import Check, Event, Journal, Operation, Overwrite, Put
from toolgate.policy.model import DENIAL_DIGESTS, REQUEST_ID_CONFLICT, Decision, Effect
from toolgate.tools.approvals import Approval
from toolgate.tools.calls import (
    EXECUTIONS,
    FINISHED,
    Call,
    Entry,
    Started,
    State,
    decode_entry,
    encode,
    interrupted_call,
)
from toolgate.tools.definitions import failed
from toolgate.tools.episodes import OK
from toolgate.tools.responses import (
    ALLOW,
    DENY,
    ON_ALLOW,
    ON_DENY,
    Artifact,
    Response,
    StoredCheck,
    StoredResult,
    decode_response,
    refs_of,
)

OPEN_WITHOUT_CALLER: Final = frozenset({State.RELEASED, State.INTERRUPTED})
WithResponse = Callable[[Response], Sequence[Operation]]  # what goes with the response's commit
DECISIONS_PER_NOTE: Final = 1_000  # a start has to read what came since the last note


class Ledger:
    """`owner` is this process, for what it leaves unfinished."""

    def __init__(
        self, journal: Journal, evidence: Evidence, audit: AuditLog, clock: Clock, owner: str
    ) -> None:
        self.journal = journal
        self.evidence = evidence
        self.audit = audit
        self.clock = clock
        self.owner = owner
        # By call, a number that its decision's comes after: of those that run, and of those that
        # are on their way there.
        self._running: dict[str, int] = {}
        self._starting: dict[int, int] = {}
        self._newest = 0  # the number of the newest record that was heard of
        self._starts = 0
        self._decisions = 0

    async def finished_through(self) -> int:
        """The number of a record up to which no call of this process is unfinished."""
        row = await self.journal.get(FINISHED, self.owner)
        return 0 if row is None else int(row.value)

    def note_finished(self, *, newest: int) -> Operation:
        """Write down how far all calls have ended, `newest` being a record that is there."""
        self._newest = max(self._newest, newest)
        through = min([self._newest, *self._running.values(), *self._starting.values()])
        return Overwrite(FINISHED, self.owner, str(through).encode())

    async def find(self, call: Call) -> tuple[Call, Entry | None]:
        """What is known of a call, and the call with its row's version."""
        row = await self.journal.get(EXECUTIONS, call.id)
        if row is None:
            return call, None
        return call._replace(version=row.version), decode_entry(row.value)

    async def response(self, call: Call, entry: Entry) -> Response:
        """What an ended call was answered: with the row where nothing ran, else in the evidence."""
        if entry.response is not None:
            return entry.response
        return decode_response(await self.evidence.fetch(refs_of(call.id, [Artifact.RESPONSE])[0]))

    async def wait(self, call: Call, decision: Decision, operations: Sequence[Operation]) -> None:
        """A person is asked; `operations` write the approval."""
        await self._commit(
            self._entry(call, State.WAITING),
            await self._decided(call, decision, self._of_decision(call, decision)),
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
        """Denied: the evidence of it, and the response for whoever asks again."""
        names = (*ON_DENY, *((Artifact.APPROVAL,) if approval else ()))
        response = Response(
            ok=False,
            policy_check=check_of(decision),
            evidence_refs=refs_of(call.id, names),
            engine_ref=call.engine_ref,
            run_id=call.request.run_id,
            step_id=call.request.step_id,
        )
        await self._commit(
            self._entry(call, State.ENDED, response=response),
            await self._decided_after(call, decision, approval),
            *self._ended(call, response, names, approval),
            *also(response),
        )
        return response

    async def refuse_for_now(
        self, call: Call, decision: Decision, *, also: WithResponse
    ) -> Response:
        """Denied under this id only now: on record, and the call's own row is left as it is.

        The decision is an artifact under a name of its own: the others belong to the call when it is
        decided for good.
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
            Check(EXECUTIONS, call.id, call.version),  # a call that has ended has another answer
            await self._decided(
                call, decision, {name: self.evidence.canonical(_Verdict.of(decision))}
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
        """Allowed, durably: from here on the tool may have run."""
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
                self._entry(call, State.STARTED, started=_started(call, decision, approval)),
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
        return call._replace(version=call.version + 1)

    async def look_for_start(self, call: Call) -> bool:
        """Whether a `start` that was cancelled has been committed; waits for it."""
        if not await self._has_moved(call):
            self._running.pop(call.id, None)
            return False
        return True

    async def look_for_end(self, call: Call) -> Response | None:
        """The response of a `finish` that was cancelled; None where it was not committed."""
        if not await self._has_moved(call):
            return None
        self._running.pop(call.id, None)
        _, entry = await self.find(call)
        assert entry is not None
        return await self.response(call, entry)

    async def _has_moved(self, call: Call) -> bool:
        """Whether the next version of the call's row is there; commits are made in their order."""
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
        approval: Approval | None = None,
        operations: Sequence[Operation] = (),
    ) -> None:
        """Allowed, and run by a device: what comes of it is for `conclude`."""
        await self._commit(
            self._entry(call, State.RELEASED, started=_started(call, decision, approval)),
            await self._decided_after(call, decision, approval),
            *operations,
        )

    async def interrupted(
        self, call: Call, entry: Entry, *, may_run_again: bool
    ) -> Response | None:
        """A call that was started and has no result: what is known of it is put on record."""
        assert entry.started is not None
        if may_run_again:
            await self.journal.commit(
                self._entry(call, State.INTERRUPTED, started=entry.started),
                await self._outcome(call, interrupted_output(), {}, kind="outcome"),
            )
            self._running.pop(call.id, None)
            return None
        return await self.finish(
            call,
            entry.started.decision,
            interrupted_output(),
            approval=entry.started.approval,
            kind="outcome",
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
        """The tool has ended, and `output` holds no secret."""
        response, ending = await self._ending(call, decision, output, approval, kind)
        await self.journal.commit(*ending, *also)
        self._running.pop(call.id, None)
        return response

    async def conclude(self, request_id: str, output: ToolOutput) -> Sequence[Operation]:
        """The end of a call that a device has run, or that a restart has interrupted for good.

        Nothing where it is no such call, or has ended.
        """
        row = await self.journal.get(EXECUTIONS, request_id)
        entry = decode_entry(row.value) if row is not None else None
        if row is None or entry is None or entry.state not in OPEN_WITHOUT_CALLER:
            return ()
        assert entry.started is not None
        call = interrupted_call(request_id, entry, version=row.version)
        decision, approval = entry.started.decision, entry.started.approval
        _, ending = await self._ending(call, decision, output, approval, "result")
        return ending

    async def _ending(
        self,
        call: Call,
        decision: Decision,
        output: ToolOutput,
        approval: Approval | None,
        kind: str,
    ) -> tuple[Response, list[Operation]]:
        names = (*ON_ALLOW, *((Artifact.APPROVAL,) if approval else ()))
        response = response_of(call, decision, output, names)
        canonical = self.evidence.canonical
        contents: dict[str, bytes] = {
            Artifact.TOOL_RESULT: canonical(_Result.of(output)),
            Artifact.RESPONSE: canonical(response),
        }
        return response, [
            self._entry(call, State.ENDED, isolation=output.isolation),
            await self._outcome(call, output, contents, kind=kind),
            *self._ended(call, response, names, approval),
        ]

    async def conflict(self, call: Call) -> Response:
        """The id stands for another request: denied, and the first one's evidence is untouched.

        The same wrong request again finds its own evidence there.
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

    def _of_decision(self, call: Call, decision: Decision) -> dict[str, bytes]:
        """The artifacts of a call that is decided for the first time."""
        return {
            Artifact.REQUEST: call.shown,
            Artifact.ENGINE_IDENTITY: _identity(call.engine_ref, self.owner),
            Artifact.POLICY_DECISION: self.evidence.canonical(_Verdict.of(decision)),
        }

    async def _decided_after(
        self, call: Call, decision: Decision, approval: Approval | None
    ) -> Operation:
        """A call that has waited has its first artifacts; what is new is the approval."""
        if approval is None:
            return await self._decided(call, decision, self._of_decision(call, decision))
        word = {
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
        content = self.evidence.canonical(word)
        return await self._decided(call, decision, {Artifact.APPROVAL: content})

    async def _commit(self, *operations: Operation) -> None:
        """Commit what a decision comes to, and now and then how far all calls have ended."""
        self._decisions += 1
        if self._decisions % DECISIONS_PER_NOTE == 0:
            operations = (*operations, self.note_finished(newest=self._newest))
        committed = await self.journal.commit(*operations)
        self._newest = max(self._newest, _number_in(committed))

    async def _decided(
        self, call: Call, decision: Decision, contents: Mapping[str, bytes]
    ) -> Operation:
        request = call.request
        caller = request.caller
        fields = _DecisionFields(
            caller.agent,
            call.fingerprint,
            decision.effect,
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

    def _entry(self, call: Call, state: State, **known: Any) -> Put:
        entry = Entry(fingerprint=call.fingerprint, state=state, owner=self.owner, **known)
        return Put(EXECUTIONS, call.id, encode(entry), expected=call.version)

    def _ended(
        self,
        call: Call,
        response: Response,
        artifacts: tuple[str, ...],
        approval: Approval | None,
    ) -> list[Operation]:
        """The row of an ended call in the audit, in which a search finds it as well."""
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
                "confirmation": approval.status.value if approval else "none",
                "result": "denied" if denied else OK if response.ok else "failed",
            },
            artifacts=artifacts,
        )
        return self.audit.prepare(row, redacted=True)


class _DecisionFields(msgspec.Struct):
    """Of a `decision` record; here as in all that follow, the members are in the canonical order."""

    agent: str
    content: str  # the call's fingerprint
    decision: str
    device: str
    engine: str
    level: str  # the tool's own: what a policy can ask, for a simulation
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
    """Of a `result` or an `outcome` record."""

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
    detail: str
    policy_ref: str
    policy_version: str
    reason: str
    rule_id: str

    @classmethod
    def of(cls, decision: Decision) -> "_Verdict":
        return cls(
            decision.effect,
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


def _started(call: Call, decision: Decision, approval: Approval | None) -> Started:
    return Started(
        tool=call.request.tool,
        run_id=call.request.run_id,
        step_id=call.request.step_id,
        caller=call.request.caller,
        engine_ref=call.engine_ref,
        level=call.level,
        decision=decision,
        approval=approval,
    )


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
    """On the wire there is allow and deny: what was asked about and let through is allowed."""
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
