"""The policy that ships, at the sockets of the program: what sends forms, or runs on a device, asks."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from mcp import Client as McpClient
from mcp import StdioServerParameters

from tests.e2e.harness import ANY_PORT, PROGRAM, Client, Program, environment, running

requirement = pytest.mark.requirement
pytestmark = pytest.mark.asyncio(loop_scope="module")
START = "http://pages.toolgate.example/"
NAME = {"mode": "selector", "selector": "input"}
SENDS = {"startUrl": START, "fields": [{"name": "q", "value": "x", "locator": NAME}]}
LOGIN = {
    "startUrl": START,
    "credentials": {"username": "a", "password": "b"},
    "fields": {"mode": "semantic"},
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def program(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Program]:
    async with running(tmp_path_factory.mktemp("shipped") / "home") as one:
        yield one
        await one.stop()


@requirement("004/gate/shipped-policy")
async def test_a_template_that_sends_forms_waits_for_a_person(program: Program) -> None:
    client = await Client.connect(program.urls["ingress_ws"])
    for tool, args in (
        ("browser.submit_and_verify", SENDS),
        ("browser.task", {"goal": f"Send a form on {START}"}),
        ("browser.run_task_template", {"templateId": "submit_and_verify", "inputs": SENDS}),
    ):
        await client.invoke(f"[[tool:{tool} {json.dumps(args)}]]", agent="script", request_id=tool)
        heard = (await client.hear_until("approval_required", "tool_request", "done", "error"))[-1]
        assert heard["type"] == "approval_required", tool
    await client.close()


@requirement("001/tools/client-tools-ask")
async def test_a_devices_own_tool_asks_whatever_its_name(program: Program) -> None:
    tools = ["camera.take_picture", "notes"]
    client = await Client.connect(program.urls["ingress_ws"], client_meta={"tools": tools})
    for tool in tools:
        await client.invoke(f"[[tool:{tool} {{}}]]", agent="script", request_id=tool)
        asked = (await client.hear_until("approval_required", "done", "error"))[-1]
        assert asked["type"] == "approval_required", tool
        ids = {"run_id": asked["run_id"], "approval_id": asked["approval_id"]}
        await client.say("approval_decision", **ids, decision="approve")
        request = (await client.hear_until("tool_request", "done", "error"))[-1]
        assert request["type"] == "tool_request", tool
        call = {"run_id": request["run_id"], "tool_call_id": request["tool_call_id"]}
        await client.say("tool_result", **call, ok=True, result="taken")
        await client.hear_until("done", "error")
    await client.invoke("[[tool:nobodys.tool {}]]", agent="script")
    kinds = {heard["type"] for heard in await client.hear_until("done", "error")}
    assert "approval_required" not in kinds, "no device has it: nobody is asked"
    await client.close()


@requirement("004/gate/shipped-policy")
async def test_who_starts_it_on_stdio_may_send_forms(tmp_path: Any) -> None:
    given = {**ANY_PORT, "TOOLGATE_HOME": str(tmp_path), "CHROMIUM": "/bin/false"}
    server = StdioServerParameters(
        command=str(PROGRAM), args=["browser", "--stdio"], env=environment(given)
    )
    async with asyncio.timeout(60), McpClient(server) as client:
        for template, inputs in (("submit_and_verify", SENDS), ("login_keep_session", LOGIN)):
            answer = await client.call_tool(
                "run_task_template",
                {"templateId": template, "inputs": inputs, "options": {"mode": "async"}},
            )
            assert not answer.is_error, answer.content
