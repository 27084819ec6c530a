"""The page is drawn from manifest and marks, and settling touches nothing but what was proven."""

import pytest

from tests.conformance.marks import Mark
from tests.conformance.requirement import Requirement
from tools import conformance

OPEN = Requirement(id="000/a/open", source="seed 000 §2", behaviour="One | two.", issue=6)
PROVEN = Requirement(id="000/b/proven", source="seed 000 §3", behaviour="Three.")
PROOFS = {"000/b/proven": ["tests/t.py::test_one", "tests/t.py::test_two"]}

DATA = """
REQUIREMENTS = (
    Requirement(
        id="000/a/open",
        issue=6,
    ),
    Requirement(
        id="000/b/proven",
        behaviour="Mentions issue=6, in words.",
        issue=6,
    ),
)
"""
SETTLED = """
REQUIREMENTS = (
    Requirement(
        id="000/a/open",
        issue=6,
    ),
    Requirement(
        id="000/b/proven",
        behaviour="Mentions issue=6, in words.",
    ),
)
"""


def test_the_page_shows_an_open_requirement_with_its_issue() -> None:
    row = r"| `000/a/open` | seed 000 §2 | One \| two. | open, issue 6 |"
    assert row in conformance.page([OPEN, PROVEN], PROOFS).splitlines()


def test_the_page_shows_a_proven_requirement_with_each_of_its_tests() -> None:
    cell = "`tests/t.py::test_one`<br>`tests/t.py::test_two`"
    row = f"| `000/b/proven` | seed 000 §3 | Three. | {cell} |"
    assert row in conformance.page([OPEN, PROVEN], PROOFS).splitlines()


def test_the_page_counts_proven_and_open_by_contract_and_in_all() -> None:
    lines = conformance.page([OPEN, PROVEN], PROOFS).splitlines()
    assert "| 000 Runner | 2 | 1 | 1 |" in lines
    assert "| all | 2 | 1 | 1 |" in lines


def test_the_index_links_each_area_to_its_table() -> None:
    drawn = conformance.page([OPEN, PROVEN], PROOFS)
    assert "[a](#000a) 0/1, [b](#000b) 1/1" in drawn
    assert "### 000/a" in drawn


def test_a_test_that_is_marked_twice_is_named_once_and_one_that_does_not_run_never() -> None:
    marks = [
        Mark("000/a/x", "tests/t.py", 1, "tests/t.py::test_one"),
        Mark("000/a/x", "tests/t.py", 2, "tests/t.py::test_one"),
        Mark("000/a/y", "tests/t.py", 3, None),
    ]
    assert conformance.proofs_by_requirement(marks) == {"000/a/x": ["tests/t.py::test_one"]}


def test_settling_takes_the_issue_from_proven_requirements_only() -> None:
    assert conformance.settle(DATA, PROOFS) == SETTLED
    assert conformance.settle(SETTLED, PROOFS) == SETTLED


def test_settling_refuses_an_issue_that_shares_its_line() -> None:
    with pytest.raises(SystemExit):
        conformance.settle('Requirement(id="000/b/proven", issue=6)', PROOFS)
