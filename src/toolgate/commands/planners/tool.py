"""`/command/tool`: one call or several, each through the pipeline, each with its own result."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from msgspec import UNSET, UnsetType

from toolgate.access.devices import Identity
from toolgate.access.refusals import Forbidden
from toolgate.access.registry import Registry
from toolgate.commands.answers import Code, Problem
from toolgate.commands.plans import (
    Came,
    Done,
    Plan,
    Ticket,
    call_id,
    caller_of,
    denied,
    first_waiting,
)
from toolgate.contracts import gateway_v1 as wire
from toolgate.contracts.wire import given
from toolgate.core.enums import CommandKind, Level, Outcome
from toolgate.core.tools import JsonValue, ToolOutput, ToolRequest
from toolgate.http.bodies import check_id
from toolgate.tools.gate import Answer, Denied, Pending, Ran, ToolPipeline

LevelOf = Callable[[str], Level | None]  # None: nobody has such a tool
CapabilityOf = Callable[[str], str]  # whose MCP server has a tool; empty: nobody's

MAX_CALLS: Final = 64  # ours: in one command
_NOT_ANY_MORE: Final = Denied("blocked", "", "the right to it was taken away while it waited")


@dataclass(frozen=True, slots=True)
class ToolPlanner:
    pipeline: ToolPipeline
    level_of: LevelOf
    capability_of: CapabilityOf
    registry: Registry
    own_capability_of: CapabilityOf = lambda _tool: ""  # of a server of ours

    def decode(self, raw: bytes) -> wire.ToolCommand:
        return wire.decode_tool_command(raw)

    async def plan(self, command: wire.ToolCommand, identity: Identity) -> Plan:
        calls = _calls(command.payload)
        levels: list[Level] = []
        for call in calls:
            level = self.level_of(call.name)
            if level is None:
                raise Forbidden(f"there is no tool {call.name[:80]}")
            levels.append(level)
        servers = [server for call in calls if (server := self.capability_of(call.name))]
        if servers and (outside := identity.scope.refusal(CommandKind.MCP, Level.READ)):
            raise Forbidden(outside)
        session = given(command.session_key, "")
        names = [call.name for call in calls]
        ours = [own for name in names if (own := self.own_capability_of(name))]
        charged = (*servers, *ours, *names)

        async def run(ticket: Ticket) -> Came:
            caller = caller_of(identity, level=identity.scope.tools, session=session)
            answers: list[Answer] = []
            rider = ticket.rider
            is_new = not rider.began  # else any call may have run, and the pipeline knows
            for number, call in enumerate(calls, 1):
                if is_new and number > 1 and not self._may(identity, call, levels[number - 1]):
                    answers.append(_NOT_ANY_MORE)
                    continue
                if number == len(calls) and first_waiting(answers) is None:
                    rider = ticket.riding(lambda answer: _done(calls, [*answers, answer]))
                request = ToolRequest(
                    call_id(ticket, number - 1), call.name, call.arguments, caller
                )
                answers.append(await self.pipeline.run(request, rider=rider))
            if ticket.rider.ended:
                return ticket.done
            if (waiting := first_waiting(answers)) is not None:
                return replace(waiting, ran=_ran(calls, answers))
            return _done(calls, answers)

        return Plan(
            level=levels[0] if len(levels) == 1 else max(levels, key=lambda level: level.rank),
            name=", ".join(names[:3]),
            capabilities=tuple(dict.fromkeys(charged)),
            charged=charged,
            calls=len(calls),
            run=run,
        )

    def _may(self, identity: Identity, call: wire.ToolCall, level: Level) -> bool:
        """Whether the caller may do this still: the calls before it may have taken long."""
        known = self.registry.identity(identity.name)
        if known is None or known.scope.refusal(CommandKind.TOOL, level):
            return False
        return not self.capability_of(call.name) or known.scope.mcp


def _calls(payload: wire.ToolPayload) -> list[wire.ToolCall]:
    if isinstance(payload.tool_calls, UnsetType):
        assert not isinstance(payload.name, UnsetType)
        calls = [wire.ToolCall(id="1", name=payload.name, arguments=given(payload.args, {}))]
    else:
        calls = payload.tool_calls
    if len(calls) > MAX_CALLS:
        raise Problem(Code.INVALID_REQUEST, f"a command has at most {MAX_CALLS} tool calls")
    for call in calls:
        check_id("toolCalls[].id", call.id)
        check_id("toolCalls[].name", call.name)
    return calls


def _done(calls: list[wire.ToolCall], answers: list[Answer]) -> Done:
    """Refused as a whole only where every call was: one that ran has its result to tell."""
    results = [_result(call, answer) for call, answer in zip(calls, answers, strict=True)]
    data = wire.ToolData(results=results)
    refusals = [answer for answer in answers if isinstance(answer, Denied)]
    if len(refusals) < len(answers):
        return Done(data)
    problem = denied(refusals[0])
    problem.data = data
    return Done(data, problem)


def _ran(calls: list[wire.ToolCall], answers: list[Answer]) -> bytes:
    """The results, should those that wait never run; nothing where none has run."""
    if not any(isinstance(answer, Ran) for answer in answers):
        return b""
    settled: list[Answer] = [_NOT_ANY_MORE if isinstance(one, Pending) else one for one in answers]
    return wire.encode(_done(calls, settled).data)


def _result(call: wire.ToolCall, answer: Answer) -> wire.ToolCallResult:
    match answer:
        case Ran(output) if output.ok:
            return wire.ToolCallResult(id=call.id, name=call.name, success=True, data=_data(output))
        case Ran(output):
            told: JsonValue = {"stdout": output.stdout, "exitCode": output.exit_code}
            return wire.ToolCallResult(
                id=call.id,
                name=call.name,
                success=False,
                data=told if output.data is None else _data(output),
                error=output.stderr or f"exit code {output.exit_code}",
                outcome=output.outcome,
            )
        case Denied():
            return wire.ToolCallResult(
                id=call.id,
                name=call.name,
                success=False,
                data=UNSET,
                error=f"{Code.PERMISSION_DENIED}: {answer.reason}",
                outcome=Outcome.NOT_STARTED,
            )
        case Pending():  # pragma: no cover - a command that waits has no results yet
            raise AssertionError(answer)


def _data(output: ToolOutput) -> JsonValue:
    """What the tool said, as a value where it has one; its text beside what only describes it."""
    if output.data is None:
        return None if output.says_null else output.stdout
    if not isinstance(output.data, dict) or not (output.stdout or output.stderr):
        return output.data
    if output.stdout.encode() == wire.encode(output.data):
        return output.data
    return {"stdout": output.stdout, "stderr": output.stderr, **output.data}
