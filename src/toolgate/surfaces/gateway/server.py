"""The gateway: the HTTP control plane."""

from collections.abc import Callable
from dataclasses import dataclass

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from toolgate import asgi
from toolgate.ports.clock import Clock


@dataclass(slots=True)
class Gateway:
    clock: Clock
    version: str
    metrics: Callable[[], bytes]
    _started: float = 0.0

    def app(self) -> Starlette:
        self._started = self.clock.monotonic()
        return Starlette(routes=[Route("/health", self._health, methods=["GET"])])

    async def _health(self, _: Request) -> Response:
        uptime = int(self.clock.monotonic() - self._started)
        return asgi.Json({"ok": True, "version": self.version, "uptime": uptime})
