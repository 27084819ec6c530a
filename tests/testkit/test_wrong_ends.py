"""Ends that are wrong: each check of the testkit can fail, and says why."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from toolgate.testkit import browser, client, executor, gateway, ingress, orchestrator, runner
from toolgate.testkit.checks import CheckResult, Kit, SeedCheck, Unreachable

KITS: tuple[Kit[Any], ...] = (
    runner.KIT,
    orchestrator.KIT,
    ingress.KIT,
    client.KIT,
    gateway.KIT,
    executor.KIT,
    browser.KIT,
)
SEEDS = Path(__file__).parents[2] / "docs" / "contracts" / "seeds"
Handle = Callable[[web.Request], Awaitable[web.StreamResponse]]


def test_every_check_quotes_its_seed() -> None:
    texts = {path.name[:3]: path.read_text("utf-8") for path in SEEDS.iterdir()}
    checks: list[SeedCheck[Any]] = [check for kit in KITS for check in kit.checks]
    lost = [(one.name, one.quote) for one in checks if one.quote not in texts[one.seed]]
    assert lost == []


@asynccontextmanager
async def serving(handle: Handle) -> AsyncIterator[tuple[str, aiohttp.ClientSession]]:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handle)
    served = web.AppRunner(app)
    await served.setup()
    await web.TCPSite(served, "127.0.0.1", 0).start()
    try:
        async with aiohttp.ClientSession() as http:
            yield f"http://127.0.0.1:{served.addresses[0][1]}", http
    finally:
        await served.cleanup()


async def judged(kit: Kit[Any], peer: Any) -> dict[str, CheckResult]:
    return {one.name: one for one in await kit.run(peer, lambda _done, _total: None)}


async def test_a_wrong_runner_fails_each_check_that_it_breaks() -> None:
    answers: dict[str, Any] = {
        "answers_a_tool_result": {"ok": "yes"},
        "accepts_the_seeds_request": {"ok": False, "error": {"code": "X", "message": "no"}},
        "leaves_the_policy_to_the_gateway": {
            "result": {"ok": False, "error": {"code": "POLICY_DENIED", "message": "no"}}
        },
        "has_readable_updates": {"updates": [{"at": 1}], "result": {"ok": True, "output": ""}},
        "refuses_a_call_without_a_name": {"ok": True, "output": ""},
        "checks_the_token": {"ok": True, "output": ""},
        "serves_calls_side_by_side": [1],
    }
    for name, body in answers.items():

        async def answer(_: web.Request, body: Any = body) -> web.Response:
            return web.json_response(body)

        async with serving(answer) as (url, http):
            found = await judged(runner.KIT, runner.GatewayPeer(url, http, "t"))
            assert (found[name].result, bool(found[name].detail)) == ("no", True), name


async def test_a_runner_that_runs_wrongly_is_found_out() -> None:
    kept: dict[str, str] = {}

    async def answer(request: web.Request) -> web.Response:
        """One workspace for all sessions; errors are no failures; no letter beyond ASCII."""
        cmd = str((await request.json())["call"].get("args", {}).get("cmd"))
        if ">" in cmd:
            kept["mark"] = "mine"
        output = {"printf hello": "hello", "cat testkit_mark": kept.get("mark", "")}.get(cmd, "?")
        return web.json_response({"ok": True, "output": output})

    async with serving(answer) as (url, http):
        found = await judged(runner.KIT, runner.GatewayPeer(url, http))
    for name in ("returns_the_output", "says_what_failed", "keeps_sessions_apart"):
        assert found[name].result == "no", found[name]


async def test_a_wrong_executor_fails_each_check_that_it_breaks() -> None:
    async def answer(request: web.Request) -> web.Response:
        if request.path == "/artifact/get":
            return web.Response(status=404)
        body = await request.json()
        decision = "deny" if body["tool_id"] == "testkit.no_such_tool" else "allow"
        response = {
            "ok": True,
            "policy_check": {"decision": decision, "reason": "so"},
            "evidence_refs": [f"requests/{id(body)}/x.json"],
            "local_evidence_paths": ["/etc/passwd"],
            "engine_ref": "wrong",
            "run_id": "always",
            "tool_result": {"exit_code": 0, "stdout": None, "stderr": ""},
        }
        return web.json_response(response)

    async with serving(answer) as (url, http):
        found = await judged(executor.KIT, executor.ServicePeer(url, http))
    expected = {"answers_an_allowed_call", "answers_a_denied_call", "denies_with_403", "echoes_ids"}
    expected |= {"has_readable_evidence", "keeps_local_paths_apart"}
    assert {one.name for one in found.values() if one.result == "no"} >= expected


async def test_a_gateway_that_says_yes_to_everything_is_found_out() -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.json_response({"ok": True, "data": {"number": next(numbers)}, "traceId": "t"})

    numbers = iter(range(10_000))
    async with serving(answer) as (url, http):
        peer = gateway.DevicePeer(url, http, token="t", operator_token="o")
        found = await judged(gateway.KIT, peer)
    assert {one.name for one in found.values() if one.result != "no"} == {
        "takes_the_whole_envelope",
        "answers_a_dead_cursor",
    }


async def test_an_orchestrator_without_a_run_id_or_an_end_is_found_out() -> None:
    async def answer(_: web.Request) -> web.Response:
        event = json.dumps({"type": "delta"})
        return web.Response(text=f"data: {event}\n\n", content_type="text/event-stream")

    async with serving(answer) as (url, http):
        peer = orchestrator.IngressPeer(url, http, "", "echo", "tool", "approve")
        found = await judged(orchestrator.KIT, peer)
    assert {one.name for one in found.values() if one.result == "ok"} == {"answers_an_invoke"}


async def test_an_ingress_that_only_echoes_is_found_out() -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        async for frame in socket:
            await socket.send_str(str(frame.data))
        return socket

    async with serving(answer) as (url, http):
        peer = ingress.ClientPeer(url.replace("http", "ws") + "/ws", http, checks_key=True)
        peer.orchestrator = ingress.OrchestratorPeer()
        short = ingress.EVENT_S
        ingress.EVENT_S = 0.2  # type: ignore[misc]
        try:
            found = await judged(ingress.KIT, peer)
        finally:
            ingress.EVENT_S = short  # type: ignore[misc]
    assert {one.name for one in found.values() if one.result == "ok"} == set()


async def test_a_client_that_leaves_is_found_out() -> None:
    peer = client.SmallIngress()
    said: asyncio.Queue[str] = asyncio.Queue()
    visit = asyncio.ensure_future(peer.visit("127.0.0.1", 0, wait_s=30, step=said.put_nowait))
    url = (await said.get()).split()[5]
    async with aiohttp.ClientSession() as http, http.ws_connect(url) as socket:
        await socket.send_bytes(b"{}")
        await socket.send_str("[]")
        await socket.send_json({"type": "agent_invoke", "ts": 1})
        await socket.receive()
    await visit
    found = await judged(client.KIT, peer)
    assert {one.name for one in found.values() if one.result == "ok"} == set()


async def test_who_is_not_there_is_told_at_once() -> None:
    with pytest.raises(Unreachable):
        await client.SmallIngress().visit("127.0.0.1", 0, wait_s=0.01, step=lambda _: None)
    async with aiohttp.ClientSession() as http:
        for kit, peer in (
            (runner.KIT, runner.GatewayPeer("http://127.0.0.1:1/execute", http)),
            (executor.KIT, executor.ServicePeer("http://127.0.0.1:1", http)),
            (gateway.KIT, gateway.DevicePeer("http://127.0.0.1:1", http)),
            (orchestrator.KIT, orchestrator.IngressPeer("http://127.0.0.1:1", http)),
            (ingress.KIT, ingress.ClientPeer("ws://127.0.0.1:1/ws", http)),
        ):
            with pytest.raises(Unreachable):
                await judged(kit, peer)
        for at in (("nonsense-of-a-program",), ("false",), ()):
            mcp = browser.McpClientPeer(http, url="http://127.0.0.1:1/mcp")
            with pytest.raises(Unreachable):
                await mcp.open(*at)
            await mcp.close()


async def test_an_mcp_server_that_answers_anything_is_found_out() -> None:
    async def answer(request: web.Request) -> web.Response:
        asked = await request.json()
        if "id" not in asked:
            return web.Response(status=202)
        result = {"content": [{"type": "text", "text": '{"runId": "r", "status": "succeeded"}'}]}
        return web.json_response({"jsonrpc": "2.0", "id": asked["id"], "result": result})

    async with serving(answer) as (url, http):
        peer = browser.McpClientPeer(http, "http://page/", url=f"{url}/mcp")
        await peer.open()
        found = await judged(browser.KIT, peer)
    assert {one.name for one in found.values() if one.result == "ok"} == set()
