"""`/approvals`: list approvals and decide them."""

from collections.abc import Sequence
from dataclasses import dataclass

from msgspec import UNSET

from toolgate.access.devices import Identity, Who
from toolgate.access.refusals import Forbidden
from toolgate.commands.answers import Code, Problem, Result
from toolgate.commands.planners.tool import LevelOf
from toolgate.contracts import gateway_v1 as wire
from toolgate.contracts.wire import MAX_INT
from toolgate.core.clock import Clock
from toolgate.core.enums import ApprovalStatus, Decision, Level
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
from toolgate.tools.approvals import Approval
from toolgate.tools.outcomes import ToolGate


@dataclass(frozen=True, slots=True)
class ApprovalRoutes:
    approvals: Approvals
    gate: ToolGate
    journal: Journal
    clock: Clock
    level_of: LevelOf

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
        page = wire.ApprovalPage(
            items=[_approval(one) for _, one in found[:limit]],
            next_cursor=found[limit - 1][0] if len(found) > limit else UNSET,
        )
        return Result(page)

    async def _get(self, call: Call) -> Result:
        approval_id = check_id("approvalId", call.path["approvalId"])
        return Result(_approval(await self.approvals.get(approval_id)))

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
        approval = await self.approvals.get(approval_id)
        self._check(call.caller, approval)
        await self.gate.decide_approval(
            approval_id,
            approve=wanted.decision is Decision.APPROVE,
            decided_by=call.caller.name,
            reason=wanted.reason,
        )
        return Result(_approval(await self.approvals.get(approval_id)))

    def _check(self, identity: Identity, approval: Approval) -> None:
        """Refuse a device that decides a call above its own level."""
        if identity.who is Who.OPERATOR:
            return
        level = self.level_of(approval.tool) or Level.WRITE
        if level.rank > identity.scope.tools.rank:
            raise Forbidden(f"{approval.tool} is of level {level}, above this device's own")


def _approval(approval: Approval) -> wire.ApprovalSummary:
    return wire.ApprovalSummary(
        approval_id=approval.approval_id,
        tool=approval.tool,
        args_summary=approval.summary,
        status=approval.status,
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
