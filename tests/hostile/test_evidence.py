"""Someone with a text editor and SQLite at a home that is stopped: each change is refused or named."""

import itertools
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from tests.evidence.evidence_home import in_file
from tests.evidence.test_marks import grown, problems_of, started
from tests.support.batteries import chosen
from toolgate.core.errors import ToolgateError
from toolgate.evidence.marks import COLLECTION

ACTS = 12
ROWS = "segment IN (SELECT id FROM segments WHERE stream = '{}')"
COVERS = ("evidence", "journal.db-witness", "keys", "name")  # what is taken away with it
CHANGES = {
    "delete": "DELETE FROM events WHERE {rows} AND seq = {seq}",
    "data": "UPDATE events SET data = CAST(data || ' ' AS BLOB) WHERE {rows} AND seq = {seq}",
    "time": "UPDATE events SET at = at - 60000 WHERE {rows} AND seq = {seq}",
    "kind": "UPDATE events SET type = 'other' WHERE {rows} AND seq = {seq}",
    "subject": "UPDATE events SET subject = 'other' WHERE {rows} AND seq = {seq}",
    "number": "UPDATE events SET seq = seq + 1000 WHERE {rows} AND seq = {seq}",
}
NOT_IN_A_RECORD = {"time"}  # the time of an event; a record has its own


class Tampering(NamedTuple):
    name: str
    kind: str
    statements: tuple[str, ...]
    covers: tuple[str, ...] = ()


def tamperings() -> Iterator[Tampering]:
    for many in (1, 2, 7, 20, 10_000):
        statement = (
            f"DELETE FROM events WHERE position > (SELECT max(position) FROM events) - {many}"
        )
        for size in range(len(COVERS) + 1):
            for covers in itertools.combinations(COVERS, size):
                name = f"the last {many}, {', '.join(covers) or 'nothing'} with it"
                yield Tampering(name, "events taken from the end", (statement,), covers)
    for stream, name in itertools.product(("audit", "evidence"), CHANGES):
        if stream == "evidence" and name in NOT_IN_A_RECORD:
            continue
        for seq in (1, 6, ACTS):
            statement = CHANGES[name].format(rows=ROWS.format(stream), seq=seq)
            for covers in ((), ("evidence",)):
                what = f"{name} of {stream} {seq}, {', '.join(covers) or 'nothing'} with it"
                yield Tampering(what, f"{stream} changed", (statement,), covers)
    for stream in ("audit", "evidence"):
        rows = ROWS.format(stream)
        one, two = (f"(SELECT data FROM events WHERE {rows} AND seq = {n})" for n in (3, 4))
        yield Tampering(
            f"two of {stream} swapped",
            f"{stream} changed",
            (
                f"CREATE TABLE kept AS SELECT {one} AS a, {two} AS b",
                f"UPDATE events SET data = (SELECT b FROM kept) WHERE {rows} AND seq = 3",
                f"UPDATE events SET data = (SELECT a FROM kept) WHERE {rows} AND seq = 4",
                "DROP TABLE kept",
            ),
        )


SHORT = {
    "the last 1, nothing with it",
    "the last 7, evidence, journal.db-witness, keys, name with it",
    "the last 20, evidence, journal.db-witness with it",
    "delete of audit 6, evidence with it",
    "time of audit 1, nothing with it",
    "data of evidence 6, evidence with it",
    "two of audit swapped",
}


async def test_no_change_to_a_stopped_home_goes_unnoticed(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    home, state = tmp_path / "home", tmp_path / "state"
    await grown(home, state, ACTS)
    home.rename(tmp_path / "kept")
    every = list(tamperings())
    tried: dict[str, int] = {}
    past: list[str] = []
    for one in chosen(every, [each for each in every if each.name in SHORT]):
        tried[one.kind] = tried.get(one.kind, 0) + 1
        shutil.copytree(tmp_path / "kept", home)
        shutil.copytree(state, tmp_path / "marks")
        if not await _is_noticed(one, home, tmp_path / "marks"):
            past.append(f"{one.kind}: {one.name}")
    for kind, many in tried.items():
        held = many - sum(name.startswith(f"{kind}:") for name in past)
        record_property("class", [kind, many, held])
    assert past == []


async def _is_noticed(one: Tampering, home: Path, state: Path) -> bool:
    """By a start that refuses or writes that another home was here, or by verify after that start."""
    for statement in one.statements:
        in_file(home, statement)
    for cover in one.covers:
        if cover == "name":
            in_file(home, f"DELETE FROM rows WHERE collection = '{COLLECTION}'")
        elif (home / cover).is_dir():
            shutil.rmtree(home / cover)
        else:
            (home / cover).unlink()
    try:
        async with started(home, state) as here:
            await here.act(3)
            rows = await here.journal.read("audit", limit=1)
        return rows[0].type == "home.replaced" or bool(problems_of(home, state))
    except ToolgateError:
        return True
    finally:
        shutil.rmtree(home)
        shutil.rmtree(state)
