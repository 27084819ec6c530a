"""How the execution targets do, for `/status`: asked in the background, told at once.

Only the first to ask waits for what the targets say, and no longer than one of them may take.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from msgspec import UNSET

from toolgate.contracts import gateway_v1 as wire
from toolgate.domain.targets import Kind, Target
from toolgate.domain.tools import JsonValue
from toolgate.ports.clock import Clock

FRESH_MS: Final = 5_000

ListTargets = Callable[[], Awaitable[Sequence[Target]]]
Probe = Callable[[Target], Awaitable[Mapping[str, JsonValue]]]  # ok, circuitOpen, reason; no raise


async def no_targets() -> Sequence[Target]:
    return ()


async def no_probe(_: Target) -> Mapping[str, JsonValue]:  # pragma: no cover - there is no target
    return {}


@dataclass(slots=True)
class TargetHealths:
    clock: Clock
    targets: ListTargets = no_targets
    probe: Probe = no_probe
    _seen: Sequence[wire.TargetHealth] = ()
    _seen_at: int = 0
    _looking: asyncio.Task[None] | None = field(default=None)

    async def now(self) -> Sequence[wire.TargetHealth]:
        if self.clock.now_ms() - self._seen_at >= FRESH_MS and self._looking is None:
            self._looking = asyncio.create_task(self._look())
        if not self._seen_at and self._looking is not None:
            await asyncio.shield(self._looking)
        return self._seen

    async def stop(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)

    async def _look(self) -> None:
        try:
            enabled = [target for target in await self.targets() if target.enabled]
            self._seen = await asyncio.gather(*map(self._health, enabled))
            self._seen_at = self.clock.now_ms()
        finally:
            self._looking = None

    async def _health(self, target: Target) -> wire.TargetHealth:
        if target.kind is Kind.LOCAL_HOST:  # this machine: it is asked by whoever asks us
            told: Mapping[str, JsonValue] = {"ok": True}
        else:
            told = await self.probe(target)
        circuit_open = told.get("circuitOpen") is True
        reason = told.get("reason")
        return wire.TargetHealth(
            target_id=target.id,
            status=_status(told, circuit_open=circuit_open),
            checked_at=self.clock.now_ms(),
            circuit_open=circuit_open,
            error=str(reason) if reason else UNSET,
        )


def _status(told: Mapping[str, JsonValue], *, circuit_open: bool) -> wire.CapabilityStatus:
    """Offline is what gives no answer; what answers, but not well, is degraded."""
    if told.get("ok") is True:
        degraded = circuit_open
    elif "reason" in told:
        return wire.CapabilityStatus.OFFLINE
    else:
        degraded = True
    return wire.CapabilityStatus.DEGRADED if degraded else wire.CapabilityStatus.HEALTHY
