"""A disk that fails: what is acknowledged after it is on disk, in a file that was opened again."""

import asyncio
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from toolgate.core.system_clock import SystemClock
from toolgate.journal.local_bus import LocalBus
from toolgate.journal.sqlite.journal import SqliteJournal

PROGRAM = """
import asyncio, logging, os, sys
from pathlib import Path
from toolgate.core.errors import Unavailable
from toolgate.core.system_clock import SystemClock
from toolgate.journal.journal import Append, NewEvent
from toolgate.journal.local_bus import LocalBus
from toolgate.journal.sqlite.journal import SqliteJournal

async def main():
    logging.basicConfig(format="log %(message)s", stream=sys.stdout)
    journal = await SqliteJournal.open(
        Path(sys.argv[1]), clock=SystemClock(), bus=LocalBus()
    )
    for number in range(40):
        try:
            (event,) = await journal.commit(Append("a", [NewEvent("said", b"%d" % number)]))
        except Unavailable as refused:
            print("refused", bool(journal.fault), refused, flush=True)
        else:
            print("acknowledged", number, journal.fault, flush=True)
    sys.stdout.flush()
    os._exit(9)

asyncio.run(main())
"""


async def test_after_a_sync_that_failed_the_file_is_opened_again_before_anything_is_acknowledged(
    tmp_path: Path,
) -> None:
    if shutil.which("strace") is None:
        pytest.skip("NOT TESTED, a failing disk needs strace")
    path = tmp_path / "journal.sqlite3"
    fault = "inject=fdatasync:error=EIO:when=12..16"  # of each thread: the writer's
    trace = tmp_path / "trace"
    ran = await asyncio.to_thread(
        subprocess.run,
        [
            *("strace", "-f", "-o", str(trace), "-e", "trace=fdatasync", "-e", fault),
            *(sys.executable, "-c", PROGRAM, str(path)),
        ],
        capture_output=True,
        check=False,
        text=True,
        timeout=120,
    )
    lines = ran.stdout.splitlines()
    assert ran.returncode == 9, ran.stderr
    assert "INJECTED" in trace.read_text()
    refused = [line for line in lines if line.startswith("refused")]
    assert refused
    assert all(line.startswith("refused True") for line in refused)
    assert sum(line.startswith("log journal_failing") for line in lines) == 1, "once a change"
    reopened = [n for n, line in enumerate(lines) if line.startswith("log journal_reopened")]
    last_refused = max(n for n, line in enumerate(lines) if line.startswith("refused"))
    acknowledged = [line for line in lines if line.startswith("acknowledged")]
    after = [n for n, line in enumerate(lines) if line in acknowledged and n > last_refused]
    assert last_refused < reopened[-1] < after[0]
    numbers = [int(line.split()[1]) for line in acknowledged]
    journal = await SqliteJournal.open(path, clock=SystemClock(), bus=LocalBus())
    kept = [int(event.data) for event in await journal.read("a")]
    await journal.close()
    assert set(numbers) <= set(kept)
    assert kept == sorted(set(kept))
