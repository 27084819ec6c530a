"""Browser tasks over MCP on the gateway's port of the installed program, behind its doors."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import httpx2
import pytest
import pytest_asyncio
from mcp import ClientSession
from mcp.client.streamable_http import streamable_http_client

from tests.e2e.harness import PATIENCE, Program, bearer_of, running

pytestmark = pytest.mark.asyncio(loop_scope="module")

INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    },
}
JSON = {"Accept": "application/json, text/event-stream"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def program(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Program]:
    home = tmp_path_factory.mktemp("mcp") / "home"
    async with running(home, ALLOWED_HOSTS="gate.example") as started:
        yield started


def operator(program: Program) -> dict[str, str]:
    return {"Authorization": f"Bearer {(program.home / 'operator.token').read_text()}"}


async def paired(http: aiohttp.ClientSession, program: Program, name: str) -> dict[str, str]:
    """The headers of a new device that may use MCP."""
    gateway, device = program.urls["gateway"], {"X-Device-Id": name}
    async with http.get(f"{gateway}/status", headers=device) as answer:
        await answer.read()
    body = {"deviceId": name, "scope": {"mcp": True}}
    url = f"{gateway}/pairing/approve"
    async with http.post(url, json=body, headers=operator(program)) as answer:
        token = (await answer.json())["data"]["deviceToken"]
    return {**device, "X-Device-Token": token}


@pytest.mark.parametrize(
    ("method", "path"),
    [("POST", ""), ("GET", ""), ("DELETE", ""), ("GET", "/sse"), ("POST", "/message?sessionId=x")],
)
async def test_every_door_of_mcp_needs_a_token_and_an_origin_of_ours(
    program: Program, method: str, path: str
) -> None:
    url = program.urls["mcp"] + path
    right = await bearer_of(program)
    async with aiohttp.ClientSession(headers=JSON) as http:

        async def status(headers: dict[str, str]) -> int:
            async with http.request(method, url, json=INITIALIZE, headers=headers) as answer:
                return answer.status

        assert await status({}) == 401
        assert await status({"Authorization": "Bearer nonsense"}) == 401
        assert await status({"Authorization": "Basic nonsense"}) == 401
        for stranger in ("https://evil.example", "null", f"{program.urls['mcp']}.evil.example"):
            assert await status({**right, "Origin": stranger}) == 403
        assert await status({**right, "Host": "evil.example"}) == 403
        own = {**right, "Origin": program.urls["gateway"]}
        assert await status(own) == {"": {"POST": 200}, "/sse": {"GET": 200}}.get(path, {}).get(
            method, 400
        )


async def test_a_stock_client_lists_the_seven_tools_through_the_gateway(program: Program) -> None:
    async with (
        httpx2.AsyncClient(headers=await bearer_of(program)) as http,
        streamable_http_client(program.urls["mcp"], http_client=http) as streams,
        ClientSession(streams[0], streams[1]) as session,
    ):
        await session.initialize()
        tools = await session.list_tools()
        assert len(tools.tools) == 7


async def test_mcp_may_be_called_by_every_name_of_the_gateway(program: Program) -> None:
    async with aiohttp.ClientSession(headers={**JSON, **await bearer_of(program)}) as http:
        for host in ("gate.example", "gate.example:8787", "10.1.2.3:8787"):
            own = {"Host": host, "Origin": f"http://{host}"}
            async with http.post(program.urls["mcp"], json=INITIALIZE, headers=own) as answer:
                assert answer.status == 200, host


async def test_a_session_is_its_openers_alone(program: Program) -> None:
    url = program.urls["mcp"]
    async with aiohttp.ClientSession(headers=JSON) as http:
        ada, bob = await paired(http, program, "ada"), await paired(http, program, "bob")
        async with http.post(url, json=INITIALIZE, headers=ada) as answer:
            session = {"Mcp-Session-Id": answer.headers["Mcp-Session-Id"]}
        ping = {"jsonrpc": "2.0", "id": 2, "method": "ping"}
        for caller, status in ((ada, 200), (bob, 404), (await bearer_of(program), 404), (ada, 200)):
            async with http.post(url, json=ping, headers={**caller, **session}) as answer:
                assert answer.status == status
        async with http.get(f"{url}/sse", headers=ada) as stream:
            await stream.content.readline()
            at = (await stream.content.readline()).decode().strip().removeprefix("data: ")
            at = program.urls["gateway"] + at
            for caller, status in ((bob, 404), (ada, 202)):
                async with http.post(at, json=INITIALIZE, headers=caller) as answer:
                    assert answer.status == status


async def test_a_revoked_device_is_cut_off_its_open_streams(program: Program) -> None:
    url = program.urls["mcp"]
    async with aiohttp.ClientSession(headers=JSON) as http:
        eve = await paired(http, program, "eve")
        async with http.post(url, json=INITIALIZE, headers=eve) as answer:
            session = {"Mcp-Session-Id": answer.headers["Mcp-Session-Id"]}
        async with (
            http.get(f"{url}/sse", headers=eve) as old,
            http.get(url, headers={**eve, **session}) as new,
        ):
            assert (old.status, new.status) == (200, 200)
            revoke = f"{program.urls['gateway']}/pairing/revoke"
            body = {"deviceId": "eve"}
            async with http.post(revoke, json=body, headers=operator(program)) as answer:
                assert answer.status == 200, await answer.text()
            async with asyncio.timeout(5):
                await old.content.read()
                await new.content.read()
        async with http.post(url, json=INITIALIZE, headers=eve) as answer:
            assert answer.status == 401


ASK = """\
version: 1
name: ask
default: deny
rules:
  - {id: ask, ask: browser.run_task_template, match: any, reason: A person must see it}
  - {id: rest, allow: "browser.*", match: any, reason: For the test}
"""
TASK = {"templateId": "screenshot_page", "inputs": {"url": "http://pages.toolgate.example/"}}


async def called(program: Program, headers: dict[str, str], tool: str, **arguments: Any) -> Any:
    """The answer to a call of a tool, by a client of its own."""
    async with (
        httpx2.AsyncClient(headers=headers) as http,
        streamable_http_client(program.urls["mcp"], http_client=http) as streams,
        ClientSession(streams[0], streams[1]) as session,
    ):
        await session.initialize()
        return (await session.call_tool(tool, arguments)).structured_content


async def over(program: Program, headers: dict[str, str], run_id: str) -> Any:
    async with asyncio.timeout(3 * PATIENCE):
        while True:
            shown = await called(program, headers, "get_task_run", runId=run_id)
            if shown["status"] not in {"queued", "running"}:
                return shown
            await asyncio.sleep(0.1)


@pytest.mark.requirement("004/gate/waiting")
@pytest.mark.requirement("004/gate/not-approved")
@pytest.mark.parametrize("how", ["approve", "reject", "expire"])
async def test_a_task_that_waits_for_a_person_waits_over_a_kill(tmp_path: Path, how: str) -> None:
    policy = tmp_path / "ask.yaml"
    policy.write_text(ASK)
    wait_ms = "4000" if how == "expire" else "600000"
    settings = {
        "POLICY_FILE": str(policy),
        "CHROMIUM": "/bin/false",  # a task that runs fails at once
        "APPROVAL_TIMEOUT_MS": wait_ms,
        "MCP_HOLD_MS": "100",
    }
    async with aiohttp.ClientSession() as http, running(tmp_path / "home", **settings) as program:
        ada = await paired(http, program, "ada")
        begun = await called(program, ada, "run_task_template", **TASK)
        assert (begun["status"], begun["mode"]) == ("queued", "async")
        await program.kill()
        await program.start()
        run_id = begun["runId"]
        if how != "expire":
            assert (await called(program, ada, "get_task_run", runId=run_id))["status"] == "queued"
            url = f"{program.urls['gateway']}/approvals/apr_{run_id}/decide"
            body = {"decision": how}
            async with http.post(url, json=body, headers=operator(program)) as answer:
                assert answer.status == 200, await answer.text()
        error = (await over(program, ada, run_id))["error"]
        if how == "approve":
            assert error["errorCode"] == "EXECUTION_ERROR"
            return
        assert error["errorCode"] == "TRUST_LEVEL_NOT_ALLOWED"
        rule = {"reject": "approval_rejected", "expire": "approval_expired"}[how]
        assert error["details"]["ruleId"] == rule


@pytest.mark.requirement("004/gate/reading-limited")
async def test_a_tool_that_reads_is_limited_like_any_other(program: Program) -> None:
    async with aiohttp.ClientSession() as http:
        ida = await paired(http, program, "ida")
        url = f"{program.urls['gateway']}/capabilities/register"
        tool = "browser.get_runtime_profile"
        terms = {"capabilityId": tool, "scope": "test", "level": "read", "rateLimit": 1}
        async with http.post(url, json=terms, headers=operator(program)) as answer:
            assert answer.status == 200, await answer.text()
    assert "errorCode" not in await called(program, ida, "get_runtime_profile")
    refused = await called(program, ida, "get_runtime_profile")
    assert refused["details"]["ruleId"] == "rate_limited"


@pytest.mark.requirement("004/gate/own-runs")
async def test_a_device_and_a_named_token_see_their_own_tasks_alone(program: Program) -> None:
    async with aiohttp.ClientSession() as http:
        gil, hal = await paired(http, program, "gil"), await paired(http, program, "hal")
    one, other = await bearer_of(program, "one"), await bearer_of(program, "other")
    callers = (gil, hal, one, other, await bearer_of(program, "third", kind="user"))
    run_id = ""
    for owner in (one, gil):
        begun = await called(program, owner, "run_task_template", **TASK, options={"mode": "async"})
        run_id = begun["runId"]
        for caller in callers:
            seen = caller is owner
            listed = await called(program, caller, "list_task_runs")
            assert (run_id in {run["runId"] for run in listed["runs"]}) is seen
            shown = await called(program, caller, "get_task_run", runId=run_id)
            assert shown.get("errorCode") == (None if seen else "RUN_NOT_FOUND")
    refused = await called(program, hal, "cancel_task_run", runId=run_id)
    assert refused["errorCode"] == "RUN_NOT_FOUND"
    await called(program, gil, "cancel_task_run", runId=run_id)
