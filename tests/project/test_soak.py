"""The soak: its tables name files that exist, a mark has a part, and the result is a table."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import selection
from tests.support.soak import PARTS, VARIABLE, Summary, SummaryWriter, part_of, parts_of, rounds_of
from tools.soak import Result, classes_table, table

ROOT = Path(__file__).parents[2]


def test_every_entry_of_the_tables_is_a_file_or_a_folder_with_tests() -> None:
    tables = (selection.NEEDS_SYSTEM, selection.LONG, *selection.SOAK.values())
    for entry in (entry for entries in tables for entry in entries):
        found = ROOT / entry
        assert any(found.rglob("test_*.py")) if entry.endswith("/") else found.is_file(), entry
    assert selection.SOAK.keys() <= set(PARTS)


def test_a_folder_covers_what_is_below_it_and_nothing_else() -> None:
    assert not selection.is_fast("tests/hostile")
    assert not selection.is_fast("tests/hostile/test_battery.py")
    assert selection.is_fast("tests")
    assert selection.is_fast("tests/hostile_not")
    assert selection.order(selection.LONG[0]) == 0
    assert selection.order("tests/core/test_ids.py") == len(selection.LONG)


def test_a_marked_test_runs_a_tenth_and_in_a_soak_all(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    request.node.add_marker(pytest.mark.soak("kills", rounds=30))
    assert part_of(request.node) == "kills"
    monkeypatch.delenv(VARIABLE, raising=False)
    assert rounds_of(request.node) == 3
    monkeypatch.setenv(VARIABLE, "1")
    assert rounds_of(request.node) == 30


def test_faults_are_the_kills_the_cut_offs_the_crash_images_and_the_disk() -> None:
    assert parts_of(["faults"]) == ["kills", "faults"]
    assert parts_of(["kills"]) == ["kills"]
    assert parts_of([]) == parts_of(PARTS) == list(PARTS)
    for file in (
        "tests/e2e/test_ingress_faults.py",
        "tests/journal/sqlite/test_failing_disk.py",
        "tests/e2e/test_full_disk.py",
    ):
        assert selection.soak_part(file) == "faults"


def test_the_table_has_a_row_for_each_part_and_one_for_all() -> None:
    results = [
        Result("kills", Summary(tests=3, rounds=284), seconds=95.4, code=0),
        Result("faults", Summary(tests=40, skipped=1, failures=2, rounds=40), seconds=600, code=1),
    ]
    assert table(results).splitlines() == [
        "part    tests  skipped  rounds  failures   time",
        "kills       3        0     284         0   1:35",
        "faults     40        1      40         2  10:00",
        "all        43        1     324         2  11:35",
    ]


def test_the_summary_has_the_rounds_and_the_tables_that_tests_recorded(tmp_path: Path) -> None:
    writer = SummaryWriter(tmp_path / "summary.json")
    for properties in ([("rounds", 300), ("table", "300 kills")], []):
        writer.pytest_runtest_logreport(
            pytest.TestReport(
                *("a test", ("a file", 1, "a test"), {}, "passed", None, "call"),
                user_properties=properties,
            )
        )
    assert writer.summary == Summary(tests=2, rounds=301, tables=["300 kills"])


def test_the_attacks_are_counted_by_class_where_a_part_has_classes() -> None:
    hostile = Summary(classes={"quoted words": [40, 40], "git options": [9, 8]})
    assert classes_table([Result("kills", Summary(), seconds=1, code=0)]) == ""
    assert classes_table([Result("hostile", hostile, seconds=1, code=1)]).splitlines() == [
        "class         tried  held  got past",
        "git options       9     8         1",
        "quoted words     40    40         0",
    ]


def test_a_part_that_does_not_exist_is_refused() -> None:
    ran = subprocess.run(
        [sys.executable, "tools/soak.py", "kils"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 2
    assert "unknown part 'kils'; the parts are kills, faults, hostile, properties" in ran.stderr
