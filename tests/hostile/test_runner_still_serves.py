"""A real `toolgate runner` under attack over HTTP: it goes on serving, and leaves nothing behind."""

import asyncio
import contextlib
import json
import secrets
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.e2e.harness import ANY_PORT, PATIENCE, PROGRAM, environment
from tests.hostile.battery import outer_limit
from tests.support.batteries import chosen
from tests.support.engines import need
from toolgate.sandbox.bwrap import ENTER
from toolgate.sandbox.cgroups import Group

TOKEN = "token-of-the-runner"
ATTACKS = {
    "fork bomb": "bomb() { bomb | bomb & }; bomb; sleep 1",
    "memory bomb": "head -c 900000000 /dev/zero | tail | wc -c",
    "output flood": "yes flood",
    "disk fill": "head -c 300000000 /dev/zero > big; head -c 300000000 /dev/zero > /tmp/big",
    "daemon": "setsid sh -c 'trap : TERM HUP; sleep 987; sleep 987' & disown",
    "kill everyone": "kill -9 -1",
    "stopped": "sleep 987 & kill -STOP $!; kill -STOP $$",
    "spin": "while :; do :; done",
}
SHORT = ("fork bomb", "output flood", "daemon", "kill everyone")


class Attacked:
    def __init__(self, url: str, pid: int, mark: str, http: aiohttp.ClientSession) -> None:
        self.url = url
        self._env = {"MARK": mark}
        self.pid = pid
        self._http = http

    async def run(self, cmd: str, session: str) -> Any:
        args = {"cmd": cmd, "timeoutMs": 2000, "env": self._env}
        body = {
            "call": {"name": "bash.exec", "args": args},
            "ctx": {"runId": "r", "sessionId": session, "runtimeMode": "local"},
            "target": {"targetId": "t", "kind": "docker-runner", "tenantId": "hostile"},
        }
        headers = {"authorization": f"Bearer {TOKEN}"}
        async with self._http.post(self.url, json=body, headers=headers) as answer:
            assert answer.status == 200
            return (await answer.json())["result"]

    async def health(self) -> Any:
        async with self._http.get(self.url.replace("/execute", "/health")) as answer:
            return await answer.json()


def traces(pid: int, mark: str) -> set[str]:
    """Whatever a runner of this pid could leave on the host."""
    found = {str(path) for path in Path("/tmp").glob(f"toolgate-*-{pid}-*")}
    found |= {str(path) for path in Path("/sys/fs/cgroup").glob(f"**/toolgate-{pid}*")}
    mounts = Path("/proc/self/mounts").read_text()
    found |= {line for line in mounts.splitlines() if f"-{pid}-" in line or "/workspace" in line}
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and mark.encode() in (entry / "environ").read_bytes():
                found.add(f"process {entry.name}")
    return found


@contextlib.asynccontextmanager
async def attacked(home: Path, mark: str, outer: Group) -> AsyncIterator[Attacked]:
    settings = {**ANY_PORT, "RUNNER_AUTH_TOKEN": TOKEN, "TOOLGATE_HOME": str(home), "MARK": mark}
    doors = [str(path) for path in outer.entrances]
    process = await asyncio.create_subprocess_exec(
        "/bin/sh", "-c", ENTER, "enter", str(len(doors)), *doors, PROGRAM, "runner",
        env=environment(settings),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        line = await asyncio.wait_for(process.stdout.readline(), PATIENCE)
        async with aiohttp.ClientSession() as http:
            yield Attacked(json.loads(line)["urls"]["runner"], process.pid, mark, http)
    finally:
        if process.returncode is None:
            process.terminate()
        await asyncio.wait_for(process.wait(), PATIENCE)


@pytest.mark.timeout(120)
async def test_the_runner_serves_after_every_attack_and_leaves_nothing(tmp_path: Path) -> None:
    need("bwrap")
    mark = f"hostile-mark-{secrets.token_hex(8)}"
    async with (
        outer_limit() as (outer, _),
        attacked(tmp_path / "home", mark, outer) as runner,
    ):
        attacks = chosen(ATTACKS, SHORT)
        for pair in zip(attacks[::2], attacks[1::2], strict=True):
            # Two sessions at a time; and beside them one that only wants to work.
            answers = await asyncio.gather(
                *(runner.run(ATTACKS[name], session=name) for name in pair),
                runner.run("echo beside", session="beside"),
            )
            assert answers[-1]["output"] == "beside\n"
            for name in pair:
                again = await runner.run("echo still here", session=name)
                assert again["output"] == "still here\n", name
        assert (await runner.health())["ok"] is True
        everything = [entry for entry in traces(runner.pid, mark) if "process" not in entry]
        assert everything  # the judges see what a running one has
        pid = runner.pid
    assert traces(pid, mark) == set()
