"""`toolgate testkit`: the table, exit codes, a peer that is not there, Ctrl-C."""

import asyncio
import json
import signal
import subprocess
from pathlib import Path

import pytest

from tests.e2e.forked import toolgate
from tests.e2e.harness import PATIENCE, PROGRAM, environment, running

OPERATOR = "token-of-the-operator"


def checked(*arguments: str) -> subprocess.CompletedProcess[str]:
    return toolgate("testkit", *arguments, env=environment({}))


async def test_a_gateway_is_checked_and_the_table_says_what_holds(tmp_path: Path) -> None:
    kept = tmp_path / "operator"
    kept.write_text(f"{OPERATOR}\n")
    async with running(tmp_path / "home", OPERATOR_TOKEN=OPERATOR) as up:
        url = up.urls["gateway"]
        given = ("gateway", url, "--operator-token-file", str(kept))
        shown = await asyncio.to_thread(checked, *given)
        assert (shown.returncode, shown.stderr) == (0, "")
        assert "ok  002   §2.1" in shown.stdout
        assert shown.stdout.endswith(" ok, 0 no, 0 skipped\n")
        told = await asyncio.to_thread(checked, *given, "--json", "--tool", "no.such.tool")
        found = {one["name"]: one for one in json.loads(told.stdout)}
        assert found["answers_health"]["result"] == "ok"
        assert found["answers_in_the_envelope"]["result"] == "skipped"
        assert all(one["quote"] and one["place"] and one["holds"] for one in found.values())
        wrong = await asyncio.to_thread(checked, "runner", f"{url}/execute")
    assert wrong.returncode == 1
    assert wrong.stdout.startswith("no       000   §4 ")
    assert "响应 Schema" in wrong.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ("runner", "http://127.0.0.1:1/execute"),
        ("orchestrator", "http://127.0.0.1:1"),
        ("ingress", "ws://127.0.0.1:1/ws"),
        ("gateway", "http://127.0.0.1:1"),
        ("executor", "http://127.0.0.1:1"),
        ("browser", "http://127.0.0.1:1/mcp"),
        ("browser", "--stdio", "no-such-program-anywhere"),
        ("client", "--listen", "127.0.0.1:0", "--wait", "0.1"),
    ],
    ids=lambda arguments: " ".join(arguments[:2]),
)
def test_a_peer_that_is_not_there_is_one_clear_line(arguments: tuple[str, ...]) -> None:
    ended = checked(*arguments)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.splitlines()[-1].startswith("toolgate: nothing to check: ")


def test_what_makes_no_sense_is_a_usage_error() -> None:
    for arguments in (
        ("runner", "ftp://x"),
        ("runner", "http://127.0.0.1:1", "--token-file", "/nowhere/token"),
        ("gateway", "http://127.0.0.1:1", "--args", "[]"),
        ("client", "--listen", "8090"),
        ("browser",),
        ("browser", "http://x/mcp", "--stdio", "x"),
        ("browser", "--stdio", "'"),
    ):
        ended = checked(*arguments)
        assert (ended.returncode, ended.stdout) == (2, ""), arguments


async def test_ctrl_c_ends_it_and_nothing_is_left() -> None:
    process = await asyncio.create_subprocess_exec(
        PROGRAM,
        *("testkit", "client", "--listen", "127.0.0.1:0"),
        env=environment({}),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stderr is not None
    line = await asyncio.wait_for(process.stderr.readline(), PATIENCE)
    assert b"waiting for a client at ws://127.0.0.1:" in line
    process.send_signal(signal.SIGINT)
    out, err = await asyncio.wait_for(process.communicate(), PATIENCE)
    assert (process.returncode, out) == (130, b"")
    assert b"Traceback" not in err
