"""`/runs`: agents' runs, newest first; show one, cancel one. For the operator alone."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from toolgate.access.audit import Trail
from toolgate.commands.answers import Code, Problem, Result
from toolgate.contracts import gateway_v1 as wire
from toolgate.core.enums import RunStatus
from toolgate.core.errors import Conflict
from toolgate.evidence.evidence import Evidence
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
from toolgate.surfaces.gateway.timelines import timeline_of
from toolgate.surfaces.gateway.translate import run_summary

SEARCHED: Final = 5_000  # rows that one search reads; its page says where the next goes on
_OPEN: Final = frozenset(RunStatus) - {RunStatus.DONE, RunStatus.FAILED, RunStatus.CANCELLED}
STATES: Final = {
    "open": _OPEN,
    "waiting": frozenset({RunStatus.PAUSED_WAITING_APPROVAL}),
    "done": frozenset({RunStatus.DONE}),
    "failed": frozenset({RunStatus.FAILED}),
    "cancelled": frozenset({RunStatus.CANCELLED}),
}


@dataclass(frozen=True, slots=True)
class RunRoutes:
    journal: Journal
    runs: Runs
    trail: Trail
    evidence: Evidence

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
                query=(
                    Parameter("status", "only these", {"type": "string", "enum": list(STATES)}),
                    Parameter("agent", "only runs of this agent"),
                    Parameter(
                        "q", "only runs with this in an id, the user, the message, the error"
                    ),
                    Parameter("limit", "runs at most", PAGE_LIMIT),
                    CURSOR,
                ),
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
                "GET",
                "/runs/{runId}/timeline",
                Access.OPERATOR,
                "What a run has said and done so far, step by step.",
                self._timeline,
                wire.RunTimeline,
                v2="runs.timeline",
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
        status = call.query.get("status", "")
        if status and status not in STATES:
            raise Problem(Code.INVALID_REQUEST, f"status must be one of {', '.join(STATES)}")
        agent, words = call.query.get("agent", ""), call.query.get("q", "").casefold()
        found: list[wire.RunSummary] = []
        cursor, searched = call.query.get("cursor", ""), 0
        while len(found) <= limit and searched < SEARCHED:
            rows = await self.journal.scan(
                records.RUNS, after=cursor, limit=limit + 1, newest_first=True
            )
            if not rows:
                return Result(wire.RunPage(items=found))
            searched, cursor = searched + len(rows), rows[-1].key
            for line in (records.decode_run_line(row.value) for row in rows):
                if (
                    (not status or line.status in STATES[status])
                    and agent in ("", line.agent_id)
                    and words in _text_of(line)
                ):
                    found.append(run_summary(line))
        if len(found) > limit:
            cursor = found[limit - 1].run_id
        return Result(wire.RunPage(items=found[:limit], next_cursor=cursor))

    async def _get(self, call: Call) -> Result:
        # From its events: the row of the list is written only when a run first moves.
        state = await self.runs.state(check_id("runId", call.path["runId"]))
        return Result(run_summary(records.decode_run_line(records.run_line(state))))

    async def _timeline(self, call: Call) -> Result:
        run_id = check_id("runId", call.path["runId"])
        return Result(await timeline_of(run_id, self.runs, self.evidence))

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


def _text_of(line: records.RunLine) -> str:
    return f"{line.run_id} {line.user_id} {line.session_id} {line.preview} {line.code}".casefold()
