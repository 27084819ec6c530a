"""Translates a client's command into a call of the orchestrator, and an error into an `error` message."""

import logging
from collections.abc import Sequence
from typing import assert_never

import msgspec

from toolgate.contracts import ingress_v1 as wire
from toolgate.contracts.ingress_v1 import ErrorCode
from toolgate.contracts.wire import given
from toolgate.core.clock import Clock
from toolgate.core.enums import Decision
from toolgate.core.errors import (
    Conflict,
    Damaged,
    Invalid,
    NotFound,
    Refused,
    ToolgateError,
    Unavailable,
)
from toolgate.core.tools import Tool
from toolgate.runs.orchestrator import Invocation, Orchestrator

log = logging.getLogger(__name__)

Command = wire.AgentInvoke | wire.ToolResult | wire.ApprovalDecision | wire.CancelRun

CODES: dict[type[ToolgateError], ErrorCode] = {
    Invalid: ErrorCode.INVALID_MESSAGE,
    NotFound: ErrorCode.INVALID_MESSAGE,
    Refused: ErrorCode.INVALID_MESSAGE,
    Conflict: ErrorCode.INVALID_MESSAGE,
    Unavailable: ErrorCode.ORCHESTRATOR_ERROR,
    ToolgateError: ErrorCode.INTERNAL_ERROR,
}


async def dispatch(
    message: Command,
    orchestrator: Orchestrator,
    *,
    session_id: str,
    user_id: str,
    clock: Clock,
) -> wire.Error | str:
    """Carry out a client's command; the error for the client, or the id of an invoked run, new or known.

    Empty for other commands.
    """
    try:
        return await _call(message, orchestrator, session_id=session_id, user_id=user_id)
    except Exception as failed:  # every error is answered with the ids of its command
        codes = (CODES[kind] for kind in type(failed).__mro__ if kind in CODES)
        code = next(codes, ErrorCode.INTERNAL_ERROR)
        hidden = code is ErrorCode.INTERNAL_ERROR or isinstance(failed, Damaged)
        if hidden:
            log.exception("command_failed session_id=%s", session_id)
        return wire.Error(
            ts=clock.now_ms(),
            code=code,
            message="the command cannot be carried out now" if hidden else str(failed),
            request_id=message.request_id,
            run_id="" if isinstance(message, wire.AgentInvoke) else message.run_id,
        )


async def _call(
    message: Command,
    orchestrator: Orchestrator,
    *,
    session_id: str,
    user_id: str,
) -> str:
    match message:
        case wire.AgentInvoke():
            return await orchestrator.invoke(
                Invocation(
                    session_id=session_id,
                    user_id=user_id,
                    agent_id=message.agent_id,
                    role=message.message.role,
                    content=message.message.content,
                    request_id=message.request_id,
                )
            )
        case wire.ToolResult():
            await orchestrator.submit_result(
                message.tool_call_id,
                session_id=session_id,
                run_id=message.run_id,
                ok=message.ok,
                result=given(message.result, None),
                error=given(message.error, None),
            )
        case wire.ApprovalDecision():
            await orchestrator.decide_approval(
                message.approval_id,
                session_id=session_id,
                run_id=message.run_id,
                approve=message.decision is Decision.APPROVE,
                reason=message.reason,
                decided_by=user_id,
            )
        case wire.CancelRun():
            await orchestrator.cancel(
                message.run_id, session_id=session_id, reason="cancelled by the user"
            )
        case _:
            assert_never(message)
    return ""


def client_tools(hello: wire.Hello) -> Sequence[Tool] | None:
    """The tools in a device's hello; None if it has no member for tools."""
    meta = hello.client_meta
    if not isinstance(meta, wire.ClientMeta) or isinstance(meta.tools, msgspec.UnsetType):
        return None
    return [
        Tool(
            name=tool.name,
            description=tool.description,
            level=tool.level,
            schema=given(tool.input_schema, {"type": "object"}),
            repeatable=tool.repeatable,
        )
        for tool in hello.tools
    ]
