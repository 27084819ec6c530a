"""A gate that runs functions: tools with a level, denials by name, approvals by hand.

It keeps the gate's promises: the same request again gives the same answer and runs nothing twice, and
the caller's operations are in the journal when the step is over.
"""

import contextlib
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from toolgate.access.devices import Identity
from toolgate.access.refusals import RateLimited
from toolgate.access.registry import Registry
from toolgate.core.clock import Clock
from toolgate.core.enums import ApprovalStatus, CallStatus, Level
from toolgate.core.errors import Conflict, NotFound, Refused, Unavailable
from toolgate.core.tools import Caller, JsonValue, Tool, ToolOutput, ToolRequest
from toolgate.journal.journal import Append, Delete, Journal, NewEvent, Operation, Put
from toolgate.policy.refusal_texts import OUTSIDE_SCOPE, RATE_LIMITED
from toolgate.tools.approvals import Approval, Question, askers
from toolgate.tools.calls import EXECUTIONS
from toolgate.tools.engine import Update, no_update
from toolgate.tools.limits import CapabilityLimits
from toolgate.tools.outcomes import (
    APPROVALS,
    DECIDED,
    EXPIRED,
    Also,
    Begun,
    Denied,
    Pending,
    nothing_also,
)
from toolgate.tools.responses import Response

Function = Callable[[Mapping[str, JsonValue]], Awaitable[ToolOutput]]

APPROVAL_MS: Final = 600_000
FAR_AWAY: Final = 4_000_000_000_000  # the end of an approval, without a clock
REASON: Final = "a person decides"
REFUSALS: Final = {
    "REJECTED": Denied("rejected", "approval_rejected", "a person said no"),
    "EXPIRED": Denied("approval_timeout", "approval_expired", "nobody decided"),
}


async def echo(args: Mapping[str, JsonValue]) -> ToolOutput:
    return ToolOutput(0, stdout=str(args.get("text", "")))


def _not_allowed(request: ToolRequest) -> Denied:
    reason = f"{request.tool} is not allowed"
    return Denied("blocked", "default_deny", reason, tool=request.tool)


@dataclass(slots=True)
class Asked:
    request: ToolRequest
    due: int
    verdict: str = ""  # empty while it is open


class FakeCall:
    """An allowed call; `output` where it has run before."""

    response: Response | None = None

    def __init__(
        self, gate: "FakeGate", request: ToolRequest, *, output: ToolOutput | None = None
    ) -> None:
        self._gate = gate
        self._request = request
        self._output = output
        self.known = output is not None

    async def run(self, update: Update = no_update) -> ToolOutput:
        if self._output is None:
            self._output = await self._gate.execute(self._request, update)
        return self._output

    async def finish(self, output: ToolOutput, *, also: Sequence[Operation] = ()) -> None:
        await self._gate.commit(also)
        self._gate.outputs.setdefault(self._request.request_id, output)


@dataclass(slots=True)
class FakeGate:
    """A tool that was not added is denied."""

    ran: list[ToolRequest] = field(default_factory=list)
    finished: list[tuple[str, ToolOutput]] = field(default_factory=list)  # by a device
    abandoned: list[tuple[str, str]] = field(default_factory=list)  # a waiting call and the reason
    denied: set[str] = field(default_factory=set)
    asks: set[str] = field(default_factory=set)
    elsewhere: set[str] = field(default_factory=set)  # a client runs them: none of ours to offer
    journal: Journal | None = None  # without one nothing is committed, and no event is published
    clock: Clock | None = None
    registry: Registry | None = None  # without one every caller may call everything
    limits: CapabilityLimits | None = None
    outputs: dict[str, ToolOutput] = field(default_factory=dict)
    refused: list[ToolRequest] = field(default_factory=list)  # by `authorize`
    engine: Callable[[ToolRequest, Update], Awaitable[ToolOutput]] | None = None
    runs: str = ""  # what the engine's tools begin with; it has every such tool
    _tools: dict[str, tuple[Level, Function]] = field(default_factory=dict)
    _denials: dict[str, Denied] = field(default_factory=dict)
    _approvals: dict[str, Asked] = field(default_factory=dict)
    _runs: dict[str, str] = field(default_factory=dict)  # the run of each call
    _on_device: set[str] = field(default_factory=set)  # calls with a row

    def __post_init__(self) -> None:
        self.add("echo", Level.READ, echo)

    def add(self, name: str, level: Level, function: Function) -> None:
        self._tools[name] = (level, function)

    def level_of(self, name: str) -> Level | None:
        found = self._tools.get(name)
        return None if found is None else found[0]

    def has(self, name: str) -> bool:
        return name in self._tools

    async def begin(
        self, request: ToolRequest, *, also: Also = nothing_also, due: int | None = None
    ) -> Begun:
        call_id = request.request_id
        if (denial := self._denials.get(call_id)) is not None:
            return denial._replace(known=True)
        if (output := self.outputs.get(call_id)) is not None:
            return FakeCall(self, request, output=output)
        outcome = self._refuse(request) or self._decide(request)
        if isinstance(outcome, Pending) and outcome.known:
            return outcome
        if isinstance(outcome, FakeCall) and self.limits is not None:
            return await self._start(request, outcome, also, self.limits)
        await self.commit((*self._row(request, outcome, due), *also(outcome)))
        self._runs[call_id] = request.run_id
        if isinstance(outcome, Denied):
            self._denials[call_id] = outcome
        return outcome

    def _row(self, request: ToolRequest, outcome: Begun, due: int | None) -> Sequence[Operation]:
        """The row of a call that a device runs, for its deadline."""
        call_id = request.request_id
        if due is None or not isinstance(outcome, FakeCall) or call_id in self._on_device:
            return ()
        self._on_device.add(call_id)
        return (Put(EXECUTIONS, call_id, b"{}", expected=0, due=due),)

    async def authorize(self, request: ToolRequest) -> Denied | None:
        if self._may(request) and request.tool not in self.asks:
            return None
        self.refused.append(request)
        return _not_allowed(request)

    def _may(self, request: ToolRequest) -> bool:
        has = request.tool in self._tools or (self.runs and request.tool.startswith(self.runs))
        return bool(has) and request.tool not in self.denied

    def _refuse(self, request: ToolRequest) -> Denied | None:
        """The denial of a call that the caller's scope or its capabilities do not allow."""
        if self.registry is not None and request.scope is not None:
            outside = self.registry.scope_refusal(request.caller.device, request.scope)
            if outside:
                return Denied("blocked", OUTSIDE_SCOPE, outside, tool=request.tool)
        refusal = None if self.limits is None else self.limits.refusal(request.tool)
        return refusal and Denied("blocked", *refusal, tool=request.tool)

    async def _start(
        self, request: ToolRequest, call: FakeCall, also: Also, limits: CapabilityLimits
    ) -> Begun:
        """Charge the rates of the call's capabilities, in the commit that starts it."""
        if not (buckets := limits.buckets(request.tool)):
            await self.commit(also(call))
            return call
        try:
            charge = await limits.charge(buckets)
        except RateLimited as too_soon:
            denied = Denied(
                "rate_limited", RATE_LIMITED, str(too_soon), tool=request.tool, spent=too_soon.spent
            )
            await self.commit(also(denied))
            return denied
        try:
            await self.commit((*charge.operations, *also(call)))
        except BaseException:
            limits.rates.undo(charge)
            raise
        return call

    def _decide(self, request: ToolRequest) -> Begun:
        if not self._may(request):
            return _not_allowed(request)
        if self.level_of(request.tool) is not Level.SIGN and request.tool not in self.asks:
            return FakeCall(self, request)
        approval_id = f"apr_{request.request_id}"
        known = approval_id in self._approvals
        due = FAR_AWAY if self.clock is None else self.clock.now_ms() + APPROVAL_MS
        asked = self._approvals.setdefault(approval_id, Asked(request, due))
        if asked.verdict:
            return REFUSALS.get(asked.verdict) or FakeCall(self, request)
        summary = f"run {request.tool}"
        return Pending(
            approval_id,
            summary,
            REASON,
            asked.due,
            "asks",
            known,
            tool=request.tool,
        )

    async def execute(self, request: ToolRequest, update: Update = no_update) -> ToolOutput:
        self.ran.append(request)
        if self.engine is not None and request.tool not in self._tools:
            return await self.engine(request, update)
        _, function = self._tools[request.tool]
        return await function(request.args)

    async def commit(self, operations: Sequence[Operation]) -> None:
        if self.journal is not None and operations:
            await self.journal.commit(*operations)

    def recover(self, call_id: str, output: ToolOutput) -> None:
        """Give a call that was running the output that a restart makes of it."""
        self.outputs[call_id] = output

    async def finish_call(
        self,
        call_id: str,
        output: ToolOutput,
        *,
        status: CallStatus | None = None,
        also: Sequence[Operation] = (),
    ) -> None:
        await self.commit((*self._closed(call_id), *also))
        self._on_device.discard(call_id)
        self.finished.append((call_id, output))

    def _closed(self, call_id: str) -> Sequence[Operation]:
        return (Delete(EXECUTIONS, call_id),) if call_id in self._on_device else ()

    async def abandon(
        self,
        waiting: Sequence[str],
        dispatched: Mapping[str, ToolOutput],
        *,
        reason: str,
        also: Sequence[Operation],
    ) -> None:
        rows = [row for call_id in dispatched for row in self._closed(call_id)]
        await self.commit((*rows, *also))
        self._on_device.difference_update(dispatched)
        self.abandoned += [(call_id, reason) for call_id in waiting]
        self.finished += dispatched.items()
        for call_id in waiting:
            asked = self._approvals.get(f"apr_{call_id}")
            if asked is not None and not asked.verdict:
                asked.verdict = "REJECTED"

    async def run_of(self, call_id: str) -> str:
        if call_id not in self._runs:
            raise NotFound("tool call", call_id)
        return self._runs[call_id]

    async def approval(self, approval_id: str) -> Question:
        asked = self._approvals.get(approval_id)
        if asked is None:
            raise NotFound("approval", approval_id)
        request = asked.request
        approval = Approval(
            approval_id,
            request.request_id,
            binding="",
            tool=request.tool,
            summary=f"run {request.tool}",
            reason=REASON,
            rule_id="asks",
            policy_version="",
            asked_by=askers(request.caller),
            asked_at=asked.due - APPROVAL_MS,
            expires_at=asked.due,
            session=request.caller.session,
            run_id=request.run_id,
            status=ApprovalStatus(asked.verdict or "PENDING"),
        )
        return Question(approval, approval.summary, dict(request.args))

    async def reveal_approval(self, approval_id: str, *, by: str) -> Question:
        return await self.approval(approval_id)

    async def decide_approval(
        self, approval_id: str, *, approve: bool, decided_by: Identity, reason: str
    ) -> str:
        verdict = "APPROVED" if approve else "REJECTED"
        return await self._close_approval(approval_id, verdict, decided_by=decided_by.name)

    async def expire(self, approval_id: str) -> None:
        await self._close_approval(approval_id, "EXPIRED", decided_by="")

    async def _close_approval(self, approval_id: str, verdict: str, *, decided_by: str) -> str:
        asked = self._approvals.get(approval_id)
        if asked is None:
            raise NotFound("approval", approval_id)
        if asked.verdict:
            raise Conflict(f"approval {approval_id} is {asked.verdict.lower()} already")
        request = asked.request
        device = request.caller.device
        if device and decided_by in (device, f"device:{device}"):
            raise Refused("nobody decides what they asked for themselves")
        asked.verdict = verdict
        if self.journal is not None:
            members = {"approval_id": approval_id, "run_id": request.run_id, "status": verdict}
            value = json.dumps(members).encode()
            kind = EXPIRED if verdict == "EXPIRED" else DECIDED
            row = Put(APPROVALS, approval_id, value, expected=0)
            with contextlib.suppress(Unavailable):  # between two starts
                await self.journal.commit(
                    row, Append(APPROVALS, [NewEvent(kind, value, request.run_id)])
                )
        return request.request_id

    def visible_tools(self, caller: Caller) -> Sequence[Tool]:
        return [
            Tool(name, name, level, {}, True)
            for name, (level, _) in self._tools.items()
            if name not in self.elsewhere
        ]
