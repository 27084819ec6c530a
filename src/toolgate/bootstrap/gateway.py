"""The gateway with its memory loaded, its schedules and its operator."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from toolgate.access.signatures import verify_ed25519
from toolgate.bootstrap.admission import Admission
from toolgate.bootstrap.installation import VERSION, Core, Installation, allowed_hosts
from toolgate.bootstrap.tools import Execution
from toolgate.commands.planners.mcp import OwnServer
from toolgate.core.enums import RunStatus
from toolgate.core.rates import Rate
from toolgate.core.tools import Caller, ToolRequest
from toolgate.evidence.check import ClosedHome, LogReport, check_home
from toolgate.journal.bus import Bus
from toolgate.journal.dispatcher import Dispatcher, OnDue
from toolgate.journal.following import follow
from toolgate.journal.journal import Event
from toolgate.runs import records
from toolgate.runs.orchestrator import Invocation
from toolgate.runs.runs import Runs
from toolgate.schedules.file import CronEntry, read_schedules
from toolgate.schedules.scheduler import CRON, HEARTBEAT, SCHEDULES, Job, Scheduler, Waits
from toolgate.schedules.scheduler import Entry as ScheduleEntry
from toolgate.settings import Settings
from toolgate.surfaces.gateway.approvals import ApprovalRoutes
from toolgate.surfaces.gateway.assembly import Assembled, Foundations, assemble
from toolgate.surfaces.gateway.assembly import Options as GatewayOptions
from toolgate.surfaces.gateway.audit import AuditRoutes
from toolgate.surfaces.gateway.capabilities import DefinitionRoutes
from toolgate.surfaces.gateway.events import schedule_event
from toolgate.surfaces.gateway.evidence import EvidenceRoutes
from toolgate.surfaces.gateway.policy import PolicyRoutes
from toolgate.surfaces.gateway.routes import Route
from toolgate.surfaces.gateway.runs import RunRoutes
from toolgate.surfaces.gateway.targets import TargetRoutes
from toolgate.surfaces.gateway.tasks import TaskRoutes
from toolgate.tools.capabilities import BROWSER_CAPABILITY
from toolgate.tools.outcomes import APPROVALS, Denied, Pending, ToolGate, call_tool

MAX_WHY: Final = 500  # characters of a failed job's error that its event shows


async def open_gateway(
    settings: Settings,
    installation: Installation,
    core: Core,
    admission: Admission,
    execution: Execution,
    runs: Runs,
    dispatcher: Dispatcher,
) -> tuple[Assembled, Mapping[str, OnDue]]:
    """The gateway with its memory loaded, and its deadlines."""
    journal, clock = core.journal, core.clock
    level_of, limits = execution.level_of, execution.limits
    assert limits is not None, "the gate was built without these limits"
    entries = _schedules(settings, runs, execution.gate, core.bus)
    scheduler = Scheduler(journal, clock, schedule_event, entries, dispatcher.wake_at)
    operator: Sequence[Route] = (
        *TargetRoutes(execution.targets, execution.audit, core.patterns.learn).routes(),
        *AuditRoutes(execution.audit, journal).routes(),
        *RunRoutes(journal, runs, execution.audit, execution.evidence).routes(),
        *ApprovalRoutes(execution.approvals, execution.gate, journal, clock).routes(),
        *DefinitionRoutes(execution.upstreams.pins, level_of).routes(),
        *PolicyRoutes(execution.policy, execution.simulation, execution.audit).routes(),
        *EvidenceRoutes(
            execution.evidence, journal, clock, log_check(settings, core, execution)
        ).routes(),
        *TaskRoutes(execution.tasks, execution.audit, journal).routes(),
    )
    door = assemble(
        Foundations(
            journal=journal,
            bus=core.bus,
            clock=clock,
            new_id=core.new_id,
            seal=core.seal,
            audit=execution.audit,
            evidence=execution.evidence,
            gate=execution.gate,
            level_of=level_of,
            runs=runs,
            upstreams=execution.upstreams.sessions,
            owner=core.owner,
            verify=verify_ed25519,
            wake_at=dispatcher.wake_at,
            last_at=scheduler.last_at,
            targets=execution.target_health.now,
            more_routes=operator,
            authenticator=admission.authenticator,
            sign_in=admission.sign_in,
            limits=limits,
            own_servers={BROWSER_CAPABILITY: OwnServer("browser", execution.browser_tools)},
        ),
        GatewayOptions(
            version=VERSION,
            auto_approve=settings.gateway_auto_approve == "on",
            rate=Rate(settings.gateway_rate),
            hosts=allowed_hosts(settings),
        ),
    )
    await door.load()
    await scheduler.load()
    installation.keep_running(execution.upstreams.watch())
    installation.keep_running(door.housekeeping())
    installation.keep_running(scheduler.keep_time())
    installation.on_stop(scheduler.stop)
    installation.on_stop(door.states.stop)
    return door, {**door.on_due, SCHEDULES: scheduler.on_due}


def log_check(
    settings: Settings, core: Core, execution: Execution
) -> Callable[[], Awaitable[LogReport]]:
    """A check of the whole evidence log on disk, once it holds everything."""
    log_key = execution.evidence.key

    def check() -> LogReport:
        mark = core.mark.mark
        with ClosedHome(settings.home) as closed:
            return check_home(closed, key=log_key, mark=mark)

    async def verify() -> LogReport:
        await execution.evidence.publish()
        return await asyncio.to_thread(check)

    return verify


def _schedules(settings: Settings, runs: Runs, gate: ToolGate, bus: Bus) -> list[ScheduleEntry]:
    """The heartbeat, and a job for each line of the schedule file."""
    found = read_schedules(Path(settings.schedule_file)) if settings.schedule_file else []
    entries = [ScheduleEntry(one.id, CRON, one.cron, _job(one, runs, gate, bus)) for one in found]
    if settings.heartbeat:
        entries.append(ScheduleEntry("heartbeat", HEARTBEAT, settings.heartbeat))
    return entries


def _job(entry: CronEntry, runs: Runs, gate: ToolGate, bus: Bus) -> Job:
    caller = Caller(user="scheduler", role="scheduler", session=f"cron:{entry.id}")

    async def run_tool(job_id: str, *, waits: Waits) -> str:
        request = ToolRequest(job_id, entry.tool, entry.args, caller)
        decided = asyncio.Event()
        waits_for = b""  # whichever, until it is known

        def heard(events: Sequence[Event]) -> None:
            if any(waits_for in event.data for event in events):
                decided.set()

        hearing = bus.subscribe(APPROVALS, heard)
        try:
            while isinstance(answer := await call_tool(gate, request), Pending):
                waits_for = answer.approval_id.encode()
                if not answer.known:
                    await waits(answer.text)
                await decided.wait()  # it expires, if nobody decides
                decided.clear()
        finally:
            hearing.close()
        if isinstance(answer, Denied):
            return answer.text
        output = answer.output
        why = output.stderr or f"exit code {output.exit_code}"
        return "" if output.ok else why[:MAX_WHY]

    async def invoke_agent(job_id: str, *, waits: Waits) -> str:
        invocation = Invocation(
            session_id=f"cron:{entry.id}",
            user_id="scheduler",
            agent_id=entry.agent,
            role="user",
            content=entry.message,
            request_id=job_id,
        )
        run_id = await runs.invoke(invocation)
        moves = follow(runs.journal, bus, records.run_stream(run_id))
        async with contextlib.aclosing(moves):
            async for _ in moves:
                state = await runs.state(run_id)
                if state.ended:
                    is_done = state.status is RunStatus.DONE
                    return "" if is_done else f"{state.status} {state.code}: {state.message}"
        raise AssertionError("a stream that is followed has no end")

    return invoke_agent if entry.agent else run_tool
