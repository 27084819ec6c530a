"""Approvals in the journal: one row each, by the request it is for.

An approval's id is made from the request's, so that a retry finds the same one. A pending row is
due when it expires; `on_due` is the handler for that deadline.
"""

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from toolgate.domain.approvals import (
    DEFAULT_TTL_MS,
    Approval,
    ApprovalStatus,
    askers,
    binding_of,
)
from toolgate.domain.errors import Conflict, NotFound
from toolgate.domain.policy.model import Decision
from toolgate.domain.tools import ToolRequest
from toolgate.ports.clock import Clock
from toolgate.ports.journal import Append, Journal, NewEvent, Operation, Put, Row

COLLECTION: Final = "approvals"
STREAM: Final = "approvals"

decode: Final = msgspec.json.Decoder(Approval).decode
encode: Final = msgspec.json.Encoder().encode

Changed = Callable[[Approval], Sequence[Operation]]


def nothing_else(_: Approval) -> Sequence[Operation]:
    return ()


class Approvals:
    """`changed` gives what is committed together with each change: its evidence and audit."""

    def __init__(
        self,
        journal: Journal,
        *,
        clock: Clock,
        ttl_ms: int = DEFAULT_TTL_MS,
        changed: Changed = nothing_else,
    ) -> None:
        self._journal = journal
        self._clock = clock
        self._ttl_ms = ttl_ms
        self._changed = changed

    async def get(self, approval_id: str) -> Approval:
        """As it is now; raises NotFound."""
        row = await self._row(approval_id)
        return decode(row.value).at(self._clock.now_ms())

    async def pending(self, *, tenant: str = "", limit: int = 1000) -> list[Approval]:
        """Those that wait for a person, oldest first."""
        now = self._clock.now_ms()
        found: list[Approval] = []
        after = ""
        while rows := await self._journal.scan(COLLECTION, after=after):
            after = rows[-1].key
            approvals = (decode(row.value).at(now) for row in rows)
            found += [
                approval
                for approval in approvals
                if approval.status is ApprovalStatus.PENDING and tenant in {"", approval.tenant}
            ]
        return sorted(found, key=lambda approval: approval.asked_at)[:limit]

    async def ask(self, request: ToolRequest, decision: Decision, *, summary: str) -> Approval:
        """The approval for this call: the one there is, or a new one, durably."""
        approval_id = approval_id_of(request.request_id)
        known = await self._journal.get(COLLECTION, approval_id)
        if known is not None:
            return decode(known.value).at(self._clock.now_ms())
        now = self._clock.now_ms()
        approval = Approval(
            approval_id=approval_id,
            request_id=request.request_id,
            binding=binding_for(request, decision),
            tool=request.tool,
            summary=summary,
            reason=decision.reason,
            rule_id=decision.rule_id,
            policy_version=decision.policy_version,
            asked_by=askers(request.caller),
            asked_at=now,
            expires_at=now + self._ttl_ms,
            tenant=request.caller.tenant,
            workspace=request.caller.workspace,
            session=request.caller.session,
            run_id=request.run_id,
        )
        try:
            await self._journal.commit(*self._write(approval, expected=0))
        except Conflict:  # asked elsewhere at the same time
            return await self.get(approval_id)
        return approval

    async def decide(
        self, approval_id: str, *, approve: bool, decided_by: str, reason: str = ""
    ) -> Approval:
        """Raises NotFound, Conflict where it is no longer open, Refused where this one may not."""
        row = await self._row(approval_id)
        decided = decode(row.value).decide(
            approve=approve, decided_by=decided_by, now=self._clock.now_ms(), note=reason
        )
        await self._journal.commit(*self._write(decided, expected=row.version))
        return decided

    async def use(self, request: ToolRequest, decision: Decision) -> Operation:
        """The write that uses the approval up, to be committed with the start of the call.

        Raises Refused where it is not for exactly this call, or has been used.
        """
        row = await self._row(approval_id_of(request.request_id))
        used = decode(row.value).use(binding_for(request, decision), now=self._clock.now_ms())
        return Put(COLLECTION, used.approval_id, encode(used), expected=row.version)

    async def on_due(self, row: Row) -> str:
        """Write down that an approval has expired; returns the request it was for."""
        expired = decode(row.value).at(self._clock.now_ms())
        if expired.status is ApprovalStatus.EXPIRED:
            try:
                await self._journal.commit(*self._write(expired, expected=row.version))
            except Conflict:  # decided in the last moment
                return expired.request_id
        return expired.request_id

    async def _row(self, approval_id: str) -> Row:
        row = await self._journal.get(COLLECTION, approval_id)
        if row is None:
            raise NotFound("approval", approval_id)
        return row

    def _write(self, approval: Approval, *, expected: int) -> list[Operation]:
        pending = approval.status is ApprovalStatus.PENDING
        value = encode(approval)
        event = NewEvent(f"approval_{approval.status.lower()}", value, approval.approval_id)
        return [
            Put(
                COLLECTION,
                approval.approval_id,
                value,
                due=approval.expires_at if pending else None,
                expected=expected,
            ),
            Append(STREAM, [event]),
            *self._changed(approval),
        ]


def approval_id_of(request_id: str) -> str:
    return f"apr_{request_id}"


def binding_for(request: ToolRequest, decision: Decision) -> str:
    return binding_of(
        request.tool,
        request.args,
        target=request.target_id,
        policy_version=decision.policy_version,
    )
