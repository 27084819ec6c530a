"""The activation of a policy in the journal: one row, an evidence record and an audit row per change.

The row's version changes with each activation, so a commit that checks it is refused if another
policy came into force since its call was decided.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from toolgate.evidence.audit import AuditEntry, AuditLog
from toolgate.evidence.evidence import Evidence
from toolgate.journal.journal import Journal, Operation, Put
from toolgate.policy.model import ACTIVE_POLICY, Policy

COLLECTION: Final = "policy_on_record"  # one row, ACTIVE_POLICY: the version of the policy in force
ACTION: Final = "policy.active"


@dataclass(frozen=True, slots=True)
class PolicyRecords:
    journal: Journal
    evidence: Evidence
    audit: AuditLog

    async def commit(self, policy: Policy, *, also: Sequence[Operation] = ()) -> int:
        """Put the policy on record if it is not; return the version of its row.

        `also` goes into the same commit. Raises Conflict, Unavailable. Reads the row every time: a
        commit that failed or was cancelled may have been made all the same.
        """
        row = await self.journal.get(COLLECTION, ACTIVE_POLICY)
        previous, version = ("", 0) if row is None else (row.value.decode(), row.version)
        if policy.version == previous:
            if also:
                await self.journal.commit(*also)
            return version
        entry = AuditEntry(
            action=ACTION,
            actor="system",
            resource_type="policy",
            resource_id=policy.name,
            metadata={"version": policy.version, "previous": previous},
        )
        await self.journal.commit(
            Put(COLLECTION, ACTIVE_POLICY, policy.version.encode(), expected=version),
            *self.evidence.prepare(
                "policy", {"policy": policy.name, "version": policy.version, "previous": previous}
            ),
            *self.audit.prepare(entry),
            *also,
        )
        return version + 1
