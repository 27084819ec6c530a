"""How each execution target does: looked at from time to time, and told without waiting.

Disabled targets are not looked at: nobody is sent there.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from toolgate.domain.errors import ToolgateError
from toolgate.domain.targets import Kind, Target
from toolgate.domain.tools import JsonValue
from toolgate.execution.targets import Targets
from toolgate.ports.clock import Clock

log = logging.getLogger(__name__)

EVERY_SECONDS: Final = 15.0

Ask = Callable[[Target], Awaitable[Mapping[str, JsonValue]]]  # never raises; has `ok`


class Condition(StrEnum):
    HEALTHY = "healthy"
    DEGRADED = "degraded"  # it answers, and not as it should; or calls to it are held back
    OFFLINE = "offline"


@dataclass(frozen=True, slots=True)
class TargetHealth:
    target_id: str
    tenant: str
    kind: Kind
    condition: Condition
    circuit_open: bool  # calls are refused here, without asking it
    checked_at: int  # Unix ms
    detail: Mapping[str, JsonValue] = field(default_factory=dict)  # backend, usage, reason


class TargetHealths:
    """`local` and `remote` ask a target; `is_held_back` is the circuit breaker as it is now."""

    def __init__(
        self,
        targets: Targets,
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
        self._answers: list[tuple[Target, Mapping[str, JsonValue], int]] = []

    def known(self) -> Sequence[TargetHealth]:
        """What the last look brought; nothing before the first. The circuit is as it is now."""
        return [self._health(*answer) for answer in self._answers]

    async def look(self) -> Sequence[TargetHealth]:
        """Ask every enabled target now, all at once."""
        enabled = [target for target in await self._targets.list() if target.enabled]
        answers = await asyncio.gather(*(self._ask(target) for target in enabled))
        now = self._clock.now_ms()
        self._answers = [
            (target, answer, now) for target, answer in zip(enabled, answers, strict=True)
        ]
        return self.known()

    async def watch(self, *, seconds: float = EVERY_SECONDS) -> None:
        """Look from time to time, for ever."""
        while True:
            try:
                await self.look()
            except ToolgateError as failed:
                log.warning("target_health_failed error=%s", type(failed).__name__)
            await asyncio.sleep(seconds)

    async def _ask(self, target: Target) -> Mapping[str, JsonValue]:
        return await (self._local if target.kind is Kind.LOCAL_HOST else self._remote)(target)

    def _health(
        self, target: Target, answer: Mapping[str, JsonValue], checked_at: int
    ) -> TargetHealth:
        held_back = target.kind is Kind.DOCKER_RUNNER and self._is_held_back(target)
        if answer.get("ok") is True:
            condition = Condition.DEGRADED if held_back else Condition.HEALTHY
        else:
            condition = Condition.DEGRADED if "backend" in answer else Condition.OFFLINE
        detail = {name: answer[name] for name in ("backend", "usage", "reason") if name in answer}
        return TargetHealth(
            target.id, target.tenant, target.kind, condition, held_back, checked_at, detail
        )
