"""Records evidence until it is killed, saying the index of each record once it is acknowledged."""

import asyncio
import sys
from pathlib import Path

from tests.evidence.evidence_home import record_call
from toolgate.core.system_clock import SystemClock
from toolgate.core.tools import JsonValue
from toolgate.evidence.log import EvidenceLog, Options
from toolgate.evidence.signer import Commitments, Ed25519Signer
from toolgate.evidence.tiles import TileFiles
from toolgate.journal.disk_blobs import DiskBlobs
from toolgate.journal.local_bus import LocalBus
from toolgate.journal.sqlite.journal import SqliteJournal
from toolgate.secrets.patterns import SecretPatterns


async def main(home: Path) -> None:
    bus, clock = LocalBus(), SystemClock()
    journal = await SqliteJournal.open(home / "journal.db", clock=clock, bus=bus)
    log = await EvidenceLog.open(
        TileFiles(home / "evidence"),
        journal=journal,
        blobs=DiskBlobs(home / "blobs"),
        bus=bus,
        clock=clock,
        signer=Ed25519Signer.in_home(home, name="test/log"),
        redactor=SecretPatterns().redactor(),
        commit=Commitments.in_home(home),
        options=Options(publish_every=0.005, inline_limit=100),
    )

    async def record(writer: int) -> None:
        number = 0
        while True:
            number += 1
            call_id = f"r{writer}-{number}-{clock.now_ms()}"
            content: JsonValue = {"out": "x" * (number % 40 * 5)}
            index = await record_call(
                log, journal, call_id, fields={"n": number}, artifacts={"x": content}
            )
            sys.stdout.write(f"{index}\n")
            sys.stdout.flush()

    await asyncio.gather(*(record(writer) for writer in range(8)))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
