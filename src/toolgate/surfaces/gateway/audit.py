"""`/audit/query`: who did what. For the operator alone."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from toolgate.commands.answers import Result
from toolgate.contracts import gateway_v1 as wire
from toolgate.evidence.audit import AuditLog, AuditQuery
from toolgate.surfaces.gateway.routes import Access, Call, Parameter, Route


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
