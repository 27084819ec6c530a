"""A tool pipeline whose policy is a dict and whose tools are functions."""

import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from toolgate.domain.errors import Conflict, NotFound, Refused
from toolgate.domain.tools import Caller, Tool, ToolOutput, ToolRequest
from toolgate.ports.clock import Clock
from toolgate.ports.engine import Update, no_update
from toolgate.ports.journal import Append, Journal, NewEvent, Operation
from toolgate.ports.pipeline import (
    APPROVALS,
    DECIDED,
    EXPIRED,
    Answer,
    Denied,
    Pending,
    Ran,
    Rider,
    Started,
    not_told,
)

ALLOW: Final = "allow"
ASK: Final = "ask"
APPROVED: Final = "APPROVED"
REJECTED: Final = "REJECTED"
LATE: Final = "EXPIRED"
APPROVAL_MS: Final = 600_000

Run = Callable[[ToolRequest], Awaitable[ToolOutput]]


async def succeed(request: ToolRequest) -> ToolOutput:
    return ToolOutput(0, stdout=f"{request.tool} ran")


class PolicedPipeline:
    """What is not in `policy` is denied; an answer, once given, is given again."""

    def __init__(
        self,
        journal: Journal,
        clock: Clock,
        policy: dict[str, str],
        *,
        run: Run = succeed,
        tools: Sequence[Tool] = (),
    ) -> None:
        self._journal = journal
        self._clock = clock
        self._policy = policy
        self._run = run
        self._tools = tools
        self._answers: dict[str, Answer] = {}
        self._approvals: dict[str, str] = {}  # id: verdict, empty while nobody has decided
        self._waiting: dict[str, ToolRequest] = {}
        self.ran: list[str] = []  # the requests whose tool was run here

    async def run(
        self,
        request: ToolRequest,
        *,
        update: Update = no_update,
        started: Started = not_told,
        rider: Rider | None = None,
    ) -> Answer:
        if request.request_id in self._answers:
            return self._answers[request.request_id]
        answer = await self.check(request)
        if isinstance(answer, Ran):
            if rider is not None and not rider.began:
                await self._journal.commit(*rider.begin)
                rider.began = True
            try:
                await started()
            except Refused as refused:
                return Ran(ToolOutput(1, stderr=str(refused)))
            self.ran.append(request.request_id)
            answer = Ran(await self._run(request))
        if not isinstance(answer, Pending):
            self._answers[request.request_id] = answer
        return answer

    def recover(self, request_id: str, answer: Answer) -> None:
        """What a restart makes of a call that was running."""
        self._answers[request_id] = answer

    async def check(self, request: ToolRequest) -> Answer:
        effect = self._policy.get(request.tool)
        if effect == ALLOW:
            return Ran(ToolOutput(0))
        if effect != ASK:
            return Denied("blocked", "default_deny", f"Tool {request.tool} not in allowlist")
        approval_id = f"apr_{request.request_id}"
        match self._approvals.setdefault(approval_id, ""):
            case "":
                self._waiting[approval_id] = request
                due = self._clock.now_ms() + APPROVAL_MS
                return Pending(approval_id, f"{request.tool}?", "A person must decide", due)
            case verdict if verdict == APPROVED:
                return Ran(ToolOutput(0))
            case verdict if verdict == REJECTED:
                return Denied("rejected", "approval_rejected", "Rejected")
            case _:
                return Denied("approval_timeout", "approval_expired", "Nobody decided")

    async def conclude(self, request_id: str, output: ToolOutput) -> Sequence[Operation]:
        return ()

    async def decide_approval(
        self, approval_id: str, *, approve: bool, decided_by: str, reason: str
    ) -> str:
        return await self._settle(approval_id, APPROVED if approve else REJECTED)

    async def expire(self, approval_id: str) -> None:
        await self._settle(approval_id, LATE)

    async def _settle(self, approval_id: str, verdict: str) -> str:
        if approval_id not in self._approvals:
            raise NotFound("approval", approval_id)
        if self._approvals[approval_id]:
            raise Conflict(f"approval {approval_id} was decided")
        self._approvals[approval_id] = verdict
        request = self._waiting[approval_id]
        told = {"approval_id": approval_id, "run_id": request.run_id, "status": verdict}
        kind = EXPIRED if verdict == LATE else DECIDED
        event = NewEvent(kind, json.dumps(told).encode(), request.run_id)
        await self._journal.commit(Append(APPROVALS, [event]))
        return request.request_id

    def visible_tools(self, caller: Caller) -> Sequence[Tool]:
        return self._tools
