"""The protocol's own conformance suite (npm), every server scenario that a revision asks for.

It runs at the product's server twice: as it is, and with the tools, prompts and resources that the
scenarios call by name (`suite_tools.py`), behind the same doors. docs/browser.md has the count.
"""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from tests.support.npm import node, npm_file
from tests.surfaces.mcp.conftest import Served, serving
from tests.surfaces.mcp.suite_tools import TEMPLATES, extend
from tests.tasks.runtimes import a_toolset
from toolgate.surfaces.mcp.transports import McpDoors
from toolgate.tasks.catalog import load_templates

pytestmark = pytest.mark.asyncio(loop_scope="session")

REVISIONS = ["2025-11-25", "2026-07-28"]
SCENARIOS = {"2025-11-25": 33, "2026-07-28": 50}
# A task that waits for its client's input: a run never asks, so there is none.
NOT_APPLICABLE = {"2025-11-25": set[str](), "2026-07-28": {"tasks-mrtr-input"}}
# What needs nothing of the suite's own; the rest calls tools by name, and there are seven.
ALONE = {
    "2025-11-25": {
        "server-initialize",
        "server-session-lifecycle",
        "ping",
        "tools-list",
        "resources-list",
        "server-sse-multiple-streams",
        "server-sse-polling",
        "dns-rebinding-protection",
    },
    "2026-07-28": {
        "tools-list",
        "resources-list",
        "server-sse-multiple-streams",
        "sep-2164-resource-not-found",
        "dns-rebinding-protection",
        "http-header-validation",
        "input-required-result-unsupported-methods",
    },
}
LINE = re.compile(r"^([✓✗]) ([\w-]+): \d+ passed, \d+ failed$", re.MULTILINE)


@dataclass
class Outcome:
    passed: set[str]
    failed: set[str]
    why: list[str]


@asynccontextmanager
async def extended(home: Path) -> AsyncIterator[str]:
    """The product's doors and runs, with what the suite calls."""
    catalog = {**load_templates(), **TEMPLATES}
    async with a_toolset(home, catalog=catalog) as toolset:
        doors = McpDoors(toolset, extend=extend)
        async with serving(doors) as base:
            try:
                yield base
            finally:
                await doors.close()


async def suite(base: str, revision: str, kept: Path) -> Outcome:
    program, script = node(), npm_file("@modelcontextprotocol/conformance/dist/index.js")
    process = await asyncio.create_subprocess_exec(
        program, str(script), "server", "--url", f"{base}/mcp", "--requirements", revision,
        "-o", str(kept),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    try:
        async with asyncio.timeout(110):
            output = (await process.communicate())[0].decode()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    marks = LINE.findall(output)
    assert marks, output[-2000:]
    why = [
        f"{checks.parent.name}: {check['id']}: {check.get('errorMessage')}"
        for checks in sorted(kept.glob("*/checks.json"))
        for check in json.loads(checks.read_bytes())
        if check["status"] == "FAILURE"
    ]
    passed = {name for mark, name in marks if mark == "✓"}
    return Outcome(passed, {name for _, name in marks} - passed, why)


@pytest_asyncio.fixture(loop_scope="session", scope="module")
async def outcomes(
    served: Served, tmp_path_factory: pytest.TempPathFactory
) -> dict[tuple[str, str], Outcome]:
    """All at once: the suite mostly waits."""
    home = tmp_path_factory.mktemp("suite")
    async with AsyncExitStack() as stack:
        runs = {}
        for revision in REVISIONS:
            base = await stack.enter_async_context(extended(home / revision))
            runs["alone", revision] = suite(served.base, revision, home / f"alone-{revision}")
            runs["extended", revision] = suite(base, revision, home / f"extended-{revision}")
        found = await asyncio.gather(*runs.values())
    return dict(zip(runs, found, strict=True))


@pytest.mark.parametrize("revision", REVISIONS)
async def test_every_scenario_that_applies_passes(
    outcomes: dict[tuple[str, str], Outcome], revision: str
) -> None:
    found = outcomes["extended", revision]
    assert found.failed == NOT_APPLICABLE[revision], found.why
    assert len(found.passed | found.failed) == SCENARIOS[revision]


@pytest.mark.parametrize("revision", REVISIONS)
async def test_the_product_as_it_is_passes_what_needs_no_tool_of_the_suite(
    outcomes: dict[tuple[str, str], Outcome], revision: str
) -> None:
    found = outcomes["alone", revision]
    assert found.passed >= ALONE[revision], found.why


@pytest.mark.parametrize("revision", REVISIONS)
async def test_the_docs_count_the_scenarios_as_they_are(revision: str) -> None:
    page = (Path(__file__).parents[3] / "docs/browser.md").read_text(encoding="utf-8")
    every, not_ours = SCENARIOS[revision], len(NOT_APPLICABLE[revision])
    row = f"| {revision} | {every} | {every - not_ours} | {len(ALONE[revision])} | {not_ours} |"
    assert row in page
