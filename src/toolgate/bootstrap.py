"""The only module that names concrete classes: it builds an installation and starts its doors."""

import asyncio
import contextlib
import logging
import os
import resource
import secrets
import socket
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route as HttpRoute

from toolgate import asgi
from toolgate.adapters import logs
from toolgate.adapters.blobs_disk import DiskBlobs
from toolgate.adapters.bus_local import LocalBus
from toolgate.adapters.clock import SystemClock
from toolgate.adapters.dispatcher_local import LocalDispatcher, OnDue
from toolgate.adapters.docker_runner import DockerRunners
from toolgate.adapters.echo_agent import EchoAgent
from toolgate.adapters.egress_proxy import EgressProxy
from toolgate.adapters.engine_builtin import BuiltInEngine
from toolgate.adapters.engine_sandbox import SandboxEngine
from toolgate.adapters.evidence_check import ClosedHome, check_log
from toolgate.adapters.evidence_log import EvidenceLog
from toolgate.adapters.evidence_tiles import TileFiles
from toolgate.adapters.ids import RandomIds
from toolgate.adapters.journal_sqlite import SqliteJournal
from toolgate.adapters.json_schema import schema_errors
from toolgate.adapters.mcp_file import read_servers
from toolgate.adapters.mcp_upstream import McpUpstreams
from toolgate.adapters.metrics import Metrics, Reading
from toolgate.adapters.patterns_re2 import SecretPatterns
from toolgate.adapters.playwright_browser import BrowserOptions, PlaywrightBrowser
from toolgate.adapters.policy_file import PolicyFile, load_policy
from toolgate.adapters.refused_hosts import RefusedHosts
from toolgate.adapters.sandbox_choice import BWRAP, make_sandbox
from toolgate.adapters.sandbox_sessions import Sessions as Sandboxes
from toolgate.adapters.schedule_file import CronEntry, read_schedules
from toolgate.adapters.script_agent import ScriptAgent
from toolgate.adapters.seal_aesgcm import AesGcmSeal
from toolgate.adapters.shell_parser_tree_sitter import TreeSitterShellParser
from toolgate.adapters.signatures import verify_ed25519
from toolgate.adapters.signer_ed25519 import Commitments, Ed25519Signer
from toolgate.adapters.web_guard import Guard, GuardedWeb
from toolgate.adapters.web_search import WebSearch
from toolgate.admission.capabilities import Capabilities
from toolgate.admission.scheduler import CRON, HEARTBEAT, SCHEDULES, Job, Scheduler
from toolgate.admission.scheduler import Entry as ScheduleEntry
from toolgate.domain.capabilities import Health, Server
from toolgate.domain.errors import Misconfigured
from toolgate.domain.ratelimit import Rate
from toolgate.domain.redaction import Redactor
from toolgate.domain.tools import Caller, Level, ToolRequest
from toolgate.execution.approvals import COLLECTION as APPROVALS
from toolgate.execution.approvals import Approvals
from toolgate.execution.audit import AuditLog
from toolgate.execution.executor import LocalExecutor
from toolgate.execution.ledger import Ledger
from toolgate.execution.pipeline import Pipeline
from toolgate.execution.policies import Policies
from toolgate.execution.routing import Route as ToolRoute
from toolgate.execution.routing import Routing, named_tools, on_target
from toolgate.execution.simulation import Simulation
from toolgate.execution.targets import TargetEngine, Targets
from toolgate.orchestration import records
from toolgate.orchestration.advance import Advance
from toolgate.orchestration.conversations import Conversations
from toolgate.orchestration.runs import Limits, Runs
from toolgate.orchestration.session_tools import SessionTools
from toolgate.ports.agents import Agent
from toolgate.ports.journal import Row
from toolgate.ports.orchestrator import Invocation
from toolgate.ports.pipeline import Ran, ToolPipeline
from toolgate.settings import Settings
from toolgate.surfaces.console.parts import Admission, ChatDoor, Parts, Verification
from toolgate.surfaces.console.server import Console
from toolgate.surfaces.console.sign_in import SignIn
from toolgate.surfaces.executor.server import ExecutorApi
from toolgate.surfaces.gateway.assembly import Assembled, Foundations, assemble
from toolgate.surfaces.gateway.assembly import Options as GatewayOptions
from toolgate.surfaces.gateway.events import schedule_event
from toolgate.surfaces.gateway.operator import (
    ApprovalRoutes,
    AuditRoutes,
    PolicyRoutes,
    RunRoutes,
    TargetRoutes,
)
from toolgate.surfaces.gateway.routes import Route
from toolgate.surfaces.gateway.trail import AuditTrail
from toolgate.surfaces.ingress.connection import Options
from toolgate.surfaces.ingress.hub import Hub
from toolgate.surfaces.ingress.server import Ingress
from toolgate.surfaces.ingress.sessions import Sessions
from toolgate.surfaces.orchestrator.server import OrchestratorApi
from toolgate.tasks.agent_tools import BrowserEngine
from toolgate.tasks.catalog import load_templates
from toolgate.tasks.runtime import TaskRuntime
from toolgate.tasks.task_agent import TaskAgent
from toolgate.tasks.toolset import Toolset

log = logging.getLogger(__name__)

VERSION: Final = version("toolgate")
DRAIN_S: Final = 5.0  # how long runs may go on after SIGTERM
OPEN_FILES: Final = 65_536  # a socket each for thousands of clients
TOKEN_BYTES: Final = 32
TABS_PER_CORE: Final = 4
AGENTS: Final = ("script", "echo")  # those that the console's chat offers


@dataclass(slots=True)
class Installation:
    """What is running, where it listens, and how it is stopped."""

    urls: dict[str, str] = field(default_factory=dict)
    console_link: str = field(default="", repr=False)  # signs the operator in, once
    _stops: list[Callable[[], Awaitable[object]]] = field(default_factory=list)

    def on_stop(self, stop: Callable[[], Awaitable[object]]) -> None:
        self._stops.append(stop)

    def keep_running(self, work: Awaitable[None]) -> None:
        """A task that lives as long as the installation."""
        task = asyncio.ensure_future(work)

        async def end() -> None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

        self.on_stop(end)

    async def stop(self) -> None:
        """In the reverse of the order of starting; each part gets its chance."""
        for stop in reversed(self._stops):
            try:
                await stop()
            except Exception:
                log.exception("stop_failed")
        self._stops.clear()


@dataclass(frozen=True, slots=True)
class Core:
    """What every role stands on."""

    clock: SystemClock
    new_id: RandomIds
    bus: LocalBus
    journal: SqliteJournal
    patterns: SecretPatterns
    redactor: Redactor


@dataclass(frozen=True, slots=True)
class Execution:
    """The tool pipeline, and what the doors read beside it."""

    pipeline: Pipeline
    policy: PolicyFile
    approvals: Approvals
    audit: AuditLog
    evidence: EvidenceLog
    targets: Targets
    executor: LocalExecutor
    tasks: Toolset
    level_of: Callable[[str], Level | None]
    upstreams: "Upstreams"
    simulation: Simulation


async def start_everything(settings: Settings) -> Installation:
    """`toolgate up`: all roles in this process, on SQLite. Raises ToolgateError."""
    patterns = SecretPatterns(settings.secrets())
    redactor = Redactor(patterns.find, unfinished=patterns.unfinished)
    logs.configure(
        level=settings.log_level, as_json=settings.log_format == "json", redact=redactor.text
    )
    _check_exposure(settings)
    _raise_file_limit()
    _make_home(settings)
    installation = Installation()
    try:
        await _start(settings, installation, patterns, redactor)
    except BaseException:
        await installation.stop()
        raise
    return installation


async def _start(
    settings: Settings, installation: Installation, patterns: SecretPatterns, redactor: Redactor
) -> None:
    sockets = _bind(
        settings.host,
        internal=(settings.http_port, "HTTP_PORT"),
        orchestrator=(settings.orchestrator_port, "ORCHESTRATOR_PORT"),
        gateway=(settings.gateway_port, "GATEWAY_PORT"),
        clients=(settings.ws_port, "WS_PORT"),
    )
    core = await _open_core(settings, installation, patterns, redactor)
    execution = await _open_execution(settings, installation, core)
    dispatcher = LocalDispatcher(core.journal, core.clock)
    runs, start_runs = _runs(settings, installation, core, execution, dispatcher)
    hub = Hub(core.bus, core.clock, resume_window_ms=settings.resume_window_ms)
    metrics = Metrics(
        {
            "connections": Reading("Clients connected now.", lambda: len(ingress.connections)),
            "deliveries": Reading("Events given to clients.", lambda: hub.delivered, grows=True),
            "runs_working": Reading("Runs at work now.", lambda: len(dispatcher.working_on)),
        }
    )
    ingress = _ingress(settings, core, hub, runs, metrics)
    executor = ExecutorApi(execution.executor, _token(settings, "executor", core.patterns))
    door, due = await _gateway(settings, installation, core, execution, runs, dispatcher)
    start_runs(due)
    gateway = door.gateway.app()
    gateway.router.routes.extend(route for route in executor.routes() if route.path != "/health")
    console = await _console(settings, core, execution, runs, door, sockets["clients"])
    gateway.router.routes.extend(console.routes())
    await _serve(installation, metrics, ingress.internal_app(), sockets["internal"])
    orchestrator = OrchestratorApi(runs, core.bus, core.clock, settings.internal_token.reveal())
    await _serve(installation, metrics, orchestrator.app(), sockets["orchestrator"])
    await _serve(installation, metrics, gateway, sockets["gateway"], websockets=True)
    await ingress.start(sockets["clients"])
    installation.on_stop(ingress.stop)
    installation.on_stop(_soon(console.close))
    for run_id, _ in await runs.open_runs():
        dispatcher.dispatch(run_id)
    at = {name: _address(bound.getsockname()) for name, bound in sockets.items()}
    installation.urls = {
        "ingress_ws": f"ws://{at['clients']}/ws",
        "ingress_internal": f"http://{at['internal']}",
        "orchestrator": f"http://{at['orchestrator']}",
        "gateway": f"http://{at['gateway']}",
        "console": f"http://{at['gateway']}/console",
    }
    installation.console_link = console.link(installation.urls["console"])


async def _open_core(
    settings: Settings, installation: Installation, patterns: SecretPatterns, redactor: Redactor
) -> Core:
    clock, bus = SystemClock(), LocalBus()
    journal = await SqliteJournal.open(settings.home / "journal.db", clock=clock, bus=bus)
    installation.on_stop(journal.close)
    return Core(clock, RandomIds(clock), bus, journal, patterns, redactor)


async def _open_browser_tasks(
    settings: Settings, installation: Installation, core: Core, blobs: DiskBlobs
) -> Toolset:
    """The browser itself starts with the first task."""
    refused = RefusedHosts()
    proxy = await EgressProxy(Guard(), decided=refused.note).__aenter__()
    installation.on_stop(lambda: proxy.__aexit__(None, None, None))
    browser = PlaywrightBrowser(
        BrowserOptions(
            executable=settings.chromium,
            proxy_url=f"http://127.0.0.1:{await proxy.listen_tcp()}",
            slots=TABS_PER_CORE * (os.cpu_count() or 1),
        ),
        was_refused=refused.has,
    )
    installation.on_stop(browser.close)
    runtime = TaskRuntime(
        journal=core.journal,
        blobs=blobs,
        browser=browser,
        clock=core.clock,
        new_id=core.new_id,
        templates=load_templates(),
    )
    installation.on_stop(runtime.close)
    await runtime.start()
    return Toolset(runtime, clock=core.clock)


async def _open_execution(settings: Settings, installation: Installation, core: Core) -> Execution:
    home, journal, clock, redactor = settings.home, core.journal, core.clock, core.redactor
    blobs = DiskBlobs(home / "blobs")
    evidence = await EvidenceLog.open(
        TileFiles(home / "evidence"),
        journal=journal,
        blobs=blobs,
        bus=core.bus,
        clock=clock,
        signer=Ed25519Signer.in_home(home),
        redactor=redactor,
        commit=Commitments.in_home(home),
    )
    installation.on_stop(evidence.close)
    parse_shell = TreeSitterShellParser()
    path = Path(settings.policy_file) if settings.policy_file else None
    policy = PolicyFile(path, parse_shell=parse_shell, keep_at=home / "policy.yaml")
    installation.keep_running(policy.watch())
    policies = Policies(policy.find, parse_shell, level_of=lambda call: routing.level_of(call))
    web = await GuardedWeb(Guard()).__aenter__()
    installation.on_stop(lambda: web.__aexit__(None, None, None))
    sandboxes = Sandboxes(make_sandbox(BWRAP), clock=clock)
    sandboxes.start_soon()
    installation.on_stop(sandboxes.close)
    runners = DockerRunners(clock=clock)
    installation.on_stop(runners.close)
    targets = Targets(journal, clock=clock)
    built_in = BuiltInEngine(
        journal=journal,
        web=web,
        session=sandboxes.open_for,
        isolation=sandboxes.isolation,
        permits=policies.permits_hop,
        version=VERSION,
        holds_secret=lambda text: redactor.text(text) != text,
    )
    on_targets = TargetEngine(targets, local=SandboxEngine(sandboxes), remote=runners.engine)
    tasks = await _open_browser_tasks(settings, installation, core, blobs)
    in_browser = BrowserEngine(tasks, TaskAgent(tasks, check=schema_errors))
    upstreams = Upstreams(clock)
    installation.on_stop(upstreams.sessions.close)
    routing = Routing(
        [
            on_target(lambda _: on_targets),
            upstreams.route(),
            *await _search(settings, installation),
            named_tools(in_browser, in_browser.tools()),
            named_tools(built_in, built_in.tools()),
        ]
    )
    audit = AuditLog(journal, redactor=redactor)
    approvals = Approvals(journal, evidence, clock, ttl_ms=settings.approval_timeout_ms)
    pipeline = Pipeline(
        policies=policies,
        routing=routing,
        ledger=Ledger(journal, evidence, audit, clock, owner=core.new_id("node")),
        approvals=approvals,
        redactor=redactor,
    )
    await pipeline.recover()
    whoever_has_the_token = Caller(role="executor", level=Level.SIGN)
    executor = LocalExecutor(pipeline, evidence, journal, clock, whoever_has_the_token, VERSION)
    simulation = Simulation(
        journal,
        evidence,
        lambda text: load_policy(text, parse_shell=parse_shell),
        parse_shell,
        routing.level_of,
    )
    return Execution(
        pipeline,
        policy,
        approvals,
        audit,
        evidence,
        targets,
        executor,
        tasks,
        routing.known_level,
        upstreams,
        simulation,
    )


async def _search(settings: Settings, installation: Installation) -> list[ToolRoute]:
    """`web.search`, where the operator has named a provider; its own host may be private."""
    if not settings.search_provider:
        return []
    opened = (
        frozenset({urlsplit(settings.search_url).netloc}) if settings.search_url else frozenset()
    )
    web = await GuardedWeb(Guard(allow_private=opened)).__aenter__()
    installation.on_stop(lambda: web.__aexit__(None, None, None))
    engine = WebSearch(
        web,
        provider=settings.search_provider,
        url=settings.search_url,
        key=settings.search_key.reveal(),
    )
    return [named_tools(engine, engine.tools())]


def _runs(
    settings: Settings,
    installation: Installation,
    core: Core,
    execution: Execution,
    dispatcher: LocalDispatcher,
) -> tuple[Runs, Callable[[Mapping[str, OnDue]], None]]:
    """The runs, and how their work begins once whoever else has deadlines has said so."""
    agents: dict[str, Agent] = {"echo": EchoAgent(), "script": ScriptAgent()}
    session_tools = SessionTools(core.journal)
    runs = Runs(
        journal=core.journal,
        dispatcher=dispatcher,
        pipeline=execution.pipeline,
        clock=core.clock,
        new_id=core.new_id,
        knows_agent=agents.__contains__,
        session_tools=session_tools,
        limits=Limits(
            tool_ms=settings.tool_timeout_ms,
            approval_ms=settings.approval_timeout_ms,
            agent_ms=settings.agent_timeout_ms,
        ),
    )

    async def approval_expired(row: Row) -> None:
        run_id = await execution.approvals.on_due(row)
        if run_id:
            dispatcher.dispatch(run_id)

    on_due: dict[str, OnDue] = {
        records.OPEN_RUNS: runs.on_agent_deadline,
        records.CALLS: runs.on_call_deadline,
        records.REQUESTS: runs.on_request_expired,
        APPROVALS: approval_expired,
    }
    advance = Advance(runs, agents.__getitem__, session_tools, Conversations(core.journal))

    def start(more_due: Mapping[str, OnDue]) -> None:
        dispatcher.start(advance, {**on_due, **more_due})
        installation.on_stop(lambda: dispatcher.drain(seconds=DRAIN_S))

    return runs, start


async def _gateway(
    settings: Settings,
    installation: Installation,
    core: Core,
    execution: Execution,
    runs: Runs,
    dispatcher: LocalDispatcher,
) -> tuple[Assembled, Mapping[str, OnDue]]:
    """The gateway with its memory loaded, and its deadlines."""
    journal, clock = core.journal, core.clock
    trail = AuditTrail(execution.audit)
    level_of = execution.level_of
    entries = _schedules(settings, runs, execution.pipeline)
    scheduler = Scheduler(journal, clock, schedule_event, entries, dispatcher.wake_at)
    operator: Sequence[Route] = (
        *TargetRoutes(execution.targets, trail, journal, core.patterns.learn).routes(),
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
            seal=AesGcmSeal.in_file(settings.home / "seal.key"),
            audit=execution.audit,
            pipeline=execution.pipeline,
            level_of=level_of,
            runs=runs,
            upstreams=execution.upstreams.sessions,
            verify=verify_ed25519,
            wake_at=dispatcher.wake_at,
            last_at=scheduler.last_at,
            more_routes=operator,
            more_capabilities=read_servers(Path(settings.mcp_file)) if settings.mcp_file else (),
        ),
        GatewayOptions(
            operator_token=_operator_token(settings, core.patterns),
            version=VERSION,
            gateway_token=settings.gateway_token.reveal(),
            auto_approve=settings.gateway_auto_approve == "on",
            rate=Rate(settings.gateway_rate),
            hosts=frozenset(
                name.strip().lower() for name in settings.allowed_hosts.split(",") if name.strip()
            ),
        ),
    )
    execution.upstreams.capabilities = door.capabilities
    await door.load()
    await scheduler.load()
    installation.keep_running(execution.upstreams.sessions.watch())
    installation.keep_running(door.housekeeping())
    installation.on_stop(scheduler.stop)
    installation.on_stop(door.commands.stop)
    return door, {**door.on_due, SCHEDULES: scheduler.on_due}


async def _console(
    settings: Settings,
    core: Core,
    execution: Execution,
    runs: Runs,
    door: Assembled,
    clients: socket.socket,
) -> Console:
    """The operator's pages, on everything that is here."""
    home, log_key = settings.home, execution.evidence.key

    def check() -> Verification:
        with ClosedHome(home) as closed:
            found = check_log(
                closed.log.root,
                key=log_key,
                read_artifact=closed.artifact,
                journal=closed.records(),
            )
        return Verification(found.size, found.artifacts, found.problems, found.notes)

    async def verify() -> Verification:
        await execution.evidence.publish()
        return await asyncio.to_thread(check)

    sign_in = SignIn(_operator_token(settings, core.patterns), core.clock, core.journal)
    await sign_in.load()
    parts = Parts(
        version=VERSION,
        runs=runs,
        pipeline=execution.pipeline,
        approvals=execution.approvals,
        audit=execution.audit,
        evidence=execution.evidence,
        verify=verify,
        policy=execution.policy,
        simulation=execution.simulation,
        targets=execution.targets,
        journal=core.journal,
        bus=core.bus,
        clock=core.clock,
        chat=ChatDoor(clients.getsockname()[1], settings.api_key.reveal(), AGENTS),
        learn=core.patterns.learn,
        admission=Admission(door.registry, door.pairing, door.capabilities),
        tasks=execution.tasks,
    )
    return Console(parts, sign_in)


def _schedules(settings: Settings, runs: Runs, pipeline: ToolPipeline) -> list[ScheduleEntry]:
    """The heartbeat, and a job for each line of the schedule file."""
    found = read_schedules(Path(settings.schedule_file)) if settings.schedule_file else []
    entries = [ScheduleEntry(one.id, CRON, one.cron, _job(one, runs, pipeline)) for one in found]
    if settings.heartbeat:
        entries.append(ScheduleEntry("heartbeat", HEARTBEAT, settings.heartbeat))
    return entries


def _job(entry: CronEntry, runs: Runs, pipeline: ToolPipeline) -> Job:
    caller = Caller(user="scheduler", role="scheduler", session=f"cron:{entry.id}")

    async def call_tool(job_id: str) -> bool:
        answer = await pipeline.run(ToolRequest(job_id, entry.tool, entry.args, caller))
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
        await runs.invoke(invocation)
        return True

    return invoke_agent if entry.agent else call_tool


def _operator_token(settings: Settings, patterns: SecretPatterns) -> str:
    """Made on first start, and shown that once: it cannot be read from anywhere but its file."""
    is_new = not settings.operator_token and not (settings.home / "operator.token").exists()
    token = _token(settings, "operator", patterns)
    if is_new:
        sys.stderr.write(f"operator token (shown once; kept in operator.token): {token}\n")
    return token


@dataclass(slots=True)
class Upstreams:
    """MCP servers, found in what is registered once that has been loaded."""

    clock: SystemClock
    capabilities: Capabilities | None = None
    sessions: McpUpstreams = field(init=False)

    def __post_init__(self) -> None:
        self.sessions = McpUpstreams(self._server, clock=self.clock, report=self._report)

    def route(self) -> ToolRoute:
        sessions = self.sessions
        return ToolRoute(
            find=lambda request: sessions if sessions.takes(request.tool) else None,
            describe=sessions.describe,
        )

    def _server(self, capability_id: str) -> Server | None:
        found = self.capabilities.get(capability_id) if self.capabilities else None
        return None if found is None else found.server

    def _report(self, capability_id: str, health: Health) -> None:
        if self.capabilities is not None and self.capabilities.report(capability_id, health):
            log.info("capability_health id=%s health=%s", capability_id, health)


def _ingress(settings: Settings, core: Core, hub: Hub, runs: Runs, metrics: Metrics) -> Ingress:
    return Ingress(
        options=Options(
            api_key=settings.api_key.reveal(),
            max_message_bytes=settings.ws_max_message_bytes,
            write_wait_ms=settings.ws_write_wait_ms,
        ),
        hub=hub,
        sessions=Sessions(core.journal, core.clock, core.new_id),
        journal=core.journal,
        orchestrator=runs,
        clock=core.clock,
        ping_interval_ms=settings.ws_ping_interval_ms,
        pong_wait_ms=settings.ws_pong_wait_ms,
        cancel_when_gone=settings.on_disconnect == "cancel",
        metrics=metrics.text,
        internal_token=settings.internal_token.reveal(),
    )


def _soon(stop: Callable[[], None]) -> Callable[[], Awaitable[None]]:
    async def stopped() -> None:
        stop()

    return stopped


async def _serve(
    installation: Installation,
    metrics: Metrics,
    app: Starlette,
    bound: socket.socket,
    *,
    websockets: bool = False,
) -> None:
    async def answer(_: Request) -> Response:
        return Response(metrics.text(), media_type="text/plain; version=0.0.4")

    app.router.routes.append(HttpRoute("/metrics", answer, methods=["GET"]))
    listener = asgi.Listener(app, bound, websockets=websockets)
    await listener.start()
    installation.on_stop(listener.stop)


def _bind(host: str, **listeners: tuple[int, str]) -> dict[str, socket.socket]:
    """All of them or none: a port that is taken is noticed before anything is opened."""
    bound: dict[str, socket.socket] = {}
    try:
        for name, (port, setting) in listeners.items():
            bound[name] = asgi.bind(host, port, setting=setting)
    except Misconfigured:
        for one in bound.values():
            one.close()
        raise
    return bound


def _token(settings: Settings, name: str, patterns: SecretPatterns) -> str:
    """A token that was set, or one that is made once and kept in home, for its owner alone."""
    given = getattr(settings, f"{name}_token").reveal()
    if given:
        return str(given)
    path = settings.home / f"{name}.token"
    if not path.exists():
        made = secrets.token_urlsafe(TOKEN_BYTES)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(made)
    token = path.read_text().strip()
    patterns.learn(token)
    return token


def _address(name: Sequence[object]) -> str:
    host, port = str(name[0]), name[1]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _check_exposure(settings: Settings) -> None:
    """Without a key anyone may talk to us: only on loopback, and not silently."""
    if settings.api_key:
        return
    if not settings.on_loopback:
        raise Misconfigured(
            f"API_KEY is not set and HOST is {settings.host}; set API_KEY, or HOST to 127.0.0.1"
        )
    log.warning("api_key_unset any client on this machine may connect")


def _make_home(settings: Settings) -> None:
    try:
        settings.home.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as refused:
        raise Misconfigured(
            f"TOOLGATE_HOME {settings.home} cannot be made: {refused.strerror}; "
            "choose a directory that this user may write"
        ) from refused


def _raise_file_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
