"""The PostgreSQL journal beside the one in memory."""

import pytest
from hypothesis import settings

from tests.journal.model import TwoJournals
from tests.support.postgres import Postgres, with_schema
from toolgate.journal.postgres.journal import PostgresJournal, PostgresLimits


class PostgresBesideMemory(TwoJournals):
    server: Postgres

    def prepare(self) -> None:
        self.url = self.runner.run(with_schema(self.server.empty_database()))

    async def open(self) -> PostgresJournal:
        return await PostgresJournal.open(
            self.url,
            clock=self.clock,
            bus=self.buses["other"],
            limits=PostgresLimits(batch=3, readers=1, forgotten_at_once=2),
        )


PostgresBesideMemory.TestCase.settings = settings(
    max_examples=settings().max_examples // 4, stateful_step_count=15
)


class TestPostgresBesideMemory(PostgresBesideMemory.TestCase):  # type: ignore[misc, valid-type]
    @pytest.fixture(scope="class", autouse=True)
    @staticmethod
    def server(postgres: Postgres) -> None:
        PostgresBesideMemory.server = postgres
