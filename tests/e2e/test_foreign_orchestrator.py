"""Our ingress against an orchestrator that is not ours and knows only the seed's shapes."""

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from tests.e2e.harness import ANY_PORT, CREDENTIALS, Client
from tests.e2e.ways import eventually
from toolgate import settings as table
from toolgate.bootstrap.roles import start_ingress, start_orchestrator
from toolgate.contracts.ingress_v1 import ErrorCode

requirement = pytest.mark.requirement

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]
TOOL = {"tool_call_id": "tc_001", "tool_name": "browser.screenshot", "args": {"url": "https://x"}}


@dataclass
class Foreign:
    """Answers an invoke as a test says; remembers all it was asked."""

    answer: Answer
    asked: list[tuple[str, dict[str, Any], dict[str, str]]] = field(default_factory=list)
    heard: asyncio.Event = field(default_factory=asyncio.Event)
    statuses: dict[str, int] = field(default_factory=dict)  # of the other routes, by last part
    words: str = ""  # of a refusal
    url: str = ""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.asked.append((request.path, await request.json(), dict(request.headers)))
        self.heard.set()
        if request.path == "/internal/invoke":
            return await self.answer(request)
        if request.path.endswith("/tools"):
            return web.Response(status=404)
        status = self.statuses.get(request.path.rsplit("/", 1)[1], 200)
        if status != 200:
            return web.Response(status=status, text=self.words)
        return web.json_response({"ok": True})

    def bodies(self, suffix: str) -> list[dict[str, Any]]:
        return [body for path, body, _ in self.asked if path.endswith(suffix)]


@contextlib.asynccontextmanager
async def foreign(answer: Answer) -> AsyncIterator[Foreign]:
    one = Foreign(answer)
    app = web.Application()
    app.router.add_post("/{path:.*}", one.handle)
    runner = web.AppRunner(app, handler_cancellation=True)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    one.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield one
    finally:
        await runner.cleanup()


@contextlib.asynccontextmanager
async def ingress_at(url: str, home: Path, **settings: str) -> AsyncIterator[dict[str, str]]:
    given = {**ANY_PORT, "INTERNAL_TOKEN": "", "LOG_LEVEL": "error", "ORCHESTRATOR_URL": url}
    loaded = table.load({**given, "TOOLGATE_HOME": str(home), **settings}, environment={})
    installation = await start_ingress(loaded)
    try:
        yield installation.urls
    finally:
        await installation.stop()


def sse(*chunks: bytes, then: asyncio.Event | None = None, after: bytes = b"") -> Answer:
    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for chunk in chunks:
            await response.write(chunk)
        if then is not None:
            await then.wait()
            await response.write(after)
        return response

    return answer


def data(kind: str, **members: Any) -> bytes:
    body = {"type": kind, "ts": 1704067200000, "run_id": "run_001", **members}
    return b"data:" + json.dumps(body).encode() + b"\n\n"


PLAIN = (
    data("run_started", agent_id="agent_a"),
    data("delta", text="你好"),
    data("state", state="THINKING"),
    data("delta", text="！"),
    data("done", usage={"total_tokens": 50, "duration_ms": 500}),
)
BY_THE_BOOK = (
    b"\xef\xbb\xbf: a comment\r\nretry: 10\r\nevent: run_started\r\nid: 1\r\n"
    b'data: {"run_id": "run_001"}\r\n\r\n: another\r\n'
    b'event: delta\rdata: {"text":\rdata: "\xe4\xbd\xa0\xe5\xa5\xbd"}\r\r'
    b'event: state\ndata: {"state": "THINKING"}\n\n'
    b'data: {"type": "delta",\ndata: "text": "\xef\xbc\x81"}\n\n'
    b'event: done\ndata: {"usage": {"total_tokens": 50, "duration_ms": 500}}'
)


@requirement(
    "001/dispatch/invoke-accept",
    "001/dispatch/invoke-body",
    "001/dispatch/sse-event-names",
    "001/dispatch/sse-multi-line",
    "001/dispatch/sse-comments",
    "001/dispatch/sse-crlf",
    "001/dispatch/sse-no-last-blank",
    "001/dispatch/sse-split-anywhere",
    "001/dispatch/understands-both",
)
@pytest.mark.parametrize(
    "chunks",
    [PLAIN, PLAIN[1:], (BY_THE_BOOK,), tuple(bytes([one]) for one in BY_THE_BOOK)],
    ids=["plain", "without run_started", "by the book", "byte by byte"],
)
async def test_its_stream_becomes_the_sessions_events(
    tmp_path: Path, chunks: tuple[bytes, ...]
) -> None:
    async with (
        foreign(sse(*chunks)) as orchestrator,
        ingress_at(orchestrator.url, tmp_path, INTERNAL_TOKEN="between us") as urls,
    ):
        client = await Client.connect(urls["ingress_ws"])
        await client.invoke("hi", agent="agent_a", request_id="q1")
        heard = await client.hear_until("done", "error")
        types = [one["type"] for one in heard]
        assert types == ["run_started", "delta", "state", "delta", "done"]
        assert heard[0]["request_id"] == "q1"
        assert (heard[0]["session_id"], heard[0]["agent_id"]) == (client.session_id, "agent_a")
        assert {one["run_id"] for one in heard} == {"run_001"}
        assert "".join(one.get("text", "") for one in heard) == "你好！"
        assert heard[-1]["usage"] == {"total_tokens": 50, "duration_ms": 500}
        assert [one["seq"] for one in heard] == [1, 2, 3, 4, 5]
        assert all(one["ts"] > 1_600_000_000_000 and one["event_id"] for one in heard)
        path, body, headers = orchestrator.asked[-1]
        assert (path, headers["Accept"]) == ("/internal/invoke", "text/event-stream")
        assert headers["Authorization"] == "Bearer between us"
        assert body["session_id"] == client.session_id
        assert (body["agent_id"], body["message"]) == ("agent_a", {"role": "user", "content": "hi"})
        await client.close()


@requirement("001/dispatch/understands-both", "001/send/by-run")
async def test_its_json_answer_and_pushes_become_the_sessions_events(tmp_path: Path) -> None:
    async def accepted(_: web.Request) -> web.StreamResponse:
        return web.json_response({"run_id": "run_001"})

    async with (
        foreign(accepted) as orchestrator,
        ingress_at(orchestrator.url, tmp_path) as urls,
        aiohttp.ClientSession() as http,
    ):
        client = await Client.connect(urls["ingress_ws"])
        await client.invoke("hi", agent="agent_a")
        heard = [await client.hear()]
        for chunk in PLAIN:
            event = json.loads(chunk[5:])
            async with http.post(
                f"{urls['ingress_internal']}/internal/send", json={"event": event}
            ) as said:
                assert await said.json() == {"ok": True}
        heard += await client.hear_until("done")
        types = [one["type"] for one in heard]
        assert types == ["run_started", "delta", "state", "delta", "done"]
        late = {"type": "delta", "ts": 1, "run_id": "run_001", "text": "late"}
        async with http.post(
            f"{urls['ingress_internal']}/internal/send", json={"event": late}
        ) as said:
            assert said.status == 200
        await client.say("cancel_run", run_id="run_nowhere")
        assert (await client.hear())["type"] == "error", "nothing follows a run's end"
        await client.close()


@requirement("001/dispatch/understands-both")
async def test_a_tool_request_pushed_beside_the_stream_reaches_the_client_once(
    tmp_path: Path,
) -> None:
    go_on = asyncio.Event()
    approval = {"approval_id": "ap_001", "args_summary": "转账 ¥100", **TOOL}
    del approval["args"]
    asked = data("tool_request", **TOOL), data("approval_required", **approval)
    pushed = (*asked, data("state", state="RUNNING"), data("delta", text="told by the stream"))
    end = b"".join(asked) + data("delta", text="told by the stream") + data("done")
    async with (
        foreign(sse(PLAIN[0], then=go_on, after=end)) as orchestrator,
        ingress_at(orchestrator.url, tmp_path) as urls,
        aiohttp.ClientSession() as http,
    ):
        client = await Client.connect(urls["ingress_ws"])
        await client.invoke("hi", agent="agent_a")
        heard = [await client.hear()]
        for chunk in pushed:
            body = {"session_id": client.session_id, "event": json.loads(chunk[5:])}
            async with http.post(f"{urls['ingress_internal']}/internal/send", json=body) as said:
                assert await said.json() == {"ok": True}
        heard += [await client.hear() for _ in range(3)]
        await client.say("tool_result", run_id="run_001", tool_call_id="tc_001", ok=True)
        go_on.set()
        heard += await client.hear_until("done", "error")
        assert [one["type"] for one in heard] == [
            "run_started", "tool_request", "approval_required", "state", "delta", "done",
        ]  # fmt: skip
        assert len(orchestrator.bodies("tc_001/submit")) == 1
        await client.close()


@requirement(
    "001/dispatch/submit-tool-result",
    "001/dispatch/submit-body",
    "001/dispatch/submit-decision",
    "001/tools/duplicate-answered",
    "001/tools/not-yours",
    "001/approvals/not-yours",
)
async def test_results_and_decisions_are_handed_over_once(tmp_path: Path) -> None:
    told = asyncio.Event()
    approval = {"approval_id": "ap_001", "args_summary": "转账 ¥100", **TOOL}
    del approval["args"]
    start = data("tool_request", **TOOL) + data("approval_required", **approval)
    end = data("delta", text="done") + data("done")
    async with (
        foreign(sse(start, then=told, after=end)) as orchestrator,
        ingress_at(orchestrator.url, tmp_path) as urls,
    ):
        client = await Client.connect(urls["ingress_ws"])
        stranger = await Client.connect(urls["ingress_ws"], user="stranger")
        await client.invoke("hi", agent="agent_a")
        await client.hear_until("approval_required")
        result = {"run_id": "run_001", "tool_call_id": "tc_001", "ok": True, "result": {"a": 1}}
        decision = {"run_id": "run_001", "approval_id": "ap_001", "decision": "approve"}
        for kind, members in (("tool_result", result), ("approval_decision", decision)):
            await stranger.say(kind, **members)
            assert (await stranger.hear())["type"] == "error"
        await client.say("tool_result", **result)
        await client.say("tool_result", **result)
        assert (await client.hear())["type"] == "error"
        await client.say("approval_decision", **decision, reason="checked")
        await client.say("approval_decision", **decision)
        assert "approved" in (await client.hear())["message"]
        told.set()
        assert (await client.hear_until("done"))[-1]["usage"] == {}
        assert orchestrator.bodies("tc_001/submit") == [
            {
                "run_id": "run_001",
                "tool_call_id": "tc_001",
                "ok": True,
                "status": "SUCCEEDED",
                "result": {"a": 1},
            }
        ]
        assert orchestrator.bodies("ap_001/decide") == [
            {"decision": "approve", "reason": "checked", "decided_by": "u1"}
        ]
        await client.say("tool_result", **result)
        assert (await client.hear())["type"] == "error"
        for one in (client, stranger):
            await one.close()


@requirement("001/m2/deadline")
async def test_it_is_told_when_a_tool_request_passes_its_deadline(tmp_path: Path) -> None:
    hold = asyncio.Event()
    request = data("tool_request", **TOOL, deadline_ts=1704067260000)
    async with (
        foreign(sse(request, then=hold)) as orchestrator,
        ingress_at(orchestrator.url, tmp_path) as urls,
    ):
        client = await Client.connect(urls["ingress_ws"])
        await client.invoke("hi", agent="agent_a")
        await client.hear_until("tool_request")

        async def is_told() -> bool:
            return bool(orchestrator.bodies("submit"))

        await eventually(is_told)
        said = orchestrator.bodies("submit")[0]
        assert (said["ok"], said["status"]) == (False, "FAILED")
        assert said["error"] == "tool_timeout: no result in time"
        hold.set()
        await client.close()


@requirement("001/m2/offline-error", "001/offline/fails-at-once")
async def test_it_is_told_when_there_is_nobody_to_run_a_tool(tmp_path: Path) -> None:
    gone = asyncio.Event()
    hold = asyncio.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(PLAIN[0])
        await gone.wait()
        await response.write(data("tool_request", **TOOL))
        await hold.wait()
        return response

    async with (
        foreign(answer) as orchestrator,
        ingress_at(orchestrator.url, tmp_path, RESUME_WINDOW_MS="0", ON_DISCONNECT="keep") as urls,
        aiohttp.ClientSession() as http,
    ):
        client = await Client.connect(urls["ingress_ws"])
        await client.invoke("hi", agent="agent_a")
        await client.hear_until("run_started")
        await client.close()

        async def is_offline() -> bool:
            url = f"{urls['ingress_internal']}/internal/sessions/{client.session_id}/status"
            async with http.get(url) as said:
                return (await said.json())["online"] is False

        async def is_told() -> bool:
            return bool(orchestrator.bodies("submit"))

        await eventually(is_offline)
        gone.set()
        await eventually(is_told)
        said = orchestrator.bodies("submit")[0]
        assert (said["ok"], said["status"]) == (False, "FAILED")
        assert said["error"] == "client_offline: the client is not connected"
        hold.set()


@requirement("001/dispatch/submit-cancel", "001/cancel/no-delta-after")
async def test_a_cancel_is_handed_over_and_the_run_ends_here_too(tmp_path: Path) -> None:
    hold = asyncio.Event()
    async with (
        foreign(sse(*PLAIN[:2], then=hold, after=data("delta", text="too late"))) as orchestrator,
        ingress_at(orchestrator.url, tmp_path) as urls,
    ):
        client = await Client.connect(urls["ingress_ws"])
        await client.invoke("hi", agent="agent_a")
        await client.hear_until("delta")
        await client.say("cancel_run", run_id="run_001")
        heard = await client.hear_until("error", "done")
        assert [one.get("state") or one["type"] for one in heard] == ["CANCELLED", "done"]
        assert len(orchestrator.bodies("run_001/cancel")) == 1
        hold.set()
        await client.close()


async def refuses(_: web.Request) -> web.StreamResponse:
    return web.Response(status=500, text="<html>Internal Server Error</html>")


async def babbles(_: web.Request) -> web.StreamResponse:
    return web.Response(text="%PDF-1.4", content_type="application/json")


async def answers_a_list(_: web.Request) -> web.StreamResponse:
    return web.json_response([1, 2])


async def hangs(_: web.Request) -> web.StreamResponse:
    await asyncio.sleep(3600)
    raise AssertionError


@requirement(
    "001/dispatch/orchestrator-500",
    "001/dispatch/orchestrator-garbage",
    "001/dispatch/orchestrator-down",
    "001/codes/orchestrator-error",
)
@pytest.mark.parametrize(
    "answer",
    [
        refuses,
        babbles,
        answers_a_list,
        sse(b"data: nonsense\n\n"),
        sse(b""),
        sse(b'data: {"type": "cake"}\n\n'),
        sse(b'data: {"type": ["delta"]}\n\n'),
        sse(b'data: {"type": "error", "code": "no", "message": "not today"}\n\n'),
        hangs,
    ],
    ids=[
        "500",
        "garbage",
        "a list",
        "garbage in SSE",
        "no event",
        "odd event",
        "odd type",
        "error",
        "slow",
    ],
)
async def test_whatever_it_answers_the_client_is_told_orchestrator_error(
    tmp_path: Path, answer: Answer
) -> None:
    soon = {"ORCHESTRATOR_TIMEOUT_MS": "1000", "AGENT_TIMEOUT_MS": "1000"}
    async with (
        foreign(answer) as orchestrator,
        ingress_at(orchestrator.url, tmp_path, **soon) as urls,
    ):
        client = await Client.connect(urls["ingress_ws"])
        await client.invoke("hi", agent="agent_a", request_id="q1")
        said = await client.hear()
        assert (said["type"], said["code"]) == ("error", ErrorCode.ORCHESTRATOR_ERROR)
        assert said["request_id"] == "q1"
        orchestrator.answer = sse(*PLAIN)
        await client.invoke("again", agent="agent_a", request_id="q1")
        assert (await client.hear_until("done", "error"))[-1]["type"] == "done"
        await client.close()


@requirement("001/dispatch/refusal-text", "001/dispatch/refusal-not-settled")
@pytest.mark.parametrize("status", [404, 409, 422, 503])
async def test_a_result_and_a_decision_that_it_does_not_take_can_be_sent_again(
    tmp_path: Path, status: int
) -> None:
    hold = asyncio.Event()
    approval = {"approval_id": "ap_001", "args_summary": "转账 ¥100", **TOOL}
    del approval["args"]
    asks = data("tool_request", **TOOL) + data("approval_required", **approval)
    async with (
        foreign(sse(asks, then=hold, after=data("done"))) as orchestrator,
        ingress_at(orchestrator.url, tmp_path) as urls,
    ):
        client = await Client.connect(urls["ingress_ws"])
        await client.invoke("hi", agent="agent_a")
        await client.hear_until("approval_required")
        result = {"run_id": "run_001", "tool_call_id": "tc_001", "ok": False, "error": "no paper"}
        decision = {"run_id": "run_001", "approval_id": "ap_001", "decision": "reject"}
        for kind, path, members in (
            ("tool_result", "submit", result),
            ("approval_decision", "decide", decision),
        ):
            orchestrator.statuses[path] = status
            orchestrator.words = "no. " * 1000
            await client.say(kind, **members)
            said = await client.hear()
            assert (said["type"], said["code"]) == ("error", ErrorCode.ORCHESTRATOR_ERROR)
            assert said.get("detail", {}).get("retry", True)
            assert "no. no." in said["message"]
            assert len(said["message"]) < 600
            del orchestrator.statuses[path]
            await client.say(kind, **members)
            assert (await client.confirmation())["run_id"] == "run_001"
        assert [one["error"] for one in orchestrator.bodies("submit")] == ["no paper"] * 2
        hold.set()
        await client.hear_until("done")
        await client.close()


@requirement("001/dispatch/slow-first-event")
async def test_its_first_event_may_come_late_and_holds_up_no_other_message(tmp_path: Path) -> None:
    late = asyncio.Event()

    async def thinks(request: web.Request) -> web.StreamResponse:
        if (await request.json())["agent_id"] == "slow":
            await late.wait()  # not even the headers are sent
        return await sse(*PLAIN)(request)

    async with (
        foreign(thinks) as orchestrator,
        ingress_at(orchestrator.url, tmp_path, ORCHESTRATOR_TIMEOUT_MS="500") as urls,
    ):
        client = await Client.connect(urls["ingress_ws"])
        await client.invoke("hi", agent="slow", request_id="q1")
        await client.invoke("hi", agent="quick", request_id="q2")
        await client.say("cancel_run", run_id="run_nowhere")
        heard = await client.hear_until("done")
        assert (heard[0]["type"], heard[0]["request_id"]) == ("run_started", "q2")
        while not any(one["run_id"] == "run_nowhere" for one in heard):
            heard.append(await client.hear())
        late.set()
        await client.close()


@requirement("001/dispatch/immediate-answer", "001/dispatch/bad-line-skipped")
async def test_an_untyped_first_event_starts_the_run_and_a_bad_line_does_not_end_it(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    chunks = [b'data: {"run_id": "run_001"}\n\n']
    for chunk in PLAIN[1:]:
        chunks += [b"data: {half a line\n\n", b'data: {"type": "delta"}\n\n', chunk]
    bad = 2 * (len(PLAIN) - 1)

    async def counted(metrics: str) -> int:
        async with http.get(metrics) as answer:
            (line,) = re.findall(r"^\w*events_skipped\w* (\d+)", await answer.text(), re.MULTILINE)
            return int(line)

    async with (
        foreign(sse(*chunks)) as orchestrator,
        ingress_at(orchestrator.url, tmp_path, LOG_LEVEL="warning") as urls,
        aiohttp.ClientSession() as http,
    ):
        metrics = f"{urls['ingress_internal']}/metrics"
        before = await counted(metrics)
        client = await Client.connect(urls["ingress_ws"])
        await client.invoke("hi", agent="agent_a")
        heard = await client.hear_until("error", "done")
        assert [one["type"] for one in heard] == ["run_started", "delta", "state", "delta", "done"]
        assert {one["run_id"] for one in heard} == {"run_001"}
        await client.close()
        assert await counted(metrics) - before == bad
    assert capfd.readouterr().err.count(" event_skipped ") == bad


@requirement("001/dispatch/ts-kept")
@pytest.mark.parametrize("pushed", [True, False])
async def test_the_time_of_its_events_is_kept(tmp_path: Path, *, pushed: bool) -> None:
    async def accepted(_: web.Request) -> web.StreamResponse:
        return web.json_response({"run_id": "run_001"})

    timeless = b'data: {"type": "state", "state": "THINKING", "run_id": "run_001"}\n\n'
    chunks = (PLAIN[1], timeless, *PLAIN[3:])
    async with (
        foreign(accepted if pushed else sse(*chunks)) as orchestrator,
        ingress_at(orchestrator.url, tmp_path) as urls,
        aiohttp.ClientSession() as http,
    ):
        client = await Client.connect(urls["ingress_ws"])
        await client.invoke("hi", agent="agent_a")
        for chunk in chunks if pushed else ():
            event = {"ts": 1704067200000, **json.loads(chunk[5:])}
            body = {"session_id": client.session_id, "event": event}
            async with http.post(f"{urls['ingress_internal']}/internal/send", json=body) as said:
                assert said.status == 200
        heard = await client.hear_until("done", "error")
        times = [one["ts"] == 1704067200000 for one in heard[1:]]
        assert times == [True, pushed, True, True]
        assert all(one["ts"] > 1_600_000_000_000 for one in heard)
        again = await Client.connect(urls["ingress_ws"], session_id=client.session_id, last_seq=0)
        assert await again.hear_until("done") == heard
        for one in (client, again):
            await one.close()


@requirement("001/offline/calls-fail-first")
@pytest.mark.parametrize("on_disconnect", ["cancel", "keep"])
async def test_a_call_of_a_client_that_stays_away_fails_before_its_run_is_cancelled(
    tmp_path: Path, on_disconnect: str
) -> None:
    hold = asyncio.Event()
    settings = {"RESUME_WINDOW_MS": "50", "ON_DISCONNECT": on_disconnect}
    async with (
        foreign(sse(PLAIN[0], data("tool_request", **TOOL), then=hold)) as orchestrator,
        ingress_at(orchestrator.url, tmp_path, **settings) as urls,
    ):
        client = await Client.connect(urls["ingress_ws"])
        await client.invoke("hi", agent="agent_a")
        await client.hear_until("tool_request")
        await client.close()
        last = "cancel" if on_disconnect == "cancel" else "submit"

        async def is_over() -> bool:
            return bool(orchestrator.bodies(last))

        await eventually(is_over)
        asked = [path.rsplit("/", 1)[1] for path, _, _ in orchestrator.asked[1:]]
        assert asked == (["submit", "cancel"] if on_disconnect == "cancel" else ["submit"])
        (submitted,) = orchestrator.bodies("submit")
        assert submitted["error"] == "client_offline: the client is not connected"
        hold.set()


@requirement("001/dispatch/understands-both")
@pytest.mark.parametrize(
    "odd",
    [
        b'data: {"type": "reasoning", "text": "hm"}\n\n',
        b"event: ping\ndata: {}\n\n",
        b"event: heartbeat\ndata: 12:00\n\n",
    ],
    ids=["a type of later", "an empty ping", "no JSON"],
)
async def test_events_that_no_contract_knows_are_passed_over(tmp_path: Path, odd: bytes) -> None:
    chunks = [part for chunk in PLAIN for part in (odd, chunk)]
    async with (
        foreign(sse(*chunks)) as orchestrator,
        ingress_at(orchestrator.url, tmp_path) as urls,
    ):
        client = await Client.connect(urls["ingress_ws"])
        await client.invoke("hi", agent="agent_a")
        heard = await client.hear_until("error", "done")
        assert [one["type"] for one in heard] == ["run_started", "delta", "state", "delta", "done"]
        await client.close()


@requirement("001/dispatch/orchestrator-down")
async def test_nobody_at_its_address_is_orchestrator_error(tmp_path: Path) -> None:
    async with foreign(sse()) as orchestrator:
        nobody = orchestrator.url
    async with ingress_at(nobody, tmp_path) as urls:
        client = await Client.connect(urls["ingress_ws"])
        await client.invoke("hi", agent="agent_a", request_id="q1")
        said = await client.hear()
        assert (said["code"], said["request_id"]) == (ErrorCode.ORCHESTRATOR_ERROR, "q1")
        await client.close()


@requirement("001/dispatch/orchestrator-dies-in-stream")
@pytest.mark.parametrize(
    "chunks", [PLAIN[:2], (*PLAIN[:2], b"data: {nonsense\n\n")], ids=["cut", "garbage"]
)
async def test_a_stream_that_breaks_off_ends_the_run_once(
    tmp_path: Path, chunks: tuple[bytes, ...]
) -> None:
    async with (
        foreign(sse(*chunks)) as orchestrator,
        ingress_at(orchestrator.url, tmp_path) as urls,
    ):
        client = await Client.connect(urls["ingress_ws"])
        await client.invoke("hi", agent="agent_a")
        heard = await client.hear_until("error", "done")
        assert [one["type"] for one in heard] == ["run_started", "delta", "error"]
        assert heard[-1]["code"] == ErrorCode.ORCHESTRATOR_ERROR
        again = await Client.connect(urls["ingress_ws"], session_id=client.session_id, last_seq=0)
        assert await again.hear_until("error") == heard
        for one in (client, again):
            await one.close()


async def test_our_own_orchestrator_is_taken_up_again_where_its_stream_broke_off(
    tmp_path: Path,
) -> None:
    """The orchestrator is restarted in mid-stream, on the same port and home."""
    given = {**ANY_PORT, "LOG_LEVEL": "error", "TOOLGATE_HOME": str(tmp_path / "orchestrator")}
    loaded = table.load(given, environment={})
    first = await start_orchestrator(loaded)
    url = first.urls["orchestrator"]
    async with ingress_at(url, tmp_path / "ingress", **CREDENTIALS) as urls:
        client = await Client.connect(urls["ingress_ws"])
        text = "0123456789" * 1500
        await client.invoke(text)
        heard = [await client.hear() for _ in range(20)]
        await first.stop()
        port = url.rsplit(":", 1)[1]
        second = await start_orchestrator(
            table.load({**given, "ORCHESTRATOR_PORT": port}, environment={})
        )
        try:
            heard += await client.hear_until("done", "error")
            assert "".join(one["text"] for one in heard if one["type"] == "delta") == text
            assert heard[-1]["type"] == "done"
        finally:
            await client.close()
            await second.stop()


@requirement("001/orchestrator/invoke-json-pushes", "001/send/token-sent")
async def test_our_orchestrator_pushes_to_an_ingress_that_asked_for_json(tmp_path: Path) -> None:
    pushed: list[dict[str, Any]] = []
    tokens: set[str] = set()
    online = asyncio.Event()

    async def take(request: web.Request) -> web.StreamResponse:
        tokens.add(request.headers.get("Authorization", ""))
        if not online.is_set():
            offline = {"ok": False, "error": "client_offline", "message": "nobody"}
            online.set()
            return web.json_response(offline, status=409)
        pushed.append(await request.json())
        return web.json_response({"ok": True})

    app = web.Application()
    app.router.add_post("/internal/send", take)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    given = {
        "LOG_LEVEL": "error",
        "TOOLGATE_HOME": str(tmp_path),
        "ORCHESTRATOR_PORT": "0",
        "INGRESS_URL": f"http://127.0.0.1:{runner.addresses[0][1]}",
        "INTERNAL_TOKEN": "between us",
    }
    orchestrator = await start_orchestrator(table.load(given, environment={}))
    headers = {"Authorization": "Bearer between us"}
    async with aiohttp.ClientSession(headers=headers) as http:
        message = {"role": "user", "content": "pushed"}
        body = {"session_id": "s1", "agent_id": "echo", "message": message}
        url = f"{orchestrator.urls['orchestrator']}/internal/invoke"
        async with http.post(url, json=body) as said:
            accepted = await said.json()

    async def is_over() -> bool:
        return bool(pushed) and pushed[-1]["event"]["type"] == "done"

    await eventually(is_over)
    await orchestrator.stop()
    await runner.cleanup()
    types = [one["event"]["type"] for one in pushed]
    assert types == ["run_started", "delta", "delta", "done"]
    assert {one["session_id"] for one in pushed} == {"s1"}
    assert {one["event"]["run_id"] for one in pushed} == {accepted["run_id"]}
    assert tokens == {"Bearer between us"}
