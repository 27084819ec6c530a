"""The ingress contract, over real sockets: with the orchestrator in the process, and over HTTP.

Every test runs both ways against one installation per way; each has sessions of its own.
"""

import asyncio
import itertools
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
import websockets

from tests.e2e.harness import PATIENCE, Client
from tests.e2e.ways import (
    APART,
    API_KEY,
    INTERNAL_TOKEN,
    TOGETHER,
    Running,
    eventually,
    installed,
)
from toolgate.contracts.ingress_v1 import CloseCode, ErrorCode

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.requirement("001/dispatch/in-process-and-http"),
]
requirement = pytest.mark.requirement

TOOLS = {"tools": ["desk.look", "desk.point", "payments.transfer", "nuclear.launch"]}
LOOK = 'before [[tool:desk.look {"at": "door"}]] after'
PAY = '[[tool:payments.transfer {"amount": 100}]] after'
MAX_BYTES = 65_536
numbers = itertools.count(1)


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=[TOGETHER, APART])
async def running(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Running]:
    home = tmp_path_factory.mktemp(request.param)
    async with installed(request.param, home) as one:
        yield one


@pytest_asyncio.fixture(loop_scope="module")
async def client(running: Running) -> AsyncIterator[Client]:
    one = await running.connect(user=f"u{next(numbers)}", client_meta=TOOLS)
    yield one
    await one.close()


async def same_session(running: Running, user: str, count: int) -> list[Client]:
    first = await running.connect(user=user, client_meta=TOOLS)
    more = [await running.connect(user=user, session_id=first.session_id) for _ in range(count - 1)]
    return [first, *more]


async def refusal(client: Client) -> dict[str, Any]:
    """The next answer that is for this connection alone."""
    while "seq" in (message := await client.hear()):
        pass
    assert message["type"] == "error", message
    assert isinstance(message["message"], str)
    assert isinstance(message["ts"], int)
    return message


async def text_of_run(client: Client) -> str:
    heard = await client.hear_until("done", "error")
    return "".join(one["text"] for one in heard if one["type"] == "delta")


async def run_status(running: Running, run_id: str) -> dict[str, Any]:
    status, run = await running.get(f"{running.orchestrator}/internal/runs/{run_id}")
    assert status == 200
    return run


# The handshake


@requirement(
    "001/m0/connect",
    "001/handshake/socket-at-ws",
    "001/handshake/hello-answered",
    "001/handshake/ack-shape",
    "001/handshake/hello-makes-session",
    "001/events/hello-ack",
)
async def test_hello_is_answered_with_a_new_session(running: Running) -> None:
    one, two = await running.connect(), await running.connect()
    assert one.ack.keys() == {"type", "ts", "session_id", "resumed", "seq", "epoch"}
    assert (one.ack["resumed"], one.ack["seq"]) == (False, 0)
    assert one.session_id != two.session_id
    with pytest.raises(websockets.InvalidStatus):
        await websockets.connect(running.ws.replace("/ws", "/elsewhere"))


@requirement(
    "001/handshake/hello-key-checked", "001/handshake/hello-wrong-key", "001/codes/auth-failed"
)
async def test_a_wrong_key_is_told_auth_failed_and_closed_with_4401(running: Running) -> None:
    socket = await websockets.connect(running.ws)
    hello = {"type": "hello", "ts": 1, "user_id": "u", "api_key": "wrong", "request_id": "q"}
    await socket.send(json.dumps(hello))
    said = json.loads(await asyncio.wait_for(socket.recv(), PATIENCE))
    assert (said["type"], said["code"], said["request_id"]) == ("error", "auth_failed", "q")
    await asyncio.wait_for(socket.wait_closed(), PATIENCE)
    assert socket.close_code == CloseCode.UNAUTHENTICATED


@requirement(
    "001/handshake/before-hello", "001/handshake/hello-first", "001/codes/session-not-found"
)
async def test_before_hello_there_is_no_session(running: Running) -> None:
    socket = await websockets.connect(running.ws)
    invoke = {"role": "user", "content": "x"}
    message = {"type": "agent_invoke", "ts": 1, "request_id": "q", "agent_id": "echo"}
    await socket.send(json.dumps({**message, "message": invoke}))
    said = json.loads(await asyncio.wait_for(socket.recv(), PATIENCE))
    assert (said["code"], said["request_id"]) == (ErrorCode.SESSION_NOT_FOUND, "q")
    await socket.send(json.dumps({"type": "hello", "ts": 1, "user_id": "u", "api_key": API_KEY}))
    assert json.loads(await socket.recv())["type"] == "hello_ack"
    await socket.close()


@requirement(
    "001/handshake/resume-own-session",
    "001/handshake/other-users-session",
    "001/handshake/unknown-session",
)
async def test_a_session_opens_for_its_own_user_alone(running: Running) -> None:
    mine = await running.connect(user="mine")
    again = await running.connect(user="mine", session_id=mine.session_id)
    assert (again.session_id, again.ack["resumed"]) == (mine.session_id, True)
    for user, session_id in (("other", mine.session_id), ("mine", "sess_nowhere")):
        socket = await websockets.connect(running.ws)
        hello = {"type": "hello", "ts": 1, "user_id": user, "api_key": API_KEY}
        await socket.send(json.dumps({**hello, "session_id": session_id}))
        said = json.loads(await asyncio.wait_for(socket.recv(), PATIENCE))
        assert (said["type"], said["code"]) == ("error", ErrorCode.SESSION_NOT_FOUND)
        await socket.close()


@requirement("001/handshake/hello-client-meta", "001/messages/unknown-members")
@pytest.mark.parametrize("meta", [None, 5, "web", [1], {"app": 1, "version": [2], "more": {}}])
async def test_client_meta_may_hold_anything(running: Running, meta: Any) -> None:
    client = await running.connect(client_meta=meta, something_else=1)
    await client.invoke("x")
    assert await text_of_run(client) == "x"
    await client.close()


# Messages


@requirement(
    "001/messages/bad-json",
    "001/messages/not-an-object",
    "001/messages/unknown-type",
    "001/messages/connection-survives",
    "001/codes/invalid-message",
    "001/codes/uniform",
    "001/m4/errors-uniform",
    "001/events/error",
)
@pytest.mark.parametrize("text", ["", "{", "nonsense", "[]", "5", "null", '"hello"', "{}"])
async def test_what_is_no_message_is_told_and_the_connection_stays(
    client: Client, text: str
) -> None:
    await client.socket.send(text)
    assert (await refusal(client))["code"] == ErrorCode.INVALID_MESSAGE
    await client.invoke("still here")
    assert await text_of_run(client) == "still here"


@requirement("001/messages/missing-field", "001/messages/wrong-type")
@pytest.mark.parametrize(
    ("kind", "members", "field"),
    [
        ("agent_invoke", {"request_id": 5, "agent_id": "a", "message": {}}, "request_id"),
        ("agent_invoke", {"request_id": "r", "agent_id": 5, "message": {}}, "agent_id"),
        ("agent_invoke", {"request_id": "r", "agent_id": "a", "message": {"role": "u"}}, "content"),
        ("tool_result", {"run_id": "r", "tool_call_id": "t"}, "ok"),
        ("tool_result", {"run_id": "r", "tool_call_id": "t", "ok": "yes"}, "ok"),
        ("approval_decision", {"run_id": "r", "approval_id": "a"}, "decision"),
        ("cancel_run", {}, "run_id"),
        ("cancel_run", {"run_id": None}, "run_id"),
        ("unheard_of", {}, "type"),
    ],
)
async def test_a_wrong_member_is_named(
    client: Client, kind: str, members: dict[str, Any], field: str
) -> None:
    await client.say(kind, **members)
    said = await refusal(client)
    assert said["code"] == ErrorCode.INVALID_MESSAGE
    assert field in said["message"]


@requirement("001/messages/not-utf8")
@pytest.mark.parametrize("fragmented", [False, True])
async def test_a_text_message_that_is_not_utf8_closes_with_1007(
    client: Client, fragmented: bool
) -> None:
    text = b'{"type": "\xff\xfe"}'
    await client.socket.send([text[:11], text[11:]] if fragmented else text, text=True)
    await asyncio.wait_for(client.socket.wait_closed(), PATIENCE)
    assert client.socket.close_code == CloseCode.NOT_UTF8


@requirement("001/messages/binary-frame")
async def test_a_binary_frame_is_an_invalid_message_and_the_connection_stays(
    client: Client,
) -> None:
    await client.socket.send(b'{"type": "hello"}')
    assert (await refusal(client))["code"] == ErrorCode.INVALID_MESSAGE
    await client.invoke("still here")
    assert await text_of_run(client) == "still here"


def invocation_of(size: int) -> str:
    message: dict[str, Any] = {
        "type": "agent_invoke",
        "ts": 1,
        "request_id": "large",
        "agent_id": "script",
        "message": {"role": "user", "content": ""},
    }
    message["message"]["content"] = "x" * (size - len(json.dumps(message)))
    return json.dumps(message)


@requirement("001/messages/largest")
async def test_a_message_of_the_largest_size_is_taken(client: Client) -> None:
    await client.socket.send(invocation_of(MAX_BYTES))
    assert len(await text_of_run(client)) > 60_000


@requirement("001/messages/oversized")
@pytest.mark.parametrize("fragmented", [False, True])
async def test_a_message_beyond_it_closes_with_1009(client: Client, fragmented: bool) -> None:
    text = invocation_of(MAX_BYTES + 1)
    halves = [text[: MAX_BYTES // 2], text[MAX_BYTES // 2 :]]
    await client.socket.send(halves if fragmented else text)
    await asyncio.wait_for(client.socket.wait_closed(), PATIENCE)
    assert client.socket.close_code == CloseCode.MESSAGE_TOO_BIG


# Runs


@requirement(
    "001/invoke/started",
    "001/invoke/started-first",
    "001/invoke/deltas",
    "001/invoke/one-end",
    "001/invoke/session-id-optional",
    "001/agents/built-in",
    "001/events/run-started",
    "001/events/delta",
    "001/events/done",
    "001/events/done-usage",
    "001/messages/type-and-ts",
    "001/messages/ts-milliseconds",
    "001/messages/seq-rises",
    "001/messages/event-id",
    "001/messages/order",
    "001/messages/base-members-omitted",
)
async def test_a_run_is_told_from_its_start_to_its_one_end(client: Client) -> None:
    await client.invoke("word after word", request_id="q1")
    heard = await client.hear_until("done", "error")
    started, *middle, done = heard
    assert started.keys() == {
        "type", "ts", "seq", "event_id", "request_id", "run_id", "session_id", "agent_id",
    }  # fmt: skip
    assert (started["request_id"], started["agent_id"]) == ("q1", "echo")
    assert {one["type"] for one in middle} == {"delta"}
    assert all(one.keys() == {"type", "ts", "seq", "event_id", "run_id", "text"} for one in middle)
    assert "".join(one["text"] for one in middle) == "word after word"
    assert done["usage"].keys() == {
        "total_tokens", "prompt_tokens", "completion_tokens", "duration_ms",
    }  # fmt: skip
    assert {one["run_id"] for one in heard} == {started["run_id"]}
    assert [one["seq"] for one in heard] == list(range(1, len(heard) + 1))
    assert len({one["event_id"] for one in heard}) == len(heard)
    assert all(isinstance(one["ts"], int) and one["ts"] > 1_600_000_000_000 for one in heard)


@requirement("001/invoke/same-request-id", "001/invoke/request-id-per-session")
async def test_a_request_id_starts_one_run_per_session(running: Running, client: Client) -> None:
    await client.invoke("once", request_id="again")
    first = await client.hear_until("done")
    await client.invoke("once", request_id="again")
    await client.invoke("other", request_id="fresh")
    second = await client.hear_until("done")
    assert second[0]["request_id"] == "fresh", "the repeated one started nothing"
    elsewhere = await running.connect(user="elsewhere")
    await elsewhere.invoke("once", request_id="again")
    third = await elsewhere.hear_until("done")
    assert len({heard[0]["run_id"] for heard in (first, second, third)}) == 3
    await elsewhere.close()


@requirement("001/invoke/same-request-id")
async def test_who_asks_again_on_a_new_connection_is_told_of_the_same_run(running: Running) -> None:
    user = f"again{next(numbers)}"
    client = await running.connect(user=user, client_meta=TOOLS)
    await client.invoke("well then " + LOOK, agent="script", request_id="once")
    first = await client.hear_until("tool_request")
    again = await running.connect(user=user, session_id=client.session_id)
    assert [await again.hear() for _ in first] == first, "what it missed, with the same ids"
    await again.invoke("well then " + LOOK, agent="script", request_id="once")
    again.last_seq = 0
    assert [await again.hear() for _ in first[:-1]] == first[:-1], "but no tool is asked for twice"
    ids = {"run_id": first[0]["run_id"], "tool_call_id": first[-1]["tool_call_id"]}
    await client.say("tool_result", **ids, ok=True, result="a door")
    rest = await client.hear_until("done")
    again.last_seq += 1
    assert await again.hear_until("done") == rest
    last = await running.connect(user=user, session_id=client.session_id, last_seq=rest[-1]["seq"])
    await last.invoke("well then " + LOOK, agent="script", request_id="once")
    whole = [json.loads(await last.socket.recv()) for _ in [*first[:-1], *rest]]
    assert whole == [*first[:-1], *rest]
    await last.invoke("and now", request_id="twice")
    assert await text_of_run(last) == "and now"
    for one in (client, again, last):
        await one.close()


@requirement("001/invoke/same-request-id-concurrent")
async def test_two_devices_with_one_request_id_start_one_run(running: Running) -> None:
    devices = await same_session(running, "twins", 2)
    await asyncio.gather(*(one.invoke("both", request_id="same") for one in devices))
    for device in devices:
        heard = await device.hear_until("done", "error")
        assert [one["type"] for one in heard].count("run_started") == 1
        await device.invoke("next", request_id="next")
    starts = [one for one in await devices[0].hear_until("done") if one["type"] == "run_started"]
    assert [one["request_id"] for one in starts] == ["next"]


@requirement("001/invoke/unknown-agent", "001/messages/error-echoes-ids", "001/codes/six-only")
async def test_an_unknown_agent_is_an_error_with_the_request_id(client: Client) -> None:
    await client.invoke("x", agent="nobody", request_id="q7")
    said = await refusal(client)
    assert said["request_id"] == "q7"
    assert said["code"] == ErrorCode.ORCHESTRATOR_ERROR
    assert said["detail"] == {"reason": "unknown_agent", "retry": False}
    assert "nobody" in said["message"]


@requirement("001/messages/optional-members")
async def test_members_that_the_seed_leaves_out_may_be_missing(running: Running) -> None:
    socket = await websockets.connect(running.ws)
    hello = {"type": "hello", "user_id": f"u{next(numbers)}", "api_key": API_KEY}
    await socket.send(json.dumps({**hello, "client_meta": TOOLS}))
    ack = json.loads(await asyncio.wait_for(socket.recv(), PATIENCE))
    client = Client(socket, ack["session_id"], ack)
    message = {"role": "user", "content": PAY}
    await socket.send(
        json.dumps({"type": "agent_invoke", "agent_id": "script", "message": message})
    )
    started = await client.hear()
    assert started["request_id"].startswith("req_")
    asked = (await client.hear_until("approval_required"))[-1]
    decision = {"type": "approval_decision", "approval_id": asked["approval_id"]}
    await socket.send(json.dumps({**decision, "decision": "approve"}))
    request = (await client.hear_until("tool_request"))[-1]
    result = {"type": "tool_result", "tool_call_id": request["tool_call_id"], "ok": True}
    await socket.send(json.dumps(result))
    assert (await client.hear_until("done", "error"))[-1]["type"] == "done"
    confirmed = [one["detail"] for one in client.confirmed]
    assert confirmed == [
        {"approval_id": asked["approval_id"], "decision": "approve"},
        {"tool_call_id": request["tool_call_id"], "accepted": True},
    ]
    assert {one["run_id"] for one in client.confirmed} == {started["run_id"]}
    await client.close()


@requirement("001/tools/result-confirmed", "001/approvals/decision-confirmed")
async def test_a_result_and_a_decision_are_confirmed_to_the_connection_that_sent_them(
    running: Running, client: Client
) -> None:
    other = await running.connect(session_id=client.session_id, user=client.user)
    asked = await ask_for_approval(client)
    ids = {"run_id": asked["run_id"], "approval_id": asked["approval_id"]}
    await client.say("approval_decision", **ids, decision="approve")
    confirmation = await client.confirmation()
    assert confirmation["detail"] == {"approval_id": asked["approval_id"], "decision": "approve"}
    request = (await other.hear_until("tool_request"))[-1]
    answer = {"run_id": asked["run_id"], "tool_call_id": request["tool_call_id"]}
    await client.say("tool_result", **answer, ok=True, result="paid")
    confirmation = await client.confirmation()
    assert confirmation["detail"] == {"tool_call_id": request["tool_call_id"], "accepted": True}
    assert confirmation["state"] in {"RUNNING", "DONE"}
    await other.hear_until("done")
    assert other.confirmed == []
    await other.close()


@requirement("001/resume/without-last-seq", "001/resume/text-so-far", "001/m5/short-reconnect")
async def test_a_client_that_knows_only_its_session_hears_what_it_missed(running: Running) -> None:
    user = f"recalled{next(numbers)}"
    client = await running.connect(user=user, client_meta=TOOLS)
    await client.invoke("one two three", request_id="ended")
    ended = await client.hear_until("done")
    await client.invoke("a word or two " + LOOK + PAY, agent="script", request_id="open")
    opened = await client.hear_until("tool_request")
    answered = {"run_id": opened[0]["run_id"], "tool_call_id": opened[-1]["tool_call_id"]}
    await client.say("tool_result", **answered, ok=True, result="a door")
    opened += await client.hear_until("approval_required")
    await client.socket.close()
    back = await running.connect(user=user, session_id=client.session_id)
    assert (back.ack["resumed"], back.ack["seq"]) == (True, client.last_seq)
    expected = [one for one in (*ended, *opened) if one["type"] not in ("delta", "tool_request")]
    deltas = [one for one in opened if one["type"] == "delta"]
    heard = [await back.receive() for _ in range(len(expected) + 1)]
    assert [one for one in heard if one["type"] != "delta"] == expected
    (text,) = [one for one in heard if one["type"] == "delta"]
    assert text["text"] == "".join(one["text"] for one in deltas)
    assert text.get("first_seq", text["seq"]) == deltas[0]["seq"]
    assert (text["seq"], text["event_id"]) == (deltas[-1]["seq"], deltas[-1]["event_id"])
    back.last_seq = back.ack["seq"]
    ids = {"run_id": opened[0]["run_id"], "approval_id": opened[-1]["approval_id"]}
    await back.say("approval_decision", **ids, decision="reject")
    assert (await back.hear_until("done", "error"))[-1]["run_id"] == opened[0]["run_id"]
    for one in (client, back):
        await one.close()


@requirement("001/invoke/other-session-refused")
async def test_an_invoke_for_another_session_starts_nothing(client: Client) -> None:
    await client.say(
        "agent_invoke",
        request_id="q",
        agent_id="echo",
        session_id="sess_other",
        message={"role": "user", "content": "x"},
    )
    assert (await refusal(client))["code"] == ErrorCode.SESSION_NOT_FOUND
    await client.invoke("mine", request_id="q")
    assert (await client.hear())["seq"] == 1


# Devices


@requirement(
    "001/devices/every-event-to-all",
    "001/m5/multi-device",
    "001/devices/one-leaves",
    "001/devices/sessions-apart",
)
async def test_every_device_of_a_session_hears_every_event_and_no_other(running: Running) -> None:
    devices = await same_session(running, "many", 3)
    stranger = await running.connect(user="stranger")
    await devices[0].invoke("for all of us", request_id="a")
    heard = [await device.hear_until("done") for device in devices]
    assert heard[0] == heard[1] == heard[2]
    await devices[2].close()
    await devices[1].invoke("for the two of us", request_id="b")
    assert await devices[0].hear_until("done") == await devices[1].hear_until("done")
    await stranger.invoke("mine", request_id="c")
    assert (await stranger.hear())["request_id"] == "c"


# The client's tools


@requirement(
    "001/m2/tool-request",
    "001/m2/tool-result-continues",
    "001/tools/request-delivered",
    "001/tools/result-ok",
    "001/tools/result-resumes-run",
    "001/tools/client-tools-in-hello",
    "001/tools/deadline",
    "001/events/tool-request",
    "001/devices/tool-request-to-all",
    "001/devices/others-learn",
    "001/tools/first-wins",
    "001/tools/duplicate-answered",
    "001/states/tool-call-runs",
)
async def test_a_tool_runs_on_the_device_that_answers_first(running: Running) -> None:
    one, two = await same_session(running, "tools", 2)
    await one.invoke(LOOK, agent="script")
    asked = [(await device.hear_until("tool_request"))[-1] for device in (one, two)]
    assert asked[0] == asked[1]
    request = asked[0]
    assert request.keys() == {
        "type", "ts", "seq", "event_id", "run_id", "tool_call_id", "tool_name", "args",
        "deadline_ts",
    }  # fmt: skip
    assert (request["tool_name"], request["args"]) == ("desk.look", {"at": "door"})
    assert abs(request["deadline_ts"] - request["ts"] - 60_000) < 2_000
    answer = {"run_id": request["run_id"], "tool_call_id": request["tool_call_id"], "ok": True}
    await two.say("tool_result", **answer, result={"seen": "a cat"})
    for device in (one, two):
        assert "a cat" in await text_of_run(device), "both learn that it was settled"
    await one.say("tool_result", **answer, result={"seen": "a dog"})
    late = await refusal(one)
    assert late["run_id"] == request["run_id"]
    run = await run_status(running, request["run_id"])
    assert "a cat" in run["output"]
    assert run["tool_calls"][0]["status"] == "SUCCEEDED"


@requirement("001/tools/result-not-ok", "001/tools/result-error-forms")
@pytest.mark.parametrize("error", ["it is dark", {"code": "dark", "message": "it is dark"}])
async def test_a_tool_that_fails_is_told_to_the_agent(
    running: Running, client: Client, error: Any
) -> None:
    await client.invoke(LOOK, agent="script")
    request = (await client.hear_until("tool_request"))[-1]
    await client.say(
        "tool_result",
        run_id=request["run_id"],
        tool_call_id=request["tool_call_id"],
        ok=False,
        error=error,
    )
    assert "it is dark" in await text_of_run(client)
    run = await run_status(running, request["run_id"])
    assert run["tool_calls"][0]["status"] == "FAILED"


@requirement("001/tools/not-yours", "001/tools/unknown-call", "001/tools/wrong-run")
async def test_a_result_for_what_is_not_ones_own_changes_nothing(
    running: Running, client: Client
) -> None:
    stranger = await running.connect(user="stranger", client_meta=TOOLS)
    await client.invoke(LOOK, agent="script", request_id="a")
    request = (await client.hear_until("tool_request"))[-1]
    await stranger.invoke(LOOK, agent="script", request_id="b")
    theirs = (await stranger.hear_until("tool_request"))[-1]
    run_id, call_id = request["run_id"], request["tool_call_id"]
    for run, call in ((run_id, call_id), (theirs["run_id"], call_id), (run_id, "tc_nowhere")):
        await stranger.say("tool_result", run_id=run, tool_call_id=call, ok=True, result="stolen")
        assert (await refusal(stranger))["run_id"] == run
    await client.say("tool_result", run_id=run_id, tool_call_id=call_id, ok=True, result="mine")
    assert "mine" in await text_of_run(client)


@requirement("001/tools/blocked", "001/tools/server-tools-policed", "001/states/tool-call-checked")
async def test_the_policy_stands_before_tools_of_the_server_and_of_the_client(
    running: Running, client: Client
) -> None:
    script = '[[tool:nuclear.launch {}]] [[tool:web.fetch {"url": "http://x/"}]] [[tool:echo {"text": "ok"}]]'
    await client.invoke(script, agent="script")
    heard = await client.hear_until("done", "error")
    text = "".join(one["text"] for one in heard if one["type"] == "delta")
    assert text.count("error blocked") == 2
    assert "echo: ok" in text
    run = await run_status(running, heard[0]["run_id"])
    assert [one["status"] for one in run["tool_calls"]] == ["BLOCKED", "BLOCKED", "SUCCEEDED"]


@requirement("001/tools/client-tools-by-api")
async def test_tools_can_be_registered_over_the_api(running: Running) -> None:
    client = await running.connect(user="by-api")
    url = f"{running.orchestrator}/internal/sessions/{client.session_id}/tools"
    tools = ["desk.look", {"name": "desk.point", "description": "Points at it"}]
    assert (await running.post(url, {"tools": tools}))[0] == 200
    assert (await running.post(url, {"tools": [5]}))[0] == 400
    await client.invoke(LOOK, agent="script")
    assert (await client.hear_until("tool_request"))[-1]["tool_name"] == "desk.look"


# Approvals


async def ask_for_approval(client: Client, request_id: str = "pay") -> dict[str, Any]:
    await client.invoke(PAY, agent="script", request_id=request_id)
    return (await client.hear_until("approval_required", "error"))[-1]


@requirement(
    "001/approvals/required-delivered",
    "001/approvals/approve",
    "001/approvals/any-case",
    "001/approvals/reason-optional",
    "001/approvals/state-event",
    "001/m3/approval-required",
    "001/m3/decision-continues",
    "001/m3/state-pushed",
    "001/events/approval-required",
    "001/events/state",
    "001/states/tool-call-waits",
)
@pytest.mark.parametrize("decision", ["approve", "APPROVE"])
async def test_an_approved_call_goes_to_the_device(
    running: Running, client: Client, decision: str
) -> None:
    asked = await ask_for_approval(client)
    assert asked.keys() >= {"run_id", "approval_id", "tool_call_id", "tool_name", "args_summary"}
    assert "100" in asked["args_summary"]
    run = await run_status(running, asked["run_id"])
    assert run["status"] == "PAUSED_WAITING_APPROVAL"
    assert run["tool_calls"][0]["status"] == "WAITING_APPROVAL"
    ids = {"run_id": asked["run_id"], "approval_id": asked["approval_id"]}
    await client.say("approval_decision", **ids, decision=decision)
    state = await client.hear()
    assert (state["type"], state["state"]) == ("state", "RUNNING")
    request = await client.hear()
    assert request["tool_call_id"] == asked["tool_call_id"]
    answer = {"run_id": asked["run_id"], "tool_call_id": asked["tool_call_id"]}
    await client.say("tool_result", **answer, ok=True, result="paid")
    assert "paid" in await text_of_run(client)


@requirement(
    "001/approvals/reject", "001/approvals/rejected-error", "001/m3/rejected",
    "001/approvals/decide-twice", "001/approvals/other-decision",
)  # fmt: skip
async def test_a_rejected_call_reaches_the_agent_as_rejected_and_stays_so(client: Client) -> None:
    asked = await ask_for_approval(client)
    ids = {"run_id": asked["run_id"], "approval_id": asked["approval_id"]}
    await client.say("approval_decision", **ids, decision="perhaps")
    assert (await refusal(client))["code"] == ErrorCode.INVALID_MESSAGE
    await client.say("approval_decision", **ids, decision="Reject", reason="too much")
    assert (await client.hear())["type"] == "state"
    assert "error rejected" in await text_of_run(client)
    await client.say("approval_decision", **ids, decision="approve")
    assert "rejected" in (await refusal(client))["message"]


@requirement("001/approvals/not-yours")
async def test_a_stranger_cannot_decide(running: Running, client: Client) -> None:
    asked = await ask_for_approval(client)
    stranger = await running.connect(user="stranger")
    ids = {"run_id": asked["run_id"], "approval_id": asked["approval_id"]}
    await stranger.say("approval_decision", **ids, decision="approve")
    assert (await refusal(stranger))["run_id"] == asked["run_id"]
    await client.say("approval_decision", **{**ids, "approval_id": "apr_no"}, decision="approve")
    await refusal(client)
    run = await run_status(running, asked["run_id"])
    assert run["status"] == "PAUSED_WAITING_APPROVAL"


@requirement("001/approvals/many-deciders", "001/states/compare-and-set")
async def test_of_64_deciders_one_wins_and_all_are_told_the_same(running: Running) -> None:
    devices = await same_session(running, "deciders", 64)
    asked = await ask_for_approval(devices[0])
    for device in devices[1:]:
        await device.hear_until("approval_required")
    ids = {"run_id": asked["run_id"], "approval_id": asked["approval_id"]}
    await asyncio.gather(
        *(
            device.say("approval_decision", **ids, decision="approve" if n % 2 else "reject")
            for n, device in enumerate(devices)
        )
    )
    answers = [await decided(device) for device in devices]
    states = [[one["state"] for one in heard if one["type"] == "state"] for heard in answers]
    assert all(one == ["RUNNING"] for one in states)
    refusals = [one["message"] for heard in answers for one in heard if one["type"] == "error"]
    confirmations = [one["detail"] for device in devices for one in device.confirmed]
    assert [one["approval_id"] for one in confirmations] == [asked["approval_id"]]
    assert len(refusals) == len(devices) - 1
    assert len(set(refusals)) == 1, "all who came too late are told the same"
    run = await run_status(running, asked["run_id"])
    approved = run["tool_calls"][0]["status"] == "DISPATCHED"
    assert ("approved" if approved else "rejected") in refusals[0]
    for device in devices:
        await device.close()


async def decided(device: Client) -> list[dict[str, Any]]:
    """All that a device hears until its own words have been answered and the decision told."""
    await device.say("cancel_run", run_id="run_nowhere")
    heard: list[dict[str, Any]] = []
    while True:
        message = await device.hear()
        if message.get("run_id") == "run_nowhere":
            break
        heard.append(message)
    while not any(one["type"] == "state" for one in heard):
        heard.append(await device.hear())
    return heard


# Cancelling


@requirement(
    "001/cancel/stops-run",
    "001/cancel/ends-with-done",
    "001/cancel/no-delta-after",
    "001/cancel/twice-is-once",
    "001/cancel/spelling",
    "001/cancel/stops-agent",
    "001/m4/cancel",
    "001/invoke/nothing-after-end",
)
async def test_a_cancelled_run_says_nothing_more(running: Running, client: Client) -> None:
    await client.invoke("0123456789" * 6000, request_id="long")
    started = await client.hear()
    await client.hear_until("delta")
    await client.say("cancel_run", run_id=started["run_id"])
    await client.say("cancel_run", run_id=started["run_id"])
    heard = await client.hear_until("error", "done")
    states = [one for one in heard if one["type"] == "state"]
    assert [(one["state"], one["detail"]) for one in states] == [
        ("CANCELLED", {"reason": "cancelled by the user"})
    ]
    after = [one["type"] for one in heard[[one["type"] for one in heard].index("state") :]]
    assert after == ["state", "done"]
    both = [await client.confirmation() for _ in range(2)]
    assert [one["state"] for one in both] == ["CANCELLED", "CANCELLED"]
    assert both[1]["detail"] == {"already": True}
    await client.invoke("next", request_id="next")
    rest = await client.hear_until("done")
    assert {one["run_id"] for one in rest} == {rest[0]["run_id"]} != {started["run_id"]}
    assert (await run_status(running, started["run_id"]))["status"] == "CANCELLED"


@requirement(
    "001/cancel/not-yours", "001/cancel/unknown-run", "001/cancel/finished-run",
    "001/cancel/confirmed",
)  # fmt: skip
async def test_only_ones_own_open_run_can_be_cancelled(running: Running, client: Client) -> None:
    stranger = await running.connect(user="stranger")
    await client.invoke(LOOK, agent="script")
    request = (await client.hear_until("tool_request"))[-1]
    for run_id in (request["run_id"], "run_nowhere"):
        await stranger.say("cancel_run", run_id=run_id)
        assert (await refusal(stranger))["run_id"] == run_id
    ids = {"run_id": request["run_id"], "tool_call_id": request["tool_call_id"]}
    await client.say("tool_result", **ids, ok=True, result="x")
    await client.hear_until("done")
    await client.say("cancel_run", run_id=request["run_id"])
    await client.invoke("next", request_id="next")
    assert (await client.hear())["request_id"] == "next"
    assert [one["detail"] for one in client.confirmed][-1] == {"already": True}
    assert client.confirmed[-1]["state"] == "DONE"
    assert (await run_status(running, request["run_id"]))["status"] == "DONE"


@requirement("001/cancel/while-waiting")
@pytest.mark.parametrize(("script", "until"), [(LOOK, "tool_request"), (PAY, "approval_required")])
async def test_a_run_that_waits_can_be_cancelled(client: Client, script: str, until: str) -> None:
    await client.invoke(script, agent="script")
    waiting = (await client.hear_until(until))[-1]
    await client.say("cancel_run", run_id=waiting["run_id"])
    heard = await client.hear_until("error", "done")
    assert (heard[-2]["state"], heard[-1]["type"]) == ("CANCELLED", "done")
    if until == "tool_request":
        ids = {"run_id": waiting["run_id"], "tool_call_id": waiting["tool_call_id"]}
        await client.say("tool_result", **ids, ok=True, result="late")
        await refusal(client)


@requirement("001/cancel/stops-tool")
async def test_cancelling_stops_the_tool_that_runs(running: Running, client: Client) -> None:
    await client.invoke('[[tool:shell {"command": "sleep 60"}]]', agent="script")
    started = await client.hear()

    async def is_running() -> bool:
        run = await run_status(running, started["run_id"])
        return [one["status"] for one in run.get("tool_calls", [])] == ["RUNNING"]

    await eventually(is_running)
    before = asyncio.get_running_loop().time()
    await client.say("cancel_run", run_id=started["run_id"])
    await client.hear_until("done")
    again = await running.connect(user=f"v{next(numbers)}")
    await again.invoke('[[tool:shell {"command": "sleep 0"}]]', agent="script")
    await again.hear_until("done")
    assert asyncio.get_running_loop().time() - before < 30


# What an orchestrator pushes, and what it can ask


@requirement("001/send/delivered", "001/send/all-connections", "001/m0/push",
             "001/handshake/hello-registers", "001/send/foreign-event")  # fmt: skip
async def test_a_pushed_event_reaches_every_device_with_a_number_of_the_session(
    running: Running,
) -> None:
    devices = await same_session(running, f"pushed{next(numbers)}", 2)
    event = {
        "type": "tool_request",
        "ts": 1704067200000,
        "run_id": "run_foreign",
        "tool_call_id": "tc_001",
        "tool_name": "browser.screenshot",
        "args": {"url": "https://example.com"},
    }
    body = {"session_id": devices[0].session_id, "event": event}
    assert await running.post(f"{running.internal}/internal/send", body) == (200, {"ok": True})
    for device in devices:
        heard = await device.hear()
        assert {**event, "ts": heard["ts"]}.items() <= heard.items()
        assert (heard["seq"], bool(heard["event_id"])) == (1, True)


@requirement(
    "001/send/offline", "001/send/offline-409", "001/codes/client-offline", "001/m2/offline-error"
)
async def test_a_push_to_nobody_is_told_client_offline(running: Running) -> None:
    client = await running.connect(user="leaver")
    await client.close()
    event = {"type": "delta", "ts": 1, "run_id": "r", "text": "x"}
    url = f"{running.internal}/internal/send"
    async with asyncio.timeout(PATIENCE):
        while True:
            status, said = await running.post(
                url, {"session_id": client.session_id, "event": event}
            )
            if status == 409:
                break
    why = f"session {client.session_id} has no active connections"
    assert said == {"ok": False, "error": "client_offline", "message": why}


@requirement("001/send/malformed", "001/send/unknown-run")
@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({}, 400),
        ({"session_id": "s"}, 400),
        ({"session_id": "s", "event": {"type": "nonsense", "ts": 1}}, 400),
        ({"session_id": "s", "event": {"type": "delta", "ts": 1}}, 400),
        ({"event": {"type": "delta", "ts": 1, "text": "x"}}, 400),
        ({"event": {"type": "delta", "ts": 1, "text": "x", "run_id": "run_no"}}, 409),
    ],
)
async def test_a_push_that_cannot_be_read_or_placed_is_refused(
    running: Running, body: dict[str, Any], expected: int
) -> None:
    status, said = await running.post(f"{running.internal}/internal/send", body)
    assert (status, said["ok"]) == (expected, False)


@requirement("001/send/by-run", "001/dispatch/run-to-session")
async def test_a_push_without_a_session_goes_to_the_runs_own(
    running: Running, client: Client
) -> None:
    await client.invoke(LOOK, agent="script")
    request = (await client.hear_until("tool_request"))[-1]
    event = {"type": "state", "ts": 1, "run_id": request["run_id"], "state": "THINKING"}
    status, _ = await running.post(f"{running.internal}/internal/send", {"event": event})
    assert status == 200
    if running.way == TOGETHER:  # apart, the run's own stream has the word
        assert (await client.hear())["state"] == "THINKING"


@requirement("001/send/token", "001/send/token-sent")
async def test_the_internal_api_wants_the_token(running: Running) -> None:
    async with aiohttp.ClientSession() as nobody:
        for url in (
            f"{running.internal}/internal/send",
            f"{running.orchestrator}/internal/invoke",
            f"{running.orchestrator}/internal/tool_calls/x/submit",
            f"{running.orchestrator}/internal/approvals/x/decide",
            f"{running.orchestrator}/internal/runs/x/cancel",
        ):
            for token in ("", f"Bearer {INTERNAL_TOKEN}x"):
                async with nobody.post(url, json={}, headers={"Authorization": token}) as answer:
                    assert answer.status == 401
        for url in (
            f"{running.internal}/internal/sessions/x/status",
            f"{running.orchestrator}/internal/runs/x",
            f"{running.orchestrator}/internal/runs/x/events/stream",
        ):
            async with nobody.get(url) as answer:
                assert answer.status == 401


@requirement(
    "001/status/online", "001/status/counts-devices", "001/status/unknown", "001/m5/status",
    "001/status/health-connections",
)  # fmt: skip
async def test_the_status_of_a_session_counts_its_devices(running: Running) -> None:
    unknown = {
        "session_id": "sess_no", "online": False, "connection_count": 0, "last_activity_at": None,
    }  # fmt: skip
    url = f"{running.internal}/internal/sessions"
    assert await running.get(f"{url}/sess_no/status") == (200, unknown)
    devices = await same_session(running, f"status{next(numbers)}", 2)
    session_id = devices[0].session_id
    _, status = await running.get(f"{url}/{session_id}/status")
    assert (status["online"], status["connection_count"]) == (True, 2)
    assert isinstance(status["last_activity_at"], int)
    _, health = await running.get(f"{running.internal}/health")
    assert health["status"] == "healthy"
    assert isinstance(health["connections"], int)
    assert health["connections"] >= 2
    for device in devices:
        await device.close()

    async def is_offline() -> bool:
        return (await running.get(f"{url}/{session_id}/status"))[1]["online"] is False

    await eventually(is_offline)
    _, status = await running.get(f"{url}/{session_id}/status")
    assert (status["connection_count"], type(status["last_activity_at"])) == (0, int)


# Coming back


@requirement("001/resume/missed-events", "001/resume/same-epoch", "001/m5/short-reconnect")
async def test_who_comes_back_gets_what_it_missed(running: Running) -> None:
    user = f"back{next(numbers)}"
    client = await running.connect(user=user)
    watcher = await running.connect(user=user, session_id=client.session_id)
    await client.invoke("some words to miss", request_id="a")
    first = [await client.hear() for _ in range(2)]
    await client.close()
    whole = await watcher.hear_until("done")
    again = await running.connect(
        user=user, session_id=client.session_id, last_seq=2, epoch=client.ack["epoch"]
    )
    assert (again.ack["resumed"], again.ack["seq"]) == (True, len(whole))
    assert first + await again.hear_until("done") == whole


@requirement(
    "001/resume/other-epoch", "001/resume/gap-too-old", "001/resume/snapshot",
)  # fmt: skip
@pytest.mark.parametrize("lost", [{"epoch": "ep_other", "last_seq": 1}, {"last_seq": 10_000}])
async def test_where_no_replay_is_possible_a_snapshot_follows(
    running: Running, client: Client, lost: dict[str, Any]
) -> None:
    user = f"snap{next(numbers)}"
    client = await running.connect(user=user, client_meta=TOOLS)
    await client.invoke(LOOK, agent="script", request_id="a")
    request = (await client.hear_until("tool_request"))[-1]
    asked = await ask_for_approval(client, "b")
    again = await running.connect(user=user, session_id=client.session_id, **lost)
    assert (again.ack["resumed"], again.ack["seq"]) == (False, client.last_seq)
    snapshot = [await again.hear() for _ in range(4)]
    by_type = {one["type"]: one for one in snapshot}
    assert [one["type"] for one in snapshot].count("state") == 2
    assert by_type["tool_request"]["tool_call_id"] == request["tool_call_id"]
    assert by_type["approval_required"]["approval_id"] == asked["approval_id"]
    assert not any("seq" in one for one in snapshot)


# The orchestrator's own API


@requirement(
    "001/orchestrator/invoke-sse",
    "001/orchestrator/invoke-sse-first",
    "001/orchestrator/invoke-sse-last",
    "001/orchestrator/invoke-message-names",
    "001/orchestrator/events-stream",
)
@pytest.mark.parametrize("name", ["message", "input_message"])
async def test_an_invoke_can_be_read_as_a_stream(running: Running, name: str) -> None:
    session_id = f"api{next(numbers)}"
    body = {"session_id": session_id, "agent_id": "echo", name: {"role": "user", "content": "hi"}}
    url = f"{running.orchestrator}/internal/invoke"
    async with running.http.post(url, json=body, headers={"Accept": "text/event-stream"}) as said:
        assert said.content_type == "text/event-stream"
        events = [json.loads(line[6:]) async for line in said.content if line.startswith(b"data:")]
    assert [one["type"] for one in events] == ["run_started", "delta", "done"]
    events_url = f"{running.orchestrator}/internal/runs/{events[0]['run_id']}/events/stream"
    async with running.http.get(f"{events_url}?after={events[0]['seq']}") as rest:
        more = [json.loads(line[6:]) async for line in rest.content if line.startswith(b"data:")]
    assert more == events[1:]


@pytest.mark.parametrize("after", ["\u00b2", "9" * 19, "9" * 5000, "-1", "x"])
async def test_a_stream_is_not_read_from_what_is_no_number(
    running: Running, client: Client, after: str
) -> None:
    await client.invoke("hi", request_id=f"n{next(numbers)}")
    run_id = (await client.hear_until("done"))[-1]["run_id"]
    url = f"{running.orchestrator}/internal/runs/{run_id}/events/stream"
    async with running.http.get(url, params={"after": after}) as said:
        assert (said.status, (await said.json())["error"]) == (400, "invalid_request")


@pytest.mark.parametrize("endpoint", ["http://[::1", "http://agent:123456", "ftp://agent"])
async def test_an_agent_is_not_registered_where_it_cannot_be(
    running: Running, endpoint: str
) -> None:
    url = f"{running.orchestrator}/internal/agents"
    status, said = await running.post(url, {"agent_id": "nowhere", "endpoint": endpoint})
    assert (status, said["error"]) == (400, "invalid_request")


@requirement("001/orchestrator/invoke-json", "001/orchestrator/invoke-request-id",
             "001/orchestrator/get-run")  # fmt: skip
async def test_an_invoke_without_accept_is_answered_at_once(running: Running) -> None:
    session_id = f"api{next(numbers)}"
    message = {"role": "user", "content": "hi"}
    body = {"session_id": session_id, "agent_id": "echo", "message": message, "request_id": "q"}
    url = f"{running.orchestrator}/internal/invoke"
    status, accepted = await running.post(url, body)
    assert status == 200
    assert accepted.keys() == {"run_id", "session_id", "agent_id"}
    assert await running.post(url, body) == (200, accepted)

    async def is_done() -> bool:
        return bool((await run_status(running, str(accepted["run_id"])))["status"] == "DONE")

    await eventually(is_done)
    assert (await run_status(running, str(accepted["run_id"])))["output"] == "hi"


@requirement("001/orchestrator/invoke-malformed")
@pytest.mark.parametrize(
    "body",
    [{}, [], {"session_id": "s", "agent_id": "echo"}, {"session_id": "", "agent_id": "echo"},
     {"session_id": "s", "agent_id": "echo", "message": {"role": "user"}}],
)  # fmt: skip
async def test_a_malformed_invoke_is_400(running: Running, body: Any) -> None:
    status, said = await running.post(f"{running.orchestrator}/internal/invoke", body)
    assert (status, said["error"]) == (400, "invalid_request")


@requirement(
    "001/orchestrator/submit",
    "001/orchestrator/submit-terminal",
    "001/orchestrator/submit-unknown",
    "001/orchestrator/submit-status",
    "001/dispatch/submit-tool-result",
)
async def test_results_can_be_submitted_over_http_and_the_first_stands(
    running: Running, client: Client
) -> None:
    await client.invoke(LOOK, agent="script")
    request = (await client.hear_until("tool_request"))[-1]
    url = f"{running.orchestrator}/internal/tool_calls/{request['tool_call_id']}/submit"
    assert (await running.post(url, {"status": "RUNNING"}))[0] == 400
    first = await running.post(url, {"status": "SUCCEEDED", "result": "one"})
    assert (first[0], first[1]["status"]) == (200, "SUCCEEDED")
    second = await running.post(url, {"status": "FAILED", "error": "two"})
    assert (second[0], second[1]["status"], second[1]["result"]) == (200, "SUCCEEDED", "one")
    unknown = f"{running.orchestrator}/internal/tool_calls/tc_no/submit"
    assert (await running.post(unknown, {"status": "SUCCEEDED"}))[0] == 404
    assert "one" in await text_of_run(client)


@requirement(
    "001/orchestrator/decide",
    "001/orchestrator/decide-alias",
    "001/orchestrator/decide-unknown",
    "001/dispatch/submit-decision",
)
@pytest.mark.parametrize("path", ["decide", "submit"])
async def test_approvals_can_be_decided_over_http(
    running: Running, client: Client, path: str
) -> None:
    asked = await ask_for_approval(client)
    url = f"{running.orchestrator}/internal/approvals"
    body = {"decision": "reject", "reason": "no", "decided_by": "the operator"}
    status, said = await running.post(f"{url}/{asked['approval_id']}/{path}", body)
    assert (status, said["status"], said["run_id"]) == (200, "REJECTED", asked["run_id"])
    status, said = await running.post(
        f"{url}/{asked['approval_id']}/{path}", {"decision": "approve"}
    )
    assert (status, said["status"]) == (200, "REJECTED")
    assert (await running.post(f"{url}/apr_no/{path}", body))[0] == 404
    assert "error rejected" in await text_of_run(client)


async def test_an_approval_is_closed_with_its_cancelled_run(
    running: Running, client: Client
) -> None:
    asked = await ask_for_approval(client)
    await client.say("cancel_run", run_id=asked["run_id"])
    await client.hear_until("done")
    ids = {"run_id": asked["run_id"], "approval_id": asked["approval_id"]}
    await client.say("approval_decision", **ids, decision="approve")
    told = (await refusal(client))["message"]  # an ingress of its own knows only of the run
    assert "rejected already" in told or "has ended" in told
    url = f"{running.orchestrator}/internal/approvals/{asked['approval_id']}/decide"
    status, said = await running.post(url, {"decision": "approve"})
    assert (status, said["status"]) == (200, "REJECTED")


@requirement(
    "001/orchestrator/cancel", "001/orchestrator/cancel-unknown", "001/dispatch/submit-cancel"
)
async def test_runs_can_be_cancelled_over_http(running: Running, client: Client) -> None:
    await client.invoke(LOOK, agent="script")
    request = (await client.hear_until("tool_request"))[-1]
    url = f"{running.orchestrator}/internal/runs"
    status, said = await running.post(f"{url}/{request['run_id']}/cancel", {})
    assert (status, said["status"], said["cancelled"]) == (200, "CANCELLED", True)
    assert (await running.post(f"{url}/run_no/cancel", {}))[0] == 404
    assert (await client.hear_until("done"))[-2]["state"] == "CANCELLED"
