"""A runtime on parts that a test can move: its clock, its templates, its browser."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from tests.support.browser import FakeBrowser
from tests.support.people import by
from toolgate.bootstrap.gates import GateParts, open_gate_parts
from toolgate.bootstrap.installation import Installation, open_core
from toolgate.browser.browser import Browser
from toolgate.core.clock import Clock
from toolgate.core.enums import Level, TrustLevel
from toolgate.core.errors import Unavailable
from toolgate.core.json_schema import schema_errors
from toolgate.core.random_ids import RandomIds
from toolgate.core.system_clock import SystemClock
from toolgate.core.tools import ToolOutput, ToolRequest
from toolgate.evidence.audit import TOOL_RUN, AuditQuery, search
from toolgate.journal.disk_blobs import DiskBlobs
from toolgate.journal.journal import Append, Event, Journal, Operation
from toolgate.journal.local_bus import LocalBus
from toolgate.journal.sqlite.journal import SqliteJournal
from toolgate.secrets.patterns import SecretPatterns
from toolgate.settings import load
from toolgate.tasks.catalog import load_templates
from toolgate.tasks.engine import BrowserEngine, tools_of
from toolgate.tasks.runtime import PREFIX, TaskRuntime
from toolgate.tasks.task_agent import TaskAgent
from toolgate.tasks.template import TaskOutcome, Template, Work
from toolgate.tasks.toolset import LOCAL as LOCAL_CALLER
from toolgate.tasks.toolset import Answer, Asker, Call, Toolset
from toolgate.testing.gate import FakeGate
from toolgate.testing.journal import MemoryJournal
from toolgate.tools.engine import Update
from toolgate.tools.outcomes import ToolGate
from toolgate.tools.routing import Route, Routing

LOCAL = Call(Asker(TrustLevel.LOCAL, LOCAL_CALLER, "tests"))
REMOTE = Call(Asker(TrustLevel.REMOTE, LOCAL_CALLER, "tests"))


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
            level=Level.READ if repeatable else Level.WRITE,
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
    gate: FakeGate | None = None,
    hold_s: float = 20,
) -> AsyncIterator[Toolset]:
    """A toolset behind a gate of its own, or behind `gate`, as a restart has it."""
    clock = clock or SystemClock()
    journal = journal or memory_journal(clock)
    bus = journal.bus if isinstance(journal, MemoryJournal) else LocalBus()
    gate = gate or FakeGate(clock=clock)
    gate.journal, gate.runs = journal, PREFIX

    async def in_browser(request: ToolRequest, update: Update) -> ToolOutput:
        return await engine.run(request, update=update)

    gate.engine = in_browser
    runtime = TaskRuntime(
        gate=gate,
        journal=journal,
        bus=bus,
        blobs=DiskBlobs(tmp_path / "blobs"),
        browser=browser or FakeBrowser(),
        clock=clock,
        new_id=RandomIds(clock),
        templates=catalog or {template.id: template for template in templates},
        session_grace_s=grace_s,
    )
    tools = Toolset(
        runtime,
        gate=gate,
        clock=clock,
        new_id=RandomIds(clock),
        auto_wait_s=auto_wait_s,
        hold_s=hold_s,
    )
    engine = BrowserEngine(tools, TaskAgent(tools, check=schema_errors))
    await runtime.start()
    try:
        yield tools
    finally:
        await runtime.close()


@dataclass(frozen=True, slots=True)
class Gated:
    """A toolset behind the real gate, on a home."""

    tools: Toolset
    gate: ToolGate
    parts: GateParts
    journal: SqliteJournal

    async def decide(self, approval_id: str, *, approve: bool) -> None:
        await self.gate.decide_approval(
            approval_id, approve=approve, decided_by=by("operator"), reason="a test"
        )

    async def asked(self) -> list[str]:
        return [each.approval_id for each in await self.parts.approvals.pending()]

    async def audited(self) -> list[tuple[str, str, str]]:
        """Decided calls in the audit: tool, decision, result."""
        page = await search(self.journal, AuditQuery(action=TOOL_RUN, limit=100))
        return [
            (str(row.resource_id), str(row.metadata["decision"]), str(row.metadata["result"]))
            for row in page.items
        ]


@asynccontextmanager
async def a_gated_toolset(
    home: Path, *templates: Template, policy: str, hold_s: float = 20, **given: str
) -> AsyncIterator[Gated]:
    """As `a_toolset`, with a policy, approvals, audit and evidence; again on the same home after
    a stop."""
    home.mkdir(exist_ok=True)
    (home / "given.yaml").write_text(policy)
    # Tests copy a home that runs: each copy has its own marks.
    state = home.with_name(f"{home.name}.state")
    policy_file = str(home / "given.yaml")
    named = {
        "TOOLGATE_HOME": str(home),
        "STATE_DIR": str(state),
        "POLICY_FILE": policy_file,
        **given,
    }
    settings = load(named, environment={})
    installation = Installation()
    try:
        core = await open_core(settings, installation, SecretPatterns([]))
        parts = await open_gate_parts(settings, installation, core)
        catalog = {template.id: template for template in templates}
        tools = {tool.name: tool for tool in tools_of(catalog, TrustLevel.LOCAL)}
        route = Route(find=lambda call: engine if call.tool in tools else None, named=tools)
        routing = Routing([route])
        gate = parts.gate(core, parts.policies(routing.level_of), routing)
        await gate.recover()
        runtime = TaskRuntime(
            gate=gate,
            journal=core.journal,
            bus=core.bus,
            blobs=DiskBlobs(home / "blobs" / "tasks"),
            browser=FakeBrowser(),
            clock=core.clock,
            new_id=core.new_id,
            templates=catalog,
        )
        installation.on_stop(runtime.close)
        toolset = Toolset(runtime, gate=gate, clock=core.clock, new_id=core.new_id, hold_s=hold_s)
        engine = BrowserEngine(toolset, TaskAgent(toolset, check=schema_errors))
        await runtime.start()
        yield Gated(toolset, gate, parts, core.journal)
    finally:
        await installation.stop()


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


async def fails(
    toolset: Toolset, template_id: str, inputs: Mapping[str, Any] | None = None, **given: Any
) -> Answer:
    """The error of a run that must fail; the answer has its code and hint beside it."""
    answer = await run(toolset, template_id, inputs, mode="sync", **given)
    assert answer["status"] == "failed", answer
    error: Answer = answer["error"]
    assert answer["errorCode"] == error["errorCode"]
    assert answer["recoverHint"] == error["recoverHint"]
    return error


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
