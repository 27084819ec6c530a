"""The Python client: against a real installation, and through connections that break."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import websockets
from websockets.asyncio.server import ServerConnection

from tests.e2e.ways import API_KEY, TOGETHER, Running, installed
from toolgate.client.sessions import Backoff, Disconnected, Refused, Session, Superseded, connect
from toolgate.client.toolbox import Toolbox, ToolFailed
from toolgate.contracts import ingress_v1 as wire
from toolgate.runs.deliveries import RETRACTED

requirement = pytest.mark.requirement
AT_ONCE = Backoff(initial_s=0.01, longest_s=0.05, retries=50)


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Running]:
    async with installed(TOGETHER, tmp_path) as one:
        yield one


def toolbox() -> Toolbox:
    tools = Toolbox()

    @tools.tool("desk.look", description="Look at something")
    async def look(args: dict[str, Any]) -> dict[str, Any]:
        return {"seen": args["at"]}

    @tools.tool("desk.point")
    async def point(_: dict[str, Any]) -> None:
        raise ToolFailed("no arm", code="no_arm")

    @tools.tool("payments.transfer")
    async def pay(_: dict[str, Any]) -> str:
        return "paid"

    return tools


async def test_an_agent_is_asked_and_its_answer_streams(running: Running) -> None:
    async with connect(running.ws, user_id="u", api_key=API_KEY) as session:
        events = [event async for event in session.invoke("hello there", agent_id="echo")]
        assert isinstance(events[0], wire.RunStarted)
        assert isinstance(events[-1], wire.Done)
        text = "".join(event.text for event in events if isinstance(event, wire.Delta))
        assert text == "hello there"
        assert await session.ask("again", agent_id="echo") == "again"
        with pytest.raises(Refused):
            await session.ask("x", agent_id="nobody")


async def test_a_wrong_key_is_refused(running: Running) -> None:
    with pytest.raises(Refused, match="auth_failed"):
        await Session(running.ws, "u", "wrong").open()
    with pytest.raises(Disconnected):
        await Session("ws://127.0.0.1:9/ws", "u").open()


async def test_tools_run_here_and_approvals_are_asked_for(running: Running) -> None:
    asked: list[str] = []

    async def decide(approval: wire.ApprovalRequired) -> bool:
        asked.append(approval.tool_name)
        return len(asked) == 1

    async with connect(
        running.ws, user_id="u", api_key=API_KEY, toolbox=toolbox(), decide=decide
    ) as session:
        script = '[[tool:desk.look {"at": "door"}]][[tool:desk.point {}]]'
        said = await session.ask(script, agent_id="script")
        assert '"seen":"door"' in said
        assert "error no_arm: no arm" in said
        pay = "[[tool:payments.transfer {}]]"
        assert "paid" in await session.ask(pay, agent_id="script")
        assert "error rejected" in await session.ask(pay, agent_id="script")
    assert asked == ["payments.transfer", "payments.transfer"]


@requirement("001/reconnect/dedupe", "001/m5/short-reconnect")
async def test_who_waits_for_a_run_is_told_that_nobody_could_be_asked(running: Running) -> None:
    async def decide(_: wire.ApprovalRequired) -> bool:
        raise OSError("the terminal is gone")

    async with connect(
        running.ws, user_id="u", api_key=API_KEY, toolbox=toolbox(), decide=decide
    ) as session:
        with pytest.raises(OSError, match="the terminal is gone"):
            async with asyncio.timeout(5):
                await session.ask("[[tool:payments.transfer {}]]", agent_id="script")
        assert await session.ask("and now", agent_id="echo") == "and now"


async def test_a_session_survives_its_connections_without_loss_or_repeat(running: Running) -> None:
    async with connect(
        running.ws, user_id="u", api_key=API_KEY, toolbox=toolbox(), backoff=AT_ONCE
    ) as session:
        text = "0123456789" * 300
        said: list[str] = []
        seen: list[int] = []
        async for event in session.invoke(text, agent_id="echo"):
            seen.append(event.seq)
            if isinstance(event, wire.Delta):
                said.append(event.text)
            if event.seq % 150 == 0:
                assert session._socket is not None
                transport = session._socket._transport
                if transport is not None:
                    transport.disconnect(False)
        assert "".join(said) == text
        assert seen == list(range(1, len(seen) + 1))
        assert session.connections > 3


@requirement("001/reconnect/backoff", "001/reconnect/retries")
async def test_it_comes_back_after_1_s_doubled_up_to_30_and_gives_up_after_5() -> None:
    assert list(Backoff().pauses()) == [1, 2, 4, 8, 16]
    endless = iter(Backoff(retries=None).pauses())
    assert [next(endless) for _ in range(7)] == [1, 2, 4, 8, 16, 30, 30]
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    async def goodbye(socket: ServerConnection) -> None:
        await socket.recv()
        await socket.send(json.dumps({"type": "hello_ack", "ts": 1, "session_id": "s"}))
        await socket.recv()
        await socket.close(1011)

    server = await websockets.serve(goodbye, "127.0.0.1", 0)
    port = next(iter(server.sockets)).getsockname()[1]
    session = Session(f"ws://127.0.0.1:{port}/ws", "u", sleep=sleep)
    await session.open()
    server.close(close_connections=False)
    with pytest.raises(Disconnected):
        async for _ in session.invoke("x", agent_id="echo"):
            pass
    assert slept == [1, 2, 4, 8, 16]
    await session.close()
    await server.wait_closed()


@requirement("001/reconnect/dedupe")
async def test_what_was_heard_before_is_dropped_and_what_was_asked_is_asked_again() -> None:
    heard: list[dict[str, Any]] = []

    def told(kind: str, seq: int, **members: Any) -> str:
        head = {"type": kind, "ts": 1, "seq": seq, "event_id": f"ev_{seq}", "run_id": "r"}
        return json.dumps({**head, **members})

    async def serve(socket: ServerConnection) -> None:
        hello = json.loads(await socket.recv())
        resumed = "session_id" in hello
        ack = {"type": "hello_ack", "ts": 1, "session_id": "s", "resumed": resumed, "seq": 2}
        await socket.send(json.dumps(ack | {"seq": 2 if resumed else 0}))
        heard.append(hello)
        invoke = json.loads(await socket.recv())
        heard.append(invoke)
        if not resumed:
            await socket.close(1011)  # before the invoke was answered
            return
        started = {"request_id": invoke["request_id"], "agent_id": "echo"}
        await socket.send(told("run_started", 1, **started))
        for seq in (2, 2, 1, 3, 2, 3):
            await socket.send(told("delta", seq, text=str(seq)))
        await socket.send(told("done", 4, usage={}))
        await socket.wait_closed()

    async with await websockets.serve(serve, "127.0.0.1", 0) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        url = f"ws://127.0.0.1:{port}/ws"
        async with connect(url, user_id="u", backoff=AT_ONCE) as session:
            assert await session.ask("x", agent_id="echo") == "23"
    first, again = heard[1], heard[3]
    assert first["request_id"] == again["request_id"]
    assert heard[2]["session_id"] == "s"


async def test_closing_a_session_ends_what_waits_for_it(running: Running) -> None:
    async with connect(running.ws, user_id="u", api_key=API_KEY) as session:
        run = session.invoke("[[tool:desk.look {}]]" + "x" * 10_000, agent_id="script")
        await anext(aiter(run))
        waiting = asyncio.create_task(_drain(run))
        await session.close()
        with pytest.raises(Disconnected):
            await asyncio.wait_for(waiting, 10)


async def _drain(events: AsyncIterator[Any]) -> None:
    async for event in events:
        if isinstance(event, wire.Done | wire.Error):
            await asyncio.Event().wait()


def told(kind: str, seq: int = 0, **members: Any) -> str:
    number = {"seq": seq, "event_id": f"ev_{seq}"} if seq else {}
    return json.dumps({"type": kind, "ts": 1, "run_id": "r", **number, **members})


async def acknowledged(socket: ServerConnection, *, seq: int = 0, resumed: bool = False) -> None:
    await socket.recv()
    ack = {"type": "hello_ack", "ts": 1, "session_id": "s", "resumed": resumed, "seq": seq}
    await socket.send(json.dumps(ack))


@contextlib.asynccontextmanager
async def served(serve: Callable[[ServerConnection], Awaitable[None]]) -> AsyncIterator[str]:
    async with await websockets.serve(serve, "127.0.0.1", 0) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        yield f"ws://127.0.0.1:{port}/ws"


async def started(socket: ServerConnection) -> None:
    """A run, and what needs a person in it."""
    invoke = json.loads(await socket.recv())
    asked = {"request_id": invoke["request_id"], "agent_id": "echo"}
    await socket.send(told("run_started", 1, **asked))


ASKED: dict[str, Any] = {"approval_id": "a", "tool_call_id": "t", "tool_name": "pay", "args_summary": "",
         "reason": "", "deadline_ts": 9}  # fmt: skip


async def test_what_is_decided_while_the_connection_is_gone_is_said_by_the_next() -> None:
    heard: list[dict[str, Any]] = []
    gone = asyncio.Event()
    connections = 0

    async def serve(socket: ServerConnection) -> None:
        nonlocal connections
        connections += 1
        await acknowledged(socket, resumed=connections > 1, seq=2 * (connections - 1))
        if connections == 1:
            await started(socket)
            await socket.send(told("approval_required", 2, **ASKED))
            await socket.close(1011)
            return
        heard.extend([json.loads(await socket.recv()) for _ in range(2)])
        await socket.send(told("done", 3, usage={}))
        await socket.wait_closed()

    async def pause(_: float) -> None:
        await gone.wait()

    async with served(serve) as url, asyncio.timeout(10):
        session = Session(url, "u", sleep=pause)
        await session.open()
        async for event in session.invoke("x", agent_id="echo"):
            if isinstance(event, wire.ApprovalRequired):
                assert session._socket is not None
                while session._socket.is_open:
                    await asyncio.sleep(0)
                session.approve(event)
                session.cancel("r")
                gone.set()
        assert [one["type"] for one in heard] == ["approval_decision", "cancel_run"]
        assert not session._unheard
        await session.close()


async def test_a_message_that_cannot_be_read_ends_the_session_and_nobody_waits_for_ever() -> None:
    async def serve(socket: ServerConnection) -> None:
        await acknowledged(socket)
        await started(socket)
        await socket.send(json.dumps({"type": "of tomorrow"}))  # passed over
        await socket.send(told("delta", text=7))
        await socket.wait_closed()

    async with (
        asyncio.timeout(10),
        served(serve) as url,
        connect(url, user_id="u", backoff=AT_ONCE) as session,
    ):
        with pytest.raises(Disconnected, match="text"):
            async for _ in session.invoke("x", agent_id="echo"):
                pass

    async def babble(socket: ServerConnection) -> None:
        await socket.recv()
        await socket.send("[]")
        await socket.wait_closed()

    async with served(babble) as url:
        with pytest.raises(Disconnected):
            await Session(url, "u").open()


@requirement("001/resume/other-epoch")
async def test_numbers_that_a_restored_journal_gives_anew_are_of_new_events() -> None:
    connections = 0

    async def serve(socket: ServerConnection) -> None:
        nonlocal connections
        connections += 1
        await socket.recv()
        ack = {"type": "hello_ack", "ts": 1, "session_id": "s", "resumed": False}
        await socket.send(json.dumps({**ack, "epoch": f"ep_{connections}", "seq": connections - 1}))
        if connections == 1:
            await started(socket)
            for seq in (2, 3):
                await socket.send(told("delta", seq, text="before "))
            await socket.close(1011)
            return
        await socket.recv()  # to know the snapshot's end
        await socket.send(told("state", state="RUNNING", detail={}))
        await socket.send(told("delta", 2, text="after"))
        await socket.send(told("done", 3, usage={}))
        await socket.wait_closed()

    async with (
        asyncio.timeout(5),
        served(serve) as url,
        connect(url, user_id="u", backoff=AT_ONCE) as session,
    ):
        assert await session.ask("x", agent_id="echo") == "before before after"


async def test_what_an_agent_took_back_is_no_part_of_its_answer() -> None:
    async def serve(socket: ServerConnection) -> None:
        await acknowledged(socket)
        await started(socket)
        await socket.send(told("delta", 2, text="One. "))
        await socket.send(told("delta", 3, text="Twice, in oth"))
        again = {"resumed": True, RETRACTED: 13}
        await socket.send(told("state", 4, state="RUNNING", detail=again))
        await socket.send(told("delta", 5, text="Two."))
        await socket.send(told("done", 6, usage={}))
        await socket.wait_closed()

    async with (
        asyncio.timeout(10),
        served(serve) as url,
        connect(url, user_id="u", backoff=AT_ONCE) as session,
    ):
        assert await session.ask("x", agent_id="assistant") == "One. Two."


@pytest.mark.parametrize(
    "result", [object(), "\ud800", ToolFailed("no \ud800")], ids=["no JSON", "no text", "no words"]
)
async def test_a_result_that_cannot_be_written_is_a_failure_and_the_session_goes_on(
    running: Running, result: object
) -> None:
    tools = Toolbox()

    @tools.tool("desk.look")
    async def look(_: dict[str, Any]) -> object:
        if isinstance(result, Exception):
            raise result
        return result

    async with (
        asyncio.timeout(20),
        connect(running.ws, user_id="u", api_key=API_KEY, toolbox=tools) as session,
    ):
        said = await session.ask("[[tool:desk.look {}]]", agent_id="script")
        assert said.startswith("desk.look: error tool_failed")


@pytest.mark.parametrize("fails", [False, True])
async def test_a_result_that_is_too_large_is_a_failure_and_the_session_goes_on(
    running: Running, *, fails: bool
) -> None:
    tools = Toolbox()

    @tools.tool("desk.look")
    async def look(_: dict[str, Any]) -> str:
        if fails:
            raise ToolFailed("x" * 100_000)
        return "x" * 100_000

    async with (
        asyncio.timeout(20),
        connect(
            running.ws, user_id="u", api_key=API_KEY, toolbox=tools, backoff=AT_ONCE
        ) as session,
    ):
        said = await session.ask("[[tool:desk.look {}]]", agent_id="script")
        assert said.startswith("desk.look: error result_too_large")
        with pytest.raises(Disconnected, match="1009"):
            await session.ask("x" * 100_000, agent_id="echo")


async def test_a_message_that_is_too_large_ends_its_own_run_and_no_other(running: Running) -> None:
    tools, asked, may = Toolbox(), asyncio.Event(), asyncio.Event()

    @tools.tool("desk.look")
    async def look(_: dict[str, Any]) -> str:
        asked.set()
        await may.wait()
        return "a door"

    async with (
        asyncio.timeout(20),
        connect(
            running.ws, user_id="u", api_key=API_KEY, toolbox=tools, backoff=AT_ONCE
        ) as session,
    ):
        other = asyncio.create_task(session.ask("[[tool:desk.look {}]]", agent_id="script"))
        await asked.wait()
        with pytest.raises(Disconnected, match="1009"):
            await session.ask("x" * 100_000, agent_id="echo")
        may.set()
        assert "a door" in await other
        assert await session.ask("smaller", agent_id="echo") == "smaller"


async def test_a_message_that_cannot_be_written_is_refused_and_the_session_goes_on(
    running: Running,
) -> None:
    async with (
        asyncio.timeout(20),
        connect(running.ws, user_id="u", api_key=API_KEY, backoff=AT_ONCE) as session,
    ):
        with pytest.raises(UnicodeEncodeError):
            await session.ask("\ud800", agent_id="echo")
        assert session._socket is not None
        assert session._socket._transport is not None
        session._socket._transport.disconnect(False)
        assert await session.ask("still here", agent_id="echo") == "still here"


async def test_a_tool_at_work_is_not_run_again_because_a_snapshot_asks_for_it() -> None:
    tools, may = Toolbox(), asyncio.Event()
    runs: list[str] = []

    @tools.tool("pay")
    async def pay(_: dict[str, Any]) -> str:
        runs.append("paid")
        await may.wait()
        return "paid"

    request: dict[str, Any] = {
        "tool_call_id": "t",
        "tool_name": "pay",
        "args": {},
        "deadline_ts": 9,
    }
    results: list[dict[str, Any]] = []
    connections = 0

    async def serve(socket: ServerConnection) -> None:
        nonlocal connections
        connections += 1
        await acknowledged(socket, seq=2 * (connections - 1))
        if connections == 1:
            await started(socket)
            await socket.send(told("tool_request", 2, **request))
            while not runs:
                await asyncio.sleep(0)
            await socket.close(1011)
            return
        assert json.loads(await socket.recv())["type"] == "hello"  # to know the snapshot's end
        await socket.send(told("state", state="PAUSED_WAITING_TOOL", detail={}))
        await socket.send(told("tool_request", **request))
        await (await socket.ping())  # it has read both
        may.set()
        results.append(json.loads(await socket.recv()))
        await socket.send(told("done", 3, usage={}))
        await socket.wait_closed()

    async with (
        asyncio.timeout(10),
        served(serve) as url,
        connect(url, user_id="u", toolbox=tools, backoff=AT_ONCE) as session,
    ):
        assert await session.ask("x", agent_id="echo") == ""
    assert (runs, [one["tool_call_id"] for one in results]) == (["paid"], ["t"])


async def test_a_run_that_ended_in_a_gap_is_not_waited_for_and_one_that_did_not_goes_on(
    running: Running,
) -> None:
    tools, back, may = Toolbox(), asyncio.Event(), asyncio.Event()

    @tools.tool("desk.look")
    async def look(_: dict[str, Any]) -> str:
        await may.wait()
        return "a door"

    async def pause(_: float) -> None:
        await back.wait()

    session = Session(running.ws, "u", API_KEY, toolbox=tools, sleep=pause)
    await session.open()
    runs = [session.invoke("[[tool:desk.look {}]]", agent_id="script") for _ in range(2)]
    async with asyncio.timeout(20):
        for run in runs:
            while not isinstance(await anext(aiter(run)), wire.ToolRequest):
                pass
        ended = next(iter(session._runs))
        assert session._socket is not None
        transport = session._socket._transport
        assert transport is not None
        transport.disconnect(False)
        while session._socket.is_open:
            await asyncio.sleep(0)
        await running.post(f"{running.orchestrator}/internal/runs/{ended}/cancel", {})
        session.epoch = "ep_before_a_restore"  # so that nothing is replayed
        may.set()
        while session._running:
            await asyncio.sleep(0)
        back.set()
        with pytest.raises(Disconnected):
            async for _ in runs[0]:
                pass
        assert isinstance([event async for event in runs[1]][-1], wire.Done)
    await session.close()


async def test_an_earlier_session_is_gone_on_with_and_nothing_of_it_is_done_again(
    running: Running,
) -> None:
    tools = Toolbox()
    runs: list[str] = []
    questions: list[str] = []

    @tools.tool("payments.transfer")
    async def pay(args: dict[str, Any]) -> str:
        runs.append(args["to"])
        return "paid"

    async def decide(asked: wire.ApprovalRequired) -> bool:
        questions.append(asked.approval_id)
        return True

    me: dict[str, Any] = {"user_id": "u", "api_key": API_KEY, "decide": decide, "toolbox": tools}
    async with connect(running.ws, **me) as first, asyncio.timeout(20):
        said = await first.ask('[[tool:payments.transfer {"to": "A"}]]', agent_id="script")
        assert said == "payments.transfer: paid\n"
    again = Session(
        running.ws, "u", API_KEY, toolbox=tools, decide=decide, session_id=first.session_id,
        backoff=AT_ONCE,
    )  # fmt: skip
    async with asyncio.timeout(20):
        await again.open()
        assert again._socket is not None
        assert again._socket._transport is not None
        again._socket._transport.disconnect(False)  # nor where it comes back another time
        assert await again.ask("go on", agent_id="echo") == "go on"
        assert again.connections == 2
        said = await again.ask('[[tool:payments.transfer {"to": "B"}]]', agent_id="script")
        assert said == "payments.transfer: paid\n"
        await again.close()
    assert (runs, len(questions)) == (["A", "B"], 2)


async def test_a_request_of_an_earlier_process_is_answered_with_its_run(running: Running) -> None:
    ids: list[str] = []
    session_id = ""
    for _ in range(2):
        async with (
            asyncio.timeout(20),
            connect(running.ws, user_id="u", api_key=API_KEY, session_id=session_id) as session,
        ):
            session_id = session.session_id
            asked = session.invoke("order 17", agent_id="echo", request_id="order-17")
            events = [event async for event in asked]
            assert "".join(one.text for one in events if isinstance(one, wire.Delta)) == "order 17"
            ids.append(events[-1].run_id)
            assert await session.ask("more", agent_id="echo") == "more"
    assert ids[0] == ids[1]


async def test_who_gave_a_run_up_and_asks_again_in_the_same_session_is_given_all_of_it(
    running: Running,
) -> None:
    async with (
        asyncio.timeout(20),
        connect(running.ws, user_id="u", api_key=API_KEY, backoff=AT_ONCE) as session,
    ):
        ids: set[str] = set()
        async for event in session.invoke("order 17", agent_id="echo", request_id="order-17"):
            ids.add(event.run_id)
            break
        for _ in range(2):
            asked = session.invoke("order 17", agent_id="echo", request_id="order-17")
            events = [event async for event in asked]
            assert "".join(one.text for one in events if isinstance(one, wire.Delta)) == "order 17"
            ids.add(events[-1].run_id)
        assert len(ids) == 1
        assert await session.ask("more", agent_id="echo") == "more"


@pytest.mark.parametrize("begun", [True, False])
async def test_who_asks_again_takes_the_run_over_and_who_asked_first_is_told_so(
    *, begun: bool
) -> None:
    asked = 0

    async def serve(socket: ServerConnection) -> None:
        nonlocal asked
        await acknowledged(socket, resumed=asked > 0, seq=asked)
        async for message in socket:
            asked += 1
            request = {"request_id": json.loads(message)["request_id"], "agent_id": "echo"}
            if begun or asked == 2:
                await socket.send(told("run_started", 1, **request))
            if asked == 2:
                await socket.send(told("delta", 2, text="order 17"))
                await socket.send(told("done", 3, usage={}))

    async with (
        asyncio.timeout(10),
        served(serve) as url,
        connect(url, user_id="u", backoff=AT_ONCE) as session,
    ):
        first = session.invoke("order 17", agent_id="echo", request_id="order-17")
        if begun:
            await anext(aiter(first))
        waiting = asyncio.create_task(_drain(first))
        while not asked:
            await asyncio.sleep(0.001)
        second = session.invoke("order 17", agent_id="echo", request_id="order-17")
        heard = [event async for event in second]
        assert [one.text for one in heard if isinstance(one, wire.Delta)] == ["order 17"]
        with pytest.raises(Superseded):
            await waiting


async def test_what_came_of_a_run_before_it_was_asked_for_is_part_of_its_answer() -> None:
    async def serve(socket: ServerConnection) -> None:
        await acknowledged(socket, seq=2, resumed=True)
        await socket.send(told("delta", 3, text="two "))  # of a run that an earlier process began
        asked = json.loads(await socket.recv())
        await socket.send(
            told("run_started", 1, request_id=asked["request_id"], session_id="s", agent_id="echo")
        )
        for seq, text in ((2, "one "), (3, "two "), (4, "three"), (3, "two "), (4, "three")):
            await socket.send(told("delta", seq, text=text))
        await socket.send(told("done", 5, usage={}))
        await socket.wait_closed()

    async with (
        asyncio.timeout(5),
        served(serve) as url,
        connect(url, user_id="u", session_id="s", backoff=AT_ONCE) as session,
    ):
        while session.last_seq < 3:
            await asyncio.sleep(0.001)
        assert await session.ask("x", agent_id="echo") == "one two three"


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 302 Found\r\nLocation: http://x/\r\n\r\n"])
async def test_a_server_that_hangs_up_on_the_handshake_is_tried_again_and_nobody_waits_for_ever(
    answer: bytes,
) -> None:
    attempts = 0

    async def goodbye(socket: ServerConnection) -> None:
        await acknowledged(socket)
        await started(socket)
        await socket.close(1011)

    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal attempts
        attempts += 1
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()
        await writer.wait_closed()

    may = asyncio.Event()

    async def pause(_: float) -> None:
        await may.wait()

    async with asyncio.timeout(10):
        server = await websockets.serve(goodbye, "127.0.0.1", 0)
        port = next(iter(server.sockets)).getsockname()[1]
        session = Session(f"ws://127.0.0.1:{port}/ws", "u", sleep=pause)
        await session.open()
        run = session.invoke("x", agent_id="echo")
        assert isinstance(await anext(aiter(run)), wire.RunStarted)
        server.close()
        await server.wait_closed()
        async with await asyncio.start_server(hang_up, "127.0.0.1", port):
            may.set()
            with pytest.raises(Disconnected):
                await _drain(run)
        await session.close()
    assert attempts == Backoff().retries


@pytest.mark.parametrize("url", ["ws://127.0.0.1:99999/ws", "ws://[::1/ws", "ws:///ws"])
async def test_an_address_that_is_none_is_told(url: str) -> None:
    with pytest.raises(Disconnected):
        await Session(url, "u").open()


async def test_a_server_that_has_vanished_is_noticed_and_the_run_goes_on_with_the_next_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("toolgate.client.sockets.SILENCE_S", 0.5)
    over = asyncio.Event()
    connections = 0

    async def serve(socket: ServerConnection) -> None:
        nonlocal connections
        connections += 1
        if connections == 1:
            await acknowledged(socket)
            socket.transport.pause_reading()  # nothing that is said arrives, and nobody hangs up
            await over.wait()
            return
        await acknowledged(socket, resumed=True)
        request_id = json.loads(await socket.recv())["request_id"]
        await socket.send(told("run_started", 1, request_id=request_id, agent_id="echo"))
        await socket.send(told("done", 2, usage={}))
        await socket.wait_closed()

    async with await websockets.serve(serve, "127.0.0.1", 0) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        async with connect(f"ws://127.0.0.1:{port}/ws", user_id="u", backoff=AT_ONCE) as session:
            asked = asyncio.create_task(session.ask("x", agent_id="echo"))
            await asyncio.wait([asked], timeout=10)
            over.set()
            assert asked.done()
            assert await asked == ""


async def test_a_person_is_asked_once_and_not_any_more_when_the_run_has_ended_without_them() -> (
    None
):
    asked: list[str] = []
    all_asked, moot = asyncio.Event(), asyncio.Event()

    async def decide(approval: wire.ApprovalRequired) -> bool:
        asked.append(approval.approval_id)
        if approval.approval_id == "b":
            all_asked.set()
        try:
            return await asyncio.Event().wait()
        finally:
            moot.set()

    async def serve(socket: ServerConnection) -> None:
        await acknowledged(socket)
        request_id = json.loads(await socket.recv())["request_id"]
        await socket.send(told("run_started", 1, request_id=request_id, agent_id="echo"))
        for seq, approval_id in ((0, "a"), (2, "a"), (3, "b")):  # the first is of a snapshot
            approval = {"approval_id": approval_id, "tool_call_id": "c", "tool_name": "pay"}
            await socket.send(told("approval_required", seq, args_summary="", **approval))
        await all_asked.wait()
        await socket.send(told("done", 4, usage={}))  # decided by another door
        await socket.wait_closed()

    async with await websockets.serve(serve, "127.0.0.1", 0) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        async with connect(f"ws://127.0.0.1:{port}/ws", user_id="u", decide=decide) as session:
            await session.ask("x", agent_id="echo")
            await asyncio.wait_for(moot.wait(), 5)
    assert asked == ["a", "b"]


@pytest.mark.requirement("001/approvals/hidden-arguments")
async def test_a_person_is_asked_again_about_a_call_whose_hidden_characters_must_be_revealed() -> (
    None
):
    asked: list[Any] = []
    paused: list[float] = []

    async def decide(approval: wire.ApprovalRequired) -> bool:
        asked.append((approval.hidden, approval.args))
        return True

    async def pause(seconds: float) -> None:
        paused.append(seconds)

    async def serve(socket: ServerConnection) -> None:
        await acknowledged(socket)
        await started(socket)
        shown = {"hidden": 4, "args": {"to": "[hidden: 4 characters]"}}
        await socket.send(told("approval_required", 2, **ASKED, **shown))
        first = json.loads(await socket.recv())
        refusal = {"code": "orchestrator_error", "message": "reveal them first", "run_id": "r"}
        detail = {"reason": "hidden_arguments"}
        await socket.send(
            told("error", 0, **refusal, detail=detail, request_id=first["request_id"])
        )
        second = json.loads(await socket.recv())
        assert (first["approval_id"], second["decision"]) == (second["approval_id"], "approve")
        await socket.send(told("done", 3, usage={}))
        await socket.wait_closed()

    async with served(serve) as url, asyncio.timeout(10):
        session = Session(url, "u", decide=decide, sleep=pause)
        await session.open()
        await session.ask("x", agent_id="echo")
        assert not session._unheard
        await session.close()
    assert asked == [(4, {"to": "[hidden: 4 characters]"})] * 2
    assert len(paused) == 1


async def test_a_tool_is_stopped_here_too_when_its_run_is_cancelled_and_no_other() -> None:
    tools, at_work = Toolbox(), asyncio.Semaphore(0)
    go_on = asyncio.Event()
    ended: list[str] = []

    @tools.tool("desk.record")
    async def record(args: dict[str, Any]) -> None:
        at_work.release()
        try:
            await go_on.wait()
        except asyncio.CancelledError:
            ended.append(f"{args['of']} stopped")
            raise
        ended.append(f"{args['of']} done")

    said: list[str] = []

    async def serve(socket: ServerConnection) -> None:
        await acknowledged(socket)
        await started(socket)
        for seq, run in ((2, "r"), (3, "other")):
            request = {"tool_call_id": f"c of {run}", "tool_name": "desk.record"}
            of = {"args": {"of": run}, "run_id": run}
            await socket.send(told("tool_request", seq, **request, **of))
        await at_work.acquire()
        await at_work.acquire()
        await socket.send(told("state", 4, state="CANCELLED"))
        await socket.send(told("error", 5, code="cancelled", message="enough"))
        async for message in socket:
            said.append(json.loads(message)["tool_call_id"])

    async with (
        asyncio.timeout(10),
        served(serve) as url,
        connect(url, user_id="u", toolbox=tools) as session,
    ):
        with pytest.raises(Refused, match="cancelled"):
            await session.ask("x", agent_id="echo")
        while not ended:
            await asyncio.sleep(0.001)
        go_on.set()
        while not said:
            await asyncio.sleep(0.001)
    assert (ended, said) == (["r stopped", "other done"], ["c of other"])


async def test_a_result_that_was_refused_is_not_said_again_and_one_that_could_not_be_taken_is() -> (
    None
):
    tools, go_on = Toolbox(), asyncio.Event()

    @tools.tool("desk.look")
    async def look(args: dict[str, Any]) -> None:
        await go_on.wait()

    said: list[list[str]] = []

    async def serve(socket: ServerConnection) -> None:
        said.append([])
        await acknowledged(socket, resumed=bool(said[1:]))
        if len(said) == 1:
            request_id = json.loads(await socket.recv())["request_id"]
            await socket.send(told("run_started", 1, request_id=request_id, agent_id="echo"))
            for seq, call_id in ((2, "late"), (3, "away")):
                request = {"tool_call_id": call_id, "tool_name": "desk.look", "args": {}}
                await socket.send(told("tool_request", seq, **request))
        async for message in socket:
            result = json.loads(message)
            said[-1].append(result["tool_call_id"])
            code = {"late": "invalid_message", "away": "orchestrator_error"}[said[-1][-1]]
            echo = {"request_id": result.get("request_id", "")}
            await socket.send(told("error", code=code, message="no", **echo))
            if sorted(said[-1]) == ["away", "late"]:
                await socket.close(1011)

    async with await websockets.serve(serve, "127.0.0.1", 0) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        url = f"ws://127.0.0.1:{port}/ws"
        async with connect(url, user_id="u", toolbox=tools, backoff=AT_ONCE) as session:
            asking = asyncio.create_task(session.ask("x", agent_id="echo"))
            go_on.set()
            async with asyncio.timeout(10):
                while len(said) < 2 or not said[1]:
                    await asyncio.sleep(0.01)
            await asyncio.sleep(0)
            asking.cancel()
    assert said[1] == ["away"]


async def test_a_server_that_cannot_open_the_session_just_now_is_asked_again() -> None:
    connections = 0

    async def serve(socket: ServerConnection) -> None:
        nonlocal connections
        connections += 1
        if connections == 1:
            await acknowledged(socket)
            await socket.recv()
        elif connections == 2:
            await socket.recv()
            refusal = {"type": "error", "ts": 1, "code": "internal_error", "message": "not now"}
            await socket.send(json.dumps(refusal))
            await socket.wait_closed()
        else:
            await acknowledged(socket, resumed=True)
            request_id = json.loads(await socket.recv())["request_id"]
            await socket.send(told("run_started", 1, request_id=request_id, agent_id="echo"))
            await socket.send(told("done", 2, usage={}))
            await socket.wait_closed()

    async with await websockets.serve(serve, "127.0.0.1", 0) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        async with connect(f"ws://127.0.0.1:{port}/ws", user_id="u", backoff=AT_ONCE) as session:
            assert await asyncio.wait_for(session.ask("x", agent_id="echo"), 10) == ""
