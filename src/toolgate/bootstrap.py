"""The only module that names concrete classes: it builds an installation and starts its doors."""

import logging
import resource
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Final

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from toolgate import asgi
from toolgate.adapters import logs
from toolgate.adapters.bus_local import LocalBus
from toolgate.adapters.clock import SystemClock
from toolgate.adapters.dispatcher_local import LocalDispatcher
from toolgate.adapters.echo_agent import EchoAgent
from toolgate.adapters.ids import RandomIds
from toolgate.adapters.journal_sqlite import SqliteJournal
from toolgate.adapters.metrics import Metrics, Reading
from toolgate.adapters.script_agent import ScriptAgent
from toolgate.domain.errors import Misconfigured, NotFound
from toolgate.domain.tools import Caller, Tool, ToolRequest
from toolgate.orchestration import records
from toolgate.orchestration.advance import Advance
from toolgate.orchestration.agents import Agents, External
from toolgate.orchestration.conversations import Conversations
from toolgate.orchestration.runs import Limits, Runs
from toolgate.orchestration.session_tools import SessionTools
from toolgate.ports.agents import Agent
from toolgate.ports.engine import Update, no_update
from toolgate.ports.pipeline import Answer, Denied, Started, not_told
from toolgate.settings import Settings
from toolgate.surfaces.gateway.server import Gateway
from toolgate.surfaces.ingress.connection import Options
from toolgate.surfaces.ingress.hub import Hub
from toolgate.surfaces.ingress.server import Ingress
from toolgate.surfaces.ingress.sessions import Sessions
from toolgate.surfaces.orchestrator.server import OrchestratorApi

log = logging.getLogger(__name__)

DRAIN_S: Final = 5.0  # how long runs may go on after SIGTERM
OPEN_FILES: Final = 65_536  # a socket each for thousands of clients


class NoTools:
    async def run(
        self, request: ToolRequest, *, update: Update = no_update, started: Started = not_told
    ) -> Answer:
        return Denied("blocked", "default_deny", f"Tool {request.tool} not in allowlist")

    async def check(self, request: ToolRequest) -> Answer:
        return await self.run(request)

    async def decide_approval(
        self, approval_id: str, *, approve: bool, decided_by: str, reason: str
    ) -> str:
        raise NotFound("approval", approval_id)

    def visible_tools(self, caller: Caller) -> Sequence[Tool]:
        return ()


def _no_external(agent: External) -> Agent:
    raise NotFound("agent", agent.agent_id)


@dataclass(slots=True)
class Installation:
    """What is running, where it listens, and how it is stopped."""

    urls: dict[str, str] = field(default_factory=dict)
    _stops: list[Callable[[], Awaitable[None]]] = field(default_factory=list)

    def on_stop(self, stop: Callable[[], Awaitable[None]]) -> None:
        self._stops.append(stop)

    async def stop(self) -> None:
        """In the reverse of the order of starting; each part gets its chance."""
        for stop in reversed(self._stops):
            try:
                await stop()
            except Exception:
                log.exception("stop_failed")
        self._stops.clear()


async def start_everything(settings: Settings) -> Installation:
    """`toolgate up`: all roles in this process, on SQLite. Raises ToolgateError."""
    logs.configure(
        level=settings.log_level, as_json=settings.log_format == "json", redact=lambda text: text
    )
    _check_exposure(settings)
    _raise_file_limit()
    _make_home(settings)
    installation = Installation()
    try:
        await _start(settings, installation)
    except BaseException:
        await installation.stop()
        raise
    return installation


async def _start(settings: Settings, installation: Installation) -> None:
    host = settings.host
    sockets = {
        name: asgi.bind(host, port, setting=setting)
        for name, port, setting in (
            ("internal", settings.http_port, "HTTP_PORT"),
            ("orchestrator", settings.orchestrator_port, "ORCHESTRATOR_PORT"),
            ("gateway", settings.gateway_port, "GATEWAY_PORT"),
        )
    }
    clients = asgi.bind(host, settings.ws_port, setting="WS_PORT")
    clock, bus, new_id = SystemClock(), LocalBus(), RandomIds(SystemClock())
    journal = await SqliteJournal.open(settings.home / "journal.db", clock=clock, bus=bus)
    installation.on_stop(journal.close)
    agents = Agents(journal, {"echo": EchoAgent(), "script": ScriptAgent()}, _no_external)
    await agents.load()
    dispatcher = LocalDispatcher(journal, clock)
    session_tools = SessionTools(journal)
    runs = Runs(
        journal=journal,
        dispatcher=dispatcher,
        pipeline=NoTools(),
        clock=clock,
        new_id=new_id,
        agents=agents,
        session_tools=session_tools,
        limits=Limits(
            tool_ms=settings.tool_timeout_ms,
            approval_ms=settings.approval_timeout_ms,
            agent_ms=settings.agent_timeout_ms,
        ),
    )
    dispatcher.start(
        Advance(runs, session_tools, Conversations(journal)),
        {
            records.OPEN_RUNS: runs.on_agent_deadline,
            records.CALLS: runs.on_call_deadline,
            records.REQUESTS: runs.on_request_expired,
        },
    )

    async def drain() -> None:
        await dispatcher.drain(seconds=DRAIN_S)

    installation.on_stop(drain)
    hub = Hub(bus, clock, resume_window_ms=settings.resume_window_ms)
    metrics = Metrics(
        {
            "connections": Reading("Clients connected now.", lambda: len(ingress.connections)),
            "deliveries": Reading("Events given to clients.", lambda: hub.delivered, grows=True),
            "runs_working": Reading("Runs at work now.", lambda: len(dispatcher.working_on)),
        }
    )
    ingress = Ingress(
        options=Options(
            api_key=settings.api_key.reveal(),
            max_message_bytes=settings.ws_max_message_bytes,
            write_wait_ms=settings.ws_write_wait_ms,
        ),
        hub=hub,
        sessions=Sessions(journal, clock, new_id),
        journal=journal,
        orchestrator=runs,
        clock=clock,
        ping_interval_ms=settings.ws_ping_interval_ms,
        pong_wait_ms=settings.ws_pong_wait_ms,
        cancel_when_gone=settings.on_disconnect == "cancel",
        metrics=metrics.text,
        internal_token=settings.internal_token.reveal(),
    )
    orchestrator = OrchestratorApi(runs, bus, clock, settings.internal_token.reveal())
    gateway = Gateway(clock, version("toolgate"), metrics.text)
    apps = {
        "internal": ingress.internal_app(),
        "orchestrator": orchestrator.app(),
        "gateway": gateway.app(),
    }
    for name, app in apps.items():
        _add_metrics(app, metrics)
        listener = asgi.Listener(app, sockets[name])
        await listener.start()
        installation.on_stop(listener.stop)
    ws_port = await ingress.start(clients)
    installation.on_stop(ingress.stop)
    for run_id, _ in await runs.open_runs():
        dispatcher.dispatch(run_id)
    http = {name: f"http://{_address(bound.getsockname())}" for name, bound in sockets.items()}
    installation.urls = {
        "ingress_ws": f"ws://{_address((host, ws_port))}/ws",
        "ingress_internal": http["internal"],
        "orchestrator": http["orchestrator"],
        "gateway": http["gateway"],
        "console": f"{http['gateway']}/console",
    }


def _address(name: Sequence[object]) -> str:
    host, port = str(name[0]), name[1]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _add_metrics(app: Starlette, metrics: Metrics) -> None:
    async def answer(_: Request) -> Response:
        return Response(metrics.text(), media_type="text/plain; version=0.0.4")

    app.router.routes.append(Route("/metrics", answer, methods=["GET"]))


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
