"""`toolgate demo`, `doctor`, `console` and `completion`, as a user runs them."""

import asyncio
import json
import signal
import subprocess
from pathlib import Path

import aiohttp
import pytest

from tests.e2e import forked
from tests.e2e.harness import PROGRAM, Program, environment, running
from tests.support.engines import need


def toolgate(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return forked.toolgate(*arguments, env=environment({}), cwd=cwd)


def installed(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [PROGRAM, *arguments],
        cwd=cwd,
        env=environment({}),
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )


def facts(output: str) -> list[tuple[str, str]]:
    return [(one["fact"], one["value"]) for one in map(json.loads, output.splitlines())]


def test_the_demo_plays_on_a_toolgate_of_its_own_and_goes_on_without_a_browser(
    tmp_path: Path,
) -> None:
    need("bwrap")
    no_browser = "--set=CHROMIUM=/nowhere/chromium"
    played = installed("demo", "--private", "--json", no_browser, cwd=tmp_path)
    assert played.returncode == 0, played.stderr
    told = dict(facts(played.stdout))
    assert "approved" in told
    assert "/nowhere/chromium" in told["skipped"]
    assert "apt-get install" in told["install"]
    assert "records" in told["verified"]
    assert any("kept in the sandbox" in value for _, value in facts(played.stdout))
    assert any("blocked" in value for _, value in facts(played.stdout))
    assert not (tmp_path / ".toolgate").exists()


def test_the_demo_that_shall_play_on_one_that_runs_says_how_to_start_one(tmp_path: Path) -> None:
    nowhere = ("--set=GATEWAY_PORT=1", "--set=WS_PORT=1", "--set=OPERATOR_TOKEN=t")
    refused = toolgate("demo", "--running", *nowhere, cwd=tmp_path)
    assert refused.returncode == 1
    assert "`toolgate up`" in refused.stderr


@pytest.mark.parametrize("begun", ["home", "home/journal.db", "home/evidence"])
async def test_ctrl_c_while_the_demo_starts_leaves_nothing_behind(
    tmp_path: Path, begun: str
) -> None:
    given = environment({"TMPDIR": str(tmp_path)})
    demo = await forked.fork("demo", "--private", cwd=tmp_path, env=given, stderr=subprocess.PIPE)
    async with asyncio.timeout(30):
        while not list(tmp_path.glob(f"toolgate-demo-*/{begun}")):
            await asyncio.sleep(0.001)
        demo.send_signal(signal.SIGINT)
        _, said = await demo.communicate()
    assert (demo.returncode, said) == (130, b"")
    assert list(tmp_path.iterdir()) == []


async def test_the_demo_plays_on_the_toolgate_that_runs_here_and_all_of_it_can_be_seen_there(
    tmp_path: Path,
) -> None:
    need("bwrap")
    async with running(tmp_path / "home") as program:
        ports = {
            name: program.urls[url].rpartition(":")[2].removesuffix("/ws")
            for name, url in {"WS_PORT": "ingress_ws", "GATEWAY_PORT": "gateway"}.items()
        }
        pairs = [f"--set={name}={port}" for name, port in ports.items()]
        home = f"--home={program.home}"
        played = await asyncio.to_thread(toolgate, "demo", "--json", home, *pairs, cwd=tmp_path)
        assert played.returncode == 0, played.stderr
        told = facts(played.stdout)
        assert ("ingress", program.urls["ingress_ws"]) in told
        assert dict(told)["status"] == "succeeded"
        assert [value for name, value in told if name == "read"][1].startswith("Policy: ")
        tools, tasks = await seen(program)
        assert "browser.batch_extract_pages" in tools
        assert dict(told)["task"] in tasks
        checked = await asyncio.to_thread(
            toolgate, "evidence", "verify", str(program.home), "--json", cwd=tmp_path
        )
        assert json.loads(checked.stdout)["ok"] is True
        linked = await asyncio.to_thread(toolgate, "console", home, *pairs, cwd=tmp_path)
        assert linked.stdout.startswith(f"{program.urls['console']}#code=")


async def seen(program: Program) -> tuple[set[str], set[str]]:
    """The tools of the evidence and the browser tasks, as the console shows them."""
    token = (program.home / "operator.token").read_text()
    api, bearer = program.urls["gateway"], {"Authorization": f"Bearer {token}"}
    async with aiohttp.ClientSession(headers=bearer) as http:
        async with http.get(f"{api}/evidence?limit=500") as answer:
            records = (await answer.json())["data"]["items"]
        async with http.get(f"{api}/tasks") as answer:
            runs = (await answer.json())["data"]["runs"]
    tools = {one["record"]["fields"].get("tool", "") for one in records}
    return tools, {run["runId"] for run in runs}


def test_a_console_that_does_not_run_is_said_so_in_one_line(tmp_path: Path) -> None:
    nowhere = toolgate("console", "--home", str(tmp_path), cwd=tmp_path)
    assert nowhere.returncode == 2
    assert len(nowhere.stderr.splitlines()) == 1


def test_the_doctor_looks_at_everything_and_says_how_to_mend_it(tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text("version: 9\n")
    sick = toolgate("doctor", "--json", "-s", f"POLICY_FILE={policy}", cwd=tmp_path)
    found = {one["name"]: one for one in json.loads(sick.stdout)}
    assert sick.returncode == 1
    assert not found["policy"]["ok"]
    assert "policy check" in found["policy"]["hint"]
    assert {"python", "chromium", "disk", "GATEWAY_PORT", "sandbox bwrap"} <= found.keys()
    assert all(one["hint"] for one in found.values() if not one["ok"])


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_printed_for_each_shell(shell: str, tmp_path: Path) -> None:
    printed = toolgate("completion", shell, cwd=tmp_path)
    assert printed.returncode == 0
    assert "_TOOLGATE_COMPLETE" in printed.stdout
