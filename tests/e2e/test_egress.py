"""Egress by policy, in the installed program: none by default, and what is granted through the guard."""

from pathlib import Path

import aiohttp
import pytest

from tests.e2e.harness import running
from tests.e2e.test_files_through_artifacts import Executor
from tests.e2e.test_runner_check import OPERATOR, Operator
from tests.support.engines import need

POLICY = """\
version: 1
name: egress
default: deny
rules:
  - {id: code, allow: [python.exec, bash.exec], match: any, reason: For the check}
  - {id: everything, allow: "*", match: any, reason: A wildcard opens no network}
"""
GRANT = """\
egress:
  - {id: names, hosts: [granted.invalid, localhost, "*.nip.test"], reason: For the check}
"""
FETCH = (
    "import urllib.request\n"
    "for url in {urls!r}:\n"
    "  try: urllib.request.urlopen(url, timeout=5); print('reached')\n"
    "  except OSError as no: print(getattr(no, 'code', 'cut'))\n"
)


@pytest.mark.parametrize("granted", [False, True])
async def test_a_sandbox_reaches_what_the_policy_grants_and_the_guard_lets_through(
    granted: bool, tmp_path: Path
) -> None:
    need("bwrap")
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY + (GRANT if granted else ""))
    async with (
        running(tmp_path / "home", OPERATOR_TOKEN=OPERATOR, POLICY_FILE=str(policy)) as program,
        aiohttp.ClientSession() as http,
    ):
        executor = Executor(program, http)
        urls = ["http://granted.invalid/", "http://localhost/", "http://example.org/"]
        all_by_proxy = {"no_proxy": "", "NO_PROXY": ""}  # its own localhost too
        ran = await executor.run("python.exec", code=FETCH.format(urls=urls), env=all_by_proxy)
        # 502: granted, and there is no such name; 403: refused by the guard, and by the policy.
        expected = ["502", "403", "403"] if granted else ["cut", "cut", "cut"]
        assert ran["tool_result"]["stdout"].split() == expected, ran
        proxy = await executor.run("bash.exec", cmd="echo $https_proxy")
        assert bool(proxy["tool_result"]["stdout"].strip()) is granted
        rows = (await Operator(program, http).audit(action="sandbox.egress"))["items"]
        told = [(row["resourceId"], row["metadata"]["decision"]) for row in reversed(rows)]
        assert told == (
            [
                ("granted.invalid:80", "allow"),
                ("localhost:80", "deny"),
                ("example.org:80", "deny"),
            ]
            if granted
            else []
        )
