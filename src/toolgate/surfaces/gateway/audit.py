"""`/audit/query`: who did what. For the operator alone."""

from collections.abc import Sequence
from dataclasses import dataclass

from toolgate.commands.answers import Result
from toolgate.contracts import gateway_v1 as wire
from toolgate.evidence.audit import FILTERS, AuditLog, AuditQuery
from toolgate.journal.journal import Journal
from toolgate.runs.records import RUNS
from toolgate.surfaces.gateway.routes import Access, Call, Parameter, Route


@dataclass(frozen=True, slots=True)
class AuditRoutes:
    audit: AuditLog
    journal: Journal

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
        page = await self.audit.query(AuditQuery.parse(call.query))
        named = {str(row.metadata.get("runId", "")) for row in page.items} - {""}
        agent_runs = [one for one in sorted(named) if await self.journal.get(RUNS, one)]
        shown = {"items": page.items, "nextCursor": page.next_cursor, "agentRuns": agent_runs}
        return Result({name: value for name, value in shown.items() if value or name == "items"})
