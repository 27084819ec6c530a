"""What a schedule file starts in a whole installation."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp

from toolgate import settings as table
from toolgate.bootstrap.roles import start_everything

OPERATOR = "operator-of-one-that-is-scheduled"
PORTS = ("WS_PORT", "HTTP_PORT", "ORCHESTRATOR_PORT", "GATEWAY_PORT")
POLICY = """
version: 1
name: test
default: deny
rules:
  - {id: ask-first, ask: echo, match: any, reason: For the test}
"""
SCHEDULES = """
- {id: tick, cron: "@every 1s", tool: echo, args: {text: "tock"}}
"""


@contextlib.asynccontextmanager
async def scheduled(home: Path, entries: str) -> AsyncIterator[aiohttp.ClientSession]:
    policy, schedules = home / "policy.yaml", home / "schedules.yaml"
    policy.write_text(POLICY)
    schedules.write_text(entries)
    settings = table.load(
        {
            **dict.fromkeys(PORTS, "0"),
            "TOOLGATE_HOME": str(home / "home"),
            "OPERATOR_TOKEN": OPERATOR,
            "POLICY_FILE": str(policy),
            "SCHEDULE_FILE": str(schedules),
            "HEARTBEAT": "",
        },
        environment={},
    )
    installation = await start_everything(settings)
    headers = {"Authorization": f"Bearer {OPERATOR}"}
    try:
        async with (
            aiohttp.ClientSession(installation.urls["gateway"], headers=headers) as http,
            asyncio.timeout(20),
        ):
            yield http
    finally:
        await installation.stop()


async def test_a_scheduled_tool_that_waits_for_a_person_runs_once_it_is_approved(
    tmp_path: Path,
) -> None:
    async with scheduled(tmp_path, SCHEDULES) as http:
        waiting = await _first(http, "/approvals?status=PENDING")
        decide = f"/approvals/{waiting['approvalId']}/decide"
        async with http.post(decide, json={"decision": "approve"}) as answer:
            assert answer.status == 200, await answer.text()
        assert await _first_ends(http, 1) == {"tick": "succeeded"}


AGENTS = """
- {id: sound, cron: "@every 1s", agent: script, message: "hello"}
- {id: broken, cron: "@every 1s", agent: script, message: "[[tool:echo no-json]]"}
"""


async def test_a_scheduled_agent_has_done_as_well_as_its_run(tmp_path: Path) -> None:
    async with scheduled(tmp_path, AGENTS) as http:
        ends = await _first_ends(http, 2)
    assert ends == {"sound": "succeeded", "broken": "failed"}


async def _first(http: aiohttp.ClientSession, path: str) -> dict[str, Any]:
    while True:
        async with http.get(path) as answer:
            items: list[dict[str, Any]] = (await answer.json())["data"]["items"]
        if items:
            return items[-1]
        await asyncio.sleep(0.02)


async def _first_ends(http: aiohttp.ClientSession, count: int) -> dict[str, str]:
    """How the first job of each of so many schedules ended."""
    cursor, ends = 0, dict[str, str]()
    while len(ends) < count:
        async with http.get("/events/poll", params={"since": cursor, "wait": "1"}) as answer:
            page = await answer.json()
        cursor = page["cursor"]
        for event in page["events"]:
            if event["type"] == "cron" and event["status"] in {"succeeded", "failed"}:
                name = event["message"].partition(" ")[0]
                ends.setdefault(name, event["status"])
    return ends
