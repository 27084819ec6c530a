"""The parts that every role has: logs, home, journal, listeners, tokens, and the order of stopping."""

import asyncio
import contextlib
import json
import logging
import resource
import socket
import sys
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Final, TypeVar

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route as HttpRoute

from toolgate.access.refusal_counts import RefusalCounts
from toolgate.bootstrap import logs
from toolgate.bootstrap.metrics import Metrics
from toolgate.bootstrap.sealing import open_seal
from toolgate.bootstrap.upgrading import upgrade_of
from toolgate.core.clock import Clock
from toolgate.core.errors import Misconfigured
from toolgate.core.ids import Owner
from toolgate.core.random_ids import RandomIds
from toolgate.core.system_clock import SystemClock
from toolgate.evidence.audit import LEAVES, AuditLog
from toolgate.evidence.marks import HighWater
from toolgate.http import asgi
from toolgate.journal.bus import Bus
from toolgate.journal.journal import Journal
from toolgate.journal.local_bus import LocalBus
from toolgate.journal.sqlite.journal import SqliteJournal
from toolgate.journal.sqlite.read_only import JOURNAL_FILE
from toolgate.secrets.aesgcm_seal import AesGcmSeal, write_private
from toolgate.secrets.own_tokens import FILES, TokenKind, kept_token, new_token
from toolgate.secrets.patterns import SecretPatterns
from toolgate.secrets.redaction import Redactor
from toolgate.secrets.writings import SHORTEST
from toolgate.settings import ANY_KEY, Settings

log = logging.getLogger(__name__)

T = TypeVar("T")

VERSION: Final = version("toolgate")
OPEN_FILES: Final = 65_536  # a socket each for thousands of clients


@dataclass(slots=True)
class Installation:
    """A running Toolgate: its URLs, and the functions that stop it."""

    urls: dict[str, str] = field(default_factory=dict)
    not_started: list[str] = field(default_factory=list)  # those of `urls` that others serve
    console_link: str = field(default="", repr=False)  # signs the operator in, once
    journal: Journal | None = None
    refused: asgi.Refused = field(default=asgi.uncounted)
    _stops: list[Callable[[], Awaitable[object]]] = field(default_factory=list)
    _listeners: list[asgi.Listener] = field(default_factory=list)

    def on_stop(self, stop: Callable[[], Awaitable[object]]) -> None:
        self._stops.append(stop)

    async def enter(self, context: AbstractAsyncContextManager[T]) -> T:
        """Enter now, and leave when the installation stops."""
        entered = await context.__aenter__()
        self.on_stop(lambda: context.__aexit__(None, None, None))
        return entered

    def on_stop_soon(self, stop: Callable[[], None]) -> None:
        async def stopped() -> None:
            stop()

        self.on_stop(stopped)

    def close_at_the_end(self, sockets: Iterable[socket.socket]) -> None:
        """Close the sockets that no listener closes, because the start failed before."""
        for bound in sockets:
            self.on_stop_soon(bound.close)

    def listens(self, listener: asgi.Listener) -> None:
        """Stop this listener together with the others, so that their time-outs do not add up."""
        if not self._listeners:
            self.on_stop(self._stop_listeners)
        self._listeners.append(listener)

    async def _stop_listeners(self) -> None:
        stops = (listener.stop() for listener in self._listeners)
        for failed in await asyncio.gather(*stops, return_exceptions=True):
            if isinstance(failed, BaseException):
                log.error("stop_failed", exc_info=failed)

    def keep_running(self, work: Awaitable[None]) -> None:
        """Run a task until the installation stops."""
        task = asyncio.ensure_future(work)
        task.add_done_callback(_say_why_it_ended)

        async def end() -> None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

        self.on_stop(end)

    async def stop(self) -> None:
        """Stop all parts in the reverse order of their start, also after one fails."""
        for stop in reversed(self._stops):
            try:
                await stop()
            except Exception:
                log.exception("stop_failed")
        self._stops.clear()


def _say_why_it_ended(task: asyncio.Future[None]) -> None:
    if not task.cancelled() and (failed := task.exception()) is not None:
        log.error("background_work_ended", exc_info=failed)


NODE: Final = "local"  # the one node; the same after a restart


@dataclass(frozen=True, slots=True)
class Core:
    """The objects that every role has."""

    clock: SystemClock
    new_id: RandomIds
    bus: LocalBus
    journal: SqliteJournal
    mark: HighWater
    patterns: SecretPatterns
    redactor: Redactor
    seal: AesGcmSeal
    owner: Owner

    def learn(self, secret: str, name: str = "") -> None:
        """Redact this secret from now on; one that is too short cannot be told from text."""
        if len(secret) >= SHORTEST:
            self.patterns.learn(secret, name)


def configure_logs(settings: Settings) -> SecretPatterns:
    """Start the log on stderr, without known secrets; return the patterns, for more of them."""
    known = settings.secrets().items()
    patterns = SecretPatterns({one: name for one, name in known if len(one) >= SHORTEST})
    logs.configure(
        level=settings.log_level,
        as_json=settings.log_format == "json",
        redactor=patterns.redactor(),
    )
    return patterns


def tell(settings: Settings, text: str) -> None:
    """Print a token or a link at the terminal; it must not be in a log."""
    as_json = settings.log_format == "json"
    sys.stderr.write((json.dumps({"notice": text}) if as_json else text) + "\n")
    sys.stderr.flush()


async def open_core(
    settings: Settings, installation: Installation, patterns: SecretPatterns
) -> Core:
    clock, bus = SystemClock(), LocalBus()
    redactor = patterns.redactor()
    journal = await open_journal(settings, clock, bus, redactor)
    installation.on_stop(journal.close)
    installation.journal = journal
    audit = AuditLog(journal, redactor=redactor)
    mark = await HighWater.open(settings.state_dir, settings.home, journal, audit)
    installation.on_stop(mark.close)
    installation.keep_running(mark.keep())
    refusals = RefusalCounts(journal, audit, clock)
    installation.on_stop(refusals.close)
    installation.keep_running(refusals.keep())
    installation.refused = refusals.count
    seal = await open_seal(settings.home, journal)
    new_id = RandomIds(clock)
    owner = Owner(NODE, new_id("inc"))
    return Core(clock, new_id, bus, journal, mark, patterns, redactor, seal, owner)


async def open_journal(
    settings: Settings, clock: Clock, bus: Bus, redactor: Redactor
) -> SqliteJournal:
    return await SqliteJournal.open(
        settings.home / JOURNAL_FILE,
        clock=clock,
        bus=bus,
        upgrade=upgrade_of(settings, now=clock.now_ms(), redact=redactor.text),
        summary=LEAVES,
    )


async def serve(
    installation: Installation,
    metrics: Metrics,
    app: Starlette,
    bound: socket.socket,
    *,
    websockets: bool = False,
) -> None:
    async def answer(_: Request) -> Response:
        return Response(metrics.text(), media_type="text/plain; version=0.0.4")

    async def ready(_: Request) -> Response:
        problem = "" if installation.journal is None else installation.journal.fault
        said = {"ready": False, "problem": problem} if problem else {"ready": True}
        return asgi.Json(said, status_code=503 if problem else 200)

    app.router.routes.append(HttpRoute("/metrics", answer, methods=["GET"]))
    app.router.routes.append(HttpRoute("/ready", ready, methods=["GET"]))
    listener = asgi.Listener(app, bound, websockets=websockets, refused=installation.refused)
    await listener.start()
    installation.listens(listener)


def bind(host: str, **listeners: tuple[int, str]) -> dict[str, socket.socket]:
    """Bind all ports or none, before anything is opened."""
    bound: dict[str, socket.socket] = {}
    try:
        for name, (port, setting) in listeners.items():
            bound[name] = asgi.bind(host, port, setting=setting, listen=True)
    except Misconfigured:
        for one in bound.values():
            one.close()
        raise
    return bound


def token(settings: Settings, kind: TokenKind, patterns: SecretPatterns) -> str:
    """A token that was set, or one that is made once and kept in home, for its owner alone."""
    if given := settings.token(kind):
        return given
    path = settings.home / FILES[kind]
    kept = kept_token(path)
    if not kept:  # an empty one would let anyone in
        kept = new_token(kind)
        write_private(path, kept.encode())
    patterns.learn(kept, path.name)
    return kept


def address(name: Sequence[object]) -> str:
    host, port = str(name[0]), name[1]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def allowed_hosts(settings: Settings) -> frozenset[str]:
    names = (name.strip().lower() for name in settings.allowed_hosts.split(","))
    return frozenset(name for name in names if name)


def check_exposure(settings: Settings) -> None:
    """Refuse `API_KEY=none` beyond loopback; warn on loopback."""
    if not settings.any_key:
        return
    if not settings.on_loopback:
        raise Misconfigured(
            f"API_KEY is {ANY_KEY} and HOST is {settings.host}; unset API_KEY, and one is made and"
            " kept in TOOLGATE_HOME, or set HOST to 127.0.0.1"
        )
    log.warning("api_key_none any client on this machine may connect; it decides no approval")


def api_key(settings: Settings, patterns: SecretPatterns) -> str:
    """The key that clients say in hello; empty if any key is accepted."""
    if settings.any_key:
        return ""
    return token(settings, TokenKind.API_KEY, patterns)


def ingress_token(settings: Settings, patterns: SecretPatterns) -> str:
    """The internal token of an ingress beside its orchestrator; empty if there is none.

    None is made: a foreign orchestrator, such as that of the seed's compose file, would not know it.
    """
    if not settings.internal_token and not kept_token(settings.home / FILES[TokenKind.INTERNAL]):
        log.warning(
            "internal_token_unset events are taken from any process that reaches HTTP_PORT; set"
            " INTERNAL_TOKEN to the same value for ingress and orchestrator"
        )
        return ""
    return token(settings, TokenKind.INTERNAL, patterns)


def check_stores(settings: Settings) -> None:
    """Refuse settings that name a store that this version does not use."""
    if settings.database_url:
        raise Misconfigured(
            "DATABASE_URL is set, but this version keeps everything in TOOLGATE_HOME, in SQLite;"
            " unset it"
        )
    if settings.nats_url:
        raise Misconfigured(
            "NATS_URL is set, but the roles of this version talk HTTP (ORCHESTRATOR_URL,"
            " INGRESS_URL); unset it"
        )


def make_home(settings: Settings) -> None:
    try:
        settings.home.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as refused:
        raise Misconfigured(
            f"TOOLGATE_HOME {settings.home} cannot be made: {refused.strerror}; "
            "choose a directory that this user may write"
        ) from refused


def raise_file_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
