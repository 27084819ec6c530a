"""The first page: what runs now, what waits, how the last hour was."""

from dataclasses import dataclass
from typing import Any, Final

import msgspec
from starlette.requests import Request

from toolgate.evidence import audit, evidence
from toolgate.runs import records
from toolgate.runs.records import RunLine
from toolgate.surfaces.console.context import COUNTED, Answer, ConsoleContext

HOUR_MS: Final = 3_600_000
MINUTE_MS: Final = 60_000
MINUTES: Final = 60
LOOKED_AT: Final = 5_000  # rows; a busier hour is told from its newest part
RUNNING_SHOWN: Final = 20
FAILED_SHOWN: Final = 6


class _Row(msgspec.Struct):
    metadata: dict[str, Any]


_decode_row: Final = msgspec.json.Decoder(_Row).decode


def percentile(values: list[int], share: float) -> int | None:
    """The smallest value that this share of them does not exceed."""
    if not values:
        return None
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


@dataclass(frozen=True, slots=True)
class OverviewPage:
    context: ConsoleContext

    async def show(self, _: Request) -> Answer:
        now = self.context.clock.now_ms()
        found = await self._lines(since=now - HOUR_MS)
        lines = found[:LOOKED_AT]
        running = await self._running()
        pending = await self.context.approvals.pending(limit=COUNTED)
        ended = [line for line in lines if line.ended_at]
        took = [line.ended_at - line.started_at for line in ended if line.status == "DONE"]
        failed = [line for line in lines if line.status == "FAILED"]
        head = await self.context.journal.head(evidence.STREAM)
        return {
            "now": now,
            "version": self.context.version,
            "running": running[:RUNNING_SHOWN],
            "running_total": len(running),
            "pending": len(pending),
            "hour": {
                "runs": len(lines),
                "failed": len(failed),
                "p50_ms": percentile(took, 0.5),
                "p95_ms": percentile(took, 0.95),
                "partial": len(found) > LOOKED_AT,
            },
            "minutes": _by_minute(lines, now),
            "decisions": await self._decisions(since=now - HOUR_MS),
            "failures": [self.context.run_summary(line) for line in failed[:FAILED_SHOWN]],
            "policy": {
                "version": self.context.policy.current.version,
                "rules": len(self.context.policy.current.rules),
                "error": self.context.policy.error,
            },
            "evidence": {"size": head.last, "failure": self.context.evidence.failure},
        }

    async def _lines(self, *, since: int) -> list[RunLine]:
        """The runs that began since then, newest first; more than so many are not all there."""
        lines: list[RunLine] = []
        after = ""
        while len(lines) <= LOOKED_AT and (
            rows := await self.context.journal.scan(
                records.RUNS, after=after, limit=500, newest_first=True
            )
        ):
            after = rows[-1].key
            page = [records.decode_run_line(row.value) for row in rows]
            lines += [line for line in page if line.started_at >= since]
            if page[-1].started_at < since:
                break
        return lines

    async def _running(self) -> list[Any]:
        """Those that have not ended, newest first."""
        found: list[Any] = []
        for run_id, _ in sorted(await self.context.runs.open_runs(), reverse=True):
            if len(found) >= RUNNING_SHOWN:
                found.append(None)  # only counted
                continue
            row = await self.context.journal.get(records.RUNS, run_id)
            if row is not None:
                found.append(self.context.run_summary(records.decode_run_line(row.value)))
        return found

    async def _decisions(self, *, since: int) -> dict[str, int]:
        counts = {"allowed": 0, "approved": 0, "denied": 0}
        before: int | None = None
        looked = 0
        while looked < LOOKED_AT and (
            page := await self.context.journal.read_back(audit.STREAM, before=before, limit=500)
        ):
            for event in page:
                if event.at < since:
                    return counts
                if event.type != audit.TOOL_RUN:
                    continue
                metadata = _decode_row(event.data).metadata
                if metadata.get("decision") == "deny":
                    counts["denied"] += 1
                elif metadata.get("confirmation") in ("APPROVED", "self"):
                    counts["approved"] += 1
                else:
                    counts["allowed"] += 1
            looked, before = looked + len(page), page[-1].seq
        return counts


def _by_minute(lines: list[RunLine], now: int) -> list[dict[str, int]]:
    """The last hour in minutes, oldest first."""
    first = now // MINUTE_MS - MINUTES + 1
    minutes = [{"at": (first + n) * MINUTE_MS, "ok": 0, "failed": 0} for n in range(MINUTES)]
    for line in lines:
        index = line.started_at // MINUTE_MS - first
        if 0 <= index < MINUTES:
            minutes[index]["failed" if line.status == "FAILED" else "ok"] += 1
    return minutes
