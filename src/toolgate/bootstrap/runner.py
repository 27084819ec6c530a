"""The runner: sandboxes of this machine behind the docker-runner protocol."""

import contextlib
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from toolgate import settings as table
from toolgate.bootstrap.installation import address
from toolgate.contracts.wire import to_iso_ms
from toolgate.core.errors import Misconfigured
from toolgate.core.system_clock import SystemClock
from toolgate.http import asgi
from toolgate.sandbox.choice import make_sandbox
from toolgate.sandbox.egress import SandboxEgress, same_for_all
from toolgate.sandbox.sessions import Sessions
from toolgate.surfaces.runner.app import Options, RunnerApp, usage_of
from toolgate.surfaces.runner.host_usage import machine_usage
from toolgate.tools.engine import Engine
from toolgate.tools.engines.sandbox import SandboxEngine, guarded_http
from toolgate.web.guard import Guard, GuardedWeb

MOCK = "mock"

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Backend:
    name: str
    unsafe: bool
    docker_url: str
    image: str
    runtime: str
    egress: tuple[str, ...] = ()


@contextlib.asynccontextmanager
async def serving(settings: table.Settings, backend: Backend) -> AsyncIterator[dict[str, object]]:
    """The runner, from its self-test to its last sandbox; yields what is said when it is ready."""
    if not settings.on_loopback and not settings.runner_auth_token:
        raise Misconfigured(
            f"HOST is {settings.host} and RUNNER_AUTH_TOKEN is not set; anyone could run commands "
            "here. Set a token, or bind 127.0.0.1"
        )
    if not settings.runner_auth_token:
        log.warning("runner_auth_token_unset any program on this machine may run tools here")
    async with contextlib.AsyncExitStack() as stack:
        clock = SystemClock()
        engine: Engine | None = None
        isolation, can_be_clean = MOCK, False
        if backend.name != MOCK:
            guard = Guard()
            web = await stack.enter_async_context(GuardedWeb(guard))
            sessions = Sessions(
                make_sandbox(
                    backend.name,
                    unsafe=backend.unsafe,
                    docker_url=backend.docker_url,
                    image=backend.image,
                    runtime=backend.runtime,
                ),
                clock=clock,
                egress=SandboxEgress(guard, grants=same_for_all(backend.egress)),
            )
            stack.push_async_callback(sessions.close)
            await sessions.start()
            engine = SandboxEngine(sessions, http=guarded_http(web))
            isolation, can_be_clean = sessions.isolation, sessions.can_be_clean
        app = RunnerApp(
            engine,
            options=Options(
                backend.name,
                isolation,
                can_be_clean=can_be_clean,
                token=settings.runner_auth_token.reveal(),
            ),
            clock=clock,
            usage=lambda: usage_of(*machine_usage(Path("/"))),
        )
        bound = asgi.bind(settings.host, settings.runner_port, setting="RUNNER_PORT", listen=True)
        listener = asgi.Listener(app, bound)
        await listener.start()
        stack.push_async_callback(listener.stop)
        yield {
            "ready": True,
            "urls": {"runner": f"http://{address(bound.getsockname())}/execute"},
            "backend": backend.name,
            "isolation": isolation,
            "time": to_iso_ms(clock.now_ms()),
        }
