"""MCP's own tasks, as revision 2025-11-25 has them, spoken by hand: the SDK's client has none."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from tests.surfaces.mcp.conftest import Served
from tests.tasks.runtimes import until

pytestmark = pytest.mark.asyncio(loop_scope="session")

HEADERS = {
    "Accept": "application/json, text/event-stream",
    "MCP-Protocol-Version": "2025-11-25",
}


class Raw:
    """JSON-RPC over streamable HTTP, one answer per request."""

    def __init__(self, http: aiohttp.ClientSession, url: str) -> None:
        self._http = http
        self._url = url
        self._number = 0
        self.session = ""

    async def ask(self, method: str, **params: Any) -> dict[str, Any]:
        self._number += 1
        message = {"jsonrpc": "2.0", "id": self._number, "method": method, "params": params}
        headers = {**HEADERS, **({"Mcp-Session-Id": self.session} if self.session else {})}
        async with self._http.post(self._url, json=message, headers=headers) as answer:
            self.session = answer.headers.get("Mcp-Session-Id", self.session)
            if answer.content_type == "application/json":
                found = await answer.json()
            else:
                found = await self._event(answer)
        assert isinstance(found, dict)
        return found

    async def tell(self, method: str) -> None:
        message = {"jsonrpc": "2.0", "method": method}
        headers = {**HEADERS, "Mcp-Session-Id": self.session}
        async with self._http.post(self._url, json=message, headers=headers) as answer:
            assert answer.status == 202

    async def _event(self, answer: aiohttp.ClientResponse) -> Any:
        import msgspec  # noqa: PLC0415 - one use

        async for line in answer.content:
            if line.startswith(b"data: {"):
                found = msgspec.json.decode(line.removeprefix(b"data: "))
                if "id" in found:
                    return found
        raise AssertionError("no answer came")


@asynccontextmanager
async def raw(served: Served) -> AsyncIterator[tuple[Raw, dict[str, Any]]]:
    async with aiohttp.ClientSession() as http:
        client = Raw(http, f"{served.base}/mcp")
        hello = await client.ask(
            "initialize",
            protocolVersion="2025-11-25",
            capabilities={},
            clientInfo={"name": "t", "version": "1"},
        )
        await client.tell("notifications/initialized")
        yield client, hello["result"]["capabilities"]


async def test_a_run_is_a_task_that_can_be_watched_listed_and_read(served: Served) -> None:
    async with raw(served) as (client, capabilities):
        assert capabilities["tasks"]["requests"] == {"tools": {"call": {}}}
        tools = (await client.ask("tools/list"))["result"]["tools"]
        supports = {tool["name"] for tool in tools if "execution" in tool}
        assert supports == {"run_task_template"}
        created = await client.ask(
            "tools/call",
            name="run_task_template",
            arguments={
                "templateId": "batch_extract_pages",
                "inputs": {"urls": [served.outside("/n/1")]},
            },
            task={"ttl": 60_000},
        )
        task = created["result"]["task"]
        assert task["status"] == "working"
        payload = (await client.ask("tasks/result", taskId=task["taskId"]))["result"]
        assert payload["structuredContent"]["runId"] == task["taskId"]
        assert payload["structuredContent"]["status"] == "succeeded"
        assert payload["_meta"]["io.modelcontextprotocol/related-task"] == {
            "taskId": task["taskId"]
        }
        got = (await client.ask("tasks/get", taskId=task["taskId"]))["result"]
        assert (got["status"], got["taskId"]) == ("completed", task["taskId"])
        listed = (await client.ask("tasks/list"))["result"]["tasks"]
        assert listed[0]["taskId"] == task["taskId"]
        over = await client.ask("tasks/cancel", taskId=task["taskId"])
        assert over["error"]["code"] == -32602


async def test_a_task_can_be_canceled_and_bad_ones_are_refused(served: Served) -> None:
    async with raw(served) as (client, _):
        created = await client.ask(
            "tools/call",
            name="run_task_template",
            arguments={
                "templateId": "batch_extract_pages",
                "inputs": {"urls": [served.outside("/never")]},
            },
            task={},
        )
        task_id = created["result"]["task"]["taskId"]
        canceled = (await client.ask("tasks/cancel", taskId=task_id))["result"]
        assert canceled["status"] == "cancelled"
        payload = (await client.ask("tasks/result", taskId=task_id))["result"]
        assert payload["isError"] is True
        assert payload["structuredContent"]["errorCode"] == "RUN_CANCELED"
        for method in ("tasks/get", "tasks/result", "tasks/cancel"):
            unknown = await client.ask(method, taskId="run_none")
            assert unknown["error"]["code"] == -32602
        other = await client.ask("tools/call", name="get_task_run", arguments={}, task={})
        assert other["error"]["code"] == -32601
        wrong = await client.ask(
            "tools/call", name="run_task_template", arguments={"templateId": "nope"}, task={}
        )
        assert wrong["result"]["structuredContent"]["errorCode"] == "TEMPLATE_NOT_FOUND"
        await until(lambda: served.toolset.runtime.running == 0)
