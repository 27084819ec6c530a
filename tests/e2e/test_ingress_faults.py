"""What goes wrong between a client and the ingress: time, silence, slowness, absence, cuts."""

import asyncio
import json
import random
import resource
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import websockets

from tests.e2e.harness import PATIENCE, Client
from tests.e2e.malformed import RULES, malformed_frames
from tests.e2e.raw import CLOSE, PING, TEXT, Raw, frame, raw_client
from tests.e2e.ways import API_KEY, TOGETHER, Running, eventually, installed
from toolgate.contracts.ingress_v1 import CloseCode, ErrorCode

requirement = pytest.mark.requirement

TOOLS = {"tools": ["desk.look", "payments.transfer"]}
LOOK = "[[tool:desk.look {}]] after"
PAY = "[[tool:payments.transfer {}]] after"
BOUND_S = 40.0  # for the largest crowds
HELLO = {"type": "hello", "ts": 1, "user_id": "u1", "api_key": API_KEY}


async def text_of_run(client: Client) -> str:
    heard = await client.hear_until("done", "error")
    return "".join(one["text"] for one in heard if one["type"] == "delta")


async def run_of(running: Running, run_id: str) -> dict[str, Any]:
    return (await running.get(f"{running.orchestrator}/internal/runs/{run_id}"))[1]


# Time


@requirement("001/tools/timeout", "001/m2/deadline", "001/agents/timeout")
async def test_a_tool_and_an_agent_have_their_time_and_no_more(tmp_path: Path) -> None:
    async with installed(TOGETHER, tmp_path, TOOL_TIMEOUT_MS="150") as running:
        client = await running.connect(client_meta=TOOLS)
        await client.invoke(LOOK, agent="script")
        request = (await client.hear_until("tool_request"))[-1]
        assert "error tool_timeout" in await text_of_run(client)
        assert (await run_of(running, request["run_id"]))["tool_calls"][0]["status"] == "TIMEOUT"
        ids = {"run_id": request["run_id"], "tool_call_id": request["tool_call_id"]}
        await client.say("tool_result", **ids, ok=True, result="too late")
        assert (await client.hear())["type"] == "error"
    async with installed(TOGETHER, tmp_path / "2", AGENT_TIMEOUT_MS="150") as running:
        client = await running.connect(client_meta=TOOLS)
        await client.invoke(LOOK, agent="script")
        ended = (await client.hear_until("error", "done"))[-1]
        assert ended["detail"] == {"reason": "agent_timeout"}
        assert (await run_of(running, ended["run_id"]))["status"] == "FAILED"


@requirement("001/approvals/expires")
async def test_an_approval_expires_and_a_persons_time_is_not_the_agents(tmp_path: Path) -> None:
    async with installed(
        TOGETHER, tmp_path, APPROVAL_TIMEOUT_MS="1500", AGENT_TIMEOUT_MS="1000"
    ) as running:
        client = await running.connect(client_meta=TOOLS)
        await client.invoke(PAY, agent="script")
        asked = (await client.hear_until("approval_required"))[-1]
        assert "error approval_timeout" in await text_of_run(client)
        ids = {"run_id": asked["run_id"], "approval_id": asked["approval_id"]}
        await client.say("approval_decision", **ids, decision="approve")
        assert "expired" in (await client.hear())["message"]


# Silence


@requirement("001/handshake/hello-in-time", "001/handshake/hello-wrong-key")
async def test_a_client_that_never_says_hello_is_closed(tmp_path: Path) -> None:
    async with installed(TOGETHER, tmp_path) as running:
        ingress = running.ingress()
        ingress.options = type(ingress.options)(
            max_message_bytes=1024, write_wait_ms=1000, hello_wait_ms=100
        )
        socket = await websockets.connect(running.ws)
        await asyncio.wait_for(socket.wait_closed(), PATIENCE)
        assert socket.close_code == CloseCode.UNAUTHENTICATED


@requirement(
    "001/connection/ping",
    "001/connection/pong-wait",
    "001/connection/alive-by-pong",
    "001/connection/half-open",
    "001/m0/heartbeat",
    "001/connection/closed",
)
async def test_who_answers_pings_stays_and_who_does_not_goes(tmp_path: Path) -> None:
    async with installed(
        TOGETHER, tmp_path, WS_PING_INTERVAL_MS="50", WS_PONG_WAIT_MS="3000"
    ) as running:
        alive = await running.connect(user="alive")
        async with raw_client(running.ws) as silent:
            silent.send_text(json.dumps(HELLO))
            frames = [await silent.receive() for _ in range(3)]
            assert [opcode for opcode, _ in frames] == [TEXT, PING, PING]
            while (last := await silent.receive())[0] == PING:
                pass
            assert last[0] == CLOSE
            assert int.from_bytes(last[1][:2], "big") == CloseCode.PONG_TIMEOUT
            await silent.until_cut()

        async def one_is_left() -> bool:
            return (await running.get(f"{running.internal}/health"))[1]["connections"] == 1

        await eventually(one_is_left)
        await alive.invoke("still here")
        assert await text_of_run(alive) == "still here"


# Absence


@requirement("001/offline/fails-at-once", "001/offline/window-off", "001/codes/client-offline")
async def test_without_a_window_a_request_to_nobody_fails_at_once(tmp_path: Path) -> None:
    settings = {"RESUME_WINDOW_MS": "0", "ON_DISCONNECT": "keep"}
    async with installed(TOGETHER, tmp_path, **settings) as running:
        run_id, client = await leave_before_the_tool(running)
        await ended(running, run_id)
        run = await run_of(running, run_id)
        assert "error client_offline" in run["output"]
        assert client.session_id == run["session_id"]
        (call,) = run["tool_calls"]
        assert await outcome_of(running, call["tool_call_id"]) == "not_started", "nobody had it"


async def outcome_of(running: Running, call_id: str) -> str:
    """How a call ended, as the evidence has it."""
    records = await running.ingress().journal.read("evidence", subject=call_id)
    last = json.loads(records[-1].data.split(b"\n")[0])
    return str(last["fields"].get("outcome", last["kind"]))


async def test_a_call_that_a_device_has_when_its_run_is_cancelled_has_an_outcome(
    tmp_path: Path,
) -> None:
    async with installed(TOGETHER, tmp_path) as running:
        client = await running.connect(client_meta=TOOLS)
        await client.invoke(LOOK, agent="script")
        request = (await client.hear_until("tool_request"))[-1]
        await client.say("cancel_run", run_id=request["run_id"])
        await client.hear_until("done")
        assert await outcome_of(running, request["tool_call_id"]) == "may_have_executed"
        ids = {"run_id": request["run_id"], "tool_call_id": request["tool_call_id"]}
        await client.say("tool_result", **ids, ok=True, result="too late")
        assert "ended" in (await client.hear())["message"]


@requirement("001/offline/window-waits", "001/offline/window-returns")
async def test_who_is_back_within_the_window_gets_the_waiting_request(tmp_path: Path) -> None:
    async with installed(TOGETHER, tmp_path, RESUME_WINDOW_MS="20000") as running:
        run_id, client = await leave_before_the_tool(running)

        async def waits() -> bool:
            return bool((await run_of(running, run_id))["status"] == "PAUSED_WAITING_TOOL")

        await eventually(waits)
        again = await running.connect(session_id=client.session_id, last_seq=client.last_seq)
        request = (await again.hear_until("tool_request"))[-1]
        ids = {"run_id": run_id, "tool_call_id": request["tool_call_id"]}
        await again.say("tool_result", **ids, ok=True, result="back in time")
        assert "back in time" in await text_of_run(again)


@pytest.mark.parametrize("way", ["together", "apart"])
async def test_who_comes_back_and_knows_no_number_is_told_what_waits(
    tmp_path: Path, way: str
) -> None:
    async with installed(way, tmp_path, RESUME_WINDOW_MS="20000") as running:
        run_id, client = await leave_before_the_tool(running)

        async def waits() -> bool:
            return bool((await run_of(running, run_id))["status"] == "PAUSED_WAITING_TOOL")

        await eventually(waits)
        again = await running.connect(session_id=client.session_id)
        request = (await again.hear_until("tool_request"))[-1]
        ids = {"run_id": run_id, "tool_call_id": request["tool_call_id"]}
        await again.say("tool_result", **ids, ok=True, result="found again")
        assert "found again" in await text_of_run(again)


async def leave_before_the_tool(running: Running) -> tuple[str, Client]:
    """A client that goes as soon as its run has started, well before the tool is asked for."""
    client = await running.connect(client_meta=TOOLS)
    await client.invoke("0123456789" * 200 + LOOK, agent="script")
    started = await client.hear()
    client.socket.transport.abort()
    return started["run_id"], client


async def ended(running: Running, run_id: str) -> None:
    async def has_ended() -> bool:
        return (await run_of(running, run_id))["status"] in {"DONE", "FAILED", "CANCELLED"}

    await eventually(has_ended)


@requirement(
    "001/offline/runs-cancelled", "001/m4/cleanup", "001/m4/orchestrator-told",
    "001/offline/one-device-left", "001/offline/runs-kept",
)  # fmt: skip
@pytest.mark.parametrize("way", ["together", "apart"])
async def test_the_runs_of_a_session_that_stays_away_are_cancelled_or_kept(
    tmp_path: Path, way: str
) -> None:
    async with installed(way, tmp_path, RESUME_WINDOW_MS="150") as running:
        client = await running.connect(client_meta=TOOLS)
        other = await running.connect(session_id=client.session_id)
        await client.invoke(LOOK + PAY, agent="script")
        request = (await client.hear_until("tool_request"))[-1]
        await client.close()
        await asyncio.sleep(0.4)  # longer than the window: nothing may happen while one is left
        assert (await run_of(running, request["run_id"]))["status"] == "PAUSED_WAITING_TOOL"
        await other.close()
        await ended(running, request["run_id"])
        assert (await run_of(running, request["run_id"]))["status"] == "CANCELLED"
    settings = {"RESUME_WINDOW_MS": "50", "ON_DISCONNECT": "keep", "TOOL_TIMEOUT_MS": "500"}
    async with installed(way, tmp_path / "2", **settings) as running:
        client = await running.connect(client_meta=TOOLS)
        await client.invoke(LOOK, agent="script")
        request = (await client.hear_until("tool_request"))[-1]
        await client.close()
        await ended(running, request["run_id"])
        assert (await run_of(running, request["run_id"]))["status"] == "DONE"


async def test_stopping_the_server_cancels_no_run(tmp_path: Path) -> None:
    async with installed(TOGETHER, tmp_path, RESUME_WINDOW_MS="0") as running:
        client = await running.connect(client_meta=TOOLS)
        await client.invoke(LOOK, agent="script")
        request = (await client.hear_until("tool_request"))[-1]
    async with installed(TOGETHER, tmp_path, RESUME_WINDOW_MS="20000") as running:
        run = await run_of(running, request["run_id"])
        assert run["status"] == "PAUSED_WAITING_TOOL"


# Slowness


@requirement(
    "001/connection/slow-consumer-closed",
    "001/connection/slow-consumer-alone",
    "001/connection/slow-consumer-returns",
    "001/resume/lagging-merged",
    "001/resume/never-dropped",
    "001/messages/seq-merged",
)
async def test_a_stalled_reader_is_closed_alone_and_comes_back_without_loss(
    tmp_path: Path,
) -> None:
    async with (
        installed(TOGETHER, tmp_path, WS_WRITE_WAIT_MS="15000") as running,
        raw_client(running.ws, receive_buffer=4096) as stalled,
    ):
        user = "slow"
        fast = await running.connect(user=user)
        hello = {**HELLO, "user_id": user, "session_id": fast.session_id, "last_seq": 0}
        stalled.send_text(json.dumps(hello))
        assert (await stalled.receive())[0] == TEXT
        stalled.stop_reading()
        whole: list[dict[str, Any]] = []
        await fast.invoke("x" * 60_000, agent="script")
        whole += await fast.hear_until("done")
        for _ in range(12):  # far more than the kernel's buffers and our 4 MiB hold
            push = {"type": "state", "ts": 1, "run_id": "r", "state": "y" * 900_000}
            body = {"session_id": fast.session_id, "event": push}
            assert (await running.post(f"{running.internal}/internal/send", body))[0] == 200
            whole.append(await fast.hear())
        stalled.read_on()
        seen = 0
        while (frame := await stalled.receive())[0] != CLOSE:
            if frame[0] == TEXT:
                event = json.loads(frame[1])
                assert event.get("first_seq", event["seq"]) == seen + 1
                seen = event["seq"]
        assert int.from_bytes(frame[1][:2], "big") == CloseCode.SLOW_CONSUMER
        assert seen < len(whole)
        again = await running.connect(user=user, session_id=fast.session_id, last_seq=seen)
        rest = [await again.hear() for _ in range(len(whole) - seen)]
        assert rest == whole[seen:]


@requirement("001/resume/lagging-merged", "001/messages/seq-merged")
async def test_a_reader_that_lags_is_given_its_deltas_joined(tmp_path: Path) -> None:
    async with (
        installed(TOGETHER, tmp_path, WS_WRITE_WAIT_MS="20000") as running,
        raw_client(running.ws, receive_buffer=4096) as slow,
    ):
        fast = await running.connect(user="slow")
        hello = {**HELLO, "user_id": "slow", "session_id": fast.session_id, "last_seq": 0}
        slow.send_text(json.dumps(hello))
        await slow.receive()
        slow.stop_reading()
        big = {"type": "delta", "ts": 1, "run_id": "fill", "text": "y" * 900_000}
        send = f"{running.internal}/internal/send"
        for _ in range(7):  # fills the kernel's buffers, so that what follows must wait
            await running.post(send, {"session_id": fast.session_id, "event": big})
            await fast.hear()
        await fast.invoke("0123456789" * 60)
        whole = await fast.hear_until("done")
        slow.read_on()
        events: list[dict[str, Any]] = []
        while not events or events[-1]["type"] != "done":
            opcode, payload = await slow.receive()
            if opcode == TEXT:
                events.append(json.loads(payload))
        number = 0
        for event in events:
            assert event.get("first_seq", event["seq"]) == number + 1
            number = event["seq"]
        assert len(events) < len(whole) + 7, "deltas were joined"
        joined = [one for one in events if "first_seq" in one]
        assert joined
        assert {one["type"] for one in joined} == {"delta"}
        text = "".join(one["text"] for one in events if one["run_id"] == whole[0]["run_id"]
                       and one["type"] == "delta")  # fmt: skip
        assert text == "0123456789" * 60


@requirement("001/resume/lagging-merged", "001/messages/seq-merged")
async def test_a_reader_that_lags_is_given_a_tool_s_updates_joined_and_uncut(
    tmp_path: Path,
) -> None:
    async with (
        installed(TOGETHER, tmp_path, WS_WRITE_WAIT_MS="20000") as running,
        raw_client(running.ws, receive_buffer=4096) as slow,
    ):
        fast = await running.connect(user="slow")
        hello = {**HELLO, "user_id": "slow", "session_id": fast.session_id, "last_seq": 0}
        slow.send_text(json.dumps(hello))
        await slow.receive()
        slow.stop_reading()
        send = f"{running.internal}/internal/send"

        async def push(event: dict[str, Any]) -> None:
            await running.post(send, {"session_id": fast.session_id, "event": {"ts": 1, **event}})
            await fast.hear()

        for _ in range(7):  # fills the kernel's buffers, so that what follows must wait
            await push({"type": "delta", "run_id": "fill", "text": "y" * 900_000})
        for number in range(2_000):  # more than may wait, were each of them counted
            detail = {"tool_call_id": "tc_1", "delta": f"{number}\n", "at": "now"}
            await push({"type": "state", "run_id": "r", "state": "RUNNING", "detail": detail})
        await push({"type": "done", "run_id": "r", "usage": {}})
        slow.read_on()
        events: list[dict[str, Any]] = []
        while not events or events[-1]["type"] != "done":
            opcode, payload = await slow.receive()
            assert opcode == TEXT, "it is not closed"
            events.append(json.loads(payload))
        updates = [one for one in events if one["type"] == "state"]
        assert len(updates) < 2_000
        assert any("first_seq" in one for one in updates)
        said = "".join(one["detail"]["delta"] for one in updates)
        assert said == "".join(f"{number}\n" for number in range(2_000))


@requirement("001/connection/write-wait", "001/connection/closed")
async def test_a_write_that_takes_too_long_closes_the_connection(tmp_path: Path) -> None:
    async with (
        installed(TOGETHER, tmp_path, WS_WRITE_WAIT_MS="100") as running,
        raw_client(running.ws, receive_buffer=4096) as stalled,
    ):
        stalled.send_text(json.dumps(HELLO))
        ack = json.loads((await stalled.receive())[1])
        stalled.stop_reading()
        push = {"type": "state", "ts": 1, "run_id": "r", "state": "y" * 900_000}
        for _ in range(4):  # less than what may wait, more than the kernel's buffers hold
            body = {"session_id": ack["session_id"], "event": push}
            status, _ = await running.post(f"{running.internal}/internal/send", body)
            if status == 409:
                break

        async def nobody_is_left() -> bool:
            return (await running.get(f"{running.internal}/health"))[1]["connections"] == 0

        await eventually(nobody_is_left)


# Cuts


@pytest.mark.timeout(120)
@requirement("001/resume/cut-anywhere", "001/resume/no-gap-to-live")
async def test_a_cut_at_every_event_boundary_of_a_run_loses_repeats_and_disorders_nothing(
    tmp_path: Path,
) -> None:
    """301 devices hear one run as it happens; each is cut off at another boundary and comes back."""
    count = 300
    text = "".join(chr(97 + n % 26) for n in range((count - 2) * 5))
    back_before_the_end: set[int] = set()
    async with installed(TOGETHER, tmp_path) as running:
        watcher = await running.connect(user="cut")

        async def come(last_seq: int) -> tuple[Raw, int]:
            hello = {"user_id": "cut", "session_id": watcher.session_id, "last_seq": last_seq}
            raw = await Raw.open(running.ws, patience=BOUND_S)
            raw.send_text(json.dumps({**HELLO, **hello}))
            ack = json.loads((await raw.receive_many(1, patience=BOUND_S))[0])
            assert ack["resumed"] is True
            return raw, ack["seq"]

        async def hear(raw: Raw, number: int) -> list[bytes]:
            try:
                return await raw.receive_many(number, patience=BOUND_S)
            finally:
                await raw.close()

        async def cut_at(boundary: int, raw: Raw) -> list[bytes]:
            """Hear up to a boundary, vanish, come back, hear the rest."""
            heard = await hear(raw, boundary)
            again, reached = await come(boundary)
            if reached < count:
                back_before_the_end.add(boundary)
            return heard + await hear(again, count - boundary)

        devices = [await come(0) for _ in range(count + 1)]
        live = [
            asyncio.create_task(cut_at(boundary, raw)) for boundary, (raw, _) in enumerate(devices)
        ]
        await watcher.invoke(text)
        whole = await watcher.hear_until("done")
        assert len(whole) == count
        for heard in await asyncio.gather(*live):
            assert [json.loads(one) for one in heard] == whole
        # The last ones are cut off when there is hardly anything left to come.
        assert len(back_before_the_end) > count / 2, sorted(back_before_the_end)
        for boundary in range(count + 1):  # and once more when it is over
            again, _ = await come(boundary)
            assert [json.loads(one) for one in await hear(again, count - boundary)] == whole[
                boundary:
            ]


ASKS = {"tool_request": "tool_call_id", "approval_required": "approval_id"}


@dataclass
class Leaver:
    """One device that hears a run, answers what it asks for, and can leave after any event."""

    running: Running
    user: str
    session: dict[str, Any] = field(default_factory=dict)
    heard: list[dict[str, Any]] = field(default_factory=list)  # on all connections
    answers: dict[str, tuple[str, dict[str, Any]]] = field(default_factory=dict)  # by event_id

    async def hear_some(self, most: int) -> None:
        client = await self.running.connect(user=self.user, client_meta=TOOLS)
        self.session = {"session_id": client.session_id}
        await client.invoke("a word or two " + LOOK + PAY, agent="script")
        for _ in range(most):
            await self._take(client, await client.hear())
        client.socket.transport.abort()

    async def hear_rest(self, **hello: int) -> list[dict[str, Any]]:
        """Come back, and repeat every answer, since it may not have arrived."""
        client = await self.running.connect(
            user=self.user, client_meta=TOOLS, **self.session, **hello
        )
        assert client.ack["resumed"] is True
        for kind, members in self.answers.values():
            await client.say(kind, **members)
        rest: list[dict[str, Any]] = []
        while not (rest and rest[-1]["type"] == "done"):
            message = await client.hear()
            if "seq" in message:
                rest.append(message)
                await self._take(client, message)
        await client.close()
        return rest

    async def _take(self, client: Client, event: dict[str, Any]) -> None:
        self.heard.append(event)
        if event["type"] not in ASKS or event["event_id"] in self.answers:
            return
        name = ASKS[event["type"]]
        ids = {"run_id": event["run_id"], name: event[name]}
        if event["type"] == "tool_request":
            answer: tuple[str, dict[str, Any]] = ("tool_result", {**ids, "ok": True, "result": "x"})
        else:
            answer = ("approval_decision", {**ids, "decision": "approve"})
        self.answers[event["event_id"]] = answer
        await client.say(answer[0], **answer[1])


def critical(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [one for one in events if one["type"] != "delta"]


@pytest.mark.timeout(120)
@requirement(
    "001/resume/cut-anywhere",
    "001/resume/without-last-seq",
    "001/resume/text-so-far",
    "001/m5/short-reconnect",
)
@pytest.mark.parametrize("way", ["together", "apart"])
async def test_who_leaves_after_any_event_hears_each_critical_event_as_the_journal_has_it(
    tmp_path: Path, way: str
) -> None:
    """The run has a client's tools and an approval; they come back with and without `last_seq`."""
    async with installed(way, tmp_path, RESUME_WINDOW_MS="120000") as running:

        async def leave_after(number: int, *, knows: bool) -> None:
            leaver = Leaver(running, f"leaver-{number}-{knows}")
            await leaver.hear_some(number)
            first, answered = list(leaver.heard), set(leaver.answers)
            seen = first[-1]["seq"]
            over = first[-1]["type"] == "done"
            rest: list[dict[str, Any]] = []
            if not (knows and over):
                rest = await leaver.hear_rest(**({"last_seq": seen} if knows else {}))
            stored = await journal_of(leaver)
            if knows:
                assert critical(first + rest) == critical(stored), number
                assert text(first + rest) == text(stored)
                return
            again = [one["event_id"] for one in rest]
            assert len(again) == len(set(again)), number
            missing = [one for one in critical(stored) if one not in rest]
            assert {one["event_id"] for one in missing} <= answered, (number, missing)
            assert critical(rest) == [one for one in critical(stored) if one not in missing]
            for one in rest:
                if one["type"] == "delta":
                    parts = range(one.get("first_seq", one["seq"]), one["seq"] + 1)
                    assert one["text"] == text([each for each in stored if each["seq"] in parts])

        def text(events: list[dict[str, Any]]) -> str:
            return "".join(one["text"] for one in events if one["type"] == "delta")

        async def journal_of(leaver: Leaver) -> list[dict[str, Any]]:
            client = await running.connect(user=leaver.user, **leaver.session, last_seq=0)
            stored = await client.hear_until("done")
            await client.close()
            return stored

        stays = Leaver(running, "stays")
        await stays.hear_some(1)
        await stays.hear_rest(last_seq=1)
        count = len(stays.heard)
        assert {one["type"] for one in stays.heard} >= {*ASKS, "run_started", "state", "done"}
        for number in range(1, count + 1):
            await asyncio.gather(*(leave_after(number, knows=knows) for knows in (True, False)))


@pytest.mark.timeout(120)
async def test_2000_clients_that_come_back_at_once_are_all_served(tmp_path: Path) -> None:
    """Each says hello, resumes its session and hears the run that it missed."""
    count = 2000
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # both ends are in this process
    async with installed(TOGETHER, tmp_path) as running:
        first = await running.connect(user="crowd")
        await first.invoke("what all of them missed")
        whole = await first.hear_until("done")
        hello = {"session_id": first.session_id, "user_id": "crowd", "last_seq": 0}
        opened: list[Raw] = []

        async def come_back() -> list[bytes]:
            raw = await Raw.open(running.ws, patience=BOUND_S)
            opened.append(raw)
            raw.send_text(json.dumps({**HELLO, **hello}))
            return await raw.receive_many(len(whole) + 1, patience=BOUND_S)

        async with asyncio.timeout(BOUND_S):
            everyone = await asyncio.gather(*(come_back() for _ in range(count)))
        for _, *missed in everyone:
            assert [json.loads(one)["seq"] for one in missed] == [one["seq"] for one in whole]
        _, health = await running.get(f"{running.internal}/health")
        assert health["connections"] == count + 1
        await asyncio.gather(*(raw.close() for raw in opened))


async def test_a_user_has_so_many_connections_and_no_more(tmp_path: Path) -> None:
    """Also where they come at once, and never at another user's expense."""
    async with installed(TOGETHER, tmp_path) as running:
        ingress = running.ingress()
        ingress.options = replace(ingress.options, max_connections_of_user=3)

        async def come(user: str) -> tuple[Raw, tuple[int, bytes]]:
            raw = await Raw.open(running.ws)
            raw.send_text(json.dumps({**HELLO, "user_id": user}))
            return raw, await raw.receive()

        arrivals = await asyncio.gather(*(come("greedy") for _ in range(12)))
        stay = [raw for raw, (opcode, _) in arrivals if opcode == TEXT]
        closed = [payload for _, (opcode, payload) in arrivals if opcode == CLOSE]
        assert (len(stay), len(closed)) == (3, 9)
        assert {int.from_bytes(one[:2], "big") for one in closed} == {CloseCode.TRY_AGAIN_LATER}
        other, (opcode, _) = await come("modest")
        assert opcode == TEXT
        await stay.pop().close()

        async def there_is_room() -> bool:
            raw, (opcode, _) = await come("greedy")
            await raw.close()
            return opcode == TEXT

        await eventually(there_is_room)
        for raw in (other, *stay, *(raw for raw, _ in arrivals)):
            await raw.close()


# Malformed frames


@pytest.mark.timeout(120)
@requirement(
    "001/messages/bad-json",
    "001/messages/not-an-object",
    "001/messages/unknown-type",
    "001/messages/missing-field",
    "001/messages/wrong-type",
    "001/messages/invalid-utf8",
    "001/messages/connection-survives",
)
async def test_10_000_malformed_frames_are_each_answered_and_the_next_good_one_is_served(
    tmp_path: Path,
) -> None:
    """Made from the messages' own schema, each the breach of one rule; over one real connection."""
    frames = malformed_frames(random.Random(6455), 10_000)
    async with installed(TOGETHER, tmp_path) as running:
        async with raw_client(running.ws) as raw:
            raw.send_text(json.dumps(HELLO))
            await raw.receive()
            for start in range(0, len(frames), 100):
                batch = frames[start : start + 100]
                raw.send(b"".join(frame(opcode, payload) for _, opcode, payload in batch))
                answers = await raw.receive_many(len(batch))
                for (rule, _, payload), answer in zip(batch, answers, strict=True):
                    told = json.loads(answer)
                    assert told["type"] == "error", (rule, payload)
                    assert told["code"] == ErrorCode.INVALID_MESSAGE, (rule, payload)
                    assert told["message"].startswith("$"), "it names the member"
            invoke = {"type": "agent_invoke", "ts": 1, "request_id": "good", "agent_id": "echo"}
            raw.send_text(json.dumps({**invoke, "message": {"role": "user", "content": "x"}}))
            assert json.loads((await raw.receive())[1])["type"] == "run_started"
        assert {rule for rule, _, _ in frames} == set(RULES)
