"""A pipeline that runs functions: tools with a level, denials by name, approvals by hand.

It keeps its promises: the same request again gives the same answer and runs nothing twice, and a
rider's beginning is in the journal before the tool runs.
"""

import contextlib
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from toolgate.core.clock import Clock
from toolgate.core.enums import Level
from toolgate.core.errors import Conflict, NotFound, Refused, Unavailable
from toolgate.core.tools import Caller, JsonValue, Tool, ToolOutput, ToolRequest
from toolgate.journal.journal import Append, Journal, NewEvent, Operation, Put
from toolgate.tools.engine import Update, no_update
from toolgate.tools.gate import (
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

Function = Callable[[Mapping[str, JsonValue]], Awaitable[ToolOutput]]

APPROVAL_MS: Final = 600_000
FAR_AWAY: Final = 4_000_000_000_000  # when an approval expires, where there is no clock
REFUSALS: Final = {
    "REJECTED": Denied("rejected", "approval_rejected", "a person said no"),
    "EXPIRED": Denied("approval_timeout", "approval_expired", "nobody decided"),
}


async def echo(args: Mapping[str, JsonValue]) -> ToolOutput:
    return ToolOutput(0, stdout=str(args.get("text", "")))


@dataclass(slots=True)
class Asked:
    request: ToolRequest
    verdict: str = ""  # empty while nobody has decided


@dataclass(slots=True)
class FakePipeline:
    """What was not added is denied."""

    ran: list[ToolRequest] = field(default_factory=list)
    concluded: list[tuple[str, ToolOutput]] = field(default_factory=list)  # by a device
    withdrawn: list[tuple[str, str]] = field(default_factory=list)  # request and reason
    denied: set[str] = field(default_factory=set)
    asks: set[str] = field(default_factory=set)
    elsewhere: set[str] = field(default_factory=set)  # a client runs them: none of ours to offer
    journal: Journal | None = None  # without one nothing is taken along, and nobody told
    clock: Clock | None = None
    _tools: dict[str, tuple[Level, Function]] = field(default_factory=dict)
    _answers: dict[str, Answer] = field(default_factory=dict)
    _approvals: dict[str, Asked] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.add("echo", Level.READ, echo)

    def add(self, name: str, level: Level, function: Function) -> None:
        self._tools[name] = (level, function)

    def level_of(self, name: str) -> Level | None:
        found = self._tools.get(name)
        return None if found is None else found[0]

    def has(self, name: str) -> bool:
        return name in self._tools

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
            answer = await self._run(request, started, rider)
        if not isinstance(answer, Pending):
            self._answers[request.request_id] = answer
        return answer

    async def _run(self, request: ToolRequest, started: Started, rider: Rider | None) -> Answer:
        if rider is not None and not rider.began and self.journal is not None:
            await self.journal.commit(*rider.begin)
            rider.began = True
        try:
            await started()
        except Refused as refused:
            return Ran(ToolOutput(1, stderr=str(refused)))
        self.ran.append(request)
        _, function = self._tools[request.tool]
        return Ran(await function(request.args))

    def recover(self, request_id: str, answer: Answer) -> None:
        """What a restart makes of a call that was running."""
        self._answers[request_id] = answer

    async def check(self, request: ToolRequest) -> Answer:
        found = self._tools.get(request.tool)
        if found is None or request.tool in self.denied:
            return Denied("blocked", "default_deny", f"{request.tool} is not allowed")
        if found[0] is not Level.SIGN and request.tool not in self.asks:
            return Ran(ToolOutput(0))
        approval_id = f"apr_{request.request_id}"
        asked = self._approvals.setdefault(approval_id, Asked(request))
        if asked.verdict:
            return REFUSALS.get(asked.verdict) or Ran(ToolOutput(0))
        due = FAR_AWAY if self.clock is None else self.clock.now_ms() + APPROVAL_MS
        return Pending(approval_id, f"run {request.tool}", "a person decides", due)

    async def conclude(self, request_id: str, output: ToolOutput) -> Sequence[Operation]:
        self.concluded.append((request_id, output))
        return ()

    async def withdraw(self, request_id: str, *, reason: str) -> Sequence[Operation]:
        self.withdrawn.append((request_id, reason))
        return ()

    async def decide_approval(
        self, approval_id: str, *, approve: bool, decided_by: str, reason: str
    ) -> str:
        verdict = "APPROVED" if approve else "REJECTED"
        return await self._settle(approval_id, verdict, decided_by=decided_by)

    async def expire(self, approval_id: str) -> None:
        await self._settle(approval_id, "EXPIRED", decided_by="")

    async def _settle(self, approval_id: str, verdict: str, *, decided_by: str) -> str:
        asked = self._approvals.get(approval_id)
        if asked is None:
            raise NotFound("approval", approval_id)
        if asked.verdict:
            raise Conflict(f"approval {approval_id} is decided already")
        request = asked.request
        device = request.caller.device
        if device and decided_by in (device, f"device:{device}"):
            raise Refused("nobody decides what they asked for themselves")
        asked.verdict = verdict
        if self.journal is not None:
            members = {"approval_id": approval_id, "run_id": request.run_id, "status": verdict}
            told = json.dumps(members).encode()
            kind = EXPIRED if verdict == "EXPIRED" else DECIDED
            row = Put(APPROVALS, approval_id, told)
            with contextlib.suppress(Unavailable):  # between two starts nobody hears of it
                await self.journal.commit(
                    row, Append(APPROVALS, [NewEvent(kind, told, request.run_id)])
                )
        return request.request_id

    def visible_tools(self, caller: Caller) -> Sequence[Tool]:
        return [
            Tool(name, name, level, {}, True)
            for name, (level, _) in self._tools.items()
            if name not in self.elsewhere
        ]
