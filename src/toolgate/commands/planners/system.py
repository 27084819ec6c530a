"""`/command/system`: exec, web.fetch, web.search, as tools of those names."""

import shlex
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from msgspec import UnsetType

from toolgate.access.devices import Identity
from toolgate.access.refusals import Forbidden
from toolgate.commands.answers import NotImplementedHere, Problem
from toolgate.commands.plans import (
    Done,
    Plan,
    call_id,
    caller_of,
    code_of,
    granted_level,
    one_answer,
)
from toolgate.contracts import gateway_v1 as wire
from toolgate.contracts.wire import given
from toolgate.core.clock import Clock
from toolgate.core.enums import CommandKind, Level
from toolgate.core.errors import Invalid
from toolgate.core.tools import JsonValue, ToolOutput, ToolRequest
from toolgate.tools.capability_registry import Capabilities
from toolgate.tools.engines.builtin.exec import may_be_set

ARGS: Final[dict[wire.SystemAction, type[Any]]] = {
    wire.SystemAction.EXEC: wire.ExecArgs,
    wire.SystemAction.WEB_FETCH: wire.WebFetchArgs,
    wire.SystemAction.WEB_SEARCH: wire.WebSearchArgs,
}

ANSWER_HAS: Final = {  # a member by which an answer is known from a failure
    wire.SystemAction.EXEC: "exitCode",
    wire.SystemAction.WEB_FETCH: "status",
    wire.SystemAction.WEB_SEARCH: "results",
}


@dataclass(frozen=True, slots=True)
class SystemPlanner:
    """`has` says whether this installation has the tool behind an action."""

    has: Callable[[str], bool]
    clock: Clock
    capabilities: Capabilities

    def decode(self, raw: bytes) -> wire.SystemCommand:
        return wire.decode_system_command(raw)

    async def plan(self, command: wire.SystemCommand, identity: Identity, command_id: str) -> Plan:
        payload = command.payload
        try:
            action = wire.SystemAction(payload.action)
        except ValueError as unknown:
            raise Forbidden(f"there is no system action {payload.action[:80]}") from unknown
        if not self.has(action):
            raise NotImplementedHere(f"nothing is configured that does {action}")
        args = _tool_args(action, payload)
        terms = self.capabilities.get(action)
        signs = terms is not None and terms.level is Level.SIGN
        level = Level.SIGN if signs else wire.ACTION_LEVELS[action]
        session = given(payload.session_id, given(command.session_key, ""))

        caller = caller_of(
            identity, level=granted_level(identity, CommandKind.SYSTEM, level), session=session
        )
        started = self.clock.monotonic()

        def done(output: ToolOutput) -> Done:
            return _done(action, output, int((self.clock.monotonic() - started) * 1000))

        return Plan(
            level=level,
            name=action,
            capabilities=(action,),
            kinds=(CommandKind.SYSTEM,),
            requests=(ToolRequest(call_id(command_id, 0), action.value, args, caller),),
            done=one_answer(done),
        )


def _tool_args(action: wire.SystemAction, payload: wire.SystemPayload) -> dict[str, JsonValue]:
    """The tool's arguments, checked; exec's as words that no shell reads again."""
    args = msgspec.convert(payload.args, ARGS[action])
    if not isinstance(args, wire.ExecArgs):
        told: dict[str, JsonValue] = msgspec.to_builtins(args)
        return told
    program, *params = _words(args)
    made: dict[str, JsonValue] = {"command": program, "params": [*params]}
    if not isinstance(payload.cwd, UnsetType):
        made["cwd"] = payload.cwd
    allowed = {name: text for name, text in given(payload.env, {}).items() if may_be_set(name)}
    if allowed:
        made["environment"] = {**allowed}
    return made


def _words(args: wire.ExecArgs) -> list[str]:
    if isinstance(args.cmd, UnsetType):
        assert not isinstance(args.command, UnsetType)
        words = [args.command, *given(args.params, [])]
    else:
        try:
            words = shlex.split(args.cmd)
        except ValueError as unclosed:
            raise Invalid(f"cmd cannot be split: {unclosed}", field="args.cmd") from unclosed
    if not words or any("\0" in word for word in words):
        raise Invalid("cmd names no command", field="args.cmd")
    return words


def _done(action: wire.SystemAction, output: ToolOutput, took_ms: int) -> Done:
    """A command that ran to its end is an answer, whatever its exit code."""
    data = output.data if isinstance(output.data, dict) else {}
    if ANSWER_HAS[action] in data:
        return Done(data if action is wire.SystemAction.WEB_SEARCH else _timed(data, took_ms))
    problem = Problem(
        code_of(data),
        output.stderr or f"{action} failed",
        outcome=output.outcome,
    )
    return Done(None, problem)


def _timed(data: dict[str, JsonValue], took_ms: int) -> dict[str, JsonValue]:
    return {**data, "durationMs": took_ms}
