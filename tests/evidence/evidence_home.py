"""One installation's evidence, for the tests of its parts: running, filled, and as it is on disk."""

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from toolgate.core.tools import JsonValue
from toolgate.evidence import checkpoints
from toolgate.evidence.check import ClosedHome, check_log
from toolgate.evidence.checkpoints import Checkpoint, VerifierKey
from toolgate.evidence.evidence import Scalar
from toolgate.evidence.log import EvidenceLog, Options
from toolgate.evidence.records import index_in
from toolgate.evidence.signer import Commitments, Ed25519Signer, check_signature
from toolgate.evidence.tiles import TileFiles
from toolgate.journal.disk_blobs import DiskBlobs
from toolgate.journal.journal import Journal, Operation
from toolgate.journal.local_bus import LocalBus
from toolgate.journal.sqlite.journal import SqliteJournal
from toolgate.secrets.patterns import SecretPatterns
from toolgate.testing.clock import FakeClock

SECRET = "swordfish-9000"
QUICK = Options(publish_every=0.01, look_again_after=0.05, inline_limit=200, page=100)


class Home:
    """One installation's parts, as long as they run."""

    def __init__(self, home: Path, journal: Journal, log: EvidenceLog, clock: FakeClock) -> None:
        self.home = home
        self.journal = journal
        self.log = log
        self.clock = clock


@asynccontextmanager
async def running(
    home: Path, *, files: TileFiles | None = None, options: Options = QUICK
) -> AsyncIterator[Home]:
    clock = FakeClock()
    bus = LocalBus()
    patterns = SecretPatterns([SECRET])
    journal = await SqliteJournal.open(home / "journal.db", clock=clock, bus=bus)
    try:
        log = await EvidenceLog.open(
            files or TileFiles(home / "evidence"),
            journal=journal,
            blobs=DiskBlobs(home / "blobs"),
            bus=bus,
            clock=clock,
            signer=Ed25519Signer.in_home(home, name="test/log"),
            redactor=patterns.redactor(),
            commit=Commitments.in_home(home),
            options=options,
        )
        try:
            yield Home(home, journal, log, clock)
        finally:
            await log.close()
    finally:
        await journal.close()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.005)


def key_of(home: Path) -> VerifierKey:
    return Ed25519Signer.in_home(home, name="test/log").key


def checkpoint_of(home: Path) -> Checkpoint:
    note = TileFiles(home / "evidence").checkpoint()
    assert note is not None
    return checkpoints.open_checkpoint(note, key=key_of(home), check=check_signature)


def in_file(home: Path, sql: str, *values: bytes) -> list[tuple[bytes]]:
    """What someone does to the journal behind its back."""
    with contextlib.closing(sqlite3.connect(home / "journal.db")) as connection, connection:
        connection.execute("PRAGMA synchronous=OFF")
        return connection.execute(sql, values).fetchall()


def check_home(home: Path, *, since: str = "") -> list[str]:
    with ClosedHome(home) as closed:
        return check_log(
            closed.log.root,
            key=key_of(home),
            since=since,
            read_artifact=closed.artifact,
            journal=closed.filed(),
        ).problems


async def record_call(
    log: EvidenceLog,
    journal: Journal,
    call_id: str,
    *,
    kind: str = "result",
    fields: Mapping[str, Scalar] | None = None,
    artifacts: Mapping[str, JsonValue] | None = None,
    with_operations: Sequence[Operation] = (),
) -> int:
    """Commit a record of a call with its artifacts, as the ledger does; its index in the log."""
    ordered = dict(sorted((fields or {}).items()))
    contents = {name: log.canonical(value) for name, value in (artifacts or {}).items()}
    record = await log.of_call(kind, ordered, call_id=call_id, contents=contents)
    return index_in(await journal.commit(record, *with_operations))


async def fill(home: Home, count: int, *, artifacts: bool = False, first: int = 0) -> None:
    async def one(number: int) -> None:
        words = {"request": "request ", "tool_result": "tool_result " * 40} if artifacts else {}
        await record_call(
            home.log,
            home.journal,
            f"r{number}",
            kind="decision",
            fields={"number": number, "tool": "echo"},
            artifacts={name: {"text": text, "number": number} for name, text in words.items()},
        )

    for start in range(first, first + count, 100):
        numbers = range(start, min(start + 100, first + count))
        await asyncio.gather(*(one(number) for number in numbers))
