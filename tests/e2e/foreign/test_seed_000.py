"""A foreign gateway against our runner."""

import json
from pathlib import Path

import pytest

from tests.e2e.foreign import a_client, holds
from tests.e2e.harness import Program, started
from tests.support.engines import need
from toolgate.testkit import runner

TOKEN = "token-of-the-runner"


@pytest.mark.parametrize("mocked", [False, True])
async def test_a_gateway_that_knows_only_the_seed_calls_our_runner(
    tmp_path: Path, *, mocked: bool
) -> None:
    if not mocked:
        need("bwrap")
    given = {"RUNNER_AUTH_TOKEN": TOKEN}
    program = Program(tmp_path / "home", given, role="runner", more=("--mock",) * mocked)
    async with started(program), a_client() as http:
        peer = runner.GatewayPeer(program.urls["runner"], http, TOKEN)
        real = ("returns_the_output", "says_what_failed", "keeps_sessions_apart")
        told = json.loads((await peer.execute("bash.exec", {"cmd": "printf hello"})).text)
        updates = () if "updates" in told else ("has_readable_updates",)
        ignores = ("leaves_the_policy_to_the_gateway",)
        await holds(runner.KIT, peer, but=(*real, *updates, *ignores) if mocked else updates)
