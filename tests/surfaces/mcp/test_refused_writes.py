"""A disk that refuses is told in the words of the contract, by whichever way a run was asked for."""

from pathlib import Path

import pytest
from mcp import Client
from mcp.shared.exceptions import MCPError

from tests.tasks.runtimes import RefusingJournal, a_toolset, instant, run
from toolgate.core.enums import TrustLevel
from toolgate.core.system_clock import SystemClock
from toolgate.journal.local_bus import LocalBus
from toolgate.surfaces.mcp.server import BrowserTools
from toolgate.tasks.toolset import LOCAL


@pytest.mark.requirement("004/errors/is-error")
async def test_a_run_that_cannot_be_written_down_is_an_error_answer_with_its_code(
    tmp_path: Path,
) -> None:
    clock = SystemClock()
    journal = RefusingJournal(clock=clock, bus=LocalBus())
    async with a_toolset(tmp_path, instant(), clock=clock, journal=journal) as toolset:
        server = BrowserTools(toolset, trust=TrustLevel.LOCAL, caller=LOCAL, stdio=True).server()
        journal.refuses, journal.times = "task_queued", 1
        async with Client(server) as client:
            arguments = {"templateId": "instant", "options": {"mode": "sync"}}
            refused = await client.call_tool("run_task_template", arguments)
            assert refused.is_error
            assert (refused.structured_content or {})["errorCode"] == "EXECUTION_ERROR"
            assert (refused.structured_content or {})["recoverHint"]
            again = await client.call_tool("run_task_template", arguments)
            assert not again.is_error


async def test_a_resource_whose_bytes_are_lost_is_an_error_with_its_code(tmp_path: Path) -> None:
    async with a_toolset(tmp_path, instant()) as toolset:
        answer = await run(toolset, "instant", mode="sync")
        for file in (tmp_path / "blobs").rglob("*"):
            if file.is_file():
                file.unlink()
        server = BrowserTools(toolset, trust=TrustLevel.LOCAL, caller=LOCAL, stdio=True).server()
        async with Client(server) as client:
            with pytest.raises(MCPError) as failed:
                await client.read_resource(f"artifact://{answer['artifactIds'][0]}")
        assert failed.value.error.data["errorCode"] == "ARTIFACT_EXPIRED"
