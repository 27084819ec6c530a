"""`make run` in a fresh clone: it installs what running needs, and nothing else, and serves."""

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
from pathlib import Path
from subprocess import PIPE
from typing import Final

from tests.e2e.harness import ANY_PORT

ROOT: Final = Path(__file__).parents[2]
LARGEST: Final = 150 * 1024 * 1024  # bytes in .venv, without the extra `browser`
BROWSER: Final = ("playwright", "greenlet", "pyee")
INSTALLED_S: Final = 300


def clone(folder: Path) -> Path:
    """What git knows of this tree, with the changes that are not committed yet."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True).stdout
    for name in filter(None, names.decode().split("\0")):
        if (ROOT / name).exists() and not name.startswith("tests/"):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    return folder


def size_of(folder: Path) -> int:
    return sum(path.lstat().st_size for path in folder.rglob("*") if not path.is_symlink())


def variables() -> dict[str, str]:
    """Those of this process without what tells of our own `.venv`."""
    kept = {k: v for k, v in os.environ.items() if k not in {"VIRTUAL_ENV", "TOOLGATE_MODEL"}}
    return {**kept, **ANY_PORT, "PYTHONDONTWRITEBYTECODE": "1"}


async def test_make_run_in_a_fresh_clone_installs_what_running_needs_and_serves(
    tmp_path: Path,
) -> None:
    here = clone(tmp_path)
    making = await asyncio.create_subprocess_exec(
        *("make", "--silent", "run"),
        cwd=here,
        env=variables(),
        stdout=PIPE,
        stderr=PIPE,
        start_new_session=True,
    )
    assert making.stdout is not None
    try:
        line = b""
        async with asyncio.timeout(INSTALLED_S):
            while not line.startswith(b"{"):
                line = await making.stdout.readline()
                assert line, (await making.communicate())[1].decode()
        assert json.loads(line)["ready"] is True

        packages = next((here / ".venv/lib").glob("python*/site-packages"))
        browser = sum(size_of(packages / name) for name in BROWSER)
        assert browser > 0
        assert size_of(here / ".venv") - browser <= LARGEST
        assert not {"pytest", "mypy", "django", "pydantic_ai"} & {
            path.name for path in packages.iterdir()
        }

        doctor = await asyncio.create_subprocess_exec(
            *(here / ".venv/bin/toolgate", "doctor", "--json"), cwd=here, stdout=PIPE
        )
        told, _ = await asyncio.wait_for(doctor.communicate(), 60)
        found = {one["name"]: one for one in json.loads(told)}
        assert found["extra browser"]["ok"]
        assert not found["extra llm"]["ok"]
        assert re.search(r"toolgate\[llm\]", found["extra llm"]["hint"])
    finally:
        os.killpg(making.pid, signal.SIGINT)  # as Ctrl-C does
        assert await asyncio.wait_for(making.wait(), 30) is not None
