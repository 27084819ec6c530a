"""The timeline of a run: what it has said and done, from its facts, with the evidence of its calls."""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec
from msgspec.structs import replace

from toolgate.contracts import gateway_v1 as wire
from toolgate.core.enums import CallStatus
from toolgate.core.errors import Damaged, NotFound
from toolgate.evidence.evidence import STREAM, Evidence
from toolgate.journal.journal import Journal
from toolgate.journal.paging import all_events
from toolgate.runs import records
from toolgate.runs.conversations import retracted
from toolgate.runs.deliveries import DELTA, STATE, read_update
from toolgate.runs.runs import Runs
from toolgate.runs.state import (
    CallMoved,
    CallState,
    RunBegun,
    RunEnded,
    RunStarted,
    RunState,
    TurnEnded,
)
from toolgate.surfaces.gateway.translate import run_summary
from toolgate.tools.responses import Artifact, refs_of

TEXT_LIMIT: Final = 100_000  # characters of one text; the rest is in the evidence
_RECORDS: Final = 200  # of one call
_SHOWN: Final = (
    Artifact.REQUEST,
    Artifact.POLICY_DECISION,
    Artifact.APPROVAL_REQUEST,
    Artifact.APPROVAL,
    Artifact.TOOL_RESULT,
)

Item = wire.TimelineMessage | wire.TimelineText | wire.TimelineCall | wire.TimelineEnd


class _Unfinished(NamedTuple):
    """The words of the turn that goes on, and the output of the calls that run."""

    text: str
    at: int
    printed: Mapping[str, str]  # by call
    position: int


async def timeline_of(run_id: str, runs: Runs, evidence: Evidence) -> wire.RunTimeline:
    """Raises NotFound."""
    journal = runs.journal
    position = await journal.last_position()
    state = await runs.state(run_id)
    items = await _items(state, journal, evidence)
    if not state.ended:
        unfinished = await _unfinished(state, journal)
        position = max(position, unfinished.position)
        items = [_with_output(item, unfinished.printed) for item in items]
        if text := unfinished.text:
            said = wire.TimelineText(at=unfinished.at, content=_clipped(text), partial=True)
            items.append(said)
    return wire.RunTimeline(
        run=run_summary(records.decode_run_line(records.run_line(state))),
        prompt_tokens=state.prompt_tokens,
        completion_tokens=state.completion_tokens,
        items=items,
        position=position,
    )


def _with_output(item: Item, printed: Mapping[str, str]) -> Item:
    if not isinstance(item, wire.TimelineCall) or not (text := printed.get(item.call_id)):
        return item
    return replace(item, so_far=wire.Clipped(text=text[-TEXT_LIMIT:], length=len(text)))


async def _items(state: RunState, journal: Journal, evidence: Evidence) -> list[Item]:
    calls = {call.call_id: call for turn in state.turns for call in turn.calls}
    shown: dict[str, wire.TimelineCall] = {}
    items: list[Item] = []
    after = 0
    while after < state.seq and (
        events := await journal.read(records.run_stream(state.run_id), after=after)
    ):
        for event in events:
            if event.seq > state.seq:
                break
            match records.fact_of(event):
                case RunStarted(role=role, content=content):
                    message = wire.TimelineMessage(
                        at=event.at, role=role, content=_clipped(content)
                    )
                    items.append(message)
                case RunBegun():
                    pass
                case TurnEnded() as turn:
                    if turn.text:
                        items.append(wire.TimelineText(at=event.at, content=_clipped(turn.text)))
                    for planned in turn.calls:
                        call = await _call(calls[planned.call_id], event.at, journal, evidence)
                        shown[planned.call_id] = call
                        items.append(call)
                case CallMoved() as moved:
                    move = wire.CallMove(to=moved.to.value, at=event.at)
                    shown[moved.call_id].moves.append(move)
                case RunEnded() as ended:
                    items.append(
                        wire.TimelineEnd(
                            at=event.at,
                            status=ended.status.value,
                            code=ended.code,
                            message=ended.message,
                        )
                    )
        after = events[-1].seq
    return items


async def _call(
    call: CallState, at: int, journal: Journal, evidence: Evidence
) -> wire.TimelineCall:
    found: dict[Artifact, Any] = {}
    for name, ref in zip(_SHOWN, refs_of(call.call_id, _SHOWN), strict=True):
        try:
            found[name] = msgspec.json.decode(await evidence.fetch(ref))
        except (NotFound, Damaged, msgspec.DecodeError):
            found[name] = None
    written = await journal.read(STREAM, subject=call.call_id, limit=_RECORDS)
    asked, result = found[Artifact.REQUEST], found[Artifact.TOOL_RESULT]
    return wire.TimelineCall(
        at=at,
        call_id=call.call_id,
        tool=call.tool,
        args=asked["args"] if asked else None,
        status=call.status.value,
        on_device=call.client,
        moves=[wire.CallMove(to=CallStatus.CREATED.value, at=at)],
        output=_clipped(call.output),
        error_code=call.error_code,
        decision=found[Artifact.POLICY_DECISION] or found[Artifact.APPROVAL_REQUEST],
        approval=found[Artifact.APPROVAL],
        result=None if result is None else _result(result),
        evidence=[event.seq - 1 for event in written],
    )


def _result(result: Mapping[str, Any]) -> wire.TimelineResult:
    return wire.TimelineResult(
        exit_code=result["exit_code"],
        stdout=_clipped(result["stdout"]),
        stderr=_clipped(result["stderr"]),
        isolation=result["isolation"],
        outcome=result["outcome"],
    )


async def _unfinished(state: RunState, journal: Journal) -> _Unfinished:
    said: list[str] = []
    printed: dict[str, list[str]] = {
        call.call_id: [] for call in state.open_calls if call.status is CallStatus.RUNNING
    }
    at = position = after = 0
    stream = records.session_stream(state.session_id)
    async for event in all_events(journal, stream, after=after, subject=state.run_id):
        if event.type == DELTA:
            said.append(records.decode_members(event.data)["text"])
            at, position = event.at, event.position
        elif event.type == STATE and (update := read_update(event.data)) is not None:
            if update.call_id in printed:
                printed[update.call_id].append(update.detail.delta)
                position = event.position
        elif event.type == STATE and (back := retracted(event.data)):
            said = ["".join(said)[:-back]]
    ended = sum(len(turn.text) for turn in state.turns)
    outputs = {call_id: "".join(parts) for call_id, parts in printed.items()}
    return _Unfinished("".join(said)[ended:], at, outputs, position)


def _clipped(text: str) -> wire.Clipped:
    return wire.Clipped(text=text[:TEXT_LIMIT], length=len(text))
