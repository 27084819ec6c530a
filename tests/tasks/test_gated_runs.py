"""Browser tasks at the gate: refused, approved, rejected, expired, canceled, interrupted; and whose
they are."""

import asyncio
import shutil
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from tests.support.people import by
from tests.tasks.runtimes import (
    LOCAL,
    Gate,
    Gated,
    a_gated_toolset,
    a_toolset,
    get,
    instant,
    memory_journal,
    run,
    until,
)
from toolgate.core.enums import Outcome, TaskCode, TaskMode, TaskStatus, TrustLevel
from toolgate.core.errors import Unavailable
from toolgate.core.tools import Caller, JsonValue, ToolRequest
from toolgate.journal.journal import Put
from toolgate.tasks import records, runtime
from toolgate.tasks.engine import BrowserEngine
from toolgate.tasks.state import MAX_ATTEMPTS, OPERATOR, OPERATORS_CALLER, TaskFailed, TaskRun
from toolgate.tasks.task_agent import TaskAgent
from toolgate.tasks.template import TaskOutcome
from toolgate.tasks.toolset import Asker, Call, error_answer
from toolgate.testing.clock import FakeClock
from toolgate.testing.gate import FakeGate
from toolgate.tools.outcomes import Also, Begun, Denied, Pending, nothing_also

ALLOW = """
version: 1
name: allow
default: deny
rules:
  - {id: all, allow: "browser.*", match: any, reason: For the test}
"""
DENY = "version: 1\nname: deny\ndefault: deny\nrules: []\n"
ASK = """
version: 1
name: ask
default: deny
rules:
  - {id: ask, ask: browser.run_task_template, match: any, reason: A person must see it}
  - {id: all, allow: "browser.*", match: any, reason: For the test}
"""
NO_READING = """
version: 1
name: no-reading
default: deny
rules:
  - {id: ask, ask: browser.get_task_run, match: any, reason: A person must see it}
  - {id: never, deny: browser.list_task_runs, match: any, reason: Not for the test}
  - {id: all, allow: "browser.*", match: any, reason: For the test}
"""
ADA = Call(Asker(TrustLevel.LOCAL, Caller(device="ada", user="ada", role="device"), "ada"))
BOB = Call(Asker(TrustLevel.LOCAL, Caller(device="bob", user="bob", role="device"), "bob"))
BOSS = Call(Asker(TrustLevel.LOCAL, Caller(user="operator", role="operator"), "console"))


async def waiting_run(gated: Gated, template: str = "instant", name: str = "a") -> tuple[str, str]:
    """A run that waits for a person, and its approval."""
    begun = await run(gated.tools, template, {"name": name}, mode="async")
    assert begun["status"] == "queued"
    (approval_id,) = await gated.asked()
    return begun["runId"], approval_id


async def ended(gated: Gated, run_id: str) -> TaskStatus:
    return (await gated.tools.runtime.wait(run_id, timeout_s=10)).status


@pytest.mark.requirement("004/gate/one-call")
async def test_a_submission_is_one_call_with_its_evidence(tmp_path: Path) -> None:
    async with a_gated_toolset(tmp_path / "home", instant(), policy=ALLOW) as gated:
        answer = await run(gated.tools, "instant", {"name": "a"}, mode="sync")
        assert answer["status"] == "succeeded"
        assert await gated.audited() == [("browser.instant", "allow", "ok")]
        evidence = gated.parts.evidence
        assert b'"name":"a"' in await evidence.fetch(f"requests/{answer['runId']}/request.json")
        result = await evidence.fetch(f"requests/{answer['runId']}/tool_result.json")
        assert answer["artifactIds"][0].encode() in result


async def test_a_failed_run_is_a_failed_call(tmp_path: Path) -> None:
    failing = instant(outcome=TaskOutcome(b"{}", success=False, message="it was not accepted"))
    async with a_gated_toolset(tmp_path / "home", failing, policy=ALLOW) as gated:
        assert (await run(gated.tools, "instant", mode="sync"))["status"] == "failed"
        assert await gated.audited() == [("browser.instant", "allow", "failed")]


@pytest.mark.requirement("004/gate/denied")
async def test_a_denied_submission_leaves_no_run_and_says_why(tmp_path: Path) -> None:
    async with a_gated_toolset(tmp_path / "home", instant(), policy=DENY) as gated:
        for mode in ("sync", "async", "auto"):
            with pytest.raises(TaskFailed) as failed:
                await run(gated.tools, "instant", mode=mode, idempotencyKey="k")
            assert failed.value.code is TaskCode.TRUST_LEVEL_NOT_ALLOWED
            assert failed.value.error.details["ruleId"] == "default_deny"
            assert "toolgate policy explain" in str(failed.value)
            actions = error_answer(failed.value.error)["nextActions"]
            assert actions == [], "another transport is no way around a rule"
        assert gated.tools.runtime.listed() == []
        assert await gated.audited() == [("browser.instant", "deny", "denied")] * 3


@pytest.mark.requirement("004/gate/reading-tools")
async def test_reading_tools_are_recorded_only_when_they_are_refused(tmp_path: Path) -> None:
    async with a_gated_toolset(tmp_path / "home", instant(), policy=NO_READING) as gated:
        await gated.tools.call("list_task_templates", {}, LOCAL)
        await gated.tools.call("get_runtime_profile", {}, LOCAL)
        assert await gated.audited() == []
        for tool, rule in (("list_task_runs", "never"), ("get_task_run", "ask")):
            with pytest.raises(TaskFailed) as failed:
                await gated.tools.call(tool, {"runId": "run_none"}, LOCAL)
            assert failed.value.code is TaskCode.TRUST_LEVEL_NOT_ALLOWED
            assert failed.value.error.details["ruleId"] == rule
        assert sorted(await gated.audited()) == [
            ("browser.get_task_run", "deny", "denied"),
            ("browser.list_task_runs", "deny", "denied"),
        ]
        assert await gated.asked() == []


@pytest.mark.requirement("004/gate/waiting")
async def test_an_approved_run_is_queued_and_its_clock_starts_then(tmp_path: Path) -> None:
    gate = Gate()
    async with a_gated_toolset(tmp_path / "home", gate.template, policy=ASK) as gated:
        run_id, approval_id = await waiting_run(gated, "gated")
        assert gated.tools.runtime.view(run_id).started_at is None
        await gated.decide(approval_id, approve=True)
        await until(lambda: gate.started == ["a"])
        gate.let("a")
        assert await ended(gated, run_id) is TaskStatus.SUCCEEDED
        assert await gated.audited() == [("browser.gated", "allow", "ok")]


@pytest.mark.requirement("004/gate/not-approved")
@pytest.mark.parametrize("expires", [False, True])
async def test_a_run_that_nobody_approves_fails(tmp_path: Path, expires: bool) -> None:
    limit = "50" if expires else "60000"
    async with a_gated_toolset(
        tmp_path / "home", instant(), policy=ASK, APPROVAL_TIMEOUT_MS=limit
    ) as gated:
        begun = await run(gated.tools, "instant", {"name": "a"}, mode="async")
        approval_id = f"apr_{begun['runId']}"
        if expires:
            await asyncio.sleep(0.06)  # the time itself
            row = await gated.journal.get("approvals", approval_id)
            assert row is not None
            await gated.parts.approvals.on_due(row)
        else:
            await gated.decide(approval_id, approve=False)
        assert await ended(gated, begun["runId"]) is TaskStatus.FAILED
        error = gated.tools.runtime.view(begun["runId"]).error
        assert error is not None
        assert error.code is TaskCode.TRUST_LEVEL_NOT_ALLOWED
        rule = "approval_expired" if expires else "approval_rejected"
        assert error.details["ruleId"] == rule
        assert await gated.audited() == [("browser.instant", "deny", "denied")]


@pytest.mark.parametrize("mode", ["sync", "auto"])
async def test_a_caller_is_held_for_a_while_and_then_answered_as_async(
    tmp_path: Path, mode: str
) -> None:
    async with a_gated_toolset(tmp_path / "home", instant(), policy=ASK, hold_s=0.05) as gated:
        answer = await run(gated.tools, "instant", {"name": "a"}, mode=mode)
        assert (answer["status"], answer["mode"]) == ("queued", "async")
        await gated.decide(f"apr_{answer['runId']}", approve=True)
        assert await ended(gated, answer["runId"]) is TaskStatus.SUCCEEDED


async def test_a_caller_that_is_held_gets_the_result_of_what_is_approved(tmp_path: Path) -> None:
    async with a_gated_toolset(tmp_path / "home", instant(), policy=ASK) as gated:
        asking = asyncio.ensure_future(run(gated.tools, "instant", {"name": "a"}, mode="sync"))
        async with asyncio.timeout(10):
            while not (asked := await gated.asked()):
                await asyncio.sleep(0.005)
        await gated.decide(asked[0], approve=True)
        answer = await asyncio.wait_for(asking, 10)
        assert (answer["status"], answer["result"]) == ("succeeded", {"name": "a"})


class QuickApprover(FakeGate):
    """Approves before the caller knows that it waits."""

    async def begin(
        self, request: ToolRequest, *, also: Also = nothing_also, due: int | None = None
    ) -> Begun:
        begun = await super().begin(request, also=also)
        if isinstance(begun, Pending) and not begun.known:
            await self.decide_approval(
                begun.approval_id, approve=True, decided_by=by("operator"), reason=""
            )
        return begun


async def test_a_decision_that_comes_at_once_is_not_missed(tmp_path: Path) -> None:
    gate = QuickApprover(asks={"browser.instant"})
    async with a_toolset(tmp_path, instant(), gate=gate) as tools:
        assert (await run(tools, "instant", mode="sync"))["status"] == "succeeded"


@pytest.mark.requirement("004/gate/cancel")
async def test_cancelling_a_run_that_waits_closes_its_approval(tmp_path: Path) -> None:
    gate = Gate()
    async with a_gated_toolset(tmp_path / "home", gate.template, policy=ASK) as gated:
        run_id, approval_id = await waiting_run(gated, "gated")
        answer = await gated.tools.call("cancel_task_run", {"runId": run_id}, LOCAL)
        assert answer["status"] == "canceled"
        assert await gated.asked() == []
        with pytest.raises(Exception, match="already"):
            await gated.decide(approval_id, approve=True)
        assert gate.started == []
        assert (await get(gated.tools, run_id))["error"]["errorCode"] == "RUN_CANCELED"


@pytest.mark.requirement("004/gate/cancel")
@pytest.mark.parametrize("how", ["cancel", "time out"])
async def test_ending_a_running_run_ends_its_call_in_the_same_commit(
    tmp_path: Path, how: str
) -> None:
    gate = Gate()
    async with a_gated_toolset(tmp_path / "home", gate.template, policy=ALLOW) as gated:
        limit = 600_000 if how == "cancel" else 300
        begun = await run(gated.tools, "gated", {"name": "a"}, mode="async", timeoutMs=limit)
        await until(lambda: gate.started == ["a"])
        if how == "cancel":
            await gated.tools.runtime.cancel(begun["runId"])
        await ended(gated, begun["runId"])
        assert gated.tools.runtime.running == 0
        await until(lambda: gate.stopped == ["a"])
        assert await gated.audited() == [("browser.gated", "allow", "failed")]
        known = await gated.gate.begin(
            ToolRequest(
                begun["runId"], "browser.gated", {"name": "a"}, LOCAL.asker.caller, begun["runId"]
            )
        )
        assert not isinstance(known, Denied | Pending)
        assert known.known
        assert (await known.run()).outcome is Outcome.MAY_HAVE_EXECUTED


async def test_a_run_out_of_time_ends_once_its_end_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime, "WRITING_PAUSES_S", (0.0, 0.0, 0.05))
    gate = Gate()
    async with a_gated_toolset(tmp_path / "home", gate.template, policy=ALLOW) as gated:
        begun = await run(gated.tools, "gated", {"name": "a"}, mode="async", timeoutMs=500)
        await until(lambda: gate.started == ["a"])

        async def refuse(*_: object, **__: object) -> None:
            raise Unavailable("the disk is full")

        with monkeypatch.context() as full:
            full.setattr(gated.journal, "commit", refuse)
            await until(lambda: gate.stopped == ["a"])
        await until(lambda: gated.tools.runtime.view(begun["runId"]).is_over)
        error = gated.tools.runtime.view(begun["runId"]).error
        assert error is not None
        assert error.code is TaskCode.RUN_TIMEOUT
        assert await gated.audited() == [("browser.gated", "allow", "failed")]


async def test_cancelling_a_queued_run_says_that_it_was_not_started(tmp_path: Path) -> None:
    gate = Gate()
    async with a_gated_toolset(tmp_path / "home", gate.template, policy=ALLOW) as gated:
        ids = [
            (await run(gated.tools, "gated", {"name": str(n)}, mode="async"))["runId"]
            for n in range(6)
        ]
        await gated.tools.runtime.cancel(ids[5])
        result = await gated.parts.evidence.fetch(f"requests/{ids[5]}/tool_result.json")
        assert b'"outcome":"not_started"' in result


def killed(home: Path, copy: Path) -> Path:
    """The home as a kill would leave it at this moment."""
    shutil.copytree(home, copy, ignore=shutil.ignore_patterns("*.lock"))
    return copy


@pytest.mark.parametrize("approve", [True, False])
async def test_a_run_that_waits_goes_on_waiting_after_a_kill(tmp_path: Path, approve: bool) -> None:
    async with a_gated_toolset(tmp_path / "home", instant(), policy=ASK) as gated:
        run_id, approval_id = await waiting_run(gated)
        copy = killed(tmp_path / "home", tmp_path / "copy")
    async with a_gated_toolset(copy, instant(), policy=ASK) as gated:
        assert (await get(gated.tools, run_id))["status"] == "queued"
        assert await gated.asked() == [approval_id]
        await gated.decide(approval_id, approve=approve)
        status = TaskStatus.SUCCEEDED if approve else TaskStatus.FAILED
        assert await ended(gated, run_id) is status
        decision = ("allow", "ok") if approve else ("deny", "denied")
        assert await gated.audited() == [("browser.instant", *decision)]


async def test_a_decision_that_was_made_while_nobody_heard_it_counts_at_the_next_start(
    tmp_path: Path,
) -> None:
    async with a_gated_toolset(tmp_path / "home", instant(), policy=ASK) as gated:
        run_id, approval_id = await waiting_run(gated)
        assert gated.tools.runtime._approvals is not None
        gated.tools.runtime._approvals.close()
        await gated.decide(approval_id, approve=True)
        copy = killed(tmp_path / "home", tmp_path / "copy")
    async with a_gated_toolset(copy, instant(), policy=ASK) as gated:
        assert await ended(gated, run_id) is TaskStatus.SUCCEEDED


async def test_a_run_that_was_killed_is_begun_again_where_it_may_be_repeated(
    tmp_path: Path,
) -> None:
    safe, unsafe = Gate("safe", repeatable=True), Gate("unsafe")
    async with a_gated_toolset(
        tmp_path / "home", safe.template, unsafe.template, policy=ALLOW
    ) as gated:
        again = await run(gated.tools, "safe", {"name": "s"}, mode="async")
        never = await run(gated.tools, "unsafe", {"name": "u"}, mode="async")
        await until(lambda: safe.started and unsafe.started)
        copy = killed(tmp_path / "home", tmp_path / "copy")
    safe, unsafe = Gate("safe", repeatable=True), Gate("unsafe")
    async with a_gated_toolset(copy, safe.template, unsafe.template, policy=ALLOW) as gated:
        await until(lambda: safe.started == ["s"])
        safe.let("s")
        assert await ended(gated, again["runId"]) is TaskStatus.SUCCEEDED
        told = await get(gated.tools, never["runId"])
        assert told["status"] == "failed"
        assert told["error"]["details"]["outcome"] == "may_have_executed"
        assert unsafe.started == []
        assert sorted(await gated.audited()) == [
            ("browser.safe", "allow", "ok"),
            ("browser.unsafe", "allow", "failed"),
        ]


async def test_a_run_that_takes_its_process_down_each_time_ends_with_its_call(
    tmp_path: Path,
) -> None:
    home = tmp_path / "home"
    gate = Gate("safe", repeatable=True)
    async with a_gated_toolset(home, gate.template, policy=ALLOW) as gated:
        begun = await run(gated.tools, "safe", {"name": "a"}, mode="async")
        await until(lambda: gate.started == ["a"])
        home = killed(home, tmp_path / "1")
    for number in range(2, MAX_ATTEMPTS + 1):
        again = Gate("safe", repeatable=True)
        async with a_gated_toolset(home, again.template, policy=ALLOW):
            await until(lambda again=again: again.started == ["a"])
            home = killed(home, tmp_path / str(number))
    last = Gate("safe", repeatable=True)
    async with a_gated_toolset(home, last.template, policy=ALLOW) as gated:
        assert await ended(gated, begun["runId"]) is TaskStatus.FAILED
        assert last.started == []
        assert await gated.audited() == [("browser.safe", "allow", "failed")]


async def test_an_approved_run_that_was_killed_is_not_repeated(tmp_path: Path) -> None:
    gate = Gate("safe", repeatable=True)
    async with a_gated_toolset(tmp_path / "home", gate.template, policy=ASK) as gated:
        run_id, approval_id = await waiting_run(gated, "safe")
        await gated.decide(approval_id, approve=True)
        await until(lambda: gate.started == ["a"])
        copy = killed(tmp_path / "home", tmp_path / "copy")
    gate = Gate("safe", repeatable=True)
    async with a_gated_toolset(copy, gate.template, policy=ASK) as gated:
        assert await ended(gated, run_id) is TaskStatus.FAILED
        assert gate.started == []


async def test_a_stop_leaves_a_repeatable_run_to_the_next_start(tmp_path: Path) -> None:
    gate = Gate("safe", repeatable=True)
    async with a_gated_toolset(tmp_path / "home", gate.template, policy=ALLOW) as gated:
        begun = await run(gated.tools, "safe", {"name": "a"}, mode="async")
        await until(lambda: gate.started == ["a"])
    gate = Gate("safe", repeatable=True)
    async with a_gated_toolset(tmp_path / "home", gate.template, policy=ALLOW) as gated:
        await until(lambda: gate.started == ["a"])
        gate.let("a")
        assert await ended(gated, begun["runId"]) is TaskStatus.SUCCEEDED
        assert await gated.audited() == [("browser.safe", "allow", "ok")]


async def test_a_task_within_a_call_begins_no_second_call(tmp_path: Path) -> None:
    async with a_gated_toolset(tmp_path / "home", instant(), policy=ALLOW) as gated:
        submission: dict[str, JsonValue] = {"templateId": "instant", "inputs": {"name": "b"}}
        calls: dict[str, dict[str, JsonValue]] = {
            "browser.instant": {"name": "a"},
            "browser.run_task_template": submission,
        }
        for number, (tool, args) in enumerate(calls.items()):
            caller = Caller(user="ada", agent="script", session="s")
            call = await gated.gate.begin(ToolRequest(f"req_{number}", tool, args, caller))
            assert not isinstance(call, Denied | Pending)
            output = await call.run()
            assert output.ok, output
            await call.finish(output)
        assert sorted(await gated.audited()) == [
            ("browser.instant", "allow", "ok"),
            ("browser.run_task_template", "allow", "ok"),
        ]
        owners = {found.owner for found in gated.tools.runtime.listed()}
        assert owners == {"user:ada"}


async def test_what_is_typed_into_a_form_is_not_in_the_evidence(tmp_path: Path) -> None:
    template = replace(instant("typed"), secrets=lambda inputs: [inputs.name], keeps_inputs=False)
    async with a_gated_toolset(tmp_path / "home", template, policy=ALLOW) as gated:
        answer = await run(gated.tools, "typed", {"name": "a plain word"}, mode="sync")
        request = await gated.parts.evidence.fetch(f"requests/{answer['runId']}/request.json")
        assert b"a plain word" not in request
        assert b"[redacted]" in request


async def test_a_caller_sees_and_cancels_own_runs_only_and_the_operator_all(
    tmp_path: Path,
) -> None:
    gate = Gate()
    async with a_toolset(tmp_path, gate.template, instant()) as tools:
        begun = await run(tools, "gated", {"name": "a"}, call=ADA, mode="async")
        done = await run(tools, "instant", call=ADA, mode="sync")
        one, artifact = {"runId": begun["runId"]}, {"artifactId": done["artifactIds"][0]}
        for tool, arguments, code in (
            ("get_task_run", one, TaskCode.RUN_NOT_FOUND),
            ("cancel_task_run", one, TaskCode.RUN_NOT_FOUND),
            ("get_artifact", artifact, TaskCode.ARTIFACT_NOT_FOUND),
        ):
            with pytest.raises(TaskFailed) as failed:
                await tools.call(tool, arguments, BOB)
            assert failed.value.code is code
        assert (await tools.call("list_task_runs", {}, BOB))["total"] == 0
        for viewer in (ADA, BOSS):
            assert (await tools.call("list_task_runs", {}, viewer))["total"] == 2
            assert (await tools.call("get_artifact", artifact, viewer))["complete"]
            assert (await tools.call("get_task_run", one, viewer))["status"] == "running"
        assert (await tools.call("cancel_task_run", one, BOSS))["success"]


async def test_an_open_run_of_the_operator_that_no_gate_has_seen_is_decided_at_the_start(
    tmp_path: Path,
) -> None:
    clock = FakeClock()
    journal = memory_journal(clock)
    old = TaskRun(
        run_id="run_old",
        template_id="instant",
        template_version="1.0.0",
        session_id="sess_old",
        owns_session=True,
        trust=TrustLevel.LOCAL,
        mode=TaskMode.ASYNC,
        timeout_ms=1000,
        inputs={"name": "a"},
        created_at=clock.now_ms(),
        updated_at=clock.now_ms(),
        owner=OPERATOR,
        caller=OPERATORS_CALLER,
    )
    row = msgspec.json.encode(old)  # as the upgrade of a home of 0.1.0 writes it
    await journal.commit(Put(records.RUNS, old.run_id, row, expected=0))
    gate = FakeGate(denied={"browser.instant"})
    async with a_toolset(tmp_path, instant(), journal=journal, clock=clock, gate=gate) as tools:
        ended = tools.runtime.view("run_old", viewer=OPERATOR)
        assert ended.error is not None
        assert ended.error.code is TaskCode.TRUST_LEVEL_NOT_ALLOWED
        with pytest.raises(TaskFailed):
            tools.runtime.view("run_old", viewer="device:ada")


async def test_a_session_is_its_owners(tmp_path: Path) -> None:
    async with a_toolset(tmp_path, instant()) as tools:
        sessions = tools.runtime.sessions
        await sessions.open("sess_1", trust=TrustLevel.LOCAL, client="ada", owner="device:ada")
        sessions.keep("sess_1")
        with pytest.raises(TaskFailed) as failed:
            await run(tools, "instant", call=BOB, session="sess_1", mode="sync")
        assert failed.value.code is TaskCode.SESSION_NOT_FOUND
        for call in (ADA, BOSS):
            answer = await run(tools, "instant", call=call, session="sess_1", mode="sync")
            assert answer["status"] == "succeeded"


async def test_an_idempotency_key_is_its_callers(tmp_path: Path) -> None:
    async with a_toolset(tmp_path, instant()) as tools:
        ids = set()
        for call in (ADA, BOB, BOSS):
            for deduplicated in (False, True):
                answer = await run(tools, "instant", call=call, mode="sync", idempotencyKey="k")
                assert answer["deduplicated"] is deduplicated
                ids.add(answer["runId"])
        assert len(ids) == 3
        owners = {tools.runtime.view(run_id).owner for run_id in ids}
        assert owners == {"device:ada", "device:bob", OPERATOR}


async def test_the_agents_tools_are_not_decided_twice(tmp_path: Path) -> None:
    gate = FakeGate(denied={"browser.instant", "browser.list_task_runs"})
    async with a_toolset(tmp_path, instant(), gate=gate) as tools:
        engine = BrowserEngine(tools, TaskAgent(tools, check=lambda *_: ()))

        async def call(tool: str, **args: str) -> object:
            output = await engine.run(ToolRequest("req_1", tool, args, Caller(user="ada")))
            assert output.ok, output
            return output.data

        await call("browser.instant", name="a")
        await call("browser.list_task_runs")
        assert gate.refused == []
        assert gate.ran == []
