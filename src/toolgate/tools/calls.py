"""A tool call: the table of its states, and the one row that keeps it.

The row makes a request idempotent: it holds a keyed fingerprint of the request, the state of the call,
and its answer. It holds no secret.
"""

from itertools import pairwise
from typing import Final, NamedTuple

import msgspec

from toolgate.core.enums import CallStatus, Level
from toolgate.core.errors import Conflict, Invalid
from toolgate.core.ids import is_path_safe
from toolgate.core.tools import Caller, JsonValue, ToolRequest
from toolgate.policy.model import Decision
from toolgate.tools.approvals import Approval
from toolgate.tools.responses import Response

EXECUTIONS: Final = "executions"  # rows by request id; `due` is the deadline of a device's call
# By node: the number of the evidence record up to which all of its calls are known to have ended.
FINISHED: Final = "executions_finished"

MAX_TOOL_CHARS: Final = 256

C = CallStatus
TRANSITIONS: Final[dict[CallStatus, frozenset[CallStatus]]] = {
    C.CREATED: frozenset({C.POLICY_CHECKED}),
    C.POLICY_CHECKED: frozenset({C.BLOCKED, C.WAITING_APPROVAL, C.DISPATCHED}),
    C.BLOCKED: frozenset(),
    C.WAITING_APPROVAL: frozenset({C.REJECTED, C.DISPATCHED, C.BLOCKED, C.TIMEOUT}),
    C.REJECTED: frozenset(),
    C.DISPATCHED: frozenset({C.RUNNING, C.SUCCEEDED, C.FAILED, C.TIMEOUT}),
    C.RUNNING: frozenset({C.SUCCEEDED, C.FAILED, C.TIMEOUT, C.INTERRUPTED}),
    C.INTERRUPTED: frozenset({C.RUNNING, C.FAILED}),
    C.SUCCEEDED: frozenset(),
    C.FAILED: frozenset(),
    C.TIMEOUT: frozenset(),
}
TERMINAL: Final = frozenset(status for status, after in TRANSITIONS.items() if not after)


# A call may pass these states in one commit: they are decisions, and nothing waits in them.
_PASSED: Final = ((), (C.POLICY_CHECKED,), (C.DISPATCHED,), (C.POLICY_CHECKED, C.DISPATCHED))


def _way(before: CallStatus, after: CallStatus) -> tuple[CallStatus, ...]:
    for passed in _PASSED:
        path = (before, *passed, after)
        if all(to in TRANSITIONS[status] for status, to in pairwise(path)):
            return path[1:]
    return ()


_WAYS: Final = {(before, after): _way(before, after) for before in C for after in C}


def way(call_id: str, before: CallStatus, after: CallStatus) -> tuple[CallStatus, ...]:
    """The states through which a call gets to `after`, which is the last; Conflict if it cannot."""
    if not (found := _WAYS[before, after]):
        raise Conflict(f"tool call {call_id} is {before}, it cannot become {after}")
    return found


class Details(msgspec.Struct, frozen=True):
    """A call that is open, as it can be ended without its caller."""

    tool: str
    step_id: str
    caller: Caller
    engine_ref: str
    level: Level
    decision: Decision
    approval: Approval | None = None


class Entry(msgspec.Struct, frozen=True, omit_defaults=True):
    """The row of a call."""

    fingerprint: str
    state: CallStatus
    owner: str  # the name of the `Owner` that wrote the row
    run_id: str = ""
    details: Details | None = None  # of an open call
    response: Response | None = None  # of a refused call; others have an artifact
    isolation: str = ""


encode: Final = msgspec.json.Encoder().encode
decode_entry: Final = msgspec.json.Decoder(Entry).decode


class Call(NamedTuple):
    """A valid request: its ids are complete, its content has a fingerprint."""

    request: ToolRequest
    shown: bytes  # the request without its secrets, for the evidence
    fingerprint: str
    engine_ref: str
    level: Level
    version: int = 0  # of its row; 0 without one
    status: CallStatus = CallStatus.CREATED
    definition: str = ""  # the digest of the tool's pinned definition

    @property
    def id(self) -> str:
        return self.request.request_id


def call_of(request_id: str, entry: Entry, *, version: int) -> Call:
    """An open call by its row alone: without its arguments."""
    details = entry.details
    assert details is not None
    request = ToolRequest(
        request_id,
        details.tool,
        {},
        details.caller,
        run_id=entry.run_id,
        step_id=details.step_id,
    )
    return Call(
        request,
        shown=b"",
        fingerprint=entry.fingerprint,
        engine_ref=details.engine_ref,
        level=details.level,
        version=version,
        status=entry.state,
    )


def is_in(entry: Entry | None, status: CallStatus) -> bool:
    return entry is not None and entry.state is status


def complete(request: ToolRequest) -> ToolRequest:
    """The request with its ids derived where they are missing; raises Invalid."""
    if not is_path_safe(request.request_id):
        raise Invalid(
            "request_id has 1 to 128 of A-Z a-z 0-9 . _ - and no '..'", field="request_id"
        )
    if not 0 < len(request.tool) <= MAX_TOOL_CHARS:
        raise Invalid(f"tool_id has 1 to {MAX_TOOL_CHARS} characters", field="tool_id")
    if request.run_id and request.step_id:
        return request
    return ToolRequest(  # a third of what `replace` takes
        request.request_id,
        request.tool,
        request.args,
        request.caller,
        request.run_id or f"run_{request.request_id}",
        request.step_id or f"step_{request.request_id}",
        request.policy_ref,
        request.target_id,
        request.no_links,
        request.scope,
        on_client=request.on_client,
    )


def described(request: ToolRequest) -> dict[str, JsonValue]:
    """All members that make two requests the same: the call and its caller."""
    caller = request.caller
    where: dict[str, JsonValue] = {"on_client": True} if request.on_client else {}
    return {
        **where,
        "request_id": request.request_id,
        "tool_id": request.tool,
        "args": dict(request.args),
        "ctx": {
            "run_id": request.run_id,
            "step_id": request.step_id,
            "policy_ref": request.policy_ref,
        },
        "target_id": request.target_id,
        "caller": {
            "tenant": caller.tenant,
            "workspace": caller.workspace,
            "device": caller.device,
            "user": caller.user,
            "role": caller.role,
            "level": caller.level.value,
            "agent": caller.agent,
            "session": caller.session,
        },
    }


def names_in(request: ToolRequest) -> tuple[str, ...]:
    """The names of a request and its caller, the same for many requests.

    Names and ids are written as they are, so none may be a secret.
    """
    caller = request.caller
    return (
        request.tool,
        request.policy_ref,
        request.target_id,
        caller.tenant,
        caller.workspace,
        caller.device,
        caller.user,
        caller.role,
        caller.agent,
        caller.session,
    )
