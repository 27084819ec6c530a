"""The `soak` mark: a test that repeats itself a few times in `make test`, and in full in `make soak`."""

import json
import os
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

import pytest

from tests.support import selection

PARTS: Final = ("kills", "faults", "hostile", "properties")
# Set by tools/soak.py. Not TOOLGATE_…, which the command line would take for a setting.
VARIABLE: Final = "IN_A_SOAK"
WITH: Final = {"faults": ("kills", "faults")}  # a kill is a fault, too
PASSING: Final = re.compile(r"(\d+) passing")  # in Hypothesis's statistics


def soaking() -> bool:
    return bool(os.environ.get(VARIABLE))


def parts_of(named: Iterable[str]) -> list[str]:
    """The parts to run for those that are named, each once; all if none is."""
    wanted = [part for name in named for part in WITH.get(name, (name,))]
    return [part for part in PARTS if part in wanted] or list(PARTS)


def part_of(item: pytest.Item) -> str | None:
    """The part of the soak that a test belongs to: by mark, as a Hypothesis test, or by file."""
    mark = item.get_closest_marker("soak")
    if mark is not None:
        part = str(mark.args[0]) if mark.args else ""
        if part not in PARTS:
            raise pytest.UsageError(f"{item.nodeid}: soak part {part!r} is none of {PARTS}")
        return part
    if item.get_closest_marker("hypothesis") is not None:
        return "properties"
    return selection.soak_part(item.nodeid.partition("::")[0])


def rounds_of(item: pytest.Item) -> int:
    """`rounds` of the mark in a soak; else its `short`, or a tenth."""
    mark = item.get_closest_marker("soak")
    if mark is None or "rounds" not in mark.kwargs:
        raise pytest.UsageError(f"{item.nodeid}: the fixture `rounds` needs soak(part, rounds=…)")
    full = int(mark.kwargs["rounds"])
    return full if soaking() else int(mark.kwargs.get("short", max(1, full // 10)))


@dataclass
class Summary:
    """The result of one part."""

    tests: int = 0
    skipped: int = 0
    failures: int = 0
    rounds: int = 0  # kills, attacks or examples
    tables: list[str] = field(default_factory=list)  # what tests recorded as their property `table`
    classes: dict[str, list[int]] = field(default_factory=dict)  # of attacks: tried, held


class SummaryWriter:
    """Counts the reports and stores a `Summary` as JSON, for tools/soak.py."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.summary = Summary()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> None:
        """Record the number of examples, in the process that ran them."""
        told = str(getattr(item, "hypothesis_statistics", ""))
        if call.when == "call" and told:
            examples = sum(map(int, PASSING.findall(told)))
            item.user_properties.append(("rounds", examples))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.summary.failures += 1
        elif report.skipped:
            self.summary.skipped += 1
        if report.when == "call":
            self.summary.tests += 1
            recorded = dict(report.user_properties)
            self.summary.rounds += int(str(recorded.get("rounds", 1)))
            if "table" in recorded:
                self.summary.tables.append(str(recorded["table"]))
            for name, value in report.user_properties:
                if name == "class" and isinstance(value, list | tuple):
                    kind, tried, held = value
                    self.summary.classes[str(kind)] = [int(tried), int(held)]

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if not hasattr(session.config, "workerinput"):
            self.file.write_text(json.dumps(asdict(self.summary)), encoding="utf-8")
