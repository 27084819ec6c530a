"""A runtime on parts that a test can move: its clock, its templates, its browser."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from tests.support.browser import FakeBrowser
from toolgate.browser.browser import Browser
from toolgate.core.clock import Clock
from toolgate.core.enums import TrustLevel
from toolgate.core.errors import Unavailable
from toolgate.core.random_ids import RandomIds
from toolgate.core.system_clock import SystemClock
from toolgate.journal.disk_blobs import DiskBlobs
from toolgate.journal.journal import Append, Event, Journal, Operation
from toolgate.journal.local_bus import LocalBus
from toolgate.tasks.catalog import load_templates
from toolgate.tasks.runtime import TaskRuntime
from toolgate.tasks.template import TaskOutcome, Template, Work
from toolgate.tasks.toolset import Answer, Asker, Call, Toolset
from toolgate.testing.journal import MemoryJournal

LOCAL = Call(Asker(TrustLevel.LOCAL, "tests"))
REMOTE = Call(Asker(TrustLevel.REMOTE, "tests"))


class Inputs(msgspec.Struct):
    name: str = ""


class Gate:
    """A template whose runs wait until the test lets them through, one by one or all."""

    def __init__(self, template_id: str = "gated", *, repeatable: bool = False) -> None:
        self.started: list[str] = []
        self.stopped: list[str] = []
        self.opened: dict[str, asyncio.Event] = {}
        self.template = Template(
            id=template_id,
            description="Waits until it is let through.",
            inputs=Inputs,
            output=None,
            run=self._run,
            repeatable=repeatable,
        )

    def let(self, name: str) -> None:
        self.opened.setdefault(name, asyncio.Event()).set()

    async def _run(self, inputs: Inputs, work: Work) -> TaskOutcome:
        self.started.append(inputs.name)
        try:
            await self.opened.setdefault(inputs.name, asyncio.Event()).wait()
        finally:
            self.stopped.append(inputs.name)
        return TaskOutcome(msgspec.json.encode({"name": inputs.name}))


def instant(template_id: str = "instant", outcome: TaskOutcome | None = None) -> Template:
    async def run(inputs: Inputs, work: Work) -> TaskOutcome:
        return outcome or TaskOutcome(msgspec.json.encode({"name": inputs.name}))

    return Template(
        id=template_id, description="Ends at once.", inputs=Inputs, output=None, run=run
    )


def memory_journal(clock: Clock) -> MemoryJournal:
    return MemoryJournal(clock=clock, bus=LocalBus())


class RefusingJournal(MemoryJournal):
    """Refuses the next commits that write an event of this type."""

    refuses = ""
    times = 0

    async def commit(self, *operations: Operation, durable: bool = True) -> list[Event]:
        appended = [each for each in operations if isinstance(each, Append)]
        types = {event.type for each in appended for event in each.events}
        if self.times and self.refuses in types:
            self.times -= 1
            raise Unavailable("the disk is full")
        return await super().commit(*operations, durable=durable)


class SlowJournal(MemoryJournal):
    """Takes its time to say that a commit with an event of this type is on disk."""

    slow = ""

    def __init__(self) -> None:
        super().__init__(clock=SystemClock(), bus=LocalBus())
        self.written = asyncio.Event()
        self.told = asyncio.Event()

    async def commit(self, *operations: Operation, durable: bool = True) -> list[Event]:
        events = await super().commit(*operations, durable=durable)
        if self.slow in {event.type for event in events}:
            self.written.set()
            await self.told.wait()
        return events


@asynccontextmanager
async def a_toolset(
    tmp_path: Path,
    *templates: Template,
    browser: Browser | None = None,
    clock: Clock | None = None,
    journal: Journal | None = None,
    auto_wait_s: float = 20,
    grace_s: float = 60.0,
    catalog: Mapping[str, Template] | None = None,
) -> AsyncIterator[Toolset]:
    clock = clock or SystemClock()
    runtime = TaskRuntime(
        journal=journal or memory_journal(clock),
        blobs=DiskBlobs(tmp_path / "blobs"),
        browser=browser or FakeBrowser(),
        clock=clock,
        new_id=RandomIds(clock),
        templates=catalog or {template.id: template for template in templates},
        session_grace_s=grace_s,
    )
    await runtime.start()
    try:
        yield Toolset(runtime, clock=clock, auto_wait_s=auto_wait_s)
    finally:
        await runtime.close()


async def run(
    toolset: Toolset,
    template_id: str,
    inputs: Mapping[str, Any] | None = None,
    *,
    call: Call = LOCAL,
    session: str | None = None,
    **options: Any,
) -> Answer:
    arguments: dict[str, Any] = {"templateId": template_id, "inputs": inputs or {}}
    if options:
        arguments["options"] = options
    if session is not None:
        arguments["sessionId"] = session
    return await toolset.call("run_task_template", arguments, call)


async def get(toolset: Toolset, run_id: str) -> Answer:
    return await toolset.call("get_task_run", {"runId": run_id}, LOCAL)


async def read_one(url: str, browser: Any, place: Path) -> None:
    """A batch of one page, in a runtime of its own, which must succeed."""
    async with a_toolset(place, browser=browser, catalog=load_templates()) as tools:
        begun = await run(tools, "batch_extract_pages", {"urls": [url]}, mode="async")
        ended = await tools.runtime.wait(begun["runId"], timeout_s=45)
        assert ended.status == "succeeded", (await get(tools, begun["runId"]))["result"]


async def until(condition: Any, *, within_s: float = 20.0) -> None:
    """Wait for something to become true, and no longer than that."""
    async with asyncio.timeout(within_s):
        while not condition():
            await asyncio.sleep(0.005)


def is_running(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
