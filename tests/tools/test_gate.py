"""The gate on a real journal with real evidence: what runs, what is written, and when."""

import asyncio
import base64
import contextlib
import hashlib
import secrets
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import quote

import msgspec
import pytest

from tests.support.people import by
from tests.support.pipelines import POLICY, Rig, open_rig
from tests.support.soak import soaking
from tests.support.web import page
from toolgate.contracts import executor_v0 as wire
from toolgate.core.enums import ApprovalStatus, CallStatus, Level, Outcome
from toolgate.core.errors import Conflict, Invalid, NotFound, Refused, Unavailable
from toolgate.core.ids import Owner
from toolgate.core.tools import Caller, JsonValue, ToolOutput, ToolRequest
from toolgate.evidence.audit import AuditQuery
from toolgate.evidence.evidence import STREAM as EVIDENCE
from toolgate.evidence.evidence import record_of
from toolgate.journal.journal import Delete, Event, Operation, Put, Row
from toolgate.policy.file import load_policy
from toolgate.policy.model import ACTIVE_POLICY, Decision, Effect
from toolgate.policy.shell_parser import TreeSitterShellParser
from toolgate.testing.clock import FakeClock
from toolgate.tools.approval_records import ASKED_ARGS, OPEN
from toolgate.tools.approval_records import COLLECTION as APPROVALS
from toolgate.tools.approvals import HiddenArguments, binding_of
from toolgate.tools.calls import (
    EXECUTIONS,
    FINISHED,
    Call,
    Details,
    Entry,
    decode_entry,
    described,
)
from toolgate.tools.ledger import DECISIONS_PER_NOTE, Ledger
from toolgate.tools.outcomes import Denied, Pending, Ran
from toolgate.tools.recovery import may_run_again
from toolgate.tools.responses import StoredResult

AGENT = Caller(user="u", agent="script", session="s", level=Level.SIGN)
DUE = 4_000_000_000_000  # the deadline of a device, far away


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    async with open_rig(tmp_path) as opened:
        yield opened


def call(request_id: str, tool: str, **args: JsonValue) -> ToolRequest:
    return ToolRequest(request_id, tool, args, AGENT)


async def records(rig: Rig, subject: str) -> list[dict[str, Any]]:
    events = await rig.journal.read(EVIDENCE, subject=subject)
    return [msgspec.json.decode(record_of(event.data)) for event in events]


async def state_of(rig: Rig, request_id: str) -> CallStatus:
    row = await rig.journal.get(EXECUTIONS, request_id)
    assert row is not None
    return decode_entry(row.value).state


async def artifact(rig: Rig, ref: str) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.json.decode(await rig.evidence.fetch(ref))
    return found


async def noted_end(rig: Rig) -> Row:
    row = await rig.journal.get(FINISHED, "here")
    assert row is not None
    return row


def as_ran(answer: object) -> ToolOutput:
    assert isinstance(answer, Ran)
    return answer.output


@pytest.mark.requirement("003/pipeline/order")
async def test_the_decision_is_durable_before_the_tool_begins_and_the_result_before_the_answer(
    rig: Rig,
) -> None:
    running = asyncio.create_task(rig.run(call("r1", "hang")))
    await asyncio.wait_for(rig.engine.begun.wait(), 5)
    assert [record["kind"] for record in await records(rig, "r1")] == ["decision"]
    assert await state_of(rig, "r1") is CallStatus.RUNNING
    rig.engine.gate.set()
    assert as_ran(await running).ok
    assert [record["kind"] for record in await records(rig, "r1")] == ["decision", "result"]
    assert await state_of(rig, "r1") is CallStatus.SUCCEEDED


@pytest.mark.requirement("003/pipeline/audit-row")
async def test_every_call_leaves_one_audit_row(rig: Rig) -> None:
    await rig.run(call("r1", "count"))
    await rig.run(call("r1", "count"))
    await rig.run(call("r2", "denied"))
    await rig.run(call("r3", "fail"))
    rows = (await rig.audit.query(AuditQuery(action="tool.run"))).items
    seen = [(r.metadata["requestId"], r.metadata["decision"], r.metadata["result"]) for r in rows]
    assert seen == [("r3", "allow", "failed"), ("r2", "deny", "denied"), ("r1", "allow", "ok")]
    assert {row.actor for row in rows} == {"agent:script"}
    assert [row.metadata["riskLevel"] for row in rows] == ["write", "write", "read"]


@pytest.mark.requirement("003/ids/no-clock")
async def test_what_a_retry_must_reproduce_does_not_depend_on_time_or_chance(
    tmp_path: Path,
) -> None:
    answers = []
    for name, clock in (("a", FakeClock()), ("b", FakeClock(1_800_000_000_000))):
        async with open_rig(tmp_path / name, clock=clock) as rig:
            response = await rig.respond(call("r1", "count"))
            pending = await rig.run(call("r2", "ask.once"))
            assert isinstance(pending, Pending)
            answers.append((response, pending.approval_id))
    assert answers[0] == answers[1]


@pytest.mark.requirement("003/repeat/for-ever")
async def test_a_request_is_answered_from_the_store_after_a_restart(tmp_path: Path) -> None:
    async with open_rig(tmp_path) as rig:
        first = await rig.respond(call("r1", "count"))
    async with open_rig(tmp_path) as rig:
        assert await rig.respond(call("r1", "count")) == first
        assert rig.engine.runs["count"] == 0


async def test_the_same_id_from_another_caller_is_another_request(rig: Rig) -> None:
    await rig.run(call("r1", "count"))
    stranger = call("r1", "count")._replace(caller=replace(AGENT, tenant="t_other"))
    answer = await rig.run(stranger)
    assert isinstance(answer, Denied)
    assert answer.rule_id == wire.RuleId.REQUEST_ID_CONFLICT


@pytest.mark.requirement("003/pipeline/approval-waits")
async def test_a_call_that_was_asked_about_runs_once_it_is_approved_and_only_once(
    rig: Rig,
) -> None:
    first = await rig.run(call("r1", "ask.once", amount=5))
    assert isinstance(first, Pending)
    assert first == await rig.run(call("r1", "ask.once", amount=5))
    assert rig.engine.runs["ask.once"] == 0
    request_id = await rig.gate.decide_approval(
        first.approval_id, approve=True, decided_by=by("u"), reason="fine"
    )
    assert request_id == "r1"
    again = [rig.run(call("r1", "ask.once", amount=5)) for _ in range(8)]
    assert all(as_ran(answer).ok for answer in await asyncio.gather(*again))
    assert rig.engine.runs["ask.once"] == 1
    word = await artifact(rig, "requests/r1/approval.json")
    assert (word["status"], word["decided_by"], word["note"]) == ("APPROVED", "device u", "fine")
    response = await rig.respond(call("r1", "ask.once", amount=5))
    assert response.policy_check.decision == "allow"
    for ref in response.evidence_refs:
        await artifact(rig, ref)
    kinds = [record["kind"] for record in await records(rig, "r1")]
    assert kinds == ["decision", "approval", "approval", "decision", "result"]


@pytest.mark.requirement("003/pipeline/approval-refused")
async def test_a_rejected_call_never_runs(rig: Rig) -> None:
    pending = await rig.run(call("r1", "ask.once"))
    assert isinstance(pending, Pending)
    await rig.gate.decide_approval(
        pending.approval_id, approve=False, decided_by=by("u"), reason="too much"
    )
    answer = await rig.run(call("r1", "ask.once"))
    assert isinstance(answer, Denied)
    assert (answer.code, answer.rule_id) == ("rejected", "approval_rejected")
    assert answer == await rig.run(call("r1", "ask.once"))
    assert rig.engine.runs["ask.once"] == 0


@pytest.mark.requirement("003/pipeline/approval-refused")
async def test_a_call_that_nobody_approved_in_time_never_runs(tmp_path: Path) -> None:
    clock = FakeClock()
    async with open_rig(tmp_path, clock=clock) as rig:
        pending = await rig.run(call("r1", "ask.once"))
        assert isinstance(pending, Pending)
        clock.advance(pending.expires_at - clock.now_ms())
        due = await rig.journal.due(until=clock.now_ms())
        assert [row.collection for row in due] == [APPROVALS]
        assert await rig.approvals.on_due(due[0]) == "run_r1"
        assert await rig.journal.due(until=clock.now_ms()) == []
        told = await rig.journal.read("approvals", subject="run_r1")
        assert [event.type for event in told] == ["asked", "expired"]
        assert await rig.journal.scan(OPEN) == []
        with pytest.raises(Conflict):
            await rig.gate.decide_approval(
                pending.approval_id, approve=True, decided_by=by("u"), reason=""
            )
        answer = await rig.run(call("r1", "ask.once"))
        assert isinstance(answer, Denied)
        assert answer.code == "approval_timeout"
        assert rig.engine.runs["ask.once"] == 0


async def test_an_approval_survives_a_restart(tmp_path: Path) -> None:
    async with open_rig(tmp_path) as rig:
        pending = await rig.run(call("r1", "ask.once"))
        assert isinstance(pending, Pending)
    async with open_rig(tmp_path) as rig:
        assert [one.approval_id for one in await rig.approvals.pending()] == [pending.approval_id]
        await rig.gate.decide_approval(
            pending.approval_id, approve=True, decided_by=by("u"), reason=""
        )
    async with open_rig(tmp_path) as rig:
        assert await rig.approvals.pending() == []
        assert as_ran(await rig.run(call("r1", "ask.once"))).ok


async def test_a_secret_cannot_be_guessed_from_what_is_recorded_of_its_approval(rig: Rig) -> None:
    """Proofs are handed to strangers; a hash without a key tells them when they have guessed it."""
    asked = call("r1", "ask.once", password="1234")
    assert isinstance(await rig.run(asked), Pending)
    rule = (await rig.approvals.get("apr_r1")).rule_digest
    guessed = binding_of(asked.tool, asked.args, target="", rule=rule)
    written = [event.data for event in await rig.journal.read(EVIDENCE, subject="r1")]
    written += [row.value for row in await rig.journal.scan(APPROVALS)]
    assert not any(guessed.encode() in each for each in written)


@pytest.mark.requirement("003/secrets/none-in-evidence")
@pytest.mark.parametrize("approve", [True, False])
async def test_a_name_that_holds_a_secret_decides_nothing(rig: Rig, approve: bool) -> None:
    rig.patterns.learn("correct-horse-battery")
    pending = await rig.run(call("r1", "ask.once"))
    assert isinstance(pending, Pending)
    with pytest.raises(Invalid):
        await rig.gate.decide_approval(
            pending.approval_id,
            approve=approve,
            decided_by=by("user:correct-horse-battery"),
            reason="fine",
        )
    assert pending == await rig.run(call("r1", "ask.once"))
    written = [event.data for event in await rig.journal.read(EVIDENCE)]
    written += [row.value for row in await rig.journal.scan(APPROVALS)]
    assert not any(b"correct-horse" in each for each in written)


async def test_changed_arguments_do_not_fit_an_approval(rig: Rig) -> None:
    pending = await rig.run(call("r1", "ask.once", amount=5))
    assert isinstance(pending, Pending)
    await rig.gate.decide_approval(pending.approval_id, approve=True, decided_by=by("u"), reason="")
    answer = await rig.run(call("r1", "ask.once", amount=5000))
    assert isinstance(answer, Denied)
    assert answer.rule_id == wire.RuleId.REQUEST_ID_CONFLICT
    assert rig.engine.runs["ask.once"] == 0


async def test_a_call_does_not_run_on_another_target_than_it_was_approved_for(rig: Rig) -> None:
    rig.engine.target = "a sandbox"
    pending = await rig.run(call("r1", "ask.once"))
    assert isinstance(pending, Pending)
    await rig.gate.decide_approval(pending.approval_id, approve=True, decided_by=by("u"), reason="")
    rig.engine.target = "production"
    answer = await rig.run(call("r1", "ask.once"))
    assert isinstance(answer, Denied)
    assert answer.rule_id == "approval_does_not_fit"
    assert rig.engine.runs["ask.once"] == 0


ASKS: Final = '- {id: ask-first, ask: "ask.*", match: any, reason: A person must see it}'


@pytest.mark.parametrize(
    ("before", "after", "rule_id"),
    [
        ("", "  - {id: more, allow: other, match: any, reason: New}\n", ""),
        (ASKS, '- {id: now, allow: "ask.*", match: any, reason: Fine}', ""),
        (ASKS, ASKS.replace("A person", "Two people"), "approval_does_not_fit"),
        ("", "  - {id: stop, deny: ask.once, match: any, reason: Closed}\n", "stop"),
    ],
    ids=["another rule", "allowed now", "this rule", "denied now"],
)
async def test_an_approval_is_bound_to_the_rule_that_asked(
    rig: Rig, before: str, after: str, rule_id: str
) -> None:
    pending = await rig.run(call("r1", "ask.once"))
    assert isinstance(pending, Pending)
    await rig.gate.decide_approval(pending.approval_id, approve=True, decided_by=by("u"), reason="")
    text = POLICY.replace(before, after) if before else POLICY + after
    assert text != POLICY
    rig.policies[ACTIVE_POLICY] = load_policy(text, parse_shell=TreeSitterShellParser())
    answer = await rig.run(call("r1", "ask.once"))
    assert rig.engine.runs["ask.once"] == (0 if rule_id else 1)
    approval = await rig.approvals.get(pending.approval_id)
    if rule_id:
        assert isinstance(answer, Denied)
        assert answer.rule_id == rule_id
        assert (approval.status, approval.decided_by) == (ApprovalStatus.REJECTED, "policy")
        assert approval.note == answer.reason
        [row] = (await rig.audit.query(AuditQuery(run_id="run_r1"))).items
        assert row.metadata["confirmation"] == ApprovalStatus.REJECTED
    else:
        assert approval.status is ApprovalStatus.APPROVED


@pytest.mark.parametrize(
    ("text", "rule_id"),
    [
        (POLICY.replace("A person", "Two people"), "approval_rejected"),
        (POLICY.replace(ASKS, '- {id: now, allow: "ask.*", match: any, reason: Fine}'), ""),
    ],
    ids=["another rule", "allowed now"],
)
async def test_a_rule_that_is_no_longer_in_force_cannot_be_answered_with_approved(
    rig: Rig, text: str, rule_id: str
) -> None:
    pending = await rig.run(call("r1", "ask.once"))
    assert isinstance(pending, Pending)
    rig.policies[ACTIVE_POLICY] = load_policy(text, parse_shell=TreeSitterShellParser())
    with pytest.raises(Conflict):
        await rig.gate.decide_approval(
            pending.approval_id, approve=True, decided_by=by("u"), reason=""
        )
    approval = await rig.approvals.get(pending.approval_id)
    assert (approval.status, approval.decided_by) == (ApprovalStatus.REJECTED, "policy")
    answer = await rig.run(call("r1", "ask.once"))
    if rule_id:
        assert isinstance(answer, Denied)
        assert answer.rule_id == rule_id
    assert rig.engine.runs["ask.once"] == (0 if rule_id else 1)


async def test_what_the_policy_has_come_to_deny_is_no_longer_open_for_approval(rig: Rig) -> None:
    pending = await rig.run(call("r1", "ask.once"))
    assert isinstance(pending, Pending)
    change = "  - {id: stop, deny: ask.once, match: any, reason: Closed}\n"
    rig.policies[ACTIVE_POLICY] = load_policy(POLICY + change, parse_shell=TreeSitterShellParser())
    answer = await rig.run(call("r1", "ask.once"))
    assert isinstance(answer, Denied)
    assert answer.rule_id == "stop"
    assert await rig.approvals.pending() == []
    with pytest.raises(Conflict):
        await rig.gate.decide_approval(
            pending.approval_id, approve=True, decided_by=by("u"), reason=""
        )
    closed = await rig.approvals.get(pending.approval_id)
    assert (closed.status, closed.note) == (ApprovalStatus.REJECTED, "Closed")
    told = await rig.journal.read(APPROVALS)
    assert [event.type for event in told] == ["asked", "decided"]
    assert (await artifact(rig, "requests/r1/approval.json"))["status"] == "REJECTED"


async def test_an_approval_that_nobody_waits_for_any_more_is_closed_once(rig: Rig) -> None:
    pending = await rig.run(call("r1", "ask.once"))
    assert isinstance(pending, Pending)
    await rig.gate.abandon(["r1"], {}, reason="cancelled", also=())
    assert await rig.approvals.pending() == []
    closed = await rig.approvals.get(pending.approval_id)
    assert (closed.status, closed.decided_by, closed.note) == ("REJECTED", "run", "cancelled")
    await rig.gate.abandon(["r1", "nobody"], {}, reason="again", also=())
    closed_again = await rig.approvals.get(pending.approval_id)
    assert closed_again.note == "cancelled"
    assert await state_of(rig, "r1") is CallStatus.REJECTED, "the call ends with its approval"
    [row] = (await rig.audit.query(AuditQuery(run_id="run_r1"))).items
    assert (row.metadata["result"], row.metadata["confirmation"]) == ("denied", "REJECTED")
    answer = await rig.run(call("r1", "ask.once"))
    assert isinstance(answer, Denied)
    assert rig.engine.runs["ask.once"] == 0


async def test_an_approved_call_whose_run_ends_before_it_starts_is_closed(rig: Rig) -> None:
    pending = await rig.run(call("r1", "ask.once"))
    assert isinstance(pending, Pending)
    await rig.gate.decide_approval(pending.approval_id, approve=True, decided_by=by("u"), reason="")
    await rig.gate.abandon(["r1"], {}, reason="cancelled", also=())
    assert await state_of(rig, "r1") is CallStatus.BLOCKED
    assert isinstance(await rig.run(call("r1", "ask.once")), Denied)
    assert rig.engine.runs["ask.once"] == 0


async def test_of_two_decisions_at_once_the_later_is_refused_with_the_one_that_stands(
    rig: Rig,
) -> None:
    pending = await rig.run(call("r1", "ask.once"))
    assert isinstance(pending, Pending)
    answers = await asyncio.gather(
        *(
            rig.gate.decide_approval(
                pending.approval_id, approve=approve, decided_by=by("u"), reason=""
            )
            for approve in (True, False)
        ),
        return_exceptions=True,
    )
    [refused] = [answer for answer in answers if isinstance(answer, Conflict)]
    stands = (await rig.approvals.get(pending.approval_id)).status
    assert str(refused) == f"approval {pending.approval_id} is {stands.lower()} already"


async def test_the_row_of_a_call_names_its_run_and_the_deadline_of_its_device(rig: Rig) -> None:
    await rig.gate.begin(call("r1", "count"), due=DUE)
    assert await rig.gate.run_of("r1") == "run_r1"
    row = await rig.journal.get(EXECUTIONS, "r1")
    assert row is not None
    assert row.due == DUE
    late = ToolOutput(1, stderr="late", outcome=Outcome.MAY_HAVE_EXECUTED)
    await rig.gate.finish_call("r1", late, status=CallStatus.TIMEOUT)
    assert await state_of(rig, "r1") is CallStatus.TIMEOUT
    row = await rig.journal.get(EXECUTIONS, "r1")
    assert row is not None
    assert row.due is None
    assert await rig.gate.run_of("r1") == "run_r1"
    with pytest.raises(NotFound):
        await rig.gate.run_of("nobody")


async def test_an_agent_does_not_approve_its_own_call_and_an_unknown_approval_is_not_found(
    rig: Rig,
) -> None:
    pending = await rig.run(call("r1", "ask.once"))
    assert isinstance(pending, Pending)
    with pytest.raises(Refused):
        await rig.gate.decide_approval(
            pending.approval_id, approve=True, decided_by=by("agent:script"), reason=""
        )
    with pytest.raises(NotFound):
        await rig.gate.decide_approval("apr_none", approve=True, decided_by=by("u"), reason="")
    assert (await rig.approvals.get(pending.approval_id)).status is ApprovalStatus.PENDING


async def test_a_call_for_a_device_is_decided_and_let_go(rig: Rig) -> None:
    for known in (False, True):
        released = await rig.gate.begin(call("r1", "count"), due=DUE)
        assert not isinstance(released, Denied | Pending)
        assert released.known is known
        with pytest.raises(Invalid):
            await released.run()
    assert rig.engine.runs["count"] == 0
    assert isinstance(await rig.gate.begin(call("r2", "denied"), due=DUE), Denied)
    assert isinstance(await rig.gate.begin(call("r3", "ask.once"), due=DUE), Pending)
    assert await rig.gate.recover() == 0
    assert (await artifact(rig, "requests/r1/policy_decision.json"))["decision"] == "allow"


async def test_what_a_device_made_of_a_call_is_evidence_once(rig: Rig) -> None:
    await rig.gate.begin(call("r1", "count"), due=DUE)
    kinds = [record["kind"] for record in await records(rig, "r1")]
    assert kinds == ["decision"]
    came_of_it = ToolOutput(0, stdout="from the device", isolation="device")
    note = Put("notes", "r1", b"", expected=0)
    await rig.gate.finish_call("r1", came_of_it, also=[note])
    with pytest.raises(Conflict):
        await rig.gate.finish_call("r1", came_of_it, also=[note])
    assert [record["kind"] for record in await records(rig, "r1")] == ["decision", "result"]
    assert (await artifact(rig, "requests/r1/tool_result.json"))["stdout"] == "from the device"
    [row] = (await rig.audit.query(AuditQuery(run_id="run_r1"))).items
    assert (row.metadata["requestId"], row.metadata["result"]) == ("r1", "ok")
    again = await rig.gate.begin(call("r1", "count"), due=DUE)
    assert not isinstance(again, Denied | Pending)
    assert (await again.run()).stdout == "from the device"
    for request_id in ("r1", "unknown"):
        await rig.gate.finish_call(request_id, came_of_it)
    assert len(await records(rig, "r1")) == 2
    assert rig.engine.runs["count"] == 0


@pytest.mark.parametrize(
    ("raised", "outcome"),
    [
        (Unavailable("gone"), Outcome.MAY_HAVE_EXECUTED),
        (Refused("no"), Outcome.NOT_STARTED),
        (NotFound("target", "x"), Outcome.NOT_STARTED),
        (RuntimeError("a defect"), Outcome.MAY_HAVE_EXECUTED),
    ],
)
async def test_an_engine_that_fails_is_an_output_that_says_what_is_known(
    rig: Rig, raised: Exception, outcome: Outcome
) -> None:
    rig.engine.outputs["count"] = raised
    output = as_ran(await rig.run(call("r1", "count")))
    assert (output.exit_code, output.outcome) == (1, outcome)
    response = await rig.respond(call("r1", "count"))
    assert response.outcome == outcome
    assert rig.engine.runs["count"] == 1


async def test_a_tool_without_end_is_given_up(tmp_path: Path) -> None:
    async with open_rig(tmp_path, deadline_s=0.05) as rig:
        output = as_ran(await rig.run(call("r1", "hang")))
        assert (output.exit_code, output.outcome) == (1, Outcome.MAY_HAVE_EXECUTED)


async def test_cancelling_the_only_caller_stops_the_tool_and_is_written_down(rig: Rig) -> None:
    running = asyncio.create_task(rig.run(call("r1", "hang")))
    await asyncio.wait_for(rig.engine.begun.wait(), 5)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert await state_of(rig, "r1") is CallStatus.FAILED
    assert [record["kind"] for record in await records(rig, "r1")] == ["decision", "result"]
    output = as_ran(await rig.run(call("r1", "hang")))
    assert (output.exit_code, output.outcome) == (1, Outcome.MAY_HAVE_EXECUTED)
    assert rig.engine.runs["hang"] == 1


async def test_cancelling_one_of_two_callers_leaves_the_tool_to_the_other(rig: Rig) -> None:
    first = asyncio.create_task(rig.run(call("r1", "hang")))
    await asyncio.wait_for(rig.engine.begun.wait(), 5)
    second = asyncio.create_task(rig.run(call("r1", "hang")))
    await asyncio.sleep(0)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    rig.engine.gate.set()
    assert as_ran(await second).ok
    assert rig.engine.runs["hang"] == 1


CRASHING = """
import asyncio, sys
from dataclasses import replace
from pathlib import Path
from toolgate.core.tools import ToolRequest
from tests.support.pipelines import open_rig

async def main():
    async with open_rig(Path(sys.argv[1])) as rig:
        running = asyncio.create_task(rig.run(ToolRequest("r1", "hang", {})))
        await rig.engine.begun.wait()
        print("begun", flush=True)
        await running

asyncio.run(main())
"""


async def test_a_killed_process_leaves_a_call_that_may_have_been_executed(tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", CRASHING, str(tmp_path), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    assert await asyncio.wait_for(process.stdout.readline(), 60) == b"begun\n"
    process.send_signal(signal.SIGKILL)
    await process.wait()
    async with open_rig(tmp_path) as rig:
        assert await rig.gate.recover() == 1
        assert [record["kind"] for record in await records(rig, "r1")] == ["decision", "outcome"]
        response = await rig.respond(ToolRequest("r1", "hang", {}))
        assert not response.ok
        assert response.outcome is Outcome.MAY_HAVE_EXECUTED
        for ref in response.evidence_refs:
            await artifact(rig, ref)
        assert rig.engine.runs["hang"] == 0
        assert await rig.gate.recover() == 0


async def test_a_call_is_found_again_however_many_have_ended_since_it_started(
    tmp_path: Path,
) -> None:
    async with open_rig(tmp_path) as rig:
        await rig.run(call("before", "count"))
        assert await rig.gate.recover() == 0
        noted = int((await noted_end(rig)).value)
        assert noted == (await rig.journal.head(EVIDENCE)).last
        running = asyncio.create_task(rig.run(call("r1", "hang")))
        await asyncio.wait_for(rig.engine.begun.wait(), 5)
        for start in range(0, DECISIONS_PER_NOTE, 100):
            many = (rig.run(call(f"c{start + n}", "count")) for n in range(100))
            await asyncio.gather(*many)
        row = await noted_end(rig)
        assert (row.version, int(row.value)) == (2, noted)  # it waits for the one that runs
        running.cancel()
        await asyncio.wait([running])
        assert await rig.gate.recover() == 0
        assert int((await noted_end(rig)).value) == (await rig.journal.head(EVIDENCE)).last


@pytest.mark.parametrize("tool", ["denied", "ask.pay"])
async def test_a_start_does_not_read_all_the_calls_that_have_never_run(rig: Rig, tool: str) -> None:
    await rig.gate.recover()
    for start in range(0, DECISIONS_PER_NOTE, 100):
        many = (rig.run(call(f"c{start + n}", tool)) for n in range(100))
        await asyncio.gather(*many)
    noted = int((await noted_end(rig)).value)
    assert noted > DECISIONS_PER_NOTE / 2
    assert await rig.gate.recover() == 0


ALLOWED = Decision(Effect.ALLOW, "x", "y", "v1", ACTIVE_POLICY)


def ledger_of(rig: Rig, owner: str) -> Ledger:
    return Ledger(rig.journal, rig.evidence, rig.audit, rig.clock, Owner(owner, "1"))


async def left_unfinished(rig: Rig, tool: str, *, owner: str = "here") -> Call:
    """A call whose decision is on disk and whose result is not, as a crash leaves it."""
    request = call("r1", tool)._replace(run_id="run_r1", step_id="step_r1")
    content = rig.evidence.canonical(described(request))
    started = Call(
        request,
        shown=content,
        fingerprint=rig.evidence.commitment(content),
        engine_ref="counting@1",
        level=Level.READ,
    )
    return await ledger_of(rig, owner).start(started, ALLOWED)


async def test_a_repeatable_tool_that_was_interrupted_runs_again_when_asked_again(rig: Rig) -> None:
    await left_unfinished(rig, "count")
    assert await rig.gate.recover() == 1
    assert rig.engine.runs["count"] == 0
    assert as_ran(await rig.run(call("r1", "count"))).ok
    assert rig.engine.runs["count"] == 1
    kinds = [record["kind"] for record in await records(rig, "r1")]
    assert kinds == ["decision", "outcome", "decision", "result"]


async def test_an_interrupted_call_that_the_policy_now_denies_is_not_run_again(rig: Rig) -> None:
    await left_unfinished(rig, "count")
    await rig.gate.recover()
    closed = "  - {id: stop, deny: count, match: any, reason: Closed}\n"
    rig.policies[ACTIVE_POLICY] = load_policy(POLICY + closed, parse_shell=TreeSitterShellParser())
    output = as_ran(await rig.run(call("r1", "count")))
    assert (output.ok, output.outcome) == (False, Outcome.MAY_HAVE_EXECUTED)
    assert rig.engine.runs["count"] == 0


async def test_only_one_of_two_that_take_up_an_interrupted_call_runs_it(rig: Rig) -> None:
    started = await left_unfinished(rig, "count")
    await rig.gate.recover()
    taken = started._replace(version=started.version + 1, status=CallStatus.INTERRUPTED)
    await ledger_of(rig, "a").start(taken, ALLOWED, again=True)
    with pytest.raises(Conflict):
        await ledger_of(rig, "b").start(taken, ALLOWED, again=True)


async def test_a_call_that_was_approved_is_never_run_again(rig: Rig) -> None:
    pending = await rig.run(call("r1", "ask.once"))
    assert isinstance(pending, Pending)
    approval = await rig.approvals.get(pending.approval_id)
    details = Details("count", "step", AGENT, "e", Level.READ, ALLOWED)

    def always(_tool: str, _caller: Caller) -> bool:
        return True

    assert may_run_again(
        Entry("f", CallStatus.RUNNING, "here", details=details), is_repeatable=always
    )
    approved = msgspec.structs.replace(details, approval=approval)
    assert not may_run_again(
        Entry("f", CallStatus.RUNNING, "here", details=approved), is_repeatable=always
    )


async def test_without_recovery_a_call_nobody_waits_for_is_settled_when_asked_again(
    rig: Rig,
) -> None:
    await left_unfinished(rig, "fail")
    output = as_ran(await rig.run(call("r1", "fail")))
    assert (output.ok, output.outcome) == (False, Outcome.MAY_HAVE_EXECUTED)
    assert rig.engine.runs["fail"] == 0


async def test_a_call_that_another_process_runs_is_left_to_it_and_waited_for(rig: Rig) -> None:
    started = await left_unfinished(rig, "fail", owner="there")
    assert await rig.gate.recover() == 0
    waiting = asyncio.create_task(rig.run(call("r1", "fail")))
    await asyncio.sleep(0)
    await ledger_of(rig, "there").finish(started, ALLOWED, ToolOutput(0, stdout="from there"))
    assert as_ran(await asyncio.wait_for(waiting, 10)).stdout == "from there"
    assert rig.engine.runs["fail"] == 0


@pytest.mark.requirement("003/policy/redirects")
async def test_an_approved_fetch_follows_redirects_within_its_origin_only(rig: Rig) -> None:
    asking = "  - {id: look, ask: http.fetch, match: any, reason: Look first}\n"
    rig.policies[ACTIVE_POLICY] = load_policy(POLICY + asking, parse_shell=TreeSitterShellParser())
    rig.web.answers |= {
        "http://a.example.com/": page("", status=302, location="/there"),
        "http://a.example.com/there": page("", status=302, location="http://b.example.com/"),
    }
    request = call("r1", "http.fetch", url="http://a.example.com/")
    pending = await rig.run(request)
    assert isinstance(pending, Pending)
    await rig.gate.decide_approval(pending.approval_id, approve=True, decided_by=by("u"), reason="")
    assert not as_ran(await rig.run(request)).ok
    asked = [one.url for one in rig.web.asked]
    assert asked == ["http://a.example.com/", "http://a.example.com/there"]


@pytest.mark.requirement("003/policy/redirects")
async def test_a_hop_is_put_to_the_policy_with_the_method_that_it_is_asked_with(rig: Rig) -> None:
    posts = """
  - id: posts
    allow: web.fetch
    match: {url: {host: [a.example.com, b.example.com], method: [POST]}}
    reason: Hooks
"""
    reads = """
  - id: reads
    allow: web.fetch
    match: {url: {host: [b.example.com], method: [GET]}}
    reason: Pages
"""
    rig.web.answers |= {
        "http://a.example.com/": page("", status=303, location="http://b.example.com/"),
        "http://b.example.com/": page("http://b.example.com/"),
    }
    wanted = {"url": "http://a.example.com/", "method": "POST", "body": "x=1"}
    for number, (rules, followed) in enumerate([(posts, False), (posts + reads, True)]):
        rig.policies[ACTIVE_POLICY] = load_policy(
            POLICY + rules, parse_shell=TreeSitterShellParser()
        )
        rig.web.asked.clear()
        assert as_ran(await rig.run(call(f"r{number}", "web.fetch", **wanted))).ok is followed
        assert [one.method for one in rig.web.asked] == ["POST", "GET"][: 1 + followed]


@pytest.mark.requirement("003/response/output-capped")
async def test_output_beyond_the_limit_is_cut_and_says_so(rig: Rig) -> None:
    rig.engine.outputs["count"] = ToolOutput(0, stdout="x" * 600_000, data=["y" * 2_000_000])
    response = await rig.respond(call("r1", "count"))
    assert isinstance(response.tool_result, StoredResult)
    assert response.tool_result.truncated is True
    assert len(response.tool_result.stdout) < 530_000
    assert "600000" in response.tool_result.stdout
    assert response == await rig.respond(call("r1", "count"))


@pytest.mark.parametrize(
    "output",
    [
        ToolOutput(0, stdout="\ud800", stderr="a\udfff"),
        ToolOutput(0, data={"a": "\ud800"}),
        ToolOutput(0, data={"\ud800": [1]}),
        ToolOutput(0, data=cast("JsonValue", {"a": object()})),
        ToolOutput(0, data=2**70),
    ],
)
async def test_output_that_no_json_can_hold_is_still_an_output(
    rig: Rig, output: ToolOutput
) -> None:
    rig.engine.outputs["count"] = output
    first = await rig.respond(call("r1", "count"))
    assert first.ok
    assert first == await rig.respond(call("r1", "count"))
    assert rig.engine.runs["count"] == 1


@pytest.mark.parametrize(
    "request_",
    [
        ToolRequest("r1", "count", {}, run_id="\ud800"),
        ToolRequest("r1", "count\ud800", {}),
        ToolRequest("r1", "x" * 257, {}),
        ToolRequest("r1", "count", cast("dict[str, JsonValue]", {"a": object()})),
        ToolRequest("r\n", "count", {}),
    ],
)
async def test_a_request_that_cannot_be_written_down_is_invalid(
    rig: Rig, request_: ToolRequest
) -> None:
    with pytest.raises(Invalid):
        await rig.run(request_)
    assert rig.engine.runs["count"] == 0
    assert await rig.journal.last_position() == 0


async def test_arguments_of_any_depth_are_asked_about_or_invalid(rig: Rig) -> None:
    nested: JsonValue = []
    for depth in range(1000):
        nested = [nested]
        if depth % 300 == 0 or depth > 900:  # only just too deep for one part, and not for another
            with contextlib.suppress(Invalid):
                answer = await rig.run(call(f"r{depth}", "ask.once", nested=nested))
                assert isinstance(answer, Pending)


@pytest.mark.parametrize("tool", ["count", "ask.once"])
async def test_arguments_too_deep_to_be_shown_without_secrets_are_invalid(
    rig: Rig, tool: str
) -> None:
    deep: JsonValue = []
    for _ in range(600):
        deep = [deep]
    with pytest.raises(Invalid):
        await rig.run(call("r1", tool, command="rm -rf /", deep=deep))
    assert rig.engine.runs["count"] == 0
    assert await rig.journal.last_position() == 0


async def test_odd_arguments_are_still_arguments(rig: Rig) -> None:
    odds: list[JsonValue] = ["\ud800", 2**63, 1e308, -0.0, "\0", {"": [[]]}, "é" * 9000]
    for number, odd in enumerate(odds):
        assert as_ran(await rig.run(call(f"r{number}", "count", odd=odd))).ok
        assert isinstance(await rig.run(call(f"a{number}", "ask.once", odd=odd)), Pending)


@pytest.mark.requirement("003/policy/redirects")
async def test_each_redirect_is_put_to_the_policy(rig: Rig) -> None:
    rig.web.answers |= {
        "http://a.example.com/": page("", status=302, location="/there"),
        "http://a.example.com/there": page("", b"welcome"),
        "http://a.example.com/away": page("", status=302, location="http://b.example.com/"),
        "http://b.example.com/": page("", b"not for us"),
    }
    kept = await rig.run(call("r1", "http.fetch", url="http://a.example.com/"))
    assert as_ran(kept).stdout == "welcome"
    left = await rig.run(call("r2", "http.fetch", url="http://a.example.com/away"))
    assert not as_ran(left).ok
    assert not any("b.example.com" in asked.url for asked in rig.web.asked)
    denied = await rig.run(call("r3", "http.fetch", url="http://b.example.com/"))
    assert denied[:3] == (
        "blocked",
        "http_fetch_hostname_check",
        "Hostname b.example.com not in allowlist",
    )


async def test_a_caller_sees_the_tools_that_some_rule_lets_through(rig: Rig) -> None:
    names = {tool.name for tool in rig.gate.visible_tools(AGENT)}
    assert {"echo", "kv.get", "count", "ask.once", "http.fetch"} <= names
    assert not {"denied", "file.read"} & names


FORMS = (
    lambda s: s,
    lambda s: s.encode().hex(),
    lambda s: base64.b64encode(s.encode()).decode(),
    lambda s: base64.urlsafe_b64encode(s.encode()).decode().rstrip("="),
    lambda s: quote(s, safe=""),
    lambda s: s.encode().hex().upper(),
)


@pytest.mark.requirement("003/secrets/none-in-evidence")
@pytest.mark.requirement("003/secrets/everywhere")
@pytest.mark.requirement("003/secrets/audit-events-logs")
async def test_no_secret_reaches_the_disk_or_a_log_in_any_form(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    known = [f"{secrets.token_urlsafe(9)}/+{secrets.token_hex(4)}é" for _ in range(500)]
    shown: list[str] = []
    async with open_rig(tmp_path) as rig:
        for secret in known:
            rig.patterns.learn(secret)
        for number in range(0, 500, 20 if soaking() else 100):
            batch = [form(one) for one in known[number : number + 20] for form in FORMS]
            text = " ".join(batch)
            rig.engine.outputs |= {
                "count": ToolOutput(0, stdout=text, stderr=text, data={"x": [text, {text: 1}]}),
                "fail": Unavailable(text),
                "hang": RuntimeError(text),
            }
            rig.web.answers["http://a.example.com/"] = page("", text.encode(), status=500, x=text)
            headers: JsonValue = {"X-A": text[:4000]}
            for answer in (
                await rig.run(call(f"a{number}", "count", body=text, k=[text])),
                await rig.run(call(f"b{number}", "fail", body={text: text})),
                await rig.run(call(f"c{number}", "denied", command=text)),
                await rig.run(call(f"d{number}", "ask.once", url=f"http://h/?q={text}")),
                await rig.run(
                    call(f"e{number}", "http.fetch", url="http://a.example.com/", headers=headers)
                ),
                await rig.run(
                    call(f"f{number}", "http.fetch", url=f"http://{batch[1]}.example.com/")
                ),
                await rig.run(call(f"g{number}", "shell", command=f"echo {text}")),
            ):
                shown.append(repr(answer))
            with pytest.raises(Invalid):
                await rig.run(call(f"h{number}", "count")._replace(run_id=batch[0]))
            with pytest.raises(Invalid):
                await rig.run(call(batch[1], "count"))
    haystack = b"\n".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    haystack += "\n".join([*shown, caplog.text]).encode()
    leaked = {one for one in known for form in FORMS if form(one).encode() in haystack}
    assert leaked == set()
    assert (tmp_path / "journal.db").stat().st_size > 0


SECRET_BY_PLACE: list[JsonValue] = [
    {"pin": "hunter2"},
    {"pwd": "hunter2"},
    {"tokens": ["hunter2"]},
    {"headers": [["Cookie", "hunter2"]]},
    {"headers": [{"name": "Authorization", "value": "hunter2"}]},
    {"params": ["--pass", "hunter2"]},
]


async def test_what_a_target_calls_its_isolation_is_looked_through_too(rig: Rig) -> None:
    rig.patterns.learn("correct-horse-battery")
    rig.engine.outputs["count"] = ToolOutput(0, isolation="runner:correct-horse-battery")
    assert as_ran(await rig.run(call("r1", "count"))).isolation == "runner:[redacted]"
    written = [event.data for event in await rig.journal.read(EVIDENCE, subject="r1")]
    written += [row.value for row in await rig.journal.scan("executions")]
    assert not any(b"correct-horse" in each for each in written)


@pytest.mark.requirement("003/secrets/everywhere")
async def test_no_half_of_a_known_secret_is_left_where_output_was_cut(rig: Rig) -> None:
    secret = "correct-horse-battery-é-staple"
    rig.patterns.learn(secret)
    half = secret.encode()[:23].decode("utf-8", "replace")  # and half of a character
    middle = f"a {secret[:15]}\n[9 bytes left out]\n{secret[12:]} b"
    rig.engine.outputs["count"] = ToolOutput(
        0,
        stdout=f"out {half}",
        stderr=f"{middle}\n[cut: 10 of 20 bytes]\n",
        data={"bodyText": f"{'web ' * 99}{half}", "parts": [f"{'x ' * 200}%63orrect-horse-%62"]},
        truncated=True,
    )
    pieces: list[str] = []
    output = as_ran(await rig.run(call("r1", "count"), update=pieces.append))
    assert (output.stdout, "".join(pieces)) == ("out [redacted]", "out [redacted]")
    left = "a [redacted]\n[9 bytes left out]\n[redacted] b\n[cut: 10 of 20 bytes]\n"
    assert output.stderr == left
    assert output.data == {
        "bodyText": f"{'web ' * 99}[redacted]",
        "parts": [f"{'x ' * 200}[redacted]"],
    }
    written = [event.data for event in await rig.journal.read(EVIDENCE, subject="r1")]
    written += [row.value for row in await rig.journal.scan("executions")]
    assert not any(b"correct-" in each or b"staple" in each for each in written)


async def test_what_begins_like_a_known_secret_is_shown_where_nothing_was_cut(rig: Rig) -> None:
    rig.patterns.learn("https://hooks.example.com/of-one-team")
    said = ToolOutput(0, stdout="see https://hooks.example.com", data={"cut": "https://hooks"})
    rig.engine.outputs["count"] = said
    output = as_ran(await rig.run(call("r1", "count")))
    assert (output.stdout, output.data) == (said.stdout, said.data)
    short = said._replace(stdout="see https:", data=None, truncated=True)
    rig.engine.outputs["count"] = short
    assert as_ran(await rig.run(call("r2", "count"))).stdout == "see https:"


@pytest.mark.parametrize("given", SECRET_BY_PLACE, ids=str)
async def test_a_person_who_is_asked_is_shown_no_secret_that_its_place_gives_away(
    rig: Rig, given: JsonValue
) -> None:
    pending = await rig.run(call("r1", "ask.once", given=given))
    assert isinstance(pending, Pending)
    assert "hunter2" not in pending.summary
    row = await rig.journal.get(APPROVALS, pending.approval_id)
    assert row is not None
    assert b"hunter2" not in row.value


async def test_a_person_who_is_asked_sees_what_is_invisible_or_turns_the_text_around(
    rig: Rig,
) -> None:
    hidden = "pay \u202e001\u202c to\u200b a\u3000friend\U000e0041 \x9b2J"
    pending = await rig.run(call("r1", "ask.once", text=hidden))
    assert isinstance(pending, Pending)
    shown = "pay <U+202E>001<U+202C> to<U+200B> a<U+3000>friend<U+E0041> <U+009B>2J"
    assert pending.summary == f'ask.once {{"text": "{shown}"}}'
    assert pending.args == {"text": shown}


async def test_a_person_who_is_asked_sees_all_of_a_long_call(rig: Rig) -> None:
    padded = "ls " + "a " * 50_000 + "; pay everything"
    pending = await rig.run(call("r1", "ask.once", command=padded))
    assert isinstance(pending, Pending)
    assert pending.summary == f'ask.once {{"command": "{padded}"}}'
    asked = await rig.gate.approval(pending.approval_id)
    assert (asked.summary, asked.args) == (pending.summary, {"command": padded})


async def test_an_approval_of_an_earlier_version_is_not_approved_with_masks_in_its_call(
    rig: Rig,
) -> None:
    pending = await rig.run(call("r1", "ask.once", text="password=hunter2"))
    assert isinstance(pending, Pending)
    asked = await rig.gate.approval(pending.approval_id)
    assert (asked.args, asked.approval.hidden) == ({"text": "password=hunter2"}, 0)
    await rig.journal.commit(Delete(ASKED_ARGS, pending.approval_id))  # 0.1.0 kept none
    kept = await rig.gate.approval(pending.approval_id)
    assert kept.args == {"text": "password=[redacted]"}
    with pytest.raises(HiddenArguments):
        await rig.gate.decide_approval(
            pending.approval_id, approve=True, decided_by=by("u"), reason=""
        )
    with pytest.raises(Conflict):
        await rig.gate.reveal_approval(pending.approval_id, by="operator")
    await rig.gate.decide_approval(
        pending.approval_id, approve=False, decided_by=by("u"), reason=""
    )


async def test_a_secret_that_became_known_while_a_call_waits_is_not_shown(rig: Rig) -> None:
    encoded = b"a very long passphrase".hex()
    pending = await rig.run(call("r1", "ask.once", text=encoded))
    assert isinstance(pending, Pending)
    rig.patterns.learn("a very long passphrase", "late")
    asked = await rig.gate.approval(pending.approval_id)
    assert asked.args == {"text": f"[hidden: {len(encoded)} characters]"}
    with pytest.raises(HiddenArguments):
        await rig.gate.decide_approval(
            pending.approval_id, approve=True, decided_by=by("u"), reason=""
        )
    revealed = await rig.gate.reveal_approval(pending.approval_id, by="operator")
    assert revealed.args == {"text": encoded}
    await rig.gate.decide_approval(pending.approval_id, approve=True, decided_by=by("u"), reason="")


NO_PAY = "  - {id: no-pay, deny: exec, match: {command: ['pay **']}, reason: No money}\n"


async def test_the_detail_of_a_refusal_holds_no_part_of_a_secret_that_it_is_too_short_for(
    tmp_path: Path,
) -> None:
    async with open_rig(tmp_path, policies={ACTIVE_POLICY: POLICY + NO_PAY}) as rig:
        rig.patterns.learn("correct horse battery staple")
        params: list[JsonValue] = ["x" * 180, "correct horse battery staple", "y" * 1000]
        await rig.run(call("r1", "exec", command="pay", params=params))
        decision = await artifact(rig, "requests/r1/policy_decision.json")
        assert "correct" not in decision["detail"]
        assert len(decision["detail"]) == 200


async def test_the_detail_of_a_refusal_holds_no_secret_that_its_flag_gives_away(
    tmp_path: Path,
) -> None:
    async with open_rig(tmp_path, policies={ACTIVE_POLICY: POLICY + NO_PAY}) as rig:
        params: list[JsonValue] = ["--pin", "hunter2", "-u", "me:hunter2"]
        answer = await rig.run(call("r1", "exec", command="pay", params=params))
        assert isinstance(answer, Denied)
        assert answer.rule_id == "no-pay"
        decision = await artifact(rig, "requests/r1/policy_decision.json")
        assert decision["detail"] == "pay --pin [redacted] -u [redacted]"


async def test_a_file_is_kept_in_the_commit_that_puts_it_on_record(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit, commits = rig.journal.commit, 0

    async def dies_after_one(*operations: Operation) -> list[Event]:
        nonlocal commits
        commits += 1
        if commits > 1:
            raise Unavailable("killed")
        return await commit(*operations)

    monkeypatch.setattr(rig.journal, "commit", dies_after_one)
    with contextlib.suppress(Unavailable):
        await rig.executor.keep(b"hello")
    ref = f"files/{hashlib.sha256(b'hello').hexdigest()}"
    assert await rig.executor.artifact(ref) == b"hello"
    assert [record["fields"]["size"] for record in await records(rig, ref)] == [5]
