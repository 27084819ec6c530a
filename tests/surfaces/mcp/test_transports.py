"""The same tools over stdio, SSE and streamable HTTP, in both eras of the protocol."""

import asyncio
import base64
import io
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import aiohttp
import jsonschema  # type: ignore[import-untyped]
import pytest
from mcp import Client, StdioServerParameters

from tests.surfaces.mcp.conftest import Connect, Served, call, stdio_server
from tests.tasks.runtimes import until
from tests.tasks.site import Site
from toolgate.contracts import tasks_v1 as wire
from toolgate.core.enums import TaskStatus

pytestmark = pytest.mark.asyncio(loop_scope="session")

ERAS = ["legacy", "2026-07-28"]


async def exercise(client: Client, url: str, *, remote: bool) -> str:
    """All seven tools, their answers checked against their schemas; returns the run's id."""
    tools = {tool.name: tool for tool in (await client.list_tools()).tools}
    assert list(tools) == list(wire.TOOLS)

    async def answer(tool: str, **arguments: Any) -> dict[str, Any]:
        result = await client.call_tool(tool, arguments)
        assert not result.is_error
        structured = result.structured_content
        assert isinstance(structured, dict)
        text = result.content[0]
        assert text.type == "text"
        assert json.loads(text.text) == structured
        schema = tools[tool].output_schema
        assert schema is not None
        jsonschema.validate(structured, schema)
        jsonschema.validate(arguments, tools[tool].input_schema)
        return structured

    heard: list[tuple[float, float | None]] = []

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        heard.append((progress, total))

    result = await client.call_tool(
        "run_task_template",
        {"templateId": "batch_extract_pages", "inputs": {"urls": [url] * 3}},
        progress_callback=hear,
    )
    finished = result.structured_content
    assert isinstance(finished, dict)
    assert finished["status"] == "succeeded"
    assert [item["title"] for item in finished["result"]["items"]] == ["Page 1"] * 3
    assert heard
    assert heard == sorted(heard)
    assert heard[-1][0] <= 3
    run_id, (artifact_id,) = finished["runId"], finished["artifactIds"]
    links = [part.uri for part in result.content if part.type == "resource_link"]
    assert links == [f"artifact://{artifact_id}"]
    shown = await answer("get_task_run", runId=run_id)
    assert shown["result"] == finished["result"]
    assert shown["error"] is None
    listed = await answer("list_task_runs", templateId="batch_extract_pages", limit=1)
    assert listed["runs"][0]["runId"] == run_id
    chunk = await answer("get_artifact", artifactId=artifact_id)
    assert json.loads(chunk["data"]) == finished["result"]
    resource = (await client.read_resource(links[0])).contents[0]
    assert json.loads(getattr(resource, "text", "")) == finished["result"]
    profile = await answer("get_runtime_profile")
    assert profile["isRemote"] is remote
    assert profile["trustLevel"] == ("remote" if remote else "local")
    await answer("list_task_templates")
    canceled = await answer("cancel_task_run", runId=run_id)
    assert canceled["success"] is False
    pending = await answer(
        "run_task_template",
        templateId="batch_extract_pages",
        inputs={"urls": [url]},
        options={"mode": "async"},
    )
    async with asyncio.timeout(20):
        while True:  # as a client does that only polls
            if (await answer("get_task_run", runId=pending["runId"]))["status"] == "succeeded":
                break
            await asyncio.sleep(0.02)
    return str(run_id)


@pytest.mark.requirement("004/transports/http")
@pytest.mark.requirement("004/profile/trust-remote")
@pytest.mark.requirement("004/tools/exactly-seven")
@pytest.mark.requirement("004/tools/no-subscribe")
@pytest.mark.requirement("004/tools/input-schemas")
@pytest.mark.requirement("004/tools/output-schemas")
@pytest.mark.requirement("004/tools/structured-and-text")
@pytest.mark.requirement("004/tools/run-task-template")
@pytest.mark.requirement("004/tools/get-task-run")
@pytest.mark.requirement("004/tools/list-task-runs")
@pytest.mark.requirement("004/tools/cancel-task-run")
@pytest.mark.requirement("004/tools/get-artifact")
@pytest.mark.requirement("004/tools/get-runtime-profile")
@pytest.mark.requirement("004/compatibility/polling")
@pytest.mark.parametrize("era", ERAS)
async def test_the_tools_work_over_streamable_http(served: Served, http: Connect, era: str) -> None:
    async with http(mode=era) as client:
        await exercise(client, served.outside("/n/1"), remote=True)


@pytest.mark.requirement("004/transports/sse")
@pytest.mark.requirement("004/transports/one-store")
async def test_the_tools_work_over_sse_and_see_the_same_runs(
    served: Served, sse: Connect, http: Connect
) -> None:
    async with sse(mode="legacy") as client, http() as other:
        run_id = await exercise(client, served.outside("/n/1"), remote=True)
        assert (await call(other, "get_task_run", runId=run_id))["runId"] == run_id


async def test_the_sse_endpoint_names_its_session_as_the_contract_spells_it(
    served: Served,
) -> None:
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"{served.base}/mcp/sse") as answer,
    ):
        assert await answer.content.readline() == b"event: endpoint\r\n"
        line = (await answer.content.readline()).decode().strip()
        assert line.startswith("data: /mcp/message?sessionId=")
        address = served.base + line.removeprefix("data: ")
        ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
        async with session.post(address, json=ping) as accepted:
            assert accepted.status == 202
        for address, status in (
            (f"{served.base}/mcp/message?sessionId=none", 400),
            (f"{served.base}/mcp/message?sessionId={'0' * 32}", 404),
            (f"{served.base}/mcp/message", 400),
        ):
            async with session.post(address, json=ping) as refused:
                assert refused.status == status


@pytest.mark.requirement("004/transports/stdio")
@pytest.mark.requirement("004/transports/stdio-clean")
@pytest.mark.requirement("004/profile/trust-local")
async def test_the_tools_work_over_stdio_as_the_docs_configure_it(
    site: Site, tmp_path: Path
) -> None:
    page = (Path(__file__).parents[3] / "docs/browser.md").read_text(encoding="utf-8")
    block = json.loads(page.partition("```json\n")[2].partition("```")[0])
    configured = block["mcpServers"]["browser"]
    server = StdioServerParameters(
        command=str(Path(sys.executable).with_name(configured["command"])),
        args=configured["args"],
        env={**os.environ, "TOOLGATE_HOME": str(tmp_path)},
    )
    async with Client(server) as client:
        await exercise(client, site.url("/n/1"), remote=False)


async def test_garbage_on_stdio_is_answered_or_ignored_and_stdout_stays_clean(
    tmp_path: Path,
) -> None:
    server = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "toolgate", "browser", "--stdio",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env={**os.environ, "TOOLGATE_HOME": str(tmp_path)},
    )  # fmt: skip
    assert server.stdin is not None
    assert server.stdout is not None
    hello = {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "t", "version": "1"},
    }
    lines: list[bytes] = [
        b"garbage",
        b"{",
        b"[]",
        b'{"jsonrpc":"2.0"}',
        b"\xff\xfe\x00",
        b'{"jsonrpc":"1.0","id":1,"method":"ping"}',
        json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}).encode(),
        b'{"jsonrpc":"2.0","method":"notifications/initialized"}',
        b'{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"nope"}}',
        b'{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":5}}',
        b'{"jsonrpc":"2.0","id":4,"method":"no/such/method"}',
        b'{"jsonrpc":"2.0","id":5,"method":"tools/call","params":{"name":"get_runtime_profile"}}',
    ]
    server.stdin.write(b"\n".join(lines) + b"\n")
    answers: dict[int, dict[str, Any]] = {}
    async with asyncio.timeout(20):
        while 5 not in answers:
            message = json.loads(await server.stdout.readline())
            assert message["jsonrpc"] == "2.0"
            if message.get("id") is not None:
                answers[message["id"]] = message
    assert answers[2]["error"]["code"] == -32602
    assert answers[3]["error"]["code"] == -32602
    assert answers[4]["error"]["code"] == -32601
    assert answers[5]["result"]["structuredContent"]["trustLevel"] == "local"
    server.stdin.close()
    async with asyncio.timeout(10):
        assert await server.wait() == 0


async def test_garbage_over_http_is_a_client_error(served: Served) -> None:
    headers = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}
    async with aiohttp.ClientSession(headers=headers) as session:
        for body in (b"garbage", b"[]", b"{}", b'{"jsonrpc":"2.0","id":1}', b"\xff"):
            async with session.post(f"{served.base}/mcp", data=body) as answer:
                assert 400 <= answer.status < 500
        async with session.post(f"{served.base}/mcp", data=io.BytesIO(b"x" * 5_000_000)) as answer:
            assert answer.status == 413
        async with session.get(f"{served.base}/mcp/nothing") as answer:
            assert answer.status == 404
        async with session.post(f"{served.base}/mcp/sse") as answer:
            assert answer.status == 405


@pytest.mark.parametrize("headers", [{"Host": "evil.example"}, {"Origin": "http://evil.example"}])
async def test_a_page_of_another_site_cannot_call_the_tools(
    served: Served, headers: dict[str, str]
) -> None:
    headers |= {"Accept": "application/json, text/event-stream"}
    async with aiohttp.ClientSession(headers=headers) as session:
        hello = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {}}
        async with session.post(f"{served.base}/mcp", json=hello) as answer:
            assert answer.status in {403, 421}
        async with session.get(f"{served.base}/mcp/sse") as answer:
            assert answer.status in {403, 421}


WAYS = [("http", "legacy"), ("http", "2026-07-28"), ("sse", "legacy"), ("local", "legacy")]


@pytest.mark.parametrize(("transport", "era"), WAYS)
async def test_a_client_that_cancels_its_request_cancels_the_run(
    served: Served, request: pytest.FixtureRequest, transport: str, era: str
) -> None:
    connect: Connect = request.getfixturevalue(transport)
    async with connect(mode=era) as client:
        known = {run.run_id for run in served.toolset.runtime.listed()}
        calling = asyncio.ensure_future(
            client.call_tool("run_task_template", waiting(served.seen_by(transport, "/never")))
        )
        await until(lambda: len(served.toolset.runtime.listed()) > len(known))
        (run_id,) = {run.run_id for run in served.toolset.runtime.listed()} - known
        await until(lambda: served.toolset.runtime.view(run_id).status is TaskStatus.RUNNING)
        calling.cancel()
        ended = await served.toolset.runtime.wait(run_id, timeout_s=5)
        assert ended.status is TaskStatus.CANCELED


def waiting(*urls: str) -> dict[str, Any]:
    return {
        "templateId": "batch_extract_pages",
        "inputs": {"urls": urls},
        "options": {"mode": "sync"},
    }


@pytest.mark.parametrize(("transport", "era"), WAYS)
async def test_progress_is_told_while_the_run_works(
    served: Served, request: pytest.FixtureRequest, transport: str, era: str
) -> None:
    connect: Connect = request.getfixturevalue(transport)
    heard: list[float] = []

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        assert total == 3
        heard.append(progress)

    async with connect(mode=era) as client:
        urls = [served.seen_by(transport, path) for path in ("/n/1", "/n/2", "/never")]
        calling = asyncio.ensure_future(
            client.call_tool("run_task_template", waiting(*urls), progress_callback=hear)
        )
        await until(lambda: bool(heard) and heard[-1] == 2)
        assert not calling.done()
        calling.cancel()
        await until(lambda: served.toolset.runtime.running == 0)


async def test_garbage_on_an_open_sse_session_is_refused_unlogged_and_the_session_lives(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    deep = b'{"jsonrpc":"2.0","id":1,"method":"ping","params":' + b'{"a":' * 50_000
    secret = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":["hunter2-hunter2"]}'
    async with (
        aiohttp.ClientSession(headers={"Content-Type": "application/json"}) as session,
        session.get(f"{served.base}/mcp/sse") as stream,
    ):
        await stream.content.readline()
        address = (await stream.content.readline()).decode().strip().removeprefix("data: ")
        for body in (b"garbage", b"[]", b"{}", b"\xff", b"", deep, secret):
            async with session.post(served.base + address, data=body) as answer:
                assert answer.status == 400
        ping = {"jsonrpc": "2.0", "id": "still here", "method": "ping"}
        async with session.post(served.base + address, json=ping) as answer:
            assert answer.status == 202
        async with asyncio.timeout(10):
            async for line in stream.content:
                if b"still here" in line:
                    break
    assert "hunter2" not in caplog.text


async def test_a_client_that_is_gone_in_mid_run_leaves_its_async_run_to_end(
    served: Served, sse: Connect
) -> None:
    async with sse(mode="legacy") as client:
        started = await call(
            client,
            "run_task_template",
            templateId="batch_extract_pages",
            inputs={"urls": [served.outside(f"/n/{n}") for n in range(6)]},
            options={"mode": "async"},
        )
    ended = await served.toolset.runtime.wait(started["runId"], timeout_s=20)
    assert ended.status is TaskStatus.SUCCEEDED


async def test_a_binary_artifact_is_a_blob_resource(served: Served, http: Connect) -> None:
    async with http() as client:
        shot = await call(
            client,
            "run_task_template",
            templateId="screenshot_page",
            inputs={"url": served.outside("/n/1")},
        )
        content = (
            await client.read_resource(f"artifact://{shot['result']['artifactId']}")
        ).contents
        assert base64.b64decode(getattr(content[0], "blob", "")).startswith(b"\x89PNG")
        listed = {str(resource.uri) for resource in (await client.list_resources()).resources}
        assert {f"artifact://{name}" for name in shot["artifactIds"]} <= listed


async def test_a_process_killed_in_mid_run_goes_on_when_it_is_started_again(
    site: Site, tmp_path: Path
) -> None:
    """Repeatable runs are run again, and a submission repeated with its key is the same run."""
    submission: dict[str, Any] = {
        "templateId": "batch_extract_pages",
        "inputs": {"urls": [site.url("/never"), *(site.url(f"/n/{n}") for n in range(3))]},
        "options": {"mode": "async", "idempotencyKey": "again", "timeoutMs": 60_000},
    }
    server = stdio_server(tmp_path)
    pid_file = tmp_path / "browser" / "stdio-0" / "lock"
    first = ""
    try:
        async with Client(server) as client:
            first = (await call(client, "run_task_template", **submission))["runId"]
            for _ in range(7):
                await call(
                    client, "run_task_template", **{**submission, "options": {"mode": "async"}}
                )
            async with asyncio.timeout(20):
                while True:
                    if (await call(client, "get_task_run", runId=first))["status"] == "running":
                        break
                    await asyncio.sleep(0.02)
            os.kill(int(pid_file.read_text()), signal.SIGKILL)
    except Exception:  # noqa: BLE001 - the connection breaks in whatever way it likes
        assert first
    async with Client(server) as client:
        again = await call(client, "run_task_template", **submission)
        assert (again["runId"], again["deduplicated"]) == (first, True)
        listed = await call(client, "list_task_runs")
        assert listed["total"] == 8
        assert {run["status"] for run in listed["runs"]} <= {"queued", "running"}
        for run in listed["runs"]:
            await call(client, "cancel_task_run", runId=run["runId"])
        assert (await call(client, "list_task_runs", status="canceled"))["total"] == 8
