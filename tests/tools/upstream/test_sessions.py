"""Sessions of MCP servers: whose they are, how many there may be, and what goes over the wire."""

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.upstreams import mcp_upstreams
from toolgate.access.devices import named_session, session_of
from toolgate.core.enums import HealthStatus, Isolation, Outcome
from toolgate.core.errors import Unavailable
from toolgate.core.tools import Caller, JsonValue, ToolOutput, ToolRequest
from toolgate.tools.capabilities import Server
from toolgate.tools.upstream import servers as mcp_upstream
from toolgate.tools.upstream import session as mcp_session
from toolgate.tools.upstream import stdio as mcp_stdio

SERVERS = Path(__file__).parent / "servers"


class Upstream:
    def __init__(self, server: Server) -> None:
        self.health: list[HealthStatus] = []
        self.server: Server | None = server
        self.sessions = mcp_upstreams(
            lambda name: self.server if name == "mcp.test" else None,
            report=lambda _name, health, _why: self.health.append(health),
        )

    async def call(
        self, action: str, /, *, session: str = "", device: str = "laptop", **args: JsonValue
    ) -> ToolOutput:
        caller = Caller(device=device, session=session_of(device, session))
        async with asyncio.timeout(60):
            return await self.sessions.run(ToolRequest("r", f"mcp.test.{action}", args, caller))


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    return tmp_path / "messages"


@pytest.fixture
async def plain(kept: Path) -> AsyncIterator[Upstream]:
    program = (str(SERVERS / "plain.py"), str(kept))
    upstream = Upstream(Server(command=sys.executable, args=program, isolation=Isolation.NONE))
    yield upstream
    await upstream.sessions.close()


def messages(kept: Path, method: str) -> list[dict[str, Any]]:
    if not kept.exists():
        return []
    found = [
        json.loads(line) for line in kept.read_text().splitlines(keepends=True) if line[-1:] == "\n"
    ]
    return [one for one in found if one.get("method") == method]


async def message(kept: Path, method: str) -> dict[str, Any]:
    """The one that the server got, or gets within a moment."""
    async with asyncio.timeout(10):
        while not (found := messages(kept, method)):
            await asyncio.sleep(0.01)
    return found[0]


@pytest.mark.requirement("002/mcp/session-id")
async def test_a_named_session_is_its_callers_alone(plain: Upstream) -> None:
    shared = (await plain.call("pid")).stdout
    mine = (await plain.call("pid", session="one")).stdout
    other = (await plain.call("pid", session="two")).stdout
    of_another_device = (await plain.call("pid", session="one", device="phone")).stdout
    assert len({shared, mine, other, of_another_device}) == 4
    assert (await plain.call("pid", session="one")).stdout == mine
    assert (await plain.call("pid", device="phone")).stdout == shared
    died = await plain.call("die", session="one")
    assert died.outcome is Outcome.MAY_HAVE_EXECUTED
    healed = (await plain.call("pid", session="one")).stdout
    assert healed not in (shared, mine, other, of_another_device)
    assert (await plain.call("pid", session="two")).stdout == other


async def test_the_session_that_was_idle_longest_makes_room(
    plain: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mcp_upstream, "MAX_NAMED", 2)
    for name in ("one", "two", "one", "three"):
        assert (await plain.call("say", session=name)).ok
    assert (await plain.call("say")).ok
    open_now = [named_session("laptop", key.session) for key in plain.sessions._sessions]
    assert sorted(open_now) == ["", "one", "three"]


async def test_a_session_in_use_does_not_make_room(
    plain: Upstream, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mcp_upstream, "MAX_NAMED", 1)
    waiting = asyncio.create_task(plain.call("wait", session="one"))
    await message(kept, "tools/call")
    refused = await plain.call("say", session="two")
    assert refused.outcome is Outcome.NOT_STARTED
    waiting.cancel()
    await asyncio.wait([waiting])
    assert (await plain.call("say", session="two")).ok


async def test_a_named_session_that_is_left_alone_ends(plain: Upstream) -> None:
    await plain.call("say", session="one")
    await plain.call("say")
    await plain.sessions.end_idle()
    assert len(plain.sessions._sessions) == 2
    await plain.sessions.end_idle(after_s=0)
    assert [key.session for key in plain.sessions._sessions] == [""]


async def test_a_cancelled_call_is_cancelled_at_the_server_and_the_session_lives(
    plain: Upstream, kept: Path
) -> None:
    waiting = asyncio.create_task(plain.call("wait"))
    call = await message(kept, "tools/call")
    waiting.cancel()
    await asyncio.wait([waiting])
    cancelled = await message(kept, "notifications/cancelled")
    assert cancelled["params"]["requestId"] == call["id"]
    assert (await plain.call("say")).stdout == "said"
    assert len(messages(kept, "initialize")) == 1


async def test_a_call_that_takes_too_long_is_cancelled_at_the_server(
    plain: Upstream, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await plain.call("say")
    monkeypatch.setattr(mcp_session, "CALL_S", 0.2)
    late = await plain.call("wait")
    assert late.outcome is Outcome.MAY_HAVE_EXECUTED


async def test_the_context_goes_along_as_meta(plain: Upstream, kept: Path) -> None:
    await plain.call("say", _meta={"tab": 7}, text="x")
    sent = (await message(kept, "tools/call"))["params"]
    assert sent["arguments"] == {"text": "x"}
    assert sent["_meta"]["toolgate/context"] == {"tab": 7}


async def test_answers_that_are_none_fail_and_do_not_stay(plain: Upstream) -> None:
    await plain.sessions.tools("mcp.test")
    for action in ("wrong", "lie", "ask"):
        output = await plain.call(action)
        assert not output.ok, action
        assert output.stderr
    assert (await plain.call("say")).stdout == "said"


@pytest.mark.parametrize("action", ["repeats", "asks_back"])
async def test_an_answer_is_found_among_whatever_else_a_server_says(
    plain: Upstream, kept: Path, action: str
) -> None:
    assert (await plain.call(action)).stdout == "said"
    assert (await plain.call("say")).stdout == "said"
    assert len(messages(kept, "initialize")) == 1


async def test_an_answer_with_an_error_of_null_is_no_error(plain: Upstream) -> None:
    assert (await plain.call("nulls")).ok


@pytest.mark.parametrize("action", ["mumbles", "halves", "deep"])
async def test_an_answer_that_cannot_be_read_is_told_at_once(
    plain: Upstream, kept: Path, action: str
) -> None:
    async with asyncio.timeout(mcp_session.CALL_S / 2):
        output = await plain.call(action)
    assert (output.ok, output.outcome) == (False, Outcome.MAY_HAVE_EXECUTED)
    assert (await plain.call("say")).stdout == "said"
    assert len(messages(kept, "initialize")) == 1


async def test_the_last_words_of_a_server_that_then_goes_are_heard(
    plain: Upstream, kept: Path
) -> None:
    pid = int((await plain.call("pid")).stdout)
    parting = asyncio.create_task(plain.call("parts"))
    async with asyncio.timeout(10):
        while len(messages(kept, "tools/call")) < 2:
            await asyncio.sleep(0)
    # Held up, as on a busy machine, the loop learns of words and end in the same moment.
    end = time.monotonic() + 10
    while is_there(pid) and time.monotonic() < end:
        time.sleep(0.01)
    assert (await parting).stdout == "bye"


async def test_a_schema_that_has_no_end_holds_nobody_up(plain: Upstream) -> None:
    await plain.sessions.tools("mcp.test")
    assert (await plain.call("loop")).ok  # what cannot be checked is not wrong for that
    async with asyncio.timeout(10):
        slow = await plain.call("slow")
    assert (slow.ok, slow.outcome) == (False, Outcome.MAY_HAVE_EXECUTED)
    assert (await plain.call("say")).ok


async def test_a_server_that_died_between_two_calls_is_started_anew_for_the_next(
    plain: Upstream,
) -> None:
    pid = int((await plain.call("pid")).stdout)
    (session,) = plain.sessions._sessions.values()
    assert session._pipe is not None
    os.kill(pid, signal.SIGKILL)
    async with asyncio.timeout(10):
        await session._pipe.ended
    assert (await plain.call("say")).stdout == "said"


def wait_for_end(pid: int) -> None:
    """The loop stands still meanwhile, and has heard nothing of it."""
    with contextlib.suppress(ChildProcessError):
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


async def test_a_server_that_died_a_moment_ago_unnoticed_is_started_anew_for_the_next(
    plain: Upstream,
) -> None:
    pid = int((await plain.call("pid")).stdout)
    os.kill(pid, signal.SIGKILL)
    wait_for_end(pid)
    assert (await plain.call("say")).stdout == "said"


async def test_what_a_server_answered_before_it_went_is_heard_though_another_calls_it(
    plain: Upstream, kept: Path
) -> None:
    pid = int((await plain.call("pid")).stdout)
    parting = asyncio.create_task(plain.call("parts"))
    async with asyncio.timeout(10):
        while len(messages(kept, "tools/call")) < 2:
            await asyncio.sleep(0)
    wait_for_end(pid)
    assert (await plain.call("say")).stdout == "said"
    assert (await parting).stdout == "bye"


async def test_a_call_whose_server_no_longer_listens_is_made_at_a_new_one(
    plain: Upstream, kept: Path
) -> None:
    pid = (await plain.call("pid")).stdout
    (session,) = plain.sessions._sessions.values()
    assert session._pipe is not None
    assert session._pipe._transport is not None
    stdin = session._pipe._transport.get_pipe_transport(0)
    assert stdin is not None
    stdin.close()
    again = await plain.call("pid")
    assert again.ok
    assert again.stdout != pid
    assert len(messages(kept, "tools/call")) == 2


async def test_a_call_that_a_busy_server_has_no_room_for_has_not_begun_and_ends_no_other(
    plain: Upstream, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept.with_name(kept.name + ".worked").touch()
    pid = int((await plain.call("pid")).stdout)
    monkeypatch.setattr(mcp_stdio, "MAX_MESSAGE", 300_000)
    monkeypatch.setattr(mcp_upstream, "STALE_S", 60.0)  # it is not asked whether it is there
    os.kill(pid, signal.SIGSTOP)  # it reads no more, and what it is sent stays with us
    try:
        working = asyncio.create_task(plain.call("work", text="x" * 4_000_000))
        (session,) = plain.sessions._sessions.values()
        async with asyncio.timeout(10):
            while not session.calls:
                await asyncio.sleep(0)
        refused = await plain.call("say")
    finally:
        os.kill(pid, signal.SIGCONT)
    assert (refused.ok, refused.outcome) == (False, Outcome.NOT_STARTED)
    assert (await working).stdout == "worked"
    assert int((await plain.call("pid")).stdout) == pid


async def test_a_server_that_died_once_is_not_offline_for_the_many_who_called_it(
    plain: Upstream,
) -> None:
    assert (await plain.call("say")).ok
    plain.health.clear()
    ended = await asyncio.gather(*(plain.call("wait") for _ in range(4)), plain.call("die"))
    assert not any(one.ok for one in ended)
    assert set(plain.health) == {HealthStatus.DEGRADED}


async def test_a_server_that_does_not_start_is_not_offline_for_the_many_who_called_it() -> None:
    nothing = Upstream(Server(command="/nowhere/at/all", isolation=Isolation.NONE))
    ended = await asyncio.gather(*(nothing.call("say") for _ in range(5)))
    assert not any(one.ok for one in ended)
    assert set(nothing.health) == {HealthStatus.DEGRADED}


async def test_a_server_that_was_changed_is_not_offline_for_what_the_one_before_it_did() -> None:
    upstream = Upstream(Server(command="/nowhere/at/all", isolation=Isolation.NONE))
    for _ in range(3):
        await upstream.call("say")
    assert upstream.health == [HealthStatus.DEGRADED, HealthStatus.DEGRADED, HealthStatus.OFFLINE]
    upstream.server = Server(command="/nowhere/else", isolation=Isolation.NONE)
    await upstream.call("say")
    assert upstream.health[3:] == [HealthStatus.DEGRADED]


async def test_the_end_of_a_server_that_was_replaced_is_not_told_of_the_new_one(
    plain: Upstream, kept: Path
) -> None:
    waiting = asyncio.create_task(plain.call("wait"))
    await message(kept, "tools/call")
    plain.health.clear()
    assert plain.server is not None
    plain.server = replace(plain.server, env=(("NEW", "yes"),))
    assert (await plain.call("say")).ok
    assert not (await waiting).ok
    assert set(plain.health) == {HealthStatus.HEALTHY}


async def test_an_error_amid_a_call_does_not_say_that_nothing_was_done(plain: Upstream) -> None:
    assert (await plain.call("unknown")).outcome is Outcome.NOT_STARTED
    for action in ("break", "ask"):
        assert (await plain.call(action)).outcome is Outcome.MAY_HAVE_EXECUTED, action


def silent(pids: Path) -> Server:
    """A program that never shakes hands."""
    return Server(
        command="sh", args=("-c", f"echo $$ >> '{pids}'; exec sleep 1000"), isolation=Isolation.NONE
    )


async def started(pids: Path) -> int:
    async with asyncio.timeout(20):
        while not pids.exists() or not pids.read_text().endswith("\n"):
            await asyncio.sleep(0.01)
    return int(pids.read_text().split()[-1])


def is_there(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


async def test_a_server_that_does_not_start_in_time_does_not_stay(
    kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mcp_session, "OPEN_S", 1.0)
    upstream = Upstream(silent(kept))
    output = await upstream.call("say")
    assert output.outcome is Outcome.NOT_STARTED
    pid = await started(kept)
    async with asyncio.timeout(10):
        while is_there(pid):
            await asyncio.sleep(0.01)


async def test_who_waits_for_a_session_that_is_let_go_is_told_and_not_cancelled(kept: Path) -> None:
    upstream = Upstream(silent(kept))
    calling = asyncio.create_task(upstream.call("say"))
    pid = await started(kept)
    await upstream.sessions.forget("mcp.test")
    assert (await calling).outcome is Outcome.NOT_STARTED
    assert not is_there(pid)


async def test_a_caller_that_is_cancelled_leaves_the_session_to_those_who_wait_too(
    plain: Upstream,
) -> None:
    first = asyncio.create_task(plain.call("pid"))
    second = asyncio.create_task(plain.call("pid"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    first.cancel()
    pid = (await second).stdout
    assert (await plain.call("pid")).stdout == pid


async def test_a_server_that_refuses_to_list_its_tools_is_told_as_unavailable(kept: Path) -> None:
    program = (str(SERVERS / "plain.py"), str(kept), "unlisted")
    upstream = Upstream(Server(command=sys.executable, args=program, isolation=Isolation.NONE))
    with pytest.raises(Unavailable):
        await upstream.sessions.tools("mcp.test")
    await upstream.sessions.close()


async def test_a_list_of_tools_that_never_ends_is_ended(kept: Path) -> None:
    program = (str(SERVERS / "plain.py"), str(kept), "endless")
    upstream = Upstream(Server(command=sys.executable, args=program, isolation=Isolation.NONE))
    async with asyncio.timeout(20):
        assert await upstream.sessions.tools("mcp.test") == {}
    await upstream.sessions.close()


async def test_a_server_that_works_on_one_call_is_not_given_up_for_its_silence(
    plain: Upstream, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await plain.call("say")
    monkeypatch.setattr(mcp_session, "CHECK_S", 0.1)
    monkeypatch.setattr(mcp_upstream, "STALE_S", 0.0)
    working = asyncio.create_task(plain.call("work"))
    async with asyncio.timeout(10):
        while len(messages(kept, "tools/call")) < 2:
            await asyncio.sleep(0.01)
    assert await plain.sessions.check("mcp.test")
    saying = asyncio.create_task(plain.call("say"))
    (session,) = plain.sessions._sessions.values()
    async with asyncio.timeout(10):
        while session.calls < 2:
            await asyncio.sleep(0.01)
    await plain.sessions.check("mcp.test")
    kept.with_name(kept.name + ".worked").touch()
    assert (await saying).stdout == "said"
    assert (await working).stdout == "worked"
    assert len(messages(kept, "initialize")) == 1


async def test_servers_that_hang_do_not_keep_another_from_coming_back(
    kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mcp_stdio, "LEAVE_S", 0.05)
    servers = {
        f"mcp.hangs{n}": Server(command="sleep", args=("60",), isolation=Isolation.NONE)
        for n in range(3)
    }
    servers["mcp.test"] = Server(command="/nowhere/at/all", isolation=Isolation.NONE)
    health: dict[str, HealthStatus] = {}

    def report(name: str, found: HealthStatus, _why: str) -> None:
        health[name] = found

    sessions = mcp_upstreams(servers.get, report=report)
    with monkeypatch.context() as hurry:
        hurry.setattr(mcp_session, "OPEN_S", 0.1)
        for name in servers:
            assert not await sessions.check(name)
    servers["mcp.test"] = Server(
        command=sys.executable,
        args=(str(SERVERS / "plain.py"), str(kept)),
        isolation=Isolation.NONE,
    )
    watching = asyncio.create_task(sessions.watch(every_s=0.01))
    try:
        async with asyncio.timeout(mcp_session.OPEN_S / 2):
            while health["mcp.test"] is not HealthStatus.HEALTHY:
                await asyncio.sleep(0.01)
    finally:
        watching.cancel()
        await asyncio.wait({watching})
        await sessions.close()


async def test_servers_are_looked_after_though_a_look_at_one_broke() -> None:
    reports: Counter[str] = Counter()

    def report(name: str, _: HealthStatus, _why: str) -> None:
        reports[name] += 1
        raise ValueError("a fault of ours")

    servers = {
        name: Server(command="/nowhere/at/all", isolation=Isolation.NONE)
        for name in ("mcp.one", "mcp.two")
    }
    sessions = mcp_upstreams(servers.get, report=report)
    watching = asyncio.create_task(sessions.watch(every_s=0.01, registered=lambda: servers))
    async with asyncio.timeout(10):
        while not watching.done() and min(reports[name] for name in servers) < 2:
            await asyncio.sleep(0.01)
    assert not watching.done()
    watching.cancel()
    await asyncio.wait({watching})
    await sessions.close()


@pytest.mark.parametrize("session", ["", "mine"])
async def test_the_process_of_a_server_that_was_removed_or_changed_ends(
    plain: Upstream, session: str
) -> None:
    assert plain.server is not None
    for follows in (replace(plain.server, env=(("NEW", "1"),)), None):
        pid = int((await plain.call("pid", session=session)).stdout)
        await plain.sessions.end_idle()
        assert is_there(pid)
        plain.server = follows
        await plain.sessions.end_idle()
        async with asyncio.timeout(10):
            while is_there(pid):
                await asyncio.sleep(0.01)


async def test_a_model_is_not_told_of_more_tools_than_it_can_read(kept: Path) -> None:
    program = (str(SERVERS / "plain.py"), str(kept), "talkative")
    upstream = Upstream(Server(command=sys.executable, args=program, isolation=Isolation.NONE))
    assert upstream.sessions.offered("mcp.test") == ()
    assert len(await upstream.sessions.tools("mcp.test")) == 501
    offered = [tool.name for tool in upstream.sessions.offered("mcp.test")]
    assert offered == [f"say{number}" for number in range(mcp_upstream.MAX_OFFERED)]
    await upstream.sessions.close()
