"""The runner's door: what comes in over real sockets, and what goes out."""

import asyncio
import inspect
import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Any

import aiohttp
import pytest

from toolgate.core.enums import Outcome, TargetKind
from toolgate.core.system_clock import SystemClock
from toolgate.core.tools import Caller, ToolOutput, ToolRequest
from toolgate.http import asgi
from toolgate.surfaces.runner.app import Options, RunnerApp, usage_of
from toolgate.tools.engine import Engine, Update, no_update
from toolgate.tools.engines.remote_runner import DockerRunners
from toolgate.tools.targets.targets import Target

BOUND = 10.0
SEED_CURL = (
    b'{"call":{"name":"bash.exec","args":{"cmd":"printf ok"}},"ctx":{"runId":"r","sessionId":"s",'
    b'"runtimeMode":"local"},"target":{"targetId":"t","kind":"docker-runner","tenantId":"tenant"}}'
)
SEED_ANSWER = {"result": {"ok": True, "output": "mock-runner:bash.exec"}}


class Scripted:
    """An engine that does what the test says, and notes what it was asked and whether it lived."""

    ref = "scripted"

    def __init__(self, output: ToolOutput | None = None) -> None:
        self.output = output or ToolOutput(0, stdout="out", isolation="fake")
        self.updates: list[str] = []
        self.calls: list[ToolRequest] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.begun = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.broken = False

    async def run(self, request: ToolRequest, *, update: Update = no_update) -> ToolOutput:
        self.calls.append(request)
        for text in self.updates:
            update(text)
        self.begun.set()
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        if self.broken:
            raise RuntimeError("the engine broke")
        return self.output


class Runner:
    def __init__(self, url: str, http: aiohttp.ClientSession) -> None:
        self.url = url
        self._http = http

    async def post(
        self, body: bytes = SEED_CURL, *, path: str = "/execute", **headers: str
    ) -> tuple[int, Any]:
        async with self._http.post(self.url + path, data=body, headers=headers) as response:
            return response.status, json.loads(await response.read())

    async def get(self, path: str) -> tuple[int, Any]:
        async with self._http.get(self.url + path) as response:
            return response.status, json.loads(await response.read())


Serve = Callable[..., Any]


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    async with AsyncExitStack() as stack:

        async def start(engine: Engine | None, **options_given: Any) -> Runner:
            options = Options("bwrap", "bwrap", **({"body_limit": 10_000} | options_given))
            app = RunnerApp(
                engine, options=options, clock=SystemClock(), usage=lambda: usage_of(1.0, 2.0, 3.0)
            )
            bound = asgi.bind("127.0.0.1", 0, setting="RUNNER_PORT")
            listener = asgi.Listener(app, bound)
            await listener.start()
            stack.push_async_callback(listener.stop)
            http = await stack.enter_async_context(aiohttp.ClientSession())
            return Runner(f"http://127.0.0.1:{bound.getsockname()[1]}", http)

        yield start


@pytest.mark.requirement("000/server/execute")
@pytest.mark.requirement("000/server/seed-curl")
@pytest.mark.requirement("000/server/optional-ids")
async def test_the_seed_s_own_request_is_run(serve: Serve) -> None:
    engine = Scripted()
    status, body = await (await serve(engine)).post()
    assert status == 200
    assert body["result"]["ok"] is True
    assert body["result"]["output"] == "out"
    assert engine.calls[0].caller == Caller(tenant="tenant", workspace="", session="s")
    assert engine.calls[0].args == {"cmd": "printf ok"}


@pytest.mark.requirement("000/server/unknown-members")
async def test_members_that_are_not_known_are_ignored(serve: Serve) -> None:
    request = json.loads(SEED_CURL)
    request["more"] = 1
    request["target"] |= {"workspaceId": "w_1", "colour": "red"}
    request["ctx"]["toolCallId"] = "tool_1"
    engine = Scripted()
    status, _ = await (await serve(engine)).post(json.dumps(request).encode())
    assert status == 200
    assert engine.calls[0].caller.workspace == "w_1"
    assert engine.calls[0].request_id == "tool_1"


async def test_a_call_that_may_follow_no_link_or_must_be_clean_reaches_the_engine_as_one(
    serve: Serve,
) -> None:
    engine = Scripted()
    runner = await serve(engine)
    for member, at in (("", 0), ("noLinks", 1), ("clean", 2)):
        request = json.loads(SEED_CURL)
        request["call"] |= {member: True} if member else {}
        status, _ = await runner.post(json.dumps(request).encode())
        heeded = (engine.calls[at].no_links, engine.calls[at].clean)
        assert (status, heeded) == (200, (member == "noLinks", member == "clean"))


@pytest.mark.requirement("000/server/executed-failure-is-200")
async def test_a_tool_that_ran_and_failed_is_answered_200_with_what_it_said(serve: Serve) -> None:
    engine = Scripted(ToolOutput(3, stdout="half", stderr="one\ntwo\n", isolation="bwrap"))
    status, body = await (await serve(engine)).post()
    assert status == 200
    assert body["result"] == {
        "ok": False,
        "error": {"code": "TOOL_EXEC_FAILED", "message": "exit code 3: two"},
        "exitCode": 3,
        "stdout": "half",
        "stderr": "one\ntwo\n",
        "isolation": "bwrap",
        "outcome": "executed",
    }


async def test_a_failure_says_what_it_did(serve: Serve) -> None:
    error: Any = {"error": {"code": "TOOL_EXEC_FAILED", "message": "no room"}}
    engine = Scripted(ToolOutput(1, data=error, outcome=Outcome.NOT_STARTED))
    _, body = await (await serve(engine)).post()
    assert body["result"]["outcome"] == "not_started"
    assert body["result"]["error"]["message"] == "no room"


@pytest.mark.requirement("000/server/health")
@pytest.mark.requirement("000/server/health-time")
async def test_health_says_what_it_is_and_how_busy(serve: Serve) -> None:
    status, body = await (await serve(Scripted(), token="secret")).get("/health")
    assert status == 200
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", body.pop("time"))
    assert body == {
        "ok": True,
        "service": "docker-runner",
        "backend": "bwrap",
        "isolation": "bwrap",
        "noLinks": True,
        "clean": False,
        "usage": {"cpuPercent": 1.0, "memoryPercent": 2.0, "diskPercent": 3.0},
    }


@pytest.mark.requirement("000/server/bearer")
@pytest.mark.requirement("000/server/unauthorized")
async def test_without_the_bearer_nothing_runs(serve: Serve) -> None:
    engine = Scripted()
    runner = await serve(engine, token="secret")
    for header in ("", "Bearer", "Bearer wrong", "Basic secret", "secret", "Bearer secret2"):
        status, body = await runner.post(authorization=header)
        assert status == 401, header
        assert body["ok"] is False
        assert body["error"]["code"] == "UNAUTHORIZED"
    assert engine.calls == []
    assert (await runner.post(authorization="Bearer secret"))[0] == 200


@pytest.mark.requirement("000/server/host")
async def test_no_web_page_runs_anything_on_a_runner_without_a_token(serve: Serve) -> None:
    """A browser sends what any page wants to loopback, and asks nobody for plain text.

    A page whose name was made to stand for our address is of our origin; its Host tells.
    """
    engine = Scripted()
    runner, guarded = await serve(engine), await serve(engine, token="secret")
    headers = (
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"sec-fetch-site": "cross-site"},
        {"host": "rebound.example"},
        {"host": "127.0.0.1.rebound.example:18081"},
    )
    for header in headers:
        status, body = await runner.post(**{"content-type": "text/plain"}, **header)
        assert (status, body["error"]["code"]) == (401, "UNAUTHORIZED"), header
    assert engine.calls == []
    for host in ("localhost", "127.0.0.1:18081", "[::1]:18081", "LOCALHOST:1"):
        assert (await runner.post(host=host))[0] == 200, host
    for header in headers:
        assert (await guarded.post(authorization="Bearer secret", **header))[0] == 200, header


async def test_a_token_may_hold_any_character(serve: Serve) -> None:
    token = "schlüssel-пароль-à"
    runner = await serve(Scripted(), token=token)
    assert (await runner.post(authorization=f"Bearer {token}"))[0] == 200
    assert (await runner.post(authorization=f"Bearer {token[:-1]}"))[0] == 401


@pytest.mark.requirement("000/server/bearer-constant-time")
def test_secrets_are_compared_in_constant_time_whatever_they_hold() -> None:
    assert "compare_digest" in inspect.getsource(asgi.same_secret)
    assert "same_secret" in inspect.getsource(RunnerApp)
    assert asgi.same_secret("sécret", "sécret")
    assert not asgi.same_secret("sécret", "secret")


MALFORMED = (
    b"",
    b"{}",
    b"not json",
    b"[]",
    b"\xff",
    b"[" * 5000,
    SEED_CURL.replace(b'{"cmd":"printf ok"}', b'"text"'),
    SEED_CURL.replace(b'"bash.exec"', b"7"),
    SEED_CURL.replace(b'"bash.exec"', b'""'),
    SEED_CURL.replace(b'"runId":"r",', b""),
    SEED_CURL.replace(b'"sessionId":"s",', b""),
    SEED_CURL.replace(b'"tenantId":"tenant"', b'"tenantId":null'),
)


@pytest.mark.requirement("000/server/invalid-request")
async def test_a_malformed_request_is_400(serve: Serve) -> None:
    engine = Scripted()
    runner = await serve(engine)
    for body in MALFORMED:
        status, answer = await runner.post(body)
        assert (status, answer["error"]["code"]) == (400, "INVALID_REQUEST"), body[:80]
    assert engine.calls == []


@pytest.mark.requirement("000/server/body-limit")
async def test_a_body_over_the_limit_is_refused_before_its_end(serve: Serve) -> None:
    runner = await serve(Scripted(), body_limit=2000)
    reader, writer = await asyncio.open_connection("127.0.0.1", int(runner.url.rpartition(":")[2]))
    writer.write(b"POST /execute HTTP/1.1\r\nhost: localhost\r\ncontent-length: 99999999\r\n\r\n")
    answer = await asyncio.wait_for(reader.readuntil(b"}"), BOUND)
    writer.close()
    assert answer.startswith(b"HTTP/1.1 400")
    assert b"INVALID_REQUEST" in answer


async def test_a_body_that_does_not_come_is_not_waited_for_without_end(serve: Serve) -> None:
    """As of a caller that lost its power in the middle: nothing more is heard of it."""
    runner = await serve(Scripted(), body_seconds=0.2)
    host, port = runner.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"POST /execute HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\n{")
    answer = await asyncio.wait_for(reader.read(), BOUND)  # and the connection ends
    assert b" 400 " in answer
    assert b"INVALID_REQUEST" in answer
    writer.close()


@pytest.mark.requirement("000/server/not-found")
async def test_other_paths_and_methods_are_404(serve: Serve) -> None:
    runner = await serve(Scripted())
    assert (await runner.get("/"))[0] == 404
    assert (await runner.get("/execute"))[0] == 404
    status, body = await runner.post(path="/execute/")
    assert (status, body["error"]["code"]) == (404, "NOT_FOUND")


@pytest.mark.requirement("000/server/internal-error")
async def test_an_engine_that_breaks_is_500(serve: Serve) -> None:
    engine = Scripted()
    engine.broken = True
    runner = await serve(engine)
    status, body = await runner.post()
    assert (status, body["error"]["code"]) == (500, "INTERNAL_ERROR")
    assert "broke" not in json.dumps(body)
    engine.broken = False
    assert (await runner.post())[0] == 200


@pytest.mark.requirement("000/server/mock-output", "000/server/mock-exact")
@pytest.mark.requirement("000/server/mock-stream", "000/server/mock-update")
async def test_the_mock_answers_exactly_the_seed_s_body_and_a_stream_only_if_asked_for_one(
    serve: Serve,
) -> None:
    runner = await serve(None)
    assert await runner.post() == (200, SEED_ANSWER)
    headers = {"accept": "application/x-ndjson, application/json;q=0.9"}
    async with (
        aiohttp.ClientSession() as http,
        http.post(f"{runner.url}/execute", data=SEED_CURL, headers=headers) as answer,
    ):
        update, last = [json.loads(line) async for line in answer.content]
    assert update["delta"] == "runner:bash.exec"
    assert last == SEED_ANSWER


async def test_many_updates_of_an_answer_that_is_not_streamed_are_joined(serve: Serve) -> None:
    engine = Scripted()
    engine.updates = [f"{n} " for n in range(500)]
    _, body = await (await serve(engine)).post()
    assert len(body["updates"]) <= 64
    assert "".join(update["delta"] for update in body["updates"]) == "".join(engine.updates)


async def test_on_request_updates_are_streamed_before_the_end(serve: Serve) -> None:
    engine = Scripted()
    engine.updates = ["first"]
    engine.gate.clear()
    runner = await serve(engine)
    target = Target("t", "tenant", None, TargetKind.DOCKER_RUNNER, f"{runner.url}/execute")
    runners = DockerRunners(clock=SystemClock())
    seen = asyncio.Event()
    call = asyncio.create_task(
        runners.engine(target).run(ToolRequest("1", "x", {}), update=lambda _: seen.set())
    )
    await asyncio.wait_for(seen.wait(), BOUND)
    assert not call.done()
    engine.gate.set()
    assert (await call).stdout == "out"
    engine.broken = True
    assert (await runners.engine(target).run(ToolRequest("2", "x", {}))).outcome is (
        Outcome.MAY_HAVE_EXECUTED
    )
    await runners.close()


@pytest.mark.parametrize("accept", ["application/json", "application/x-ndjson"])
async def test_a_caller_that_goes_away_takes_its_command_with_it(serve: Serve, accept: str) -> None:
    engine = Scripted()
    engine.gate.clear()
    runner = await serve(engine)
    call = asyncio.create_task(runner.post(accept=accept))
    await asyncio.wait_for(engine.begun.wait(), BOUND)
    call.cancel()
    await asyncio.wait_for(engine.cancelled.wait(), BOUND)
