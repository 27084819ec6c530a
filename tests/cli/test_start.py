"""The script that everything starts with: Ctrl-C while it loads, and a full disk."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.e2e.harness import PATIENCE, environment

ROOT = Path(__file__).parents[2]
# Presses Ctrl-C just as a module is about to be imported.
LOADING = """
import os, signal, sys
class Pressing:
    def find_spec(self, name, path=None, target=None):
        if name == "{module}":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Pressing())
from {script} import {function}
{function}()
"""


def started(module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    script, _, function = scripts["toolgate"].partition(":")
    program = LOADING.format(module=module, script=script, function=function)
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env=environment({}),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


@pytest.mark.parametrize("module", ["click", "toolgate.cli.doctor", "toolgate.policy.model"])
def test_ctrl_c_while_it_loads_ends_it_without_a_word(module: str) -> None:
    ended = started(module, "doctor")
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "")


def test_ctrl_c_after_that_is_for_the_command_to_tidy_up_after() -> None:
    ended = started("toolgate.cli.nothing", "settings")
    assert ended.returncode == 0
    program = (
        "import signal, sys; from toolgate.cli import start;"
        "sys.argv = ['toolgate', 'settings'];"
        "\ntry: start.run()"
        "\nexcept SystemExit: print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE,
    )
    assert ran.stdout.endswith("True\n")


def test_help_that_cannot_be_written_is_told_in_one_line() -> None:
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(
            [sys.executable, "-c", "from toolgate.cli.start import run; run()", "--help"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
    assert ended.returncode == 1
    assert ended.stderr == "toolgate: [Errno 28] No space left on device\n"


def without(stream: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    program = "from toolgate.cli.start import run; run()"
    return subprocess.run(
        ["sh", "-c", f'exec "$@" {stream}>&-', "sh", sys.executable, "-c", program, *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


@pytest.mark.parametrize("stream", [0, 1, 2])
def test_a_stream_that_is_closed_ends_no_loop(stream: int, tmp_path: Path) -> None:
    ended = without(stream, "chat", "hello", "-s", "WS_PORT=9", "--home", str(tmp_path))
    assert ended.returncode == 1, ended.stderr
    assert ended.stderr.startswith("toolgate: ws://") is (stream != 2)


def test_a_closed_stdin_has_nothing_to_say(tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text("version: 1\nrules: []\n")
    ended = without(0, "policy", "simulate", str(policy), "--calls", "-")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.startswith("0 calls")
