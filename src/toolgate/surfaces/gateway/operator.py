"""The operator's routes beside the seed's: targets, audit, runs, approvals, policy."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from msgspec import UNSET, UnsetType

from toolgate.admission.audit import Trail
from toolgate.admission.refusals import Forbidden
from toolgate.contracts import gateway_v1 as wire
from toolgate.contracts.wire import MAX_INT, to_iso_ms
from toolgate.domain.approvals import Approval, ApprovalStatus
from toolgate.domain.devices import Identity, Who
from toolgate.domain.ids import is_path_safe
from toolgate.domain.policy.model import Policy
from toolgate.domain.targets import Change, Target
from toolgate.domain.tools import Level
from toolgate.execution.approvals import ASKED, Approvals
from toolgate.execution.approvals import COLLECTION as APPROVALS
from toolgate.execution.approvals import OPEN as OPEN_APPROVALS
from toolgate.execution.approvals import STREAM as APPROVALS_STREAM
from toolgate.execution.approvals import decode as decode_approval
from toolgate.execution.audit import AuditLog, AuditQuery
from toolgate.execution.simulation import Simulation
from toolgate.execution.targets import Targets
from toolgate.orchestration import records
from toolgate.orchestration.runs import Runs
from toolgate.ports.clock import Clock
from toolgate.ports.journal import Journal, Operation
from toolgate.ports.pipeline import ToolPipeline
from toolgate.surfaces.gateway.answers import Code, Problem, Result
from toolgate.surfaces.gateway.bodies import check_id
from toolgate.surfaces.gateway.command_tool import LevelOf
from toolgate.surfaces.gateway.routes import Access, Call, Parameter, Route, whole

DEFAULT_PAGE: Final = 50
MAX_PAGE: Final = 500
_LIMIT: Final = {"type": "integer", "minimum": 1, "maximum": MAX_PAGE}
_CURSOR: Final = Parameter("cursor", "from below this one, as the last answer said")


class PolicyInForce(Protocol):
    text: str
    current: Policy

    async def replace(
        self, text: str, *, over: str, first: Callable[[Policy], Awaitable[None]]
    ) -> Policy:
        """Raises InvalidPolicy, Conflict where another than `over` is in force, what `first` raises,
        which is awaited just before the change; changes nothing then."""
        ...


@dataclass(frozen=True, slots=True)
class TargetRoutes:
    targets: Targets
    trail: Trail
    learn: Callable[[str], None]  # a secret that must not be written down anywhere

    def routes(self) -> Sequence[Route]:
        path = "/execution-targets/{targetId}"
        one = wire.ExecutionTarget
        return (
            Route(
                "GET",
                "/execution-targets",
                Access.OPERATOR,
                "The execution targets, without their tokens.",
                self._list,
                wire.TargetList,
                v2="executionTargets.list",
            ),
            Route(
                "GET",
                path,
                Access.OPERATOR,
                "One execution target.",
                self._get,
                one,
                v2="executionTargets.get",
                statuses=(200, 404),
            ),
            Route(
                "PUT",
                path,
                Access.OPERATOR,
                "Make an execution target, or change what is given.",
                self._put,
                one,
                v2="executionTargets.put",
                takes=wire.TargetUpsert,
            ),
            Route(
                "DELETE",
                path,
                Access.OPERATOR,
                "Remove an execution target.",
                self._delete,
                one,
                v2="executionTargets.delete",
                statuses=(200, 404),
            ),
        )

    async def _list(self, _: Call) -> Result:
        return Result(wire.TargetList(items=[_target(t) for t in await self.targets.list()]))

    async def _get(self, call: Call) -> Result:
        return Result(_target(await self.targets.get(_target_id(call))))

    async def _put(self, call: Call) -> Result:
        wanted: wire.TargetUpsert = call.body
        target_id = _target_id(call)
        token = _given(wanted.auth_token)
        if token:
            self.learn(token)
        change = Change(
            tenant=_given(wanted.tenant_id),
            workspace=_given(wanted.workspace_id),
            kind=_given(wanted.kind),
            endpoint=_given(wanted.endpoint),
            auth_token=token,
            is_default=None if isinstance(wanted.is_default, UnsetType) else wanted.is_default,
            enabled=None if isinstance(wanted.enabled, UnsetType) else wanted.enabled,
            config=None if isinstance(wanted.config, UnsetType) else wanted.config,
        )
        note = self._note("target.upserted", call, target_id)
        target = await self.targets.upsert(target_id, change, also=note)
        return Result(_target(target))

    async def _delete(self, call: Call) -> Result:
        target_id = _target_id(call)
        target = await self.targets.get(target_id)
        await self.targets.delete(target_id, also=self._note("target.deleted", call, target_id))
        return Result(_target(target))

    def _note(self, action: str, call: Call, target_id: str) -> Sequence[Operation]:
        return self.trail.note(action, actor=call.caller.name, resource=("target", target_id))


def _target_id(call: Call) -> str:
    target_id = call.path["targetId"]
    if not is_path_safe(target_id):
        raise Problem(Code.INVALID_REQUEST, "targetId has 1 to 128 of A-Z a-z 0-9 . _ -")
    return target_id


def _given(value: str | UnsetType | None) -> str | None:
    """Left out: None, which changes nothing. Null: empty, which takes it away."""
    if isinstance(value, UnsetType):
        return None
    return "" if value is None else value


def _target(target: Target) -> wire.ExecutionTarget:
    return wire.ExecutionTarget(
        target_id=target.id,
        tenant_id=target.tenant,
        kind=wire.TargetKind(target.kind),
        has_auth_token=bool(target.auth_token),
        is_default=target.is_default,
        enabled=target.enabled,
        config=dict(target.config),
        version=target.version,
        updated_at=to_iso_ms(target.updated_at),
        workspace_id=target.workspace or UNSET,
        endpoint=target.endpoint or UNSET,
    )


@dataclass(frozen=True, slots=True)
class AuditRoutes:
    audit: AuditLog

    def routes(self) -> Sequence[Route]:
        texts = ("tenantId", "workspaceId", "action", "from", "to", "deviceId", "runId", "decision")
        count = {"type": "integer", "minimum": 1}
        return (
            Route(
                "GET",
                "/audit/query",
                Access.OPERATOR,
                "The audit log, newest first.",
                self._query,
                wire.AuditPage,
                v2="audit.query",
                query=(
                    *(Parameter(name, _AUDIT_MEANINGS[name]) for name in texts),
                    Parameter("limit", "rows at most", {**count, "maximum": wire.MAX_AUDIT_ROWS}),
                    Parameter("cursor", "only rows with a smaller id", count),
                ),
            ),
        )

    async def _query(self, call: Call) -> Result:
        return Result(await self.audit.query(AuditQuery.parse(call.query)))


_AUDIT_MEANINGS: Final = {
    "tenantId": "only this tenant's",
    "workspaceId": "only this workspace's",
    "action": "only this action, exactly",
    "from": "not before this time (ISO 8601)",
    "to": "not after this time (ISO 8601)",
    "deviceId": "only this device's",
    "runId": "only this run's",
    "decision": "only what was decided so",
}


@dataclass(frozen=True, slots=True)
class RunRoutes:
    journal: Journal

    def routes(self) -> Sequence[Route]:
        return (
            Route(
                "GET",
                "/runs",
                Access.OPERATOR,
                "Runs of agents, newest first.",
                self._list,
                wire.RunPage,
                v2="runs.list",
                query=(Parameter("limit", "runs at most", _LIMIT), _CURSOR),
            ),
        )

    async def _list(self, call: Call) -> Result:
        limit = whole(call.query, "limit", default=DEFAULT_PAGE, least=1, most=MAX_PAGE)
        rows = await self.journal.scan(
            records.RUNS, after=call.query.get("cursor", ""), limit=limit + 1, newest_first=True
        )
        lines = [records.decode_run_line(row.value) for row in rows[:limit]]
        items = [
            wire.RunSummary(
                run_id=line.run_id,
                session_id=line.session_id,
                agent_id=line.agent_id,
                status=line.status,
                created_at=line.started_at,
                updated_at=line.ended_at or line.started_at,
            )
            for line in lines
        ]
        more = len(rows) > limit
        return Result(wire.RunPage(items=items, next_cursor=items[-1].run_id if more else UNSET))


@dataclass(frozen=True, slots=True)
class ApprovalRoutes:
    approvals: Approvals
    pipeline: ToolPipeline
    runs: Runs
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
                    Parameter("limit", "approvals at most", _LIMIT),
                    _CURSOR,
                ),
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
        limit = whole(call.query, "limit", default=DEFAULT_PAGE, least=1, most=MAX_PAGE)
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

    async def _waiting(self, cursor: str) -> list[tuple[str, Approval]]:
        """Those that wait, each behind its cursor: they are few, whatever was decided before."""
        now, after = self.clock.now_ms(), ""
        found: list[tuple[str, Approval]] = []
        while rows := await self.journal.scan(OPEN_APPROVALS, after=after):
            after = rows[-1].key
            for one in (decode_approval(row.value).at(now) for row in rows):
                place = f"{one.asked_at:015}/{one.approval_id}"
                if one.status is ApprovalStatus.PENDING and (place < cursor or not cursor):
                    found.append((place, one))
        return sorted(found, key=lambda each: each[0], reverse=True)

    async def _asked(
        self, before: int | None, status: str, most: int
    ) -> list[tuple[str, Approval]]:
        """Of any status, each behind its cursor. Their stream has them as they were asked for,
        their ids do not."""
        now = self.clock.now_ms()
        found: list[tuple[str, Approval]] = []
        settled: dict[str, Approval] = {}  # whose end was met on the way
        while page := await self.journal.read_back(APPROVALS_STREAM, before=before):
            before = page[-1].seq
            for event in page:
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
                        return found
        return found

    async def _decide(self, call: Call) -> Result:
        wanted: wire.ApprovalDecide = call.body
        approval_id = check_id("approvalId", call.path["approvalId"])
        approval = await self.approvals.get(approval_id)
        self._check(call.caller, approval)
        approve = wanted.decision is wire.Decision.APPROVE
        # Every call has a run, but of some it is only a name: of a schedule's, or an executor's.
        if await self.journal.get(records.RUN_APPROVALS, approval_id) is not None:
            # A run waits for it: it is the orchestrator that lets the run go on.
            await self.runs.decide_approval(
                approval_id,
                session_id="",
                run_id=approval.run_id,
                approve=approve,
                reason=wanted.reason,
                decided_by=call.caller.name,
            )
        else:
            await self.pipeline.decide_approval(
                approval_id, approve=approve, decided_by=call.caller.name, reason=wanted.reason
            )
        return Result(_approval(await self.approvals.get(approval_id)))

    def _check(self, identity: Identity, approval: Approval) -> None:
        """A device lets others do no more than it may do itself."""
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
        run_id=approval.run_id or UNSET,
        request_id=approval.request_id or UNSET,
        decided_by=approval.decided_by or UNSET,
    )


@dataclass(frozen=True, slots=True)
class PolicyRoutes:
    policy: PolicyInForce
    simulation: Simulation
    trail: Trail
    journal: Journal

    def routes(self) -> Sequence[Route]:
        return (
            Route(
                "GET",
                "/policy",
                Access.OPERATOR,
                "The policy in force.",
                self._get,
                wire.PolicyView,
                v2="policy.get",
            ),
            Route(
                "PUT",
                "/policy",
                Access.OPERATOR,
                "Put another policy in force, if it is sound.",
                self._put,
                wire.PolicyView,
                v2="policy.put",
                takes=wire.PolicyPut,
            ),
            Route(
                "POST",
                "/policy/simulate",
                Access.OPERATOR,
                "Which past calls a policy would have decided otherwise.",
                self._simulate,
                wire.PolicySimulated,
                v2="policy.simulate",
                takes=wire.PolicySimulate,
            ),
        )

    async def _get(self, _: Call) -> Result:
        return Result(self._view())

    async def _put(self, call: Call) -> Result:
        wanted: wire.PolicyPut = call.body

        async def note(policy: Policy) -> None:
            row = self.trail.note(
                "policy.changed",
                actor=call.caller.name,
                resource=("policy", policy.name),
                metadata={"version": policy.version},
            )
            await self.journal.commit(*row)

        await self.policy.replace(wanted.text, over=wanted.over, first=note)
        return Result(self._view())

    async def _simulate(self, call: Call) -> Result:
        wanted: wire.PolicySimulate = call.body
        limit = MAX_PAGE if isinstance(wanted.limit, UnsetType) else min(wanted.limit, 10_000)
        checked, changes = await self.simulation.run(wanted.text, limit=limit)
        changed = [
            wire.PolicyChange(
                request_id=one.recorded.call.request_id,
                tool=one.recorded.call.tool,
                was=one.recorded.effect,
                would_be=one.decision.effect,
                rule_id=one.decision.rule_id,
            )
            for one in changes
        ]
        return Result(wire.PolicySimulated(checked=checked, changed=changed))

    def _view(self) -> wire.PolicyView:
        current = self.policy.current
        return wire.PolicyView(name=current.name, version=current.version, text=self.policy.text)
