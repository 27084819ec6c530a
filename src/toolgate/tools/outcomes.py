"""The gate as its callers see it: what `begin` answers, and how an allowed call is run and finished.

    match await gate.begin(request, also=begun):
        case Denied() as denied: ...
        case Pending() as pending: ...       # begin again with the same id when a person has decided
        case Allowed() as call:
            output = await call.run(update)
            await call.finish(output, also=ended(output))

`also` adds the caller's own operations to the gate's commit. A known call (`known`) was decided in an
earlier `begin`: its commit is on disk, so `also` of that `begin` was not committed.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

import msgspec

from toolgate.access.devices import Identity
from toolgate.core.enums import CallStatus
from toolgate.core.rates import Spent
from toolgate.core.tools import Caller, JsonValue, Tool, ToolOutput, ToolRequest
from toolgate.journal.journal import Operation
from toolgate.policy.model import Effect
from toolgate.policy.refusal_texts import (
    CAPABILITY_EXPIRED,
    CAPABILITY_OFFLINE,
    OUTSIDE_SCOPE,
    RATE_LIMITED,
    refusal_text,
)
from toolgate.tools.approvals import Question
from toolgate.tools.engine import Update, no_update
from toolgate.tools.responses import Response

# The stream of approvals: an event's subject is the run that waits, and its data has `approval_id`,
# `run_id` and `status` (PENDING, APPROVED, REJECTED, EXPIRED). The rows of the same name hold the
# latest of that, by the approval's id.
APPROVALS: Final = "approvals"
DECIDED: Final = "decided"
EXPIRED: Final = "expired"


class Denied(NamedTuple):
    """Not run, and never will be under this id; but one that came too soon (`spent`) may be begun again."""

    code: str  # blocked | rejected | approval_timeout | rate_limited
    rule_id: str
    reason: str
    known: bool = False
    response: Response | None = None
    tool: str = ""
    spent: Spent | None = None  # of a rate limit that was reached

    @property
    def text(self) -> str:
        """The reason, the rule, and what would change it: the same at every surface."""
        return refusal_text(
            tool=self.tool, rule_id=self.rule_id, reason=self.reason, effect=Effect.DENY
        )


class Pending(NamedTuple):
    """Waits for a person."""

    approval_id: str
    summary: str
    reason: str
    expires_at: int
    rule_id: str = ""
    known: bool = False
    response: Response | None = None
    tool: str = ""
    args: Mapping[str, JsonValue] | None = None  # as they may be stored
    hidden: int = 0  # characters that an approver does not see

    @property
    def text(self) -> str:
        """The reason, the rule, and where the approval is decided: the same at every surface."""
        return refusal_text(
            tool=self.tool,
            rule_id=self.rule_id,
            reason=self.reason,
            effect=Effect.ASK,
            approval_id=self.approval_id,
        )


class Allowed(Protocol):
    """A call that the policy, and where asked a person, has let through."""

    @property
    def known(self) -> bool: ...

    @property
    def response(self) -> Response | None:
        """The response as the evidence keeps it, once the call is finished."""
        ...

    async def run(self, update: Update = no_update) -> ToolOutput:
        """Run the tool, or wait for the run under way, or return the known output.

        Cancelling stops the tool unless another caller waits for it too. The cancelled caller still
        gets an output, so that it can finish the call; `finish` then raises CancelledError.
        """
        ...

    async def finish(self, output: ToolOutput, *, also: Sequence[Operation] = ()) -> None:
        """Commit the output, its evidence and the caller's operations."""
        ...


# The rules by which a call is not admitted, whatever the policy says of it.
NOT_ADMITTED: Final = frozenset(
    {OUTSIDE_SCOPE, RATE_LIMITED, CAPABILITY_OFFLINE, CAPABILITY_EXPIRED}
)

Begun = Denied | Pending | Allowed
Also = Callable[[Begun], Sequence[Operation]]


def nothing_also(_: Begun) -> Sequence[Operation]:
    return ()


class ToolGate(Protocol):
    async def begin(
        self, request: ToolRequest, *, also: Also = nothing_also, due: int | None = None
    ) -> Begun:
        """Decide a call and record the decision; the same request again gives the same answer.

        With `due` a device of the caller's session runs it: the call stays open until `finish_call`
        or `abandon`, and its row is due at that time (Unix ms). Raises Conflict if the caller's own
        operations conflict, Invalid for a request that cannot be read.
        """
        ...

    async def authorize(self, request: ToolRequest) -> Denied | None:
        """Decide a call that only reads and that the caller answers itself: None where it may.

        A refusal is recorded like that of any call. Nobody is asked: what a person would have to
        approve is refused.
        """
        ...

    async def finish_call(
        self,
        call_id: str,
        output: ToolOutput,
        *,
        status: CallStatus | None = None,
        also: Sequence[Operation] = (),
    ) -> None:
        """Finish a call that a device has run; if it is not open, commit `also` alone.

        `status` is the final state, where the output does not say it.
        """
        ...

    async def abandon(
        self,
        waiting: Sequence[str],
        dispatched: Mapping[str, ToolOutput],
        *,
        reason: str,
        also: Sequence[Operation],
    ) -> None:
        """Close calls whose caller has ended, in one commit with the caller's operations."""
        ...

    async def run_of(self, call_id: str) -> str:
        """The id of the run that a call belongs to; NotFound if the gate has no such call."""
        ...

    async def approval(self, approval_id: str) -> Question:
        """An approval at this time, as an approver sees it; raises NotFound."""
        ...

    async def reveal_approval(self, approval_id: str, *, by: str) -> Question:
        """What is hidden in a call too, for the operator; it goes on record.

        Raises NotFound, Conflict if the approval is no longer open.
        """
        ...

    async def decide_approval(
        self, approval_id: str, *, approve: bool, decided_by: Identity, reason: str
    ) -> str:
        """Decide an open approval and return the id of the call it is for.

        Raises NotFound where there is none, Conflict where it has been decided, has expired or no
        longer counts under the policy, Refused where this person may not, HiddenArguments where they
        approve what nobody has seen, Invalid where their name holds a secret.
        """
        ...

    def visible_tools(self, caller: Caller) -> Sequence[Tool]:
        """The tools that the policy might allow to this caller."""
        ...


class Ran(msgspec.Struct, frozen=True):
    """The answer of a call that was allowed and has ended."""

    output: ToolOutput


Answer = Denied | Ran


async def call_tool(
    gate: ToolGate, request: ToolRequest, *, update: Update = no_update
) -> Denied | Pending | Ran:
    """Begin, run and finish a call, for callers that add nothing to its commits."""
    match await gate.begin(request):
        case Denied() | Pending() as answer:
            return answer
        case allowed:
            output = await allowed.run(update)
            await allowed.finish(output)
            return Ran(output)
