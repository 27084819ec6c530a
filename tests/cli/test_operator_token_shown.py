"""The operator's token is printed to a terminal only, once; the link that signs in too, at each start."""

import asyncio
import contextlib
import json
import os
import pty
from pathlib import Path
from subprocess import PIPE

import pytest

from tests.e2e.forked import fork
from tests.e2e.harness import ANY_PORT, PATIENCE, environment, running


async def start_at_a_terminal(home: Path) -> tuple[str, str]:
    """Start and stop `toolgate up` with its stderr at a terminal; return the ready line and stderr."""
    ours, theirs = pty.openpty()
    env = environment({**ANY_PORT, "TOOLGATE_HOME": str(home), "TERM": "xterm"})
    process = await fork("up", env=env, stdout=PIPE, stderr=theirs, cwd=home.parent)
    os.close(theirs)
    reading = asyncio.create_task(asyncio.to_thread(read_to_the_end, ours))
    assert process.stdout is not None
    ready = await asyncio.wait_for(process.stdout.readline(), 3 * PATIENCE)
    process.terminate()
    await asyncio.wait_for(process.wait(), PATIENCE)
    return ready.decode(), await asyncio.wait_for(reading, PATIENCE)


def read_to_the_end(descriptor: int) -> str:
    written = b""
    with contextlib.suppress(OSError):  # how Linux reports that the other side is closed
        while chunk := os.read(descriptor, 65536):
            written += chunk
    os.close(descriptor)
    return written.decode()


@pytest.mark.requirement("002/pairing/operator-token-made")
async def test_a_terminal_gets_the_operators_token_at_the_first_start_and_never_again(
    tmp_path: Path,
) -> None:
    home = tmp_path / "home"
    ready, shown = await start_at_a_terminal(home)
    token = (home / "operator.token").read_text()
    assert json.loads(ready)["ready"] is True
    assert token not in ready
    assert shown.count(token) == 1
    assert "#code=tg_code_" in shown
    ready, shown = await start_at_a_terminal(home)
    assert token not in ready + shown
    assert "#code=tg_code_" in shown


@pytest.mark.requirement("002/pairing/operator-token-made")
async def test_a_pipe_gets_the_path_of_the_operators_token_and_not_the_token(
    tmp_path: Path,
) -> None:
    home = tmp_path / "home"
    async with running(home) as program:
        kept = home / "operator.token"
        log = program.log.read_text()
        assert kept.read_text() not in log + json.dumps(program.urls)
        assert str(kept) in log
        await program.stop()
        log = program.log.read_text()
        assert "#code=" not in log
        assert "`toolgate console` prints" in log


async def test_lines_of_json_hold_no_token_where_they_go_to_a_pipe(tmp_path: Path) -> None:
    home = tmp_path / "home"
    async with running(home, LOG_FORMAT="json") as program:
        log = program.log.read_text()
        notices = [json.loads(line).get("notice", "") for line in log.splitlines()]
        assert any(str(home / "operator.token") in notice for notice in notices)
        assert (home / "operator.token").read_text() not in log
