"""The seed's §8, line by line, by a client of the official SDK; and each of the 16 codes for real."""

import asyncio
from typing import Any

import pytest

from tests.surfaces.mcp.conftest import Connect, Served, call, failing
from tests.tasks.runtimes import until
from toolgate.contracts import tasks_v1 as wire
from toolgate.core.enums import TaskCode
from toolgate.surfaces.mcp.tool_descriptions import DESCRIPTIONS
from toolgate.tasks.state import ARTIFACT_TTL_MS

pytestmark = pytest.mark.asyncio(loop_scope="session")

BATCH = "batch_extract_pages"


def batch(*urls: str, **options: Any) -> dict[str, Any]:
    return {"templateId": BATCH, "inputs": {"urls": list(urls)}, "options": options}


@pytest.mark.requirement("004/checklist/three-modes")
async def test_run_task_template_in_three_modes(served: Served, http: Connect) -> None:
    url = served.outside("/n/1")
    async with http() as client:
        sync = await call(client, "run_task_template", **batch(url, mode="sync"))
        assert (sync["status"], sync["mode"]) == ("succeeded", "sync")
        assert sync["result"]["items"][0]["title"] == "Page 1"
        later = await call(client, "run_task_template", **batch(url, mode="async"))
        assert later["status"] in {"queued", "running"}
        assert later["mode"] == "async"
        auto = await call(client, "run_task_template", **batch(url, mode="auto"))
        assert auto["mode"] == "sync"


@pytest.mark.requirement("004/checklist/run-fields")
@pytest.mark.requirement("004/run-object/error-on-failure")
@pytest.mark.requirement("004/run-object/error-shape")
async def test_get_task_run_fields_before_and_after_the_end(served: Served, http: Connect) -> None:
    async with http() as client:
        never = [served.outside("/never")] * 20
        started = await call(client, "run_task_template", **batch(*never, mode="async"))
        before = await call(client, "get_task_run", runId=started["runId"])
        assert (before["result"], before["error"]) == (None, None)
        await call(client, "cancel_task_run", runId=started["runId"])
        after = await call(client, "get_task_run", runId=started["runId"])
        assert set(after) == set(before)
        assert after["error"]["errorCode"] == "RUN_CANCELED"
        assert after["error"]["message"]
        assert after["updatedAt"] >= after["createdAt"]


@pytest.mark.requirement("004/checklist/list-total-and-order")
async def test_list_task_runs_total_after_filters_and_newest_first(
    served: Served, http: Connect
) -> None:
    async with http() as client:
        for number in range(3):
            await call(
                client,
                "run_task_template",
                templateId="pdf_page",
                inputs={"url": served.outside(f"/n/{number}")},
            )
        listed = await call(client, "list_task_runs", templateId="pdf_page", limit=2)
        assert (listed["total"], len(listed["runs"]), listed["hasMore"]) == (3, 2, True)
        times = [run["createdAt"] for run in listed["runs"]]
        assert times == sorted(times, reverse=True)


@pytest.mark.requirement("004/checklist/cancel-terminal")
async def test_cancel_task_run_of_an_ended_run_is_success_false_and_a_reason(
    served: Served, http: Connect
) -> None:
    async with http() as client:
        ended = await call(client, "run_task_template", **batch(served.outside("/n/1")))
        answer = await call(client, "cancel_task_run", runId=ended["runId"])
        assert answer["success"] is False
        assert answer["reason"]


@pytest.mark.requirement("004/checklist/idempotency")
async def test_idempotency_key_answers_the_same_run_within_the_window(
    served: Served, http: Connect
) -> None:
    async with http() as client:
        arguments = batch(served.outside("/n/1"), idempotencyKey="task_20260210_001")
        first = await call(client, "run_task_template", **arguments)
        second = await call(client, "run_task_template", **arguments)
        assert second["runId"] == first["runId"]
        assert (first["deduplicated"], second["deduplicated"]) == (False, True)


@pytest.mark.requirement("004/checklist/artifact-chunks")
async def test_get_artifact_chunk_fields_and_borders(served: Served, http: Connect) -> None:
    async with http() as client:
        ended = await call(client, "run_task_template", **batch(served.outside("/n/1")))
        name = ended["artifactIds"][0]
        part = await call(client, "get_artifact", artifactId=name, offset=3, length=10)
        assert (part["offset"], part["length"], part["complete"]) == (3, 10, False)
        total = part["totalSize"]
        end = await call(client, "get_artifact", artifactId=name, offset=total - 4)
        assert (end["length"], end["complete"]) == (4, True)
        past = await call(client, "get_artifact", artifactId=name, offset=total)
        assert (past["length"], past["data"], past["complete"]) == (0, "", True)
        assert not {"encoding", "nextOffset", "truncated"} & set(part)


@pytest.mark.requirement("004/checklist/profile-complete")
@pytest.mark.requirement("004/profile/really-in-force")
async def test_get_runtime_profile_is_complete(served: Served, http: Connect) -> None:
    async with http() as client:
        profile = await call(client, "get_runtime_profile")
        assert len(profile) == 11
        assert profile["maxConcurrentRuns"] == served.toolset.runtime.max_running


@pytest.mark.requirement("004/checklist/queued-then-done")
async def test_a_submission_beyond_the_limit_is_queued_and_completes_later(
    served: Served, http: Connect
) -> None:
    # Each page in turn is given up in the end: they are so many that none of these ends by itself.
    many = batch(*[served.outside("/never")] * 20, mode="async")
    many["inputs"]["concurrency"] = 1
    async with http() as client:
        slow = [await call(client, "run_task_template", **many) for _ in range(5)]
        waiting = await call(
            client, "run_task_template", **batch(served.outside("/n/1"), mode="async")
        )
        assert waiting["status"] == "queued"
        assert (await call(client, "cancel_task_run", runId=slow[0]["runId"]))["success"]
        async with asyncio.timeout(30):
            while True:
                shown = await call(client, "get_task_run", runId=waiting["runId"])
                if shown["status"] not in {"queued", "running"}:
                    break
                await asyncio.sleep(0.05)
        assert shown["status"] == "succeeded"
        assert shown["result"]["items"][0]["title"] == "Page 1"
        for run in slow[1:]:
            assert (await call(client, "cancel_task_run", runId=run["runId"]))["success"]


@pytest.mark.requirement("004/checklist/sixteen-codes")
@pytest.mark.requirement("004/errors/element-not-found")
@pytest.mark.requirement("004/errors/navigation-timeout")
@pytest.mark.requirement("004/errors/page-crashed")
@pytest.mark.requirement("004/errors/invalid-parameter")
@pytest.mark.requirement("004/errors/execution-error")
@pytest.mark.requirement("004/errors/run-timeout")
@pytest.mark.requirement("004/errors/run-canceled")
@pytest.mark.requirement("004/errors/artifact-expired")
@pytest.mark.requirement("004/errors/login-field-not-found")
async def test_each_of_the_sixteen_codes_is_given_for_real(
    served: Served, local: Connect, http: Connect
) -> None:
    site, seen = served.site, set[str]()
    login = {
        "startUrl": site.url("/n/1"),
        "credentials": {"username": "u", "password": "p"},
        "fields": {"mode": "semantic"},
    }

    async def code(client: Any, tool: str, **arguments: Any) -> str:
        answer = await failing(client, tool, **arguments)
        seen.add(answer["errorCode"])
        return str(answer["errorCode"])

    async def run(client: Any, template: str, inputs: dict[str, Any], **more: Any) -> str:
        return await code(client, "run_task_template", templateId=template, inputs=inputs, **more)

    async with local() as client, http() as remote:
        assert await run(client, "nope", {}) == "TEMPLATE_NOT_FOUND"
        version = await run(client, BATCH, {}, templateVersion="2.0.0")
        assert version == "TEMPLATE_VERSION_UNSUPPORTED"
        assert await run(remote, "login_keep_session", login) == "TRUST_LEVEL_NOT_ALLOWED"
        assert await run(client, BATCH, {"urls": []}) == "INVALID_PARAMETER"
        unknown = await run(client, BATCH, {"urls": [site.url()]}, sessionId="sess_none")
        assert unknown == "SESSION_NOT_FOUND"
        assert await code(client, "get_task_run", runId="run_none") == "RUN_NOT_FOUND"
        missing = await code(client, "get_artifact", artifactId="art_none")
        assert missing == "ARTIFACT_NOT_FOUND"
        search = {
            "startUrl": site.url("/search"),
            "query": "x",
            "searchField": {"mode": "selector", "selector": "input"},
            "waitForResults": {"type": "selector", "value": "#none", "timeoutMs": 100},
        }
        assert await run(client, "search_extract", search) == "ELEMENT_NOT_FOUND"
        late = await run(client, "pdf_page", {"url": site.url("/never")})
        assert late == "NAVIGATION_TIMEOUT"
        assert await run(client, "pdf_page", {"url": "chrome://crash"}) == "PAGE_CRASHED"
        dead = await run(client, "pdf_page", {"url": "http://127.0.0.1:9/"})
        assert dead == "EXECUTION_ERROR"
        slow = await run(
            client,
            BATCH,
            {"urls": [site.url("/never")]},
            options={"mode": "sync", "timeoutMs": 150},
        )
        assert slow == "RUN_TIMEOUT"
        field = await run(client, "login_keep_session", login)
        assert field == "TPL_LOGIN_FIELD_NOT_FOUND"
        failed = await failing(client, "run_task_template", **batch("bad", "worse"))
        assert failed["status"] == "failed"
        seen.add(failed["error"]["errorCode"])
        assert failed["error"]["errorCode"] == "STEP_EXECUTION_FAILED"
        assert len(failed["error"]["details"]["items"]) == 2

        waiting = asyncio.ensure_future(
            run(client, BATCH, {"urls": [site.url("/never")] * 20}, options={"mode": "sync"})
        )
        await until(lambda: served.toolset.runtime.running == 1)
        listed = await call(client, "list_task_runs", status="running")
        await call(client, "cancel_task_run", runId=listed["runs"][0]["runId"])
        assert await waiting == "RUN_CANCELED"

        served.clock.added += ARTIFACT_TTL_MS
        expired = await code(client, "get_artifact", artifactId=failed["artifactIds"][0])
        assert expired == "ARTIFACT_EXPIRED"
    assert seen == {found.value for found in TaskCode}


@pytest.mark.requirement("004/run/mode-sync")
@pytest.mark.requirement("004/errors/sync-is-error")
async def test_a_sync_answer_is_the_ended_run_and_an_error_exactly_where_it_failed(
    served: Served, http: Connect
) -> None:
    good, bad = served.outside("/n/1"), "bad"
    pdf = {"templateId": "pdf_page", "inputs": {"url": served.outside("/never")}}
    cases = [
        (batch(good), "succeeded"),
        (batch(good, bad), "partial_success"),
        (batch(bad), "failed"),
        ({**pdf, "options": {"mode": "sync", "timeoutMs": 150}}, "failed"),
    ]
    async with http() as client:
        for asked, status in cases:
            told = await client.call_tool("run_task_template", asked)
            answer = told.structured_content
            assert answer is not None
            assert (answer["status"], answer["mode"]) == (status, "sync")
            assert told.is_error is (status == "failed")
            run = await call(client, "get_task_run", runId=answer["runId"])
            assert run == {name: answer[name] for name in run}, "and its error, if it has one"
            beside = answer.keys() - run.keys()
            if told.is_error:
                assert beside == {"mode", "deduplicated", "errorCode", "recoverHint"}
                assert answer["errorCode"] == run["error"]["errorCode"]
            else:
                assert beside == {"mode", "deduplicated"}


@pytest.mark.requirement("004/compatibility/fields-kept")
async def test_every_tool_of_the_contract_is_described(http: Connect) -> None:
    assert set(DESCRIPTIONS) == set(wire.TOOLS)
    async with http() as client:
        for tool in (await client.list_tools()).tools:
            assert tool.description
            assert tool.input_schema["type"] == "object"
            assert tool.output_schema is not None
            assert tool.output_schema["type"] == "object"
