"""Run the soak: kills, faults, hostile batteries and properties in full, one part after the other.

soak.py [part ...]   the parts that are named, or all of them; faults brings the kills along
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.support.soak import PARTS, VARIABLE, Summary, parts_of

ROOT = Path(__file__).parents[1]
PYTEST = (
    *(sys.executable, "-m", "pytest", "-q"),
    *("--numprocesses", "auto", "--maxprocesses", "4", "--dist", "loadfile"),
    "--no-loadscope-reorder",
)
COLUMNS = ("part", "tests", "skipped", "rounds", "failures", "time")


@dataclass(frozen=True, slots=True)
class Result:
    part: str
    summary: Summary
    seconds: float
    code: int


def run_part(part: str) -> Result:
    """One pytest run; what it prints is the progress."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "summary.json"
        ended = subprocess.run(  # noqa: S603 - fixed
            [*PYTEST, "--soak", part, "--soak-summary", str(file)],
            cwd=ROOT,
            env={**os.environ, VARIABLE: "1"},  # noqa: TID251
            check=False,
        )
        summary = Summary(**json.loads(file.read_bytes())) if file.exists() else Summary()
    return Result(part, summary, time.monotonic() - began, ended.returncode)


def table(results: Sequence[Result]) -> str:
    """The table: numbers to the right, the whole in the last row."""
    rows: list[tuple[str, ...]] = [COLUMNS]
    for result in results:
        told = result.summary
        numbers = (told.tests, told.skipped, told.rounds, told.failures)
        rows.append((result.part, *map(str, numbers), _minutes(result.seconds)))
    if len(results) > 1:
        columns = ("tests", "skipped", "rounds", "failures")
        sums = (sum(getattr(each.summary, name) for each in results) for name in columns)
        rows.append(("all", *map(str, sums), _minutes(sum(each.seconds for each in results))))
    return _aligned(rows)


def classes_table(results: Sequence[Result]) -> str:
    """The classes of attacks, with the numbers tried and held; empty where no part has any."""
    rows: list[tuple[str, ...]] = [("class", "tried", "held", "got past")]
    for result in results:
        for kind, (tried, held) in sorted(result.summary.classes.items()):
            rows.append((kind, str(tried), str(held), str(tried - held)))
    return _aligned(rows) if len(rows) > 1 else ""


def _aligned(rows: Sequence[tuple[str, ...]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if at else cell.ljust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    )


def _minutes(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="part", help=", ".join(PARTS))
    named = parser.parse_args().parts
    if unknown := [part for part in named if part not in PARTS]:
        parser.error(f"unknown part {unknown[0]!r}; the parts are {', '.join(PARTS)}")
    parts, results = parts_of(named), []
    for number, part in enumerate(parts, start=1):
        print(f"\nSoak {number} of {len(parts)}: {part}", flush=True)
        results.append(run_part(part))
    print("".join(f"\n{one}\n" for result in results for one in result.summary.tables))
    print(f"\n{table(results)}")
    if classes := classes_table(results):
        print(f"\n{classes}")
    return 1 if any(result.code for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
