"""One site and one Chromium for all tests of the browser; each test has runs of its own."""

import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.tasks.runtimes import a_toolset
from tests.tasks.site import Site
from toolgate.browser.chromium import KNOWN
from toolgate.browser.options import BrowserOptions
from toolgate.browser.system_browser import SystemBrowser
from toolgate.tasks.catalog import load_templates
from toolgate.tasks.toolset import Toolset

# Short budgets, so that a page that hangs costs a test little.
QUICK = BrowserOptions(
    soft_ms=1_500, navigation_ms=2_000, quiet_ms=1_000, download_limit=1_000_000, slots=8, spares=0
)


@pytest.fixture(scope="session")
def site() -> Iterator[Site]:
    site = Site()
    yield site
    site.close()


@pytest_asyncio.fixture(loop_scope="session", scope="session")
async def browser() -> AsyncIterator[SystemBrowser]:
    if not any(shutil.which(name) for name in KNOWN):
        pytest.skip("there is no Chromium on this machine")
    browser = SystemBrowser(QUICK)
    yield browser
    await browser.close()


@pytest_asyncio.fixture(loop_scope="session")
async def toolset(tmp_path: Path, browser: SystemBrowser) -> AsyncIterator[Toolset]:
    async with a_toolset(tmp_path, browser=browser, catalog=load_templates()) as toolset:
        yield toolset
