"""Seed 001: a small ingress, for whoever builds a client. It plays one run and notes what it gets."""

import asyncio
import contextlib
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from aiohttp import WSMsgType, web

from toolgate.testkit.checks import (
    DoesNotHold,
    Kit,
    NotChecked,
    Unreachable,
    member,
    need,
    quoted,
)

HELLO_S: Final = 10.0
ANSWER_S: Final = 30.0  # in which the client answers a request
AGAIN_S: Final = 10.0  # in which it comes back: the seed's first delay is one second
SESSION: Final = "sess_testkit"
RUN: Final = "run_testkit"
CALL: Final = "tc_testkit"
APPROVAL: Final = "ap_testkit"
Step = Callable[[str], None]


@dataclass(slots=True)
class SmallIngress:
    """One client's visit, as it was received."""

    tool: str = "browser.screenshot"
    hello: Any = None
    messages: list[Any] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)
    pongs: int = 0
    done: bool = False  # the run was played to its end with the client there
    came_again: Any = None
    _first: bool = True
    _over: asyncio.Event = field(default_factory=asyncio.Event)
    _connected: asyncio.Event = field(default_factory=asyncio.Event)
    _again: asyncio.Event = field(default_factory=asyncio.Event)
    _step: Step = lambda _: None

    async def visit(self, host: str, port: int, *, wait_s: float, step: Step) -> None:
        """Serve until the client has been through the run; raises Unreachable if none comes."""
        self._step = step
        app = web.Application()
        app.router.add_get("/ws", self._serve)
        runner = web.AppRunner(app)
        await runner.setup()
        try:
            await web.TCPSite(runner, host, port).start()
            bound = runner.addresses[0]
            step(f"waiting for a client at ws://{bound[0]}:{bound[1]}/ws for {wait_s:g} s")
            try:
                await asyncio.wait_for(self._connected.wait(), wait_s)
            except TimeoutError:
                raise Unreachable(f"no client connected within {wait_s:g} s") from None
            await self._over.wait()
            if self.done:
                step("the run is over; the connection was closed, waiting for the client again")
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._again.wait(), AGAIN_S)
        finally:
            await runner.cleanup()

    def of_type(self, kind: str) -> list[Any]:
        return [one for one in self.messages if one.get("type") == kind]

    async def _serve(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(autoping=False)
        await socket.prepare(request)
        self._connected.set()
        if not self._first:
            with contextlib.suppress(TimeoutError, ConnectionError):
                self.came_again = await self._next(socket, HELLO_S)
                await _tell(socket, "hello_ack", session_id=SESSION)
            self._again.set()
            return socket
        self._first = False
        try:
            await self._play(socket)
        except (TimeoutError, ConnectionError):
            pass  # what did not come is missing in the notes
        finally:
            self._over.set()
            await socket.close()
        return socket

    async def _play(self, socket: web.WebSocketResponse) -> None:
        self._step("a client connected")
        self.hello = await self._next(socket, HELLO_S)
        await _tell(socket, "hello_ack", session_id=SESSION)
        await socket.ping(b"testkit")
        self._step("waiting for its agent_invoke")
        invoke = await self._until(socket, "agent_invoke")
        named = {"request_id": invoke["request_id"]} if "request_id" in invoke else {}
        agent = invoke.get("agent_id")
        await _tell(socket, "run_started", **named, session_id=SESSION, agent_id=agent)
        await _tell(socket, "delta", text="你好")
        await _tell(socket, "state", state="RUNNING", detail={})
        await _tell(socket, "later_than_the_seed", text="to be passed over")
        self._step("sent a tool_request")
        deadline = _now() + int(ANSWER_S * 1000)
        about: dict[str, Any] = {"tool_call_id": CALL, "tool_name": self.tool}
        await _tell(
            socket, "tool_request", **about, args={"url": "https://x"}, deadline_ts=deadline
        )
        with contextlib.suppress(TimeoutError):
            await self._until(socket, "tool_result")
        self._step("sent approval_required")
        asked = {**about, "approval_id": APPROVAL, "args_summary": "转账 ¥100"}
        await _tell(socket, "approval_required", **asked)
        with contextlib.suppress(TimeoutError):
            await self._until(socket, "approval_decision")
        await _tell(socket, "delta", text="完成")
        await _tell(socket, "done", usage={"total_tokens": 2, "duration_ms": 1})
        self.done = True

    async def _until(self, socket: web.WebSocketResponse, kind: str) -> Any:
        async with asyncio.timeout(ANSWER_S):
            while (message := await self._next(socket, ANSWER_S)).get("type") != kind:
                pass
        return message

    async def _next(self, socket: web.WebSocketResponse, seconds: float) -> Any:
        while True:
            frame = await socket.receive(seconds)
            if frame.type is WSMsgType.PONG:
                self.pongs += 1
            elif frame.type is WSMsgType.PING:
                await socket.pong(frame.data)
            elif frame.type is WSMsgType.TEXT:
                try:
                    message = json.loads(frame.data)
                except ValueError:
                    message = None
                if not isinstance(message, dict):
                    self.unreadable.append(quoted(frame.data))
                    continue
                self.messages.append(message)
                return message
            elif frame.type is WSMsgType.BINARY:
                self.unreadable.append("a binary frame")
            else:
                raise ConnectionError("the client closed the connection")


async def _tell(socket: web.WebSocketResponse, kind: str, **members: Any) -> None:
    run = {} if kind == "hello_ack" else {"run_id": RUN}
    await socket.send_json({"type": kind, "ts": _now(), **run, **members})


def _now() -> int:
    return time.time_ns() // 1_000_000


def _required(peer: SmallIngress, kind: str) -> dict[str, Any]:
    """The first message of this type; raises DoesNotHold without one."""
    found = peer.of_type(kind)
    if not found:
        raise DoesNotHold(
            f"no {kind} came; the client said {[one['type'] for one in peer.messages]}"
        )
    return dict(found[0])


KIT: Final[Kit[SmallIngress]] = Kit("001")


@KIT.check(
    "`hello`", '"api_key": "sk-xxx",', "the first message is hello, with user_id and api_key"
)
async def says_hello(peer: SmallIngress) -> None:
    need(peer.hello is not None, "no message came within 10 s")
    need(peer.hello.get("type") == "hello", f"the first message is {quoted(peer.hello)}")
    member(peer.hello, "user_id", str, of="hello")
    member(peer.hello, "api_key", str, of="hello")


@KIT.check(
    "消息类型定义",
    'Type      string `json:"type"`',
    "every message is a JSON object with `type`; `ts`, where given, is in milliseconds",
)
async def sends_json_objects(peer: SmallIngress) -> None:
    need(not peer.unreadable, f"not readable: {peer.unreadable}")
    for message in peer.messages:
        member(message, "type", str, of="a message")
        if "ts" in message:
            at = member(message, "ts", int, of="a message")
            need(at > 10**11, f"`ts` is {at}")


@KIT.check(
    "`agent_invoke`",
    '"agent_id": "agent_a",',
    "agent_invoke has agent_id and message with role and content",
)
async def invokes(peer: SmallIngress) -> None:
    invoke = _required(peer, "agent_invoke")
    member(invoke, "agent_id", str, of="agent_invoke")
    message = member(invoke, "message", dict, of="agent_invoke")
    member(message, "role", str, of="`message`")
    member(message, "content", str, of="`message`")
    if "session_id" in invoke:
        need(invoke["session_id"] == SESSION, f"session_id is {invoke['session_id']!r}")


@KIT.check(
    "心跳机制", "**客户端需响应 WebSocket ping frame**", "a ping frame is answered with a pong"
)
async def answers_a_ping(peer: SmallIngress) -> None:
    need(peer.pongs, "no pong came")


@KIT.check(
    "`tool_result`",
    '"tool_call_id": "tc_001",',
    "a tool_request is answered with tool_result: run_id, tool_call_id, ok, and `error` a string",
)
async def answers_a_tool_request(peer: SmallIngress) -> None:
    result = _required(peer, "tool_result")
    need(result.get("run_id", RUN) == RUN, f"run_id is {result.get('run_id')!r}")
    need(result.get("tool_call_id") == CALL, f"tool_call_id is {result.get('tool_call_id')!r}")
    ok = member(result, "ok", bool, of="tool_result")
    if not ok and "error" in result:
        member(result, "error", str, of="tool_result")


@KIT.check(
    "`approval_decision`",
    '"decision": "approve",',
    "approval_required is answered with approval_decision: approval_id, approve or reject",
)
async def answers_an_approval(peer: SmallIngress) -> None:
    decision = _required(peer, "approval_decision")
    need(decision.get("approval_id") == APPROVAL, f"approval_id: {quoted(decision)}")
    said = decision.get("decision")
    need(said in ("approve", "reject"), f"`decision` is {said!r}")


@KIT.check(
    "Ingress → 客户端消息",
    "执行完成",
    "the client stays to the end of the run, also after a message type that it does not know",
)
async def stays_to_the_end(peer: SmallIngress) -> None:
    need(peer.done, "the client closed the connection during the run")


@KIT.check(
    "重连策略",
    "客户端实现建议：",
    "after a lost connection the client comes back with hello (advised, not required)",
)
async def comes_back(peer: SmallIngress) -> None:
    if peer.came_again is None:
        raise NotChecked(f"it did not come back within {AGAIN_S:g} s")
    need(peer.came_again.get("type") == "hello", f"it came back with {quoted(peer.came_again)}")
