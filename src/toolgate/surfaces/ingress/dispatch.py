"""Translates a client's command into a call of the orchestrator, and its outcome into a message."""

import logging
from collections.abc import Sequence
from typing import assert_never

import msgspec
from msgspec import UNSET

from toolgate.access.devices import Identity
from toolgate.contracts import ingress_v1 as wire
from toolgate.contracts.ingress_v1 import ErrorCode, Reason
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
    code_for,
)
from toolgate.core.tools import Tool
from toolgate.runs.deliveries import fault
from toolgate.runs.orchestrator import (
    Accepted,
    Declined,
    Invocation,
    Orchestrator,
    UnknownAgent,
)
from toolgate.tools.approvals import HiddenArguments, MayNotDecide

log = logging.getLogger(__name__)

Command = wire.AgentInvoke | wire.ToolResult | wire.ApprovalDecision | wire.CancelRun


class OutsideScope(Refused):
    """The key of the connection does not cover this command."""


CODES: dict[type[ToolgateError], ErrorCode] = {
    Invalid: ErrorCode.INVALID_MESSAGE,
    NotFound: ErrorCode.INVALID_MESSAGE,
    Refused: ErrorCode.INVALID_MESSAGE,
    Conflict: ErrorCode.INVALID_MESSAGE,
    Declined: ErrorCode.ORCHESTRATOR_ERROR,
    UnknownAgent: ErrorCode.ORCHESTRATOR_ERROR,
    OutsideScope: ErrorCode.ORCHESTRATOR_ERROR,
    MayNotDecide: ErrorCode.ORCHESTRATOR_ERROR,
    HiddenArguments: ErrorCode.ORCHESTRATOR_ERROR,
    Unavailable: ErrorCode.ORCHESTRATOR_ERROR,
    ToolgateError: ErrorCode.INTERNAL_ERROR,
}
REASONS: dict[type[ToolgateError], Reason] = {
    UnknownAgent: Reason.UNKNOWN_AGENT,
    OutsideScope: Reason.OUTSIDE_SCOPE,
    MayNotDecide: Reason.MAY_NOT_APPROVE,
    HiddenArguments: Reason.HIDDEN_ARGUMENTS,
}


async def dispatch(
    message: Command,
    orchestrator: Orchestrator,
    *,
    session_id: str,
    identity: Identity,
    clock: Clock,
) -> wire.Error | wire.State | str:
    """Carry out a client's command.

    Returns the id of an invoked run, new or known; the confirmation of another command; or the
    error for the client.
    """
    try:
        if isinstance(message, wire.AgentInvoke):
            if not identity.scope.agent:
                raise OutsideScope("this key may not talk to agents: it lacks the scope `agent`")
            return await orchestrator.invoke(_invocation(message, session_id, identity.user))
        accepted = await _call(message, orchestrator, session_id=session_id, identity=identity)
    except Exception as failed:  # noqa: BLE001 - every error is logged or answered with the ids of its command
        return _error(message, failed, session_id=session_id, now=clock.now_ms())
    return wire.State(
        ts=clock.now_ms(),
        request_id=message.request_id,
        run_id=accepted.run_id,
        state=accepted.state,
        detail=_confirmed(message, accepted),
    )


def _error(message: Command, failed: Exception, *, session_id: str, now: int) -> wire.Error:
    code = code_for(failed, CODES, ErrorCode.INTERNAL_ERROR)
    hidden = code is ErrorCode.INTERNAL_ERROR or isinstance(failed, Damaged)
    if hidden:
        log.error("command_failed session_id=%s", session_id, exc_info=failed)
    reason = code_for(failed, REASONS, None)
    return wire.Error(
        ts=now,
        code=code,
        message="the command cannot be carried out now" if hidden else str(failed),
        detail=UNSET if reason is None else fault(reason)["detail"],
        request_id=message.request_id,
        run_id="" if isinstance(message, wire.AgentInvoke) else message.run_id,
    )


def _invocation(message: wire.AgentInvoke, session_id: str, user_id: str) -> Invocation:
    return Invocation(
        session_id=session_id,
        user_id=user_id,
        agent_id=message.agent_id,
        role=message.message.role,
        content=message.message.content,
        request_id=message.request_id,
    )


async def _call(
    message: wire.ToolResult | wire.ApprovalDecision | wire.CancelRun,
    orchestrator: Orchestrator,
    *,
    session_id: str,
    identity: Identity,
) -> Accepted:
    match message:
        case wire.ToolResult():
            return await orchestrator.submit_result(
                message.tool_call_id,
                session_id=session_id,
                run_id=message.run_id,
                ok=message.ok,
                result=given(message.result, None),
                error=given(message.error, None),
            )
        case wire.ApprovalDecision():
            if not identity.may_decide:
                raise MayNotDecide(
                    "this connection may not decide approvals: it needs API_KEY, a user's own key or"
                    " one with the scope `approve`"
                )
            return await orchestrator.decide_approval(
                message.approval_id,
                session_id=session_id,
                run_id=message.run_id,
                approve=message.decision is Decision.APPROVE,
                reason=message.reason,
                decided_by=identity,
            )
        case wire.CancelRun():
            return await orchestrator.cancel(
                message.run_id, session_id=session_id, reason="cancelled by the user"
            )
        case _:
            assert_never(message)


def _confirmed(
    message: wire.ToolResult | wire.ApprovalDecision | wire.CancelRun, accepted: Accepted
) -> dict[str, object]:
    match message:
        case wire.ToolResult():
            return {"tool_call_id": message.tool_call_id, "accepted": True}
        case wire.ApprovalDecision():
            return {"approval_id": message.approval_id, "decision": message.decision}
        case wire.CancelRun():
            return {"already": True} if accepted.already else {}
        case _:
            assert_never(message)


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
