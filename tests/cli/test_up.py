"""`toolgate up` in the wrong directory, and mistyped commands."""

import asyncio
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from click.testing import CliRunner

from tests.e2e.harness import running
from toolgate.cli.main import main


async def test_up_without_a_home_says_that_another_home_is_running_and_makes_none(
    tmp_path: Path,
) -> None:
    home = tmp_path / "here" / ".toolgate"
    async with running(tmp_path / "other") as program:
        url = program.urls["gateway"]
        port = f"--set=GATEWAY_PORT={urlsplit(url).port}"
        up = ["up", "--home", str(home), port]
        ended = await asyncio.to_thread(CliRunner().invoke, main, up)
        assert ended.exit_code == 2
        (line,) = ended.stderr.splitlines()
        assert all(part in line for part in (url, str(home), "--home", "GATEWAY_PORT"))
        assert not home.parent.exists()


@pytest.mark.parametrize(
    ("typed", "meant"),
    [(["devics"], "devices"), (["aproval", "list"], "approvals"), (["runs", "cancle"], "cancel")],
)
def test_a_mistyped_command_names_the_nearest(typed: list[str], meant: str) -> None:
    ended = CliRunner().invoke(main, typed)
    assert ended.exit_code == 2
    assert f"Did you mean '{meant}'?" in ended.stderr


def test_a_word_that_is_near_no_command_is_no_such_command() -> None:
    ended = CliRunner().invoke(main, ["frobnicate"])
    assert "No such command 'frobnicate'." in ended.stderr
    assert "mean" not in ended.stderr
