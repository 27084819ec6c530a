"""The blocks of the READMEs and of docs/gateway.md that pair a device with curl, run as they stand."""

import asyncio
import json
import re
from pathlib import Path
from typing import Any, Final

import pytest

from tests.e2e.harness import environment, running

ROOT: Final = Path(__file__).parents[2]
PAGES: Final = ("README.md", "README.zh-CN.md", "docs/gateway.md")
KINDS: Final = ("tool", "agent", "mcp", "system")


def block(page: str) -> str:
    """The one that pairs; the program runs already, on any ports that are free."""
    blocks = re.findall(r"^```sh\n(.*?)^```$", (ROOT / page).read_text("utf-8"), re.M | re.S)
    (found,) = [one for one in blocks if "/pairing/approve" in one]
    return "".join(line for line in found.splitlines(True) if not line.startswith("toolgate up"))


def answers(said: str) -> list[Any]:
    """The JSON that each curl printed, one after the other."""
    found, decoder, at = [], json.JSONDecoder(), 0
    while at < len(said):
        value, at = decoder.raw_decode(said, at)
        found.append(value)
    return found


@pytest.mark.parametrize("page", PAGES)
async def test_a_newcomer_pairs_a_device_and_runs_each_kind_of_command(
    page: str, tmp_path: Path
) -> None:
    text = block(page)
    assert [kind for kind in KINDS if f"/command/{kind}" not in text] == []
    async with running(tmp_path / ".toolgate") as program:
        script = text.replace("http://127.0.0.1:8787", program.urls["gateway"])
        process = await asyncio.create_subprocess_exec(
            "bash",
            "-euo",
            "pipefail",
            "-c",
            script,
            cwd=tmp_path,
            env=environment({}),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output, _ = await asyncio.wait_for(process.communicate(), 60)
        assert process.returncode == 0, output
    knock, pending, tool, agent, mcp, system, *rest = answers(output.decode())
    assert knock["data"]["pairing"] == "pending"
    assert [one["code"] for one in pending["data"]["pending"]] == [knock["data"]["code"]]
    assert tool["data"]["results"][0]["data"] == "hi"
    assert agent["data"]["output"] == "hi"
    assert mcp["ok"] is True
    assert system["ok"] is True
    assert all(one.get("ok", True) for one in rest)
