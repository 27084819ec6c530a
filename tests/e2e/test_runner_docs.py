"""A runner on another machine, as the README and docs/runner.md say it; the machine is this one."""

import asyncio
import contextlib
import json
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import aiohttp
import pytest

from tests.e2e.harness import ANY_PORT, PATIENCE, Program, environment, running
from tests.e2e.test_files_through_artifacts import Executor
from tests.support.engines import need

ROOT: Final = Path(__file__).parents[2]
POLICY = """\
version: 1
rules:
  - {id: commands, allow: bash.exec, match: any, reason: For the check}
"""


def blocks(page: str, mark: str) -> list[str]:
    text = (ROOT / page).read_text(encoding="utf-8")
    return [block for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL) if mark in block]


async def shell(text: str, cwd: Path, **settings: str) -> asyncio.subprocess.Process:
    here = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return await asyncio.create_subprocess_exec(
        "bash",
        "-ec",
        text,
        cwd=cwd,
        env={**environment(settings), "PATH": here},
        stdout=asyncio.subprocess.PIPE,
        start_new_session=True,
    )


@contextlib.asynccontextmanager
async def the_runner(page: str, cwd: Path) -> AsyncIterator[str]:
    """Its own lines, but for the installation of packages, on loopback and any free port."""
    (block,) = blocks(page, "toolgate runner")
    lines = [line for line in block.splitlines() if not line.startswith("apt-get")]
    text = "\n".join(lines).replace("HOST=0.0.0.0", "HOST=127.0.0.1")
    process = await shell(
        f"{text} 2>/dev/null", cwd, **{**ANY_PORT, "TOOLGATE_HOME": str(cwd / "r")}
    )
    assert process.stdout is not None
    try:
        while not (line := await asyncio.wait_for(process.stdout.readline(), PATIENCE)).startswith(
            b"{"
        ):
            assert line, "the runner did not start"
        yield json.loads(line)["urls"]["runner"]
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        await asyncio.wait_for(process.wait(), PATIENCE)


async def used_from(program: Program, block: str, url: str) -> None:
    """The gateway's lines, with the addresses of this check."""
    gateway = program.urls["gateway"]
    text = block.replace("http://lab:18081/execute", url)
    text = text.replace("http://127.0.0.1:8787", gateway)
    settings = {
        "TOOLGATE_HOME": str(program.home),
        "GATEWAY_PORT": gateway.rpartition(":")[2],
        "OPERATOR_TOKEN": (program.home / "operator.token").read_text().strip(),
    }
    process = await shell(text, program.home.parent, **settings)
    said, _ = await asyncio.wait_for(process.communicate(), PATIENCE)
    assert process.returncode == 0, said
    assert b"target_lab" in said


@pytest.mark.parametrize("page", ["README.md", "docs/runner.md"])
async def test_the_commands_of_the_docs_make_tools_run_on_the_runner(
    page: str, tmp_path: Path
) -> None:
    need("bwrap")
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY)
    uses = [*blocks(page, "toolgate targets set"), *blocks(page, "curl -X PUT")]
    assert uses
    async with (
        the_runner(page, tmp_path) as url,
        running(tmp_path / "home", POLICY_FILE=str(policy)) as program,
        aiohttp.ClientSession() as http,
    ):
        executor = Executor(program, http)
        for use in uses:
            await used_from(program, use, url)
            ran = await executor.run("bash.exec", cmd="echo from the lab")
            assert ran["tool_result"]["stdout"] == "from the lab\n", ran
        # Nothing of it was run by a sandbox of the gateway's own machine.
        assert "sandbox_opened" not in program.log.read_text()


def test_both_readmes_say_the_same_commands() -> None:
    for mark in ("toolgate runner", "toolgate targets set"):
        assert blocks("README.md", mark) == blocks("README.zh-CN.md", mark)
