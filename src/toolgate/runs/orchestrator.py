"""The orchestrator's interface for the ingress: in this process or over HTTP."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from toolgate.access.devices import Identity
from toolgate.core.errors import NotFound, Refused
from toolgate.core.tools import Tool
from toolgate.runs.deliveries import Delivery


@dataclass(frozen=True, slots=True)
class Invocation:
    session_id: str
    user_id: str
    agent_id: str
    role: str
    content: str
    request_id: str = ""
    context: dict[str, Any] = field(default_factory=dict)


class Declined(Refused):
    """An orchestrator behind HTTP answered that it does not take a command."""


class UnknownAgent(NotFound):
    def __init__(self, agent_id: str) -> None:
        super().__init__("agent", agent_id)


class Accepted(NamedTuple):
    """A command about a run was carried out: the run and its state afterwards."""

    run_id: str
    state: str
    already: bool = False  # the run had ended before


class Orchestrator(Protocol):
    """Commands of the ingress; the resulting events go into the session's stream in the journal.

    Each may raise NotFound, Conflict, Declined or Unavailable. `session_id` is the session that asks;
    runs, calls and approvals of other sessions are NotFound.
    """

    is_slow: bool  # an invoke may be answered only when its model begins to speak

    async def invoke(self, invocation: Invocation) -> str:
        """Start a run, durably, and return its id; the same request_id gives the same run."""
        ...

    async def submit_result(
        self, call_id: str, *, session_id: str, run_id: str, ok: bool, result: Any, error: Any
    ) -> Accepted: ...

    async def client_offline(self, run_id: str, call_id: str, *, taken: bool = False) -> None:
        """Fail a call whose devices are gone; `taken` if one of them has received it."""
        ...

    async def decide_approval(
        self,
        approval_id: str,
        *,
        session_id: str,
        run_id: str,
        approve: bool,
        reason: str,
        decided_by: Identity,
    ) -> Accepted: ...

    async def cancel(self, run_id: str, *, session_id: str, reason: str) -> Accepted:
        """Stop a run; an ended run stays as it is."""
        ...

    async def register_tools(self, session_id: str, tools: Sequence[Tool]) -> None:
        """Replace the tools that the session's devices can run."""
        ...

    async def receive(self, session_id: str, delivery: Delivery) -> None:
        """Store a pushed event in the session's stream."""
        ...

    async def session_of(self, run_id: str) -> str:
        """The session a run belongs to; raises NotFound."""
        ...

    async def open_runs(self, session_id: str = "") -> list[tuple[str, str]]:
        """The runs that have not ended (of one session, or of all), as (run id, session id)."""
        ...

    async def snapshot(self, session_id: str) -> list[Delivery]:
        """The session's open runs, and the calls and approvals that they wait for."""
        ...
