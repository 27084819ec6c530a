"""A foreign service against our executor."""

from pathlib import Path

import pytest

from tests.e2e.foreign import a_client, holds
from tests.e2e.harness import running
from toolgate.testkit import executor

TOKEN = "token-of-the-executor"


@pytest.mark.requirement("003/response/tool-result-where-allowed")
async def test_a_service_that_knows_only_the_seed_uses_our_executor(tmp_path: Path) -> None:
    async with running(tmp_path / "home", EXECUTOR_TOKEN=TOKEN) as up, a_client() as http:
        await holds(executor.KIT, executor.ServicePeer(up.urls["gateway"], http, TOKEN))
