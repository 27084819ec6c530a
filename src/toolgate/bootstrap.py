"""The only module that names concrete classes: it builds an installation and starts its doors."""

import asyncio
import contextlib
import logging
import os
import resource
import secrets
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Final

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
from toolgate.adapters.engine_builtin import BuiltInEngine
from toolgate.adapters.engine_sandbox import SandboxEngine
from toolgate.adapters.evidence_log import EvidenceLog
from toolgate.adapters.evidence_tiles import TileFiles
from toolgate.adapters.http_agent import HttpAgents
from toolgate.adapters.ids import RandomIds
from toolgate.adapters.ingress_push import IngressPush
from toolgate.adapters.journal_sqlite import SqliteJournal
from toolgate.adapters.llm_agent import LlmAgent
from toolgate.adapters.metrics import Metrics, Reading
from toolgate.adapters.orchestrator_http import HttpOrchestrator
from toolgate.adapters.orchestrator_http_records import CALLS as REMOTE_CALLS
from toolgate.adapters.orchestrator_http_records import RemoteRuns
from toolgate.adapters.patterns_re2 import SecretPatterns
from toolgate.adapters.policy_file import PolicyFile
from toolgate.adapters.sandbox_choice import BWRAP, make_sandbox
from toolgate.adapters.sandbox_sessions import Sessions as Sandboxes
from toolgate.adapters.script_agent import ScriptAgent
from toolgate.adapters.shell_parser_tree_sitter import TreeSitterShellParser
from toolgate.adapters.signer_ed25519 import Commitments, Ed25519Signer
from toolgate.adapters.web_guard import Guard, GuardedWeb
from toolgate.domain.errors import Misconfigured
from toolgate.domain.redaction import Redactor
from toolgate.domain.tools import Caller, Level
from toolgate.execution.approvals import COLLECTION as APPROVALS
from toolgate.execution.approvals import Approvals
from toolgate.execution.audit import AuditLog
from toolgate.execution.executor import LocalExecutor
from toolgate.execution.ledger import Ledger
from toolgate.execution.pipeline import Pipeline
from toolgate.execution.policies import Policies
from toolgate.execution.routing import Routing, named_tools, on_target
from toolgate.execution.targets import TargetEngine, Targets
from toolgate.orchestration import records
from toolgate.orchestration.advance import Advance
from toolgate.orchestration.agents import Agents
from toolgate.orchestration.conversations import Conversations
from toolgate.orchestration.retention import Retention
from toolgate.orchestration.runs import Limits, Runs
from toolgate.orchestration.session_tools import SessionTools
from toolgate.ports.agents import Agent
from toolgate.ports.journal import Delete, Row
from toolgate.ports.orchestrator import Orchestrator
from toolgate.settings import Settings
from toolgate.surfaces.executor.server import ExecutorApi
from toolgate.surfaces.gateway.server import Gateway
from toolgate.surfaces.ingress.connection import Options
from toolgate.surfaces.ingress.hub import Hub
from toolgate.surfaces.ingress.server import Ingress
from toolgate.surfaces.ingress.sessions import Sessions
from toolgate.surfaces.orchestrator.server import OrchestratorApi

log = logging.getLogger(__name__)

VERSION: Final = version("toolgate")
DRAIN_S: Final = 5.0  # how long runs may go on after SIGTERM
OPEN_FILES: Final = 65_536  # a socket each for thousands of clients
TOKEN_BYTES: Final = 32


@dataclass(slots=True)
class Installation:
    """What is running, where it listens, and how it is stopped."""

    urls: dict[str, str] = field(default_factory=dict)
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


Start = Callable[[Settings, Installation, SecretPatterns, Redactor], Awaitable[None]]


async def start_everything(settings: Settings) -> Installation:
    """`toolgate up`: all roles in this process, on SQLite. Raises ToolgateError."""
    return await _start_role(settings, _start)


async def start_ingress(settings: Settings) -> Installation:
    """`toolgate ingress`: clients' WebSockets here, the orchestrator at ORCHESTRATOR_URL."""
    if not settings.orchestrator_url:
        raise Misconfigured("ORCHESTRATOR_URL is not set; name the orchestrator, or use `up`")
    return await _start_role(settings, _start_ingress_alone)


async def start_orchestrator(settings: Settings) -> Installation:
    """`toolgate orchestrator`: runs and tools here, clients at an ingress elsewhere."""
    return await _start_role(settings, _start_orchestrator_alone)


async def _start_role(settings: Settings, start: Start) -> Installation:
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
        await start(settings, installation, patterns, redactor)
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
    runs = await _start_runs(settings, installation, core, execution, dispatcher)
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
    gateway = Gateway(core.clock, VERSION, metrics.text).app()
    gateway.router.routes.extend(route for route in executor.routes() if route.path != "/health")
    await _serve(installation, metrics, ingress.internal_app(), sockets["internal"])
    orchestrator = OrchestratorApi(runs, core.bus, core.clock, settings.internal_token.reveal())
    await _serve(installation, metrics, orchestrator.app(), sockets["orchestrator"])
    await _serve(installation, metrics, gateway, sockets["gateway"])
    await ingress.start(sockets["clients"])
    installation.on_stop(ingress.stop)
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


async def _start_ingress_alone(
    settings: Settings, installation: Installation, patterns: SecretPatterns, redactor: Redactor
) -> None:
    sockets = _bind(
        settings.host,
        internal=(settings.http_port, "HTTP_PORT"),
        clients=(settings.ws_port, "WS_PORT"),
    )
    core = await _open_core(settings, installation, patterns, redactor)
    dispatcher = LocalDispatcher(core.journal, core.clock)
    orchestrator = HttpOrchestrator(
        settings.orchestrator_url,
        RemoteRuns(core.journal, core.clock, dispatcher),
        core.new_id,
        settings.internal_token.reveal(),
        answer_s=settings.orchestrator_timeout_ms / 1000,
    )

    async def forget_request(row: Row) -> None:
        await core.journal.commit(Delete(row.collection, row.key))

    async def nothing_to_advance(_: str) -> None:
        """Runs are worked on elsewhere; only the deadlines are kept here."""

    dispatcher.start(
        nothing_to_advance,
        {REMOTE_CALLS: orchestrator.on_call_deadline, records.REQUESTS: forget_request},
    )
    installation.on_stop(lambda: dispatcher.drain(seconds=DRAIN_S))
    _start_retention(installation, core)
    await orchestrator.start()
    installation.on_stop(orchestrator.stop)
    hub = Hub(core.bus, core.clock, resume_window_ms=settings.resume_window_ms)
    metrics = Metrics(
        {
            "connections": Reading("Clients connected now.", lambda: len(ingress.connections)),
            "deliveries": Reading("Events given to clients.", lambda: hub.delivered, grows=True),
        }
    )
    ingress = _ingress(settings, core, hub, orchestrator, metrics)
    await _serve(installation, metrics, ingress.internal_app(), sockets["internal"])
    await ingress.start(sockets["clients"])
    installation.on_stop(ingress.stop)
    at = {name: _address(bound.getsockname()) for name, bound in sockets.items()}
    installation.urls = {
        "ingress_ws": f"ws://{at['clients']}/ws",
        "ingress_internal": f"http://{at['internal']}",
    }


async def _start_orchestrator_alone(
    settings: Settings, installation: Installation, patterns: SecretPatterns, redactor: Redactor
) -> None:
    sockets = _bind(settings.host, orchestrator=(settings.orchestrator_port, "ORCHESTRATOR_PORT"))
    core = await _open_core(settings, installation, patterns, redactor)
    execution = await _open_execution(settings, installation, core)
    dispatcher = LocalDispatcher(core.journal, core.clock)
    runs = await _start_runs(settings, installation, core, execution, dispatcher)
    metrics = Metrics(
        {"runs_working": Reading("Runs at work now.", lambda: len(dispatcher.working_on))}
    )
    api = OrchestratorApi(runs, core.bus, core.clock, settings.internal_token.reveal())
    if settings.ingress_url:
        push = IngressPush(
            settings.ingress_url,
            core.journal,
            core.bus,
            core.clock,
            runs.client_offline,
            settings.resume_window_ms,
            settings.internal_token.reveal(),
        )
        await push.start()
        installation.on_stop(push.stop)
        api.push = push
    await _serve(installation, metrics, api.app(), sockets["orchestrator"])
    for run_id, _ in await runs.open_runs():
        dispatcher.dispatch(run_id)
    address = _address(sockets["orchestrator"].getsockname())
    installation.urls = {"orchestrator": f"http://{address}"}


async def _open_core(
    settings: Settings, installation: Installation, patterns: SecretPatterns, redactor: Redactor
) -> Core:
    clock, bus = SystemClock(), LocalBus()
    journal = await SqliteJournal.open(settings.home / "journal.db", clock=clock, bus=bus)
    installation.on_stop(journal.close)
    return Core(clock, RandomIds(clock), bus, journal, patterns, redactor)


async def _open_execution(settings: Settings, installation: Installation, core: Core) -> Execution:
    home, journal, clock, redactor = settings.home, core.journal, core.clock, core.redactor
    evidence = await EvidenceLog.open(
        TileFiles(home / "evidence"),
        journal=journal,
        blobs=DiskBlobs(home / "blobs"),
        bus=core.bus,
        clock=clock,
        signer=Ed25519Signer.in_home(home),
        redactor=redactor,
        commit=Commitments.in_home(home),
    )
    installation.on_stop(evidence.close)
    parse_shell = TreeSitterShellParser()
    path = Path(settings.policy_file) if settings.policy_file else None
    policy = PolicyFile(path, parse_shell=parse_shell)
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
    )
    on_targets = TargetEngine(targets, local=SandboxEngine(sandboxes), remote=runners.engine)
    routing = Routing([on_target(lambda _: on_targets), named_tools(built_in, built_in.tools)])
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
    return Execution(pipeline, policy, approvals, audit, evidence, targets, executor)


async def _start_runs(
    settings: Settings,
    installation: Installation,
    core: Core,
    execution: Execution,
    dispatcher: LocalDispatcher,
) -> Runs:
    agents = await _agents(settings, installation, core)
    session_tools = SessionTools(core.journal)
    runs = Runs(
        journal=core.journal,
        dispatcher=dispatcher,
        pipeline=execution.pipeline,
        clock=core.clock,
        new_id=core.new_id,
        agents=agents,
        session_tools=session_tools,
        limits=Limits(
            tool_ms=settings.tool_timeout_ms,
            approval_ms=settings.approval_timeout_ms,
            agent_ms=settings.agent_timeout_ms,
        ),
    )

    async def approval_expired(row: Row) -> None:
        await execution.approvals.on_due(row)

    on_due: dict[str, OnDue] = {
        records.OPEN_RUNS: runs.on_agent_deadline,
        records.CALLS: runs.on_call_deadline,
        records.REQUESTS: runs.on_request_expired,
        APPROVALS: approval_expired,
    }
    runs.watch_approvals(core.bus)
    dispatcher.start(Advance(runs, session_tools, Conversations(core.journal)), on_due)
    installation.on_stop(lambda: dispatcher.drain(seconds=DRAIN_S))
    _start_retention(installation, core)
    return runs


async def _agents(settings: Settings, installation: Installation, core: Core) -> Agents:
    """The built-in agents, and those registered by their URL."""
    reach = HttpAgents()
    installation.on_stop(reach.close)
    assistant = LlmAgent(settings.model)
    installation.on_stop(assistant.close)
    builtin: dict[str, Agent] = {
        "echo": EchoAgent(),
        "script": ScriptAgent(),
        "assistant": assistant,
    }
    agents = Agents(core.journal, builtin, reach.agent)
    await agents.load()
    return agents


def _start_retention(installation: Installation, core: Core) -> None:
    retention = Retention(core.journal, core.clock)
    retention.start()
    installation.on_stop(retention.stop)


def _ingress(
    settings: Settings, core: Core, hub: Hub, orchestrator: Orchestrator, metrics: Metrics
) -> Ingress:
    return Ingress(
        options=Options(
            api_key=settings.api_key.reveal(),
            max_message_bytes=settings.ws_max_message_bytes,
            write_wait_ms=settings.ws_write_wait_ms,
        ),
        hub=hub,
        sessions=Sessions(core.journal, core.clock, core.new_id),
        journal=core.journal,
        orchestrator=orchestrator,
        clock=core.clock,
        ping_interval_ms=settings.ws_ping_interval_ms,
        pong_wait_ms=settings.ws_pong_wait_ms,
        cancel_when_gone=settings.on_disconnect == "cancel",
        metrics=metrics.text,
        internal_token=settings.internal_token.reveal(),
    )


async def _serve(
    installation: Installation, metrics: Metrics, app: Starlette, bound: socket.socket
) -> None:
    async def answer(_: Request) -> Response:
        return Response(metrics.text(), media_type="text/plain; version=0.0.4")

    app.router.routes.append(HttpRoute("/metrics", answer, methods=["GET"]))
    listener = asgi.Listener(app, bound)
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
