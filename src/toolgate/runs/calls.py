"""A tool call of a run: the states it goes through, and how one looks on the way."""

from dataclasses import dataclass
from typing import Any, Final

from toolgate.core.enums import CallStatus

C = CallStatus
TRANSITIONS: Final[dict[CallStatus, frozenset[CallStatus]]] = {
    C.CREATED: frozenset({C.POLICY_CHECKED}),
    C.POLICY_CHECKED: frozenset({C.BLOCKED, C.WAITING_APPROVAL, C.DISPATCHED}),
    C.BLOCKED: frozenset(),
    C.WAITING_APPROVAL: frozenset({C.REJECTED, C.DISPATCHED, C.BLOCKED, C.TIMEOUT}),
    C.REJECTED: frozenset(),
    C.DISPATCHED: frozenset({C.RUNNING, C.SUCCEEDED, C.FAILED, C.TIMEOUT}),
    C.RUNNING: frozenset({C.SUCCEEDED, C.FAILED, C.TIMEOUT}),
    C.SUCCEEDED: frozenset(),
    C.FAILED: frozenset(),
    C.TIMEOUT: frozenset(),
}
TERMINAL: Final = frozenset(status for status, after in TRANSITIONS.items() if not after)


@dataclass(frozen=True, slots=True)
class CallState:
    call_id: str
    tool: str
    args: dict[str, Any]
    status: CallStatus = CallStatus.CREATED
    client: bool = False  # runs on a device of the session
    deadline: int = 0  # Unix ms; 0 where it does not wait for a device
    approval_id: str = ""
    output: str = ""  # what the agent is told
    error_code: str = ""

    @property
    def ended(self) -> bool:
        return self.status in TERMINAL
