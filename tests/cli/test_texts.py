"""Texts that a locale cannot spell, and bytes that are no text."""

import asyncio
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.e2e.forked import toolgate
from tests.e2e.harness import PATIENCE, PROGRAM, environment, running
from toolgate.cli.main import main

NO_TEXT = b"hi\xff"
CHINESE = ("policy", "explain", "--tool", "\u6c49\u5b57")


def installed(
    *arguments: str | bytes, given: dict[str, str], said: bytes = b""
) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [str(PROGRAM), *arguments],
        env=environment(given),
        input=said,
        capture_output=True,
        timeout=PATIENCE,
        check=False,
    )


@pytest.mark.parametrize("encoding", ["latin-1", "ascii", "cp437"])
def test_what_a_terminal_cannot_spell_is_spelled_out(encoding: str, tmp_path: Path) -> None:
    home = {"TOOLGATE_HOME": str(tmp_path)}
    ended = CliRunner(charset=encoding, env=home).invoke(main, CHINESE)
    assert ended.exit_code == 0, ended.output
    assert "\\u6c49\\u5b57" in ended.stdout
    assert ended.stderr == ""


def test_what_a_terminal_cannot_spell_the_installed_program_spells_out(tmp_path: Path) -> None:
    given = {"PYTHONIOENCODING": "ascii", "TOOLGATE_HOME": str(tmp_path)}
    ended = installed(*CHINESE, given=given)
    assert ended.returncode == 0, ended.stderr
    assert b"\\u6c49\\u5b57" in ended.stdout
    assert ended.stderr == b""


async def test_what_is_no_text_is_refused_in_one_line(tmp_path: Path) -> None:
    home = tmp_path / "home"
    async with running(home) as program:
        given = {
            "TOOLGATE_HOME": str(home),
            "WS_PORT": program.urls["ingress_ws"].rpartition(":")[2].removesuffix("/ws"),
            "GATEWAY_PORT": program.urls["gateway"].rpartition(":")[2],
        }
        for arguments in (
            ("chat",),
            ("chat", "hello", "--user"),
            ("artifact", "get"),
            ("audit", "query", "--action"),
            ("evidence", "show"),
        ):
            refused = await asyncio.to_thread(toolgate, *arguments, NO_TEXT, env=environment(given))
            assert refused.returncode == 2, refused.stderr
            assert (
                refused.stderr
                == "toolgate: 'hi\\udcff' cannot be sent: it must be valid UTF-8 text\n"
            )
        for locale in ("C", "C.UTF-8"):
            ended = await asyncio.to_thread(
                installed, "chat", said=NO_TEXT, given=given | {"LC_ALL": locale}
            )
            assert ended.returncode == 1
            assert b"toolgate: stdin cannot be read" in ended.stderr
            assert b"Traceback" not in ended.stderr
