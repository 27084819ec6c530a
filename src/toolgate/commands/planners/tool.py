"""`/command/tool`: one call or several, each through the gate, each with its own result."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from msgspec import UNSET, UnsetType

from toolgate.access.devices import Identity
from toolgate.access.refusals import Forbidden
from toolgate.commands.answers import Code, Problem
from toolgate.commands.plans import (
    Done,
    Plan,
    call_id,
    caller_of,
    denied,
)
from toolgate.contracts import gateway_v1 as wire
from toolgate.contracts.wire import given
from toolgate.core.enums import CommandKind, Level, Outcome
from toolgate.core.tools import JsonValue, ToolOutput, ToolRequest
from toolgate.http.bodies import check_id
from toolgate.tools.limits import CapabilityLimits
from toolgate.tools.outcomes import Answer, Denied, Ran

LevelOf = Callable[[str], Level | None]  # None: nobody has such a tool

MAX_CALLS: Final = 64  # ours: in one command


@dataclass(frozen=True, slots=True)
class ToolPlanner:
    level_of: LevelOf
    limits: CapabilityLimits

    def decode(self, raw: bytes) -> wire.ToolCommand:
        return wire.decode_tool_command(raw)

    async def plan(self, command: wire.ToolCommand, identity: Identity, command_id: str) -> Plan:
        calls = _calls(command.payload)
        levels: list[Level] = []
        for call in calls:
            level = self.level_of(call.name)
            if level is None:
                raise Forbidden(f"there is no tool {call.name[:80]}")
            levels.append(level)
        names = [call.name for call in calls]
        is_mcp = any(self.limits.capability_of(name) for name in names)
        caller = caller_of(
            identity, level=identity.scope.tools, session=given(command.session_key, "")
        )
        return Plan(
            level=levels[0] if len(levels) == 1 else max(levels, key=lambda level: level.rank),
            name=", ".join(names[:3]),
            capabilities=tuple(dict.fromkeys(c for name in names for c in self.limits.names(name))),
            kinds=(CommandKind.TOOL, CommandKind.MCP) if is_mcp else (CommandKind.TOOL,),
            requests=tuple(
                ToolRequest(call_id(command_id, number), call.name, call.arguments, caller)
                for number, call in enumerate(calls)
            ),
            done=lambda answers: _done(calls, answers),
        )


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


def _done(calls: Sequence[wire.ToolCall], answers: Sequence[Answer]) -> Done:
    """One result per call; a refusal of the whole command only if every call was refused."""
    results = [_result(call, answer) for call, answer in zip(calls, answers, strict=True)]
    data = wire.ToolData(results=results)
    refusals = [answer for answer in answers if isinstance(answer, Denied)]
    if len(refusals) < len(answers):
        return Done(data, succeeded=all(result.success for result in results))
    problem = denied(refusals[0])
    problem.data = data
    return Done(data, problem)


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
                error=f"{denied(answer).code}: {answer.text}",
                outcome=Outcome.NOT_STARTED,
            )


def _data(output: ToolOutput) -> JsonValue:
    """The tool's data, or its text; both where the data only describes the text."""
    if output.data is None:
        return None if output.says_null else output.stdout
    if not isinstance(output.data, dict) or not (output.stdout or output.stderr):
        return output.data
    if output.stdout.encode() == wire.encode(output.data):
        return output.data
    return {"stdout": output.stdout, "stderr": output.stderr, **output.data}
