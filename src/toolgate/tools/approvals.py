"""An approval: asked once, decided once by someone else, used once, for one exact call.

It is bound to the hash of the tool, its arguments, its place and the rule that asked: if one of these
changes, the approval does not count. A call with hidden characters is approved only after the operator
has revealed them; it can always be rejected.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Final, NamedTuple

from toolgate.access.devices import Identity, Who, is_by_program
from toolgate.core.enums import ApprovalStatus
from toolgate.core.errors import Conflict, Refused
from toolgate.core.tools import Caller, JsonValue
from toolgate.policy.model import Effect
from toolgate.policy.refusal_texts import refusal_text

DEFAULT_TTL_MS: Final = 10 * 60 * 1000
# `decided_by` of an approval that was closed without an answer or after it: the policy, the place or
# the tool has changed, or its run has ended.
POLICY: Final = "policy"
RUN: Final = "run"
SELF: Final = "self"
USE_WINDOW_MS: Final = 15 * 60 * 1000  # how long after the decision the call may still start


TRANSITIONS: Final[dict[ApprovalStatus, frozenset[ApprovalStatus]]] = {
    ApprovalStatus.PENDING: frozenset(
        {ApprovalStatus.APPROVED, ApprovalStatus.REJECTED, ApprovalStatus.EXPIRED}
    ),
    ApprovalStatus.APPROVED: frozenset({ApprovalStatus.REJECTED}),  # overtaken by the policy
    ApprovalStatus.REJECTED: frozenset(),
    ApprovalStatus.EXPIRED: frozenset(),
}


class MayNotDecide(Refused):
    """Someone else must decide this approval."""


class HiddenArguments(Refused):
    """The operator must reveal the hidden characters of the call first; the approval stays open."""


@dataclass(frozen=True, slots=True)
class Approval:
    approval_id: str
    request_id: str
    binding: str
    tool: str
    summary: str  # for the person who decides, without secrets
    reason: str
    rule_id: str
    policy_version: str
    asked_by: tuple[str, ...]  # every name of the caller
    asked_at: int
    expires_at: int
    tenant: str = ""
    workspace: str = ""
    session: str = ""
    run_id: str = ""
    status: ApprovalStatus = ApprovalStatus.PENDING
    decided_by: str = ""
    decided_at: int = 0
    note: str = ""
    used: bool = False
    confirmation: str = ""  # `self`: the operator decided a call of their own
    rule_digest: str = ""  # of the rule that asked
    definition: str = ""  # the digest of the tool's pinned definition
    target: str = ""  # where it would run, if the request says it
    user: str = ""  # for whom an agent asks
    hidden: int = 0  # characters of the arguments that an approver does not see
    revealed_by: str = ""  # who has seen them
    revealed_at: int = 0

    @property
    def text(self) -> str:
        """The text of a call that waits for this approval (`refusal_text`)."""
        return refusal_text(
            tool=self.tool,
            rule_id=self.rule_id,
            reason=self.reason,
            effect=Effect.ASK,
            approval_id=self.approval_id,
        )

    def at(self, now: int) -> "Approval":
        """The approval at this time: expired if nobody has decided in time."""
        if self.status is ApprovalStatus.PENDING and now >= self.expires_at:
            return self._to(ApprovalStatus.EXPIRED)
        return self

    def decide(
        self, *, approve: bool, decided_by: Identity, now: int, note: str = ""
    ) -> "Approval":
        """Raises Conflict if it is no longer open, MayNotDecide if this one may not decide.

        The operator may confirm their own call, at the console or a terminal.
        """
        current = self.at(now)
        if current.status is not ApprovalStatus.PENDING:
            raise Conflict(f"approval {self.approval_id} is {current.status.lower()} already")
        own = decided_by.name in self.asked_by
        if own and decided_by.who is not Who.OPERATOR:
            raise MayNotDecide("nobody decides what they asked for themselves")
        if approve and self.hidden and not self.revealed_by:
            raise HiddenArguments(
                f"{self.hidden} characters of this call are hidden; the operator must reveal them"
                " before it can be approved: in the console, or with `toolgate approvals show"
                f" {self.approval_id} --reveal`"
            )
        verdict = ApprovalStatus.APPROVED if approve else ApprovalStatus.REJECTED
        return replace(
            current._to(verdict),
            decided_by=decided_by.principal,
            decided_at=now,
            note=note,
            confirmation=SELF if own else "",
        )

    def reveal(self, *, by: str, now: int) -> "Approval":
        """Note who has seen the hidden characters. Raises Conflict if it is no longer open."""
        current = self.at(now)
        if current.status is not ApprovalStatus.PENDING:
            raise Conflict(f"approval {self.approval_id} is {current.status.lower()} already")
        return replace(current, revealed_by=by, revealed_at=now)

    def close(self, *, by: str, now: int, note: str) -> "Approval":
        """Reject without an answer: the call will not run. Raises Conflict if no longer open."""
        current = self.at(now)
        if current.status is not ApprovalStatus.PENDING:
            raise Conflict(f"approval {self.approval_id} is {current.status.lower()} already")
        rejected = current._to(ApprovalStatus.REJECTED)
        return replace(rejected, decided_by=by, decided_at=now, note=note)

    def overtake(self, *, now: int, note: str) -> "Approval":
        """Reject an approved call that may not run any more; raises Conflict if it has run."""
        if self.used:
            raise Conflict(f"approval {self.approval_id} has been used")
        rejected = self._to(ApprovalStatus.REJECTED)
        return replace(rejected, decided_by=POLICY, decided_at=now, note=note)

    def use(self, binding: str, *, now: int) -> "Approval":
        """Raises Refused unless it is for exactly this call and was not used before."""
        if self.status is not ApprovalStatus.APPROVED:
            raise Refused(f"approval {self.approval_id} is {self.status.lower()}")
        if binding != self.binding:
            raise Refused(
                f"approval {self.approval_id} is for another call, place or rule than this one"
            )
        if self.used:
            raise Refused(f"approval {self.approval_id} has been used")
        if now > self.decided_at + USE_WINDOW_MS:
            raise Refused(f"approval {self.approval_id} is too old")
        return replace(self, used=True)

    def _to(self, status: ApprovalStatus) -> "Approval":
        if status not in TRANSITIONS[self.status]:
            raise Conflict(f"approval {self.approval_id} is {self.status.lower()} already")
        return replace(self, status=status)


def binding_of(tool: str, args: Mapping[str, JsonValue], *, target: str, rule: str) -> str:
    """The hash of all that an approval covers; `rule` is the digest of the rule that asked."""
    parts = [tool, dict(args), target, rule]
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return sha256(text.encode()).hexdigest()


def askers(caller: Caller) -> tuple[str, ...]:
    """The names of a caller, none of which may approve the caller's own call.

    An agent asks for its own calls, so the session's user may approve them; a device, agent or
    service that started the run may not. Without an agent both the device and the user ask.
    """
    if caller.agent:
        names = (caller.agent, f"agent:{caller.agent}")
        if is_by_program(caller.user, caller.session):
            return (*names, caller.user, f"user:{caller.user}")
        return names
    named = (("device", caller.device), ("user", caller.user))
    return tuple(name for kind, who in named if who for name in (who, f"{kind}:{who}"))


class Question(NamedTuple):
    """An approval and its call, as an approver sees it; `args` is None where nothing has them."""

    approval: Approval
    summary: str
    args: dict[str, JsonValue] | None
