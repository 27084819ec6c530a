"""`/runs`: agents' runs, newest first; show one, cancel one. For the operator alone."""

from collections.abc import Sequence
from dataclasses import dataclass

from msgspec import UNSET

from toolgate.access.audit import Trail
from toolgate.commands.answers import Result
from toolgate.contracts import gateway_v1 as wire
from toolgate.core.errors import Conflict
from toolgate.http.bodies import check_id
from toolgate.journal.journal import Journal
from toolgate.runs import records
from toolgate.runs.runs import Runs
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
    runs: Runs
    trail: Trail

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
            Route(
                "GET",
                "/runs/{runId}",
                Access.OPERATOR,
                "One run of an agent.",
                self._get,
                wire.RunSummary,
                v2="runs.get",
                statuses=(200, 404),
            ),
            Route(
                "POST",
                "/runs/{runId}/cancel",
                Access.OPERATOR,
                "Cancel a run that has not ended.",
                self._cancel,
                wire.RunSummary,
                v2="runs.cancel",
                takes=wire.RunCancel,
                statuses=(200, 404),
            ),
        )

    async def _list(self, call: Call) -> Result:
        limit = page_limit(call.query)
        rows = await self.journal.scan(
            records.RUNS, after=call.query.get("cursor", ""), limit=limit + 1, newest_first=True
        )
        items = [_run(records.decode_run_line(row.value)) for row in rows[:limit]]
        more = len(rows) > limit
        return Result(wire.RunPage(items=items, next_cursor=items[-1].run_id if more else UNSET))

    async def _get(self, call: Call) -> Result:
        # From its events: the row of the list is written only when a run first moves.
        state = await self.runs.state(check_id("runId", call.path["runId"]))
        return Result(_run(records.decode_run_line(records.run_line(state))))

    async def _cancel(self, call: Call) -> Result:
        wanted: wire.RunCancel = call.body
        run_id = check_id("runId", call.path["runId"])
        state = await self.runs.state(run_id)
        if state.ended:
            raise Conflict(f"run {run_id} has ended already: it is {state.status}")
        name = call.caller.name
        reason = wanted.reason or f"cancelled by {name}"
        await self.runs.cancel(run_id, session_id="", reason=reason)
        about = {"runId": run_id, "reason": reason}
        await self.journal.commit(
            *self.trail.note("run.cancelled", actor=name, resource=("run", run_id), metadata=about)
        )
        return await self._get(call)


def _run(line: records.RunLine) -> wire.RunSummary:
    return wire.RunSummary(
        run_id=line.run_id,
        session_id=line.session_id,
        agent_id=line.agent_id,
        status=line.status,
        created_at=line.started_at,
        updated_at=line.ended_at or line.started_at,
        user_id=line.user_id,
        preview=line.preview,
        code=line.code,
        message=line.message,
        total_tokens=line.total_tokens,
    )
