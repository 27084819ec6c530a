"""`/health` and `/status`: that it lives, and what it is doing."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import msgspec

from toolgate.access.registry import Registry
from toolgate.commands.answers import Extra, Result
from toolgate.commands.states import States
from toolgate.contracts import gateway_v1 as wire
from toolgate.core.clock import Clock
from toolgate.core.enums import CommandKind, HealthStatus
from toolgate.journal.journal import Journal
from toolgate.surfaces.gateway.events import Events
from toolgate.surfaces.gateway.routes import Access, Call, Route
from toolgate.surfaces.gateway.translate import device_out
from toolgate.tools.targets.health import TargetHealth

OpenRuns = Callable[[], Awaitable[Sequence[wire.InFlight]]]
LastAt = Callable[[str], int | None]  # of `heartbeat` or `cron`
HealthOfTargets = Callable[[], Awaitable[Sequence[TargetHealth]]]


@dataclass(slots=True)
class StatusRoutes:
    clock: Clock
    version: str
    registry: Registry
    states: States
    events: Events
    open_runs: OpenRuns
    last_at: LastAt
    targets: HealthOfTargets
    journal: Journal
    _started: float = 0.0

    def __post_init__(self) -> None:
        self._started = self.clock.monotonic()

    def routes(self) -> Sequence[Route]:
        return (
            Route(
                "GET",
                "/health",
                Access.ANYONE,
                "That the gateway is up.",
                self._health,
                wire.Health,
                v2="health",
                bare=True,
            ),
            Route(
                "GET",
                "/status",
                Access.READER,
                "What the gateway is doing now.",
                self._status,
                wire.Status,
                v2="status",
                bare=True,
            ),
        )

    async def _health(self, _: Call) -> Result:
        uptime = int(self.clock.monotonic() - self._started)
        problem = self.journal.fault
        health = wire.Health(ok=not problem, version=self.version, uptime=uptime, problem=problem)
        return Result(health, Extra(bare=True))

    async def _status(self, _: Call) -> Result:
        targets = [_target_out(each) for each in await self.targets()]
        sound = all(one.status is HealthStatus.HEALTHY for one in targets)
        status = wire.Status(
            version=self.version,
            health="ok" if sound else "degraded",
            devices=[
                device_out(device, last_seen=self.registry.last_seen(device.device_id))
                for device in self.registry.devices
            ],
            running=await self._running(),
            heartbeat=wire.LastAt(last_at=self.last_at("heartbeat")),
            cron=wire.LastAt(last_at=self.last_at("cron")),
            cursor=self.events.cursor,
            oldest_cursor=self.events.oldest_cursor,
            targets=targets or msgspec.UNSET,
        )
        return Result(status, Extra(bare=True))

    async def _running(self) -> wire.Running:
        of_kind: dict[CommandKind, list[wire.InFlight]] = {kind: [] for kind in CommandKind}
        for kind, flight in list(self.states.in_flight.values()):
            of_kind[kind].append(flight)
        return wire.Running(
            agent=list(await self.open_runs()),  # whichever door they came in by
            tool=[*of_kind[CommandKind.TOOL], *of_kind[CommandKind.SYSTEM]],
            mcp=of_kind[CommandKind.MCP],
        )


def _target_out(health: TargetHealth) -> wire.TargetHealth:
    reason = health.detail.get("reason")
    return wire.TargetHealth(
        target_id=health.target_id,
        status=health.condition,
        checked_at=health.checked_at,
        circuit_open=health.circuit_open,
        error=str(reason) if reason else msgspec.UNSET,
    )
