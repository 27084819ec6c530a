"""`mcp.playwright`: the real npm package on the system's Chromium, called by a paired device."""

import asyncio
import itertools
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.e2e.harness import Program, running
from tests.support.npm import node, npm_file
from tests.tasks.site import Site
from toolgate.browser.chromium import find_chromium
from toolgate.contracts.gateway_v1 import ErrorCode
from toolgate.core.enums import HealthStatus
from toolgate.tools.capabilities import PLAYWRIGHT_CAPABILITY

OPERATOR = {"Authorization": "Bearer operator-token-of-the-tests"}
POLICY = """
version: 1
name: test
default: deny
rules:
  - {id: mcp, allow: "mcp.*", match: any, reason: Its own tools}
  - {id: no-scripts, deny: mcp.playwright.browser_evaluate, match: any, reason: Runs anything}
"""


@pytest.fixture
async def program(tmp_path: Path) -> AsyncIterator[Program]:
    """`toolgate up` with Playwright's server in its MCP file."""
    arguments = ["--headless", "--isolated", "--no-sandbox", "--executable-path", find_chromium("")]
    server = {
        "command": node(),
        "args": [str(npm_file("@playwright/mcp/cli.js")), *arguments],
        "isolation": "none",  # Chromium needs more memory and rights than a sandbox has
    }
    servers, policy = tmp_path / "mcp.json", tmp_path / "policy.yaml"
    servers.write_text(json.dumps({"mcpServers": {"playwright": server}}))
    policy.write_text(POLICY)
    settings = {
        "MCP_FILE": str(servers),
        "POLICY_FILE": str(policy),
        "OPERATOR_TOKEN": OPERATOR["Authorization"].removeprefix("Bearer "),
    }
    async with running(tmp_path / "home", **settings) as started:
        yield started
        await started.stop()


class Device:
    """A paired device that may call MCP servers and nothing else."""

    def __init__(self, http: aiohttp.ClientSession, gateway: str) -> None:
        self._http = http
        self._gateway = gateway
        self._headers = {"X-Device-Id": "dev"}
        self._keys = itertools.count()

    async def pair(self) -> None:
        async with self._http.get(f"{self._gateway}/status", headers=self._headers) as answer:
            await answer.read()
        body = {"deviceId": "dev", "scope": {"mcp": True}}
        url = f"{self._gateway}/pairing/approve"
        async with self._http.post(url, json=body, headers=OPERATOR) as answer:
            self._headers["X-Device-Token"] = (await answer.json())["data"]["deviceToken"]

    async def call(self, action: str, **args: Any) -> dict[str, Any]:
        payload = {"capabilityId": PLAYWRIGHT_CAPABILITY, "action": action, "args": args}
        headers = {**self._headers, "Idempotency-Key": f"k{next(self._keys)}"}
        url = f"{self._gateway}/command/mcp"
        async with self._http.post(url, json={"payload": payload}, headers=headers) as answer:
            found = await answer.json()
        assert isinstance(found, dict)
        return found


@pytest.mark.requirement("002/mcp/playwright")
async def test_a_device_browses_with_playwrights_server_under_the_policy(program: Program) -> None:
    site = Site()
    try:
        async with asyncio.timeout(100), aiohttp.ClientSession() as http:
            device = Device(http, program.urls["gateway"])
            await device.pair()
            opened = await device.call("browser_navigate", url=site.url("/form"))
            assert opened["ok"], opened
            seen = json.dumps(await device.call("browser_snapshot"))
            assert "Send it" in seen
            field = re.search(r'textbox \\+"Your name\\+" \[ref=(\w+)\]', seen)
            assert field, seen
            typed = await device.call(
                "browser_type", element="name", target=field[1], text="Ada", submit=True
            )
            assert typed["ok"], typed
            assert "Ada" in json.dumps(await device.call("browser_snapshot"))
            refused = await device.call("browser_evaluate", function="() => 1")
            assert refused["error"]["code"] == ErrorCode.PERMISSION_DENIED
            async with http.get(
                f"{program.urls['gateway']}/capabilities", headers=OPERATOR
            ) as answer:
                listed = (await answer.json())["data"]["items"]
            states = {one["capabilityId"]: one["status"] for one in listed}
            assert states[PLAYWRIGHT_CAPABILITY] == HealthStatus.HEALTHY
    finally:
        site.close()
