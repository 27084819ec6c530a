"""A runner made from seed 000 alone, behind the installed program: what it is sent, and when."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import PIPE
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from tests.e2e.forked import fork
from tests.e2e.harness import ANY_PORT, PATIENCE, environment, running
from tests.e2e.test_files_through_artifacts import Executor
from tests.e2e.test_runner_check import OPERATOR, RUNNER_TOKEN, Operator, runner
from tests.support.engines import need

ANYTHING = """\
version: 1
name: anything
default: deny
rules:
  - {id: anything, allow: "*", match: any, reason: For the check}
"""
READING = """\
version: 1
name: reading
default: deny
rules:
  - {id: prepare, allow: python.exec, match: any, reason: As if a person had approved it}
  - {id: no-id, deny: system.exec, match: {command: ["id *"]}, reason: One name stands for all}
  - {id: ls, allow: [shell, exec, bash.exec], match: {command: ["ls *", "env", "git status"]}, reason: It only reads}
"""


@dataclass
class SeedRunner:
    """`POST /execute` as seed 000 words it, with a bearer, and no other path."""

    port: int = 0
    paths: list[str] = field(default_factory=list)
    calls: list[Any] = field(default_factory=list)
    answer: Any = field(default_factory=lambda: {"ok": True, "output": "done"})
    _site: web.AppRunner | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1/execute?zone=a"

    async def open(self) -> None:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._serve)
        self._site = web.AppRunner(app)
        await self._site.setup()
        await web.TCPSite(self._site, "127.0.0.1", self.port, reuse_address=True).start()
        self.port = self._site.addresses[0][1]

    async def close(self) -> None:
        if self._site is not None:
            await self._site.cleanup()

    async def _serve(self, request: web.Request) -> web.Response:
        self.paths.append(f"{request.method} {request.path_qs}")
        if (request.method, request.path) != ("POST", "/v1/execute"):
            return web.Response(status=404, text="no such path")
        assert request.headers["authorization"] == f"Bearer {RUNNER_TOKEN}"
        self.calls.append(await request.json())
        return web.json_response(self.answer)

    def target(self) -> dict[str, Any]:
        return {
            "tenantId": "t_default",
            "kind": "docker-runner",
            "endpoint": self.url,
            "authToken": RUNNER_TOKEN,
            "isDefault": True,
        }


@dataclass
class House:
    foreign: SeedRunner
    operator: Operator
    executor: Executor
    http: aiohttp.ClientSession

    async def health(self) -> Any:
        headers = {"authorization": f"Bearer {OPERATOR}"}
        async with self.http.get(f"{self.executor.url}/status", headers=headers) as answer:
            targets = (await answer.json())["targets"]
        return next(each for each in targets if each["targetId"] == "foreign")["status"]


@contextlib.asynccontextmanager
async def house(tmp_path: Path, policy: str) -> AsyncIterator[House]:
    file = tmp_path / "policy.yaml"
    file.write_text(policy)
    foreign = SeedRunner()
    await foreign.open()
    try:
        async with (
            running(tmp_path / "home", OPERATOR_TOKEN=OPERATOR, POLICY_FILE=str(file)) as program,
            aiohttp.ClientSession() as http,
        ):
            operator = Operator(program, http)
            await operator.ask("PUT", "/execution-targets/foreign", json=foreign.target())
            yield House(foreign, operator, Executor(program, http), http)
    finally:
        await foreign.close()


SENT: Sequence[tuple[str, dict[str, Any], str, dict[str, Any]]] = (
    ("shell", {"command": "ls -l | wc"}, "bash.exec", {"cmd": "ls -l | wc"}),
    ("shell", {"command": "ls", "timeout_ms": 500}, "bash.exec", {"cmd": "ls", "timeoutMs": 500}),
    ("bash.exec", {"cmd": "ls", "cwd": "d"}, "bash.exec", {"cmd": "ls", "cwd": "d"}),
    (
        "exec",
        {"command": "printf", "params": ["%s", "it's $(id)"], "cwd": "d"},
        "bash.exec",
        {"cmd": "exec printf %s 'it'\"'\"'s $(id)'", "cwd": "d"},
    ),
    ("system.exec", {"command": "test"}, "bash.exec", {"cmd": "exec test"}),
    ("system.exec", {"command": "-c", "params": ["x"]}, "bash.exec", {"cmd": "exec -- -c x"}),
    ("python.exec", {"code": "print(1)"}, "python.exec", {"code": "print(1)"}),
    ("file.write", {"path": "f", "content": "x"}, "file.write", {"path": "f", "content": "x"}),
    ("http.request", {"url": "https://example.org/"}, "http.request", {"url": "https://example.org/"}),
)  # fmt: skip


@pytest.mark.requirement("000/targets/default-takes", "000/commands/sent-as-bash-exec")
@pytest.mark.requirement("000/commands/argv-sent-as-exec", "000/health/no-call-waits")
@pytest.mark.requirement("000/health/no-health", "000/request/body-shape")
async def test_a_default_target_gets_each_command_as_the_contract_words_it_and_nothing_else(
    tmp_path: Path,
) -> None:
    async with house(tmp_path, ANYTHING) as here:
        for tool, args, name, sent in SENT:
            answer = await here.executor.run(tool, **args)
            assert answer["tool_result"]["stdout"] == "done", answer
            body = here.foreign.calls[-1]
            assert body["call"] == {"name": name, "args": sent}, tool
            assert body.keys() == {"call", "ctx", "target"}
            assert body["ctx"].keys() == {"runId", "sessionId", "runtimeMode", "toolCallId"}
            assert body["target"] == {
                "targetId": "foreign",
                "kind": "docker-runner",
                "tenantId": "t_default",
            }
        for tool, args in (("echo", {"text": "x"}), ("kv.get", {"key": "x"})):
            assert (await here.executor.run(tool, **args))["ok"], tool
        assert await here.health() == "healthy"
        calls = ["POST /v1/execute?zone=a"] * len(SENT)
        assert here.foreign.paths == ["GET /v1/health", *calls]  # when the target was set


@pytest.mark.requirement("000/commands/argv-sent-as-exec")
async def test_what_a_program_did_on_a_target_is_answered_as_of_one_of_this_machine(
    tmp_path: Path,
) -> None:
    async with house(tmp_path, ANYTHING) as here:
        ended = await here.executor.run("exec", command="true")
        assert ended["tool_result"]["data"]["exitCode"] == 0
        failed = {"ok": False, "exitCode": 3, "error": {"code": "X", "message": "exit code 3"}}
        here.foreign.answer = {"result": failed}
        ended = await here.executor.run("exec", command="false")
        assert ended["tool_result"]["data"]["exitCode"] == 3
        here.foreign.answer = {"result": {"ok": False, "error": {"message": "no such program"}}}
        ended = await here.executor.run("exec", command="false")
        assert "exitCode" not in ended["tool_result"]["data"]
        invalid = await here.executor.run("exec", params=["x"])
        assert not invalid["ok"]
        assert len(here.foreign.calls) == 3


@pytest.mark.requirement("000/commands/deny-covers-names", "000/commands/allow-lists")
@pytest.mark.requirement("000/commands/clean")
async def test_no_command_is_allowed_by_its_words_on_a_runner_that_does_not_promise_to_run_it_clean(
    tmp_path: Path,
) -> None:
    async with house(tmp_path, READING) as here:
        for tool, args in (
            ("shell", {"command": "ls"}),
            ("bash.exec", {"cmd": "ls"}),
            ("exec", {"command": "ls"}),
            ("system.exec", {"command": "ls"}),
            ("shell", {"command": "id"}),
        ):
            answer = await here.executor.run(tool, **args)
            assert answer["policy_check"]["decision"] == "deny", answer
            rule = "no-id" if args.get("command") == "id" else "default_deny"
            assert answer["policy_check"]["rule_id"] == rule, answer
        assert here.foreign.calls == []


@pytest.mark.requirement("000/failure/policy-by-gateway-only", "000/targets/disabled-denied")
@pytest.mark.requirement("000/answer/no-policy-from-runner")
async def test_only_the_gateway_says_policy_denied(tmp_path: Path) -> None:
    async with house(tmp_path, ANYTHING) as here:

        async def code() -> str:
            answer = await here.executor.run("shell", command="ls")
            return str(answer["tool_result"]["data"]["error"]["code"])

        here.foreign.answer = {"ok": False, "error": {"code": "POLICY_DENIED", "message": "no"}}
        assert await code() == "TOOL_EXEC_FAILED"
        off = {"enabled": False}
        await here.operator.ask("PUT", "/execution-targets/foreign", json=off)
        assert await code() == "POLICY_DENIED"
        assert len(here.foreign.calls) == 1


PREPARE = """
import os, subprocess
os.makedirs("bin")
with open("bin/ls", "w") as evil:
    evil.write("#!/bin/sh\\necho evil\\n")
os.chmod("bin/ls", 0o755)
subprocess.run("git init -q; git config core.fsmonitor 'touch /tmp/evil;:'; echo x > f; "
               "git config filter.x.clean 'touch /tmp/evil; cat'; echo '* filter=x' > .gitattributes",
               shell=True, check=True)
"""


@pytest.mark.requirement("000/commands/clean")
async def test_a_command_that_a_rule_allows_runs_clean_on_a_runner_of_ours(tmp_path: Path) -> None:
    need("bwrap")
    async with (
        house(tmp_path, READING) as here,
        runner(home=tmp_path / "runner") as url,
    ):
        target = here.foreign.target() | {"endpoint": url}
        await here.operator.ask("PUT", "/execution-targets/ours", json=target)
        prepared = await here.executor.run("python.exec", code=PREPARE)
        assert prepared["ok"], prepared
        for tool, args in (
            ("shell", {"command": "ls"}),
            ("exec", {"command": "ls"}),
            ("shell", {"command": "git status"}),
            ("bash.exec", {"cmd": "git status"}),
            ("exec", {"command": "git", "params": ["status"]}),
            ("shell", {"command": "env"}),
        ):
            answer = await here.executor.run(tool, **args)
            assert answer["ok"], answer
            said = answer["tool_result"]["stdout"]
            assert "evil" not in said, (tool, args)
            assert (args.get("command") == "env") is ("GIT_CONFIG_COUNT" in said)
        seen = await here.executor.run(
            "python.exec", code="import os; print(os.path.exists('/tmp/evil'))"
        )
        assert seen["tool_result"]["stdout"] == "False\n"
        assert here.foreign.calls == []


@pytest.mark.requirement("000/failure/probe")
async def test_a_runner_that_is_back_is_used_at_once_by_the_first_call_after_two_seconds(
    tmp_path: Path,
) -> None:
    async with house(tmp_path, ANYTHING) as here:
        await here.foreign.close()
        for _ in range(5):
            failed = await here.executor.run("shell", command="ls")
            assert "cannot be reached" in failed["tool_result"]["stderr"]
        skipped = await here.executor.run("shell", command="ls")
        assert "did not answer lately" in skipped["tool_result"]["stderr"]
        assert await here.health() == "degraded"
        await here.foreign.open()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + PATIENCE
        tries = 0
        while not (await here.executor.run("shell", command="ls"))["tool_result"]["stdout"]:
            assert loop.time() < deadline
            tries += 1
            await asyncio.sleep(0.05)
        assert len(here.foreign.calls) == 1, "the first call that was let through is the probe"
        assert tries > 0
        assert (await here.executor.run("shell", command="ls"))["tool_result"]["stdout"]


@pytest.mark.requirement("000/server/host", "000/server/open-on-loopback")
async def test_a_runner_without_a_token_is_open_on_loopback_to_the_seed_s_curl_and_to_no_page(
    tmp_path: Path,
) -> None:
    body = (
        b'{"call":{"name":"bash.exec","args":{"cmd":"printf ok"}},"ctx":{"runId":"r",'
        b'"sessionId":"s","runtimeMode":"local"},"target":{"targetId":"t",'
        b'"kind":"docker-runner","tenantId":"tenant"}}'
    )
    answer = {"result": {"ok": True, "output": "mock-runner:bash.exec"}}
    async with (
        runner("--mock", home=tmp_path / "runner", RUNNER_AUTH_TOKEN="") as url,
        aiohttp.ClientSession() as http,
    ):
        for host, status in (("", 200), ("localhost:1", 200), ("rebound.example", 401)):
            headers = {"content-type": "application/json"} | ({"host": host} if host else {})
            async with http.post(url, data=body, headers=headers) as said:
                assert said.status == status, host
                if status == 200:
                    assert await said.json() == answer
            async with http.get(url.replace("/execute", "/health"), headers=headers) as said:
                assert said.status == status, host
    process = await fork(
        "runner", "--mock", env=environment({**ANY_PORT, "HOST": "0.0.0.0"}), stderr=PIPE
    )
    assert process.stderr is not None
    said_why = await asyncio.wait_for(process.stderr.read(), PATIENCE)
    assert await asyncio.wait_for(process.wait(), PATIENCE) != 0
    assert b"RUNNER_AUTH_TOKEN" in said_why
