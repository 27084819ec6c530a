"""`/runs`: those of agents, newest first. For the operator alone."""

from collections.abc import Sequence
from dataclasses import dataclass

from msgspec import UNSET

from toolgate.commands.answers import Result
from toolgate.contracts import gateway_v1 as wire
from toolgate.journal.journal import Journal
from toolgate.runs import records
from toolgate.surfaces.gateway.routes import (
    CURSOR,
    PAGE_LIMIT,
    Access,
    Call,
    Parameter,
    Route,
    page_limit,
)


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
                query=(Parameter("limit", "runs at most", PAGE_LIMIT), CURSOR),
            ),
        )

    async def _list(self, call: Call) -> Result:
        limit = page_limit(call.query)
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
