"""Approvals: the call, who asks, why the policy asks, and the decision."""

from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

import msgspec
from starlette.requests import Request

from toolgate.access.devices import AT_CONSOLE
from toolgate.surfaces.console.context import (
    COUNTED,
    Answer,
    ConsoleContext,
    body_of,
    is_run,
)
from toolgate.tools import approval_records as kept
from toolgate.tools.approvals import Approval, Question

SHOWN: Final = 200  # of those that wait, the oldest: each with its whole call
RECENT: Final = 50
LOOKED_AT: Final = 1_000  # events, for the recent ones


class Word(msgspec.Struct):
    approve: bool
    reason: str = ""


def shown_approval(approval: Approval) -> dict[str, Any]:
    return {
        "id": approval.approval_id,
        "request_id": approval.request_id,
        "tool": approval.tool,
        "summary": approval.summary,
        "reason": approval.reason,
        "rule_id": approval.rule_id,
        "policy_version": approval.policy_version,
        "asked_by": approval.asked_by[-1] if approval.asked_by else "executor",
        "asked_at": approval.asked_at,
        "expires_at": approval.expires_at,
        "status": approval.status.value,
        "decided_by": approval.decided_by,
        "confirmation": approval.confirmation,
        "decided_at": approval.decided_at,
        "note": approval.note,
        "run_id": approval.run_id,
        "session": approval.session,
        "target": approval.target,
        "user": approval.user,
        "hidden": approval.hidden,
        "revealed": bool(approval.revealed_by),
    }


def _asked(asked: Question) -> dict[str, Any]:
    return {**shown_approval(asked.approval), "summary": asked.summary, "args": asked.args}


@dataclass(frozen=True, slots=True)
class ApprovalPages:
    context: ConsoleContext

    async def listed(self, _: Request) -> Answer:
        now = self.context.clock.now_ms()
        pending = await self.context.approvals.pending(limit=COUNTED)
        return {
            "now": now,
            "total": len(pending),
            "pending": [await self._with_call(approval) for approval in pending[:SHOWN]],
            "recent": [await self._shown(one) for one in await self._decided()],
        }

    async def waiting(self, _: Request) -> Answer:
        """The number of waiting approvals; every page shows it and asks again at each change."""
        return {"total": len(await self.context.approvals.pending(limit=COUNTED))}

    async def _decided(self) -> list[Approval]:
        """The approvals decided last, by time: ids do not say it, because services choose their own."""
        events = await self.context.journal.read_back(kept.STREAM, limit=LOOKED_AT)
        decided = (kept.decode(event.data) for event in events if event.type != kept.ASKED)
        return [*islice(decided, RECENT)]

    async def one(self, request: Request) -> Answer:
        approval = await self.context.approvals.get(request.path_params["id"])
        return {"now": self.context.clock.now_ms(), **await self._with_call(approval)}

    async def reveal(self, request: Request) -> Answer:
        """The arguments with what is hidden in them; this goes on record."""
        return _asked(
            await self.context.gate.reveal_approval(
                request.path_params["id"], by=AT_CONSOLE.principal
            )
        )

    async def decide(self, request: Request) -> Answer:
        word = await body_of(request, Word)
        approval = await self.context.approvals.get(request.path_params["id"])
        await self.context.gate.decide_approval(
            approval.approval_id, approve=word.approve, decided_by=AT_CONSOLE, reason=word.reason
        )
        return shown_approval(await self.context.approvals.get(approval.approval_id))

    async def _with_call(self, approval: Approval) -> dict[str, Any]:
        """The approval, with the call as an approver sees it."""
        asked = await self.context.approvals.question(approval)
        return {**_asked(asked), "run_id": (await self._shown(approval))["run_id"]}

    async def _shown(self, approval: Approval) -> dict[str, Any]:
        """The approval, with its run only if that has a page."""
        run_id = approval.run_id if await is_run(self.context.journal, approval.run_id) else ""
        return {**shown_approval(approval), "run_id": run_id}
