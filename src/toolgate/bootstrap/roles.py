"""The roles: all of them in one process, or each alone."""

from collections.abc import Awaitable, Callable
from typing import Final

from starlette.routing import Route as HttpRoute

from toolgate.access.authentication import Authenticator
from toolgate.access.registry import Registry
from toolgate.bootstrap.admission import open_admission
from toolgate.bootstrap.console import make_console
from toolgate.bootstrap.gateway import open_gateway
from toolgate.bootstrap.installation import (
    Core,
    Installation,
    address,
    allowed_hosts,
    api_key,
    bind,
    check_exposure,
    check_stores,
    configure_logs,
    ingress_token,
    make_home,
    open_core,
    raise_file_limit,
    serve,
    tell,
    token,
)
from toolgate.bootstrap.metrics import Metrics, Reading
from toolgate.bootstrap.runs import DRAIN_S, open_runs, start_retention
from toolgate.bootstrap.tools import open_execution
from toolgate.core.errors import Misconfigured, Unavailable
from toolgate.http.asgi import Refused
from toolgate.journal.dispatcher import Dispatcher
from toolgate.journal.journal import Delete, Row
from toolgate.runs import records
from toolgate.runs.orchestrator import Orchestrator
from toolgate.runs.originals import Originals
from toolgate.runs.remote.events import skipped
from toolgate.runs.remote.orchestrator import HttpOrchestrator
from toolgate.runs.remote.records import CALLS as REMOTE_CALLS
from toolgate.runs.remote.records import RemoteRuns
from toolgate.runs.retention import Forget
from toolgate.secrets.own_tokens import FILES, TokenKind
from toolgate.secrets.patterns import SecretPatterns
from toolgate.settings import Settings
from toolgate.surfaces.console.context import ChatAddress
from toolgate.surfaces.executor.server import ExecutorApi
from toolgate.surfaces.gateway.mounted import Guarded
from toolgate.surfaces.ingress.connection import Options
from toolgate.surfaces.ingress.hub import Hub
from toolgate.surfaces.ingress.server import Ingress
from toolgate.surfaces.ingress.sessions import Sessions
from toolgate.surfaces.mcp.transports import HTTP_PATH, MESSAGE_PATH, SSE_PATH, McpDoors
from toolgate.surfaces.orchestrator.ingress_push import IngressPush
from toolgate.surfaces.orchestrator.server import OrchestratorApi

SKIPPED: Final = Reading(
    "Events of an orchestrator that could not be read.", lambda: skipped["events"], grows=True
)
Start = Callable[[Settings, Installation, SecretPatterns], Awaitable[None]]


async def start_everything(settings: Settings) -> Installation:
    """`toolgate up`: all roles in this process, on SQLite. Raises ToolgateError.

    With ORCHESTRATOR_URL the runs of clients are that orchestrator's, and none is started here; the
    agents of this installation answer at the gateway only.
    """
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
    patterns = configure_logs(settings)
    check_exposure(settings)
    check_stores(settings)
    raise_file_limit()
    make_home(settings)
    installation = Installation()
    try:
        await start(settings, installation, patterns)
    except BaseException as failed:
        await installation.stop()
        if isinstance(failed, OSError):  # a key or a token that cannot be read, or no room for one
            raise Unavailable(
                f"it cannot start: {failed}; check that file and its disk"
            ) from failed
        raise
    return installation


async def _start(settings: Settings, installation: Installation, patterns: SecretPatterns) -> None:
    sockets = bind(settings.host, **_listeners(settings))
    installation.close_at_the_end(sockets.values())
    core = await open_core(settings, installation, patterns)
    internal = _internal_token(settings, core.patterns)
    admission = await open_admission(settings, core, internal)
    execution = await open_execution(settings, installation, core, admission)
    dispatcher = Dispatcher(core.journal, core.clock)
    runs, start_runs = await open_runs(settings, installation, core, execution, dispatcher)
    hub = Hub(core.bus, core.clock, runs.originals, resume_window_ms=settings.resume_window_ms)
    metrics = Metrics(
        {
            "connections": Reading("Clients connected now.", lambda: len(ingress.connections)),
            "deliveries": Reading("Events given to clients.", lambda: hub.delivered, grows=True),
            "events_skipped": SKIPPED,
            "runs_working": Reading("Runs at work now.", lambda: len(dispatcher.working_on)),
        }
    )
    remote: HttpOrchestrator | None = None
    if settings.orchestrator_url:
        remote = _remote_orchestrator(settings, core, dispatcher, runs.originals, internal)
    ingress = _ingress(
        settings,
        core,
        admission.authenticator,
        hub,
        remote or runs,
        metrics,
        installation.refused,
    )
    executor = ExecutorApi(
        execution.executor, admission.authenticator.executor, execution.executor.keep
    )
    door, due = await open_gateway(
        settings, installation, core, admission, execution, runs, dispatcher
    )
    forgets: list[Forget] = [ingress.forget_sessions]
    if remote is not None:
        due = {**due, REMOTE_CALLS: remote.on_call_deadline}
        forgets.append(remote.runs.forget)
        await remote.start()
        installation.on_stop(remote.stop)
    start_runs(due, is_online=hub.is_online, forgets=forgets)
    gateway = door.gateway.app()
    gateway.router.routes.extend(route for route in executor.routes() if route.path != "/health")
    chat = ChatAddress(sockets["clients"].getsockname()[1], api_key(settings, core.patterns))
    console = make_console(core, admission, execution, runs, chat)
    gateway.router.routes.extend(console.routes())
    mcp = McpDoors(execution.tasks, hosts=None)  # the gateway knows which are its own
    installation.on_stop(mcp.close)
    gateway.router.routes.extend(
        HttpRoute(path, Guarded(mcp, door.gateway.doors))
        for path in (HTTP_PATH, SSE_PATH, MESSAGE_PATH)
    )
    await serve(installation, metrics, ingress.internal_app(), sockets["internal"])
    if remote is None:
        orchestrator = OrchestratorApi(
            runs,
            core.bus,
            core.clock,
            admission.authenticator.internal,
            is_at_work=dispatcher.is_working_on,
        )
        await serve(installation, metrics, orchestrator.app(), sockets["orchestrator"])
        installation.on_stop_soon(orchestrator.streams.end)
    await serve(installation, metrics, gateway, sockets["gateway"], websockets=True)
    installation.on_stop_soon(mcp.end_streams)
    await ingress.start(sockets["clients"])
    installation.on_stop(ingress.stop)
    # Before the listeners stop: they would wait for those who wait for events.
    installation.on_stop_soon(door.events.close)
    installation.on_stop_soon(console.close)
    for run_id, _ in await runs.open_runs():
        dispatcher.dispatch(run_id)
    at = {name: address(bound.getsockname()) for name, bound in sockets.items()}
    installation.urls = {
        "ingress_ws": f"ws://{at['clients']}/ws",
        "ingress_internal": f"http://{at['internal']}",
        "orchestrator": settings.orchestrator_url or f"http://{at.get('orchestrator')}",
        "gateway": f"http://{at['gateway']}",
        "mcp": f"http://{at['gateway']}{HTTP_PATH}",
        "console": f"http://{at['gateway']}/console",
    }
    installation.not_started = ["orchestrator"] if remote is not None else []
    installation.console_link = console.link(installation.urls["console"])


def _internal_token(settings: Settings, patterns: SecretPatterns) -> str:
    if settings.orchestrator_url:
        return ingress_token(settings, patterns)
    return token(settings, TokenKind.INTERNAL, patterns)


def _listeners(settings: Settings) -> dict[str, tuple[int, str]]:
    listeners = {
        "internal": (settings.http_port, "HTTP_PORT"),
        "gateway": (settings.gateway_port, "GATEWAY_PORT"),
        "clients": (settings.ws_port, "WS_PORT"),
    }
    if not settings.orchestrator_url:
        listeners["orchestrator"] = (settings.orchestrator_port, "ORCHESTRATOR_PORT")
    return listeners


async def _start_ingress_alone(
    settings: Settings, installation: Installation, patterns: SecretPatterns
) -> None:
    sockets = bind(
        settings.host,
        internal=(settings.http_port, "HTTP_PORT"),
        clients=(settings.ws_port, "WS_PORT"),
    )
    installation.close_at_the_end(sockets.values())
    core = await open_core(settings, installation, patterns)
    dispatcher = Dispatcher(core.journal, core.clock)
    internal = ingress_token(settings, core.patterns)
    registry = Registry(core.journal, core.clock)
    await registry.load()
    authenticator = Authenticator(
        registry, internal_token=internal, api_key=api_key(settings, core.patterns)
    )
    originals = Originals(core.journal, core.seal)
    await originals.load()
    orchestrator = _remote_orchestrator(settings, core, dispatcher, originals, internal)

    async def forget_request(row: Row) -> None:
        await core.journal.commit(Delete(row.collection, row.key))

    async def nothing_to_advance(_: str) -> None:
        """Runs are worked on elsewhere; only the deadlines are kept here."""

    dispatcher.start(
        nothing_to_advance,
        {REMOTE_CALLS: orchestrator.on_call_deadline, records.REQUESTS: forget_request},
    )
    installation.on_stop(lambda: dispatcher.drain(seconds=DRAIN_S))
    await orchestrator.start()
    installation.on_stop(orchestrator.stop)
    hub = Hub(core.bus, core.clock, originals, resume_window_ms=settings.resume_window_ms)
    metrics = Metrics(
        {
            "connections": Reading("Clients connected now.", lambda: len(ingress.connections)),
            "deliveries": Reading("Events given to clients.", lambda: hub.delivered, grows=True),
            "events_skipped": SKIPPED,
        }
    )
    ingress = _ingress(
        settings, core, authenticator, hub, orchestrator, metrics, installation.refused
    )
    start_retention(installation, core, orchestrator.runs.forget, ingress.forget_sessions)
    await serve(installation, metrics, ingress.internal_app(), sockets["internal"])
    await ingress.start(sockets["clients"])
    installation.on_stop(ingress.stop)
    at = {name: address(bound.getsockname()) for name, bound in sockets.items()}
    installation.urls = {
        "ingress_ws": f"ws://{at['clients']}/ws",
        "ingress_internal": f"http://{at['internal']}",
    }


async def _start_orchestrator_alone(
    settings: Settings, installation: Installation, patterns: SecretPatterns
) -> None:
    sockets = bind(settings.host, orchestrator=(settings.orchestrator_port, "ORCHESTRATOR_PORT"))
    installation.close_at_the_end(sockets.values())
    core = await open_core(settings, installation, patterns)
    execution = await open_execution(settings, installation, core)
    dispatcher = Dispatcher(core.journal, core.clock)
    runs, start_runs = await open_runs(settings, installation, core, execution, dispatcher)
    start_runs({})
    internal = token(settings, TokenKind.INTERNAL, core.patterns)
    metrics = Metrics(
        {"runs_working": Reading("Runs at work now.", lambda: len(dispatcher.working_on))}
    )
    api = OrchestratorApi(
        runs,
        core.bus,
        core.clock,
        Authenticator(Registry(core.journal, core.clock), internal_token=internal).internal,
        is_at_work=dispatcher.is_working_on,
    )
    if settings.ingress_url:
        push = IngressPush(
            settings.ingress_url,
            core.journal,
            core.bus,
            core.clock,
            runs.originals,
            runs.client_offline,
            settings.resume_window_ms,
            internal,
        )
        await push.start()
        installation.on_stop(push.stop)
        api.push = push
    await serve(installation, metrics, api.app(), sockets["orchestrator"])
    installation.on_stop_soon(api.streams.end)
    for run_id, _ in await runs.open_runs():
        dispatcher.dispatch(run_id)
    at = address(sockets["orchestrator"].getsockname())
    installation.urls = {"orchestrator": f"http://{at}"}


def _remote_orchestrator(
    settings: Settings, core: Core, dispatcher: Dispatcher, originals: Originals, token: str
) -> HttpOrchestrator:
    return HttpOrchestrator(
        settings.orchestrator_url,
        RemoteRuns(core.journal, core.clock, dispatcher, originals, core.redactor.fields),
        core.new_id,
        token,
        answer_s=settings.orchestrator_timeout_ms / 1000,
        agent_s=settings.agent_timeout_ms / 1000,
    )


def _ingress(
    settings: Settings,
    core: Core,
    authenticator: Authenticator,
    hub: Hub,
    orchestrator: Orchestrator,
    metrics: Metrics,
    refused: Refused,
) -> Ingress:
    if not settings.api_key:
        tell(settings, f"API key of clients: kept in {settings.home / FILES[TokenKind.API_KEY]}")
    return Ingress(
        options=Options(
            max_message_bytes=settings.ws_max_message_bytes,
            write_wait_ms=settings.ws_write_wait_ms,
            pages_of=allowed_hosts(settings),
        ),
        authenticator=authenticator,
        hub=hub,
        sessions=Sessions(core.journal, core.clock, core.new_id),
        journal=core.journal,
        orchestrator=orchestrator,
        clock=core.clock,
        ping_interval_ms=settings.ws_ping_interval_ms,
        pong_wait_ms=settings.ws_pong_wait_ms,
        cancel_when_gone=settings.on_disconnect == "cancel",
        metrics=metrics.text,
        refused=refused,
    )
