"""Events of a run for the session's devices: the messages of the ingress contract, as plain data.

`type` and the members are the contract's; the surface adds time, number and event id.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from toolgate.core.enums import CallStatus, RunStatus
from toolgate.core.tools import JsonValue
from toolgate.journal.journal import Event
from toolgate.runs.state import CallMoved, CallState, Fact, RunEnded, RunStarted, RunState
from toolgate.tools.approvals import Approval
from toolgate.tools.outcomes import Pending

RUN_STARTED: Final = "run_started"
DELTA: Final = "delta"
STATE: Final = "state"
TOOL_REQUEST: Final = "tool_request"
APPROVAL_REQUIRED: Final = "approval_required"
ERROR: Final = "error"
DONE: Final = "done"
ENDS: Final = frozenset({ERROR, DONE})
# The codes of the ingress contract's table. Every other code stands in `detail.reason`.
CLIENT_CODES: Final = frozenset(
    {
        "invalid_message",
        "auth_failed",
        "session_not_found",
        "client_offline",
        "orchestrator_error",
        "internal_error",
    }
)
FINAL_REASONS: Final = frozenset(
    {"unknown_agent", "blocked", "rejected", "may_not_approve", "outside_scope"}
)
# Members of another process's event that are not members of a delivery: the surface makes its own.
ENVELOPE: Final = ("type", "ts", "seq", "first_seq", "event_id")
_TIME: Final = b'{"ts":'
RETRACTED: Final = (
    "retracted_characters"  # in the detail of a state: the number of characters to delete
)


class _UpdateDetail(msgspec.Struct, forbid_unknown_fields=True):
    tool_call_id: str
    delta: str
    at: str


class ToolUpdate(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """The members of a `state` that brings output of a running tool call."""

    run_id: str
    state: str
    detail: _UpdateDetail
    ts: int = 0  # of another process's event

    @property
    def call_id(self) -> str:
        return self.detail.tool_call_id


_decode_update: Final = msgspec.json.Decoder(ToolUpdate).decode


@dataclass(frozen=True, slots=True)
class Delivery:
    type: str
    run_id: str
    members: dict[str, Any] = field(default_factory=dict)
    # Time and id of an event from another process, by its own clock; empty for our own events.
    said_at: int = field(default=0, compare=False)
    event_id: str = field(default="", compare=False)


def run_started(fact: RunStarted) -> Delivery:
    members = {
        "request_id": fact.request_id,
        "run_id": fact.run_id,
        "session_id": fact.session_id,
        "agent_id": fact.agent_id,
    }
    return Delivery(RUN_STARTED, fact.run_id, _without_empty(members))


def delta(run_id: str, text: str) -> Delivery:
    return Delivery(DELTA, run_id, {"run_id": run_id, "text": text})


def state(run_id: str, name: str, detail: dict[str, Any] | None = None) -> Delivery:
    return Delivery(STATE, run_id, {"run_id": run_id, "state": name, "detail": detail or {}})


def tool_update(run_id: str, call_id: str, text: str, *, at: str) -> Delivery:
    """Output of a running call: like a delta it may be joined with the next, and is never cut."""
    return state(run_id, RunStatus.RUNNING, {"tool_call_id": call_id, "delta": text, "at": at})


def read_update(state_members: bytes) -> ToolUpdate | None:
    """The tool update in a `state` event; None if it is another state."""
    try:
        return _decode_update(state_members)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


def is_passing(delivery: Delivery) -> bool:
    """Tell if this is a delta or a tool update, which are committed without waiting for the disk."""
    if delivery.type != STATE:
        return delivery.type == DELTA
    try:
        msgspec.convert(delivery.members, ToolUpdate)
    except msgspec.ValidationError:
        return False
    return True


def tool_request(run: RunState, call: CallState) -> Delivery:
    members: dict[str, Any] = {
        "run_id": run.run_id,
        "tool_call_id": call.call_id,
        "tool_name": call.tool,
        "args": call.args,
        "deadline_ts": call.deadline,
    }
    return Delivery(TOOL_REQUEST, run.run_id, members)


def call_ended(run: RunState, call: CallState) -> Delivery:
    return state(run.run_id, run.status, {"tool_call_id": call.call_id, "status": call.status})


def failure(run_id: str, *, code: str, message: str, request_id: str = "") -> Delivery:
    """The event of a run that has failed."""
    members = {"request_id": request_id, "run_id": run_id, **fault(code), "message": message}
    return Delivery(ERROR, run_id, _without_empty(members))


def fault(code: str) -> dict[str, Any]:
    """The members `code` and `detail` of an error; a code outside of the table becomes a reason."""
    if code in CLIENT_CODES:
        return {"code": code}
    detail: dict[str, Any] = {"reason": code}
    if code in FINAL_REASONS:
        detail["retry"] = False
    return {"code": "orchestrator_error", "detail": detail}


def cancelled(run_id: str, reason: str, usage: dict[str, int]) -> list[Delivery]:
    """The last events of a cancelled run."""
    return [
        state(run_id, RunStatus.CANCELLED, {"reason": reason} if reason else None),
        Delivery(DONE, run_id, {"run_id": run_id, "usage": usage}),
    ]


def received(
    kind: str, run_id: str, members: dict[str, Any], *, ts: int, event_id: str
) -> Delivery:
    """An event of another process, as it is kept: without its envelope, errors by our table."""
    kept = {name: value for name, value in members.items() if name not in ENVELOPE}
    if kind == ERROR and kept["code"] not in CLIENT_CODES:
        kept = {**kept, **fault(kept["code"])}
    return Delivery(kind, run_id, kept, said_at=ts, event_id=event_id)


def frame(event: Event, *, first_seq: int = 0) -> bytes:
    """An event of a session as the ingress contract's JSON, made from its bytes without a decode.

    `data` is an object with at least one member; another process's time stands first in it.
    """
    position, _, seq, kind, at, data, _ = event  # once for each event of all sessions
    time = "" if data.startswith(_TIME) else f'"ts":{at},'
    first = f'"first_seq":{first_seq},' if first_seq else ""
    head = f'{{"type":"{kind}",{time}"seq":{seq},{first}"event_id":"ev_{position}",'
    return head.encode() + data[1:]


def approval_required(
    run: RunState,
    call: CallState,
    asked: Approval | Pending,
    *,
    summary: str,
    args: Mapping[str, JsonValue] | None,
) -> Delivery:
    members = {
        "run_id": run.run_id,
        "approval_id": asked.approval_id,
        "tool_call_id": call.call_id,
        "tool_name": call.tool,
        "args_summary": summary,
        **({} if args is None else {"args": args}),
        **({"hidden": asked.hidden} if asked.hidden else {}),
        "reason": asked.reason,
        "message": asked.text,
        "deadline_ts": asked.expires_at,
    }
    return Delivery(APPROVAL_REQUIRED, run.run_id, members)


def of_fact(before: RunState | None, fact: Fact, after: RunState) -> list[Delivery]:
    """The events that follow from a fact; the seed's appendix A says which facts have none."""
    match fact:
        case RunStarted():
            return [run_started(fact)]
        case CallMoved(to=CallStatus.DISPATCHED, client=True):
            return [tool_request(after, after.call(fact.call_id))]
        case CallMoved(client=True) if after.open_calls and after.call(fact.call_id).ended:
            # The run does not go on yet, so the other devices get no other event.
            return [call_ended(after, after.call(fact.call_id))]
        case RunEnded(status=RunStatus.DONE):
            return [Delivery(DONE, after.run_id, {"run_id": after.run_id, "usage": _usage(after)})]
        case RunEnded(status=RunStatus.CANCELLED):
            return cancelled(after.run_id, after.message, _usage(after))
        case RunEnded():
            return [_failure(after)]
        case _:
            return []


def _failure(after: RunState) -> Delivery:
    return failure(
        after.run_id, code=after.code, message=after.message, request_id=after.request_id
    )


def _without_empty(members: dict[str, Any]) -> dict[str, Any]:
    """The members without empty ids, as Go's `omitempty` leaves them out."""
    return {name: value for name, value in members.items() if value or not name.endswith("_id")}


def _usage(after: RunState) -> dict[str, int]:
    return {
        "total_tokens": after.prompt_tokens + after.completion_tokens,
        "prompt_tokens": after.prompt_tokens,
        "completion_tokens": after.completion_tokens,
        "duration_ms": max(0, after.ended_at - after.started_at),
    }
