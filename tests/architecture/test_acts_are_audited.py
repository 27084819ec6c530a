"""Every act that changes what may happen writes an audit row; refusals of strangers are counted.

The routes are read from the gateway's document: a new one fails here until it has an entry.
"""

import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.e2e.harness import ANY_PORT, Client, hang_up
from toolgate import settings as table
from toolgate.bootstrap.installation import Installation
from toolgate.bootstrap.roles import start_everything
from toolgate.evidence.audit import STREAM
from toolgate.evidence.check import ClosedHome, check_home
from toolgate.evidence.evidence import STREAM as EVIDENCE
from toolgate.evidence.signer import Ed25519Signer

OPERATOR = "operator-of-this-test"
INTERNAL = "internal-of-this-test"
POLICY = """\
version: 1
name: test
default: deny
rules:
  - {id: all, allow: "*", match: any, reason: For the test}
"""
CAPABILITY = {"capabilityId": "cap", "scope": "mcp", "level": "read"}
TARGET = {
    "tenantId": "t",
    "workspaceId": "w",
    "kind": "docker-runner",
    "endpoint": "http://127.0.0.1:1/execute",
}
# Routes of the operator that only read, or that act on what callers have asked for: those leave a
# record of the call, the command or the run.
NO_ACTS = {
    "POST /policy/check",
    "POST /policy/simulate",
    "POST /evidence/verify",
    "POST /tasks",
    "POST /tasks/{runId}/cancel",
    "POST /approvals/{approvalId}/decide",
    "POST /approvals/{approvalId}/reveal",
    "POST /runs/{runId}/cancel",
    "POST /definitions/accept",  # tests/tools/upstream has its row
}
# In the order in which they can be done.
GATEWAY: dict[str, tuple[str, Any]] = {
    "POST /pairing/reject": ("/pairing/reject", {"deviceId": "stranger"}),
    "POST /pairing/approve": ("/pairing/approve", {"deviceId": "laptop"}),
    "POST /pairing/revoke": ("/pairing/revoke", {"deviceId": "laptop"}),
    "POST /tokens": ("/tokens", {"name": "script"}),
    "DELETE /tokens/{name}": ("/tokens/script", None),
    "POST /capabilities/register": ("/capabilities/register", CAPABILITY),
    "DELETE /capabilities/{capabilityId}": ("/capabilities/cap", None),
    "PUT /execution-targets/{targetId}": ("/execution-targets/t1", TARGET),
    "DELETE /execution-targets/{targetId}": ("/execution-targets/t1", None),
    "PUT /policy": ("/policy", {"text": POLICY}),
}


@dataclass
class House:
    running: Installation
    home: Path
    http: aiohttp.ClientSession

    async def rows(self) -> int:
        assert self.running.journal is not None
        return (await self.running.journal.head(STREAM)).last

    async def ask(self, method: str, path: str, body: Any, *, at: str = "gateway") -> None:
        before = await self.rows()
        token = INTERNAL if at == "orchestrator" else OPERATOR
        headers = {"Authorization": f"Bearer {token}"}
        async with self.http.request(
            method, self.running.urls[at] + path, json=body, headers=headers
        ) as answer:
            assert answer.status in (200, 201), (method, path, await answer.text())
        assert await self.rows() > before, f"{method} {path} at {at} left no audit row"


@contextlib.asynccontextmanager
async def house(home: Path) -> AsyncIterator[House]:
    given = {
        **ANY_PORT,
        "TOOLGATE_HOME": str(home),
        "OPERATOR_TOKEN": OPERATOR,
        "INTERNAL_TOKEN": INTERNAL,
        "LOG_LEVEL": "error",
        "HEARTBEAT": "",
    }
    running = await start_everything(table.load(given, environment={}))
    try:
        async with aiohttp.ClientSession() as http:
            yield House(running, home, http)
    finally:
        await hang_up()
        await running.stop()


@pytest.mark.requirement("002/audit/acts")
async def test_every_act_of_the_operator_leaves_a_row_at_the_gateway(tmp_path: Path) -> None:
    async with house(tmp_path / "home") as here:
        gateway = here.running.urls["gateway"]
        async with here.http.get(gateway + "/openapi.json") as answer:
            document = await answer.json()
        acts = {
            f"{method.upper()} {path}"
            for path, methods in document["paths"].items()
            for method in methods
            if method != "get" and not path.startswith("/command/")
        }
        assert acts - NO_ACTS == set(GATEWAY), "say how each new act is done, or why it is none"
        for device in ("stranger", "laptop"):
            await here.http.get(gateway + "/status", headers={"X-Device-Id": device})
        for name, (path, body) in GATEWAY.items():
            await here.ask(name.partition(" ")[0], path, body)
        agent = {"agent_id": "butler", "endpoint": "http://127.0.0.1:1/"}
        await here.ask("POST", "/internal/agents", agent, at="orchestrator")
        await here.ask("DELETE", "/internal/agents/butler", None, at="orchestrator")
    with ClosedHome(tmp_path / "home") as closed:
        key = Ed25519Signer.in_home(tmp_path / "home").key
        report = check_home(closed, key=key)
    assert report.problems == []
    assert report.audit_rows >= len(GATEWAY) + 2


@pytest.mark.requirement("002/audit/strangers-counted")
async def test_whoever_is_refused_unknown_is_counted_in_one_row_a_minute(tmp_path: Path) -> None:
    home = tmp_path / "home"
    async with house(home) as here:
        urls = here.running.urls
        tries = {
            "gateway": [
                ("POST", "/command/tool", {"X-Device-Id": "x", "X-Device-Token": "no"}),
                ("GET", "/audit/query", {"Authorization": "Bearer no"}),
                ("POST", "/mcp", {"Authorization": "Bearer no"}),
                ("POST", "/tool/run", {"Authorization": "Bearer no"}),
                ("GET", "/console/api/overview", {}),
            ],
        }
        count = 0
        for at, requests in tries.items():
            for _ in range(20):
                for method, path, headers in requests:
                    url = urls[at] + path
                    async with here.http.request(method, url, json={}, headers=headers) as answer:
                        assert answer.status == 401, (path, answer.status)
                    count += 1
    with ClosedHome(home) as closed:
        rows = [
            json.loads(event.data)
            for event in closed.events(STREAM)
            if event.type == "access.refused"
        ]
        kinds = [event.type for event in closed.events(EVIDENCE)]
    assert sum(row["metadata"]["count"] for row in rows) == count
    assert {row["resourceId"] for row in rows} == {"127.0.0.1"}
    assert len(rows) <= 3, "at once, and when it stopped; one more where a minute was over"
    assert "audit" in kinds


@pytest.mark.requirement("002/audit/strangers-counted")
async def test_a_client_with_a_wrong_key_is_counted(tmp_path: Path) -> None:
    home = tmp_path / "home"
    given = {**ANY_PORT, "TOOLGATE_HOME": str(home), "API_KEY": "right", "LOG_LEVEL": "error"}
    running = await start_everything(table.load(given, environment={}))
    try:
        with pytest.raises(AssertionError):
            await Client.connect(running.urls["ingress_ws"], api_key="wrong")
    finally:
        await hang_up()
        await running.stop()
    with ClosedHome(home) as closed:
        rows = [event for event in closed.events(STREAM) if event.type == "access.refused"]
    assert len(rows) == 1
