"""What nobody uses any more is forgotten, in each role that keeps it."""

import contextlib
import sqlite3
from pathlib import Path

import msgspec
import pytest

from tests.e2e.ways import APART, TOGETHER, eventually, installed
from toolgate.core.system_clock import SystemClock
from toolgate.journal.journal import Put
from toolgate.journal.local_bus import LocalBus
from toolgate.journal.sqlite.journal import SqliteJournal

LONG_AGO = 1
RUN = {"session_id": "s", "ended": True, "ended_at": LONG_AGO}
OLD = {
    "sessions": {"user_id": "u", "created_at": LONG_AGO},
    "session_tools": {"tools": [], "at": LONG_AGO},
    "remote_runs": RUN,
    "remote_calls": {"run_id": "forgotten", "session_id": "s"},
    "remote_approvals": {"run_id": "forgotten", "session_id": "s"},
}
KEPT_BY = {
    TOGETHER: {"all": ["sessions", "session_tools"]},
    APART: {
        "ingress": ["sessions", "remote_runs", "remote_calls", "remote_approvals"],
        "orchestrator": ["session_tools"],
    },
}


@pytest.mark.parametrize("way", [TOGETHER, APART])
async def test_rows_of_long_ago_are_gone_soon_after_a_start(tmp_path: Path, way: str) -> None:
    for home, collections in KEPT_BY[way].items():
        (tmp_path / home).mkdir()
        path = tmp_path / home / "journal.db"
        journal = await SqliteJournal.open(path, clock=SystemClock(), bus=LocalBus())
        rows = [
            Put(name, "old", msgspec.json.encode(OLD[name]), expected=0) for name in collections
        ]
        await journal.commit(*rows)
        await journal.close()

    async def all_gone() -> bool:
        return not any(_kept(tmp_path / home, names) for home, names in KEPT_BY[way].items())

    assert not await all_gone()
    async with installed(way, tmp_path):
        await eventually(all_gone)


def _kept(home: Path, collections: list[str]) -> list[str]:
    uri = f"file:{home / 'journal.db'}?mode=ro"
    with contextlib.closing(sqlite3.connect(uri, uri=True)) as journal:
        rows = journal.execute("SELECT collection FROM rows WHERE key = 'old'").fetchall()
    return [name for (name,) in rows if name in collections]
