"""Seed 001: an ingress, for whoever builds an orchestrator."""

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import aiohttp
from aiohttp import web

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

STREAM: Final = "text/event-stream"
ENDS: Final = ("done", "error")
EVENT_S: Final = 30.0  # between two events


@dataclass(slots=True)
class IngressPeer:
    """Invokes agents and reads their streams; with `serve` it takes pushes as well."""

    url: str
    http: aiohttp.ClientSession
    token: str = ""
    agent: str = "echo"
    tool_message: str = ""  # a message at which the agent calls a tool of the client
    approval_message: str = ""  # a message at which the agent needs an approval
    session: str = ""  # for all runs, such as one whose client's tools are known there
    takes_pushes: bool = False
    pushed: asyncio.Queue[dict[str, Any]] = field(default_factory=asyncio.Queue)

    async def post(self, path: str, body: Any, *, token: str | None = None) -> HttpAnswer:
        token = self.token if token is None else token
        bearer = f"Bearer {token}" if token else ""
        return await ask(self.http, "POST", self.url + path, body, authorization=bearer)

    def body(self, message: str, *, agent: str = "") -> dict[str, Any]:
        return {
            "agent_id": agent or self.agent,
            "session_id": self.session or f"sess_testkit_{uuid.uuid4().hex}",
            "message": {"role": "user", "content": message},
        }

    @asynccontextmanager
    async def invoke(self, message: str, *, agent: str = "") -> AsyncIterator["Stream"]:
        headers = {"Accept": STREAM, "Content-Type": "application/json"}
        if self.token:
            headers["Authorization"] = f"Bearer {self.token}"
        data = json.dumps(self.body(message, agent=agent)).encode()
        async with self.http.post(
            f"{self.url}/internal/invoke", data=data, headers=headers
        ) as answer:
            yield Stream(answer)

    async def serve(self, host: str, port: int) -> web.AppRunner:
        """Take the orchestrator's pushes at `/internal/send`."""

        async def take(request: web.Request) -> web.Response:
            self.pushed.put_nowait(await request.json())
            return web.json_response({"ok": True})

        app = web.Application()
        app.router.add_post("/internal/send", take)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, host, port).start()
        self.takes_pushes = True
        return runner


class Stream:
    """The events of one invoke."""

    def __init__(self, answer: aiohttp.ClientResponse) -> None:
        self.answer = answer
        self.run_id = ""
        self.seen: list[dict[str, Any]] = []

    @property
    def is_stream(self) -> bool:
        return self.answer.content_type == STREAM

    async def next(self) -> dict[str, Any]:
        """The next event; raises DoesNotHold where the stream ends without one."""
        name, data = "", []
        async with asyncio.timeout(EVENT_S):
            while line := (await self.answer.content.readline()).decode("utf-8", "replace"):
                line = line.rstrip("\r\n")
                if line.startswith("data:"):
                    data.append(line.removeprefix("data:").removeprefix(" "))
                elif line.startswith("event:"):
                    name = line.removeprefix("event:").strip()
                elif not line and data:
                    return self._read("\n".join(data), name)
        raise DoesNotHold(f"the stream ended after {[one['type'] for one in self.seen]}")

    def _read(self, text: str, name: str) -> dict[str, Any]:
        try:
            event = json.loads(text)
        except ValueError:
            raise DoesNotHold(f"an event is no JSON: {quoted(text)}") from None
        if "type" not in event and name:
            event["type"] = name
        if "type" not in event and "run_id" in event and not self.seen:
            event["type"] = "run_started"  # the immediate response of the sequence diagram
        member(event, "type", str, of="an event")
        self.run_id = self.run_id or event.get("run_id", "")
        self.seen.append(event)
        return dict(event)

    async def until(self, *types: str) -> dict[str, Any]:
        while (event := await self.next())["type"] not in types:
            if event["type"] in ENDS:
                raise DoesNotHold(f"the run ended before {types[0]}: {quoted(event)}")
        return event


KIT: Final[Kit[IngressPeer]] = Kit("001")


@KIT.check(
    "与 Orchestrator 通信",
    'httpReq.Header.Set("Accept", "text/event-stream")',
    "POST /internal/invoke is answered with a stream, or with the run's id and pushes",
)
async def answers_an_invoke(peer: IngressPeer) -> None:
    async with peer.invoke("hello") as stream:
        need(stream.answer.status // 100 == 2, f"it answered {stream.answer.status}")
        if not stream.is_stream:
            member(json.loads(await stream.answer.text()), "run_id", str)


@KIT.check(
    "Agent 调用流程",
    "Orch-->>O: run_id (immediate response)",
    "the first event names the run, and every event of the run its run_id",
)
async def names_the_run(peer: IngressPeer) -> None:
    async with _streamed(peer, "hello") as stream:
        first = await stream.next()
        member(first, "run_id", str, of="the first event")
        need(first["type"] == "run_started", f"the first event is {first['type']}")
        await _to_the_end(stream)
    others = {event.get("run_id", stream.run_id) for event in stream.seen}
    need(others == {stream.run_id}, f"the stream's run ids are {sorted(others)}")


@KIT.check(
    "M1",
    "最终收到 `done` 事件",
    "deltas have `text`; the stream ends with one `done` that has `usage.total_tokens`",
)
async def ends_with_done(peer: IngressPeer) -> None:
    async with _streamed(peer, "hello") as stream:
        end = await _to_the_end(stream)
    for event in stream.seen:
        if event["type"] == "delta":
            member(event, "text", str, of="a delta")
    need(end["type"] == "done", f"the run ended with {quoted(end)}")
    member(member(end, "usage", dict, of="done"), "total_tokens", int, of="`usage`")


@KIT.check(
    "Ingress 接收 Orchestrator 推送",
    "Orchestrator 通过 HTTP 调用 Ingress 的内部 API 推送事件：",
    "an invoke that asks for JSON is answered with run_id; the events come to /internal/send",
)
async def pushes_events(peer: IngressPeer) -> None:
    if not peer.takes_pushes:
        raise NotChecked("no --listen was given, where the orchestrator pushes to")
    body = peer.body("hello")
    answer = await peer.post("/internal/invoke", body)
    need(answer.is_success, f"it answered {answer.status}: {quoted(answer.text)}")
    run_id = member(answer.json, "run_id", str)
    async with asyncio.timeout(EVENT_S):
        while True:
            push = await peer.pushed.get()
            event = member(push, "event", dict, of="a push")
            if event.get("run_id") != run_id:
                continue
            need(push.get("session_id") == body["session_id"], f"session_id of {quoted(push)}")
            if member(event, "type", str, of="an event") in ENDS:
                break


@KIT.check("错误码定义", "Orchestrator 返回错误", "an unknown agent is an error, not a run")
async def refuses_an_unknown_agent(peer: IngressPeer) -> None:
    async with peer.invoke("hello", agent="testkit_no_such_agent") as stream:
        if stream.answer.status // 100 != 2:
            return
        need(stream.is_stream, "it is answered with a run")
        need((await _to_the_end(stream))["type"] == "error", "the run ends with done")


@KIT.check(
    "`tool_result`",
    "调用 `POST /internal/tool_calls/:id/submit`",
    "a tool_request has tool_call_id, tool_name and args; after the submit the run goes on",
)
async def goes_on_after_a_result(peer: IngressPeer) -> None:
    if not peer.tool_message:
        raise NotChecked("no --tool-message was given, at which the agent calls a client's tool")
    async with _streamed(peer, peer.tool_message) as stream:
        request = await stream.until("tool_request")
        call_id = member(request, "tool_call_id", str, of="the tool_request")
        member(request, "tool_name", str, of="the tool_request")
        member(request, "args", dict, of="the tool_request")
        body = {"run_id": stream.run_id, "tool_call_id": call_id, "ok": True}
        path = f"/internal/tool_calls/{call_id}/submit"
        result = {**body, "status": "SUCCEEDED", "result": {"file_path": "/tmp/testkit.png"}}  # noqa: S108
        answer = await peer.post(path, result)
        need(answer.is_success, f"the submit is answered {answer.status}: {quoted(answer.text)}")
        await _to_the_end(stream)


@KIT.check("`tool_result`", "返回确认或错误", "a result for a call that there is not is refused")
async def refuses_an_unknown_call(peer: IngressPeer) -> None:
    path = "/internal/tool_calls/tc_testkit_no_such/submit"
    body = {"run_id": "run_testkit", "tool_call_id": "tc_testkit_no_such", "ok": True}
    answer = await peer.post(path, {**body, "status": "SUCCEEDED", "result": {}})
    need(not answer.is_success, f"it is answered {answer.status}")


@KIT.check(
    "M3",
    "客户端提交审批决策后流程继续",
    "approval_required has its four members; after the approval the run goes on",
)
async def goes_on_after_an_approval(peer: IngressPeer) -> None:
    end = await _decided(peer, "approve")
    need(end["type"] in ENDS, f"the run ends with {quoted(end)}")


@KIT.check(
    "M3", "拒绝时 Agent 收到 rejected 错误", "after a rejection the run ends, without the call"
)
async def goes_on_after_a_rejection(peer: IngressPeer) -> None:
    await _decided(peer, "reject")


@KIT.check(
    "`cancel_run`",
    "调用 `POST /internal/runs/:id/cancel`",
    "a cancelled run's stream ends, without a tool_request after it",
)
async def cancels(peer: IngressPeer) -> None:
    waits = peer.tool_message or peer.approval_message
    if not waits:
        raise NotChecked("no --tool-message or --approval-message was given, at which a run waits")
    async with _streamed(peer, waits) as stream:
        await stream.until("tool_request", "approval_required")
        answer = await peer.post(f"/internal/runs/{stream.run_id}/cancel", {})
        need(answer.is_success, f"the cancel is answered {answer.status}")
        await _to_the_end(stream)


@asynccontextmanager
async def _streamed(peer: IngressPeer, message: str) -> AsyncIterator[Stream]:
    async with peer.invoke(message) as stream:
        need(stream.answer.status // 100 == 2, f"invoke is answered {stream.answer.status}")
        if not stream.is_stream:
            raise NotChecked("this orchestrator pushes its events and has no streams")
        yield stream


async def _to_the_end(stream: Stream) -> dict[str, Any]:
    while (event := await stream.next())["type"] not in ENDS:
        pass
    return event


async def _decided(peer: IngressPeer, decision: str) -> dict[str, Any]:
    if not peer.approval_message:
        raise NotChecked("no --approval-message was given, at which the agent needs an approval")
    async with _streamed(peer, peer.approval_message) as stream:
        asked = await stream.until("approval_required")
        for name in ("approval_id", "tool_call_id", "tool_name", "args_summary"):
            member(asked, name, str, of="approval_required")
        path = f"/internal/approvals/{asked['approval_id']}/decide"
        answer = await peer.post(path, {"decision": decision, "reason": "testkit"})
        need(answer.is_success, f"the decision is answered {answer.status}: {quoted(answer.text)}")
        return await _to_the_end(stream)
