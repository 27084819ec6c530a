"""What goes wrong between a client and the ingress: time, silence, slowness, absence, cuts."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import websockets

from tests.e2e.harness import PATIENCE, Client
from tests.e2e.raw import CLOSE, PING, PONG, TEXT, Raw, frame, raw_client
from tests.e2e.ways import API_KEY, TOGETHER, Running, eventually, installed
from toolgate.contracts.ingress_v1 import CloseCode

requirement = pytest.mark.requirement

TOOLS = {"tools": ["desk.look", "payments.transfer"]}
LOOK = "[[tool:desk.look {}]] after"
PAY = "[[tool:payments.transfer {}]] after"
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
        assert ended["code"] == "agent_timeout"
        assert (await run_of(running, ended["run_id"]))["status"] == "FAILED"


@requirement("001/approvals/expires")
async def test_an_approval_expires_and_a_persons_time_is_not_the_agents(tmp_path: Path) -> None:
    async with installed(
        TOGETHER, tmp_path, APPROVAL_TIMEOUT_MS="400", AGENT_TIMEOUT_MS="250"
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
            api_key=API_KEY, max_message_bytes=1024, write_wait_ms=1000, hello_wait_ms=100
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
        TOGETHER, tmp_path, WS_PING_INTERVAL_MS="50", WS_PONG_WAIT_MS="400"
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
        await client.invoke(LOOK, agent="script")
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


@requirement("001/resume/cut-anywhere", "001/resume/no-gap-to-live")
async def test_a_cut_at_every_event_boundary_of_a_run_loses_repeats_and_disorders_nothing(
    tmp_path: Path,
) -> None:
    async with installed(TOGETHER, tmp_path) as running:
        watcher = await running.connect(user="cut")
        text = "".join(chr(97 + n % 26) for n in range(298 * 5))

        async def cut_at(boundary: int) -> list[dict[str, Any]]:
            """Hear up to a boundary, vanish, come back, hear the rest."""
            heard = await hear_from(0, boundary)
            return heard + await hear_from(len(heard), 300 - len(heard))

        async def hear_from(last_seq: int, count: int) -> list[dict[str, Any]]:
            hello = {"user_id": "cut", "session_id": watcher.session_id, "last_seq": last_seq}
            async with raw_client(running.ws) as raw:
                raw.send_text(json.dumps({**HELLO, **hello}))
                assert json.loads((await raw.receive())[1])["resumed"] is True
                return [json.loads((await raw.receive())[1]) for _ in range(count)]

        live = [asyncio.create_task(cut_at(boundary)) for boundary in range(0, 301, 20)]
        await watcher.invoke(text)
        whole = await watcher.hear_until("done")
        assert len(whole) == 300
        for heard in await asyncio.gather(*live):
            assert heard == whole
        for start in range(0, 301, 30):
            boundaries = range(start, min(start + 30, 301))
            for heard in await asyncio.gather(*map(cut_at, boundaries)):
                assert heard == whole


@pytest.mark.timeout(120)
async def test_2000_clients_that_come_back_at_once_are_all_served(tmp_path: Path) -> None:
    """Each says hello, resumes its session and hears the run that it missed."""
    count = 2000
    async with installed(TOGETHER, tmp_path) as running:
        first = await running.connect(user="crowd")
        await first.invoke("what all of them missed")
        whole = await first.hear_until("done")
        gate = asyncio.Event()
        admitted = asyncio.Semaphore(500)  # the test's own loop has to keep up as well

        async def come_back() -> int:
            await gate.wait()
            async with admitted:
                raw = await Raw.open(running.ws)
                hello = {"session_id": first.session_id, "user_id": "crowd", "last_seq": 0}
                raw.send_text(json.dumps({**HELLO, **hello}))
                heard = [await raw.receive() for _ in range(len(whole) + 1)]
                opened.append(raw)
                return sum(json.loads(payload).get("seq", 0) for _, payload in heard[1:])

        opened: list[Raw] = []
        clients = [asyncio.create_task(come_back()) for _ in range(count)]
        gate.set()
        sums = await asyncio.gather(*clients)
        assert sums == [sum(one["seq"] for one in whole)] * count
        _, health = await running.get(f"{running.internal}/health")
        assert health["connections"] == count + 1
        for raw in opened:
            await raw.close()


# Frames by hand (RFC 6455)

HELLO_TEXT = json.dumps(HELLO).encode()
BREACHES = {
    "an unmasked frame": frame(TEXT, b"{}", masked=False),
    "a reserved bit": frame(TEXT, b"{}", rsv=4),
    "another reserved bit": frame(TEXT, b"{}", rsv=1),
    "a reserved data opcode": frame(3, b"{}"),
    "a reserved control opcode": frame(11),
    "a ping over 125 bytes": frame(PING, b"x" * 126),
    "a ping in fragments": frame(PING, b"x", fin=False),
    "a close in fragments": frame(CLOSE, b"", fin=False),
    "a continuation of nothing": frame(0, b"{}"),
    "a message within a message": frame(TEXT, b"{", fin=False) + frame(TEXT, b"}"),
    "a close of one byte": frame(CLOSE, b"\x03"),
    "a close code that may not be sent": frame(CLOSE, (1005).to_bytes(2, "big")),
    "a close code of nobody": frame(CLOSE, (999).to_bytes(2, "big")),
    "a length longer than it need be": frame(TEXT, b"{}", length=b"\x7e\x00\x02"),
    "a 64-bit length with the top bit": frame(TEXT, b"", length=b"\x7f" + b"\xff" * 8),
}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("rfc6455")


async def test_every_breach_of_rfc_6455_fails_the_connection_and_no_other(home: Path) -> None:
    async with installed(TOGETHER, home) as running:
        bystander = await running.connect(user="bystander")
        for name, breach in BREACHES.items():
            async with raw_client(running.ws) as raw:
                raw.send(breach)
                opcode, payload = await raw.receive()
                assert opcode == CLOSE, name
                assert int.from_bytes(payload[:2], "big") == CloseCode.PROTOCOL_ERROR, name
                await raw.until_cut()
        await bystander.invoke("undisturbed")
        assert await text_of_run(bystander) == "undisturbed"


async def test_what_rfc_6455_allows_is_understood(home: Path) -> None:
    half = len(HELLO_TEXT) // 2
    allowed = {
        "a hello in one frame": frame(TEXT, HELLO_TEXT),
        "a hello in two fragments": (
            frame(TEXT, HELLO_TEXT[:half], fin=False) + frame(0, HELLO_TEXT[half:])
        ),
        "a ping between fragments": (
            frame(TEXT, HELLO_TEXT[:half], fin=False)
            + frame(PING, b"now")
            + frame(0, HELLO_TEXT[half:])
        ),
        "an empty fragment": (
            frame(TEXT, b"", fin=False) + frame(0, HELLO_TEXT, fin=False) + frame(0)
        ),
        "a pong that nobody asked for": frame(PONG, b"x") + frame(TEXT, HELLO_TEXT),
    }
    async with installed(TOGETHER, home) as running:
        for name, data in allowed.items():
            async with raw_client(running.ws) as raw:
                for byte in range(0, len(data), 7):  # frames cut anywhere by the network
                    raw.send(data[byte : byte + 7])
                frames = [await raw.receive()]
                if name == "a ping between fragments":
                    assert frames.pop() == (PONG, b"now")
                    frames.append(await raw.receive())
                assert json.loads(frames[0][1])["type"] == "hello_ack", name
        async with raw_client(running.ws) as raw:
            raw.send(frame(CLOSE, (1000).to_bytes(2, "big") + b"bye"))
            opcode, payload = await raw.receive()
            assert (opcode, int.from_bytes(payload[:2], "big")) == (CLOSE, 1000)
            await raw.until_cut()
