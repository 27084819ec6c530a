"""A task whose address holds a token."""

from pathlib import Path

import msgspec
import pytest

from tests.tasks.runtimes import a_toolset, memory_journal, run
from tests.tasks.site import Site
from toolgate.browser.system_browser import SystemBrowser
from toolgate.core.system_clock import SystemClock
from toolgate.tasks.catalog import load_templates

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.mark.requirement("004/sessions/credentials-nowhere")
@pytest.mark.parametrize("query", ["?access_token={}", "?page=1&api_key={}", "#id_token={}"])
async def test_a_token_in_the_query_of_an_address_is_written_nowhere(
    tmp_path: Path, browser: SystemBrowser, site: Site, query: str
) -> None:
    clock = SystemClock()
    journal = memory_journal(clock)
    secret = "hunter2+secret"
    address = site.url("/n/1") + query.format(secret)
    async with a_toolset(
        tmp_path, browser=browser, catalog=load_templates(), journal=journal, clock=clock
    ) as toolset:
        answer = await run(toolset, "batch_extract_pages", {"urls": [address]}, mode="sync")
        assert answer["status"] == "succeeded"
        assert secret not in msgspec.json.encode(answer).decode()
        (row,) = await journal.scan("task_runs")
        assert secret not in row.value.decode()
