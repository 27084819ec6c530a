"""How each execution target does: asked when somebody wants to know, and told at once.

Only who asks about a target that nobody has asked about yet waits for its answer. Disabled targets
are not looked at: nobody is sent there.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from toolgate.core.clock import Clock
from toolgate.core.enums import HealthStatus, TargetKind
from toolgate.core.tools import JsonValue
from toolgate.tools.targets.targets import Target

FRESH_MS: Final = 5_000

Ask = Callable[[Target], Awaitable[Mapping[str, JsonValue]]]  # never raises; has `ok`


@dataclass(frozen=True, slots=True)
class TargetHealth:
    target_id: str
    tenant: str
    kind: TargetKind
    condition: HealthStatus
    circuit_open: bool  # calls are refused here, without asking it
    checked_at: int  # Unix ms
    detail: Mapping[str, JsonValue] = field(default_factory=dict)  # backend, usage, reason


class TargetHealths:
    """`local` and `remote` ask a target; `is_held_back` is the circuit breaker as it is now."""

    def __init__(
        self,
        targets: Callable[[], Awaitable[Sequence[Target]]],
        *,
        clock: Clock,
        local: Ask,
        remote: Ask,
        is_held_back: Callable[[Target], bool],
    ) -> None:
        self._targets = targets
        self._clock = clock
        self._local = local
        self._remote = remote
        self._is_held_back = is_held_back
        self._answers: dict[str, tuple[Mapping[str, JsonValue], int]] = {}  # and when
        self._looked_at = -math.inf  # by the clock that nobody sets
        self._looking: asyncio.Task[None] | None = None

    async def now(self) -> Sequence[TargetHealth]:
        """The enabled targets as they were at the last look; the circuit is as it is now."""
        enabled = [target for target in await self._targets() if target.enabled]
        is_old = (self._clock.monotonic() - self._looked_at) * 1000 >= FRESH_MS
        if self._looking is None and is_old:
            self._looking = asyncio.create_task(self._look(enabled))
        while any(target.id not in self._answers for target in enabled):
            if self._looking is None:  # or one is under way, maybe from before a target came
                self._looking = asyncio.create_task(self._look(enabled))
            await asyncio.shield(self._looking)
        return [self._health(target, *self._answers[target.id]) for target in enabled]

    async def stop(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)

    async def _look(self, targets: Sequence[Target]) -> None:
        """Ask every one of them, all at once."""
        try:
            answers = await asyncio.gather(*map(self._ask, targets))
            now, self._looked_at = self._clock.now_ms(), self._clock.monotonic()
            self._answers = {
                target.id: (answer, now) for target, answer in zip(targets, answers, strict=True)
            }
        finally:
            self._looking = None

    async def _ask(self, target: Target) -> Mapping[str, JsonValue]:
        return await (self._local if target.kind is TargetKind.LOCAL_HOST else self._remote)(target)

    def _health(
        self, target: Target, answer: Mapping[str, JsonValue], checked_at: int
    ) -> TargetHealth:
        held_back = target.kind is TargetKind.DOCKER_RUNNER and self._is_held_back(target)
        if answer.get("ok") is True:
            condition = HealthStatus.DEGRADED if held_back else HealthStatus.HEALTHY
        else:
            condition = HealthStatus.DEGRADED if "backend" in answer else HealthStatus.OFFLINE
        asked_at = answer.get("checkedAt")
        checked_at = asked_at if isinstance(asked_at, int) else checked_at
        detail = {name: answer[name] for name in ("backend", "usage", "reason") if name in answer}
        return TargetHealth(
            target.id, target.tenant, target.kind, condition, held_back, checked_at, detail
        )
