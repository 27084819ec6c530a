"""A policy file on a journal in memory, whose commits can fail or be cut off."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final, cast

from tests.support.audit import SilentEvidence
from toolgate.core.errors import Unavailable
from toolgate.evidence.audit import AuditLog, AuditQuery
from toolgate.evidence.evidence import Evidence
from toolgate.journal.journal import Event, Operation, Row
from toolgate.journal.local_bus import LocalBus
from toolgate.policy.file import PolicyFile
from toolgate.policy.model import ACTIVE_POLICY, Policy
from toolgate.policy.records import ACTION, COLLECTION, PolicyRecords
from toolgate.policy.shell_parser import TreeSitterShellParser
from toolgate.secrets.redaction import Redactor
from toolgate.testing.clock import FakeClock
from toolgate.testing.journal import MemoryJournal

PARSE: Final = TreeSitterShellParser()


class PolicyJournal(MemoryJournal):
    """Raises `before` instead of the next commit, or `after` it was made, once."""

    def __init__(self) -> None:
        super().__init__(clock=FakeClock(), bus=LocalBus())
        self.before: BaseException | None = None
        self.after: BaseException | None = None
        self.is_down = False

    async def commit(self, *operations: Operation, durable: bool = True) -> list[Event]:
        if self.is_down:
            raise Unavailable("the disk is full")
        before, self.before = self.before, None
        if before is not None:
            raise before
        committed = await super().commit(*operations, durable=durable)
        after, self.after = self.after, None
        if after is not None:
            raise after
        return committed

    @property
    def audit(self) -> AuditLog:
        return AuditLog(self, redactor=Redactor(lambda _text: []))

    async def policy_row(self) -> Row:
        row = await self.get(COLLECTION, ACTIVE_POLICY)
        assert row is not None
        return row

    async def versions(self) -> list[str]:
        """The versions that came into force, oldest first."""
        rows = (await self.audit.query(AuditQuery(action=ACTION))).items
        return [row.metadata["version"] for row in reversed(rows)]


def records_in(journal: MemoryJournal) -> PolicyRecords:
    audit = AuditLog(journal, redactor=Redactor(lambda _text: []))
    return PolicyRecords(journal, cast(Evidence, SilentEvidence()), audit)


async def open_policy(
    path: Path | None,
    *,
    journal: MemoryJournal | None = None,
    named: Mapping[str, Policy] | None = None,
    keep_at: Path | None = None,
) -> PolicyFile:
    records = records_in(PolicyJournal() if journal is None else journal)
    return await PolicyFile.open(
        path, parse_shell=PARSE, records=records, named=named, keep_at=keep_at
    )
