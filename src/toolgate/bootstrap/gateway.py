"""The gateway with its memory loaded, its schedules and its operator."""

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from toolgate.access.audit_trail import AuditTrail
from toolgate.access.ratelimit import Rate
from toolgate.access.signatures import verify_ed25519
from toolgate.bootstrap.installation import (
    VERSION,
    Core,
    Installation,
    allowed_hosts,
    kept_token,
    tell,
    token,
)
from toolgate.bootstrap.tools import Execution
from toolgate.commands.planners.mcp import OwnServer
from toolgate.core.enums import RunStatus
from toolgate.core.tools import Caller, ToolRequest
from toolgate.journal.bus import Bus
from toolgate.journal.dispatcher import Dispatcher, OnDue
from toolgate.journal.following import follow
from toolgate.journal.journal import Event
from toolgate.runs import records
from toolgate.runs.orchestrator import Invocation
from toolgate.runs.runs import Runs
from toolgate.schedules.file import CronEntry, read_schedules
from toolgate.schedules.scheduler import CRON, HEARTBEAT, SCHEDULES, Job, Scheduler
from toolgate.schedules.scheduler import Entry as ScheduleEntry
from toolgate.secrets.patterns import SecretPatterns
from toolgate.settings import Settings
from toolgate.surfaces.gateway.approvals import ApprovalRoutes
from toolgate.surfaces.gateway.assembly import Assembled, Foundations, assemble
from toolgate.surfaces.gateway.assembly import Options as GatewayOptions
from toolgate.surfaces.gateway.audit import AuditRoutes
from toolgate.surfaces.gateway.events import schedule_event
from toolgate.surfaces.gateway.policy import PolicyRoutes
from toolgate.surfaces.gateway.routes import Route
from toolgate.surfaces.gateway.runs import RunRoutes
from toolgate.surfaces.gateway.targets import TargetRoutes
from toolgate.tools.capabilities import BROWSER_CAPABILITY
from toolgate.tools.gate import APPROVALS, Pending, Ran, ToolPipeline
from toolgate.tools.upstream.file import read_servers


async def open_gateway(
    settings: Settings,
    installation: Installation,
    core: Core,
    execution: Execution,
    runs: Runs,
    dispatcher: Dispatcher,
) -> tuple[Assembled, Mapping[str, OnDue]]:
    """The gateway with its memory loaded, and its deadlines."""
    journal, clock = core.journal, core.clock
    trail = AuditTrail(execution.audit)
    level_of = execution.level_of
    entries = _schedules(settings, runs, execution.pipeline, core.bus)
    scheduler = Scheduler(journal, clock, schedule_event, entries, dispatcher.wake_at)
    operator: Sequence[Route] = (
        *TargetRoutes(execution.targets, trail, core.patterns.learn).routes(),
        *AuditRoutes(execution.audit).routes(),
        *RunRoutes(journal).routes(),
        *ApprovalRoutes(
            execution.approvals, execution.pipeline, runs, journal, clock, level_of
        ).routes(),
        *PolicyRoutes(execution.policy, execution.simulation, trail, journal).routes(),
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
            pipeline=execution.pipeline,
            level_of=level_of,
            runs=runs,
            upstreams=execution.upstreams.sessions,
            finished_through=execution.finished_through,
            verify=verify_ed25519,
            wake_at=dispatcher.wake_at,
            last_at=scheduler.last_at,
            targets=execution.target_health.now,
            more_routes=operator,
            learn=core.learn,
            own_servers={BROWSER_CAPABILITY: OwnServer("browser", execution.browser_tools)},
            more_capabilities=read_servers(Path(settings.mcp_file)) if settings.mcp_file else (),
        ),
        GatewayOptions(
            operator_token=operator_token(settings, core.patterns),
            version=VERSION,
            gateway_token=settings.gateway_token.reveal(),
            auto_approve=settings.gateway_auto_approve == "on",
            rate=Rate(settings.gateway_rate),
            hosts=allowed_hosts(settings),
        ),
    )
    execution.upstreams.capabilities = door.capabilities
    execution.terms.registered = (door.capabilities, door.limits)
    execution.terms.own = {tool.name: BROWSER_CAPABILITY for tool in execution.browser_tools}
    await door.load()
    await scheduler.load()
    installation.keep_running(execution.upstreams.watch())
    installation.keep_running(door.housekeeping())
    installation.keep_running(scheduler.keep_time())
    installation.on_stop(scheduler.stop)
    installation.on_stop(door.states.stop)
    return door, {**door.on_due, SCHEDULES: scheduler.on_due}


def _schedules(
    settings: Settings, runs: Runs, pipeline: ToolPipeline, bus: Bus
) -> list[ScheduleEntry]:
    """The heartbeat, and a job for each line of the schedule file."""
    found = read_schedules(Path(settings.schedule_file)) if settings.schedule_file else []
    entries = [
        ScheduleEntry(one.id, CRON, one.cron, _job(one, runs, pipeline, bus)) for one in found
    ]
    if settings.heartbeat:
        entries.append(ScheduleEntry("heartbeat", HEARTBEAT, settings.heartbeat))
    return entries


def _job(entry: CronEntry, runs: Runs, pipeline: ToolPipeline, bus: Bus) -> Job:
    caller = Caller(user="scheduler", role="scheduler", session=f"cron:{entry.id}")

    async def call_tool(job_id: str) -> bool:
        request = ToolRequest(job_id, entry.tool, entry.args, caller)
        decided = asyncio.Event()
        waits_for = b""  # whichever, until it is known

        def heard(events: Sequence[Event]) -> None:
            if any(waits_for in event.data for event in events):
                decided.set()

        hearing = bus.subscribe(APPROVALS, heard)
        try:
            while isinstance(answer := await pipeline.run(request), Pending):
                waits_for = answer.approval_id.encode()
                await decided.wait()  # it expires, if nobody decides
                decided.clear()
        finally:
            hearing.close()
        return isinstance(answer, Ran) and answer.output.ok

    async def invoke_agent(job_id: str) -> bool:
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
                    return state.status is RunStatus.DONE
        raise AssertionError("a stream that is followed has no end")

    return invoke_agent if entry.agent else call_tool


def operator_token(settings: Settings, patterns: SecretPatterns) -> str:
    """Made on first start, and shown that once: it cannot be read from anywhere but its file."""
    is_new = not settings.operator_token and not kept_token(settings.home / "operator.token")
    made = token(settings, "operator", patterns)
    if is_new:
        tell(settings, f"operator token (shown once; kept in operator.token): {made}")
    return made
