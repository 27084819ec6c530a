"""What sessions were told is kept for so long and no longer (ingress contract, "Offline")."""

import asyncio
import logging
from dataclasses import dataclass
from typing import Final, Protocol

from toolgate.domain.errors import ToolgateError
from toolgate.orchestration import records
from toolgate.ports.clock import Clock

log = logging.getLogger(__name__)

KEPT_MS: Final = 24 * 3_600_000
KEPT_EVENTS: Final = 10_000
EVERY_S: Final = 600.0


class Prunes(Protocol):
    async def prune(self, prefix: str, *, before: int, keep: int) -> int: ...


@dataclass(slots=True)
class Retention:
    journal: Prunes
    clock: Clock
    kept_ms: int = KEPT_MS
    kept_events: int = KEPT_EVENTS
    every_s: float = EVERY_S
    _task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._keep_on(), name="retention")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def once(self) -> int:
        """Forget what is too old or too much; how many events that was."""
        before = self.clock.now_ms() - self.kept_ms
        prefix = records.session_stream("")
        return await self.journal.prune(prefix, before=before, keep=self.kept_events)

    async def _keep_on(self) -> None:
        while True:
            try:
                forgotten = await self.once()
                if forgotten:
                    log.info("events_forgotten count=%d", forgotten)
            except ToolgateError:
                log.exception("retention_failed")
            await asyncio.sleep(self.every_s)
