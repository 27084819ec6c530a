"""`toolgate restore accept`: a restored home goes on, under a new epoch and with a record of it."""

from toolgate.bootstrap.installation import check_stores, configure_logs, open_journal
from toolgate.core.errors import NotFound
from toolgate.core.system_clock import SystemClock
from toolgate.evidence import marks
from toolgate.evidence.audit import AuditLog
from toolgate.journal.local_bus import LocalBus
from toolgate.journal.sqlite.read_only import JOURNAL_FILE
from toolgate.settings import Settings


async def accept_restore(settings: Settings) -> marks.Mark | None:
    """The home's new mark; None where there is nothing to accept. Raises ToolgateError."""
    redactor = configure_logs(settings).redactor()
    check_stores(settings)
    if not (settings.home / JOURNAL_FILE).is_file():
        raise NotFound("journal", str(settings.home / JOURNAL_FILE))
    clock = SystemClock()
    journal = await open_journal(settings, clock, LocalBus(), redactor)
    try:
        audit = AuditLog(journal, redactor=redactor)
        return await marks.accept(
            settings.state_dir, settings.home, journal, audit, at=clock.now_ms()
        )
    finally:
        await journal.close()
