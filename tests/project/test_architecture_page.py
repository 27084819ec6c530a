"""docs/architecture.md and CONTRIBUTING name only what exists, and draw the states as they are."""

import re
from collections.abc import Iterable, Mapping
from enum import StrEnum
from pathlib import Path

import pytest

from toolgate.core.enums import CallStatus
from toolgate.runs import state as runs
from toolgate.tasks import state as tasks
from toolgate.tools import calls

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text("utf-8")
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
PATH = re.compile(r"`([a-z_0-9]+(?:/[a-zA-Z_0-9.]+)+/?|[a-z_]+/|[a-z_]+\.py)`")


def drawn_after(heading: str) -> set[tuple[str, str]]:
    block = PAGE.split(heading, 1)[1].split("```")[1]
    return set(re.findall(r"(\w+) --> (\w+)", block))


def arrows(table: Mapping[StrEnum, Iterable[StrEnum]]) -> set[tuple[str, str]]:
    return {(str(one), str(other)) for one, after in table.items() for other in after}


def test_the_page_names_only_paths_that_exist() -> None:
    named = set(PATH.findall(PAGE))
    assert "tools/gate.py" in named
    places = (ROOT / "src" / "toolgate", ROOT)
    assert [one for one in named if not any((place / one).exists() for place in places)] == []


def test_contributing_names_only_paths_that_exist() -> None:
    named = {one for one in PATH.findall(CONTRIBUTING) if "NAME" not in one}
    assert "src/toolgate/tools/engine.py" in named
    assert [one for one in named if not (ROOT / one).exists()] == []


def test_every_room_is_on_the_page() -> None:
    table = PAGE.split("## The rooms")[1].split("## Five roads")[0]
    package = ROOT / "src" / "toolgate"
    rooms = {one.name for one in package.iterdir() if one.is_dir() and one.name[0] != "_"}
    assert [room for room in rooms if f"`{room}/`" not in table] == []


@pytest.mark.parametrize(
    ("heading", "table"),
    [
        ("A run (`runs/state.py`)", runs.TRANSITIONS),
        ("A tool call (`tools/calls.py`)", calls.TRANSITIONS),
        ("A browser task run (`tasks/state.py`)", tasks.TRANSITIONS),
    ],
)
def test_the_states_are_drawn_as_they_are(
    heading: str, table: Mapping[StrEnum, Iterable[StrEnum]]
) -> None:
    assert drawn_after(heading) == arrows(table)


def test_what_recovery_does_with_a_call_is_said_of_every_state_that_a_row_keeps() -> None:
    passed = {CallStatus.CREATED, CallStatus.POLICY_CHECKED}
    kept = set(CallStatus) - calls.TERMINAL - passed
    assert [status for status in kept if f"| `{status}` |" not in PAGE] == []
