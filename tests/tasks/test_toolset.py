"""The seven tools' arguments and answers, without a browser."""

import asyncio
import base64
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.tasks.runtimes import (
    LOCAL,
    REMOTE,
    Gate,
    Inputs,
    a_toolset,
    get,
    instant,
    run,
    until,
)
from toolgate.contracts import tasks_v1 as wire
from toolgate.core.enums import TaskCode, TaskStatus, TrustLevel
from toolgate.tasks.catalog import load_templates
from toolgate.tasks.state import TaskFailed
from toolgate.tasks.template import TaskOutcome, Template, Work
from toolgate.tasks.toolset import Toolset, error_answer
from toolgate.testing.clock import FakeClock


class Strict(msgspec.Struct):
    name: str


LOCAL_ONLY = Template(
    id="local_only",
    description="",
    inputs=Strict,
    output=None,
    run=instant().run,
    trust=frozenset({TrustLevel.LOCAL}),
)


async def refused(toolset: Toolset, tool: str, arguments: dict[str, Any]) -> TaskCode:
    with pytest.raises(TaskFailed) as failed:
        await toolset.call(tool, arguments, REMOTE)
    return failed.value.code


@pytest.mark.requirement("004/run/template-first")
@pytest.mark.requirement("004/run/template-unknown")
@pytest.mark.requirement("004/run/inputs-invalid")
@pytest.mark.requirement("004/run/session-unknown")
@pytest.mark.requirement("004/run/mode-values")
@pytest.mark.requirement("004/errors/template-not-found")
@pytest.mark.requirement("004/errors/template-version-unsupported")
@pytest.mark.requirement("004/errors/session-not-found")
async def test_everything_wrong_at_once_is_told_in_the_order_of_the_contract(
    tmp_path: Path,
) -> None:
    wrong: dict[str, Any] = {
        "templateId": "nope",
        "templateVersion": "9.9.9",
        "sessionId": "sess_none",
        "inputs": {"name": 5},
        "options": {"timeoutMs": 0, "mode": "later"},
    }
    async with a_toolset(tmp_path, LOCAL_ONLY) as toolset:

        async def code(trust_call: Any = REMOTE) -> tuple[TaskCode, Any]:
            with pytest.raises(TaskFailed) as failed:
                await toolset.call("run_task_template", wrong, trust_call)
            details = failed.value.error.details
            return failed.value.code, (details or {}).get("path")

        assert (await code())[0] is TaskCode.TEMPLATE_NOT_FOUND
        wrong["templateId"] = "local_only"
        assert (await code())[0] is TaskCode.TEMPLATE_VERSION_UNSUPPORTED
        wrong["templateVersion"] = "1.0.0"
        assert (await code())[0] is TaskCode.TRUST_LEVEL_NOT_ALLOWED
        assert await code(LOCAL) == (TaskCode.INVALID_PARAMETER, "$.options.timeoutMs")
        wrong["options"]["timeoutMs"] = 1000
        assert await code(LOCAL) == (TaskCode.INVALID_PARAMETER, "$.options.mode")
        wrong["options"]["mode"] = "sync"
        assert await code(LOCAL) == (TaskCode.INVALID_PARAMETER, "$.inputs.name")
        wrong["inputs"]["name"] = "a"
        assert (await code(LOCAL))[0] is TaskCode.SESSION_NOT_FOUND
        assert toolset.runtime.listed() == []


@pytest.mark.requirement("004/run/timeout-range")
@pytest.mark.requirement("004/run/timeout-refused")
@pytest.mark.parametrize("time_given", [0, 600_001, 1.5, "x", -1, True, None])
async def test_a_time_out_that_is_no_whole_number_of_1_to_600000_is_refused(
    tmp_path: Path, time_given: object
) -> None:
    async with a_toolset(tmp_path, instant()) as toolset:
        arguments = {"templateId": "instant", "options": {"timeoutMs": time_given}}
        assert await refused(toolset, "run_task_template", arguments) is TaskCode.INVALID_PARAMETER
        assert toolset.runtime.listed() == []


@pytest.mark.requirement("004/run/options-optional")
@pytest.mark.requirement("004/run/template-version-optional")
@pytest.mark.requirement("004/run/timeout-in-force")
async def test_the_time_of_a_run_is_the_profiles_for_its_mode(tmp_path: Path) -> None:
    async with a_toolset(tmp_path, instant()) as toolset:
        profile = await toolset.call("get_runtime_profile", {}, LOCAL)
        sync_ms, async_ms = profile["syncTimeoutMs"], profile["asyncTimeoutMs"]
        answer = await toolset.call("run_task_template", {"templateId": "instant"}, LOCAL)
        assert answer["mode"] == "sync"
        assert toolset.runtime.view(answer["runId"]).timeout_ms == async_ms == 600_000
        for mode, given, in_force in (
            ("sync", None, sync_ms),
            ("sync", sync_ms + 1, sync_ms),
            ("sync", 7_000, 7_000),
            ("async", None, async_ms),
            ("async", async_ms, async_ms),
            ("async", 1, 1),
            ("auto", None, async_ms),
        ):
            options = {"mode": mode} if given is None else {"mode": mode, "timeoutMs": given}
            begun = await run(toolset, "instant", **options)
            in_use = toolset.runtime.view(begun["runId"]).timeout_ms
            assert in_use == in_force, (mode, given)


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"templateId": 5},
        {"templateId": "instant", "options": []},
        {"templateId": "instant", "inputs": []},
        {"templateId": "instant", "inputs": None},
        {"templateId": "instant", "sessionId": 5},
        {"templateId": "instant", "options": {"idempotencyKey": 5}},
        {"templateId": "instant", "options": {"idempotencyKey": ""}},
        {"templateId": "instant", "options": {"outputSchema": "x"}},
        {"templateId": "instant", "options": {"mode": None}},
    ],
)
async def test_arguments_of_the_wrong_type_are_refused_and_start_nothing(
    tmp_path: Path, arguments: dict[str, Any]
) -> None:
    async with a_toolset(tmp_path, instant()) as toolset:
        assert await refused(toolset, "run_task_template", arguments) is TaskCode.INVALID_PARAMETER
        assert toolset.runtime.listed() == []


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("run_task_template", {"templateId": "instant", "inputs": {"name": "\ud800"}}),
        ("run_task_template", {"templateId": "instant", "options": {"idempotencyKey": "\ud800"}}),
        ("run_task_template", {"templateId": "instant", "sessionId": "\ud800"}),
        ("get_task_run", {"runId": "\ud800"}),
        ("cancel_task_run", {"runId": "\ud800"}),
        ("get_artifact", {"artifactId": "\ud800"}),
    ],
)
async def test_half_letters_are_refused_with_an_error_that_can_be_written(
    tmp_path: Path, tool: str, arguments: dict[str, Any]
) -> None:
    async with a_toolset(tmp_path, instant()) as toolset:
        with pytest.raises(TaskFailed) as failed:
            await toolset.call(tool, arguments, LOCAL)
        assert failed.value.code is TaskCode.INVALID_PARAMETER
        assert msgspec.json.encode(error_answer(failed.value.error))
        assert toolset.runtime.listed() == []


@pytest.mark.requirement("004/run/mode-sync")
@pytest.mark.requirement("004/run/mode-async")
@pytest.mark.requirement("004/run/mode-auto")
@pytest.mark.requirement("004/run/auto-others")
@pytest.mark.requirement("004/run/async-shape")
@pytest.mark.requirement("004/run/deduplicated-always")
async def test_each_mode_answers_in_its_shape(tmp_path: Path) -> None:
    gate = Gate()
    async with a_toolset(tmp_path, gate.template, instant()) as toolset:
        sync = await run(toolset, "instant", {"name": "a"}, mode="sync")
        assert (sync["status"], sync["mode"], sync["result"]) == (
            "succeeded",
            "sync",
            {"name": "a"},
        )
        msgspec.convert(sync, wire.FinishedRun)
        auto = await run(toolset, "instant", mode="auto")
        assert auto["mode"] == "sync"
        later = await run(toolset, "gated", mode="async")
        assert set(later) == {"runId", "sessionId", "status", "mode", "deduplicated"}
        assert later["status"] in {"queued", "running"}
        assert later["mode"] == "async"
        assert later["deduplicated"] is False


@pytest.mark.requirement("004/run/auto-long")
async def test_an_auto_run_that_takes_long_is_answered_as_async_and_goes_on(tmp_path: Path) -> None:
    gate = Gate()
    async with a_toolset(tmp_path, gate.template, auto_wait_s=0.5) as toolset:
        answer = await run(toolset, "gated", {"name": "a"}, mode="auto")
        assert (answer["mode"], answer["status"]) == ("async", "running")
        gate.let("a")
        ended = await toolset.runtime.wait(answer["runId"], timeout_s=5)
        assert ended.status is TaskStatus.SUCCEEDED


def test_auto_waits_twenty_seconds() -> None:
    assert wire.AUTO_WAIT_MS == 20_000


@pytest.mark.requirement("004/run/output-schema-ignored")
async def test_a_direct_run_ignores_the_output_schema(tmp_path: Path) -> None:
    async with a_toolset(tmp_path, instant()) as toolset:
        schema = {"type": "object", "required": ["absent"]}
        answer = await run(toolset, "instant", mode="sync", outputSchema=schema)
        assert answer["status"] == "succeeded"


@pytest.mark.requirement("004/run-object/members")
@pytest.mark.requirement("004/run-object/camel-case")
@pytest.mark.requirement("004/run-object/nulls-before-end")
@pytest.mark.requirement("004/run-object/timestamps")
@pytest.mark.requirement("004/run-object/elapsed-live")
@pytest.mark.requirement("004/run-object/updated-at-moves")
@pytest.mark.requirement("004/run-object/owns-session")
@pytest.mark.requirement("004/run-object/progress")
@pytest.mark.requirement("004/get/run-object")
async def test_a_run_is_shown_live_until_it_ends(tmp_path: Path) -> None:
    clock = FakeClock()
    stepped, done = asyncio.Event(), asyncio.Event()

    async def steps(inputs: Inputs, work: Work) -> TaskOutcome:
        work.report(2, 10)
        stepped.set()
        await done.wait()
        return TaskOutcome(b"{}")

    stepping = Template(
        id="stepping", description="", inputs=Inputs, output=None, run=steps, steps=lambda _: 10
    )
    async with a_toolset(tmp_path, stepping, clock=clock) as toolset:
        run_id = (await run(toolset, "stepping", mode="async"))["runId"]
        await asyncio.wait_for(stepped.wait(), 5)
        clock.advance(1234)
        shown = await get(toolset, run_id)
        assert set(shown) == {
            "runId", "templateId", "sessionId", "ownsSession", "status", "progress", "metrics",
            "result", "error", "artifactIds", "createdAt", "updatedAt",
        }  # fmt: skip
        assert shown["result"] is None
        assert shown["error"] is None
        assert shown["status"] == "running"
        assert shown["progress"] == {"doneSteps": 2, "totalSteps": 10}
        assert shown["metrics"] == {"elapsedMs": 1234}
        assert shown["ownsSession"] is True
        assert type(shown["createdAt"]) is int
        done.set()
        await toolset.runtime.wait(run_id, timeout_s=5)
        ended = await get(toolset, run_id)
        clock.advance(5000)
        assert (await get(toolset, run_id))["metrics"] == ended["metrics"] == {"elapsedMs": 1234}
        assert ended["progress"] == {"doneSteps": 10, "totalSteps": 10}
        assert ended["updatedAt"] == ended["createdAt"] + 1234
        msgspec.convert(ended, wire.Run)


@pytest.mark.requirement("004/get/same-as-sync")
@pytest.mark.requirement("004/run-object/result-on-success")
@pytest.mark.requirement("004/run-object/artifact-ids")
async def test_a_sync_answer_and_a_later_look_show_the_same_run(tmp_path: Path) -> None:
    async with a_toolset(tmp_path, instant()) as toolset:
        answer = await run(toolset, "instant", {"name": "a"}, mode="sync")
        shown = await get(toolset, answer["runId"])
        assert {**shown, "mode": "sync", "deduplicated": False} == answer
        assert shown["result"] == {"name": "a"}
        (artifact_id,) = shown["artifactIds"]
        assert await toolset.runtime.artifacts.read(artifact_id) == b'{"name":"a"}'


@pytest.mark.requirement("004/get/unknown")
@pytest.mark.requirement("004/errors/run-not-found")
@pytest.mark.requirement("004/errors/artifact-not-found")
async def test_what_does_not_exist_is_not_found(tmp_path: Path) -> None:
    async with a_toolset(tmp_path, instant()) as toolset:
        assert await refused(toolset, "get_task_run", {"runId": "run_x"}) is TaskCode.RUN_NOT_FOUND
        code = await refused(toolset, "get_artifact", {"artifactId": "art_x"})
        assert code is TaskCode.ARTIFACT_NOT_FOUND


@pytest.mark.requirement("004/list/newest-first")
@pytest.mark.requirement("004/list/tie-break")
@pytest.mark.requirement("004/list/filter-status")
@pytest.mark.requirement("004/list/filter-template")
@pytest.mark.requirement("004/list/total")
@pytest.mark.requirement("004/list/has-more")
async def test_runs_are_listed_newest_first_and_counted_after_the_filters(tmp_path: Path) -> None:
    clock = FakeClock()
    gate = Gate()
    async with a_toolset(tmp_path, instant(), gate.template, clock=clock) as toolset:
        ids = []
        for number in range(6):
            ids.append((await run(toolset, "instant", mode="sync"))["runId"])
            clock.advance(number % 2)  # two of each millisecond
        waiting = (await run(toolset, "gated", {"name": "w"}, mode="async"))["runId"]
        await until(lambda: gate.started == ["w"])

        async def listed(**arguments: Any) -> dict[str, Any]:
            answer = await toolset.call("list_task_runs", arguments, LOCAL)
            msgspec.convert(answer, wire.RunList)
            return answer

        everything = await listed()
        assert [shown["runId"] for shown in everything["runs"]] == [waiting, *reversed(ids)]
        assert everything == await listed()
        page = await listed(templateId="instant", limit=2, offset=1)
        assert [shown["runId"] for shown in page["runs"]] == [ids[4], ids[3]]
        assert (page["total"], page["hasMore"]) == (6, True)
        last = await listed(status="succeeded", limit=4, offset=4)
        assert (len(last["runs"]), last["total"], last["hasMore"]) == (2, 6, False)
        running = await listed(status="running")
        assert [shown["runId"] for shown in running["runs"]] == [waiting]
        assert (await listed(offset=100))["runs"] == []


@pytest.mark.requirement("004/list/limit-range")
@pytest.mark.requirement("004/list/offset-range")
@pytest.mark.requirement("004/list/filter-status-invalid")
@pytest.mark.parametrize(
    "arguments",
    [
        {"limit": 0},
        {"limit": 1001},
        {"limit": "5"},
        {"limit": 1.5},
        {"offset": -1},
        {"status": "done"},
        {"status": 5},
        {"templateId": 5},
    ],
)
async def test_a_list_out_of_its_ranges_is_refused(
    tmp_path: Path, arguments: dict[str, Any]
) -> None:
    async with a_toolset(tmp_path, instant()) as toolset:
        assert await refused(toolset, "list_task_runs", arguments) is TaskCode.INVALID_PARAMETER


@pytest.mark.requirement("004/artifacts/chunk-members")
@pytest.mark.requirement("004/artifacts/no-other-members")
@pytest.mark.requirement("004/artifacts/length-actual")
@pytest.mark.requirement("004/artifacts/complete-at-end")
@pytest.mark.requirement("004/artifacts/chunk-limit")
@pytest.mark.requirement("004/artifacts/byte-offsets")
@pytest.mark.requirement("004/artifacts/text-between-characters")
@pytest.mark.requirement("004/artifacts/reassembled")
@pytest.mark.requirement("004/artifacts/past-end")
async def test_a_text_artifact_is_read_in_chunks_that_split_no_character(tmp_path: Path) -> None:
    whole = msgspec.json.encode({"text": "aé漢😀" * 60_000})
    async with a_toolset(tmp_path, instant(outcome=TaskOutcome(whole))) as toolset:
        answer = await run(toolset, "instant", mode="sync")
        asked = {"artifactId": answer["artifactIds"][0], "offset": 0, "length": 10**9}
        got = b""
        while True:
            chunk = await toolset.call("get_artifact", asked, LOCAL)
            assert set(chunk) == {
                "artifactId", "mimeType", "totalSize", "offset", "length", "data", "complete",
            }  # fmt: skip
            assert chunk["offset"] == asked["offset"]
            assert chunk["length"] == len(chunk["data"].encode()) <= 262_144
            assert chunk["totalSize"] == len(whole)
            got += chunk["data"].encode()
            assert chunk["complete"] == (len(got) == len(whole))
            if chunk["complete"]:
                break
            asked["offset"] += chunk["length"]
        assert got == whole
        for past in (len(whole), len(whole) + 5):
            chunk = await toolset.call("get_artifact", {**asked, "offset": past}, LOCAL)
            assert (chunk["length"], chunk["data"], chunk["complete"]) == (0, "", True)


@pytest.mark.requirement("004/artifacts/binary-base64")
async def test_a_binary_artifact_is_base64(tmp_path: Path) -> None:
    content = bytes(range(256)) * 4

    async def picture(inputs: Inputs, work: Work) -> TaskOutcome:
        await work.keep(content, name="x.png", mime_type="image/png")
        return TaskOutcome(b"{}")

    drawing = Template(id="drawing", description="", inputs=Inputs, output=None, run=picture)
    async with a_toolset(tmp_path, drawing) as toolset:
        answer = await run(toolset, "drawing", mode="sync")
        assert len(answer["artifactIds"]) == 2
        asked = {"artifactId": answer["artifactIds"][1], "offset": 10, "length": 20}
        chunk = await toolset.call("get_artifact", asked, LOCAL)
        assert base64.b64decode(chunk["data"]) == content[10:30]
        assert (chunk["mimeType"], chunk["length"], chunk["complete"]) == ("image/png", 20, False)


@pytest.mark.requirement("004/artifacts/negative-offset")
@pytest.mark.parametrize("asked", [{"offset": -1}, {"length": -1}, {"offset": "0"}])
async def test_a_negative_offset_is_refused(tmp_path: Path, asked: dict[str, Any]) -> None:
    async with a_toolset(tmp_path, instant()) as toolset:
        answer = await run(toolset, "instant", mode="sync")
        arguments = {"artifactId": answer["artifactIds"][0], **asked}
        assert await refused(toolset, "get_artifact", arguments) is TaskCode.INVALID_PARAMETER


@pytest.mark.requirement("004/profile/members")
@pytest.mark.requirement("004/profile/max-concurrent-runs")
@pytest.mark.requirement("004/profile/max-urls")
@pytest.mark.requirement("004/profile/timeouts")
@pytest.mark.requirement("004/profile/artifact-limits")
@pytest.mark.requirement("004/profile/run-ttl")
@pytest.mark.requirement("004/profile/supported-modes")
async def test_the_profile_has_the_limits_in_force_and_the_callers_trust(tmp_path: Path) -> None:
    async with a_toolset(tmp_path, instant()) as toolset:
        profile = await toolset.call("get_runtime_profile", {}, LOCAL)
        assert profile == {
            "maxConcurrentRuns": 5,
            "maxUrls": 1000,
            "maxTabsPerSession": 20,
            "syncTimeoutMs": 300_000,
            "asyncTimeoutMs": 600_000,
            "artifactMaxChunkSize": 262_144,
            "artifactTtlMs": 86_400_000,
            "runTtlMs": 1_800_000,
            "supportedModes": ["sync", "async", "auto"],
            "trustLevel": "local",
            "isRemote": False,
        }
        remote = await toolset.call("get_runtime_profile", {}, REMOTE)
        assert (remote["trustLevel"], remote["isRemote"]) == ("remote", True)


@pytest.mark.requirement("004/templates/all-version-1")
@pytest.mark.requirement("004/tools/list-task-templates")
async def test_the_templates_are_listed_with_their_schemas(tmp_path: Path) -> None:
    async with a_toolset(tmp_path, catalog=load_templates()) as toolset:
        answer = await toolset.call("list_task_templates", {}, LOCAL)
        listed = {info["templateId"]: info for info in answer["templates"]}
        assert set(wire.TEMPLATES) | {"screenshot_page", "pdf_page"} == set(listed)
        assert {info["version"] for info in listed.values()} == {"1.0.0"}
        assert listed["login_keep_session"]["trustLevels"] == ["local"]
        batch = listed["batch_extract_pages"]["inputSchema"]
        assert batch["properties"]["urls"]["maxItems"] == 1000
        assert batch["required"] == ["urls"]
        msgspec.convert(answer, wire.TemplateList)


URL = "http://127.0.0.1/"


@pytest.mark.requirement("004/templates/batch-inputs")
@pytest.mark.requirement("004/templates/batch-urls-range")
@pytest.mark.requirement("004/templates/batch-ranges")
@pytest.mark.requirement("004/templates/compare-inputs")
@pytest.mark.requirement("004/templates/login-inputs")
@pytest.mark.requirement("004/templates/locator")
@pytest.mark.requirement("004/templates/wait")
@pytest.mark.parametrize(
    ("template", "inputs"),
    [
        ("batch_extract_pages", {}),
        ("batch_extract_pages", {"urls": []}),
        ("batch_extract_pages", {"urls": [URL] * 1001}),
        ("batch_extract_pages", {"urls": [5]}),
        ("batch_extract_pages", {"urls": [URL], "concurrency": 0}),
        ("batch_extract_pages", {"urls": [URL], "concurrency": 6}),
        ("batch_extract_pages", {"urls": [URL], "extract": {"maxElements": 0}}),
        ("batch_extract_pages", {"urls": [URL], "extract": {"maxElements": 1001}}),
        ("batch_extract_pages", {"urls": [URL], "extract": {"maxContentLength": 50_001}}),
        ("multi_tab_compare", {"urls": [URL] * 11}),
        ("multi_tab_compare", {"urls": [URL], "compare": {"fields": ["colour"]}}),
        ("login_keep_session", {"startUrl": URL, "fields": {"mode": "semantic"}}),
        (
            "login_keep_session",
            {"startUrl": URL, "credentials": {"username": "u"}, "fields": {"mode": "semantic"}},
        ),
        ("search_extract", {"startUrl": URL, "query": "q", "searchField": {"mode": "guess"}}),
        ("search_extract", {"startUrl": URL, "query": "q", "searchField": {"mode": "selector"}}),
        (
            "search_extract",
            {
                "startUrl": URL,
                "query": "q",
                "searchField": {"mode": "semantic", "query": "search"},
                "waitForResults": {"type": "stable", "timeoutMs": 120_001},
            },
        ),
        (
            "paginated_extract",
            {
                "startUrl": URL,
                "pagination": {"next": {"mode": "semantic", "query": "n"}, "maxPages": 51},
            },
        ),
        *(
            (
                "submit_and_verify",
                {
                    "startUrl": URL,
                    "fields": [],
                    "submit": {"mode": "semantic", "query": "send"},
                    "successIndicator": indicator,
                },
            )
            for indicator in (
                {"type": "urlContains"},
                {"type": "textIncludes", "value": ""},
                {"type": "selector"},
            )
        ),
        ("submit_and_verify", {"startUrl": URL, "fields": []}),  # nothing would be submitted
        (
            "paginated_extract",
            {
                "startUrl": URL,
                "pagination": {
                    "next": {"mode": "semantic", "query": "n"},
                    "maxPages": 2,
                    "waitFor": {"type": "textIncludes"},
                },
            },
        ),
    ],
)
async def test_inputs_that_do_not_fit_their_template_are_refused(
    tmp_path: Path, template: str, inputs: dict[str, Any]
) -> None:
    async with a_toolset(tmp_path, catalog=load_templates()) as toolset:
        with pytest.raises(TaskFailed) as failed:
            await run(toolset, template, inputs)
        assert failed.value.code is TaskCode.INVALID_PARAMETER
        assert toolset.runtime.listed() == []


@pytest.mark.requirement("004/errors/is-error")
@pytest.mark.requirement("004/errors/details-optional")
def test_an_error_answer_has_its_code_a_hint_and_details_only_where_there_are_some() -> None:
    plain = error_answer(TaskFailed(TaskCode.RUN_NOT_FOUND, "there is no such run").error)
    assert plain["errorCode"] == "RUN_NOT_FOUND"
    assert plain["error"] == "there is no such run"
    assert plain["recoverHint"]
    assert "details" not in plain
    msgspec.convert(plain, wire.ErrorAnswer)
    told = error_answer(TaskFailed(TaskCode.RUN_TIMEOUT, "x", details={"a": 1}).error)
    assert told["details"] == {"a": 1}
