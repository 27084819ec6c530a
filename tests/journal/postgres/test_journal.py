"""The PostgreSQL journal: the suite, on a real server, then what only a database can do wrong."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.support.postgres import Postgres, with_schema
from toolgate.journal.journal import Journal
from toolgate.journal.local_bus import LocalBus
from toolgate.journal.postgres.journal import PostgresJournal, PostgresLimits
from toolgate.testing.clock import FakeClock
from toolgate.testing.journal_suite import JournalSuite


@asynccontextmanager
async def opened(
    url: str, *, limits: PostgresLimits | None = None
) -> AsyncIterator[PostgresJournal]:
    journal = await PostgresJournal.open(
        url, clock=FakeClock(), bus=LocalBus(), limits=limits or PostgresLimits()
    )
    try:
        yield journal
    finally:
        await journal.close()


class TestPostgresJournal(JournalSuite):
    @pytest.fixture
    async def journal(
        self, clock: FakeClock, bus: LocalBus, postgres: Postgres
    ) -> AsyncIterator[Journal]:
        url = await with_schema(postgres.empty_database())
        journal = await PostgresJournal.open(url, clock=clock, bus=bus)
        yield journal
        await journal.close()
