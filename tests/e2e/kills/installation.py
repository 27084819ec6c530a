"""The Toolgate that is killed: its home, its files, its callers, and the effects that are counted."""

import asyncio
import json
import random
import re
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

import aiohttp

from tests.e2e.harness import PATIENCE, Program
from tests.support.runner import FakeRunner, whole

TILL: Final = Path(__file__).with_name("till.py")
OPERATOR: Final = "operator-of-the-kills"
EXECUTOR: Final = "executor-of-the-kills"
DEVICE: Final = "device-of-the-kills"
SCOPE: Final = {"tools": "sign", "system": True, "mcp": True, "agent": True}
RUNNER: Final = "runner-of-the-kills"
LONGEST_S: Final = 0.05  # that the runner takes
TICK: Final = "tick"  # the schedule, and the id of its effect
POLICY: Final = """\
version: 1
name: kills
default: deny
rules:
  - {id: pay, ask: mcp.till.pay, match: any, reason: A person decides on payments}
  - id: all
    allow: [echo, exec, bash.exec, mcp.till.add, mcp.till.look, desk.open, "browser.*"]
    match: any
    reason: For the test
"""
SCHEDULES: Final = f"""\
- {{id: {TICK}, cron: "@every 1s", tool: mcp.till.add, args: {{id: {TICK}}}}}
"""


class Answer(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def told(self) -> Any:
        return json.loads(self.body)


@dataclass
class Installation:
    """One home; `program` is what runs on it, from one kill to the next."""

    folder: Path
    http: aiohttp.ClientSession
    program: Program
    runner: FakeRunner
    device: dict[str, str] = field(default_factory=dict)
    acknowledged: int = 0

    @classmethod
    def at(cls, folder: Path, http: aiohttp.ClientSession, runner: FakeRunner) -> "Installation":
        policy, schedules = folder / "policy.yaml", folder / "schedules.yaml"
        servers = folder / "mcp.json"
        policy.write_text(POLICY)
        schedules.write_text(SCHEDULES)
        till = {
            "command": sys.executable,
            "args": ["-SE", str(TILL), str(folder / "till.log")],
            "isolation": "none",  # it writes to a file of the test
        }
        servers.write_text(json.dumps({"mcpServers": {"till": till}}))
        settings = {
            "POLICY_FILE": str(policy),
            "SCHEDULE_FILE": str(schedules),
            "MCP_FILE": str(servers),
            "OPERATOR_TOKEN": OPERATOR,
            "EXECUTOR_TOKEN": EXECUTOR,
            "CHROMIUM": "/bin/false",  # a browser task fails at once
            "GATEWAY_RATE": "1000000",
            "RESUME_WINDOW_MS": "60000",
            "ON_DISCONNECT": "keep",
            "LOG_LEVEL": "warning",
        }
        return cls(folder, http, Program(folder / "home", settings), runner)

    @property
    def gateway(self) -> str:
        return self.program.urls["gateway"]

    async def prepare(self) -> None:
        """Pair the device, and let the runner of the test run `bash.exec`."""
        named = {"X-Device-Id": DEVICE}
        await self.ask("GET", f"{self.gateway}/status", headers=named)
        wanted = {"deviceId": DEVICE, "scope": SCOPE}
        approved = await self.operator("POST", "/pairing/approve", wanted)
        target = {
            "tenantId": "t_default",
            "kind": "docker-runner",
            "endpoint": self.runner.url,
            "isDefault": True,
        }
        await self.operator("PUT", f"/execution-targets/{RUNNER}", target)
        looks = {"capabilityId": "mcp.till.look", "scope": "mcp", "level": "read"}
        await self.operator("POST", "/capabilities/register", looks)
        self.device = {**named, "X-Device-Token": approved["data"]["deviceToken"]}

    async def ask(
        self, method: str, url: str, body: Any = None, *, headers: dict[str, str] | None = None
    ) -> Answer:
        patience = aiohttp.ClientTimeout(total=3 * PATIENCE)
        async with self.http.request(
            method, url, json=body, headers=headers, timeout=patience
        ) as answer:
            return Answer(answer.status, answer.headers, await answer.read())

    async def operator(self, method: str, path: str, body: Any = None) -> Any:
        headers = {"Authorization": f"Bearer {OPERATOR}"}
        answer = await self.ask(method, self.gateway + path, body, headers=headers)
        assert answer.status == 200, answer
        return answer.told

    async def decide(self, approval_id: str) -> None:
        """Approve; again after a kill, where it may have been decided."""
        headers = {"Authorization": f"Bearer {OPERATOR}"}
        url = f"{self.gateway}/approvals/{approval_id}/decide"
        answer = await self.ask("POST", url, {"decision": "approve"}, headers=headers)
        assert answer.status < 500, answer

    def effects(self) -> Counter[str]:
        """How often each id took effect; a read is under `look ID`."""
        found: Counter[str] = Counter()
        log = self.folder / "till.log"
        for line in log.read_text().splitlines() if log.exists() else ():
            name, id_ = line.split()
            found[line if name == "look" else id_] += 1
        for asked in self.runner.asked:
            found.update(re.findall(r"bash-exec-\d+", json.dumps(asked.body)))
        return found


async def run_command(writer: asyncio.StreamWriter) -> None:
    """The runner's answer: its caller may be killed before or after the command ran."""
    await asyncio.sleep(random.random() ** 6 * LONGEST_S)
    await whole({"ok": True, "output": "counted"})(writer)
