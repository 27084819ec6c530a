"""Ends the runs that a revoked device's or service's agent commands have started.

The commit that revokes the right writes a row. The row is handled at once; after a kill or a full disk, at
the next start or when it is due again. The list of runs is fixed before the right can be given back.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import msgspec

from toolgate.access.devices import named_session
from toolgate.access.revocations import REASON, REVOCATIONS
from toolgate.core.clock import Clock
from toolgate.core.errors import Conflict, NotFound
from toolgate.journal.journal import Delete, Journal, Put, Row
from toolgate.journal.paging import all_rows
from toolgate.runs.orchestrator import Declined, Orchestrator

log = logging.getLogger(__name__)

_Runs = list[tuple[str, str]]  # run id, session id
_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(_Runs | None).decode


@dataclass(frozen=True, slots=True)
class Revocations:
    journal: Journal
    clock: Clock
    orchestrator: Orchestrator
    wake_at: Callable[[int], None] = lambda _due: None
    _ending: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def load(self) -> None:
        """Handle the rows that the last process left, before any run goes on."""
        async for row in all_rows(self.journal, REVOCATIONS):
            await self.end_runs(row.key)

    async def end_runs(self, name: str) -> None:
        """End the runs of a revoked name; an error is logged and tried again."""
        try:
            row = await self.journal.get(REVOCATIONS, name)
            if row is not None:
                await self.on_due(row)
        except Exception:
            log.exception("runs_not_cancelled name=%s", name)
        finally:  # also if the caller was cancelled
            self.wake_at(self.clock.now_ms())

    async def on_due(self, row: Row) -> None:
        async with self._ending:
            now = await self.journal.get(REVOCATIONS, row.key)
            if now is None:
                return  # done meanwhile
            with contextlib.suppress(Conflict):  # revoked again meanwhile
                await self._carry_out(now)

    async def _carry_out(self, row: Row) -> None:
        runs, version = _decode(row.value), row.version
        if runs is None:
            found = await self.orchestrator.open_runs()
            runs = [(run, session) for run, session in found if named_session(row.key, session)]
            if runs:  # keep the list for another try: new runs may begin before it
                put = Put(REVOCATIONS, row.key, _encode(runs), due=row.due, expected=version)
                await self.journal.commit(put)
                version += 1
        for run_id, session_id in runs:
            with contextlib.suppress(NotFound, Declined):
                await self.orchestrator.cancel(run_id, session_id=session_id, reason=REASON)
        await self.journal.commit(Delete(REVOCATIONS, row.key, expected=version))
