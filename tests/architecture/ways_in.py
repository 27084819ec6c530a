"""The ways in: how a call reaches a Toolgate, each driven over its real socket, pipe or program.

A way calls one tool and returns what the caller was told. It does not look for the record: the
tests do, in the audit log.
"""

import asyncio
import contextlib
import itertools
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

import aiohttp
import httpx2
import mcp_types as types
import pytest
from mcp import Client as McpClient
from mcp import StdioServerParameters
from mcp.client.extension import ClaimContext, ClientExtension, ResultClaim
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError

from tests.e2e.harness import ANY_PORT, INTERNAL, PATIENCE, PROGRAM, Client, environment, hang_up
from toolgate import settings as table
from toolgate.bootstrap.roles import start_everything
from toolgate.contracts.tasks_v1 import TOOLS
from toolgate.core.system_clock import SystemClock
from toolgate.evidence.audit import TOOL_RUN, AuditQuery, search
from toolgate.http import asgi
from toolgate.journal.local_bus import LocalBus
from toolgate.journal.sqlite.journal import SqliteJournal
from toolgate.surfaces.mcp.task_extension import EXTENSION

OPERATOR: Final = "operator-of-the-ways-in"
EXECUTOR: Final = "executor-of-the-ways-in"
DEVICE: Final = "device-of-the-ways-in"
SCOPE: Final = {"tools": "sign", "system": True, "mcp": True, "agent": True}
DENY_ALL: Final = "version: 1\nname: deny-all\ndefault: deny\nrules: []\n"
ASK_FIRST: Final = """\
version: 1
name: ask-first
default: deny
rules:
  - {id: ask, ask: kv.set, match: any, reason: For the test}
"""
SCHEDULES: Final = """\
- {id: tool, cron: "@every 2s", tool: math.add, args: {a: 1, b: 2}}
- {id: agent, cron: "@every 1s", agent: script, message: '[[tool:text.upper {"text": "x"}]]'}
"""
UPSTREAM: Final = Path(__file__).parents[1] / "tools" / "upstream" / "servers" / "server.py"
NO_BROWSER: Final = "/bin/false"  # a task that is let through fails at once, without a browser
INPUTS: Final = {"url": "http://pages.toolgate.example/"}
RUN_TASK: Final = "run_task_template"
TASK: Final = {"templateId": "screenshot_page", "inputs": INPUTS, "options": {"mode": "async"}}
SUBMITTED: Final = f"browser.{TASK['templateId']}"  # the call that a submission is
TASK_IN_ANY_MODE: Final = {"templateId": "screenshot_page", "inputs": INPUTS}
ENDED: Final = frozenset({"DONE", "FAILED", "CANCELLED"})
TASK_ARGUMENTS: Final[dict[str, dict[str, Any]]] = {
    "list_task_templates": {},
    RUN_TASK: TASK,
    "get_task_run": {"runId": "run_none"},
    "list_task_runs": {},
    "cancel_task_run": {"runId": "run_none"},
    "get_artifact": {"artifactId": "art_none"},
    "get_runtime_profile": {},
}


@dataclass(frozen=True, slots=True)
class Told:
    """What the caller was told."""

    refused: bool
    answer: object


@dataclass(slots=True)
class Toolgate:
    """An installation in this process, and a device with every right that a device can have."""

    home: Path
    urls: dict[str, str]
    http: aiohttp.ClientSession
    apps: Sequence[Any]  # of its HTTP listeners
    device: dict[str, str] = field(default_factory=dict)
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    @property
    def alone(self) -> Path:
        """The home of programs that serve without the rest of Toolgate."""
        return self.home / "alone"

    def fresh(self, name: str) -> str:
        return f"{name}-{next(self._numbers)}"

    async def ask(
        self, method: str, url: str, body: Any = None, *, headers: dict[str, str] | None = None
    ) -> tuple[int, Any]:
        async with (
            asyncio.timeout(PATIENCE),
            self.http.request(method, url, json=body, headers=headers) as answer,
        ):
            return answer.status, await answer.json()

    async def operator(self, method: str, path: str, body: Any = None) -> Any:
        headers = {"Authorization": f"Bearer {OPERATOR}"}
        status, told = await self.ask(method, self.urls["gateway"] + path, body, headers=headers)
        assert status == 200, told
        return told["data"]

    async def internal(self, method: str, path: str, body: Any = None) -> Any:
        status, told = await self.ask(
            method, f"{self.urls['orchestrator']}/internal/{path}", body, headers=INTERNAL
        )
        assert status < 400, told
        return told

    async def denials(self, tool: str) -> set[str]:
        """The audit rows of refused calls of this tool, by journal and id."""
        query = f"/audit/query?action={TOOL_RUN}&decision=deny&limit=500"
        items = (await self.operator("GET", query))["items"]
        rows = {f"home {item['id']}" for item in items if item["resourceId"] == tool}
        for path in self.alone.rglob("journal.db"):
            rows |= {f"{path} {id_}" for id_ in await _denied_in(path, tool)}
        return rows


async def _denied_in(path: Path, tool: str) -> set[int]:
    """The same in the journal of a program that has ended."""
    journal = await SqliteJournal.open(path, clock=SystemClock(), bus=LocalBus())
    try:
        page = await search(journal, AuditQuery(action=TOOL_RUN, decision="deny", limit=500))
    finally:
        await journal.close()
    return {row.id for row in page.items if row.resource_id == tool}


@contextlib.asynccontextmanager
async def denying_everything(home: Path) -> AsyncIterator[Toolgate]:
    """All of Toolgate on free ports, under a policy that denies everything."""
    policy, schedules, servers = home / "policy.yaml", home / "schedules.yaml", home / "mcp.json"
    policy.write_text(DENY_ALL)
    schedules.write_text(SCHEDULES)
    upstream = {"command": sys.executable, "args": [str(UPSTREAM), "stdio"]}
    servers.write_text(json.dumps({"mcpServers": {"test": upstream}}))
    given = {
        **ANY_PORT,
        "TOOLGATE_HOME": str(home / "home"),
        "POLICY_FILE": str(policy),
        "SCHEDULE_FILE": str(schedules),
        "MCP_FILE": str(servers),
        "OPERATOR_TOKEN": OPERATOR,
        "EXECUTOR_TOKEN": EXECUTOR,
        "CHROMIUM": NO_BROWSER,
        "GATEWAY_RATE": "100000",
        "LOG_LEVEL": "error",
    }
    with listening_apps() as apps:
        installation = await start_everything(table.load(given, environment={}))
    try:
        jar = aiohttp.CookieJar(unsafe=True)
        async with aiohttp.ClientSession(cookie_jar=jar) as http:
            gate = Toolgate(home, installation.urls, http, apps)
            await _pair(gate)
            yield gate
    finally:
        await installation.stop()
        await hang_up()


@contextlib.contextmanager
def listening_apps() -> Iterator[list[Any]]:
    """The applications that are given a listener from here on."""
    apps: list[Any] = []
    listen = asgi.Listener.__init__

    def noted(self: asgi.Listener, app: Any, *args: Any, **named: Any) -> None:
        apps.append(app)
        listen(self, app, *args, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(asgi.Listener, "__init__", noted)
        yield apps


async def _pair(gate: Toolgate) -> None:
    named = {"X-Device-Id": DEVICE}
    await gate.ask("GET", f"{gate.urls['gateway']}/status", headers=named)
    approved = await gate.operator("POST", "/pairing/approve", {"deviceId": DEVICE, "scope": SCOPE})
    gate.device = {**named, "X-Device-Token": approved["deviceToken"]}


def script(tool: str, args: dict[str, Any]) -> str:
    """What makes the script agent call this tool."""
    return f"[[tool:{tool} {json.dumps(args)}]]"


async def blocked(gate: Toolgate, run_id: str) -> Told:
    """What an agent's run was told of its one call, once the run has ended."""
    async with asyncio.timeout(PATIENCE):
        while (run := await gate.internal("GET", f"runs/{run_id}"))["status"] not in ENDED:
            await asyncio.sleep(0.01)
    (call,) = run["tool_calls"]
    return Told(call["status"] == "BLOCKED", run)


# Agents


async def websocket_agent(
    gate: Toolgate, tool: str, args: dict[str, Any], *, offers: Sequence[str] = ()
) -> Told:
    client = await Client.connect(gate.urls["ingress_ws"], client_meta={"tools": list(offers)})
    await client.invoke(script(tool, args), agent="script", request_id=gate.fresh("request"))
    heard = await client.hear_until("done", "error", "tool_request")
    await client.close()
    if heard[-1]["type"] == "tool_request":
        return Told(False, heard)
    return await blocked(gate, heard[0]["run_id"])


async def orchestrator_invoke(
    gate: Toolgate, tool: str, args: dict[str, Any], *, offers: Sequence[str] = ()
) -> Told:
    session = gate.fresh("session")
    if offers:
        await gate.internal("PUT", f"sessions/{session}/tools", {"tools": list(offers)})
    message = {"role": "user", "content": script(tool, args)}
    body = {"session_id": session, "agent_id": "script", "message": message}
    return await blocked(gate, (await gate.internal("POST", "invoke", body))["run_id"])


async def chat_command(gate: Toolgate) -> Told:
    words = ("chat", "--url", gate.urls["ingress_ws"], "--agent", "script", "--json")
    printed, _ = await program(gate, *words, script("echo", {"text": "x"}))
    events = [json.loads(line) for line in printed.splitlines()]
    run_id = next(event["run_id"] for event in events if event["type"] == "run_started")
    return await blocked(gate, run_id)


Decide = Callable[[Toolgate, Client, str, str], Awaitable[object]]


async def approved_too_late(gate: Toolgate, decide: Decide) -> Told:
    """A call that waited for a person when the policy changed, and is approved then."""
    await gate.operator("PUT", "/policy", {"text": ASK_FIRST})
    try:
        client = await Client.connect(gate.urls["ingress_ws"])
        await client.invoke(script("kv.set", {"key": "k", "value": "v"}), agent="script")
        asked = (await client.hear_until("approval_required"))[-1]
    finally:
        await gate.operator("PUT", "/policy", {"text": DENY_ALL})
    await decide(gate, client, asked["run_id"], asked["approval_id"])
    await client.hear_until("done", "error")
    await client.close()
    return await blocked(gate, asked["run_id"])


async def by_websocket(_: Toolgate, client: Client, run_id: str, approval_id: str) -> None:
    ids = {"run_id": run_id, "approval_id": approval_id}
    await client.say("approval_decision", decision="approve", **ids)


# The rule that asked is no longer in force: no surface answers that the call is approved.
OVERTAKEN: Final = {400, 409}


async def by_gateway(gate: Toolgate, _: Client, _run: str, approval_id: str) -> None:
    url = f"{gate.urls['gateway']}/approvals/{approval_id}/decide"
    operator = {"Authorization": f"Bearer {OPERATOR}"}
    status, told = await gate.ask("POST", url, {"decision": "approve"}, headers=operator)
    assert status in OVERTAKEN, told


async def by_terminal(gate: Toolgate, _: Client, _run: str, approval_id: str) -> None:
    at = ("--home", str(gate.home / "home"), "--url", gate.urls["gateway"])
    printed, complained = await program(gate, "approvals", "approve", approval_id, *at)
    assert "is approved" not in printed
    assert "does not count any more" in complained, complained


async def by_console(gate: Toolgate, _: Client, _run: str, approval_id: str) -> None:
    status, told = await console(
        gate, f"/console/api/approvals/{approval_id}/decide", {"approve": True}
    )
    assert status in OVERTAKEN, told


async def by_orchestrator(gate: Toolgate, _: Client, _run: str, approval_id: str) -> None:
    url = f"{gate.urls['orchestrator']}/internal/approvals/{approval_id}/decide"
    status, told = await gate.ask("POST", url, {"decision": "approve"}, headers=INTERNAL)
    assert (status, told.get("status")) == (200, "REJECTED"), told


# The gateway


async def command(gate: Toolgate, kind: str, payload: dict[str, Any]) -> Told:
    headers = {**gate.device, "Idempotency-Key": gate.fresh("key")}
    url = f"{gate.urls['gateway']}/command/{kind}"
    status, told = await gate.ask("POST", url, {"payload": payload}, headers=headers)
    if kind == "agent":
        return await blocked(gate, told["data"]["runId"])
    return Told(status == 403, told)


async def socket_command(gate: Toolgate, kind: str, payload: dict[str, Any]) -> Told:
    auth = {"token": gate.device["X-Device-Token"]}
    connect = {"type": "connect", "deviceId": DEVICE, "clientType": "test", "capabilities": []}
    request = {
        "type": "req",
        "id": "q",
        "method": f"command.{kind}",
        "params": {"payload": payload},
    }
    async with (
        asyncio.timeout(PATIENCE),
        gate.http.ws_connect(f"{gate.urls['gateway']}/v2/ws") as socket,
    ):
        await socket.receive_json()  # the challenge
        await socket.send_json({**connect, "auth": auth})
        assert (await socket.receive_json())["ok"]
        await socket.send_json({**request, "idempotencyKey": gate.fresh("key")})
        while (told := await socket.receive_json())["type"] != "res":
            pass
    if kind == "agent":
        return await blocked(gate, told["data"]["runId"])
    return Told(not told["ok"], told)


COMMANDS: Final[dict[str, tuple[str, dict[str, Any]]]] = {  # kind: tool, payload
    "tool": ("echo", {"name": "echo", "args": {"text": "x"}}),
    "system": ("exec", {"action": "exec", "args": {"cmd": "ls"}}),
    "mcp": (
        f"browser.{RUN_TASK}",
        {"capabilityId": "mcp.browser", "action": RUN_TASK, "args": TASK},
    ),
    "agent": ("echo", {"agentId": "script", "message": script("echo", {"text": "x"})}),
}
OF_UPSTREAM: Final = {"capabilityId": "mcp.test", "action": "echo", "args": {"text": "x"}}


async def tool_run(gate: Toolgate) -> Told:
    body = {"request_id": gate.fresh("request"), "tool_id": "echo", "args": {"text": "x"}}
    headers = {"Authorization": f"Bearer {EXECUTOR}"}
    status, told = await gate.ask("POST", f"{gate.urls['gateway']}/tool/run", body, headers=headers)
    return Told(status == 403, told)


async def tool_run_by_name(gate: Toolgate) -> Told:
    """With a named token in place of the executor's."""
    made = await gate.operator("POST", "/tokens", {"name": "way", "scope": {"tools": "write"}})
    body = {"request_id": gate.fresh("request"), "tool_id": "echo", "args": {"text": "x"}}
    headers = {"Authorization": f"Bearer {made['token']}"}
    status, told = await gate.ask("POST", f"{gate.urls['gateway']}/tool/run", body, headers=headers)
    return Told(status == 403, told)


async def scheduled_tool(gate: Toolgate) -> Told:
    """The next job, by the events of its start and its end."""
    url, headers = f"{gate.urls['gateway']}/", {"Authorization": f"Bearer {OPERATOR}"}
    _, page = await gate.ask("GET", f"{url}status", headers=headers)
    started = False
    async with asyncio.timeout(PATIENCE):
        while True:
            poll = f"{url}events/poll?since={page['cursor']}&wait=1"
            _, page = await gate.ask("GET", poll, headers=headers)
            for event in page["events"]:
                if event["message"].startswith("tool "):  # the schedule's name
                    if started and event["status"] != "started":
                        return Told(event["status"] == "failed", event)
                    started |= event["status"] == "started"


async def scheduled_agent(gate: Toolgate) -> Told:
    """The run of the next job."""
    known = await _scheduled_runs(gate)
    async with asyncio.timeout(PATIENCE):
        while not (new := await _scheduled_runs(gate) - known):
            await asyncio.sleep(0.02)
    return await blocked(gate, min(new))


async def _scheduled_runs(gate: Toolgate) -> set[str]:
    runs = (await gate.operator("GET", "/runs"))["items"]
    return {run["runId"] for run in runs if run["sessionId"] == "cron:agent"}


# MCP


async def mcp_call(
    gate: Toolgate, tool: str, arguments: dict[str, Any], *, transport: str = "http"
) -> Told:
    async with mcp_client(gate, transport) as client:
        return await _called(client, tool, arguments)


@contextlib.asynccontextmanager
async def mcp_client(gate: Toolgate, transport: str, **options: Any) -> AsyncIterator[McpClient]:
    url = gate.urls["mcp"]
    if transport == "sse":
        async with McpClient(sse_client(f"{url}/sse", headers=gate.device), **options) as client:
            yield client
        return
    async with (
        httpx2.AsyncClient(headers=gate.device) as http,
        McpClient(streamable_http_client(url, http_client=http), **options) as client,
    ):
        yield client


async def _called(client: McpClient, tool: str, arguments: dict[str, Any]) -> Told:
    try:
        result = await client.call_tool(tool, arguments)
    except MCPError as refused:
        return Told(True, refused.error)
    return Told(bool(result.is_error), result.structured_content)


class Begun(types.Result):
    """The answer of a call that asked to be a task."""

    is_error: bool = False
    task: dict[str, Any] | None = None
    structured_content: dict[str, Any] | None = None


async def mcp_task(gate: Toolgate) -> Told:
    """A call that asks to be a task, as revision 2025-11-25 has it."""
    params = types.CallToolRequestParams(
        name=RUN_TASK, arguments=TASK_IN_ANY_MODE, task=types.TaskMetadata(ttl=60_000)
    )
    async with mcp_client(gate, "http", mode="legacy") as client:
        request = types.CallToolRequest(params=params)
        begun = await client.session.send_request(request, Begun)
    return Told(begun.task is None and begun.is_error, begun)


class Created(types.Result):
    result_type: Literal["task"] = "task"
    task_id: str


class KnowsTasks(ClientExtension):
    """Declares the extension, and does not wait for a task."""

    identifier = EXTENSION

    def claims(self) -> Sequence[ResultClaim[Any]]:
        return [ResultClaim(result_type="task", model=Created, resolve=self._resolve)]

    async def _resolve(self, created: Created, _: ClaimContext) -> types.CallToolResult:
        ids = {"runId": created.task_id, "sessionId": ""}
        answer = {**ids, "status": "queued", "mode": "async", "deduplicated": False}
        return types.CallToolResult(content=[], structured_content=answer)


async def mcp_extension_task(gate: Toolgate) -> Told:
    """A call that becomes a task, as revision 2026-07-28 has it in an extension."""
    async with mcp_client(gate, "http", mode="auto", extensions=[KnowsTasks()]) as client:
        return await _called(client, RUN_TASK, TASK_IN_ANY_MODE)


async def lone_stdio(gate: Toolgate) -> Told:
    server = StdioServerParameters(
        command=str(PROGRAM), args=["browser", "--stdio"], env=lone_environment(gate)
    )
    async with McpClient(server) as client:
        return await _called(client, RUN_TASK, TASK)


async def lone_http(gate: Toolgate, transport: str) -> Told:
    process = await asyncio.create_subprocess_exec(
        PROGRAM,
        "browser",
        f"--{transport}",
        "--port=0",
        env=lone_environment(gate),
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        urls = json.loads(await asyncio.wait_for(process.stdout.readline(), PATIENCE))["urls"]
        at = sse_client(urls["mcp_sse"]) if transport == "sse" else urls["mcp"]
        async with McpClient(at) as client:
            return await _called(client, RUN_TASK, TASK)
    finally:
        process.terminate()
        await process.communicate()


def lone_environment(gate: Toolgate) -> dict[str, str]:
    return environment(
        {
            "TOOLGATE_HOME": str(gate.alone),
            "POLICY_FILE": str(gate.home / "policy.yaml"),
            "CHROMIUM": NO_BROWSER,
            "LOG_LEVEL": "error",
        }
    )


# The operator


async def console(
    gate: Toolgate, path: str, body: Any = None, *, method: str = "POST"
) -> tuple[int, Any]:
    """A request of a page of the console, by an operator who has signed in."""
    mark = {"X-Toolgate-Console": "1", "Origin": gate.urls["gateway"]}
    api = f"{gate.urls['console']}/api"
    status, told = await gate.ask("POST", f"{api}/sign-in", {"token": OPERATOR}, headers=mark)
    assert status == 200, told
    return await gate.ask(method, gate.urls["gateway"] + path, body, headers=mark)


async def console_task(gate: Toolgate) -> Told:
    body = {"templateId": TASK["templateId"], "inputs": INPUTS}
    status, told = await console(gate, "/tasks", body)
    return Told(status >= 400, told if status >= 400 else told["data"])


async def task_command(gate: Toolgate) -> Told:
    """`toolgate task run`; only a task that has begun prints an id on stdout."""
    words = ("task", "run", "screenshot_page", "--inputs", json.dumps(INPUTS), "--json")
    printed, complained = await program(
        gate, *words, "--home", str(gate.home / "home"), "--url", gate.urls["gateway"]
    )
    return Told("runId" not in printed, complained)


async def program(gate: Toolgate, *words: str) -> tuple[str, str]:
    """The output of a command of the installed program: stdout and stderr."""
    process = await begin_program(gate, *words)
    printed, complained = await asyncio.wait_for(process.communicate(), 3 * PATIENCE)
    return printed.decode(), complained.decode()


async def begin_program(gate: Toolgate, *words: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        PROGRAM,
        *words,
        env=environment({"TOOLGATE_HOME": str(gate.home / "home"), "OPERATOR_TOKEN": OPERATOR}),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


# The table


@dataclass(frozen=True, slots=True)
class Way:
    """One way in: the doors on it, the tool that it calls (as the audit log names it), and how."""

    doors: tuple[str, ...]
    tool: str
    call: Callable[[Toolgate], Awaitable[Told]]


ECHO: Final = {"text": "x"}

WAYS: Final[dict[str, Way]] = {
    "WebSocket agent": Way(
        ("/ws agent_invoke",), "echo", partial(websocket_agent, tool="echo", args=ECHO)
    ),
    "client tool of a session": Way(
        ("/ws hello",),
        "desk.open",
        partial(websocket_agent, tool="desk.open", args={}, offers=["desk.open"]),
    ),
    "toolgate chat": Way(("toolgate chat",), "echo", chat_command),
    "orchestrator agent": Way(
        ("POST /internal/invoke",), "echo", partial(orchestrator_invoke, tool="echo", args=ECHO)
    ),
    "client tool registered at the orchestrator": Way(
        ("POST /internal/sessions/{session_id}/tools", "PUT /internal/sessions/{session_id}/tools"),
        "desk.shut",
        partial(orchestrator_invoke, tool="desk.shut", args={}, offers=["desk.shut"]),
    ),
    **{
        f"approval by {name}": Way(doors, "kv.set", partial(approved_too_late, decide=decide))
        for name, doors, decide in (
            ("WebSocket", ("/ws approval_decision",), by_websocket),
            (
                "gateway",
                ("POST /approvals/{approvalId}/decide", "/v2/ws approvals.decide"),
                by_gateway,
            ),
            ("console", ("POST /console/api/approvals/{id}/decide",), by_console),
            (
                "terminal",
                ("toolgate approvals approve", "toolgate approvals watch"),
                by_terminal,
            ),
            (
                "orchestrator",
                (
                    "POST /internal/approvals/{approval_id}/decide",
                    "POST /internal/approvals/{approval_id}/submit",
                ),
                by_orchestrator,
            ),
        )
    },
    **{
        f"/command/{kind}": Way(
            (f"POST /command/{kind}",), tool, partial(command, kind=kind, payload=payload)
        )
        for kind, (tool, payload) in COMMANDS.items()
    },
    "/command/mcp of an upstream server": Way(
        ("POST /command/mcp",), "mcp.test.echo", partial(command, kind="mcp", payload=OF_UPSTREAM)
    ),
    **{
        f"/v2/ws command.{kind}": Way(
            (f"/v2/ws command.{kind}",), tool, partial(socket_command, kind=kind, payload=payload)
        )
        for kind, (tool, payload) in COMMANDS.items()
    },
    "/tool/run": Way(("POST /tool/run",), "echo", tool_run),
    "/tool/run by a named token": Way((), "echo", tool_run_by_name),
    "schedule of a tool": Way(("schedule tool",), "math.add", scheduled_tool),
    "schedule of an agent": Way(("schedule agent",), "text.upper", scheduled_agent),
    "browser.task of an agent": Way(
        (),
        "browser.task",
        partial(websocket_agent, tool="browser.task", args={"goal": "Read a page"}),
    ),
    "browser template of an agent": Way(
        (),
        "browser.screenshot_page",
        partial(websocket_agent, tool="browser.screenshot_page", args=INPUTS),
    ),
    **{
        f"/mcp {tool}": Way(
            ("ANY /mcp", "mcp tools/call", f"mcp tools/call {tool}"),
            SUBMITTED if tool == RUN_TASK else f"browser.{tool}",
            partial(mcp_call, tool=tool, arguments=TASK_ARGUMENTS[tool]),
        )
        for tool in TOOLS
    },
    "/mcp task of 2025-11-25": Way(("mcp tools/call",), SUBMITTED, mcp_task),
    "/mcp task of 2026-07-28": Way(("mcp tools/call",), SUBMITTED, mcp_extension_task),
    "/mcp/sse": Way(
        ("ANY /mcp/sse", "ANY /mcp/message"),
        SUBMITTED,
        partial(mcp_call, tool=RUN_TASK, arguments=TASK, transport="sse"),
    ),
    "console browser task": Way(("POST /tasks",), SUBMITTED, console_task),
    "toolgate task": Way(("toolgate task run",), SUBMITTED, task_command),
    "toolgate browser --stdio": Way(("toolgate browser --stdio",), SUBMITTED, lone_stdio),
    **{
        f"toolgate browser --{transport}": Way(
            (f"toolgate browser --{transport}",),
            SUBMITTED,
            partial(lone_http, transport=transport),
        )
        for transport in ("http", "sse")
    },
}
