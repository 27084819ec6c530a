"""Runs in their queue: who runs when, how each ends once, what is kept and for how long."""

import asyncio
import errno
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from tests.support.browser import FakeBrowser
from tests.tasks.runtimes import (
    LOCAL,
    REMOTE,
    Gate,
    Inputs,
    RefusingJournal,
    SlowJournal,
    a_toolset,
    get,
    instant,
    memory_journal,
    run,
    until,
)
from toolgate.browser.browser import PageCrashed
from toolgate.core.enums import TaskCode, TaskStatus, TrustLevel
from toolgate.core.errors import Conflict, ToolgateError
from toolgate.core.system_clock import SystemClock
from toolgate.journal.journal import Put
from toolgate.journal.local_bus import LocalBus
from toolgate.tasks import records, runtime
from toolgate.tasks.state import ARTIFACT_TTL_MS, RUN_TTL_MS, Ended, Summary, TaskFailed
from toolgate.tasks.template import TaskOutcome, Template, Work
from toolgate.tasks.toolset import Asker, Call
from toolgate.testing.clock import FakeClock


@pytest.mark.requirement("004/pool/five-running")
@pytest.mark.requirement("004/pool/queued-status")
@pytest.mark.requirement("004/pool/queued-completes")
@pytest.mark.requirement("004/pool/fifo")
async def test_five_run_at_once_and_the_rest_follow_in_the_order_they_came(tmp_path: Path) -> None:
    gate = Gate()
    async with a_toolset(tmp_path, gate.template) as toolset:
        answers = [await run(toolset, "gated", {"name": str(n)}, mode="async") for n in range(8)]
        await until(lambda: len(gate.started) == 5)
        assert [answer["status"] for answer in answers[5:]] == ["queued"] * 3
        assert gate.started == ["0", "1", "2", "3", "4"]
        gate.let("3")
        await until(lambda: len(gate.started) == 6)
        for name in "01245":
            gate.let(name)
        await until(lambda: len(gate.started) == 8)
        assert gate.started[5:] == ["5", "6", "7"]
        gate.let("6")
        gate.let("7")
        for answer in answers:
            ended = await toolset.runtime.wait(answer["runId"], timeout_s=5)
            assert ended.status is TaskStatus.SUCCEEDED


@pytest.mark.requirement("004/cancel/running-run")
@pytest.mark.requirement("004/cancel/queued-run")
@pytest.mark.requirement("004/cancel/at-once")
@pytest.mark.requirement("004/cancel/spelling")
async def test_cancelling_ends_a_running_and_a_queued_run_at_once(tmp_path: Path) -> None:
    gate = Gate()
    async with a_toolset(tmp_path, gate.template) as toolset:
        ids = [
            (await run(toolset, "gated", {"name": str(n)}, mode="async"))["runId"] for n in range(7)
        ]
        await until(lambda: len(gate.started) == 5)
        queued = await toolset.call("cancel_task_run", {"runId": ids[5]}, LOCAL)
        assert queued == {"success": True, "runId": ids[5], "status": "canceled"}
        running = await toolset.call("cancel_task_run", {"runId": ids[0]}, LOCAL)
        assert running["status"] == "canceled"
        await until(lambda: gate.started[5:] == ["6"])  # the slot went to the next that waits
        shown = await get(toolset, ids[0])
        assert shown["status"] == "canceled"
        assert shown["error"]["errorCode"] == "RUN_CANCELED"
        assert shown["result"] is None
        assert "5" not in gate.started
        await until(lambda: "0" in gate.stopped)


@pytest.mark.requirement("004/cancel/finished-run")
@pytest.mark.requirement("004/cancel/unknown-run")
async def test_cancelling_what_has_ended_says_why_not_and_what_is_unknown_is_an_error(
    tmp_path: Path,
) -> None:
    async with a_toolset(tmp_path, instant()) as toolset:
        done = await run(toolset, "instant", mode="sync")
        answer = await toolset.call("cancel_task_run", {"runId": done["runId"]}, LOCAL)
        assert answer["success"] is False
        assert answer["reason"]
        assert answer["status"] == "succeeded"
        with pytest.raises(TaskFailed) as failed:
            await toolset.call("cancel_task_run", {"runId": "run_none"}, LOCAL)
        assert failed.value.code is TaskCode.RUN_NOT_FOUND


@pytest.mark.requirement("004/run/timeout-fails")
@pytest.mark.requirement("004/run/timeout-frees-slot")
@pytest.mark.requirement("004/run/timeout-from-running")
async def test_the_time_counts_from_the_start_of_running_and_its_end_frees_the_slot(
    tmp_path: Path,
) -> None:
    gate = Gate()
    browser = FakeBrowser()
    async with a_toolset(tmp_path, gate.template, browser=browser) as toolset:
        # The last one would be over before it began, if its time counted from when it was made.
        ids = [
            (await run(toolset, "gated", {"name": str(n)}, mode="async", timeoutMs=ms))["runId"]
            for n, ms in enumerate([1_200] * 5 + [1_000])
        ]
        ended = await toolset.runtime.wait(ids[0], timeout_s=5)
        assert ended.error is not None
        assert ended.error.code is TaskCode.RUN_TIMEOUT
        await until(lambda: "5" in gate.started)
        gate.let("5")
        last = toolset.runtime.view(ids[5])
        assert last.started_at is not None
        assert ended.started_at is not None
        assert last.started_at >= ended.started_at + 1_150  # it waited for the first one's end
        assert (await toolset.runtime.wait(ids[5], timeout_s=5)).status is TaskStatus.SUCCEEDED
        await until(lambda: [session.closes for session in browser.sessions] == [1] * 6)


@pytest.mark.requirement("004/cancel/race")
async def test_of_cancel_time_out_and_finish_that_race_one_wins(tmp_path: Path) -> None:
    gate = Gate()
    clock = FakeClock()
    journal = memory_journal(clock)
    async with a_toolset(tmp_path, gate.template, journal=journal) as toolset:
        for number in range(20):
            name = str(number)
            answer = await run(toolset, "gated", {"name": name}, mode="async", timeoutMs=30)
            await until(lambda name=name: name in gate.started)
            await asyncio.sleep(0.03 - 0.0005 * (number % 3))  # the moment itself, not a wait
            gate.let(name)
            _, by_us = await toolset.runtime.cancel(answer["runId"])
            ended = await toolset.runtime.wait(answer["runId"], timeout_s=5)
            assert ended.is_over
            assert by_us == (ended.status is TaskStatus.CANCELED)
            events = await journal.read(records.STREAM, subject=answer["runId"])
            assert [event.type for event in events].count("task_ended") == 1


async def test_an_end_is_written_only_over_the_version_it_was_decided_on(tmp_path: Path) -> None:
    clock = FakeClock()
    journal = memory_journal(clock)
    async with a_toolset(tmp_path, instant(), journal=journal) as toolset:
        done = await run(toolset, "instant", mode="sync")
        (stored,) = [found async for found in records.load(journal)]
        assert stored.run.run_id == done["runId"]
        stale = records.Stored(stored.run, stored.version - 1)
        with pytest.raises(Conflict):
            await journal.commit(*records.change(stale, stored.run, Ended(1, TaskStatus.SUCCEEDED)))


@pytest.mark.requirement("004/sessions/closed-once")
@pytest.mark.requirement("004/sessions/own-context")
async def test_a_run_without_a_session_has_one_of_its_own_closed_exactly_once(
    tmp_path: Path,
) -> None:
    browser = FakeBrowser()
    async with a_toolset(tmp_path, instant(), browser=browser) as toolset:
        first = await run(toolset, "instant", mode="sync")
        second = await run(toolset, "instant", mode="sync")
        assert first["sessionId"] != second["sessionId"]
        assert first["ownsSession"] is True
        await until(lambda: [session.closes for session in browser.sessions] == [1, 1])
    assert [session.closes for session in browser.sessions] == [1, 1]


@pytest.mark.requirement("004/sessions/own-context")
async def test_nobody_enters_the_session_that_a_run_has_for_itself(tmp_path: Path) -> None:
    gate = Gate()
    async with a_toolset(tmp_path, gate.template, instant()) as toolset:
        first = await run(toolset, "gated", {"name": "a"}, mode="async", call=REMOTE)
        await until(lambda: gate.started == ["a"])
        (listed,) = (await toolset.call("list_task_runs", {}, REMOTE))["runs"]
        other = Call(Asker(TrustLevel.REMOTE, REMOTE.asker.caller, "somebody else"))
        with pytest.raises(TaskFailed) as failed:
            await run(toolset, "instant", session=listed["sessionId"], call=other)
        assert failed.value.code is TaskCode.SESSION_NOT_FOUND
        gate.let("a")
        assert (await toolset.runtime.wait(first["runId"])).status == "succeeded"


async def _keep(inputs: Inputs, work: Work) -> TaskOutcome:
    work.keep_session()
    return TaskOutcome(b"{}")


KEEPING = Template(id="keeping", description="", inputs=Inputs, output=None, run=_keep)


@pytest.mark.requirement("004/sessions/closed-once")
async def test_a_run_that_is_canceled_when_it_has_kept_its_session_leaves_none_behind(
    tmp_path: Path,
) -> None:
    kept = asyncio.Event()

    async def keep_and_wait(inputs: Inputs, work: Work) -> TaskOutcome:
        work.keep_session()
        kept.set()
        await asyncio.Event().wait()
        raise AssertionError

    slow = Template(id="slow", description="", inputs=Inputs, output=None, run=keep_and_wait)
    browser = FakeBrowser()
    async with a_toolset(tmp_path, slow, browser=browser) as toolset:
        answer = await run(toolset, "slow", mode="async")
        await kept.wait()
        await toolset.runtime.cancel(answer["runId"])
        await until(lambda: browser.sessions[0].closes == 1)


@pytest.mark.requirement("004/sessions/given-not-closed")
@pytest.mark.requirement("004/sessions/login-kept")
@pytest.mark.requirement("004/sessions/client-gone")
async def test_a_kept_session_is_closed_by_no_run_but_when_its_client_is_gone_for_long(
    tmp_path: Path,
) -> None:
    browser = FakeBrowser()
    async with a_toolset(tmp_path, KEEPING, instant(), browser=browser, grace_s=0.5) as toolset:
        kept = (await run(toolset, "keeping", mode="sync"))["sessionId"]
        later = await run(toolset, "instant", mode="sync", session=kept)
        assert later["ownsSession"] is False
        assert later["sessionId"] == kept
        await asyncio.sleep(0)
        assert browser.sessions[0].closes == 0
        toolset.runtime.sessions.client_gone("tests")
        await run(toolset, "instant", mode="sync", session=kept)  # it is back
        toolset.runtime.sessions.client_gone("somebody else")
        assert toolset.runtime.sessions._leaving == {}  # and nothing will happen after the grace
        assert browser.sessions[0].closes == 0
        toolset.runtime.sessions.client_gone("tests")
        await until(lambda: browser.sessions[0].closes == 1)
        with pytest.raises(TaskFailed) as failed:
            await run(toolset, "instant", session=kept)
        assert failed.value.code is TaskCode.SESSION_NOT_FOUND


async def test_a_kept_session_goes_with_the_client_that_uses_it_after_a_reconnect(
    tmp_path: Path,
) -> None:
    browser, again = FakeBrowser(), Call(Asker(TrustLevel.LOCAL, LOCAL.asker.caller, "again"))
    async with a_toolset(tmp_path, KEEPING, instant(), browser=browser, grace_s=0.0) as toolset:
        sessions = toolset.runtime.sessions
        kept = (await run(toolset, "keeping", mode="sync"))["sessionId"]
        await run(toolset, "instant", mode="sync", session=kept, call=again)
        sessions.client_gone("again")  # whose it is not, while the first is there
        assert not sessions._leaving
        sessions.client_gone("tests")
        leaving = list(sessions._leaving.values())
        await run(toolset, "instant", mode="sync", session=kept, call=again)
        await asyncio.gather(*leaving)
        assert browser.sessions[0].closes == 0
        sessions.client_gone("again")
        await until(lambda: browser.sessions[0].closes == 1)


@pytest.mark.requirement("004/idempotency/same-run")
@pytest.mark.requirement("004/idempotency/any-status")
@pytest.mark.requirement("004/idempotency/inputs-not-compared")
@pytest.mark.requirement("004/idempotency/per-template")
@pytest.mark.requirement("004/idempotency/new-run")
@pytest.mark.requirement("004/idempotency/optional")
async def test_a_key_answers_with_its_run_whatever_became_of_it(tmp_path: Path) -> None:
    gate = Gate()
    async with a_toolset(tmp_path, gate.template, instant()) as toolset:
        first = await run(toolset, "gated", {"name": "a"}, mode="async", idempotencyKey="k")
        assert first["deduplicated"] is False
        again = await run(toolset, "gated", {"name": "b"}, mode="async", idempotencyKey="k")
        assert again["deduplicated"] is True
        assert again["runId"] == first["runId"]
        await toolset.runtime.cancel(first["runId"])
        after = await run(toolset, "gated", {"name": "a"}, mode="async", idempotencyKey="k")
        assert (after["runId"], after["status"]) == (first["runId"], "canceled")
        other = await run(toolset, "instant", mode="sync", idempotencyKey="k")
        assert other["deduplicated"] is False
        keyless = [await run(toolset, "instant", mode="sync") for _ in range(2)]
        assert keyless[0]["runId"] != keyless[1]["runId"]


@pytest.mark.requirement("004/idempotency/atomic")
async def test_equal_keys_that_arrive_together_make_one_run(tmp_path: Path) -> None:
    gate = Gate()
    async with a_toolset(tmp_path, gate.template) as toolset:
        answers = await asyncio.gather(
            *(
                run(toolset, "gated", {"name": "a"}, mode="async", idempotencyKey="k")
                for _ in range(20)
            )
        )
        assert len({answer["runId"] for answer in answers}) == 1
        assert sum(not answer["deduplicated"] for answer in answers) == 1


@pytest.mark.requirement("004/idempotency/window")
@pytest.mark.requirement("004/idempotency/expired")
@pytest.mark.requirement("004/idempotency/run-ttl")
@pytest.mark.parametrize("swept", [False, True])
async def test_a_run_and_its_key_are_kept_for_thirty_minutes_after_the_end(
    tmp_path: Path, swept: bool
) -> None:
    clock = FakeClock()
    async with a_toolset(tmp_path, instant(), clock=clock) as toolset:
        first = await run(toolset, "instant", mode="sync", idempotencyKey="k")
        clock.advance(RUN_TTL_MS - 1)
        again = await run(toolset, "instant", mode="sync", idempotencyKey="k")
        assert again["runId"] == first["runId"]
        clock.advance(1)
        if swept:
            await toolset.runtime.sweep()
        with pytest.raises(TaskFailed) as failed:
            await get(toolset, first["runId"])
        assert failed.value.code is TaskCode.RUN_NOT_FOUND
        anew = await run(toolset, "instant", mode="sync", idempotencyKey="k")
        assert anew["runId"] != first["runId"]
        assert anew["deduplicated"] is False


async def test_what_is_over_is_forgotten_though_an_earlier_sweep_broke(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime, "SWEEP_S", 0.001)
    async with a_toolset(tmp_path, instant()) as toolset:
        sweeps: list[str] = []

        async def fails() -> int:
            sweeps.append("artifacts")
            raise OSError(errno.EIO, "the disk does not answer")

        monkeypatch.setattr(toolset.runtime.artifacts, "sweep", fails)
        await until(lambda: len(sweeps) > 1)


@pytest.mark.requirement("004/artifacts/kept-24h")
@pytest.mark.requirement("004/artifacts/expired-tombstone")
@pytest.mark.parametrize("swept", [False, True])
async def test_an_artifact_is_kept_for_a_day_after_its_runs_end_and_then_has_expired(
    tmp_path: Path, swept: bool
) -> None:
    clock = FakeClock()
    gate = Gate()
    async with a_toolset(tmp_path, gate.template, clock=clock) as toolset:
        started = await run(toolset, "gated", {"name": "a"}, mode="async")
        await until(lambda: gate.started == ["a"])
        clock.advance(60_000)
        gate.let("a")
        ended = await toolset.runtime.wait(started["runId"], timeout_s=5)
        (artifact_id,) = ended.artifact_ids
        clock.advance(ARTIFACT_TTL_MS - 1)
        await toolset.runtime.sweep()
        chunk = await toolset.call("get_artifact", {"artifactId": artifact_id}, LOCAL)
        assert chunk["data"] == '{"name":"a"}'
        clock.advance(1)
        if swept:
            await toolset.runtime.sweep()
            assert [*(tmp_path / "blobs").rglob("*/*/*")] == []
        with pytest.raises(TaskFailed) as failed:
            await toolset.call("get_artifact", {"artifactId": artifact_id}, LOCAL)
        assert failed.value.code is TaskCode.ARTIFACT_EXPIRED


async def test_two_artifacts_of_the_same_content_do_not_take_it_from_each_other(
    tmp_path: Path,
) -> None:
    clock = FakeClock()
    async with a_toolset(tmp_path, instant(), clock=clock) as toolset:
        await run(toolset, "instant", mode="sync")
        clock.advance(60_000)
        second = await run(toolset, "instant", mode="sync")
        clock.advance(ARTIFACT_TTL_MS - 60_000)
        await toolset.runtime.sweep()
        chunk = await toolset.call("get_artifact", {"artifactId": second["artifactIds"][0]}, LOCAL)
        assert chunk["complete"] is True


async def test_after_a_restart_a_queued_run_goes_on_and_a_running_one_is_told_honestly(
    tmp_path: Path,
) -> None:
    clock = FakeClock()
    journal = memory_journal(clock)
    before, safe = Gate("unsafe"), Gate("safe", repeatable=True)
    async with a_toolset(
        tmp_path, before.template, safe.template, clock=clock, journal=journal
    ) as toolset:
        unsafe = await run(toolset, "unsafe", {"name": "u"}, mode="async", idempotencyKey="k")
        repeated = await run(toolset, "safe", {"name": "s"}, mode="async")
        for number in range(3):
            await run(toolset, "safe", {"name": str(number)}, mode="async")
        waiting = await run(toolset, "unsafe", {"name": "w"}, mode="async")
        await until(lambda: len(before.started) + len(safe.started) == 5)
        snapshot = journal  # what the disk has while these run
        rows = {row.key: row for row in await snapshot.scan(records.RUNS)}
        # As if the process had been killed here: the rows as they are, and nothing else.
        survived = memory_journal(clock)
        for row in rows.values():
            await survived.commit(Put(row.collection, row.key, row.value, expected=0))
        for row in await snapshot.scan(records.KEYS):
            await survived.commit(Put(row.collection, row.key, row.value, expected=0))

    unsafe_now, safe_now = Gate("unsafe"), Gate("safe", repeatable=True)
    async with a_toolset(
        tmp_path, unsafe_now.template, safe_now.template, clock=clock, journal=survived
    ) as toolset:
        told = await get(toolset, unsafe["runId"])
        assert told["status"] == "failed"
        assert told["error"]["errorCode"] == "EXECUTION_ERROR"
        assert told["error"]["details"]["outcome"] == "may_have_executed"
        await until(lambda: "s" in safe_now.started)
        await until(lambda: "w" in unsafe_now.started)
        safe_now.let("s")
        unsafe_now.let("w")
        for answer in (repeated, waiting):
            ended = await toolset.runtime.wait(answer["runId"], timeout_s=5)
            assert ended.status is TaskStatus.SUCCEEDED
        same = await run(toolset, "unsafe", {"name": "u"}, mode="async", idempotencyKey="k")
        assert same["runId"] == unsafe["runId"]


async def test_a_runtime_that_closes_records_what_it_interrupts(tmp_path: Path) -> None:
    clock = FakeClock()
    journal = memory_journal(clock)
    gate = Gate()
    async with a_toolset(tmp_path, gate.template, clock=clock, journal=journal) as toolset:
        started = await run(toolset, "gated", {"name": "a"}, mode="async")
        await until(lambda: gate.started == ["a"])
    (stored,) = [found async for found in records.load(journal)]
    assert stored.run.run_id == started["runId"]
    assert stored.run.status is TaskStatus.FAILED


@pytest.mark.requirement("004/errors/sync-is-error")
@pytest.mark.requirement("004/errors/sync-exception-queryable")
@pytest.mark.parametrize(
    ("raised", "code"),
    [
        (TaskFailed(TaskCode.ELEMENT_NOT_FOUND, "no such thing"), TaskCode.ELEMENT_NOT_FOUND),
        (PageCrashed("gone"), TaskCode.PAGE_CRASHED),
        (RuntimeError("internal words"), TaskCode.EXECUTION_ERROR),
        (ExceptionGroup("several", [PageCrashed("gone")]), TaskCode.PAGE_CRASHED),
    ],
)
async def test_an_exception_of_a_template_is_an_error_answer_and_a_failed_run(
    tmp_path: Path, raised: Exception, code: TaskCode
) -> None:
    async def break_(inputs: Inputs, work: Work) -> TaskOutcome:
        work.step = "the second step"
        raise raised

    breaking = Template(id="breaking", description="", inputs=Inputs, output=None, run=break_)
    async with a_toolset(tmp_path, breaking) as toolset:
        answer = await run(toolset, "breaking", mode="sync")
        assert answer["errorCode"] == code.value
        assert "internal words" not in str(answer)
        assert answer["error"]["failedStep"] == "the second step"
        shown = await get(toolset, answer["runId"])
        assert "errorCode" not in shown, "only the submission's answer is an error"
        assert shown == {name: answer[name] for name in shown}
        assert shown["error"]["errorCode"] == code.value
        assert shown["error"]["recoverHint"]
        assert shown["error"]["nextActions"]


@pytest.mark.requirement("004/errors/sync-is-error")
async def test_a_result_that_says_failed_is_a_failed_run_with_its_result(
    tmp_path: Path,
) -> None:
    outcome = TaskOutcome(b'{"success":false}', success=False, message="it was not accepted")
    async with a_toolset(tmp_path, instant(outcome=outcome)) as toolset:
        answer = await run(toolset, "instant", mode="sync")
        assert answer["status"] == "failed"
        assert answer["errorCode"] == "STEP_EXECUTION_FAILED"
        assert answer["error"]["errorCode"] == "STEP_EXECUTION_FAILED"
        assert answer["result"] == {"success": False}


@pytest.mark.requirement("004/errors/step-execution-failed")
async def test_too_many_failed_items_fail_the_run_and_are_named(tmp_path: Path) -> None:
    failing = [{"url": "http://a", "errorCode": "PAGE_CRASHED"}]
    outcome = TaskOutcome(b'{"items":[]}', summary=Summary(3, 1), failures=failing)
    async with a_toolset(tmp_path, instant(outcome=outcome)) as toolset:
        answer = await run(toolset, "instant", mode="sync")
        assert answer["error"]["errorCode"] == "STEP_EXECUTION_FAILED"
        assert answer["error"]["details"] == {"items": failing}


async def test_a_hundred_runs_submitted_at_once_all_end(tmp_path: Path) -> None:
    async with a_toolset(tmp_path, instant()) as toolset:
        answers = await asyncio.gather(
            *(run(toolset, "instant", {"name": str(n)}, mode="async") for n in range(100))
        )
        assert toolset.runtime.running <= 5
        for number, answer in enumerate(answers):
            ended = await toolset.runtime.wait(answer["runId"], timeout_s=10)
            assert ended.status is TaskStatus.SUCCEEDED
            shown = await get(toolset, answer["runId"])
            assert shown["result"] == {"name": str(number)}


async def test_a_large_result_of_one_page_is_answered_in_outline_too(tmp_path: Path) -> None:
    page = {"url": "http://h/", "pageInfo": {"elements": ["x" * 200] * 6_000}, "success": True}
    large = instant("large", TaskOutcome(msgspec.json.encode({"success": True, "page": page})))
    async with a_toolset(tmp_path, large) as toolset:
        answer = await run(toolset, "large", mode="sync")
    assert answer["result"]["page"] == {"url": "http://h/", "success": True}
    assert answer["result"]["contentArtifactId"] == answer["artifactIds"][0]


async def test_a_large_result_is_answered_in_outline_and_read_whole_as_its_artifact(
    tmp_path: Path,
) -> None:
    items = [{"url": f"http://h/{n}", "content": "x" * 20_000, "success": True} for n in range(80)]
    whole = msgspec.json.encode({"summary": {"total": 80}, "items": items})
    async with a_toolset(tmp_path, instant(outcome=TaskOutcome(whole))) as toolset:
        answer = await run(toolset, "instant", mode="sync")
        assert answer["result"]["items"][7] == {"url": "http://h/7", "success": True}
        artifact_id = answer["result"]["contentArtifactId"]
        assert artifact_id == answer["artifactIds"][0]
        assert await toolset.runtime.artifacts.read(artifact_id) == whole


async def test_a_run_whose_start_cannot_be_written_waits_and_takes_no_slot_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime, "WRITING_PAUSES_S", (0.0, 0.0, 0.0))
    clock = FakeClock()
    journal = RefusingJournal(clock=clock, bus=LocalBus())
    async with a_toolset(tmp_path, instant(), clock=clock, journal=journal) as toolset:
        journal.refuses, journal.times = "task_started", 20
        answers = [await run(toolset, "instant", mode="async") for _ in range(6)]
        await until(lambda: journal.times == 0)
        for answer in answers:
            ended = await toolset.runtime.wait(answer["runId"], timeout_s=5)
            assert ended.status is TaskStatus.SUCCEEDED


async def test_a_run_out_of_time_ends_also_where_that_cannot_be_written_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime, "WRITING_PAUSES_S", (0.0, 0.0, 0.0))
    gate, clock = Gate(), SystemClock()
    journal = RefusingJournal(clock=clock, bus=LocalBus())
    async with a_toolset(tmp_path, gate.template, clock=clock, journal=journal) as toolset:
        journal.refuses, journal.times = "task_ended", 1
        answer = await run(toolset, "gated", {"name": "a"}, mode="async", timeoutMs=1000)
        ended = await toolset.runtime.wait(answer["runId"], timeout_s=5)
        assert ended.error is not None
        assert ended.error.code is TaskCode.RUN_TIMEOUT


async def test_a_run_out_of_time_stops_also_where_its_end_cannot_be_written_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime, "WRITING_PAUSES_S", (0.0, 0.0, 0.0))
    gate, clock = Gate(), SystemClock()
    journal = RefusingJournal(clock=clock, bus=LocalBus())
    async with a_toolset(tmp_path, gate.template, clock=clock, journal=journal) as toolset:
        journal.refuses, journal.times = "task_ended", 1000
        answer = await run(toolset, "gated", {"name": "a"}, mode="async", timeoutMs=500)
        await toolset.runtime.wait(answer["runId"], timeout_s=5)
        await until(lambda: gate.stopped == ["a"])
        await until(lambda: toolset.runtime.sessions.count == 0)


@pytest.mark.parametrize("refusals", [3, 30])
async def test_a_run_whose_end_cannot_be_written_for_a_while_is_told_as_it_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refusals: int
) -> None:
    monkeypatch.setattr(runtime, "WRITING_PAUSES_S", (0.0, 0.0, 0.1))
    clock = SystemClock()
    journal = RefusingJournal(clock=clock, bus=LocalBus())
    async with a_toolset(tmp_path, instant(), clock=clock, journal=journal) as toolset:
        journal.refuses, journal.times = "task_ended", refusals
        answer = await run(toolset, "instant", {"name": "a"}, mode="async", timeoutMs=1000)
        await until(lambda: toolset.runtime.view(answer["runId"]).is_over)
        assert (await get(toolset, answer["runId"]))["result"] == {"name": "a"}
        assert toolset.runtime.running == 0


@pytest.mark.parametrize("damage", [Path.unlink, lambda file: file.write_bytes(b"other")])
async def test_a_run_whose_result_is_lost_is_listed_with_the_others(
    tmp_path: Path, damage: Callable[[Path], object]
) -> None:
    async with a_toolset(tmp_path, instant()) as toolset:
        lost = await run(toolset, "instant", {"name": "lost"}, mode="sync")
        there = await run(toolset, "instant", {"name": "there"}, mode="sync")
        toolset.runtime._results.clear()  # as after a restart
        artifact = await toolset.runtime.artifacts.get(lost["artifactIds"][0])
        name = artifact.digest.removeprefix("sha256:")
        damage(tmp_path / "blobs" / name[:2] / name[2:4] / name)
        listed = await toolset.call("list_task_runs", {}, LOCAL)
        assert {each["runId"]: each["result"] for each in listed["runs"]} == {
            there["runId"]: {"name": "there"},
            lost["runId"]: {"contentArtifactId": artifact.artifact_id},
        }
        with pytest.raises(ToolgateError):
            await toolset.call("get_task_run", {"runId": lost["runId"]}, LOCAL)


@pytest.mark.requirement("004/idempotency/expired")
async def test_a_key_that_was_taken_anew_is_not_forgotten_with_its_first_run(
    tmp_path: Path,
) -> None:
    clock = FakeClock()
    async with a_toolset(tmp_path, instant(), clock=clock) as toolset:
        await run(toolset, "instant", mode="sync", idempotencyKey="k")
        clock.advance(RUN_TTL_MS)
        anew = await run(toolset, "instant", mode="sync", idempotencyKey="k")
        assert anew["deduplicated"] is False
        await toolset.runtime.sweep()
        again = await run(toolset, "instant", mode="sync", idempotencyKey="k")
        assert (again["runId"], again["deduplicated"]) == (anew["runId"], True)


async def test_a_run_canceled_in_the_queue_and_forgotten_there_holds_up_nobody(
    tmp_path: Path,
) -> None:
    gate, clock = Gate(), FakeClock()
    async with a_toolset(tmp_path, gate.template, clock=clock) as toolset:
        names = ["0", "1", "2", "3", "4", "unwanted", "next"]
        ids = {
            name: (await run(toolset, "gated", {"name": name}, mode="async"))["runId"]
            for name in names
        }
        await toolset.runtime.cancel(ids["unwanted"])
        clock.advance(RUN_TTL_MS)
        await toolset.runtime.sweep()
        gate.let("0")
        ended = await toolset.runtime.wait(ids["0"], timeout_s=5)
        assert ended.status is TaskStatus.SUCCEEDED
        await until(lambda: "next" in gate.started)


async def test_a_run_that_has_ended_keeps_nothing_of_what_it_was_given(tmp_path: Path) -> None:
    clock = SystemClock()
    journal = memory_journal(clock)
    async with a_toolset(tmp_path, instant(), clock=clock, journal=journal) as toolset:
        large = {"name": "a", "more": "x" * 100_000}  # which is in memory as long as the run is
        answer = await run(toolset, "instant", large, mode="sync")
        assert toolset.runtime.view(answer["runId"]).inputs is None
        (row,) = await journal.scan(records.RUNS)
        assert len(row.value) < 10_000


async def test_runs_that_were_canceled_in_the_queue_take_no_place_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime, "MAX_QUEUED", 2)
    gate = Gate()
    async with a_toolset(tmp_path, gate.template) as toolset:
        ids = [(await run(toolset, "gated", mode="async"))["runId"] for _ in range(7)]
        with pytest.raises(TaskFailed):
            await run(toolset, "gated", mode="async")
        for run_id in ids[5:]:
            await toolset.runtime.cancel(run_id)
        assert (await run(toolset, "gated", mode="async"))["status"] == "queued"


async def test_a_caller_that_goes_away_while_it_cancels_has_canceled_and_freed_the_slot(
    tmp_path: Path,
) -> None:
    gate, journal = Gate(), SlowJournal()
    async with a_toolset(tmp_path, gate.template, journal=journal) as toolset:
        answer = await run(toolset, "gated", {"name": "a"}, mode="async")
        await until(lambda: gate.started == ["a"])
        journal.slow = "task_ended"
        canceling = asyncio.ensure_future(toolset.runtime.cancel(answer["runId"]))
        await journal.written.wait()
        canceling.cancel()
        await asyncio.wait([canceling])
        journal.told.set()
        ended = await toolset.runtime.wait(answer["runId"], timeout_s=2)
        assert ended.status is TaskStatus.CANCELED
        assert toolset.runtime.running == 0
        await until(lambda: gate.stopped == ["a"])


async def test_a_caller_that_goes_away_while_it_submits_leaves_a_run_like_any_other(
    tmp_path: Path,
) -> None:
    journal = SlowJournal()
    async with a_toolset(tmp_path, instant(), journal=journal) as toolset:
        journal.slow = "task_queued"
        submitting = asyncio.ensure_future(run(toolset, "instant", mode="async"))
        await journal.written.wait()
        submitting.cancel()
        journal.told.set()
        await until(lambda: [one.is_over for one in toolset.runtime.listed()] == [True])
