"""Browser tasks alone are killed again and again under load: what was acknowledged comes to one end."""

import asyncio
import contextlib
import json
import random
from collections import Counter
from pathlib import Path
from subprocess import PIPE
from typing import Any

import pytest
from mcp import Client

from tests.e2e.forked import Forked, fork
from tests.e2e.harness import PATIENCE, environment
from toolgate.core.system_clock import SystemClock
from toolgate.evidence.audit import TOOL_RUN, AuditQuery, search
from toolgate.journal.local_bus import LocalBus
from toolgate.journal.sqlite.journal import SqliteJournal
from toolgate.tasks.state import TERMINAL
from toolgate.tools.calls import EXECUTIONS, decode_entry
from toolgate.tools.calls import TERMINAL as CALL_ENDED

POLICY = """\
version: 1
name: reads
default: deny
rules:
  - {id: all, allow: "browser.*", match: any, reason: For the test}
"""
MAX_AUDIT = 500


async def started(home: Path) -> tuple[Forked, str]:
    policy = home.parent / "policy.yaml"
    policy.write_text(POLICY)
    given = {
        "TOOLGATE_HOME": str(home),
        "POLICY_FILE": str(policy),
        "CHROMIUM": "/bin/false",  # a task that reads pages fails at once
        "LOG_LEVEL": "error",
    }
    process = await fork(
        "browser",
        "--http",
        "--port=0",
        env=environment(given),
        stdout=PIPE,
    )
    assert process.stdout is not None
    line = await asyncio.wait_for(process.stdout.readline(), 3 * PATIENCE)
    return process, json.loads(line)["urls"]["mcp"]


async def submit(url: str, acknowledged: dict[str, str], *, seed: int) -> None:
    """Submit without pause, each with a key of its own."""
    inputs = {"urls": ["http://pages.toolgate.example/"]}
    async with Client(url) as client:
        for number in range(12):
            key = f"{seed}-{number}"
            options = {"mode": "async", "idempotencyKey": key}
            arguments: dict[str, Any] = {"templateId": "batch_extract_pages", "inputs": inputs}
            answer = await client.call_tool("run_task_template", {**arguments, "options": options})
            assert answer.structured_content is not None
            acknowledged[key] = answer.structured_content["runId"]


async def all_over(url: str) -> dict[str, str]:
    async with asyncio.timeout(3 * PATIENCE), Client(url) as client:
        while True:
            answer = (await client.call_tool("list_task_runs", {"limit": 1000})).structured_content
            assert answer is not None
            found = {run["runId"]: run["status"] for run in answer["runs"]}
            if set(found.values()) <= TERMINAL:
                return found
            await asyncio.sleep(0.1)


@pytest.mark.soak("kills", rounds=60, short=4)
async def test_a_task_that_was_acknowledged_comes_to_one_end(tmp_path: Path, rounds: int) -> None:
    home, chance = tmp_path / "home", random.Random(7)
    acknowledged: dict[str, str] = {}
    for seed in range(rounds):
        process, url = await started(home)
        submitting = asyncio.ensure_future(submit(url, acknowledged, seed=seed))
        async with asyncio.timeout(3 * PATIENCE):
            while f"{seed}-0" not in acknowledged and not submitting.done():
                await asyncio.sleep(0.01)
        await asyncio.sleep(chance.uniform(0.0, 0.5))  # when it is killed is up to chance
        process.kill()
        await process.wait()
        with contextlib.suppress(Exception):
            submitting.cancel()
            await submitting
    process, url = await started(home)
    over = await all_over(url)
    process.terminate()
    await process.communicate()
    assert acknowledged, "too little load to mean anything"
    assert set(acknowledged.values()) <= set(over)
    journal = await SqliteJournal.open(
        home / "browser" / "http" / "journal.db", clock=SystemClock(), bus=LocalBus()
    )
    try:
        audited: Counter[str] = Counter()
        page = await search(journal, AuditQuery(action=TOOL_RUN, limit=MAX_AUDIT))
        audited.update(str(row.metadata["requestId"]) for row in page.items)
        for run_id in over:
            row = await journal.get(EXECUTIONS, run_id)
            assert row is not None
            assert decode_entry(row.value).state in CALL_ENDED, run_id
        if len(over) < MAX_AUDIT:
            assert {run_id: audited[run_id] for run_id in over} == dict.fromkeys(over, 1)
    finally:
        await journal.close()
