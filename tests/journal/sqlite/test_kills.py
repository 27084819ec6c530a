"""Killed at any point, under load, the journal has everything that it acknowledged."""

import random
import subprocess
import sys
from pathlib import Path

import pytest

from toolgate.journal.journal import Event
from toolgate.journal.local_bus import LocalBus
from toolgate.journal.sqlite.journal import SqliteJournal
from toolgate.testing.clock import FakeClock

COMMITTING_PROCESS = Path(__file__).with_name("committing_process.py")
STREAMS = [f"stream{n}" for n in range(8)]


def run_and_kill(path: Path, *, after: int) -> dict[str, int]:
    """Start a committing process and kill it after so many lines; the last number it said of each."""
    with subprocess.Popen(
        [sys.executable, COMMITTING_PROCESS, str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        lines = [process.stdout.readline() for _ in range(1 + after)]
        process.kill()
        lines += process.stdout.readlines()
        assert process.stderr.read() == b""
    acknowledged = {}
    for line in lines[1:]:
        if line.endswith(b"\n"):
            stream, seq = line.decode().split()
            acknowledged[stream] = int(seq)
    return acknowledged


async def everything(journal: SqliteJournal) -> list[Event]:
    events: list[Event] = []
    while page := await journal.read_all(after=events[-1].position if events else 0):
        events += page
    return events


@pytest.mark.soak("kills", rounds=40, short=4)
@pytest.mark.parametrize("seed", range(2))
async def test_a_killed_journal_has_all_that_it_acknowledged_and_nothing_by_halves(
    seed: int, tmp_path: Path, rounds: int
) -> None:
    chance = random.Random(seed)
    path = tmp_path / "journal.sqlite3"
    acknowledged: dict[str, int] = {}
    epochs = set()
    for kill in range(rounds):
        after = 0 if kill % 4 == 3 else chance.randrange(1, 300)
        acknowledged |= run_and_kill(path, after=after)
        journal = await SqliteJournal.open(path, clock=FakeClock(), bus=LocalBus())
        events = await everything(journal)
        assert {event.stream for event in events} <= set(STREAMS)
        for stream in STREAMS:
            head = await journal.head(stream)
            assert head.last >= acknowledged.get(stream, 0)
            its_own = [event.seq for event in events if event.stream == stream]
            assert its_own == list(range(head.first, head.last + 1))
            row = await journal.get("lasts", stream)
            assert (0 if row is None else int(row.value)) == head.last
        epochs.add(journal.vouches_since)
        await journal.close()
    assert sum(acknowledged.values()) > 0
    assert len(epochs) == 1
