"""A process that commits for ever and says what was acknowledged, to be killed by a test.

Each line is `<stream> <seq>`, written after the commit that holds the event has returned.
"""

import asyncio
import os
import sys
from pathlib import Path

from toolgate.core.system_clock import SystemClock
from toolgate.journal.journal import Append, NewEvent, Put
from toolgate.journal.local_bus import LocalBus
from toolgate.journal.sqlite.journal import SqliteJournal

STREAMS = [f"stream{n}" for n in range(8)]
KEPT = 200


def say(line: str) -> None:
    os.write(sys.stdout.fileno(), f"{line}\n".encode())


async def commit_for_ever(journal: SqliteJournal, stream: str, number: int) -> None:
    head = await journal.head(stream)
    row = await journal.get("lasts", stream)
    last, version = head.last, 0 if row is None else row.version
    while True:
        count = 1 + last % 3
        new = [NewEvent("said", b"x" * 300, f"s{last % 5}") for _ in range(count)]
        committed = await journal.commit(
            Append(stream, new, expected_seq=last),
            Put("lasts", stream, str(last + count).encode(), due=last, expected=version),
            durable=(last + number) % 4 != 0,
        )
        last, version = last + count, version + 1
        say(f"{stream} {committed[-1].seq}")
        if number % 4 == 0 and last % 20 == 0:
            await journal.forget(stream, through=last - KEPT)


async def main(path: Path) -> None:
    say("opening")
    journal = await SqliteJournal.open(path, clock=SystemClock(), bus=LocalBus())
    await asyncio.gather(
        *(commit_for_ever(journal, stream, number) for number, stream in enumerate(STREAMS))
    )


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
