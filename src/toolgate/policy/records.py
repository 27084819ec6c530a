"""Which policy was in force from when on: a record and a row of the audit for each change.

However it came about: through a door, by an edit of the file, or while nothing ran.
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable
from typing import Final

from toolgate.core.errors import ToolgateError
from toolgate.evidence.audit import AuditEntry, AuditLog
from toolgate.evidence.evidence import Evidence
from toolgate.journal.journal import Journal, Put
from toolgate.policy.model import ACTIVE_POLICY, Policy

log = logging.getLogger(__name__)

COLLECTION: Final = "policy_on_record"  # one row: the version that the last record tells of
ACTION: Final = "policy.active"
RETRY_S: Final = 1.0


class PolicyRecords:
    def __init__(
        self,
        journal: Journal,
        evidence: Evidence,
        audit: AuditLog,
        *,
        current: Callable[[], Policy],
    ) -> None:
        self._journal = journal
        self._evidence = evidence
        self._audit = audit
        self._current = current
        self._changed = asyncio.Event()
        self._unwritten: deque[Policy] = deque()  # while one is written, others may come and go

    def changed(self, _: object) -> None:
        """Another policy may be in force."""
        self._unwritten.append(self._current())
        self._changed.set()

    async def keep(self) -> None:
        """Write each change down, for ever."""
        retry_after: float | None = None
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(retry_after):
                    await self._changed.wait()
            self._changed.clear()
            try:
                await self.note()
                retry_after = None
            except ToolgateError as failed:
                log.warning("policy_not_recorded error=%s", failed)
                retry_after = RETRY_S
            except Exception:  # or no later change would be on record either
                log.exception("policy_not_recorded")
                retry_after = RETRY_S

    async def note(self) -> None:
        """Put the policy in force on record, and those before it, where the last is of another."""
        self._unwritten.append(self._current())
        while self._unwritten:
            await self._note(self._unwritten[0])
            self._unwritten.popleft()

    async def _note(self, policy: Policy) -> None:
        row = await self._journal.get(COLLECTION, ACTIVE_POLICY)
        previous = "" if row is None else row.value.decode()
        if policy.version == previous:
            return
        entry = AuditEntry(
            action=ACTION,
            actor="system",
            resource_type="policy",
            resource_id=policy.name,
            metadata={"version": policy.version, "previous": previous},
        )
        await self._evidence.record(
            "policy",
            {"policy": policy.name, "version": policy.version, "previous": previous},
            with_operations=[
                Put(
                    COLLECTION,
                    ACTIVE_POLICY,
                    policy.version.encode(),
                    expected=0 if row is None else row.version,
                ),
                *self._audit.prepare(entry),
            ],
        )
