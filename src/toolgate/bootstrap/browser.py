"""Browser tasks: beside everything else, or alone."""

import contextlib
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

from toolgate.browser.options import BrowserOptions
from toolgate.browser.proxy_verdicts import ProxyVerdicts
from toolgate.browser.sample_pages import PAGES
from toolgate.browser.system_browser import SystemBrowser
from toolgate.core.clock import Clock
from toolgate.core.errors import Misconfigured
from toolgate.core.ids import NewId
from toolgate.core.random_ids import RandomIds
from toolgate.core.system_clock import SystemClock
from toolgate.journal.disk_blobs import DiskBlobs
from toolgate.journal.journal import Journal
from toolgate.journal.local_bus import LocalBus
from toolgate.journal.sqlite.home_lock import HomeInUse
from toolgate.journal.sqlite.journal import SqliteJournal
from toolgate.settings import Settings
from toolgate.tasks.catalog import load_templates
from toolgate.tasks.runtime import TaskRuntime
from toolgate.tasks.toolset import Toolset
from toolgate.web.egress_proxy import EgressProxy
from toolgate.web.guard import Guard

TABS_PER_CORE: Final = 4


@asynccontextmanager
async def browser_tasks(
    settings: Settings, *, journal: Journal, home: Path, clock: Clock, new_id: NewId
) -> AsyncIterator[Toolset]:
    """The runs and their tools; the browser itself starts with the first task."""
    async with AsyncExitStack() as stack:
        verdicts = ProxyVerdicts()
        proxy = await stack.enter_async_context(
            EgressProxy(Guard(), decided=verdicts.note, pages=PAGES)
        )
        browser = SystemBrowser(
            BrowserOptions(
                executable=settings.chromium,
                proxy_url=f"http://127.0.0.1:{await proxy.listen_tcp()}",
                slots=TABS_PER_CORE * (os.cpu_count() or 1),
            ),
            complaint=verdicts.complaint,
        )
        stack.push_async_callback(browser.close)
        # Apart from evidence and kept files: these go after a day, whoever has the same content.
        blobs = DiskBlobs(home / "blobs" / "tasks")
        await blobs.sweep()
        runtime = TaskRuntime(
            journal=journal,
            blobs=blobs,
            browser=browser,
            clock=clock,
            new_id=new_id,
            templates=load_templates(),
        )
        stack.push_async_callback(runtime.close)
        await runtime.start()
        yield Toolset(runtime, clock=clock)


@asynccontextmanager
async def browser_alone(settings: Settings, homes: Sequence[Path]) -> AsyncIterator[Toolset]:
    """The same without the rest, on the first of these homes that no other process has."""
    clock = SystemClock()
    journal, home = await _open_journal(homes, clock)
    try:
        async with browser_tasks(
            settings,
            journal=journal,
            home=home,
            clock=clock,
            new_id=RandomIds(clock),
        ) as toolset:
            yield toolset
    finally:
        await journal.close()


async def _open_journal(homes: Sequence[Path], clock: Clock) -> tuple[SqliteJournal, Path]:
    for home in homes:
        with contextlib.suppress(HomeInUse):
            return await SqliteJournal.open(home / "journal.db", clock=clock, bus=LocalBus()), home
    raise Misconfigured(f"{homes[-1]} and all like it are in use; set TOOLGATE_HOME to another")
