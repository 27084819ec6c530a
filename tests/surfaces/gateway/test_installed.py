"""The gateway of a whole installation: the real pipeline, sandbox, guard, policy and evidence."""

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import aiohttp.web
import pytest
import pytest_asyncio

from tests.surfaces.gateway.conftest import ALL, Answered
from toolgate import settings as table
from toolgate.bootstrap.roles import start_everything
from toolgate.contracts.gateway_v1 import DEFAULT_PORT, ErrorCode
from toolgate.core.enums import Outcome
from toolgate.evidence.check import ClosedHome
from toolgate.tools.engines.builtin import exec as exec_tool

pytestmark = pytest.mark.asyncio(loop_scope="module")

OPERATOR = "operator-of-the-installed"
SECRET = "sk-proj-Zk3vJ8qLw2Xr7TnB5mYc9PdF4hGs6AeU1oKi0RtVbN"
POLICY = """
version: 1
name: test
default: deny
rules:
  - id: commands
    allow: exec
    match: {command: ["ls *", "echo *", "printenv *", "printenv", "sleep *", "seq *", "cat *",
                      "ln *", "pwd", "false", "touch *"]}
    reason: For the tests
  - {id: shells, ask: exec, match: {command: ["sh *"]}, reason: Runs anything}
  - {id: web, allow: [web.fetch, http.fetch], match: any, reason: The guard decides}
  - {id: small, allow: [echo, math.add, text.upper, web.search, "browser.*"], match: any, reason: Reads}
  - {id: writes, ask: [kv.set, file.write], match: any, reason: It writes}
  - {id: signs, ask: "*", match: {level: sign}, reason: It signs}
  - {id: mcp, allow: "mcp.*", match: any, reason: Its own tools}
  - {id: targets, allow: [bash.exec], match: any, reason: Its own tools}
"""
SERVER = Path(__file__).parents[2] / "tools" / "upstream" / "servers" / "server.py"


class Installed:
    """What is running, and a device that may do everything."""

    def __init__(self, url: str, http: aiohttp.ClientSession, home: Path) -> None:
        self.url = url
        self.http = http
        self.home = home
        self.device: dict[str, str] = {}
        self.keys = iter(range(10_000))

    async def ask(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> Answered:
        async with (
            asyncio.timeout(60),
            self.http.request(method, self.url + path, json=body, headers=headers) as answer,
        ):
            content = await answer.read()
            return Answered(answer.status, answer.headers, content, json.loads(content))

    async def operator(self, method: str, path: str, body: Any = None) -> Answered:
        return await self.ask(method, path, body, {"Authorization": f"Bearer {OPERATOR}"})

    async def command(self, kind: str, payload: Any, **members: Any) -> Answered:
        headers = {**self.device, "Idempotency-Key": f"k{next(self.keys)}"}
        return await self.ask("POST", f"/command/{kind}", {"payload": payload, **members}, headers)

    async def system(self, action: str, args: Any, **more: Any) -> Answered:
        return await self.command("system", {"action": action, "args": args, **more})

    async def exec(self, cmd: str, **more: Any) -> Answered:
        return await self.system("exec", {"cmd": cmd}, **more)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def installed(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Installed]:
    home = tmp_path_factory.mktemp("installed")
    policy, schedules = home / "team.yaml", home / "schedules.yaml"
    policy.write_text(POLICY)
    schedules.write_text("- {id: tick, cron: '@every 1s', tool: echo, args: {text: tick}}\n")
    mcp = home / "mcp.json"
    mcp.write_text(
        json.dumps(
            {"mcpServers": {"test": {"command": sys.executable, "args": [str(SERVER), "stdio"]}}}
        )
    )
    async with serving_search() as search:
        settings = table.load(
            {
                "TOOLGATE_HOME": str(home / "home"),
                **{f"{name}_PORT": "0" for name in ("WS", "HTTP", "ORCHESTRATOR", "GATEWAY")},
                "OPERATOR_TOKEN": OPERATOR,
                "POLICY_FILE": str(policy),
                "SCHEDULE_FILE": str(schedules),
                "HEARTBEAT": "@every 1s",
                "MCP_FILE": str(mcp),
                "SEARCH_PROVIDER": "searxng",
                "SEARCH_URL": search,
                "SEARCH_KEY": SECRET,
                "GATEWAY_RATE": "100000",
                "LOG_LEVEL": "warning",
            },
            environment={},
        )
        running = await start_everything(settings)
        try:
            async with aiohttp.ClientSession() as http:
                one = Installed(running.urls["gateway"], http, home / "home")
                await one.ask("GET", "/status", headers={"X-Device-Id": "dev"})
                body = {"deviceId": "dev", "scope": ALL}
                approved = await one.operator("POST", "/pairing/approve", body)
                one.device = {
                    "X-Device-Id": "dev",
                    "X-Device-Token": approved.data["deviceToken"],
                }
                yield one
        finally:
            await running.stop()


@contextlib.asynccontextmanager
async def serving_search() -> AsyncIterator[str]:
    """A SearXNG, as far as its answers go."""

    async def search(request: aiohttp.web.Request) -> aiohttp.web.Response:
        assert request.query["format"] == "json"
        hit = {"title": "Gate", "url": "https://example.com/", "content": request.query["q"]}
        return aiohttp.web.json_response({"results": [hit, hit, "garbage"]})

    app = aiohttp.web.Application()
    app.router.add_get("/search", search)
    runner = aiohttp.web.AppRunner(app)
    await runner.setup()
    site = aiohttp.web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        await runner.cleanup()


@pytest.mark.requirement("002/system/exec-cmd")
@pytest.mark.requirement("002/system/exec-answer")
@pytest.mark.requirement("002/system/payload")
async def test_cmd_is_split_as_a_shell_would_and_read_by_none(installed: Installed) -> None:
    answer = await installed.exec("echo 'a  b' $HOME `id` \"c;d\" && ls", sessionId="s", cwd="")
    assert answer.status == 200, answer.json
    assert answer.data == {
        "exitCode": 0,
        "signal": None,
        "stdout": "a  b $HOME `id` c;d && ls\n",
        "stderr": "",
        "truncated": False,
        "timedOut": False,
        "durationMs": answer.data["durationMs"],
    }
    assert answer.data["durationMs"] >= 0
    failed = await installed.exec("false")
    assert (failed.status, failed.json["ok"], failed.data["exitCode"]) == (200, True, 1)
    unclosed = await installed.exec("echo 'open")
    assert (unclosed.status, unclosed.code) == (400, ErrorCode.INVALID_REQUEST)


@pytest.mark.requirement("002/system/exec-command-params")
async def test_command_with_params_is_run_as_it_is(installed: Installed) -> None:
    answer = await installed.system("exec", {"command": "echo", "params": ["a b", "$(id)", "*"]})
    assert answer.data["stdout"] == "a b $(id) *\n"


@pytest.mark.requirement("002/system/exec-allow-list")
async def test_a_command_that_the_policy_does_not_list_is_refused(installed: Installed) -> None:
    for cmd in ("rm -rf /", "curl https://example.com", "/bin/ls"):
        answer = await installed.exec(cmd)
        assert (answer.status, answer.code) == (403, ErrorCode.PERMISSION_DENIED), cmd
        assert answer.json["error"]["outcome"] == "not_started"


@pytest.mark.requirement("002/system/exec-cwd")
@pytest.mark.requirement("002/system/exec-cwd-400")
async def test_a_cwd_outside_the_workspace_is_refused_symlinks_resolved(
    installed: Installed,
) -> None:
    linked = await installed.exec("ln -s /etc out", sessionId="cwd")
    assert linked.data["exitCode"] == 0
    for cwd in ("/etc", "..", "out", "a/../../..", "../../etc"):
        answer = await installed.exec("pwd", sessionId="cwd", cwd=cwd)
        assert (answer.status, answer.code) == (400, ErrorCode.INVALID_REQUEST), (cwd, answer.json)
        assert answer.json["error"]["outcome"] == Outcome.NOT_STARTED
    inside = await installed.exec("pwd", sessionId="cwd", cwd=".")
    assert inside.data["exitCode"] == 0


@pytest.mark.requirement("002/system/exec-env")
async def test_only_listed_variables_are_passed_and_never_a_secret(installed: Installed) -> None:
    env = {
        "LANG": "C.UTF-8",
        "LC_TIME": "C",
        "PATH": "/tmp/evil",
        "LD_PRELOAD": "/tmp/evil.so",
        "API_TOKEN": "x",
        "TZ": SECRET,
    }
    printed = (await installed.exec("printenv", env=env)).data["stdout"]
    assert "LANG=C.UTF-8" in printed
    assert "LC_TIME=C" in printed
    assert "evil" not in printed
    assert "API_TOKEN" not in printed
    assert SECRET not in printed


@pytest.mark.requirement("002/system/exec-timeout")
@pytest.mark.requirement("002/system/exec-group-killed")
async def test_a_command_that_takes_too_long_is_killed_with_all_its_children(
    installed: Installed, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert exec_tool.TIMEOUT_S == 60
    monkeypatch.setattr(exec_tool, "TIMEOUT_S", 1.0)
    params = ["-c", "sleep 4242 & setsid sleep 4243 & echo begun; sleep 4244"]
    asked = await installed.command(
        "system",
        {"action": "exec", "args": {"command": "sh", "params": params}, "sessionId": "slow"},
        requestId="r-slow",
    )
    await installed.operator(
        "POST", f"/approvals/{asked.data['approvalId']}/decide", {"decision": "approve"}
    )
    done = await installed.ask("GET", "/command/r-slow?wait=30", headers=installed.device)
    data = done.data["answer"]["data"]
    assert data["timedOut"] is True
    assert data["exitCode"] is None
    assert data["signal"] == "SIGKILL"
    assert data["stdout"] == "begun\n"
    monkeypatch.undo()
    left = [
        path.parent.name
        for path in Path("/proc").glob("[0-9]*/cmdline")
        if _read(path).startswith(b"sleep\x00424")
    ]
    assert left == []


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


@pytest.mark.requirement("002/system/exec-output-cap")
async def test_output_beyond_the_cap_is_cut_and_marked(installed: Installed) -> None:
    answer = await installed.exec("seq 1 200000")
    assert answer.data["truncated"] is True
    assert len(answer.data["stdout"]) <= 257 * 1024


@pytest.mark.requirement("002/system/exec-level")
@pytest.mark.requirement("002/system/web-fetch-level")
@pytest.mark.requirement("002/system/web-search-level")
@pytest.mark.requirement("002/system/unknown-action")
async def test_the_levels_of_the_systems_actions(installed: Installed) -> None:
    read = {"security": {"level": "read"}}
    body = {"payload": {"action": "exec", "args": {"cmd": "ls"}}}
    without_key = await installed.ask("POST", "/command/system", body, installed.device)
    assert without_key.code == ErrorCode.INVALID_REQUEST
    too_low = await installed.command("system", body["payload"], **read)
    assert too_low.code == ErrorCode.PERMISSION_DENIED
    for action, args in (
        ("web.fetch", {"url": "http://10.0.0.1/"}),
        ("web.search", {"query": "x"}),
    ):
        payload = {"payload": {"action": action, "args": args}, **read}
        answer = await installed.ask("POST", "/command/system", payload, installed.device)
        assert answer.status in (200, 403)
        assert "level" not in str(answer.json.get("error"))
    unknown = await installed.system("reboot", {})
    assert (unknown.status, unknown.code) == (403, ErrorCode.PERMISSION_DENIED)


@pytest.mark.requirement("002/system/fetch-schemes")
@pytest.mark.requirement("002/system/fetch-methods")
@pytest.mark.requirement("002/system/fetch-private")
@pytest.mark.requirement("002/system/fetch-numeric")
@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:1/",
        "http://localhost/",
        "http://10.0.0.1/",
        "http://192.168.1.1/",
        "http://169.254.169.254/latest/meta-data/",
        "http://[::1]/",
        "http://[::ffff:127.0.0.1]/",
        "http://2130706433/",
        "http://0x7f.1/",
        "http://017700000001/",
        "http://0/",
        "file:///etc/passwd",
        "ftp://example.com/",
        "gopher://127.0.0.1/",
    ],
)
async def test_an_address_of_the_inside_is_refused_in_every_form(
    installed: Installed, url: str
) -> None:
    answer = await installed.system("web.fetch", {"url": url})
    assert (answer.status, answer.code) == (403, ErrorCode.PERMISSION_DENIED), answer.json


async def test_other_methods_and_arguments_are_invalid(installed: Installed) -> None:
    for args in (
        {"url": "https://example.com/", "method": "DELETE"},
        {"url": 7},
        {},
        {"url": "https://example.com/", "headers": {"a": 1}},
    ):
        answer = await installed.system("web.fetch", args)
        assert (answer.status, answer.code) == (400, ErrorCode.INVALID_REQUEST), args


@pytest.mark.requirement("002/system/fetch-body-secrets")
async def test_a_body_that_holds_a_secret_is_not_sent(installed: Installed) -> None:
    args = {"url": "https://example.com/", "method": "POST", "body": f"key={SECRET}"}
    answer = await installed.system("web.fetch", args)
    assert (answer.status, answer.code) == (403, ErrorCode.PERMISSION_DENIED)
    assert "secret" in answer.json["error"]["message"]


@pytest.mark.requirement("002/system/search-provider")
async def test_web_search_asks_the_configured_provider(installed: Installed) -> None:
    answer = await installed.system("web.search", {"query": "gates", "limit": 1})
    assert answer.status == 200, answer.json
    hit = {"title": "Gate", "url": "https://example.com/", "snippet": "gates"}
    assert answer.data == {"provider": "searxng", "results": [hit]}


@pytest.mark.requirement("002/audit/executor-row")
async def test_the_executor_leaves_its_own_row(installed: Installed) -> None:
    await installed.command("tool", {"name": "echo", "args": {"text": "x"}})
    page = await installed.operator("GET", "/audit/query?action=tool.run&deviceId=dev&limit=1")
    metadata = page.data["items"][0]["metadata"]
    assert metadata["riskLevel"] == "read"
    assert metadata["confirmation"] == "none"
    assert metadata["result"]


@pytest.mark.requirement("002/operator/audit-query")
async def test_the_audit_log_is_paged_newest_first(installed: Installed) -> None:
    for _ in range(3):
        await installed.command("tool", {"name": "echo", "args": {"text": "x"}})
    first = await installed.operator("GET", "/audit/query?action=command.tool&limit=1")
    (row,) = first.data["items"]
    assert row["action"] == "command.tool"
    cursor = first.data["nextCursor"]
    second = await installed.operator(
        "GET", f"/audit/query?action=command.tool&limit=1&cursor={cursor}"
    )
    assert second.data["items"][0]["id"] < row["id"]
    none = await installed.operator("GET", "/audit/query?action=no.such")
    assert none.data == {"items": []}
    wrong = await installed.operator("GET", "/audit/query?limit=x")
    assert (wrong.status, wrong.code) == (400, ErrorCode.INVALID_REQUEST)


@pytest.mark.requirement("002/operator/runs")
async def test_runs_are_listed_newest_first(installed: Installed) -> None:
    made = await installed.command("agent", {"agentId": "echo", "message": "hi"})
    page = await installed.operator("GET", "/runs?limit=1")
    assert page.data["items"][0]["runId"] == made.data["runId"]
    assert page.data["items"][0]["status"] == "DONE"


@pytest.mark.requirement("002/operator/runs-cancel")
async def test_an_open_run_is_shown_and_cancelled_once(installed: Installed) -> None:
    say = '[[tool:kv.set {"key": "a", "value": 1}]]'
    body = {"agentId": "script", "message": say, "mode": "async"}
    made = await installed.command("agent", body)
    run = f"/runs/{made.data['runId']}"
    async with asyncio.timeout(20):
        while (await installed.operator("GET", run)).data["status"] != "PAUSED_WAITING_APPROVAL":
            await asyncio.sleep(0.05)
    shown = (await installed.operator("GET", run)).data
    assert (shown["agentId"], shown["userId"], shown["preview"]) == ("script", "dev", say)
    by_device = await installed.ask("POST", f"{run}/cancel", {}, installed.device)
    assert by_device.status == 401
    ended = await installed.operator("POST", f"{run}/cancel", {"reason": "not now"})
    assert (ended.data["status"], ended.data["message"]) == ("CANCELLED", "not now")
    again = await installed.operator("POST", f"{run}/cancel", {})
    assert (again.status, again.code) == (400, ErrorCode.INVALID_REQUEST)
    rows = await installed.operator("GET", f"/audit/query?runId={made.data['runId']}")
    (row,) = [one for one in rows.data["items"] if one["action"] == "run.cancelled"]
    assert (row["actor"], row["metadata"]["reason"]) == ("operator", "not now")
    for unknown in (
        await installed.operator("GET", "/runs/nope"),
        await installed.operator("POST", "/runs/nope/cancel", {}),
    ):
        assert (unknown.status, unknown.code) == (404, ErrorCode.INVALID_REQUEST)


@pytest.mark.requirement("002/operator/approvals")
@pytest.mark.requirement("002/operator/approvals-decide")
async def test_an_approval_is_listed_decided_once_and_lets_the_command_go_on(
    installed: Installed,
) -> None:
    args = {"name": "kv.set", "args": {"key": "a", "value": 1}}
    waiting = await installed.command("tool", args, requestId="r-kv")
    assert waiting.status == 202
    approval_id = waiting.data["approvalId"]
    listed = await installed.operator("GET", "/approvals?status=PENDING")
    assert approval_id in [one["approvalId"] for one in listed.data["items"]]
    one = await installed.operator("GET", f"/approvals/{approval_id}")
    assert one.data["ruleId"]
    assert one.data.items() >= {"tenantId": "t_default", "workspaceId": "w_default"}.items()
    by_asker = await installed.ask(
        "POST", f"/approvals/{approval_id}/decide", {"decision": "approve"}, installed.device
    )
    assert (by_asker.status, by_asker.code) == (403, ErrorCode.PERMISSION_DENIED)
    path = f"/approvals/{approval_id}/decide"
    decided = await installed.operator("POST", path, {"decision": "APPROVE", "reason": "fine"})
    assert (decided.data["status"], decided.data["decidedBy"]) == ("APPROVED", "operator")
    again = await installed.operator("POST", path, {"decision": "reject"})
    assert (again.status, again.code) == (400, ErrorCode.INVALID_REQUEST)
    done = await installed.ask("GET", "/command/r-kv?wait=20", headers=installed.device)
    assert done.data["answer"]["data"]["results"][0]["success"] is True
    unknown = await installed.operator("POST", "/approvals/nope/decide", {"decision": "approve"})
    assert (unknown.status, unknown.code) == (404, ErrorCode.INVALID_REQUEST)


async def test_what_was_approved_for_this_machine_does_not_run_on_a_target_that_came_later(
    installed: Installed,
) -> None:
    args = {"name": "file.write", "args": {"path": "a", "content": "b"}}
    waiting = await installed.command("tool", args, requestId="r-moved")
    assert waiting.status == 202, waiting.json
    elsewhere = {
        "tenantId": "t_default",
        "kind": "docker-runner",
        "endpoint": "http://127.0.0.1:1/execute",
        "isDefault": True,
    }
    await installed.operator("PUT", "/execution-targets/elsewhere", elsewhere)
    try:
        path = f"/approvals/{waiting.data['approvalId']}/decide"
        await installed.operator("POST", path, {"decision": "approve"})
        done = await installed.ask("GET", "/command/r-moved?wait=20", headers=installed.device)
    finally:
        await installed.operator("DELETE", "/execution-targets/elsewhere")
    assert done.data["answer"]["error"]["code"] == ErrorCode.PERMISSION_DENIED


@pytest.mark.requirement("001/states/approval-overtaken")
@pytest.mark.parametrize("number", [0, 1])
async def test_an_approval_that_the_policy_has_overtaken_is_not_answered_approved(
    installed: Installed, number: int
) -> None:
    """A new rule denies the call; or the rule that asked was changed."""
    request_id = f"r-overtaken-{number}"
    args = {"name": "kv.set", "args": {"key": "a", "value": 1}}
    waiting = await installed.command("tool", args, requestId=request_id)
    assert waiting.status == 202, waiting.json
    (rule,) = [line for line in POLICY.splitlines() if "kv.set" in line and "ask" in line]
    denial = "  - {id: frozen, deny: kv.set, match: any, reason: Frozen}"
    new = rule.replace("reason: ", "reason: Twice. ") if number else f"{rule}\n{denial}"
    put = await installed.operator("PUT", "/policy", {"text": POLICY.replace(rule, new)})
    assert put.status == 200, put.json
    try:
        path = f"/approvals/{waiting.data['approvalId']}/decide"
        decided = await installed.operator("POST", path, {"decision": "approve"})
        done = await installed.ask(
            "GET", f"/command/{request_id}?wait=20", headers=installed.device
        )
        listed = await installed.operator("GET", "/approvals")
    finally:
        await installed.operator("PUT", "/policy", {"text": POLICY})
    assert (decided.status, decided.code) == (400, ErrorCode.INVALID_REQUEST)
    assert done.data["answer"]["error"]["code"] == ErrorCode.PERMISSION_DENIED
    approval_id = waiting.data["approvalId"]
    (shown,) = [one for one in listed.data["items"] if one["approvalId"] == approval_id]
    assert (shown["status"], shown["decidedBy"]) == ("REJECTED", "policy")


@pytest.mark.parametrize("ctx", [{}, {"run_id": "run-of-another-orchestrator"}])
async def test_what_an_executor_was_asked_for_can_be_decided(
    installed: Installed, ctx: dict[str, str]
) -> None:
    token = (installed.home / "executor.token").read_text().strip()
    request_id = f"elsewhere-{len(ctx)}"
    call = {"request_id": request_id, "tool_id": "kv.set", "args": {"key": "c", "value": 1}}
    await installed.ask(
        "POST", "/tool/run", {**call, "ctx": ctx}, {"Authorization": f"Bearer {token}"}
    )
    listed = await installed.operator("GET", "/approvals?status=PENDING")
    (waiting,) = [one for one in listed.data["items"] if one["requestId"] == request_id]
    path = f"/approvals/{waiting['approvalId']}/decide"
    decided = await installed.operator("POST", path, {"decision": "approve"})
    assert decided.status == 200, decided.json
    assert decided.data["status"] == "APPROVED"


@pytest.mark.parametrize(
    ("capability", "kind", "payload"),
    [
        ("exec", "system", {"action": "exec", "args": {"cmd": "echo hi"}}),
        ("exec", "tool", {"name": "exec", "args": {"command": "echo", "params": ["hi"]}}),
        ("mcp.browser", "mcp", {"capabilityId": "mcp.browser", "action": "list_task_runs"}),
    ],
)
async def test_what_is_registered_as_signing_asks_a_person_whoever_does_it(
    installed: Installed, capability: str, kind: str, payload: dict[str, Any]
) -> None:
    terms = {"capabilityId": capability, "scope": "ours"}
    path = "/capabilities/register"
    await installed.operator("POST", path, {**terms, "level": "sign"})
    try:
        below = await installed.command(kind, payload, security={"level": "write"})
        asked = await installed.command(kind, payload)
    finally:
        await installed.operator("POST", path, {**terms, "level": "write"})
    assert (below.status, below.code) == (403, ErrorCode.PERMISSION_DENIED)
    assert (asked.status, asked.data["status"]) == (202, "pending")
    assert (await installed.command(kind, payload)).status == 200


async def test_a_device_approves_no_more_than_it_may_do_itself(installed: Installed) -> None:
    tokens = {}
    for name, level in (("reader", "read"), ("writer", "write")):
        await installed.ask("GET", "/status", headers={"X-Device-Id": name})
        scope = {"tools": level, "approve": True}
        approved = await installed.operator(
            "POST", "/pairing/approve", {"deviceId": name, "scope": scope}
        )
        tokens[name] = {"X-Device-Id": name, "X-Device-Token": approved.data["deviceToken"]}
    args = {"name": "kv.set", "args": {"key": "b", "value": 1}}
    waiting = await installed.command("tool", args, requestId="r-kv2")
    path = f"/approvals/{waiting.data['approvalId']}/decide"
    above = await installed.ask("POST", path, {"decision": "approve"}, tokens["reader"])
    assert (above.status, above.code) == (403, ErrorCode.PERMISSION_DENIED)
    enough = await installed.ask("POST", path, {"decision": "approve"}, tokens["writer"])
    assert enough.data["decidedBy"] == "device writer"


@pytest.mark.requirement("002/operator/targets-put")
@pytest.mark.requirement("002/operator/targets-read")
@pytest.mark.requirement("002/operator/targets-delete")
async def test_execution_targets_are_made_shown_without_tokens_and_removed(
    installed: Installed,
) -> None:
    body = {
        "tenantId": "t_other",
        "kind": "docker-runner",
        "endpoint": "http://127.0.0.1:1/execute",
        "authToken": "runner-token-never-shown",
        "config": {"timeoutMs": 100},
    }
    made = await installed.operator("PUT", "/execution-targets/t-1", body)
    assert made.status == 200, made.json
    assert (made.data["version"], made.data["hasAuthToken"]) == (1, True)
    changed = await installed.operator("PUT", "/execution-targets/t-1", {"enabled": False})
    assert (changed.data["version"], changed.data["enabled"]) == (2, False)
    assert changed.data["endpoint"] == body["endpoint"]
    one = await installed.operator("GET", "/execution-targets/t-1")
    listed = await installed.operator("GET", "/execution-targets")
    assert one.data in listed.data["items"]
    for answer in (made, changed, one, listed):
        assert b"runner-token-never-shown" not in answer.body
    assert (await installed.operator("DELETE", "/execution-targets/t-1")).status == 200
    gone = await installed.operator("GET", "/execution-targets/t-1")
    assert (gone.status, gone.code) == (404, ErrorCode.INVALID_REQUEST)
    wrong = await installed.operator("PUT", "/execution-targets/t-2", {"kind": "moon"})
    assert (wrong.status, wrong.code) == (400, ErrorCode.INVALID_REQUEST)


@pytest.mark.requirement("002/v2/queries")
async def test_what_the_operator_asks_by_http_is_asked_by_the_websocket_too(
    installed: Installed,
) -> None:
    async with asyncio.timeout(30), installed.http.ws_connect(f"{installed.url}/v2/ws") as socket:
        await socket.receive_json()  # the challenge
        hello = {"deviceId": "console", "clientType": "test", "capabilities": []}
        await socket.send_json({"type": "connect", **hello, "auth": {"token": OPERATOR}})
        assert (await socket.receive_json())["ok"] is True

        async def ask(method: str, **params: Any) -> Any:
            await socket.send_json(
                {"type": "req", "id": method, "method": method, "params": params}
            )
            while (answer := await socket.receive_json()).get("id") != method:
                assert answer["type"] == "event"
            return answer["data"] if answer["ok"] else answer["error"]["code"]

        target = {"targetId": "t-v2", "tenantId": "t_other", "kind": "docker-runner"}
        made = await ask("executionTargets.put", **target, endpoint="http://127.0.0.1:1/execute")
        assert made["version"] == 1
        assert await ask("executionTargets.get", targetId="t-v2") == made
        assert made in (await ask("executionTargets.list"))["items"]
        assert await ask("executionTargets.delete", targetId="t-v2") == made
        assert await ask("executionTargets.get", targetId="t-v2") == ErrorCode.INVALID_REQUEST
        page = await ask("audit.query", action="target.deleted", limit=1)
        assert page["items"][0]["resourceId"] == "t-v2"
        assert await ask("audit.query", limit="x") == ErrorCode.INVALID_REQUEST
        by_http = await installed.operator("GET", "/policy")
        assert await ask("policy.get") == by_http.data
        run = (await installed.operator("GET", "/runs?limit=1")).data["items"]
        assert (await ask("runs.list", limit=1))["items"] == run
        assert "items" in await ask("approvals.list", status="PENDING")


@pytest.mark.requirement("002/operator/policy-read")
@pytest.mark.requirement("002/operator/policy-simulate")
@pytest.mark.requirement("002/operator/policy-write")
async def test_a_policy_is_shown_simulated_and_replaced_if_it_is_sound(
    installed: Installed,
) -> None:
    shown = await installed.operator("GET", "/policy")
    assert shown.data["text"] == POLICY
    made = await installed.command("tool", {"name": "text.upper", "args": {"text": "x"}})
    assert made.status == 200
    stricter = POLICY.replace("text.upper, ", "")
    simulated = await installed.operator("POST", "/policy/simulate", {"text": stricter})
    assert simulated.status == 200, simulated.json
    changes = [one for one in simulated.data["changed"] if one["tool"] == "text.upper"]
    assert simulated.data["checked"] > 0
    assert (changes[0]["was"], changes[0]["wouldBe"]) == ("allow", "deny")
    broken = await installed.operator("PUT", "/policy", {"text": "version: 1\nrules: ["})
    assert (broken.status, broken.code) == (400, ErrorCode.INVALID_REQUEST)
    assert (await installed.operator("GET", "/policy")).data == shown.data
    replaced = await installed.operator("PUT", "/policy", {"text": stricter})
    assert replaced.data["version"] != shown.data["version"]
    denied = await installed.command("tool", {"name": "text.upper", "args": {"text": "x"}})
    assert (denied.status, denied.code) == (403, ErrorCode.PERMISSION_DENIED)
    await installed.operator("PUT", "/policy", {"text": POLICY})


async def test_a_policy_that_was_edited_in_its_file_is_in_the_evidence(
    installed: Installed,
) -> None:
    file = installed.home.parent / "team.yaml"
    file.write_text(POLICY.replace("text.upper, ", ""))

    async def recorded() -> list[str]:
        with ClosedHome(installed.home) as home:
            records = [json.loads(record) for record in home.records()]
        return [each["fields"]["version"] for each in records if each["kind"] == "policy"]

    try:
        async with asyncio.timeout(20):
            first = (await recorded())[0]
            while (now := (await installed.operator("GET", "/policy")).data["version"]) == first:
                await asyncio.sleep(0.05)
            while (await recorded())[-1] != now:
                await asyncio.sleep(0.05)
    finally:
        await installed.operator("PUT", "/policy", {"text": POLICY})


async def test_of_two_who_edit_one_policy_the_second_hears_of_the_first(
    installed: Installed,
) -> None:
    seen = (await installed.operator("GET", "/policy")).data["version"]
    firsts, seconds = POLICY.replace("text.upper, ", ""), POLICY.replace("echo, ", "")
    assert POLICY not in (firsts, seconds)
    first = await installed.operator("PUT", "/policy", {"text": firsts, "over": seen})
    assert first.status == 200
    second = await installed.operator("PUT", "/policy", {"text": seconds, "over": seen})
    assert (second.status, second.code) == (400, ErrorCode.INVALID_REQUEST)
    assert (await installed.operator("GET", "/policy")).data["text"] == firsts
    restored = {"text": POLICY, "over": first.data["version"]}
    assert (await installed.operator("PUT", "/policy", restored)).status == 200


@pytest.mark.requirement("002/operator/operator-only")
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/execution-targets"),
        ("GET", "/execution-targets/x"),
        ("PUT", "/execution-targets/x"),
        ("DELETE", "/execution-targets/x"),
        ("GET", "/audit/query"),
        ("GET", "/runs"),
        ("GET", "/policy"),
        ("PUT", "/policy"),
        ("POST", "/policy/simulate"),
    ],
)
async def test_the_operators_routes_are_the_operators_alone(
    installed: Installed, method: str, path: str
) -> None:
    body: dict[str, str] | None = {} if method in ("PUT", "POST") else None
    for headers in ({}, installed.device):
        answer = await installed.ask(method, path, body, headers)
        assert (answer.status, answer.code) == (401, ErrorCode.AUTH_REQUIRED)


@pytest.mark.requirement("002/operator/target-tools")
async def test_bash_exec_runs_on_the_execution_target(installed: Installed) -> None:
    answer = await installed.command(
        "tool", {"name": "bash.exec", "args": {"cmd": "echo $((6*7))"}}
    )
    assert answer.data["results"][0]["success"] is True, answer.json
    assert "42" in json.dumps(answer.data)


@pytest.mark.requirement("002/events/heartbeat-event")
@pytest.mark.requirement("002/status/heartbeat-null")
@pytest.mark.requirement("002/status/cron-null")
async def test_heartbeat_and_cron_make_events_and_show_in_status(installed: Installed) -> None:
    async with asyncio.timeout(30):
        while True:
            page = await installed.ask(
                "GET", "/events/poll?since=0&limit=1000", headers=installed.device
            )
            kinds = {(event["type"], event["status"]) for event in page.json["events"]}
            if {("heartbeat", "succeeded"), ("cron", "started"), ("cron", "succeeded")} <= kinds:
                break
            cursor = page.json["cursor"]
            await installed.ask(
                "GET", f"/events/poll?since={cursor}&wait=5", headers=installed.device
            )
    status = (await installed.ask("GET", "/status", headers=installed.device)).json
    assert isinstance(status["heartbeat"]["lastAt"], int)
    assert isinstance(status["cron"]["lastAt"], int)


@pytest.mark.requirement("002/codes/upstream")
async def test_a_name_that_does_not_resolve_is_the_worlds_fault(installed: Installed) -> None:
    args = {"url": "http://nowhere.invalid/"}
    called = await installed.command("tool", {"name": "web.fetch", "args": args})
    assert called.status == 200
    (result,) = called.data["results"]
    assert result["success"] is False
    asked = await installed.system("web.fetch", args)
    assert (asked.status, asked.code) == (502, ErrorCode.UPSTREAM)
    assert asked.json["ok"] is False
    assert asked.data["outcome"] in set(Outcome)


@pytest.mark.requirement("002/codes/upstream")
async def test_a_dead_runner_is_the_worlds_fault(installed: Installed) -> None:
    target = {
        "tenantId": "t_default",
        "kind": "docker-runner",
        "endpoint": "http://127.0.0.1:1/execute",
        "isDefault": True,
    }
    path = "/execution-targets/dead"
    assert (await installed.operator("PUT", path, target)).status == 200
    try:
        called = await installed.command("tool", {"name": "bash.exec", "args": {"cmd": "pwd"}})
    finally:
        assert (await installed.operator("DELETE", path)).status == 200
    assert (called.status, called.data["results"][0]["success"]) == (200, False)


@pytest.mark.requirement("002/events/duration-everywhere")
async def test_every_event_has_a_duration(installed: Installed) -> None:
    await installed.exec("echo printed")
    page = await installed.ask("GET", "/events/poll?since=0&limit=1000", headers=installed.device)
    statuses = set()
    for event in page.json["events"]:
        assert isinstance(event["durationMs"], int), event
        statuses.add(event["status"])
    assert {"started", "running", "succeeded"} <= statuses


async def test_the_root_leads_to_the_console(installed: Installed) -> None:
    async with installed.http.get(f"{installed.url}/") as page:
        assert (page.status, page.url.path) == (200, "/console")


@pytest.mark.requirement("002/codes/upstream")
@pytest.mark.requirement("002/mcp/call")
async def test_an_mcp_server_of_the_settings_is_called_through_the_pipeline(
    installed: Installed,
) -> None:
    payload = {"capabilityId": "mcp.test", "action": "echo", "args": {"text": "through"}}
    answer = await installed.command("mcp", payload)
    assert answer.status == 200, answer.json
    assert answer.data["content"] == [{"type": "text", "text": "through"}]
    died = await installed.command("mcp", {**payload, "action": "die", "args": {}})
    assert (died.status, died.code) == (502, ErrorCode.UPSTREAM)
    assert died.data["outcome"] == Outcome.MAY_HAVE_EXECUTED
    healed = await installed.command("mcp", payload)
    assert healed.data["content"] == answer.data["content"]


async def test_a_server_that_dies_and_comes_back_is_told_of_as_events(
    installed: Installed,
) -> None:
    payload = {"capabilityId": "mcp.test", "action": "echo", "args": {"text": "x"}}
    await installed.command("mcp", payload)
    cursor = (await installed.ask("GET", "/status", headers=installed.device)).json["cursor"]
    await installed.command("mcp", {**payload, "action": "die", "args": {}})
    await installed.command("mcp", payload)
    told: list[Any] = []
    async with asyncio.timeout(20):
        while len(told) < 2:
            path = f"/events/poll?since={cursor}&wait=1"
            page = await installed.ask("GET", path, headers=installed.device)
            cursor = page.json["cursor"]
            told += [event for event in page.json["events"] if event["type"] == "health"]
    assert [(one["status"], one["metadata"]["status"]) for one in told] == [
        ("failed", "degraded"),
        ("succeeded", "healthy"),
    ]


async def test_a_call_of_a_capability_that_signs_is_one_that_signs_for_the_policy(
    installed: Installed,
) -> None:
    terms = {"capabilityId": "mcp.test", "scope": "mcp", "level": "sign"}
    assert (await installed.operator("POST", "/capabilities/register", terms)).status == 200
    payload = {"capabilityId": "mcp.test", "action": "echo", "args": {"text": "pay"}}
    tool = {"name": "mcp.test.echo", "args": {"text": "pay"}}
    try:
        answers = [await installed.command("mcp", payload), await installed.command("tool", tool)]
    finally:
        back = {**terms, "level": "write"}
        await installed.operator("POST", "/capabilities/register", back)
    assert [answer.status for answer in answers] == [202, 202]


async def test_an_expired_capability_is_refused_to_agents_too(installed: Installed) -> None:
    terms = {"capabilityId": "mcp.test", "scope": "mcp", "level": "write"}
    expired = {**terms, "expiresAt": 1}
    assert (await installed.operator("POST", "/capabilities/register", expired)).status == 200
    asked = {"agentId": "script", "message": '[[tool:mcp.test.echo {"text": "too late"}]]'}
    try:
        answer = await installed.command("agent", asked)
    finally:
        await installed.operator("POST", "/capabilities/register", terms)
    assert "capability mcp.test has expired" in answer.data["output"]


@pytest.mark.parametrize(
    ("capability_id", "scope", "call"),
    [
        ("mcp.test", "mcp", '[[tool:mcp.test.echo {"text": "again"}]]'),
        ("exec", "system", '[[tool:exec {"command": "echo", "params": ["again"]}]]'),
    ],
)
async def test_a_capabilitys_limit_counts_the_calls_of_agents_too(
    installed: Installed, capability_id: str, scope: str, call: str
) -> None:
    terms = {"capabilityId": capability_id, "scope": scope, "level": "write"}
    limited = {**terms, "rateLimit": {"limit": 2, "windowMs": 3_600_000}}
    await installed.operator("POST", "/capabilities/register", limited)
    try:
        answer = await installed.command("agent", {"agentId": "script", "message": call * 3})
    finally:
        await installed.operator("POST", "/capabilities/register", terms)
    assert answer.data["output"].count(": again") == 2, answer.json
    assert f"too many commands for capability {capability_id}" in answer.data["output"]


@pytest.mark.parametrize("terms", [{"status": "offline"}, {"expiresAt": 1}])
async def test_a_system_capability_that_is_off_is_off_for_agents_too(
    installed: Installed, terms: dict[str, Any]
) -> None:
    own = {"capabilityId": "exec", "scope": "system", "level": "write"}
    await installed.operator("POST", "/capabilities/register", {**own, **terms})
    call = '[[tool:exec {"command": "echo", "params": ["still here"]}]]'
    try:
        answer = await installed.command("agent", {"agentId": "script", "message": call})
    finally:
        await installed.operator("POST", "/capabilities/register", own)
    assert "still here" not in answer.data["output"], answer.json
    assert "capability exec " in answer.data["output"]


@pytest.mark.requirement("002/mcp/browser")
async def test_mcp_browser_is_our_own_browser_tasks(installed: Installed) -> None:
    answer = await installed.command("mcp", {"capabilityId": "mcp.browser", "action": "list_runs"})
    listed = await installed.ask("GET", "/capabilities", headers=installed.device)
    assert "mcp.browser" in [one["capabilityId"] for one in listed.data["items"]]
    assert answer.status in (200, 403), answer.json
    unknown = await installed.command("mcp", {"capabilityId": "mcp.browser", "action": "fly"})
    assert (unknown.status, unknown.code) == (403, ErrorCode.PERMISSION_DENIED)


@pytest.mark.parametrize(
    "terms",
    [{"status": "offline"}, {"expiresAt": 1}, {"rateLimit": {"limit": 1, "windowMs": 3_600_000}}],
    ids=["offline", "expired", "rate"],
)
async def test_the_terms_of_mcp_browser_hold_for_its_tools_by_any_way(
    installed: Installed, terms: dict[str, Any]
) -> None:
    own = {"capabilityId": "mcp.browser", "scope": "browser", "level": "write"}
    path = "/capabilities/register"
    call = "[[tool:browser.list_task_runs {}]]"
    await installed.operator("POST", path, {**own, **terms})
    try:
        as_tool = [
            await installed.command("tool", {"name": "browser.list_task_runs"}) for _ in range(2)
        ]
        by_agent = await installed.command("agent", {"agentId": "script", "message": call})
    finally:
        await installed.operator("POST", path, own)
    assert as_tool[-1].status in (403, 429), as_tool[-1].json
    assert "capability mcp.browser" in by_agent.data["output"], by_agent.json
    open_again = await installed.command("tool", {"name": "browser.list_task_runs"})
    assert open_again.status == 200, open_again.json


@pytest.mark.requirement("002/operator/default-port")
async def test_the_gateway_listens_on_loopback_8787_unless_told_otherwise() -> None:
    defaults = table.Settings()
    assert (defaults.host, defaults.gateway_port) == ("127.0.0.1", 8787)
    assert DEFAULT_PORT == 8787


async def test_no_secret_of_the_settings_reaches_the_disk(installed: Installed) -> None:
    await installed.command("tool", {"name": "echo", "args": {"text": f"my key is {SECRET}"}})
    await installed.exec(f"echo {SECRET}")
    for path in installed.home.rglob("*"):
        if path.is_file():
            assert SECRET.encode() not in _read(path), path


async def test_a_device_that_was_paired_is_in_the_evidence(installed: Installed) -> None:
    with ClosedHome(installed.home) as home:
        records = [json.loads(record) for _, record in home.about("dev")]
    (paired,) = [each["fields"] for each in records if each["kind"] == "pairing"]
    assert (paired["status"], paired["device_id"], paired["tools"]) == ("approved", "dev", "sign")
