"""Seed 000 §9: a runner, the gateway and the console together, against the installed program."""

import asyncio
import contextlib
import datetime
import json
import shutil
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.e2e.forked import fork
from tests.e2e.harness import ANY_PORT, PATIENCE, Client, Program, environment, running
from tests.support.engines import need
from tests.support.runner import FakeRunner, whole

RUNNER_TOKEN = "token-of-the-runner"
OPERATOR = "token-of-the-operator"
CALL = '[[tool:bash.exec {"cmd": "printf real-%s $((40+2))"}]]'
POLICY = """\
version: 1
name: check
default: deny
rules:
  - {id: commands, allow: bash.exec, match: any, reason: For the check}
"""


@contextlib.asynccontextmanager
async def runner(*words: str, home: Path, **given: str) -> AsyncIterator[str]:
    settings = {**ANY_PORT, "RUNNER_AUTH_TOKEN": RUNNER_TOKEN, "TOOLGATE_HOME": str(home), **given}
    process = await fork(
        "runner", *words, env=environment(settings), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        line = await asyncio.wait_for(process.stdout.readline(), PATIENCE)
        yield json.loads(line)["urls"]["runner"]
    finally:
        process.terminate()
        await asyncio.wait_for(process.wait(), PATIENCE)


class Operator:
    def __init__(self, program: Program, http: aiohttp.ClientSession) -> None:
        self._base = program.urls["gateway"]
        self._http = http

    async def ask(self, method: str, path: str, **options: Any) -> Any:
        headers = {"authorization": f"Bearer {OPERATOR}"}
        async with self._http.request(
            method, self._base + path, headers=headers, **options
        ) as answer:
            body = await answer.json()
            assert body["ok"] is True, body
            return body["data"]

    async def audit(self, **query: str) -> Any:
        return await self.ask("GET", "/audit/query", params=query)


async def three_runs(program: Program) -> list[str]:
    said = []
    client = await Client.connect(program.urls["ingress_ws"])
    for number in range(3):
        await client.invoke(CALL, agent="script", request_id=f"r{number}")
        heard = await client.hear_until("done", "error")
        said.append("".join(one["text"] for one in heard if one["type"] == "delta"))
    await client.close()
    return said


@pytest.mark.requirement("000/e2e/mock-runner-hit", "000/e2e/bearer-on-each-call")
@pytest.mark.requirement("000/e2e/console-up", "000/e2e/real-runner")
@pytest.mark.requirement("000/e2e/audit-page-one", "000/e2e/audit-page-two")
@pytest.mark.requirement("000/e2e/audit-unknown-action")
@pytest.mark.parametrize("kind", ["mock", "real"])
async def test_runs_reach_the_runner_and_the_audit_log_can_be_paged(
    kind: str, tmp_path: Path
) -> None:
    if kind == "real":
        need("bwrap")
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY)
    began = datetime.datetime.now(datetime.UTC)
    words = ["--mock"] if kind == "mock" else []
    async with (
        runner(*words, home=tmp_path / "runner") as url,
        running(tmp_path / "home", OPERATOR_TOKEN=OPERATOR, POLICY_FILE=str(policy)) as program,
        aiohttp.ClientSession() as http,
    ):
        async with http.get(program.urls["console"]) as page:
            assert page.status == 200
            assert "<title>" in await page.text()
        operator = Operator(program, http)
        target = {
            "tenantId": "t_default",
            "kind": "docker-runner",
            "endpoint": url,
            "authToken": RUNNER_TOKEN,
            "isDefault": True,
        }
        shown = await operator.ask("PUT", "/execution-targets/target_remote_runner", json=target)
        assert RUNNER_TOKEN not in json.dumps(shown)
        # The runner answers 401 to a call without its bearer, so each of these carried it.
        expected = "mock-runner:bash.exec" if kind == "mock" else "real-42"
        for said in await three_runs(program):
            assert expected in said
        await _page_through(operator, began)


async def _page_through(operator: Operator, began: datetime.datetime) -> None:
    everything = (await operator.audit(limit="100"))["items"]
    actions = [row["action"] for row in everything]
    action = max(set(actions), key=actions.count)
    until = datetime.datetime.now(datetime.UTC) + datetime.timedelta(minutes=1)
    window = {"action": action, "from": began.isoformat(), "to": until.isoformat(), "limit": "1"}
    first = await operator.audit(**window)
    assert len(first["items"]) == 1
    assert isinstance(first["nextCursor"], int)
    second = await operator.audit(**window, cursor=str(first["nextCursor"]))
    assert second["items"][0]["id"] < first["items"][0]["id"]
    unknown = await operator.audit(action="no.such.action")
    assert unknown["items"] == []
    assert "nextCursor" not in unknown


@pytest.mark.requirement("000/targets/policy-before-traffic")
async def test_a_call_that_the_policy_denies_never_reaches_the_runner(tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY.replace("allow: bash.exec", "deny: bash.exec"))
    async with (
        FakeRunner(whole({"ok": True, "output": "real-42"})) as trap,
        running(tmp_path / "home", OPERATOR_TOKEN=OPERATOR, POLICY_FILE=str(policy)) as program,
        aiohttp.ClientSession() as http,
    ):
        operator = Operator(program, http)
        target = {"tenantId": "t_default", "kind": "docker-runner", "isDefault": True}
        target["endpoint"] = trap.url
        await operator.ask("PUT", "/execution-targets/target_trap", json=target)
        for said in await three_runs(program):
            assert "real-42" not in said
        assert [each.target for each in trap.asked] == ["/health"]  # when the target was set


@pytest.mark.requirement("000/e2e/script")
async def test_npm_runs_this_check_by_the_name_that_the_seed_gives_it() -> None:
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("npm is not installed")
    process = await asyncio.create_subprocess_exec(
        npm, "run", "--silent", "test:p2:e2e", "--", "--collect-only", "-q",
        cwd=Path(__file__).parents[2],
        env={**environment({}), "PYTHON": sys.executable},
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    said, _ = await asyncio.wait_for(process.communicate(), 3 * PATIENCE)
    assert process.returncode == 0, said
    assert b"test_runs_reach_the_runner_and_the_audit_log_can_be_paged[mock]" in said
