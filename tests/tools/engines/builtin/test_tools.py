"""The tools that every installation has, each through the engine that runs them."""

import asyncio
import math
from collections.abc import Mapping
from typing import Any

import pytest

from tests.support.sessions import FakeSession
from tests.support.web import FakeWeb, page
from toolgate.contracts import executor_v0
from toolgate.core.enums import Level, Outcome
from toolgate.core.errors import Unavailable
from toolgate.core.tools import Caller, JsonValue, ToolOutput, ToolRequest
from toolgate.journal.local_bus import LocalBus
from toolgate.sandbox.sandbox import Finished, Lost, Session
from toolgate.testing.clock import FakeClock
from toolgate.testing.journal import MemoryJournal
from toolgate.tools.engines.builtin.engine import BuiltInEngine
from toolgate.tools.engines.builtin.registry import BUILT_IN

A = "http://a.example.com/"
B = "http://b.example.com/"


class Bench:
    """An engine, and the fakes it works with."""

    def __init__(self) -> None:
        self.journal = MemoryJournal(clock=FakeClock(), bus=LocalBus())
        self.web = FakeWeb({A: page(A, b"hello")})
        self.session = FakeSession()
        self.permitted = {A}
        self.updates: list[str] = []
        self.engine = BuiltInEngine(
            journal=self.journal,
            web=self.web,
            session=self.open_session,
            isolation="fake",
            permits=lambda _request, url: str(url) in self.permitted,
            version="1",
        )

    async def open_session(self, _request: ToolRequest) -> Session:
        return self.session

    async def call(
        self, tool: str, args: Mapping[str, JsonValue], *, workspace: str = "w"
    ) -> ToolOutput:
        request = ToolRequest("r", tool, args, Caller(workspace=workspace))
        return await self.engine.run(request, update=self.updates.append)


@pytest.fixture
def bench() -> Bench:
    return Bench()


async def test_kv_set_of_one_key_by_many_at_once_keeps_one_of_the_values(bench: Bench) -> None:
    values: list[JsonValue] = [1, 2, 3]
    for value in (*values, 4):
        assert (await bench.call("kv.set", {"key": "k", "value": value})).ok
    answers = await asyncio.gather(
        *(bench.call("kv.set", {"key": "k", "value": value}) for value in values)
    )
    assert all(answer.ok for answer in answers)
    assert (await bench.call("kv.get", {"key": "k"})).data in values


@pytest.mark.requirement("003/tools/kv-get-absent")
async def test_kv_get_of_an_absent_key_is_null_and_no_failure(bench: Bench) -> None:
    output = await bench.call("kv.get", {"key": "nothing"})
    assert (output.exit_code, output.data, output.says_null) == (0, None, True)


@pytest.mark.requirement("003/tools/kv-get-found")
@pytest.mark.requirement("003/tools/kv-set")
@pytest.mark.parametrize(
    ("value", "text"),
    [("v", "v"), ("", ""), (5, "5"), ({"a": [1, None]}, '{"a":[1,null]}'), (None, "null")],
)
async def test_kv_get_gives_what_kv_set_kept(bench: Bench, value: JsonValue, text: str) -> None:
    assert (await bench.call("kv.set", {"key": "k", "value": value})).ok
    output = await bench.call("kv.get", {"key": "k"})
    assert (output.exit_code, output.stdout, output.data) == (0, text, value)


async def test_a_workspace_does_not_see_the_values_of_another(bench: Bench) -> None:
    await bench.call("kv.set", {"key": "k", "value": "v"}, workspace="a")
    assert (await bench.call("kv.get", {"key": "k"}, workspace="b")).data is None
    assert (await bench.call("kv.get", {"key": 'a","k'}, workspace="b")).data is None


async def test_a_value_that_is_too_large_is_not_kept(bench: Bench) -> None:
    assert not (await bench.call("kv.set", {"key": "k", "value": "x" * 70_000})).ok
    assert (await bench.call("kv.get", {"key": "k"})).says_null


@pytest.mark.requirement("003/tools/http-fetch")
@pytest.mark.requirement("003/tools/http-fetch-get-only")
async def test_http_fetch_gets_a_page_with_the_headers_it_was_given(bench: Bench) -> None:
    output = await bench.call("http.fetch", {"url": A, "headers": {"Accept": "x"}})
    assert (output.exit_code, output.stdout, output.stderr) == (0, "hello", "")
    assert [(r.method, dict(r.headers)) for r in bench.web.asked] == [("GET", {"Accept": "x"})]
    assert not (await bench.call("http.fetch", {"url": A, "method": "POST"})).ok
    assert len(bench.web.asked) == 1


@pytest.mark.requirement("003/tools/http-fetch-status")
@pytest.mark.parametrize("status", [400, 404, 500, 503])
async def test_http_fetch_of_an_error_fails_and_keeps_the_body(bench: Bench, status: int) -> None:
    bench.web.answers[A] = page(A, b"sorry", status=status)
    output = await bench.call("http.fetch", {"url": A})
    assert (output.exit_code, output.stderr, output.stdout) == (1, f"HTTP {status}", "sorry")


@pytest.mark.requirement("003/policy/redirects")
async def test_a_redirect_is_followed_only_where_the_policy_permits_it(bench: Bench) -> None:
    bench.web.answers[A] = page(A, status=302, location=B)
    bench.web.answers[B] = page(B, b"there")
    output = await bench.call("http.fetch", {"url": A})
    assert (output.exit_code, output.outcome) == (1, Outcome.EXECUTED)
    assert [request.url for request in bench.web.asked] == [A]
    bench.permitted.add(B)
    assert (await bench.call("http.fetch", {"url": A})).stdout == "there"


async def test_the_url_as_it_is_fetched_is_put_to_the_policy_too(bench: Bench) -> None:
    bench.permitted.clear()
    output = await bench.call("http.fetch", {"url": A})
    assert (output.exit_code, output.outcome) == (1, Outcome.NOT_STARTED)
    assert bench.web.asked == []


async def test_a_fetch_that_nobody_answers_may_have_been_executed(bench: Bench) -> None:
    bench.web.answers[A] = Unavailable("gone")
    output = await bench.call("http.fetch", {"url": A})
    assert (output.exit_code, output.outcome) == (1, Outcome.MAY_HAVE_EXECUTED)


def finished(**changes: Any) -> Finished:
    known: dict[str, Any] = {"exit_code": 0, "stdout": b"", "stderr": b""} | changes
    known.setdefault("stdout_total", len(known["stdout"]))
    known.setdefault("stderr_total", len(known["stderr"]))
    return Finished(**known)


@pytest.mark.requirement("003/tools/shell")
async def test_shell_gives_exit_code_and_both_streams(bench: Bench) -> None:
    bench.session.scripted["ls"] = finished(exit_code=3, stdout=b"out", stderr="é".encode())
    output = await bench.call("shell", {"command": "ls", "timeout_ms": 1500})
    assert (output.exit_code, output.stdout, output.stderr) == (3, "out", "é")
    assert (output.isolation, output.outcome) == ("fake", Outcome.EXECUTED)
    assert bench.session.ran[0].timeout_seconds == 1.5
    assert bench.updates == ["out", "é"]


@pytest.mark.requirement("003/tools/shell-timeout")
async def test_a_shell_command_that_was_killed_fails_and_says_why(bench: Bench) -> None:
    bench.session.scripted["sleep"] = finished(exit_code=137, stdout=b"half", timed_out=True)
    output = await bench.call("shell", {"command": "sleep"})
    assert (output.exit_code, output.stdout) == (137, "half")
    assert "timed out" in output.stderr


@pytest.mark.requirement("003/response/output-capped")
async def test_output_that_was_cut_says_so(bench: Bench) -> None:
    bench.session.scripted["yes"] = finished(stdout=b"y\n", stdout_total=9_000, cut=True)
    output = await bench.call("shell", {"command": "yes"})
    assert output.truncated
    assert "9000" in output.stdout


@pytest.mark.parametrize("tool", ["shell", "exec"])
async def test_output_that_lost_less_than_the_note_takes_is_said_to_be_cut(
    bench: Bench, tool: str
) -> None:
    noted = finished(stdout=b"a\n[1 bytes left out]\nb", stdout_total=3, cut=True)
    bench.session.scripted["echo"] = noted
    assert (await bench.call(tool, {"command": "echo"})).truncated


async def test_a_lost_sandbox_may_have_run_the_command_and_an_unopened_one_has_not(
    bench: Bench,
) -> None:
    bench.session.scripted["boom"] = Lost("gone")
    lost = await bench.call("shell", {"command": "boom"})
    assert (lost.exit_code, lost.outcome) == (1, Outcome.MAY_HAVE_EXECUTED)
    unopened = await bench.call("shell", {"command": "unknown"})
    assert (unopened.exit_code, unopened.outcome) == (1, Outcome.NOT_STARTED)


@pytest.mark.requirement("003/tools/file-read")
async def test_file_read_gives_the_first_4096_bytes_unless_told_otherwise(bench: Bench) -> None:
    bench.session.files.contents["f"] = b"a" * 5000
    output = await bench.call("file.read", {"path": "f"})
    assert (len(output.stdout), output.truncated) == (4096, True)
    output = await bench.call("file.read", {"path": "f", "max_bytes": 5000})
    assert (len(output.stdout), output.truncated) == (5000, False)


@pytest.mark.requirement("003/tools/file-list")
async def test_file_list_lists_a_directory(bench: Bench) -> None:
    bench.session.files.contents |= {"a": b"1", "b": b"22"}
    output = await bench.call("file.list", {"path": ""})
    assert output.stdout == "a\nb\n"
    assert output.data == [
        {"path": "a", "kind": "file", "size": 1},
        {"path": "b", "kind": "file", "size": 2},
    ]


async def test_a_file_that_may_not_be_had_is_a_failure_of_the_tool(bench: Bench) -> None:
    for tool, path in (("file.read", "../x"), ("file.list", "/etc"), ("file.list", "..")):
        output = await bench.call(tool, {"path": path})
        assert (output.exit_code, output.stdout) == (1, "")


@pytest.mark.parametrize(
    ("tool", "args", "stdout"),
    [
        ("echo", {"text": "hé"}, "hé"), ("text.upper", {"text": "straße"}, "STRASSE"),
        ("math.add", {"a": 2, "b": 3}, "5"), ("math.add", {"a": 0.5, "b": 1}, "1.5"),
    ],
)  # fmt: skip
async def test_the_small_tools(
    bench: Bench, tool: str, args: dict[str, JsonValue], stdout: str
) -> None:
    assert (await bench.call(tool, args)).stdout == stdout


@pytest.mark.parametrize(
    "args", [{"a": 1e308, "b": 1e308}, {"a": 10**400, "b": 0.5}, {"a": math.inf, "b": 1}]
)
async def test_a_sum_that_is_no_number_is_a_failure(
    bench: Bench, args: dict[str, JsonValue]
) -> None:
    assert (await bench.call("math.add", args)).exit_code == 1


@pytest.mark.requirement("003/errors/unknown-tool")
async def test_an_unknown_tool_is_a_failure_that_says_so(bench: Bench) -> None:
    output = await bench.call("no.such", {})
    assert (output.exit_code, output.stderr) == (1, "Unknown tool: no.such")


@pytest.mark.parametrize("name", sorted(BUILT_IN))
@pytest.mark.parametrize(
    "args", [{"other": 1}, {}, {"key": 5, "url": 5, "command": [], "path": {}}]
)
async def test_arguments_outside_the_schema_fail_before_anything_runs(
    bench: Bench, name: str, args: dict[str, JsonValue]
) -> None:
    output = await bench.call(name, args)
    assert (output.exit_code, output.outcome) == (1, Outcome.NOT_STARTED)
    assert output.stderr.startswith(f"{name}: ")
    assert bench.web.asked == []
    assert bench.session.ran == []


@pytest.mark.parametrize("name", sorted(BUILT_IN))
def test_a_tool_has_a_closed_schema_and_a_description(name: str) -> None:
    tool = BUILT_IN[name].tool
    assert tool.schema["type"] == "object"
    assert tool.schema["additionalProperties"] is False
    assert tool.description


def test_every_tool_of_the_contract_is_there_with_its_arguments() -> None:
    for name, shape in executor_v0.TOOLS.items():
        properties = BUILT_IN[name].tool.schema["properties"]
        assert isinstance(properties, dict)
        assert set(shape.__struct_fields__) == set(properties)


def test_only_what_changes_nothing_is_of_level_read() -> None:
    writing = {name for name, b in BUILT_IN.items() if b.tool.level is not Level.READ}
    assert writing == {"exec", "kv.set", "shell", "system.exec"}
