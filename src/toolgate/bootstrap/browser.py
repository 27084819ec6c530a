"""Browser tasks: beside everything else, or alone."""

import contextlib
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

from toolgate.bootstrap.gates import open_gate_parts
from toolgate.bootstrap.installation import Core, Installation, open_core
from toolgate.browser.options import BrowserOptions
from toolgate.browser.proxy_verdicts import ProxyVerdicts
from toolgate.browser.sample_pages import PAGES
from toolgate.browser.system_browser import SystemBrowser
from toolgate.core.clock import Clock
from toolgate.core.enums import TrustLevel
from toolgate.core.errors import Misconfigured
from toolgate.core.ids import NewId
from toolgate.core.json_schema import schema_errors
from toolgate.journal.bus import Bus
from toolgate.journal.disk_blobs import DiskBlobs
from toolgate.journal.journal import Journal
from toolgate.journal.sqlite.home_lock import HomeInUse
from toolgate.secrets.patterns import SecretPatterns
from toolgate.settings import Settings
from toolgate.tasks.catalog import load_templates
from toolgate.tasks.engine import BrowserEngine, tools_of
from toolgate.tasks.runtime import TaskRuntime
from toolgate.tasks.task_agent import TaskAgent
from toolgate.tasks.toolset import Toolset
from toolgate.tools.outcomes import ToolGate
from toolgate.tools.routing import Route, Routing
from toolgate.web.egress_proxy import EgressProxy
from toolgate.web.guard import Guard

TABS_PER_CORE: Final = 4
NOBODY_APPROVES: Final = "nobody can approve it here: with `toolgate up` the operator can"


def browser_route(engine: Callable[[], BrowserEngine], trust: TrustLevel) -> Route:
    """The route to an engine that is built after the gate, because its runs go through the gate."""
    named = {tool.name: tool for tool in tools_of(load_templates(), trust)}
    return Route(
        find=lambda request: engine() if request.tool in named else None,
        offers=lambda _caller: [*named.values()],
        named=named,
    )


@asynccontextmanager
async def browser_tasks(
    settings: Settings,
    *,
    gate: ToolGate,
    journal: Journal,
    bus: Bus,
    clock: Clock,
    new_id: NewId,
) -> AsyncIterator[Toolset]:
    """The runs and their tools, to be started; the browser itself starts with the first task."""
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
        blobs = DiskBlobs(settings.home / "blobs" / "tasks")
        await blobs.sweep()
        runtime = TaskRuntime(
            gate=gate,
            journal=journal,
            bus=bus,
            blobs=blobs,
            browser=browser,
            clock=clock,
            new_id=new_id,
            templates=load_templates(),
        )
        stack.push_async_callback(runtime.close)
        yield Toolset(
            runtime,
            gate=gate,
            clock=clock,
            new_id=new_id,
            hold_s=settings.mcp_hold_ms / 1000,
        )


@asynccontextmanager
async def browser_alone(
    settings: Settings, homes: Sequence[Path], *, trust: TrustLevel, patterns: SecretPatterns
) -> AsyncIterator[Toolset]:
    """Browser tasks without the rest, with a gate on the first home that no other process has."""
    installation = Installation()
    try:
        settings, core = await _open_home(settings, homes, installation, patterns)
        parts = await open_gate_parts(settings, installation, core)
        routing = Routing([browser_route(lambda: in_browser, trust)])
        gate = parts.gate(
            core, parts.policies(routing.level_of), routing, unanswered=NOBODY_APPROVES
        )
        await gate.recover()
        toolset = await installation.enter(
            browser_tasks(
                settings,
                gate=gate,
                journal=core.journal,
                bus=core.bus,
                clock=core.clock,
                new_id=core.new_id,
            )
        )
        in_browser = BrowserEngine(toolset, TaskAgent(toolset, check=schema_errors), trust=trust)
        await toolset.runtime.start()
        yield toolset
    finally:
        await installation.stop()


async def _open_home(
    settings: Settings,
    homes: Sequence[Path],
    installation: Installation,
    patterns: SecretPatterns,
) -> tuple[Settings, Core]:
    for home in homes:
        here = replace(settings, home=home)
        with contextlib.suppress(HomeInUse):
            return here, await open_core(here, installation, patterns)
    raise Misconfigured(f"{homes[-1]} and all like it are in use; set TOOLGATE_HOME to another")
