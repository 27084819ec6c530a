"""The runner's tools, in a sandbox."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.support.engines import sandbox_of
from tests.support.sandbox import FakeSandbox
from toolgate.core.enums import Outcome
from toolgate.core.errors import Invalid, Unavailable
from toolgate.core.system_clock import SystemClock
from toolgate.core.tools import Caller, ToolOutput, ToolRequest
from toolgate.core.urls import parse_url
from toolgate.sandbox.sandbox import Limits
from toolgate.sandbox.sessions import Sessions
from toolgate.testing.clock import FakeClock
from toolgate.tools.engine import Update
from toolgate.tools.engines.sandbox import SandboxEngine, guarded_http
from toolgate.web.web import Blocked, Granted, WebRequest, WebResponse, any_host

CALLER = Caller(session="s_1")


def call(tool: str, session: str = "s_1", **args: Any) -> ToolRequest:
    return ToolRequest("req_1", tool, args, Caller(session=session))


def error_code(output: ToolOutput) -> object:
    assert isinstance(output.data, dict)
    error = output.data["error"]
    assert isinstance(error, dict)
    return error["code"]


@pytest.fixture
async def engine(request: pytest.FixtureRequest) -> AsyncIterator[SandboxEngine]:
    async with sandbox_of("bwrap", request) as sandbox:
        sessions = Sessions(sandbox, clock=SystemClock())
        yield SandboxEngine(sessions)
        await sessions.close()


@pytest.mark.requirement("000/tools/bash-exec")
@pytest.mark.requirement("000/tools/bash-failure")
async def test_bash_exec_runs_with_directory_environment_and_deadline(
    engine: SandboxEngine,
) -> None:
    pieces: list[str] = []
    done = await engine.run(call("bash.exec", cmd="mkdir d; printf é"), update=pieces.append)
    assert (done.ok, done.stdout, done.isolation) == (True, "é", "bwrap")
    assert pieces == ["é"]
    done = await engine.run(
        call("bash.exec", cmd='basename "$PWD"; echo $V', cwd="d", env={"V": "1"})
    )
    assert done.stdout == "d\n1\n"
    done = await engine.run(call("bash.exec", cmd="echo kept; exit 4"))
    assert (done.exit_code, done.stdout, done.outcome) == (4, "kept\n", Outcome.EXECUTED)
    done = await engine.run(call("bash.exec", cmd="sleep 9", timeoutMs=100))
    assert not done.ok
    assert isinstance(done.data, dict)
    assert done.data["timedOut"] is True
    assert done.outcome is Outcome.EXECUTED


@pytest.mark.requirement("000/tools/file-read")
@pytest.mark.requirement("000/tools/file-write")
@pytest.mark.requirement("000/tools/file-write-append")
@pytest.mark.requirement("000/tools/file-list")
@pytest.mark.requirement("000/tools/output-is-string")
async def test_files_go_in_and_out_as_text(engine: SandboxEngine) -> None:
    await engine.run(call("file.write", path="a/note", content="one"))
    await engine.run(call("file.write", path="a/note", content=" two", append=True))
    assert (await engine.run(call("file.read", path="a/note"))).stdout == "one two"
    await engine.run(call("file.write", path="a/note", content="new"))
    assert (await engine.run(call("file.read", path="a/note"))).stdout == "new"
    listed = json.loads((await engine.run(call("file.list", recursive=True))).stdout)
    assert listed == [
        {"path": "a", "kind": "dir", "size": listed[0]["size"]},
        {"path": "a/note", "kind": "file", "size": 3},
    ]
    refused = await engine.run(call("file.read", path="../etc/passwd"))
    assert error_code(refused) == "TOOL_EXEC_FAILED"


@pytest.mark.requirement("000/tools/file-list-limit")
async def test_a_listing_has_200_entries_unless_told_otherwise(engine: SandboxEngine) -> None:
    await engine.run(call("bash.exec", cmd="touch $(seq 250)"))
    assert len(json.loads((await engine.run(call("file.list"))).stdout)) == 200
    assert len(json.loads((await engine.run(call("file.list", limit=5))).stdout)) == 5


@pytest.mark.requirement("000/tools/echo")
@pytest.mark.requirement("000/tools/math-add")
@pytest.mark.requirement("000/tools/text-upper")
@pytest.mark.requirement("000/tools/unknown")
async def test_the_small_tools_need_no_sandbox() -> None:
    engine = SandboxEngine(Sessions(FakeSandbox(), clock=FakeClock()))
    assert (await engine.run(call("echo", text="hi"))).stdout == "hi"
    assert (await engine.run(call("math.add", a=1, b=2))).stdout == "3"
    assert (await engine.run(call("math.add", a=0.5, b=2))).stdout == "2.5"
    assert (await engine.run(call("text.upper", text="straße"))).stdout == "STRASSE"
    unknown = await engine.run(call("no.such"))
    assert error_code(unknown) == "TOOL_EXEC_FAILED"
    assert unknown.outcome is Outcome.NOT_STARTED


@pytest.mark.parametrize(
    ("tool", "args"),
    [
        ("bash.exec", {}),
        ("bash.exec", {"cmd": 1}),
        ("bash.exec", {"cmd": "x", "env": {"A": 1}}),
        ("bash.exec", {"cmd": "x", "timeoutMs": 0}),
        ("file.list", {"limit": -1}),
        ("math.add", {"a": "1", "b": 2}),
        ("math.add", {"a": True, "b": 2}),
        ("math.add", {"a": 10**400, "b": 0.5}),
        ("math.add", {"a": 10**400, "b": 1}),
        ("file.get", {"path": "x", "offset": 2**63}),
        ("http.request", {"url": "http://example.org"}),
    ],
)
async def test_wrong_arguments_fail_before_anything_starts(tool: str, args: dict[str, Any]) -> None:
    sandbox = FakeSandbox()
    engine = SandboxEngine(Sessions(sandbox, clock=FakeClock()))
    done = await engine.run(ToolRequest("r", tool, args, CALLER))
    assert error_code(done) == "TOOL_EXEC_FAILED"
    assert done.outcome is Outcome.NOT_STARTED
    assert sandbox.opened == []


async def test_a_deadline_that_no_clock_can_hold_is_as_long_as_any_may_be() -> None:
    sandbox, web = FakeSandbox(), FakeWeb(WebResponse("http://e/", 200, (), b"body", False))
    engine = SandboxEngine(Sessions(sandbox, clock=FakeClock()), http=guarded_http(web))
    forever = 10**400
    assert (await engine.run(call("bash.exec", cmd="x", timeoutMs=forever))).ok
    assert (await engine.run(call("python.exec", code="x", timeoutMs=forever))).ok
    assert (await engine.run(call("http.request", url="http://e/", timeoutMs=forever))).ok


async def test_a_sandbox_that_cannot_open_is_a_failure_that_did_not_start() -> None:
    sandbox = FakeSandbox()
    sandbox.refuses = "no room"
    done = await SandboxEngine(Sessions(sandbox, clock=FakeClock())).run(call("bash.exec", cmd="x"))
    assert not done.ok
    assert done.outcome is Outcome.NOT_STARTED


async def test_a_session_that_ended_meanwhile_is_opened_anew_since_nothing_ran() -> None:
    sandbox = FakeSandbox()
    engine = SandboxEngine(Sessions(sandbox, clock=FakeClock()))
    await engine.run(call("bash.exec", cmd="one"))
    sandbox.opened[0].alive = False
    assert (await engine.run(call("bash.exec", cmd="two"))).stdout == "two"


async def test_a_sandbox_lost_under_a_command_may_have_run_it(engine: SandboxEngine) -> None:
    begun = asyncio.Event()
    request = call("bash.exec", cmd="echo begun; sleep 30")
    task = asyncio.create_task(engine.run(request, update=lambda _: begun.set()))
    await asyncio.wait_for(begun.wait(), 10)
    session = await engine._sessions.open_for(request)
    await session.close()
    done = await asyncio.wait_for(task, 10)
    assert done.outcome is Outcome.MAY_HAVE_EXECUTED


@pytest.mark.requirement("000/tools/http-request")
async def test_http_request_goes_to_the_client_it_was_given() -> None:
    async def fetch(request: ToolRequest, _update: Update) -> ToolOutput:
        return ToolOutput(0, stdout=f"fetched {request.args['url']}")

    engine = SandboxEngine(Sessions(FakeSandbox(), clock=FakeClock()), http=fetch)
    done = await engine.run(call("http.request", url="http://example.org"))
    assert done.stdout == "fetched http://example.org"


class FakeWeb:
    """Answers what it is told, and notes what was asked."""

    def __init__(self, answer: WebResponse | Exception) -> None:
        self.answer = answer
        self.asked: list[WebRequest] = []

    async def fetch(self, request: WebRequest, *, granted: Granted = any_host) -> WebResponse:
        self.asked.append(request)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.mark.parametrize(
    ("answer", "exit_code", "outcome"),
    [
        (WebResponse("http://e/", 200, (("a", "b"),), b"body", False), 0, Outcome.EXECUTED),
        (WebResponse("http://e/", 404, (), b"body", False), 1, Outcome.EXECUTED),
        (Blocked("http://e/", "a private address"), 1, Outcome.NOT_STARTED),
        (Invalid("no URL"), 1, Outcome.NOT_STARTED),
        (Unavailable("no answer"), 1, Outcome.MAY_HAVE_EXECUTED),
        (TimeoutError(), 1, Outcome.MAY_HAVE_EXECUTED),
    ],
)
async def test_http_request_by_the_guarded_client(
    answer: WebResponse | Exception, exit_code: int, outcome: Outcome
) -> None:
    web = FakeWeb(answer)
    engine = SandboxEngine(Sessions(FakeSandbox(), clock=FakeClock()), http=guarded_http(web))
    request = call("http.request", url="http://e/", method="post", body="x", headers={"h": "1"})
    done = await engine.run(request)
    assert (done.exit_code, done.outcome) == (exit_code, outcome)
    assert web.asked == [WebRequest("http://e/", "POST", {"h": "1"}, b"x")]
    if isinstance(answer, WebResponse):
        assert done.stdout == "body"


async def test_a_runner_follows_a_redirect_only_to_where_its_caller_was_allowed() -> None:
    """The gateway's policy spoke of the URL in the call; of another one it cannot be asked."""
    followed: dict[str, bool] = {}

    class Redirecting(FakeWeb):
        async def fetch(self, request: WebRequest, *, granted: Granted = any_host) -> WebResponse:
            for url in ("http://e/", "http://e/b", "https://e/", "http://e:8080/", "http://f/"):
                followed[url] = granted(parse_url(url), "GET")
            return await super().fetch(request, granted=granted)

    web = Redirecting(WebResponse("http://e/", 200, (), b"body", False))
    engine = SandboxEngine(Sessions(FakeSandbox(), clock=FakeClock()), http=guarded_http(web))
    await engine.run(call("http.request", url="http://e/a"))
    assert [url for url, true in followed.items() if true] == ["http://e/", "http://e/b"]


@pytest.mark.parametrize(("length", "cut"), [(100, False), (101, True), (110, True), (500, True)])
async def test_output_that_lost_a_single_byte_is_said_to_be_cut(
    length: int, cut: bool, request: pytest.FixtureRequest
) -> None:
    limits = Limits(stream_bytes=100)
    async with sandbox_of("process", request, limits=limits) as sandbox:
        engine = SandboxEngine(Sessions(sandbox, clock=SystemClock(), limits=limits))
        done = await engine.run(call("bash.exec", cmd=f"printf '%0{length}d' 0"))
        assert ("left out" in done.stdout, done.truncated) == (cut, cut)
