"""A disk that refuses is told in the words of the contract, by whichever way a run was asked for."""

from pathlib import Path

import pytest
from mcp import Client

from tests.tasks.runtimes import RefusingJournal, a_toolset, instant
from toolgate.adapters.bus_local import LocalBus
from toolgate.adapters.clock import SystemClock
from toolgate.domain.task_runs import Trust
from toolgate.surfaces.mcp.server import BrowserTools


@pytest.mark.requirement("004/errors/is-error")
async def test_a_run_that_cannot_be_written_down_is_an_error_answer_with_its_code(
    tmp_path: Path,
) -> None:
    clock = SystemClock()
    journal = RefusingJournal(clock=clock, bus=LocalBus())
    async with a_toolset(tmp_path, instant(), clock=clock, journal=journal) as toolset:
        server = BrowserTools(toolset, trust=Trust.LOCAL, stdio=True).server()
        journal.refuses, journal.times = "task_queued", 1
        async with Client(server) as client:
            arguments = {"templateId": "instant", "options": {"mode": "sync"}}
            refused = await client.call_tool("run_task_template", arguments)
            assert refused.is_error
            assert (refused.structured_content or {})["errorCode"] == "EXECUTION_ERROR"
            assert (refused.structured_content or {})["recoverHint"]
            again = await client.call_tool("run_task_template", arguments)
            assert not again.is_error
