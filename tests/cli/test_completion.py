"""Completion: what a shell asks for at each press of Tab."""

import subprocess
import sys

import pytest

from tests.e2e.forked import toolgate
from tests.e2e.harness import PATIENCE, environment

ASK = """
import sys
import click
from toolgate.cli.main import main
found = main.shell_complete(click.Context(main), "d")
print(*(one.value for one in found), *(name for name in sys.modules if name.startswith("toolgate.cli.d")))
"""


def test_the_names_of_commands_are_completed_without_importing_one() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", ASK], capture_output=True, text=True, check=True, timeout=PATIENCE
    )
    assert ended.stdout.split() == ["demo", "devices", "doctor"]


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        ("toolgate polic", ["policy"]),
        ("toolgate --vers", ["--version"]),
        ("toolgate policy ch", ["check"]),
        ("toolgate token make x --tools wr", ["write"]),
    ],
)
def test_commands_options_and_their_values_are_completed(words: str, completed: list[str]) -> None:
    asked = {"COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1)}
    ended = toolgate(env=environment(asked | {"_TOOLGATE_COMPLETE": "bash_complete"}))
    assert ended.returncode == 0, ended.stderr
    assert [line.removeprefix("plain,") for line in ended.stdout.split()] == completed
