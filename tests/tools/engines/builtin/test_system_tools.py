"""exec and web.fetch as tools: what they ask of the sandbox and of the web."""

from collections.abc import Mapping

import msgspec
import pytest

from tests.support.sessions import FakeSession
from tests.support.web import FakeWeb, page
from toolgate.core.enums import Outcome
from toolgate.core.errors import Unavailable
from toolgate.core.tools import JsonValue, ToolOutput, ToolRequest
from toolgate.journal.local_bus import LocalBus
from toolgate.sandbox.sandbox import Session
from toolgate.testing.clock import FakeClock
from toolgate.testing.journal import MemoryJournal
from toolgate.tools.definitions import REFUSED
from toolgate.tools.engine import no_update
from toolgate.tools.engines.builtin.engine import BuiltInEngine
from toolgate.tools.engines.builtin.exec import may_be_set
from toolgate.tools.engines.builtin.registry import BUILT_IN
from toolgate.tools.engines.sandbox import guarded_http
from toolgate.web.guard import DEFAULT_LIMITS

A = "http://a.example.com/"
B = "http://b.example.com/"


class Bench:
    def __init__(self) -> None:
        self.web = FakeWeb({A: page(A, b"hello", status=404, server="x")})
        self.session = FakeSession()
        self.journal = MemoryJournal(clock=FakeClock(), bus=LocalBus())
        self.engine = BuiltInEngine(
            journal=self.journal,
            web=self.web,
            session=self.open_session,
            isolation="fake",
            permits=lambda _request, url: str(url) == A,
            version="1",
            holds_secret=lambda text: "s3cret" in text,
        )

    async def open_session(self, _request: ToolRequest) -> Session:
        return self.session

    async def call(self, tool: str, args: Mapping[str, JsonValue]) -> ToolOutput:
        return await self.engine.run(ToolRequest("r", tool, args))


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.mark.parametrize(
    "args",
    [
        {"key": "k", "value": "a s3cret"},
        {"key": "k", "value": {"deep": ["s3cret"]}},
        {"key": "s3cret", "value": 1},
    ],
)
async def test_kv_set_keeps_no_secret(bench: Bench, args: dict[str, JsonValue]) -> None:
    refused = await bench.call("kv.set", args)
    assert refused.data == {"error": {"code": REFUSED}}
    assert await bench.journal.scan("kv") == []


def test_a_tool_that_can_send_something_is_never_run_twice() -> None:
    assert not BUILT_IN["web.fetch"].tool.repeatable  # it may be a POST
    assert BUILT_IN["http.fetch"].tool.repeatable


@pytest.mark.requirement("002/system/fetch-answer")
async def test_web_fetch_answers_whatever_the_status(bench: Bench) -> None:
    output = await bench.call("web.fetch", {"url": A})
    assert output.ok
    assert output.data == {
        "url": A,
        "status": 404,
        "headers": {"server": "x"},
        "bodyText": "hello",
        "truncated": False,
    }


@pytest.mark.requirement("002/system/fetch-methods")
@pytest.mark.requirement("002/system/fetch-body-secrets")
async def test_a_post_is_sent_unless_its_body_holds_a_secret(bench: Bench) -> None:
    await bench.call("web.fetch", {"url": A, "method": "POST", "body": "x=1"})
    assert (bench.web.asked[0].method, bench.web.asked[0].body) == ("POST", b"x=1")
    for args in (
        {"url": A, "method": "POST", "body": "k=s3cret"},
        {"url": A, "method": "GET", "body": "x"},
    ):
        refused = await bench.call("web.fetch", args)
        assert refused.data == {"error": {"code": REFUSED}}
    wrong = await bench.call("web.fetch", {"url": A, "method": "PUT"})
    assert not wrong.ok
    assert len(bench.web.asked) == 1


@pytest.mark.requirement("002/system/fetch-redirects")
async def test_a_redirect_that_the_policy_does_not_allow_is_not_followed(bench: Bench) -> None:
    bench.web.answers[A] = page(A, status=302, location=B)
    refused = await bench.call("web.fetch", {"url": A})
    assert refused.data == {"error": {"code": REFUSED}}
    assert refused.outcome is Outcome.EXECUTED
    bench.web.answers[A] = Unavailable("silent")
    silent = await bench.call("web.fetch", {"url": A})
    assert silent.outcome is Outcome.MAY_HAVE_EXECUTED


@pytest.mark.parametrize("location", ["ftp://a.example.com/", "http://a b/", "http://u:p@x.test/"])
async def test_a_post_whose_answer_leads_nowhere_was_executed(bench: Bench, location: str) -> None:
    bench.web.answers[A] = page(A, status=302, location=location)
    lost = await bench.call("web.fetch", {"url": A, "method": "POST", "body": "x=1"})
    assert (lost.ok, lost.outcome) == (False, Outcome.EXECUTED)
    assert (await bench.call("http.fetch", {"url": A})).outcome is Outcome.EXECUTED


@pytest.mark.parametrize("location", [B, "ftp://a.example.com/"])
async def test_an_http_request_that_was_sent_is_said_to_have_been(location: str) -> None:
    web = FakeWeb({A: page(A, status=302, location=location)})
    http = guarded_http(web, permits=lambda _, url: str(url) == A)
    request = ToolRequest("r", "http.request", {"url": A, "method": "POST", "body": "x=1"})
    refused = await http(request, no_update)
    assert (refused.ok, refused.outcome) == (False, Outcome.EXECUTED)
    assert len(web.asked) == 1
    unsent = await http(msgspec.structs.replace(request, args={"url": B}), no_update)
    assert unsent.outcome is Outcome.NOT_STARTED


@pytest.mark.requirement("002/system/fetch-timeout")
@pytest.mark.requirement("002/system/fetch-cap")
def test_the_webs_limits_are_the_contracts() -> None:
    assert (DEFAULT_LIMITS.total_s, DEFAULT_LIMITS.body_bytes) == (15.0, 512 * 1024)


@pytest.mark.requirement("002/system/exec-env")
def test_which_variables_may_be_set() -> None:
    assert all(may_be_set(name) for name in ("LANG", "TZ", "LC_ALL", "NO_COLOR"))
    for name in (
        "PATH",
        "LD_PRELOAD",
        "LD_LIBRARY_PATH",
        "BASH_ENV",
        "PAGER",
        "LC_TOKEN",
        "LC_;x",
        "",
    ):
        assert not may_be_set(name)


async def test_a_nul_never_reaches_the_sandbox(bench: Bench) -> None:
    cases: list[dict[str, JsonValue]] = [
        {"command": "ls\0"},
        {"command": "ls", "params": ["\0"]},
    ]
    for args in cases:
        refused = await bench.call("exec", args)
        assert refused.data == {"error": {"code": REFUSED}}
