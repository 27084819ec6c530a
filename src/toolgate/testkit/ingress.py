"""Seed 001: clients and an orchestrator, for whoever builds an ingress.

The orchestrator is this one's where it listens at the ingress's ORCHESTRATOR_URL; else what needs it
is not checked.
"""

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import aiohttp
from aiohttp import WSMsgType, web

from toolgate.testkit.checks import (
    DoesNotHold,
    HttpAnswer,
    Kit,
    NotChecked,
    ask,
    member,
    need,
    quoted,
)

EVENT_S: Final = 20.0
AGENT: Final = "testkit"
TOOL: Final = {"tool_name": "browser.screenshot", "args": {"url": "https://example.com"}}
CODES: Final = {
    "invalid_message",
    "auth_failed",
    "session_not_found",
    "client_offline",
    "orchestrator_error",
    "internal_error",
}


@dataclass(slots=True)
class OrchestratorPeer:
    """Answers an invoke by its message: `plain`, `tool`, `approval`, `hold`, `refuse`."""

    asked: list[tuple[str, Any, dict[str, str]]] = field(default_factory=list)
    settled: dict[str, asyncio.Event] = field(default_factory=dict)
    _runner: web.AppRunner | None = None
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    async def serve(self, host: str, port: int) -> str:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, handler_cancellation=True)
        await self._runner.setup()
        await web.TCPSite(self._runner, host, port).start()
        bound = self._runner.addresses[0]
        return f"http://{bound[0]}:{bound[1]}"

    async def close(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def received(self, suffix: str, about: str) -> Any:
        """The body that came to a path with this end and this id in it."""
        async with asyncio.timeout(EVENT_S):
            while True:
                for path, body, _ in self.asked:
                    if path.endswith(suffix) and about in path:
                        return body
                self._news.clear()
                await self._news.wait()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        text = await request.text()
        try:
            body = json.loads(text) if text else None
        except ValueError:
            body = text
        self.asked.append((request.path, body, dict(request.headers)))
        self._news.set()
        if request.path == "/internal/invoke":
            return await self._run(request, body)
        parts = request.path.split("/")
        if parts[-1] not in ("submit", "decide", "cancel"):
            return web.Response(status=404)
        if (settled := self.settled.get(parts[-2])) is None:
            return web.Response(status=404, text="there is no such thing")
        settled.set()
        return web.json_response({"ok": True})

    async def _run(self, request: web.Request, body: Any) -> web.StreamResponse:
        word = str(body.get("message", {}).get("content")) if isinstance(body, dict) else ""
        if word == "refuse":
            return web.Response(status=500, text="out of order")
        name = uuid.uuid4().hex
        run_id = f"run_{name}"
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)

        async def say(kind: str, **members: Any) -> None:
            event = {"type": kind, "ts": 1704067200000, "run_id": run_id, **members}
            await response.write(b"data:" + json.dumps(event).encode() + b"\n\n")

        await say("run_started", agent_id=body["agent_id"])
        await say("delta", text="你好")
        waits = await self._ask(say, word, name)
        if waits is not None:
            await waits.wait()
        await say("delta", text="！")
        await say("done", usage={"total_tokens": 50, "duration_ms": 500})
        return response

    async def _ask(
        self, say: Callable[..., Awaitable[None]], word: str, name: str
    ) -> asyncio.Event | None:
        settled = asyncio.Event()
        self.settled[f"run_{name}"] = settled
        call = {"tool_call_id": f"tc_{name}"}
        if word == "tool":
            self.settled[f"tc_{name}"] = settled
            await say("tool_request", **call, **TOOL)
        elif word == "approval":
            self.settled[f"ap_{name}"] = settled
            about = {"tool_name": "payments.transfer", "args_summary": "转账 ¥100"}
            await say("approval_required", **call, **about, approval_id=f"ap_{name}")
        elif word != "hold":
            return None
        return settled


@dataclass(slots=True)
class ClientPeer:
    """Connects clients at `url`; calls the internal HTTP at `internal`."""

    url: str
    http: aiohttp.ClientSession
    api_key: str = "testkit"
    internal: str = ""
    token: str = ""
    agent: str = AGENT
    orchestrator: OrchestratorPeer | None = None
    checks_key: bool = False  # the key is the one that is set

    @asynccontextmanager
    async def connected(self, **hello: Any) -> AsyncIterator["Connection"]:
        async with self.open() as connection:
            user = {"user_id": "u_testkit", "api_key": self.api_key}
            await connection.say("hello", **{**user, **hello})
            ack = await connection.until("hello_ack")
            connection.session_id = member(ack, "session_id", str, of="hello_ack")
            yield connection

    @asynccontextmanager
    async def open(self) -> AsyncIterator["Connection"]:
        async with self.http.ws_connect(self.url) as socket:
            yield Connection(socket)

    async def inside(self, method: str, path: str, body: Any = None) -> HttpAnswer:
        if not self.internal:
            raise NotChecked("no --http was given: the address of its internal HTTP")
        bearer = f"Bearer {self.token}" if self.token else ""
        return await ask(self.http, method, self.internal + path, body, authorization=bearer)

    def own(self) -> OrchestratorPeer:
        if self.orchestrator is None:
            raise NotChecked("no --listen was given, where the ingress's ORCHESTRATOR_URL leads to")
        return self.orchestrator


class Connection:
    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.socket = socket
        self.session_id = ""
        self.seen: list[dict[str, Any]] = []

    async def say(self, kind: str, **members: Any) -> None:
        await self.socket.send_json({"type": kind, "ts": 1704067200000, **members})

    async def invoke(self, content: str, agent: str) -> str:
        """Returns the request's id."""
        request_id = f"req_{uuid.uuid4().hex}"
        message = {"role": "user", "content": content}
        about = {"request_id": request_id, "session_id": self.session_id, "agent_id": agent}
        await self.say("agent_invoke", **about, message=message)
        return request_id

    async def next(self) -> dict[str, Any]:
        frame = await self.socket.receive(EVENT_S)
        if frame.type is not WSMsgType.TEXT:
            raise DoesNotHold(f"the connection was closed ({frame.data}) after {self._types()}")
        message = json.loads(frame.data)
        member(message, "type", str, of="a message")
        member(message, "ts", int, of=message["type"])
        self.seen.append(message)
        return dict(message)

    async def until(self, *types: str) -> dict[str, Any]:
        while (message := await self.next())["type"] not in types:
            if message["type"] in ("error", "done"):
                raise DoesNotHold(f"instead of {types[0]} came {quoted(message)}")
        return message

    async def confirmed(self) -> None:
        """A `state` that answers a command; the run may have ended before it comes."""
        while (message := await self.next())["type"] != "state":
            need(message["type"] != "error", f"it is answered with {quoted(message)}")

    async def refused(self, *codes: str) -> None:
        error = await self.until("error")
        need(error.get("code") in codes, f"the code is {error.get('code')!r}, not {codes[0]}")
        member(error, "message", str, of="error")

    def _types(self) -> list[str]:
        return [one["type"] for one in self.seen]


KIT: Final[Kit[ClientPeer]] = Kit("001")


@KIT.check("`hello`", "返回 `hello_ack`", "hello is answered with hello_ack and a session_id")
async def answers_hello(peer: ClientPeer) -> None:
    async with peer.connected():
        pass


@KIT.check(
    "错误码定义",
    "| `auth_failed` | 认证失败 | 检查 api_key |",
    "a wrong api_key is answered with auth_failed",
)
async def refuses_a_wrong_key(peer: ClientPeer) -> None:
    if not peer.checks_key:
        raise NotChecked("no --key-file was given")
    async with peer.open() as connection:
        await connection.say("hello", user_id="u_testkit", api_key=f"{peer.api_key}x")
        await connection.refused("auth_failed")


@KIT.check(
    "错误码定义",
    "| `session_not_found` | 会话不存在 | 重新发送 hello |",
    "a message before hello is answered with session_not_found",
)
async def wants_hello_first(peer: ClientPeer) -> None:
    async with peer.open() as connection:
        await connection.say("cancel_run", run_id="run_001")
        await connection.refused("session_not_found")


@KIT.check(
    "错误码定义",
    "| `invalid_message` | 消息格式错误 | 检查消息格式 |",
    "what is no message is answered with invalid_message, and the connection stays",
)
async def refuses_what_is_no_message(peer: ClientPeer) -> None:
    async with peer.connected() as connection:
        for text in ("{", "[1]", '{"type": "cake"}', '{"type": "agent_invoke", "agent_id": 7}'):
            await connection.socket.send_str(text)
            await connection.refused("invalid_message")


@KIT.check(
    "M1",
    "客户端发送 `agent_invoke` 后收到 `run_started`",
    "an agent_invoke is followed by run_started with its four ids, deltas with text, and done",
)
async def passes_a_run_on(peer: ClientPeer) -> None:
    async with peer.connected() as connection:
        request_id = await connection.invoke("plain", peer.agent)
        started = await connection.until("run_started")
        need(started.get("request_id") == request_id, f"request_id of {quoted(started)}")
        need(started.get("session_id") == connection.session_id, f"session of {quoted(started)}")
        need(started.get("agent_id") == peer.agent, f"agent_id of {quoted(started)}")
        run_id = member(started, "run_id", str, of="run_started")
        member(await connection.until("delta"), "text", str, of="a delta")
        while (event := await connection.next())["type"] not in ("done", "error"):
            pass
        need(event["type"] == "done", f"the run ended with {quoted(event)}")
        need(event.get("run_id") == run_id, f"run_id of {quoted(event)}")
        member(member(event, "usage", dict, of="done"), "total_tokens", int, of="`usage`")


@KIT.check("`GET /health` - 健康检查", '"uptime_seconds": 3600', "/health: its three members")
async def answers_health(peer: ClientPeer) -> None:
    body = (await peer.inside("GET", "/health")).json
    need(body.get("status") == "healthy", f"`status` is {body.get('status')!r}")
    member(body, "connections", int)
    need(isinstance(body.get("uptime_seconds"), int | float), f"it answered {quoted(body)}")


@KIT.check(
    "查询会话状态",
    '"connection_count": 1,',
    "a session's status: online, connection_count, last_activity_at",
)
async def answers_a_sessions_status(peer: ClientPeer) -> None:
    async with peer.connected() as connection:
        path = f"/internal/sessions/{connection.session_id}/status"
        body = (await peer.inside("GET", path)).json
        need(body.get("session_id") == connection.session_id, f"it answered {quoted(body)}")
        need(body.get("online") is True, "`online` is not true")
        need(body.get("connection_count") == 1, f"{body.get('connection_count')} connections")
        member(body, "last_activity_at", int)


@KIT.check(
    "推送事件",
    '"tool_name": "browser.screenshot",',
    "what is pushed to /internal/send reaches every connection of the session, as it is",
)
async def delivers_a_push(peer: ClientPeer) -> None:
    async with (
        peer.connected() as connection,
        peer.connected(session_id=connection.session_id) as other,
    ):
        run_id, call_id = f"run_{uuid.uuid4().hex}", f"tc_{uuid.uuid4().hex}"
        about = {"ts": 1704067200000, "run_id": run_id, "tool_call_id": call_id}
        event = {"type": "tool_request", **about, **TOOL}
        body = {"session_id": connection.session_id, "event": event}
        answer = await peer.inside("POST", "/internal/send", body)
        need(answer.is_success, f"it answered {answer.status}: {quoted(answer.text)}")
        need(answer.json.get("ok") is True, f"it answered {quoted(answer.text)}")
        for one in (connection, other):
            got = await one.until("tool_request")
            lost = {name: value for name, value in event.items() if got.get(name) != value}
            need(not lost, f"of the pushed event {quoted(lost)} is missing: {quoted(got)}")


@KIT.check(
    "推送事件",
    '"error": "client_offline",',
    "a push to a session without connections: ok false, error client_offline",
)
async def says_that_a_client_is_offline(peer: ClientPeer) -> None:
    async with peer.connected() as connection:
        session_id = connection.session_id
    event = {"type": "tool_request", "ts": 1, "run_id": "r", "tool_call_id": "t", **TOOL}
    async with asyncio.timeout(EVENT_S):
        while True:  # the end of the connection may take a moment
            body = {"session_id": session_id, "event": {**event, "run_id": uuid.uuid4().hex}}
            answer = await peer.inside("POST", "/internal/send", body)
            if not answer.is_success:
                break
            await asyncio.sleep(0.1)
    said = answer.json
    need(said.get("ok") is False, f"`ok` is {said.get('ok')!r}")
    need(said.get("error") == "client_offline", f"`error` is {said.get('error')!r}")
    member(said, "message", str)


@KIT.check(
    "M2",
    "客户端提交 `tool_result` 后 Agent 继续执行",
    "a tool_result is submitted to the orchestrator, and the run goes on",
)
async def submits_a_result(peer: ClientPeer) -> None:
    orchestrator = peer.own()
    async with peer.connected() as connection:
        await connection.invoke("tool", peer.agent)
        request = await connection.until("tool_request")
        ids = {name: request[name] for name in ("run_id", "tool_call_id")}
        await connection.say("tool_result", **ids, ok=True, result={"file_path": "x.png"})
        body = await orchestrator.received("/submit", ids["tool_call_id"])
        need(body.get("ok", body.get("status") == "SUCCEEDED"), f"submitted: {quoted(body)}")
        need(body.get("result") == {"file_path": "x.png"}, f"submitted: {quoted(body)}")
        await connection.until("done")


@KIT.check(
    "M3",
    "客户端提交审批决策后流程继续",
    "an approval_decision is sent on to /decide, and the run goes on",
)
async def sends_a_decision_on(peer: ClientPeer) -> None:
    orchestrator = peer.own()
    async with peer.connected() as connection:
        await connection.invoke("approval", peer.agent)
        asked = await connection.until("approval_required")
        need(asked.get("args_summary") == "转账 ¥100", f"args_summary of {quoted(asked)}")
        ids = {name: asked[name] for name in ("run_id", "approval_id")}
        await connection.say("approval_decision", **ids, decision="approve", reason="已确认")
        body = await orchestrator.received("/decide", ids["approval_id"])
        need(body.get("decision") == "approve", f"sent on: {quoted(body)}")
        await connection.until("done")


@KIT.check(
    "`tool_result`",
    "返回确认或错误",
    "an accepted tool_result, approval_decision and cancel_run are each confirmed",
)
async def confirms_commands(peer: ClientPeer) -> None:
    peer.own()
    async with peer.connected() as connection:
        await connection.invoke("tool", peer.agent)
        request = await connection.until("tool_request")
        ids = {name: request[name] for name in ("run_id", "tool_call_id")}
        await connection.say("tool_result", **ids, ok=True, result={})
        await connection.confirmed()
    async with peer.connected() as connection:
        await connection.invoke("approval", peer.agent)
        asked = await connection.until("approval_required")
        ids = {name: asked[name] for name in ("run_id", "approval_id")}
        await connection.say("approval_decision", **ids, decision="reject")
        await connection.confirmed()
    async with peer.connected() as connection:
        await connection.invoke("hold", peer.agent)
        run_id = (await connection.until("delta"))["run_id"]
        await connection.say("cancel_run", run_id=run_id)
        await connection.confirmed()


@KIT.check(
    "消息类型定义",
    'Error      string          `json:"error,omitempty"`',
    "a failed tool's `error` reaches the orchestrator as a string",
)
async def passes_an_error_on(peer: ClientPeer) -> None:
    orchestrator = peer.own()
    async with peer.connected() as connection:
        await connection.invoke("tool", peer.agent)
        request = await connection.until("tool_request")
        ids = {name: request[name] for name in ("run_id", "tool_call_id")}
        await connection.say("tool_result", **ids, ok=False, error="no paper")
        body = await orchestrator.received("/submit", ids["tool_call_id"])
        need(body.get("error") == "no paper", f"submitted: {quoted(body)}")
        need(body.get("ok", body.get("status") != "FAILED") is False, f"submitted: {quoted(body)}")


@KIT.check("M4", "客户端可取消正在执行的 run", "a cancel_run is sent on to /cancel")
async def sends_a_cancel_on(peer: ClientPeer) -> None:
    orchestrator = peer.own()
    async with peer.connected() as connection:
        await connection.invoke("hold", peer.agent)
        run_id = (await connection.until("delta"))["run_id"]
        await connection.say("cancel_run", run_id=run_id)
        await orchestrator.received("/cancel", run_id)


@KIT.check(
    "错误码定义",
    "| `orchestrator_error` | Orchestrator 返回错误 | 可重试 |",
    "a failed invoke is answered with orchestrator_error",
)
async def passes_a_failure_on(peer: ClientPeer) -> None:
    peer.own()
    async with peer.connected() as connection:
        await connection.invoke("refuse", peer.agent)
        await connection.refused("orchestrator_error")


@KIT.check(
    "错误码定义",
    "### 错误码定义",
    "an unknown run, call or approval is answered with a code of the table",
)
async def uses_the_codes_of_the_table(peer: ClientPeer) -> None:
    async with peer.connected() as connection:
        await connection.say("tool_result", run_id="no", tool_call_id="no", ok=True, result={})
        await connection.refused(*CODES)
        decision = {"run_id": "no", "approval_id": "no", "decision": "approve"}
        await connection.say("approval_decision", **decision)
        await connection.refused(*CODES)


@KIT.check(
    "M5",
    "短时间重连不丢失关键事件",
    "a client that comes back with its session_id hears the critical events it missed",
)
async def recalls_what_was_missed(peer: ClientPeer) -> None:
    orchestrator = peer.own()
    async with peer.connected() as connection:
        await connection.invoke("tool", peer.agent)
        request = await connection.until("tool_request")
    orchestrator.settled[request["tool_call_id"]].set()
    async with peer.connected(session_id=connection.session_id) as again:
        need(again.session_id == connection.session_id, "it is another session")
        async with asyncio.timeout(EVENT_S):
            while (event := await again.next())["type"] != "done":
                pass
        need(event.get("run_id") == request["run_id"], f"run_id of {quoted(event)}")
