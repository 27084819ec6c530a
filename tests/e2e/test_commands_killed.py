"""The gateway is killed while commands that only read are under way: their ends are told."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import aiohttp
import pytest

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
  - {id: all, allow: [echo, "mcp.*"], match: any, reason: For the test}
"""
OPERATOR = {"Authorization": "Bearer op-token"}
WAIT = "mcp.plain.wait"  # never answers, and says that it only reads
MANY = [
    {"id": "a", "name": "echo", "arguments": {"text": "x"}},
    {"id": "b", "name": WAIT, "arguments": {"n": 1}},
]
COMMANDS: dict[str, tuple[str, dict[str, Any]]] = {  # by their request ids
    "ended": ("tool", {"name": "echo", "args": {"text": "x"}}),
    "one": ("mcp", {"capabilityId": "mcp.plain", "action": "wait", "args": {"n": 1}}),
    "many": ("tool", {"toolCalls": MANY}),
}


class Device:
    """Paired once, and at the same door after each start."""

    def __init__(self, program: Program, http: aiohttp.ClientSession) -> None:
        self.program, self.http = program, http
        self.headers = {"X-Device-Id": "d"}

    async def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Any:
        url = self.program.urls["gateway"] + path
        sent = headers or self.headers
        async with self.http.request(method, url, json=body, headers=sent) as answer:
            return await answer.json()

    async def pair(self) -> None:
        await self.ask("GET", "/status")
        wanted = {"deviceId": "d", "scope": {"mcp": True}}
        approved = await self.ask("POST", "/pairing/approve", wanted, **OPERATOR)
        self.headers["X-Device-Token"] = approved["data"]["deviceToken"]

    async def send(self, request_id: str) -> Any:
        kind, payload = COMMANDS[request_id]
        return await self.ask(
            "POST", f"/command/{kind}", {"requestId": request_id, "payload": payload}
        )

    async def told(self) -> dict[str, list[dict[str, Any]]]:
        """The events of each command."""
        found: dict[str, list[dict[str, Any]]] = {name: [] for name in COMMANDS}
        for event in (await self.ask("GET", "/events/poll?since=0"))["events"]:
            if (request_id := event["metadata"].get("requestId")) in found:
                found[request_id].append(event)
        return found


async def start_cut_short(program: Program) -> None:
    """A start that gets no further than to what was left of calls: of commands it tells nothing."""
    names = {**program.settings, "TOOLGATE_HOME": str(program.home)}
    settings, installation = table.load(names, environment={}), Installation()
    try:
        core = await open_core(settings, installation, SecretPatterns(()))
        await open_execution(settings, installation, core)
    finally:
        await installation.stop()


@pytest.mark.timeout(180)
@pytest.mark.soak("kills")
@pytest.mark.parametrize("cut_short", [0, 2])
@pytest.mark.requirement("002/events/ends-survive-kill")
async def test_commands_that_only_read_have_their_ends_told_once_after_sigkill(
    tmp_path: Path, cut_short: int
) -> None:
    log, policy, servers = tmp_path / "log", tmp_path / "policy.yaml", tmp_path / "mcp.json"
    policy.write_text(POLICY)
    program = {"command": sys.executable, "args": [str(PLAIN), str(log), "fickle"]}
    servers.write_text(json.dumps({"mcpServers": {"plain": program}}))
    settings = {"POLICY_FILE": str(policy), "MCP_FILE": str(servers), "OPERATOR_TOKEN": "op-token"}
    async with (
        running(tmp_path / "home", **settings) as program_at_work,
        aiohttp.ClientSession() as http,
    ):
        device = Device(program_at_work, http)
        await device.pair()
        async with asyncio.timeout(60):
            while not log.exists() or "tools/list" not in log.read_text():
                await asyncio.sleep(0.02)
            assert (await device.send("ended"))["ok"] is True
            under_way = [asyncio.create_task(device.send(name)) for name in ("one", "many")]
            while log.read_text().count("tools/call") < 2:
                assert not any(task.done() for task in under_way)
                await asyncio.sleep(0.02)
        await program_at_work.kill()
        for task in under_way:
            with pytest.raises(aiohttp.ClientError):
                await task
        for _ in range(cut_short):
            await start_cut_short(program_at_work)
        for _ in range(2):
            await program_at_work.start()
            events = await device.told()
            statuses = {name: [event["status"] for event in each] for name, each in events.items()}
            assert statuses == {
                "ended": [EventStatus.STARTED, EventStatus.SUCCEEDED],
                "one": [EventStatus.STARTED, EventStatus.FAILED],
                "many": [EventStatus.STARTED, EventStatus.FAILED],
            }
            assert all(each[-1]["durationMs"] >= 0 for each in events.values())
            for name in ("one", "many"):
                state = (await device.ask("GET", f"/command/{name}"))["data"]
                assert state["status"] == CommandStatus.DONE
                assert state["answer"]["error"]["outcome"] == Outcome.MAY_HAVE_EXECUTED
            await program_at_work.kill()
