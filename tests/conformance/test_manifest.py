"""The manifest and the tests agree, both ways."""

import re
from collections import Counter
from pathlib import Path

import pytest

from tests.conformance import sources
from tests.conformance.marks import Mark, UnreadableMark, find_marks, marks_in
from tests.conformance.requirements import CONTRACTS, REQUIREMENTS

ROOT = Path(__file__).parents[2]
ID = re.compile(r"\d{3}/[a-z0-9]+(-[a-z0-9]+)*/[a-z0-9]+(-[a-z0-9]+)*")
ISSUES = range(2, 9)


@pytest.fixture(scope="module")
def marks() -> list[Mark]:
    return find_marks(ROOT / "tests", root=ROOT)


def test_every_mark_names_a_requirement_of_the_manifest(marks: list[Mark]) -> None:
    known = {requirement.id for requirement in REQUIREMENTS}
    assert [mark for mark in marks if mark.requirement not in known] == []


def test_every_mark_is_on_a_test_that_runs(marks: list[Mark]) -> None:
    assert [mark for mark in marks if mark.test is None] == []


def test_every_requirement_has_a_test_or_is_open_with_an_issue(marks: list[Mark]) -> None:
    proven = {mark.requirement for mark in marks}
    forgotten = [r.id for r in REQUIREMENTS if r.id not in proven and r.issue not in ISSUES]
    assert forgotten == []


def test_no_requirement_that_has_a_test_is_still_open(marks: list[Mark]) -> None:
    proven = {mark.requirement for mark in marks}
    settled = [r.id for r in REQUIREMENTS if r.id in proven and r.issue is not None]
    assert settled == [], "run `python tools/conformance.py --settle`"


def test_ids_are_unique_readable_and_sorted_by_contract_and_area() -> None:
    ids = [requirement.id for requirement in REQUIREMENTS]
    assert [name for name, times in Counter(ids).items() if times > 1] == []
    assert [name for name in ids if not ID.fullmatch(name)] == []
    assert {requirement.contract for requirement in REQUIREMENTS} == set(CONTRACTS)
    places = [(requirement.contract, requirement.area) for requirement in REQUIREMENTS]
    assert places == sorted(places)


def test_every_behaviour_is_one_sentence_said_once() -> None:
    said = Counter((r.contract, r.behaviour) for r in REQUIREMENTS)
    assert [behaviour for behaviour, times in said.items() if times > 1] == []
    assert [r.id for r in REQUIREMENTS if not re.fullmatch(r"\S.*\.", r.behaviour)] == []


def test_a_divergence_is_a_sentence_and_what_supersedes_a_requirement_exists() -> None:
    ids = {requirement.id for requirement in REQUIREMENTS}
    diverging = [r for r in REQUIREMENTS if r.divergence]
    assert diverging
    assert [r.id for r in diverging if not re.fullmatch(r"\S.*\.", r.divergence)] == []
    assert [r.id for r in REQUIREMENTS if r.superseded_by and r.superseded_by not in ids] == []


def test_every_source_is_in_the_contracts_text() -> None:
    faults = {r.id: sources.fault(r.source, root=ROOT) for r in REQUIREMENTS}
    assert {name: fault for name, fault in faults.items() if fault} == {}


@pytest.mark.parametrize(
    "source",
    ["seed 004 §9.9", "seed 009 §1", "spec browser.md, nowhere", "spec none.md, x", "seed 004"],
)
def test_a_source_that_is_in_no_text_is_found_out(source: str) -> None:
    assert sources.fault(source, root=ROOT)


MARKED = """
import pytest
from pytest import mark

pytestmark = [pytest.mark.requirement("on/the/module")]

@mark.requirement("on/a/function")
@pytest.mark.parametrize("x", [pytest.param(1, marks=pytest.mark.requirement("on/a/param"))])
async def test_one(x): ...

@pytest.mark.requirement("on/a/class")
class TestMore:
    pytestmark = pytest.mark.requirement("in/a/class")

    @pytest.mark.requirement("on/a/method", "on/a/method-too")
    def test_two(self): ...

@pytest.mark.requirement("on/a/helper")
def helper(): ...

@pytest.mark.skip
@pytest.mark.requirement("on/a/skipped")
def test_three(): ...

@pytest.mark.xfail(reason="not yet")
@pytest.mark.requirement("on/a/class-not-run")
class TestLater:
    def test_four(self): ...
"""


def test_marks_are_found_on_modules_classes_functions_and_parameters() -> None:
    assert {mark.requirement: mark.test for mark in marks_in(MARKED, path="t.py")} == {
        "on/the/module": "t.py",
        "on/a/function": "t.py::test_one",
        "on/a/param": "t.py::test_one",
        "on/a/class": "t.py::TestMore",
        "in/a/class": "t.py::TestMore",
        "on/a/method": "t.py::TestMore::test_two",
        "on/a/method-too": "t.py::TestMore::test_two",
        "on/a/helper": None,
        "on/a/skipped": None,
        "on/a/class-not-run": None,
    }


def test_a_mark_whose_id_is_computed_is_refused() -> None:
    with pytest.raises(UnreadableMark):
        list(marks_in("def test_x(): pytest.mark.requirement(name)", path="t.py"))
