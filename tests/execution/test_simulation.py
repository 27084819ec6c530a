"""The calls of the past, put to another policy while the installation goes on serving."""

import asyncio
import threading
from pathlib import Path

from toolgate.adapters.policy_file import load_policy
from toolgate.adapters.shell_parser_tree_sitter import TreeSitterShellParser
from toolgate.domain.policy.model import Policy
from toolgate.domain.shell import Script
from toolgate.domain.tools import Level, ToolRequest
from toolgate.execution.simulation import Simulation
from toolgate.testing.pipelines import open_rig

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
        await rig.pipeline.run(ToolRequest("r1", "shell", {"command": "make"}))
        simulation = Simulation(
            rig.journal, rig.evidence, compile_slowly, parse_slowly, lambda _: Level.WRITE
        )
        looked_at, changes = await simulation.run(CANDIDATE, limit=10)
    assert (looked_at, [change.decision.rule_id for change in changes]) == (1, ["default_deny"])
    assert went_on == [True, True]
