"""A pipeline that runs functions: tools with a level, denials by name, approvals by hand.

It keeps its promises: the same request again gives the same answer and runs nothing twice, and a
rider's beginning is in the journal before the tool runs.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from toolgate.domain.errors import Conflict, NotFound, Refused
from toolgate.domain.tools import Caller, JsonValue, Level, Tool, ToolOutput, ToolRequest
from toolgate.ports.engine import Update, no_update
from toolgate.ports.journal import Journal, Operation
from toolgate.ports.pipeline import Answer, Denied, Pending, Ran, Rider, Started, not_told

Function = Callable[[Mapping[str, JsonValue]], Awaitable[ToolOutput]]

FAR_AWAY = 4_000_000_000_000


async def echo(args: Mapping[str, JsonValue]) -> ToolOutput:
    return ToolOutput(0, stdout=str(args.get("text", "")))


@dataclass(slots=True)
class FakePipeline:
    ran: list[ToolRequest] = field(default_factory=list)
    denied: set[str] = field(default_factory=set)
    asks: set[str] = field(default_factory=set)
    journal: Journal | None = None  # without one nothing is taken along
    _tools: dict[str, tuple[Level, Function]] = field(default_factory=dict)
    _answers: dict[str, Answer] = field(default_factory=dict)
    _approvals: dict[str, tuple[ToolRequest, bool | None]] = field(default_factory=dict)

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
        answer = await self._decide(request, started, rider)
        if not isinstance(answer, Pending):
            self._answers[request.request_id] = answer
        return answer

    async def _decide(self, request: ToolRequest, started: Started, rider: Rider | None) -> Answer:
        found = self._tools.get(request.tool)
        if found is None or request.tool in self.denied:
            return Denied("blocked", "default_deny", f"{request.tool} is not allowed")
        level, function = found
        if level is Level.SIGN or request.tool in self.asks:
            approval_id = f"apr_{request.request_id}"
            _, decided = self._approvals.setdefault(approval_id, (request, None))
            if decided is None:
                return Pending(approval_id, f"run {request.tool}", "a person decides", FAR_AWAY)
            if not decided:
                return Denied("rejected", "approval", "a person said no")
        if rider is not None and not rider.began and self.journal is not None:
            await self.journal.commit(*rider.begin)
            rider.began = True
        await started()
        self.ran.append(request)
        return Ran(await function(request.args))

    async def check(self, request: ToolRequest) -> Answer:
        return await self.run(request)

    async def conclude(self, request_id: str, output: ToolOutput) -> Sequence[Operation]:
        return ()

    async def decide_approval(
        self, approval_id: str, *, approve: bool, decided_by: str, reason: str
    ) -> str:
        if approval_id not in self._approvals:
            raise NotFound("approval", approval_id)
        request, decided = self._approvals[approval_id]
        if decided is not None:
            raise Conflict(f"approval {approval_id} is decided already")
        if decided_by in (request.caller.device, f"device:{request.caller.device}"):
            raise Refused("nobody decides what they asked for themselves")
        self._approvals[approval_id] = (request, approve)
        return request.request_id

    def visible_tools(self, caller: Caller) -> Sequence[Tool]:
        return [Tool(name, name, level, {}, True) for name, (level, _) in self._tools.items()]
