"""Runs: the list, and one run as a timeline."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import msgspec
from starlette.requests import Request

from toolgate.contracts import executor_v0 as wire
from toolgate.core.enums import CallStatus
from toolgate.core.errors import Damaged, NotFound
from toolgate.evidence import evidence
from toolgate.journal.journal import Event
from toolgate.runs import records
from toolgate.runs.conversations import retracted
from toolgate.runs.deliveries import DELTA, STATE, read_update
from toolgate.runs.records import RunLine
from toolgate.runs.state import (
    CallMoved,
    CallState,
    RunBegun,
    RunEnded,
    RunStarted,
    RunState,
    TurnEnded,
)
from toolgate.surfaces.console.parts import (
    MAX_PAGE,
    TEXT_LIMIT,
    Answer,
    Parts,
    body_of,
    clipped,
    whole,
)
from toolgate.tools.responses import Artifact

SCANNED: Final = 5_000  # rows that one search looks at; the page goes on from there
GROUPS: Final = {
    "open": frozenset({"CREATED", "RUNNING", "PAUSED_WAITING_TOOL", "PAUSED_WAITING_APPROVAL"}),
    "waiting": frozenset({"PAUSED_WAITING_APPROVAL"}),
    "done": frozenset({"DONE"}),
    "failed": frozenset({"FAILED"}),
    "cancelled": frozenset({"CANCELLED"}),
}
SHOWN: Final = (
    wire.Artifact.REQUEST,
    wire.Artifact.POLICY_DECISION,
    Artifact.APPROVAL_REQUEST,
    Artifact.APPROVAL,
    wire.Artifact.TOOL_RESULT,
)


class _Unfinished(NamedTuple):
    """What a run that goes on has said and printed, up to a position of the journal."""

    text: str
    at: int
    printed: Mapping[str, str]  # by call
    position: int


class Reason(msgspec.Struct):
    reason: str = "cancelled by the operator"


@dataclass(frozen=True, slots=True)
class RunPages:
    parts: Parts

    async def listed(self, request: Request) -> Answer:
        """Newest first, from below `cursor`."""
        query = request.query_params
        limit = max(1, whole(request, "limit", default=50, most=MAX_PAGE))
        statuses = GROUPS.get(query.get("status", ""))
        agent, words = query.get("agent", ""), query.get("q", "").casefold()
        found: list[RunLine] = []
        cursor, looked = query.get("cursor", ""), 0
        while looked < SCANNED:
            rows = await self.parts.journal.scan(
                records.RUNS, after=cursor, limit=min(500, limit * 2), newest_first=True
            )
            for row in rows:
                line = records.decode_run_line(row.value)
                looked, cursor = looked + 1, row.key
                if (
                    (statuses is None or line.status in statuses)
                    and agent in ("", line.agent_id)
                    and (not words or words in _text_of(line))
                ):
                    found.append(line)
                    if len(found) == limit:
                        return {"items": found, "next": cursor}
            if not rows:
                return {"items": found, "next": None}
        return {"items": found, "next": cursor}

    async def cancel(self, request: Request) -> Answer:
        run_id = request.path_params["id"]
        reason = (await body_of(request, Reason)).reason
        await self.parts.runs.cancel(run_id, session_id="", reason=reason)
        await self.parts.note("run.cancelled", ("run", run_id), {"runId": run_id, "reason": reason})
        return {"status": (await self.parts.runs.state(run_id)).status}

    async def one(self, request: Request) -> Answer:
        run_id = request.path_params["id"]
        position = await self.parts.journal.last_position()
        state = await self.parts.runs.state(run_id)
        events = await self._facts(run_id)
        row = await self.parts.journal.get(records.RUNS, run_id)
        timeline = await self._timeline(state, events)
        if not state.ended:
            unfinished = await self._unfinished(state)
            position = max(position, unfinished.position)
            for item in timeline:
                if printed := unfinished.printed.get(item.get("id", "")):
                    item["so_far"] = {"text": printed[-TEXT_LIMIT:], "length": len(printed)}
            if text := unfinished.text:
                timeline.append(
                    {"kind": "say", "partial": True, "at": unfinished.at, **clipped(text)}
                )
        return {
            "run": None if row is None else msgspec.Raw(row.value),
            "usage": {"prompt": state.prompt_tokens, "completion": state.completion_tokens},
            "timeline": timeline,
            "position": position,
        }

    async def _facts(self, run_id: str) -> Sequence[Event]:
        events: list[Event] = []
        while page := await self.parts.journal.read(
            records.run_stream(run_id), after=events[-1].seq if events else 0
        ):
            events += page
        return events

    async def _timeline(self, state: RunState, events: Sequence[Event]) -> list[dict[str, Any]]:
        calls = {call.call_id: call for turn in state.turns for call in turn.calls}
        moves: dict[str, list[dict[str, Any]]] = {}
        items: list[dict[str, Any]] = []
        for event in events:
            match records.fact_of(event):
                case RunStarted() as started:
                    items.append(
                        {
                            "kind": "message",
                            "role": started.role,
                            "at": event.at,
                            **clipped(started.content),
                        }
                    )
                case RunBegun():
                    continue  # it says nothing that the timeline does not show
                case TurnEnded() as turn:
                    if turn.text:
                        items.append({"kind": "say", "at": event.at, **clipped(turn.text)})
                    for planned in turn.calls:
                        moves[planned.call_id] = [{"to": "CREATED", "at": event.at}]
                        shown = await self._call(calls[planned.call_id])
                        items.append({**shown, "moves": moves[planned.call_id], "at": event.at})
                case CallMoved() as moved:
                    moves[moved.call_id].append({"to": moved.to.value, "at": event.at})
                case RunEnded() as ended:
                    items.append(
                        {
                            "kind": "end",
                            "at": event.at,
                            "status": ended.status.value,
                            "code": ended.code,
                            "message": ended.message,
                        }
                    )
        return items

    async def _call(self, call: CallState) -> dict[str, Any]:
        """One tool call, with what the evidence has of it: redacted, and provable."""
        found: dict[str, Any] = {}
        for name in SHOWN:
            ref = wire.EVIDENCE_REF.format(request_id=call.call_id, artifact=name)
            try:
                found[name] = msgspec.json.decode(await self.parts.evidence.fetch(ref))
            except (NotFound, Damaged, msgspec.DecodeError):
                found[name] = None
        written = await self.parts.journal.read(
            evidence.STREAM, subject=call.call_id, limit=MAX_PAGE
        )
        asked, result = found[wire.Artifact.REQUEST], found[wire.Artifact.TOOL_RESULT]
        return {
            "kind": "call",
            "id": call.call_id,
            "tool": call.tool,
            "args": asked["args"] if asked else None,
            "status": call.status.value,
            "on_device": call.client,
            "approval_id": call.approval_id,
            "output": clipped(call.output),
            "error_code": call.error_code,
            "decision": found[wire.Artifact.POLICY_DECISION] or found[Artifact.APPROVAL_REQUEST],
            "approval": found[Artifact.APPROVAL],
            "result": None if result is None else _result(result),
            "evidence": [event.seq - 1 for event in written],
        }

    async def _unfinished(self, state: RunState) -> "_Unfinished":
        """The words of the turn that goes on, and the output of the calls that run."""
        said: list[str] = []
        printed: dict[str, list[str]] = {
            call.call_id: [] for call in state.open_calls if call.status is CallStatus.RUNNING
        }
        at = position = after = 0
        stream = records.session_stream(state.session_id)
        while page := await self.parts.journal.read(stream, after=after, subject=state.run_id):
            for event in page:
                if event.type == DELTA:
                    said.append(records.decode_members(event.data)["text"])
                    at, position = event.at, event.position
                elif event.type == STATE and (update := read_update(event.data)) is not None:
                    if update.call_id in printed:
                        printed[update.call_id].append(update.detail.delta)
                        position = event.position
                elif event.type == STATE and (back := retracted(event.data)):
                    said = ["".join(said)[:-back]]
            after = page[-1].seq
        told = sum(len(turn.text) for turn in state.turns)
        outputs = {call_id: "".join(pieces) for call_id, pieces in printed.items()}
        return _Unfinished("".join(said)[told:], at, outputs, position)


def _result(result: dict[str, Any]) -> dict[str, Any]:
    return {
        "exit_code": result["exit_code"],
        "stdout": clipped(result["stdout"]),
        "stderr": clipped(result["stderr"]),
        "isolation": result["isolation"],
        "outcome": result["outcome"],
        "truncated": result["truncated"],
    }


def _text_of(line: RunLine) -> str:
    return f"{line.run_id} {line.user_id} {line.session_id} {line.preview} {line.code}".casefold()
