"""The calls of 0.1.0, and its runs: one row per call, the agent's deadline in a row of its own."""

from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal

import msgspec

from toolgate.core.enums import CallStatus
from toolgate.evidence.evidence import STREAM as EVIDENCE
from toolgate.journal.journal import Delete, Row
from toolgate.journal.sqlite.upgrade import Change, OldFile
from toolgate.runs.state import RunState, reduce
from toolgate.upgrade_0_1_0.reading import artifacts_of, facts_of, fields_of, json_of, naming, read

CALLS: Final = "executions"
CALLS_OF_RUNS: Final = "calls"
APPROVALS_OF_RUNS: Final = "run_approvals"
RUNS: Final = "runs"
OPEN_RUNS: Final = "open_runs"
DEADLINES: Final = "agent_deadlines"
NO_DIGEST: Final = ""  # of the rule that decided: 0.1.0 did not keep it


class OldStarted(msgspec.Struct):
    tool: str
    run_id: str
    step_id: str
    caller: dict[str, Any]
    engine_ref: str
    level: str
    decision: list[str]
    approval: dict[str, Any] | None = None


class OldCall(msgspec.Struct):
    fingerprint: str
    state: Literal["waiting", "started", "interrupted", "released", "ended"]
    owner: str
    started: OldStarted | None = None
    response: dict[str, Any] | None = None
    isolation: str = ""


class OldOwner(msgspec.Struct):
    run_id: str
    session_id: str


_decode_call: Final = msgspec.json.Decoder(OldCall).decode
_decode_owner: Final = msgspec.json.Decoder(OldOwner).decode


def calls(file: OldFile) -> Iterator[Change]:
    for row in file.rows(CALLS):
        if "/" not in row.key:  # the row of a refused id holds nothing
            with naming(file, row):
                new = _call(file, row)
            yield new
    for collection in (CALLS_OF_RUNS, APPROVALS_OF_RUNS):
        for row in file.rows(collection):
            yield Delete(row.collection, row.key)


def _call(file: OldFile, row: Row) -> Row:
    old = read(file, row, _decode_call)
    new: dict[str, Any] = {"fingerprint": old.fingerprint, "owner": old.owner}
    due = None
    if old.isolation:
        new["isolation"] = old.isolation
    if old.started is not None:
        new["run_id"] = old.started.run_id
    match old.state:
        case "started":
            new["state"] = CallStatus.RUNNING
        case "interrupted":
            new["state"] = CallStatus.INTERRUPTED
        case "released":
            new["state"] = CallStatus.DISPATCHED
            of_run = file.row(CALLS_OF_RUNS, row.key)
            due = None if of_run is None else of_run.due
        case "waiting":
            new["state"] = CallStatus.WAITING_APPROVAL
            new |= _asked_by_records(file, row.key)
        case "ended" if old.response is not None:
            new["state"] = _refused(old.response)
            new["run_id"] = old.response.get("run_id", "")
            new["response"] = old.response
        case "ended":
            new |= _ended_by_records(file, row.key)
    if old.started is not None and old.state != "ended":
        details = msgspec.structs.asdict(old.started)
        del details["run_id"]
        details["decision"] = [*old.started.decision, NO_DIGEST]
        new["details"] = details
    return row._replace(version=row.version + 1, value=json_of(new), due=due)


def _refused(response: Mapping[str, Any]) -> CallStatus:
    match response.get("policy_check", {}).get("rule_id"):
        case "approval_rejected":
            return CallStatus.REJECTED
        case "approval_expired":
            return CallStatus.TIMEOUT
        case _:
            return CallStatus.BLOCKED


def _ended_by_records(file: OldFile, call_id: str) -> dict[str, Any]:
    """The state and the run of a call that ran, by its evidence; it failed if that is unknown."""
    new: dict[str, Any] = {"state": CallStatus.FAILED}
    for event in file.events_about(call_id, stream=EVIDENCE):
        fields = fields_of(file, event)
        if event.type == "decision":
            new["run_id"] = fields.get("run_id", "")
        elif event.type in {"result", "outcome"}:
            ok = fields.get("outcome") == "executed" and fields.get("exit_code") == 0
            new["state"] = CallStatus.SUCCEEDED if ok else CallStatus.FAILED
    return new


def _asked_by_records(file: OldFile, call_id: str) -> dict[str, Any]:
    """The run and the details of a call that waits, by the evidence of the ask."""
    for event in file.events_about(call_id, stream=EVIDENCE):
        if event.type != "decision":
            continue
        fields, artifacts = fields_of(file, event), artifacts_of(file, event)
        asked, decided = artifacts.get("request"), artifacts.get("policy_decision")
        if asked is None or decided is None:  # too large to be in the journal
            return {"run_id": fields["run_id"]}
        names = ("decision", "rule_id", "reason", "policy_version", "policy_ref", "detail")
        details = {
            "tool": fields["tool"],
            "step_id": fields["step_id"],
            "caller": asked["caller"],
            "engine_ref": fields["engine"],
            "level": fields["level"],
            "decision": [*(decided[name] for name in names), NO_DIGEST],
        }
        return {"run_id": fields["run_id"], "details": details}
    return {}


def runs(file: OldFile) -> Iterator[Change]:
    for row in file.rows(OPEN_RUNS):
        owner = read(file, row, _decode_owner)
        if row.due is not None:  # the agent's deadline has a row of its own
            yield Row(DEADLINES, owner.run_id, 1, row.value, row.due)
            yield row._replace(version=row.version + 1, due=None)
        line = file.row(RUNS, owner.run_id)
        with naming(file, row):
            moves = _moves(file, owner.run_id)
        if line is not None and line.version != moves:
            yield line._replace(version=moves) if moves else Delete(RUNS, owner.run_id)


def _moves(file: OldFile, run_id: str) -> int:
    """How often the status of a run changed after its start."""
    state: RunState | None = None
    moves = 0
    for fact in facts_of(file, run_id):
        before, state = state, reduce(state, fact)
        moves += before is not None and before.status != state.status
    return moves
