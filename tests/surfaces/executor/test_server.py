"""The executor contract on the wire: statuses, bearer, bodies, headers."""

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

from tests.support.pipelines import Rig, open_rig
from toolgate.contracts import executor_v0 as wire
from toolgate.contracts.wire import to_iso_ms
from toolgate.core.errors import (
    Conflict,
    Invalid,
    NotFound,
    Refused,
    ToolgateError,
    Unavailable,
)
from toolgate.core.tools import Caller, ToolRequest
from toolgate.http import asgi
from toolgate.surfaces.executor.server import CODES, ExecutorApi
from toolgate.tools.gate import Pending

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
        listener = asgi.Listener(ExecutorApi(rig.executor, TOKEN).app(), bound)
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
    app = ExecutorApi(door.rig.executor, token="").app()
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
    pending = await door.rig.pipeline.run(ToolRequest("r2", "ask.once", {}, Caller(agent="a")))
    assert isinstance(pending, Pending)
    await door.rig.pipeline.decide_approval(
        pending.approval_id, approve=True, decided_by="u", reason=""
    )
    await door.rig.pipeline.run(ToolRequest("r2", "ask.once", {}, Caller(agent="a")))
    _, word = await door.ask("GET", wire.ARTIFACT_PATH, ref="requests/r2/approval.json")
    _, health = await door.ask("GET", wire.HEALTH_PATH)
    _, found = await door.ask("POST", wire.EPISODES_PATH, {})
    now = to_iso_ms(door.rig.clock.now_ms())
    assert [word["decided_at"], health["time"], found["episodes"][0]["ts"]] == [now] * 3
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", now)


def test_every_error_of_ours_has_a_code() -> None:
    for kind in (Invalid, NotFound, Refused, Conflict, Unavailable, ToolgateError):
        assert any(base in CODES for base in kind.__mro__)
