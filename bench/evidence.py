"""What a record costs beside the commit it is in, what a proof costs to check, what a scan costs."""

import asyncio
import secrets
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from bench.measure import Cost, Result, interleave, interleave_async, run, table, timed, timed_async
from toolgate.core.system_clock import SystemClock
from toolgate.core.tools import JsonValue
from toolgate.evidence import checkpoints
from toolgate.evidence.check import check_proof
from toolgate.evidence.checkpoints import ENTRIES, TILE_HEIGHT, Checkpoint, Tile
from toolgate.evidence.evidence import Scalar
from toolgate.evidence.log import EvidenceLog
from toolgate.evidence.records import make_proof
from toolgate.evidence.signer import Commitments, Ed25519Signer
from toolgate.evidence.tiles import TileFiles
from toolgate.evidence.tree import HASH_SIZE, Tree, leaf_hash
from toolgate.journal.disk_blobs import DiskBlobs
from toolgate.journal.journal import Append, NewEvent
from toolgate.journal.local_bus import LocalBus
from toolgate.journal.sqlite.journal import SqliteJournal
from toolgate.secrets.patterns import SecretPatterns

RECORDS: Final = 2_000
AT_ONCE: Final = 32
ROUNDS: Final = 5
LARGE: Final = 1_000_000
KNOWN_SECRETS: Final = 500
RECORD_BUDGET_US: Final = 60.0
VERIFY_BUDGET_MS: Final = 1.0

FIELDS: Final[dict[str, Scalar]] = {
    "tool": "shell",
    "decision": "allow",
    "rule_id": "git-read",
    "reason": "Read-only",
    "policy_version": "sha256:" + "3f" * 32,
    "args_commitment": "hmac-sha256:" + "a1" * 32,
    "tenant": "t_default",
    "workspace": "w_default",
    "user": "u_1",
    "run_id": "run_01jcq3w7m2a8v5k9x4t6r0e1zy",
    "isolation": "bwrap",
    "repeatable": False,
    "duration_ms": 12,
}


async def records(home: Path) -> list[Result]:
    bus, clock = LocalBus(), SystemClock()
    journal = await SqliteJournal.open(home / "journal.db", clock=clock, bus=bus)
    patterns = SecretPatterns(secrets.token_urlsafe(32) for _ in range(KNOWN_SECRETS))
    log = await EvidenceLog.open(
        TileFiles(home / "evidence"),
        journal=journal,
        blobs=DiskBlobs(home / "blobs"),
        bus=bus,
        clock=clock,
        signer=Ed25519Signer.in_home(home),
        redactor=patterns.redactor(),
        commit=Commitments.in_home(home),
    )
    [append] = log.prepare("decision", FIELDS, subject="req_1")
    assert isinstance(append, Append)
    data = append.events[0].data

    async def bare() -> None:
        await journal.commit(Append("bare", [NewEvent("decision", data, "req_1")]))

    async def record() -> None:
        await log.record("decision", FIELDS, subject="req_1")

    async def published() -> None:
        await many(record)
        await log.publish()

    costs = await interleave_async(
        {
            "commit": lambda: timed_async(lambda: many(bare)),
            "record": lambda: timed_async(published),
        },
        rounds=ROUNDS,
    )
    await log.close()
    await journal.close()
    commit_us = costs["commit"].each(RECORDS).cpu * 1e6
    record_us = costs["record"].each(RECORDS).cpu * 1e6
    return [
        Result(f"journal's commit alone, {len(data)} bytes", f"{commit_us:.1f} us CPU"),
        limited("evidence on top of it", record_us - commit_us, RECORD_BUDGET_US, "us CPU"),
    ]


async def many(work: Callable[[], Awaitable[None]]) -> None:
    async def some() -> None:
        for _ in range(RECORDS // AT_ONCE):
            await work()

    await asyncio.gather(*(some() for _ in range(AT_ONCE)))


class MemoryTiles(TileFiles):
    """The tiles of a large log without their files."""

    def __init__(self, rows: dict[int, bytearray]) -> None:
        super().__init__(Path("nowhere"))
        self._rows = rows

    def read(self, tile: Tile) -> bytes:
        assert tile.level != ENTRIES
        start = tile.index * 256 * HASH_SIZE
        return bytes(self._rows[tile.level][start : start + tile.width * HASH_SIZE])


def one_in_a_million() -> list[Result]:
    signer = Ed25519Signer(b"\x07" * 32)
    record = b'{"artifacts":{},"at":1,"fields":{},"kind":"decision","subject":"","v":1}'
    tree, rows = Tree(), {level: bytearray() for level in range(4)}
    chosen = 654_321

    def grow() -> None:
        for number in range(LARGE):
            leaf = leaf_hash(record if number == chosen else number.to_bytes(8, "big"))
            completed = tree.append(leaf)
            for level in range(0, len(completed), TILE_HEIGHT):
                rows[level // TILE_HEIGHT] += completed[level]

    growing = timed(grow).each(LARGE)
    text = Checkpoint(signer.key.name, LARGE, tree.root()).text()
    note = checkpoints.sign_note(text, key=signer.key, sign=signer.sign)
    made: list[bytes] = []

    def make() -> None:
        made[:] = [
            make_proof(
                MemoryTiles(rows),
                note=note,
                key=signer.key,
                index=chosen,
                record=record,
                artifacts={},
            )
        ]

    def check() -> None:
        for _ in range(20):
            check_proof(made[0], key=signer.key)

    costs = interleave({"make": lambda: timed(make), "check": lambda: timed(check)}, rounds=9)
    return [
        Result("tree: append a leaf", f"{growing.cpu * 1e6:.2f} us CPU"),
        Result("proof of one in 1,000,000: make", f"{costs['make'].wall * 1e3:.2f} ms"),
        limited(
            "proof of one in 1,000,000: check",
            costs["check"].each(20).wall * 1e3,
            VERIFY_BUDGET_MS,
            f"ms, {len(made[0])} bytes",
        ),
    ]


def scan() -> list[Result]:
    redactors = {
        count: SecretPatterns(secrets.token_urlsafe(32) for _ in range(count)).redactor()
        for count in (0, 10, KNOWN_SECRETS)
    }
    value: JsonValue = {**FIELDS}

    def scanning(count: int) -> Cost:
        redactor = redactors[count]

        def work() -> None:
            for _ in range(1000):
                redactor.value(value)

        return timed(work).each(1000)

    costs = interleave(
        {str(count): (lambda count=count: scanning(count)) for count in redactors},  # type: ignore[misc]
        rounds=9,
    )
    return [
        Result(f"scan of a record, {count} secrets known", f"{cost.cpu * 1e6:.1f} us CPU")
        for count, cost in costs.items()
    ]


def limited(what: str, measured: float, budget: float, unit: str) -> Result:
    name = unit.partition(",")[0]
    return Result(what, f"{measured:.2f} {unit}", f"<= {budget:g} {name}", measured <= budget)


def main() -> list[str]:
    with tempfile.TemporaryDirectory() as home:
        recorded = run(records(Path(home)))
    return table("Evidence", [*recorded, *one_in_a_million(), *scan()])


if __name__ == "__main__":
    for line in main():
        print(line)
