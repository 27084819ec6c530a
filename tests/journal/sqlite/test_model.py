"""The SQLite journal beside the one in memory."""

import shutil
import tempfile
from pathlib import Path

from hypothesis import settings

from tests.journal.model import TwoJournals
from toolgate.journal.sqlite.journal import SqliteJournal
from toolgate.journal.sqlite.writer import Limits


class SqliteBesideMemory(TwoJournals):
    def prepare(self) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="journal-model-"))

    def clean_up(self) -> None:
        shutil.rmtree(self.home)

    async def open(self) -> SqliteJournal:
        return await SqliteJournal.open(
            self.home / "journal.sqlite3",
            clock=self.clock,
            bus=self.buses["other"],
            limits=Limits(batch=3, remembered=2, forgotten_at_once=2, segment=3),
        )


SqliteBesideMemory.TestCase.settings = settings(
    max_examples=settings().max_examples // 2, stateful_step_count=15
)
TestSqliteBesideMemory = SqliteBesideMemory.TestCase
