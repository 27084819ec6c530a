"""The executor contract on the wire: statuses, bearer, bodies, headers."""

import asyncio
import functools
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from tests.support.people import by, keyed
from tests.support.pipelines import Rig, open_rig
from toolgate.contracts import executor_v0 as wire
from toolgate.contracts.wire import to_iso_ms
from toolgate.core.enums import Outcome
from toolgate.core.errors import (
    Conflict,
    Invalid,
    NotFound,
    Refused,
    ToolgateError,
    Unavailable,
)
from toolgate.core.tools import Caller, ToolOutput, ToolRequest
from toolgate.evidence import audit
from toolgate.http import asgi
from toolgate.journal.journal import Append, NewEvent
from toolgate.surfaces.executor import following, local
from toolgate.surfaces.executor.errors import CODES
from toolgate.surfaces.executor.server import ExecutorApi
from toolgate.testing.clock import FakeClock
from toolgate.tools import episodes
from toolgate.tools.outcomes import Pending

TOKEN = "executor-bearer-of-the-tests"


@dataclass(frozen=True, slots=True)
class Door:
    rig: Rig
    url: str
    http: aiohttp.ClientSession

    async def ask(
        self, method: str, path: str, body: Any = None, *, token: str = TOKEN, **params: str
    ) -> tuple[int, Any]:
        content = body if isinstance(body, bytes) else msgspec.json.encode(body)
        async with self.http.request(
            method,
            self.url + path,
            data=None if body is None else BytesIO(content),  # bytes over 1 MB are a warning
            params=params,
            headers={"Authorization": f"Bearer {token}"} if token else {},
        ) as answer:
            return answer.status, msgspec.json.decode(await answer.read())


@pytest.fixture
async def door(tmp_path: Path) -> AsyncIterator[Door]:
    async with AsyncExitStack() as stack:
        rig = await stack.enter_async_context(open_rig(tmp_path))
        bound = asgi.bind("127.0.0.1", 0, setting="GATEWAY_PORT")
        listener = asgi.Listener(
            ExecutorApi(rig.executor, keyed(executor=TOKEN).executor).app(), bound
        )
        await listener.start()
        stack.push_async_callback(listener.stop)
        http = await stack.enter_async_context(aiohttp.ClientSession())
        yield Door(rig, f"http://127.0.0.1:{bound.getsockname()[1]}", http)


def run(request_id: Any = "r1", tool: Any = "count", **more: Any) -> dict[str, Any]:
    return {"request_id": request_id, "tool_id": tool, "args": {}, **more}


MALFORMED: list[Any] = [
        b"", b"{", b"[]", b"null", b"\xff", b'{"request_id":"r"}', b'"x"', b"[" * 5000,
        {"tool_id": "count", "args": {}}, {"request_id": "r", "args": {}}, run(args=[]),
        run(request_id=5), run(request_id="a/b"), run(request_id=".."), run(request_id="a\x00"),
        run(request_id="x" * 10_240), run(request_id=""), run(tool=5), run(ctx=5),
        run(ctx={"run_id": 5}), run(args=None), run(request_id="r\n"),
]  # fmt: skip


@pytest.mark.requirement("003/http/tool-run")
async def test_an_allowed_call_is_200_with_the_response(door: Door) -> None:
    status, body = await door.ask("POST", wire.RUN_PATH, run())
    assert (status, body["ok"]) == (200, True)
    assert msgspec.convert(body, wire.RunToolResponse).engine_ref


@pytest.mark.requirement("003/http/tool-run-deny")
async def test_a_denied_call_is_403_with_the_full_response(door: Door) -> None:
    status, body = await door.ask("POST", wire.RUN_PATH, run(tool="denied"))
    assert (status, body["ok"]) == (403, False)
    assert "tool_result" not in body
    assert msgspec.convert(body, wire.RunToolResponse).evidence_refs


@pytest.mark.requirement("003/http/waiting")
async def test_a_call_that_waits_names_its_approval_and_has_its_result_after_the_decision(
    door: Door,
) -> None:
    status, body = await door.ask("POST", wire.RUN_PATH, run(tool="ask.once"))
    assert (status, body["policy_check"]["rule_id"]) == (403, "approval_required")
    assert body["approval_id"] in body["message"]
    assert await door.ask("POST", wire.RUN_PATH, run(tool="ask.once")) == (status, body)
    await door.rig.gate.decide_approval(
        body["approval_id"], approve=True, decided_by=by("u"), reason=""
    )
    status, body = await door.ask("POST", wire.RUN_PATH, run(tool="ask.once"))
    assert (status, body["ok"]) == (200, True)
    assert body.keys().isdisjoint({"approval_id", "message"})


@pytest.mark.requirement("003/response/ids-only-where-given")
@pytest.mark.parametrize("ctx", [{}, {"run_id": "R"}, {"step_id": "S"}])
@pytest.mark.parametrize("tool", ["count", "denied", "ask.once"])
async def test_an_answer_has_exactly_the_ids_that_were_given(
    door: Door, tool: str, ctx: dict[str, str]
) -> None:
    _, body = await door.ask("POST", wire.RUN_PATH, run(tool=tool, ctx=ctx))
    assert {name: body[name] for name in ("run_id", "step_id") if name in body} == ctx


@pytest.mark.requirement("003/request/ctx-null")
async def test_a_ctx_of_null_is_no_ctx(door: Door) -> None:
    status, body = await door.ask("POST", wire.RUN_PATH, run(ctx=None))
    assert (status, body) == await door.ask("POST", wire.RUN_PATH, run())
    assert status == 200


def events_of(stream: str) -> list[tuple[str, Any]]:
    """The events of a whole stream, each with its data."""
    found = []
    for block in stream.strip().split("\n\n"):
        lines = dict(line.split(": ", 1) for line in block.split("\n"))
        if "event" in lines:
            found.append((lines["event"], msgspec.json.decode(lines["data"])))
    return found


async def follow(
    door: Door, body: Any, *, accept: str = "text/event-stream"
) -> tuple[int, str, str]:
    headers = {"Authorization": f"Bearer {TOKEN}", "Accept": accept}
    url = door.url + wire.RUN_PATH
    async with door.http.post(url, data=msgspec.json.encode(body), headers=headers) as answer:
        return answer.status, answer.content_type, await answer.text()


async def test_a_reader_of_events_gets_updates_and_then_the_same_body(door: Door) -> None:
    door.rig.engine.outputs["count"] = ToolOutput(0, stdout="as it comes\n")
    status, kind, stream = await follow(door, run(), accept="application/json, text/event-stream")
    assert (status, kind) == (200, "text/event-stream")
    (first, update), (last, response) = events_of(stream)
    assert (first, last) == (wire.UPDATE_EVENT, wire.RESPONSE_EVENT)
    assert update["delta"] == "as it comes\n"
    assert msgspec.convert(update, wire.Update).at.endswith("Z")
    assert (200, response) == await door.ask("POST", wire.RUN_PATH, run())


@pytest.mark.parametrize("tool", ["denied", "ask.once"])
async def test_a_call_that_does_not_run_is_only_a_response(door: Door, tool: str) -> None:
    status, _, stream = await follow(door, run(tool=tool))
    assert status == 200
    ((name, response),) = events_of(stream)
    assert name == wire.RESPONSE_EVENT
    assert (403, response) == await door.ask("POST", wire.RUN_PATH, run(tool=tool))


@pytest.mark.parametrize("body", [run(request_id="a/b"), run(args={"a": "\x00"}, ctx=5), {}])
async def test_what_cannot_be_read_is_a_status_also_for_a_reader_of_events(
    door: Door, body: Any
) -> None:
    status, kind, text = await follow(door, body)
    assert (status, kind) == (400, "application/json")
    assert msgspec.json.decode(text)["error"]["code"] == wire.ErrorCode.INVALID_REQUEST


async def test_a_call_that_says_nothing_is_shown_to_be_alive(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "SILENCE_S", 0.01)
    going = asyncio.create_task(follow(door, run(tool="hang")))
    await door.rig.engine.begun.wait()
    asyncio.get_running_loop().call_later(0.1, door.rig.engine.gate.set)
    status, _, stream = await going
    assert status == 200
    assert stream.startswith(following.STILL_HERE.decode())
    assert [name for name, _ in events_of(stream)] == [wire.RESPONSE_EVENT]


async def test_a_reader_that_goes_stops_the_tool_and_its_end_is_recorded(door: Door) -> None:
    going = asyncio.create_task(follow(door, run(tool="hang")))
    await door.rig.engine.begun.wait()
    going.cancel()
    ref = wire.EVIDENCE_REF.format(request_id="r1", artifact=wire.Artifact.RESPONSE)
    async with asyncio.timeout(10):
        while (found := await door.ask("GET", wire.ARTIFACT_PATH, ref=ref))[0] != 200:
            await asyncio.sleep(0.01)
    _, body = found
    assert body["outcome"] == Outcome.MAY_HAVE_EXECUTED
    assert door.rig.engine.runs["hang"] == 1


@pytest.mark.parametrize(
    ("accept", "wanted"),
    [
        ("text/event-stream", True),
        ("application/json, Text/Event-Stream;q=0.5", True),
        ("*/*", False),
        ("", False),
        ("text/event-streams", False),
    ],
)
def test_only_an_accept_that_names_events_asks_for_them(accept: str, wanted: bool) -> None:
    assert following.wants_events(accept) is wanted


async def test_a_failed_tool_is_200_because_it_was_run(door: Door) -> None:
    status, body = await door.ask("POST", wire.RUN_PATH, run(tool="fail"))
    assert (status, body["ok"], body["tool_result"]["exit_code"]) == (200, False, 1)


@pytest.mark.requirement("003/http/tool-run-bearer")
@pytest.mark.requirement("003/http/artifact-bearer")
async def test_without_the_right_bearer_nothing_is_answered(door: Door) -> None:
    for token in ("", "wrong", TOKEN + "x", TOKEN[:-1], TOKEN.upper()):
        for method, path, body in (
            ("POST", wire.RUN_PATH, run()),
            ("GET", wire.ARTIFACT_PATH, None),
            ("POST", wire.EPISODES_PATH, {}),
        ):
            status, answer = await door.ask(method, path, body, token=token)
            assert (status, answer["error"]["code"]) == (401, wire.ErrorCode.UNAUTHORIZED)
    assert door.rig.engine.runs["count"] == 0


async def test_without_a_token_of_its_own_the_executor_answers_nobody(door: Door) -> None:
    app = ExecutorApi(door.rig.executor, authenticate=keyed().executor).app()
    bound = asgi.bind("127.0.0.1", 0, setting="GATEWAY_PORT")
    listener = asgi.Listener(app, bound)
    await listener.start()
    closed = Door(door.rig, f"http://127.0.0.1:{bound.getsockname()[1]}", door.http)
    assert (await closed.ask("POST", wire.RUN_PATH, run(), token=""))[0] == 401
    await listener.stop()


@pytest.mark.requirement("003/http/tool-run-malformed")
async def test_a_malformed_request_is_400_and_runs_nothing(door: Door) -> None:
    for body in MALFORMED:
        status, answer = await door.ask("POST", wire.RUN_PATH, body)
        assert (status, answer["ok"]) == (400, False), body
        assert answer["error"]["code"] == wire.ErrorCode.INVALID_REQUEST
    assert door.rig.engine.runs["count"] == 0


async def test_a_body_that_is_too_large_is_413(door: Door) -> None:
    status, answer = await door.ask("POST", wire.RUN_PATH, run(args={"a": "x" * 1_100_000}))
    assert (status, answer["error"]["code"]) == (413, wire.ErrorCode.INVALID_REQUEST)


async def test_members_outside_the_contract_are_ignored(door: Door) -> None:
    _, plain = await door.ask("POST", wire.RUN_PATH, run())
    _, more = await door.ask("POST", wire.RUN_PATH, run(extra=1, ctx={"other": 2}))
    assert more == plain
    assert door.rig.engine.runs["count"] == 1


@pytest.mark.requirement("003/http/artifact-get")
@pytest.mark.requirement("003/http/artifact-no-store")
async def test_an_artifact_is_answered_and_not_to_be_stored(door: Door) -> None:
    _, body = await door.ask("POST", wire.RUN_PATH, run())
    for ref in body["evidence_refs"]:
        async with door.http.get(
            door.url + wire.ARTIFACT_PATH,
            params={"ref": ref},
            headers={"Authorization": f"Bearer {TOKEN}"},
        ) as answer:
            assert answer.status == 200
            assert answer.headers["Cache-Control"] == "no-store"
            assert await answer.read() == await door.rig.executor.artifact(ref)


@pytest.mark.requirement("003/http/artifact-ref-length")
@pytest.mark.requirement("003/http/artifact-ref-charset")
async def test_a_ref_that_cannot_be_one_is_400(door: Door) -> None:
    long, odd = "x" * 513, ("a b", "a%2e", "../x", "a/../b", "/etc/passwd", "a\n", "é", "a\\b")
    for ref in ("", long, *odd, "a\x00"):
        status, answer = await door.ask("GET", wire.ARTIFACT_PATH, ref=ref)
        assert (status, answer["error"]["code"]) == (400, wire.ErrorCode.INVALID_REQUEST), ref


@pytest.mark.requirement("003/http/artifact-unknown")
async def test_a_ref_that_names_nothing_is_404(door: Door) -> None:
    status, answer = await door.ask("GET", wire.ARTIFACT_PATH, ref="requests/r9/request.json")
    assert (status, answer["error"]["code"]) == (404, wire.ErrorCode.NOT_FOUND)


@pytest.mark.requirement("003/http/episode-limit")
async def test_a_search_gives_20_unless_told_otherwise_and_at_most_100(door: Door) -> None:
    for number in range(25):
        await door.ask("POST", wire.RUN_PATH, run(f"r{number}"))
    assert len((await door.ask("POST", wire.EPISODES_PATH, {}))[1]["episodes"]) == 20
    assert len((await door.ask("POST", wire.EPISODES_PATH, {"limit": 100}))[1]["episodes"]) == 25
    assert len((await door.ask("POST", wire.EPISODES_PATH, {"limit": 1}))[1]["episodes"]) == 1
    for wrong in (0, 101, -1, "5", 1.5):
        assert (await door.ask("POST", wire.EPISODES_PATH, {"limit": wrong}))[0] == 400


@pytest.mark.requirement("003/http/episode-stopped-early")
async def test_a_search_that_stops_early_says_so_and_goes_on_from_there(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (await door.ask("POST", wire.RUN_PATH, run("oldest")))[0] == 200
    assert "complete" not in (await door.ask("POST", wire.EPISODES_PATH, {}))[1]
    said = {"requestId": "later", "decision": "allow", "result": "ok", "ruleId": ""}
    row = msgspec.json.encode(audit.StoredRow("t", "w", "a", "tool", "echo", said))
    later = (NewEvent(audit.TOOL_RUN, row, "run_later"),) * 100
    clock = door.rig.clock
    assert isinstance(clock, FakeClock)
    for _ in range(25):
        clock.advance(1000)
        await door.rig.journal.commit(Append(audit.STREAM, later))
    monkeypatch.setattr(
        local, "search_episodes", functools.partial(episodes.search_episodes, budget_s=-1)
    )
    _, stopped = await door.ask("POST", wire.EPISODES_PATH, {"type": "count"})
    assert (stopped["episodes"], stopped["complete"]) == ([], False)
    assert to_iso_ms(0) < stopped["searched_to"] < to_iso_ms(clock.now_ms())
    monkeypatch.undo()
    rest = {"type": "count", "until_ts": stopped["searched_to"]}
    _, found = await door.ask("POST", wire.EPISODES_PATH, rest)
    assert [one["id"] for one in found["episodes"]] == ["oldest"]
    assert "complete" not in found


async def test_a_search_that_cannot_be_read_is_400(door: Door) -> None:
    for wrong in ({"since_ts": "yesterday"}, {"until_ts": "2024-99-99T00:00:00.000Z"}, b"["):
        assert (await door.ask("POST", wire.EPISODES_PATH, wrong))[0] == 400
    assert (await door.ask("POST", wire.EPISODES_PATH, {"order": "up"}))[0] == 400


@pytest.mark.requirement("003/http/health")
async def test_health_needs_no_bearer(door: Door) -> None:
    status, body = await door.ask("GET", wire.HEALTH_PATH, token="")
    assert (status, body["ok"]) == (200, True)


@pytest.mark.requirement("003/http/iso-times")
async def test_times_are_iso_8601_with_milliseconds_and_z(door: Door) -> None:
    pending = await door.rig.run(ToolRequest("r2", "ask.once", {}, Caller(agent="a")))
    assert isinstance(pending, Pending)
    await door.rig.gate.decide_approval(
        pending.approval_id, approve=True, decided_by=by("u"), reason=""
    )
    await door.rig.run(ToolRequest("r2", "ask.once", {}, Caller(agent="a")))
    _, word = await door.ask("GET", wire.ARTIFACT_PATH, ref="requests/r2/approval.json")
    _, health = await door.ask("GET", wire.HEALTH_PATH)
    _, found = await door.ask("POST", wire.EPISODES_PATH, {})
    now = to_iso_ms(door.rig.clock.now_ms())
    assert [word["decided_at"], health["time"], found["episodes"][0]["ts"]] == [now] * 3
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", now)


def test_every_error_of_ours_has_a_code() -> None:
    for kind in (Invalid, NotFound, Refused, Conflict, Unavailable, ToolgateError):
        assert any(base in CODES for base in kind.__mro__)
