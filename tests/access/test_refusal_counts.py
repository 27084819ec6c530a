"""Refusals of callers that nobody knows: one audit row per minute and source."""

from toolgate.access.refusal_counts import ACTION, MINUTE_S, MOST_SOURCES, RefusalCounts
from toolgate.evidence.audit import AuditLog, AuditQuery
from toolgate.journal.local_bus import LocalBus
from toolgate.secrets.patterns import SecretPatterns
from toolgate.testing.clock import FakeClock
from toolgate.testing.journal import MemoryJournal


async def test_many_refusals_of_one_address_are_one_row_a_minute_and_none_is_lost() -> None:
    clock = FakeClock()
    journal = MemoryJournal(clock=clock, bus=LocalBus())
    audit = AuditLog(journal, redactor=SecretPatterns().redactor())
    counts = RefusalCounts(journal, audit, clock)

    async def rows() -> list[tuple[str | None, int]]:
        page = await audit.query(AuditQuery(action=ACTION, limit=500))
        return [(row.resource_id, row.metadata["count"]) for row in reversed(page.items)]

    counts.count("10.0.0.1", "/command/tool")
    await counts.write(MINUTE_S)
    assert await rows() == [("10.0.0.1", 1)]
    for _ in range(1000):
        counts.count("10.0.0.1", "/ws")
    counts.count("10.0.0.2", "/mcp")
    await counts.write(MINUTE_S)
    assert await rows() == [("10.0.0.1", 1), ("10.0.0.2", 1)]
    clock.advance(60_000)
    await counts.write(MINUTE_S)
    assert (await rows())[2:] == [("10.0.0.1", 1000)]
    clock.advance(60_000)
    for number in range(10 * MOST_SOURCES):
        counts.count(f"fd00::{number:x}", "/tool/run")
    await counts.close()
    found = (await rows())[3:]
    assert len(found) <= MOST_SOURCES + 1
    assert sum(count for _, count in found) == 10 * MOST_SOURCES
