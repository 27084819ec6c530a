"""The README's first screen: the two commands, as they stand there."""

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from tests.e2e.harness import ANY_PORT, PATIENCE, Client

ROOT = Path(__file__).parents[2]


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """The tree as git has it, with the environment that this test runs in."""
    tracked = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True
    ).stdout
    for name in filter(None, tracked.decode().split("\0")):
        source, target = ROOT / name, tmp_path / "clone" / name
        if source.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)
    (tmp_path / "clone" / ".venv").symlink_to(ROOT / ".venv")
    return tmp_path / "clone"


def test_the_readme_s_first_screen_has_the_two_commands() -> None:
    first_screen = (ROOT / "README.md").read_text().splitlines()[:40]
    commands = [line.split("#")[0].strip() for line in first_screen if line.startswith("make ")]
    assert commands[:2] == ["make run", "make test"]


async def test_make_run_serves_and_stops_on_ctrl_c(clone: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        "make",
        "--silent",
        "--old-file=.venv/.installed",  # it is this tree's: it must not be pointed at the clone
        "run",
        cwd=clone,
        env={**os.environ, **ANY_PORT},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdout is not None
    try:
        line = await asyncio.wait_for(process.stdout.readline(), PATIENCE)
        ready = json.loads(line)
        client = await Client.connect(ready["urls"]["ingress_ws"])
        await client.invoke("made")
        assert (await client.hear_until("done", "error"))[-1]["type"] == "done"
        assert (clone / ".toolgate").is_dir()
        await client.close()
    finally:
        os.killpg(process.pid, signal.SIGINT)
        await asyncio.wait_for(process.wait(), PATIENCE)


def test_ci_runs_the_checks_and_then_the_readme_s_test_command() -> None:
    commands = re.findall(r"^make \w+$", (ROOT / ".ci" / "run").read_text(), re.MULTILINE)
    assert commands == ["make check", "make test"]
