"""The schedule file: what is wrong in it is said at the start, with where."""

from pathlib import Path

import pytest

from toolgate.core.errors import Misconfigured
from toolgate.schedules.file import read_schedules


@pytest.mark.parametrize(
    ("name", "line"),
    [("tick", "61 * * * *"), ("never", "0 0 31 2 *"), ("heartbeat", "@every 5m")],
)
def test_an_entry_that_would_not_run_is_refused_by_its_name(
    name: str, line: str, tmp_path: Path
) -> None:
    file = tmp_path / "schedules.yaml"
    file.write_text(f"- {{id: {name}, cron: '{line}', tool: echo}}\n")
    with pytest.raises(Misconfigured, match=name) as refused:
        read_schedules(file)
    assert str(file) in str(refused.value)


def test_entries_are_read_in_their_order(tmp_path: Path) -> None:
    file = tmp_path / "schedules.yaml"
    file.write_text(
        "- {id: morning, cron: '0 8 * * mon-fri', agent: echo, message: hello}\n"
        "- {id: leap, cron: '0 0 29 2 *', tool: echo}\n"
    )
    assert [entry.id for entry in read_schedules(file)] == ["morning", "leap"]
