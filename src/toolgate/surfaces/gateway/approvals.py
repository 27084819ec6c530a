"""`/approvals`: list approvals and decide them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from msgspec import UNSET

from toolgate.commands.answers import Code, Problem, Result
from toolgate.contracts import gateway_v1 as wire
from toolgate.contracts.wire import MAX_INT
from toolgate.core.clock import Clock
from toolgate.core.enums import ApprovalStatus, Decision
from toolgate.http.bodies import check_id
from toolgate.journal.journal import Journal
from toolgate.journal.paging import all_rows, newest_events
from toolgate.surfaces.gateway.routes import (
    CURSOR,
    PAGE_LIMIT,
    Access,
    Call,
    Parameter,
    Route,
    page_limit,
    whole,
)
from toolgate.tools.approval_records import ASKED, Approvals
from toolgate.tools.approval_records import COLLECTION as APPROVALS
from toolgate.tools.approval_records import OPEN as OPEN_APPROVALS
from toolgate.tools.approval_records import STREAM as APPROVALS_STREAM
from toolgate.tools.approval_records import decode as decode_approval
from toolgate.tools.approvals import Approval, Question
from toolgate.tools.outcomes import ToolGate

PAGE_CHARACTERS: Final = 4 << 20  # of the calls on a page, which are shown whole; at least one is


@dataclass(frozen=True, slots=True)
class ApprovalRoutes:
    approvals: Approvals
    gate: ToolGate
    journal: Journal
    clock: Clock

    def routes(self) -> Sequence[Route]:
        return (
            Route(
                "GET",
                "/approvals",
                Access.APPROVER,
                "Approvals, newest first; with `status=PENDING` those that wait.",
                self._list,
                wire.ApprovalPage,
                v2="approvals.list",
                query=(
                    Parameter(
                        "status", "only these", {"type": "string", "enum": list(ApprovalStatus)}
                    ),
                    Parameter("limit", "approvals at most", PAGE_LIMIT),
                    CURSOR,
                ),
            ),
            Route(
                "GET",
                "/approvals/{approvalId}",
                Access.APPROVER,
                "One approval.",
                self._get,
                wire.ApprovalSummary,
                v2="approvals.get",
                statuses=(200, 404),
            ),
            Route(
                "POST",
                "/approvals/{approvalId}/decide",
                Access.APPROVER,
                "Approve or reject what waits.",
                self._decide,
                wire.ApprovalSummary,
                v2="approvals.decide",
                takes=wire.ApprovalDecide,
                statuses=(200, 404),
            ),
            Route(
                "POST",
                "/approvals/{approvalId}/reveal",
                Access.OPERATOR,
                "One approval with its hidden characters; this goes on record.",
                self._reveal,
                wire.ApprovalSummary,
                v2="approvals.reveal",
                statuses=(200, 404),
            ),
        )

    async def _list(self, call: Call) -> Result:
        limit = page_limit(call.query)
        status = call.query.get("status", "").upper()
        if status and status not in list(ApprovalStatus):
            raise Problem(Code.INVALID_REQUEST, f"status is one of {', '.join(ApprovalStatus)}")
        if status == ApprovalStatus.PENDING:
            found = await self._waiting(call.query.get("cursor", ""))
        else:
            before = whole(call.query, "cursor", default=0, least=1, most=MAX_INT)
            found = await self._asked(before or None, status, limit + 1)
        items: list[wire.ApprovalSummary] = []
        size = 0
        for _, one in found[:limit]:
            asked = await self.approvals.question(one)
            size += len(asked.summary)
            if items and size > PAGE_CHARACTERS:
                break
            items.append(_approval(asked))
        has_more = len(found) > len(items)
        return Result(wire.ApprovalPage(items, found[len(items) - 1][0] if has_more else UNSET))

    async def _get(self, call: Call) -> Result:
        approval_id = check_id("approvalId", call.path["approvalId"])
        return Result(_approval(await self.gate.approval(approval_id)))

    async def _reveal(self, call: Call) -> Result:
        approval_id = check_id("approvalId", call.path["approvalId"])
        return Result(
            _approval(await self.gate.reveal_approval(approval_id, by=call.caller.principal))
        )

    async def _waiting(self, cursor: str) -> list[tuple[str, Approval]]:
        """The approvals that wait, each with its cursor."""
        now = self.clock.now_ms()
        found: list[tuple[str, Approval]] = []
        async for row in all_rows(self.journal, OPEN_APPROVALS):
            one = decode_approval(row.value).at(now)
            place = f"{one.asked_at:015}/{one.approval_id}"
            if one.status is ApprovalStatus.PENDING and (place < cursor or not cursor):
                found.append((place, one))
        return sorted(found, key=lambda each: each[0], reverse=True)

    async def _asked(
        self, before: int | None, status: str, most: int
    ) -> list[tuple[str, Approval]]:
        """Approvals of any status, each with its cursor; the stream has them in the order of asking."""
        now = self.clock.now_ms()
        found: list[tuple[str, Approval]] = []
        settled: dict[str, Approval] = {}  # whose end was met on the way
        async for event in newest_events(self.journal, APPROVALS_STREAM, before=before):
            one = decode_approval(event.data)
            if event.type != ASKED:
                settled.setdefault(one.approval_id, one)
                continue
            if one.approval_id in settled:
                one = settled.pop(one.approval_id)
            elif row := await self.journal.get(APPROVALS, one.approval_id):
                one = decode_approval(row.value)
            if status in ("", one.at(now).status):
                found.append((str(event.seq), one.at(now)))
                if len(found) == most:
                    break
        return found

    async def _decide(self, call: Call) -> Result:
        wanted: wire.ApprovalDecide = call.body
        approval_id = check_id("approvalId", call.path["approvalId"])
        await self.gate.decide_approval(
            approval_id,
            approve=wanted.decision is Decision.APPROVE,
            decided_by=call.caller,
            reason=wanted.reason,
        )
        return Result(_approval(await self.gate.approval(approval_id)))


def _approval(asked: Question) -> wire.ApprovalSummary:
    approval = asked.approval
    return wire.ApprovalSummary(
        approval_id=approval.approval_id,
        tool=approval.tool,
        args_summary=asked.summary,
        args=UNSET if asked.args is None else asked.args,
        target_id=approval.target or UNSET,
        status=approval.status,
        hidden=approval.hidden,
        revealed=bool(approval.revealed_by),
        created_at=approval.asked_at,
        expires_at=approval.expires_at,
        asked_by=approval.asked_by[0] if approval.asked_by else "",
        reason=approval.reason,
        rule_id=approval.rule_id,
        tenant_id=approval.tenant,
        workspace_id=approval.workspace,
        session_id=approval.session or UNSET,
        run_id=approval.run_id or UNSET,
        request_id=approval.request_id or UNSET,
        decided_by=approval.decided_by or UNSET,
        confirmation=approval.confirmation or UNSET,
        definition_digest=approval.definition or UNSET,
    )
