"""MCP's own tasks by the official client: in the core of 2025-11-25, an extension at 2026-07-28.

The client has their types and no methods for them, so the requests are made by hand.
"""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import mcp_types as types
import pytest
from mcp import Client
from mcp.client.extension import ClaimContext, ClientExtension, ResultClaim
from mcp.shared.exceptions import MCPError

from tests.surfaces.mcp.conftest import Connect, Served, call, stdio_server
from tests.tasks.runtimes import until
from tests.tasks.site import Site
from toolgate.surfaces.mcp.task_extension import EXTENSION
from toolgate.surfaces.mcp.task_methods import RELATED

pytestmark = pytest.mark.asyncio(loop_scope="session")

BATCH = "batch_extract_pages"
CORE = "2025-11-25"


class Payload(types.Result):
    """The answer of `tasks/result`: whatever the call itself would have answered."""

    structured_content: dict[str, Any] | None = None
    is_error: bool = False


class Described(types.Result):
    """A task of the extension, with its result or error where it has ended."""

    task_id: str
    status: str
    ttl_ms: int | None = None
    result: dict[str, Any] | None = None
    error: dict[str, Any] | None = None


class Created(types.Result):
    result_type: Literal["task"] = "task"
    task_id: str
    status: str
    ttl_ms: int | None


class AnyRequest(types.Request[Any, Any]):
    method: str
    params: Any


class TaskRequest(AnyRequest):
    """Its task is named in a header too, as the extension wants it."""

    name_param: ClassVar[str | None] = "taskId"


class Waits(ClientExtension):
    """Polls a task until it has ended, as a client of the extension does."""

    identifier = EXTENSION

    def __init__(self) -> None:
        self.seen: list[str] = []

    def claims(self) -> Sequence[ResultClaim[Any]]:
        return [ResultClaim(result_type="task", model=Created, resolve=self._resolve)]

    async def _resolve(self, created: Created, context: ClaimContext) -> types.CallToolResult:
        self.seen.append(created.status)
        async with asyncio.timeout(20):
            while True:
                task = await get(context.session, created.task_id)
                self.seen.append(task.status)
                if task.status == "completed":
                    return types.CallToolResult.model_validate(task.result)
                await asyncio.sleep(0.05)  # as a client does that polls


async def get(session: Any, task_id: str) -> Described:
    found: Described = await ask(session, "tasks/get", Described, taskId=task_id)
    return found


async def ask(session: Any, method: str, answer: type[Any], **params: Any) -> Any:
    request = TaskRequest if "taskId" in params else AnyRequest
    return await session.send_request(request(method=method, params=params), answer)


async def begin(client: Client, *urls: str, tool: str = "run_task_template") -> types.Task:
    """A call that asks to be a task."""
    params = types.CallToolRequestParams(
        name=tool,
        arguments={"templateId": BATCH, "inputs": {"urls": urls}},
        task=types.TaskMetadata(ttl=60_000),
    )
    request = types.CallToolRequest(params=params)
    created = await client.session.send_request(request, types.CreateTaskResult)
    return created.task


async def core_tasks(client: Client, url: str) -> None:
    assert client.server_capabilities.tasks is not None
    task = await begin(client, url)
    assert task.status == "working"
    payload: Payload = await ask(client.session, "tasks/result", Payload, taskId=task.task_id)
    assert payload.structured_content is not None
    assert payload.structured_content["runId"] == task.task_id
    assert payload.structured_content["status"] == "succeeded"
    assert (payload.meta or {})[RELATED] == {"taskId": task.task_id}
    got = await ask(client.session, "tasks/get", types.GetTaskResult, taskId=task.task_id)
    assert (got.status, got.task_id) == ("completed", task.task_id)
    listed = await ask(client.session, "tasks/list", types.ListTasksResult)
    assert listed.tasks[0].task_id == task.task_id
    with pytest.raises(MCPError) as over:
        await ask(client.session, "tasks/cancel", types.CancelTaskResult, taskId=task.task_id)
    assert over.value.error.code == types.INVALID_PARAMS


async def extension_tasks(client: Client, waits: Waits, url: str) -> None:
    assert EXTENSION in (client.server_capabilities.extensions or {})
    answer = await call(client, "run_task_template", templateId=BATCH, inputs={"urls": [url]})
    assert answer["status"] == "succeeded"
    assert waits.seen[0] == "working"
    assert waits.seen[-1] == "completed"
    seen = len(waits.seen)
    waited = await call(
        client,
        "run_task_template",
        templateId=BATCH,
        inputs={"urls": [url]},
        options={"mode": "sync"},
    )
    assert waited["status"] == "succeeded"
    assert len(waits.seen) == seen  # who asks to wait, waits


async def test_a_run_is_a_task_over_streamable_http(served: Served, http: Connect) -> None:
    async with http(mode="legacy") as client:
        await core_tasks(client, served.outside("/n/1"))
    waits = Waits()
    async with http(mode="auto", extensions=[waits]) as client:
        await extension_tasks(client, waits, served.outside("/n/1"))


async def test_a_run_is_a_task_over_sse(served: Served, sse: Connect) -> None:
    async with sse(mode="legacy") as client:
        await core_tasks(client, served.outside("/n/1"))


async def test_a_run_is_a_task_over_stdio(site: Site, tmp_path: Path) -> None:
    async with Client(stdio_server(tmp_path), mode="legacy") as client:
        await core_tasks(client, site.url("/n/1"))
    waits = Waits()
    async with Client(stdio_server(tmp_path), mode="auto", extensions=[waits]) as client:
        await extension_tasks(client, waits, site.url("/n/1"))


async def test_a_task_can_be_canceled_and_bad_ones_are_refused(
    served: Served, http: Connect
) -> None:
    async with http(mode="legacy") as client:
        task = await begin(client, served.outside("/never"))
        canceled = await ask(
            client.session, "tasks/cancel", types.CancelTaskResult, taskId=task.task_id
        )
        assert canceled.status == "cancelled"
        payload: Payload = await ask(client.session, "tasks/result", Payload, taskId=task.task_id)
        assert payload.is_error
        assert payload.structured_content is not None
        assert payload.structured_content["errorCode"] == "RUN_CANCELED"
        for method in ("tasks/get", "tasks/result", "tasks/cancel"):
            with pytest.raises(MCPError) as unknown:
                await ask(client.session, method, Payload, taskId="run_none")
            assert unknown.value.error.code == types.INVALID_PARAMS
        for cursor in ("x", "-1", "9" * 4000, "²"):
            with pytest.raises(MCPError) as nowhere:
                await ask(client.session, "tasks/list", Payload, cursor=cursor)
            assert nowhere.value.error.code == types.INVALID_PARAMS
        with pytest.raises(MCPError) as other:
            await begin(client, served.outside("/n/1"), tool="get_task_run")
        assert other.value.error.code == types.METHOD_NOT_FOUND
        await until(lambda: served.toolset.runtime.running == 0)


async def test_a_task_of_the_extension_is_canceled_once_or_twice(
    served: Served, http: Connect
) -> None:
    waits, known = Waits(), {run.run_id for run in served.toolset.runtime.listed()}
    async with http(mode="2026-07-28", extensions=[waits]) as client:
        calling = asyncio.ensure_future(
            client.call_tool(
                "run_task_template",
                {"templateId": BATCH, "inputs": {"urls": [served.outside("/never")]}},
            )
        )
        await until(lambda: bool(waits.seen))
        (run_id,) = {run.run_id for run in served.toolset.runtime.listed()} - known
        for _ in range(2):
            await ask(client.session, "tasks/cancel", types.EmptyResult, taskId=run_id)
        assert (await get(client.session, run_id)).status == "cancelled"
        await ask(
            client.session, "tasks/update", types.EmptyResult, taskId=run_id, inputResponses={}
        )
        calling.cancel()
        for method in ("tasks/get", "tasks/update", "tasks/cancel"):
            with pytest.raises(MCPError) as unknown:
                await ask(client.session, method, Payload, taskId="run_none", inputResponses={})
            assert unknown.value.error.code == types.INVALID_PARAMS
        for method in ("tasks/result", "tasks/list"):
            with pytest.raises(MCPError) as gone:
                await ask(client.session, method, Payload, taskId=run_id)
            assert gone.value.error.code == types.METHOD_NOT_FOUND


async def test_a_client_without_the_extension_gets_no_task_and_no_methods(
    served: Served, http: Connect
) -> None:
    async with http(mode="2026-07-28") as client:
        answer = await call(
            client,
            "run_task_template",
            templateId=BATCH,
            inputs={"urls": [served.outside("/n/1")]},
        )
        assert answer["status"] == "succeeded"
        with pytest.raises(MCPError) as missing:
            await ask(client.session, "tasks/get", Payload, taskId=answer["runId"])
        assert missing.value.error.code == types.MISSING_REQUIRED_CLIENT_CAPABILITY


async def test_what_cannot_begin_is_an_error_answer_and_no_task(
    served: Served, http: Connect
) -> None:
    waits = Waits()
    async with http(mode="2026-07-28", extensions=[waits]) as client:
        refused = await client.call_tool("run_task_template", {"templateId": "nope"})
        assert refused.is_error
        assert refused.structured_content["errorCode"] == "TEMPLATE_NOT_FOUND"
        odd = await client.call_tool("run_task_template", {"templateId": BATCH, "options": 5})
        assert odd.is_error
        assert waits.seen == []
