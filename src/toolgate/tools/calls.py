"""A tool call on its way through the pipeline, and the row that remembers it for ever.

The row is the request's idempotency: it holds what was asked (as a keyed fingerprint), how far the
call has come, and in the end what came of it. Nothing in it is secret.
"""

from enum import StrEnum
from typing import Final, NamedTuple

import msgspec

from toolgate.core.enums import Level
from toolgate.core.errors import Invalid
from toolgate.core.ids import is_path_safe
from toolgate.core.tools import Caller, JsonValue, ToolRequest
from toolgate.policy.model import Decision
from toolgate.tools.approvals import Approval
from toolgate.tools.responses import Response

EXECUTIONS: Final = "executions"  # rows by request id
# By process: the number of the evidence record up to which all of its calls are known to have ended.
FINISHED: Final = "executions_finished"

MAX_TOOL_CHARS: Final = 256


class State(StrEnum):
    WAITING = "waiting"  # for a person
    STARTED = "started"  # the decision to run is durable; the tool may have begun
    INTERRUPTED = "interrupted"  # it may have run, and may be run again
    RELEASED = "released"  # let through to a device that runs it
    ENDED = "ended"


class Started(msgspec.Struct, frozen=True):
    """What has to be known of a call to say afterwards that it was interrupted."""

    tool: str
    run_id: str
    step_id: str
    caller: Caller
    engine_ref: str
    level: Level
    decision: Decision
    approval: Approval | None = None


class Entry(msgspec.Struct, frozen=True, omit_defaults=True):
    fingerprint: str
    state: State
    owner: str  # the process that started it
    started: Started | None = None
    response: Response | None = None  # of a refused call; others have an artifact
    isolation: str = ""


encode: Final = msgspec.json.Encoder().encode
decode_entry: Final = msgspec.json.Decoder(Entry).decode


class Call(NamedTuple):
    """A request that was understood: its ids are complete, its content has a fingerprint."""

    request: ToolRequest
    shown: bytes  # the request without its secrets, as the evidence has it
    fingerprint: str
    engine_ref: str
    level: Level
    version: int = 0  # of its row, where it has one

    @property
    def id(self) -> str:
        return self.request.request_id


def interrupted_call(request_id: str, entry: Entry, *, version: int) -> Call:
    """A started call as it can be known without its caller: without its arguments."""
    assert entry.started is not None
    started = entry.started
    request = ToolRequest(
        request_id,
        started.tool,
        {},
        started.caller,
        run_id=started.run_id,
        step_id=started.step_id,
    )
    return Call(
        request,
        shown=b"",
        fingerprint=entry.fingerprint,
        engine_ref=started.engine_ref,
        level=started.level,
        version=version,
    )


def is_waiting(entry: Entry | None) -> bool:
    return entry is not None and entry.state is State.WAITING


def is_interrupted(entry: Entry | None) -> bool:
    return entry is not None and entry.state is State.INTERRUPTED


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
    )


def described(request: ToolRequest) -> dict[str, JsonValue]:
    """All that makes a request the same request: what is asked, and by whom."""
    caller = request.caller
    return {
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
    """Every id and name of a request: they are written as they are, so none may be a secret."""
    caller = request.caller
    return (
        request.request_id,
        request.tool,
        request.run_id,
        request.step_id,
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
