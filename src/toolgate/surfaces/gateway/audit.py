"""`/audit/query`: who did what. For the operator alone."""

from collections.abc import Sequence
from dataclasses import dataclass

from toolgate.commands.answers import Result
from toolgate.contracts import gateway_v1 as wire
from toolgate.evidence.audit import FILTERS, AuditLog, AuditQuery
from toolgate.surfaces.gateway.routes import Access, Call, Parameter, Route


@dataclass(frozen=True, slots=True)
class AuditRoutes:
    audit: AuditLog

    def routes(self) -> Sequence[Route]:
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
                    *(Parameter(name, meaning) for name, meaning in FILTERS.items()),
                    Parameter("limit", "rows at most", {**count, "maximum": wire.MAX_AUDIT_ROWS}),
                    Parameter("cursor", "only rows with a smaller id", count),
                ),
            ),
        )

    async def _query(self, call: Call) -> Result:
        return Result(await self.audit.query(AuditQuery.parse(call.query)))
