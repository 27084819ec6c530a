"""The gateway is killed while commands run: each has one start, one end, and an answer that is true."""

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from tests.e2e.harness import Program, running
from toolgate import settings as table
from toolgate.bootstrap.installation import Installation, open_core
from toolgate.bootstrap.tools import open_execution
from toolgate.contracts.gateway_v1 import CommandStatus, EventStatus
from toolgate.core.enums import Outcome
from toolgate.secrets.patterns import SecretPatterns

PLAIN = Path(__file__).parents[1] / "tools" / "upstream" / "servers" / "plain.py"
POLICY = """
version: 1
name: kills
default: deny
rules:
  - {id: pays, ask: "mcp.plain.say", match: any, reason: For the test}
  - {id: all, allow: [echo, web.search, "mcp.*"], match: any, reason: For the test}
"""
OPERATOR = {"Authorization": "Bearer op-token"}
WAIT = "mcp.plain.wait"  # never answers, and is registered as reading
STARTED, FAILED, SUCCEEDED = EventStatus.STARTED, EventStatus.FAILED, EventStatus.SUCCEEDED
ECHO = {"id": "a", "name": "echo", "arguments": {"text": "x"}}
SEARCH = {"id": "b", "name": "web.search", "arguments": {"query": "q"}}
COMMANDS: dict[str, tuple[str, dict[str, Any]]] = {  # by their request ids
    "ended": ("tool", {"name": "echo", "args": {"text": "x"}}),
    "one": ("mcp", {"capabilityId": "mcp.plain", "action": "wait", "args": {"n": 1}}),
    "many": ("tool", {"toolCalls": [ECHO, {"id": "b", "name": WAIT, "arguments": {"n": 1}}]}),
    "write": ("mcp", {"capabilityId": "mcp.plain", "action": "wait", "args": {"n": 2}}),
    "read": ("system", {"action": "web.search", "args": {"query": "q"}}),
    "several": ("tool", {"toolCalls": [ECHO, SEARCH, ECHO | {"id": "c"}]}),
    "asked": ("mcp", {"capabilityId": "mcp.plain", "action": "say", "args": {}}),
}


class Searches:
    """A search provider that answers no request while it is held."""

    def __init__(self) -> None:
        self.asked = 0
        self.open = asyncio.Event()

    async def answer(self, _: web.Request) -> web.Response:
        self.asked += 1
        await self.open.wait()
        return web.json_response({"results": [{"title": "t", "url": "u", "content": "c"}]})


@contextlib.asynccontextmanager
async def searches() -> AsyncIterator[tuple[Searches, str]]:
    provider, app = Searches(), web.Application()
    app.router.add_get("/search", provider.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        yield provider, f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        provider.open.set()
        await runner.cleanup()


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not true():
            await asyncio.sleep(0.02)


class Device:
    """Paired once, and at the same gateway after each start."""

    def __init__(self, program: Program, http: aiohttp.ClientSession) -> None:
        self.program, self.http = program, http
        self.headers = {"X-Device-Id": "d"}

    async def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Any:
        return json.loads(await self.ask_raw(method, path, body, **headers))

    async def ask_raw(self, method: str, path: str, body: Any = None, **headers: str) -> bytes:
        url = self.program.urls["gateway"] + path
        sent = headers or self.headers
        async with self.http.request(method, url, json=body, headers=sent) as answer:
            return await answer.read()

    async def pair(self) -> None:
        await self.ask("GET", "/status")
        scope = {"tools": "sign", "mcp": True, "system": True}
        approved = await self.ask(
            "POST", "/pairing/approve", {"deviceId": "d", "scope": scope}, **OPERATOR
        )
        self.headers["X-Device-Token"] = approved["data"]["deviceToken"]

    async def send(self, request_id: str, *, key: str = "") -> bytes:
        kind, payload = COMMANDS[request_id]
        headers = {**self.headers, "Idempotency-Key": key} if key else self.headers
        body = {"requestId": request_id, "payload": payload}
        return await self.ask_raw("POST", f"/command/{kind}", body, **headers)

    async def state(self, request_id: str) -> Any:
        return (await self.ask("GET", f"/command/{request_id}?wait=30"))["data"]

    async def events(self) -> dict[str, list[dict[str, Any]]]:
        """The events of each command."""
        found: dict[str, list[dict[str, Any]]] = {name: [] for name in COMMANDS}
        for event in (await self.ask("GET", "/events/poll?since=0"))["events"]:
            if (request_id := event["metadata"].get("requestId")) in found:
                found[request_id].append(event)
        return found

    async def statuses(self, request_id: str) -> list[str]:
        """The statuses of a command's events, all of them with one trace id."""
        events = (await self.events())[request_id]
        assert len({event["metadata"]["traceId"] for event in events}) == 1
        return [event["status"] for event in events]

    async def killed(self, *under_way: "asyncio.Task[bytes]") -> None:
        await self.program.kill()
        for task in under_way:
            with pytest.raises(aiohttp.ClientError):
                await task


async def start_cut_short(program: Program) -> None:
    """A start that is stopped when the gate has recovered its calls."""
    names = {**program.settings, "TOOLGATE_HOME": str(program.home)}
    settings, installation = table.load(names, environment={}), Installation()
    try:
        core = await open_core(settings, installation, SecretPatterns(()))
        await open_execution(settings, installation, core)
    finally:
        await installation.stop()


class House:
    """A device at a Toolgate with an MCP server that writes what it got into a file."""

    def __init__(self, device: Device, log: Path, provider: Searches) -> None:
        self.device, self.program, self.log, self.provider = (
            device,
            device.program,
            log,
            provider,
        )

    def calls(self) -> int:
        return self.log.read_text().count("tools/call")


@contextlib.asynccontextmanager
async def house(tmp_path: Path, *how: str) -> AsyncIterator[House]:
    log, policy, servers = tmp_path / "log", tmp_path / "policy.yaml", tmp_path / "mcp.json"
    policy.write_text(POLICY)
    args = [str(PLAIN), str(log), *how]
    program = {"command": sys.executable, "args": args, "isolation": "none"}
    servers.write_text(json.dumps({"mcpServers": {"plain": program}}))
    async with searches() as (provider, url):
        settings = {
            "POLICY_FILE": str(policy),
            "MCP_FILE": str(servers),
            "OPERATOR_TOKEN": "op-token",
            "SEARCH_PROVIDER": "searxng",
            "SEARCH_URL": url,
        }
        async with (
            running(tmp_path / "home", **settings) as at_work,
            aiohttp.ClientSession() as http,
        ):
            device = Device(at_work, http)
            await device.pair()
            level = "read" if "reading" in how else "write"
            terms = {"capabilityId": "mcp.plain", "scope": "mcp", "level": level}
            assert (await device.ask("POST", "/capabilities/register", terms, **OPERATOR))["ok"]
            await until(lambda: log.exists() and "tools/list" in log.read_text())
            yield House(device, log, provider)


@pytest.mark.timeout(180)
@pytest.mark.soak("kills")
@pytest.mark.parametrize("cut_short", [0, 2])
@pytest.mark.requirement("002/events/ends-survive-kill")
async def test_commands_that_only_read_have_one_end_after_sigkill(
    tmp_path: Path, cut_short: int
) -> None:
    async with house(tmp_path, "reading") as at:
        device = at.device
        assert json.loads(await device.send("ended"))["ok"] is True
        under_way = [asyncio.create_task(device.send(name)) for name in ("one", "many")]
        await until(lambda: at.calls() == 2)
        await device.killed(*under_way)
        for _ in range(cut_short):
            await start_cut_short(at.program)
        for _ in range(2):
            await at.program.start()
            answers = {name: (await device.state(name))["answer"] for name in ("one", "many")}
            assert answers["one"]["error"]["outcome"] == Outcome.MAY_HAVE_EXECUTED
            echoed, cut_off = answers["many"]["data"]["results"]
            assert echoed["success"] is True
            assert cut_off["outcome"] == Outcome.MAY_HAVE_EXECUTED
            assert await device.statuses("ended") == [STARTED, SUCCEEDED]
            for name in ("one", "many"):
                assert await device.statuses(name) == [STARTED, FAILED]
                assert (await device.events())[name][-1]["durationMs"] >= 0
            assert at.calls() == 2
            await at.program.kill()


@pytest.mark.timeout(180)
@pytest.mark.requirement("002/events/ends-survive-kill")
async def test_a_keyed_write_cut_off_by_sigkill_ends_once_and_its_key_replays_the_end(
    tmp_path: Path,
) -> None:
    async with house(tmp_path) as at:
        device = at.device
        asking = asyncio.create_task(device.send("write", key="k"))
        await until(lambda: at.calls() == 1)
        await device.killed(asking)
        await at.program.start()
        state = await device.state("write")
        assert state["status"] == CommandStatus.DONE
        assert state["answer"]["error"]["outcome"] == Outcome.MAY_HAVE_EXECUTED
        answers = [await device.send("write", key="k")]
        await device.killed()
        await at.program.start()
        answers += [await device.send("write", key="k")]
        assert answers[0] == answers[1]
        assert json.loads(answers[0]) == state["answer"]
        assert await device.statuses("write") == [STARTED, FAILED]
        events = (await device.events())["write"]
        assert state["answer"]["traceId"] == events[0]["metadata"]["traceId"]
        assert at.calls() == 1


@pytest.mark.timeout(180)
@pytest.mark.requirement("002/events/ends-survive-kill")
async def test_a_keyed_read_cut_off_by_sigkill_runs_again_also_when_its_recovery_is_killed(
    tmp_path: Path,
) -> None:
    async with house(tmp_path) as at:
        device = at.device
        asking = asyncio.create_task(device.send("read", key="k"))
        for attempt in (1, 2, 3):  # the second and third are resumed at a start
            await until(lambda: at.provider.asked == attempt)  # noqa: B023
            await device.killed(*([asking] if attempt == 1 else []))
            if attempt == 2:
                await start_cut_short(at.program)
            await at.program.start()
        at.provider.open.set()
        answer = await device.send("read", key="k")
        assert json.loads(answer)["data"]["results"][0]["title"] == "t"
        assert await device.send("read", key="k") == answer
        assert (await device.state("read"))["answer"] == json.loads(answer)
        assert await device.statuses("read") == [STARTED, SUCCEEDED]


@pytest.mark.timeout(180)
@pytest.mark.requirement("002/events/ends-survive-kill")
async def test_several_calls_are_continued_after_the_one_that_sigkill_cut_off(
    tmp_path: Path,
) -> None:
    async with house(tmp_path) as at:
        device = at.device
        asking = asyncio.create_task(device.send("several"))
        await until(lambda: at.provider.asked == 1)
        await device.killed(asking)
        at.provider.open.set()
        await at.program.start()
        answer = (await device.state("several"))["answer"]
        assert [one["success"] for one in answer["data"]["results"]] == [True] * 3
        assert at.provider.asked == 2
        assert await device.statuses("several") == [STARTED, SUCCEEDED]
        rows = await device.ask("GET", "/audit/query?action=command.tool", **OPERATOR)
        assert len(rows["data"]["items"]) == 1


@pytest.mark.timeout(180)
async def test_a_command_that_waits_for_a_person_asks_once_also_over_sigkill(
    tmp_path: Path,
) -> None:
    async with house(tmp_path) as at:
        device = at.device
        first = json.loads(await device.send("asked", key="k"))
        assert first["data"]["status"] == CommandStatus.PENDING
        await device.killed()
        await at.program.start()
        again = json.loads(await device.send("asked", key="k"))
        assert again["data"]["approvalId"] == first["data"]["approvalId"]
        waiting = await device.ask("GET", "/approvals", **OPERATOR)
        (approval,) = waiting["data"]["items"]
        decided = f"/approvals/{approval['approvalId']}/decide"
        await device.ask("POST", decided, {"decision": "approve"}, **OPERATOR)
        state = await device.state("asked")
        assert state["answer"]["ok"] is True
        assert json.loads(await device.send("asked", key="k")) == state["answer"]
        assert await device.statuses("asked") == [STARTED, EventStatus.PENDING, SUCCEEDED]
        assert at.calls() == 1
