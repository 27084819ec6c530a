"""Agents behind a URL: what they are sent, and what their answers become."""

import asyncio
import base64
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from yarl import URL

from tests.e2e.ways import TOGETHER, installed
from toolgate.contracts.wire import MAX_INT
from toolgate.runs.agents.agent import AgentFailed, EndTurn, Note, Said, Say, Step, Transcript
from toolgate.runs.agents.http import HttpAgents
from toolgate.runs.agents.registry import External
from toolgate.secrets.patterns import SecretPatterns
from toolgate.secrets.redaction import MASK

requirement = pytest.mark.requirement
Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


@contextlib.asynccontextmanager
async def agent(answer: Answer) -> AsyncIterator[tuple[str, list[tuple[dict[str, Any], str]]]]:
    asked: list[tuple[dict[str, Any], str]] = []

    async def handle(request: web.Request) -> web.StreamResponse:
        asked.append((await request.json(), request.headers.get("Authorization", "")))
        return await answer(request)

    app = web.Application()
    app.router.add_post("/agent/invoke", handle)
    runner = web.AppRunner(app, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/agent/", asked
    finally:
        await runner.cleanup()


def says(*events: dict[str, Any] | str, hold: asyncio.Event | None = None) -> Answer:
    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for event in events:
            data = event if isinstance(event, str) else json.dumps(event)
            await response.write(f"data: {data}\n\n".encode())
        if hold is not None:
            await hold.wait()
        return response

    return answer


GOOD = (
    {"type": "delta", "text": "as you "},
    {"type": "state", "state": "THINKING", "detail": {"step": 1}},
    {"type": "delta", "text": "wish"},
    {"type": "done", "usage": {"prompt_tokens": 7, "completion_tokens": 5}},
)


@requirement("001/agents/external", "001/agents/external-events", "001/orchestrator/invoke-context")
async def test_an_external_agent_is_asked_and_its_events_become_the_runs(tmp_path: Path) -> None:
    async with agent(says(*GOOD)) as (url, asked), installed(TOGETHER, tmp_path) as running:
        registered = {"agent_id": "butler", "endpoint": url, "auth_token": "for the butler"}
        agents = f"{running.orchestrator}/internal/agents"
        status, view = await running.post(agents, registered)
        assert (status, view["has_auth_token"], "auth_token" in view) == (201, True, False)
        client = await running.connect(user="u1")
        await client.invoke("first", agent="butler", request_id="a")
        heard = await client.hear_until("done", "error")
        types = [one["type"] for one in heard if one["type"] != "delta"]
        assert types == ["run_started", "state", "done"]
        assert "".join(one.get("text", "") for one in heard) == "as you wish"
        assert heard[-1]["usage"]["total_tokens"] == 12
        body = {
            "session_id": client.session_id,
            "agent_id": "butler",
            "message": {"role": "user", "content": "second"},
            "context": {"locale": "de"},
        }
        await running.post(f"{running.orchestrator}/internal/invoke", body)
        await client.hear_until("done", "error")
        first, second = (one for one, _ in asked)
        assert {token for _, token in asked} == {"Bearer for the butler"}
        assert (first["message"]["content"], first["agent_id"]) == ("first", "butler")
        assert first["run_id"] == heard[0]["run_id"]
        assert second["history"] == [
            {"role": "user", "content": "first"},
            {"role": "assistant", "content": "as you wish"},
        ]
        assert second["context"] == {"locale": "de"}
        _, listed = await running.get(agents)
        known = {one["agent_id"]: one["kind"] for one in listed["agents"]}  # type: ignore[attr-defined]
        assert known == {
            "echo": "builtin", "script": "builtin", "assistant": "builtin", "butler": "external",
        }  # fmt: skip


async def refuses(_: web.Request) -> web.StreamResponse:
    return web.Response(status=503)


async def is_no_stream(_: web.Request) -> web.StreamResponse:
    return web.json_response({"text": "hello"})


@requirement("001/agents/external-fails", "001/codes/six-only")
@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (refuses, "agent_failed"),
        (is_no_stream, "agent_failed"),
        (says({"type": "delta", "text": "I was going to"}), "agent_failed"),
        (says("nonsense"), "agent_failed"),
        (says({"type": "cake"}), "agent_failed"),
        (says({"type": "error", "code": "too_tired", "message": "not today"}), "too_tired"),
        (says({"type": "delta", "text": "wait"}, hold=asyncio.Event()), "agent_timeout"),
    ],
    ids=["503", "no stream", "breaks off", "nonsense", "odd event", "error", "hangs"],
)
async def test_an_agent_that_fails_ends_its_run_with_an_error(
    tmp_path: Path, answer: Answer, reason: str
) -> None:
    async with (
        agent(answer) as (url, _),
        installed(TOGETHER, tmp_path, AGENT_TIMEOUT_MS="700") as running,
    ):
        agents = f"{running.orchestrator}/internal/agents"
        await running.post(agents, {"agent_id": "butler", "endpoint": url})
        client = await running.connect()
        await client.invoke("x", agent="butler")
        ended = (await client.hear_until("done", "error"))[-1]
        assert (ended["type"], ended["code"]) == ("error", "orchestrator_error")
        assert ended["detail"] == {"reason": reason}


@requirement("001/cancel/stops-agent")
async def test_cancelling_hangs_up_on_the_agent(tmp_path: Path) -> None:
    hung_up = asyncio.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b'data: {"type": "delta", "text": "and so on"}\n\n')
        try:
            await asyncio.sleep(60)
        finally:
            hung_up.set()
        return response

    async with agent(answer) as (url, _), installed(TOGETHER, tmp_path) as running:
        agents = f"{running.orchestrator}/internal/agents"
        await running.post(agents, {"agent_id": "butler", "endpoint": url})
        client = await running.connect()
        await client.invoke("x", agent="butler")
        delta = (await client.hear_until("delta"))[-1]
        await client.say("cancel_run", run_id=delta["run_id"])
        await client.hear_until("done")
        await asyncio.wait_for(hung_up.wait(), 10)


@pytest.mark.parametrize(
    "agent_registered",
    [
        {"agent_id": "echo", "endpoint": "http://x"},
        {"agent_id": "a", "endpoint": "file:///x"},
        {"agent_id": "a", "endpoint": "http://x", "auth_token": "of two\r\nlines"},
        {"agent_id": "a", "endpoint": "http://me:pass@x", "auth_token": "one or the other"},
    ],
)
async def test_a_name_that_is_taken_or_a_url_that_is_none_is_refused(
    tmp_path: Path, agent_registered: dict[str, str]
) -> None:
    async with installed(TOGETHER, tmp_path) as running:
        agents = f"{running.orchestrator}/internal/agents"
        assert (await running.post(agents, agent_registered))[0] in {400, 409}


@requirement("001/agents/timeout")
async def test_an_agent_may_be_silent_for_as_long_as_its_run_may_take() -> None:
    agents = HttpAgents()
    silent = {"type": "delta", "text": "let me think"}
    transcript = Transcript("run_1", "s", "butler", [], Said("user", "hello"), [], [])
    async with agent(says(silent, hold=asyncio.Event())) as (url, _), asyncio.timeout(10):
        butler = agents.agent(External("butler", url))
        async with contextlib.aclosing(butler.turn(transcript)) as steps:
            assert await anext(steps) == Say("let me think")
            assert butler.http.timeout.sock_read is None, "AGENT_TIMEOUT_MS bounds the whole"
    await agents.close()


@requirement("001/agents/external-events")
async def test_what_an_agent_says_beyond_its_contract_is_passed_over() -> None:
    agents = HttpAgents()
    transcript = Transcript("run_1", "s", "butler", [], Said("user", "hello"), [], [])
    odd = says({"type": "trace", "span": 1}, *GOOD[:1], {"type": "trace"}, *GOOD[-1:])
    async with agent(odd) as (url, _), asyncio.timeout(10):
        steps = [one async for one in agents.agent(External("butler", url)).turn(transcript)]
    await agents.close()
    assert [type(one) for one in steps] == [Say, EndTurn]


async def test_an_agent_of_any_name_can_be_removed(tmp_path: Path) -> None:
    async with installed(TOGETHER, tmp_path) as running:
        agents = f"{running.orchestrator}/internal/agents"
        for name in ("team/butler", "butler"):
            assert (await running.post(agents, {"agent_id": name, "endpoint": "http://x"}))[
                0
            ] == 201
        for path in ("team%2Fbutler", "butler"):
            async with running.http.delete(URL(f"{agents}/{path}", encoded=True)) as removed:
                assert removed.status == 200
        _, listed = await running.get(agents)
        assert not [one for one in listed["agents"] if one["kind"] == "external"]  # type: ignore[attr-defined]


async def test_a_password_in_an_agents_address_is_used_and_not_shown(tmp_path: Path) -> None:
    async with agent(says(*GOOD)) as (url, asked), installed(TOGETHER, tmp_path) as running:
        with_password = url.replace("//", "//butler:opensesame@")
        agents = f"{running.orchestrator}/internal/agents"
        registered = {"agent_id": "butler", "endpoint": with_password}
        _, view = await running.post(agents, registered)
        _, listed = await running.get(agents)
        client = await running.connect()
        await client.invoke("x", agent="butler")
        assert (await client.hear_until("done", "error"))[-1]["type"] == "done"
    assert base64.b64decode(asked[0][1].split()[1]) == b"butler:opensesame"
    assert "opensesame" not in json.dumps([view, listed])
    assert str(view["endpoint"]).endswith(url.partition("//")[2])


async def test_more_runs_than_a_pool_has_connections_are_all_asked_for_at_once() -> None:
    many = 120
    come = 0
    all_there = asyncio.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        nonlocal come
        come += 1
        if come == many:
            all_there.set()
        await all_there.wait()
        return await says({"type": "done"})(request)

    agents = HttpAgents()
    transcript = Transcript("run_1", "s", "butler", [], Said("user", "hello"), [], [])

    async def ask(url: str) -> Step:
        steps = [one async for one in agents.agent(External("butler", url)).turn(transcript)]
        return steps[-1]

    try:
        async with agent(answer) as (url, _), asyncio.timeout(10):
            ended = await asyncio.gather(*(ask(url) for _ in range(many)))
    finally:
        await agents.close()
    assert ended == [EndTurn()] * many


async def test_a_silent_agent_has_the_time_of_its_run_and_no_shorter_one() -> None:
    agents = HttpAgents()
    try:
        waits = agents.agent(External("butler", "http://127.0.0.1:9")).http.timeout
    finally:
        await agents.close()
    assert (waits.total, waits.sock_read) == (None, None)


async def test_an_agents_token_is_not_written_down_where_the_agent_says_it_back(
    tmp_path: Path,
) -> None:
    token = "for the butler and nobody else 7c41a90be2"
    encoded = base64.b64encode(f"key {token}".encode()).decode()
    pieces = [
        f"it came with {token[:20]}",
        token[20:23],
        f"{token[23:]} and {encoded}, I thin",
        "k",
    ]
    tells = says(
        *({"type": "delta", "text": piece} for piece in pieces),
        {"type": "state", "state": "CHECKING", "detail": {"given": f"it came with {token}"}},
        {"type": "error", "code": "no_entry", "message": f"{token} is not welcome"},
    )
    async with agent(tells) as (url, _), installed(TOGETHER, tmp_path) as running:
        agents = f"{running.orchestrator}/internal/agents"
        await running.post(agents, {"agent_id": "butler", "endpoint": url, "auth_token": token})
        client = await running.connect()
        await client.invoke("x", agent="butler")
        heard = await client.hear_until("done", "error")
    types = [one["type"] for one in heard if one["type"] != "delta"]
    assert types == ["run_started", "state", "error"]
    assert heard[-2]["type"] == "state", "all that was said before it comes before it"
    text = "".join(one.get("text", "") for one in heard)
    assert (text[:14], text[-9:]) == ("it came with [", ", I think")
    assert "is not welcome" in heard[-1]["message"]
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    for secret in (token, encoded, encoded[8:40]):
        assert secret not in json.dumps(heard)
        assert [path for path in written if secret.encode() in path.read_bytes()] == []


@requirement("001/agents/external-events")
@pytest.mark.parametrize("last", [[], GOOD[-1:]], ids=["breaks off", "done"])
async def test_what_an_agent_says_is_told_to_its_last_letter(last: list[dict[str, Any]]) -> None:
    known = SecretPatterns(["thousand suns"])
    agents = HttpAgents(known.known_stream)
    transcript = Transcript("run_1", "s", "butler", [], Said("user", "hello"), [], [])
    said = ""
    async with agent(says({"type": "delta", "text": "a thousand"}, *last)) as (url, _):
        with contextlib.suppress(AgentFailed):
            async for step in agents.agent(External("butler", url)).turn(transcript):
                said += step.text if isinstance(step, Say) else ""
    await agents.close()
    assert said == "a thousand"


async def test_a_secret_is_not_told_in_two_halves_with_a_state_between_them() -> None:
    agents = HttpAgents(SecretPatterns(["thousand suns"]).known_stream)
    transcript = Transcript("run_1", "s", "butler", [], Said("user", "hello"), [], [])
    pieces = ("a thou", "sand su", "ns and a thousand", " moons")
    tells = [event for text in pieces for event in ({"type": "delta", "text": text}, GOOD[1])]
    async with agent(says(*tells, GOOD[-1])) as (url, _), asyncio.timeout(10):
        steps = [one async for one in agents.agent(External("butler", url)).turn(transcript)]
    await agents.close()
    assert "".join(one.text for one in steps if isinstance(one, Say)) == (
        f"a {MASK} and a thousand moons"
    )
    assert sum(isinstance(one, Note) for one in steps) == len(pieces)


async def test_an_agent_that_counts_without_measure_does_not_end_who_listens() -> None:
    agents = HttpAgents()
    transcript = Transcript("run_1", "s", "butler", [], Said("user", "hello"), [], [])
    most = {"prompt_tokens": MAX_INT, "completion_tokens": MAX_INT}
    async with agent(says({"type": "done", "usage": most})) as (url, _), asyncio.timeout(10):
        [end] = [one async for one in agents.agent(External("butler", url)).turn(transcript)]
    await agents.close()
    assert isinstance(end, EndTurn)
    assert end.usage.total_tokens == MAX_INT, "no client reads a larger number"
