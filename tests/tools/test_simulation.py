"""The calls of the past, put to another policy while the installation goes on serving."""

import asyncio
import threading
from pathlib import Path

from tests.support.pipelines import open_rig
from toolgate.core.tools import ToolRequest
from toolgate.policy.file import load_policy
from toolgate.policy.model import Policy
from toolgate.policy.shell import Script
from toolgate.policy.shell_parser import TreeSitterShellParser
from toolgate.tools.simulation import Simulation

PARSE = TreeSitterShellParser()
CANDIDATE = """
version: 1
rules:
  - {id: lists, allow: shell, match: {command: ["ls *"]}, reason: It only reads}
"""


async def test_nothing_else_waits_for_a_simulation(tmp_path: Path) -> None:
    loop = asyncio.get_running_loop()
    went_on: list[bool] = []

    def look() -> None:
        """Whether the loop does something else before this returns."""
        done = threading.Event()
        loop.call_soon_threadsafe(done.set)
        went_on.append(done.wait(2))

    def compile_slowly(text: str) -> Policy:
        look()
        return load_policy(text, parse_shell=PARSE)

    def parse_slowly(text: str) -> Script:
        look()
        return PARSE(text)

    async with open_rig(tmp_path) as rig:
        await rig.run(ToolRequest("r1", "shell", {"command": "make"}))
        simulation = Simulation(rig.journal, rig.evidence, compile_slowly, parse_slowly)
        looked_at, changes = await simulation.run(CANDIDATE, limit=10)
    assert (looked_at, [change.decision.rule_id for change in changes]) == (1, ["default_deny"])
    assert went_on == [True, True]


READS = """
version: 1
rules:
  - {id: reads, allow: "*", match: {level: read}, reason: It only reads}
"""


async def test_a_call_is_of_the_level_that_its_tool_had_when_it_was_decided(
    tmp_path: Path,
) -> None:
    async with open_rig(tmp_path) as rig:
        await rig.run(ToolRequest("r1", "count", {}))
        await rig.run(ToolRequest("r2", "fail", {}))
    async with open_rig(tmp_path) as rig:
        simulation = Simulation(
            rig.journal, rig.evidence, lambda text: load_policy(text, parse_shell=PARSE), PARSE
        )
        looked_at, changes = await simulation.run(READS, limit=10)
    assert looked_at == 2
    assert [change.recorded.call.tool for change in changes] == ["fail"]


async def test_what_a_policy_has_not_decided_is_not_decided_again(tmp_path: Path) -> None:
    async with open_rig(tmp_path) as rig:
        await rig.run(ToolRequest("r1", "fail", {}))
        await rig.run(ToolRequest("r1", "fail", {"other": True}))
        simulation = Simulation(
            rig.journal, rig.evidence, lambda text: load_policy(text, parse_shell=PARSE), PARSE
        )
        looked_at, changes = await simulation.run(READS, limit=10)
    assert (looked_at, len(changes)) == (1, 1)
