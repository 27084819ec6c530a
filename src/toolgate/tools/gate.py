"""The one way in which a tool is ever run, as those who want a tool run see it."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from toolgate.core.tools import Caller, Tool, ToolOutput, ToolRequest
from toolgate.journal.journal import Operation
from toolgate.tools.engine import Update, no_update


class Ran(NamedTuple):
    """Allowed, and run to its end, good or bad."""

    output: ToolOutput


class Denied(NamedTuple):
    """Not run, and never will be under this request id."""

    code: str  # blocked | rejected | approval_timeout
    rule_id: str
    reason: str


class Pending(NamedTuple):
    """Waits for a person; run the same request again once the approval has been decided."""

    approval_id: str
    summary: str
    reason: str
    expires_at: int


Answer = Ran | Denied | Pending


@dataclass(slots=True)
class Rider:
    """What a caller wants written in the commits of its call, so that it needs none of its own.

    `begin` goes with the decision, before the tool runs; what `end` makes of the answer goes with
    the result. A call that waits or was known before takes nothing along: `began` and `ended` tell
    what is on disk.
    """

    begin: Sequence[Operation] = ()
    end: Callable[[Answer], Sequence[Operation]] | None = None
    began: bool = field(default=False, init=False)
    ended: bool = field(default=False, init=False)


Started = Callable[[], Awaitable[None]]  # let through, and about to run

# The stream that tells of approvals: an event's subject is the run that waits, and its data has
# `approval_id`, `run_id` and `status` (PENDING, APPROVED, REJECTED, EXPIRED). The rows of the same
# name have the latest of that, by the approval's id.
APPROVALS: Final = "approvals"
DECIDED: Final = "decided"
EXPIRED: Final = "expired"


async def not_told() -> None:
    """For callers that need not know when a tool starts."""


class ToolPipeline(Protocol):
    async def run(
        self,
        request: ToolRequest,
        *,
        update: Update = no_update,
        started: Started = not_told,
        rider: Rider | None = None,
    ) -> Answer:
        """Run a tool call; the same request again gives the same answer and runs nothing twice.

        `started` is awaited once the call is let through, durably, and before the tool runs.
        Cancelling the task stops the tool.
        """
        ...

    async def check(self, request: ToolRequest) -> Answer:
        """Decide a call that a device of the caller's session will run: `Ran` lets it go there."""
        ...

    async def conclude(self, request_id: str, output: ToolOutput) -> Sequence[Operation]:
        """What puts on record what a device made of a call that `check` let go to it.

        The caller commits it with what it writes itself. There is nothing to write where the call
        has ended already, or was never let go.
        """
        ...

    async def withdraw(self, request_id: str, *, reason: str) -> Sequence[Operation]:
        """What closes the approval that a call waits for, as its run is over.

        The caller commits it with that end. There is nothing to write where none is open.
        """
        ...

    async def decide_approval(
        self, approval_id: str, *, approve: bool, decided_by: str, reason: str
    ) -> str:
        """Decide an open approval and return the request id it was for.

        Raises NotFound where there is none, Conflict where it has been decided or has expired,
        Refused where this person may not, Invalid where their name holds a secret.
        """
        ...

    def visible_tools(self, caller: Caller) -> Sequence[Tool]:
        """The tools that the policy does not simply deny to this caller."""
        ...
