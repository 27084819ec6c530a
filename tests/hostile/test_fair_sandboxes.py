"""Callers that open sandboxes without end: nobody else loses a workspace, or waits for a place."""

import asyncio
import random
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import aiohttp
import pytest

from tests.e2e.harness import ANY_PORT, hang_up
from tests.e2e.test_tool_updates import Device, House, pair
from tests.support.engines import need
from tests.support.sandbox import FakeSandbox
from tests.support.streaming_runner import StreamingRunner
from toolgate import settings as table
from toolgate.bootstrap.roles import start_everything
from toolgate.core.tools import Caller, ToolRequest
from toolgate.sandbox.sandbox import Command, NotStarted
from toolgate.sandbox.sessions import MOST_OF_ONE, MOST_SESSIONS, Sessions
from toolgate.testing.clock import FakeClock

POLICY = """\
version: 1
name: fair
default: deny
rules:
  - {id: anything, allow: [exec, shell, file.write, file.read], match: any, reason: For the test}
"""
OPERATOR = "token-of-the-operator"


def request(device: str, session: str) -> ToolRequest:
    return ToolRequest("r", "shell", {}, Caller(device=device, session=session))


async def test_no_mix_of_callers_makes_one_with_few_sessions_lose_any(
    record_property: Callable[[str, object], None],
) -> None:
    """Each round: some victims with few sessions each, attackers in any order and number."""
    chance = random.Random(20261119)
    tried = lost = 0
    for _ in range(40):
        clock = FakeClock()
        sandbox = FakeSandbox()
        sessions = Sessions(sandbox, clock=clock)
        attackers = chance.randint(1, 8)
        share = (MOST_SESSIONS - attackers) // (attackers + 3)
        victims = {
            f"victim{n}": [f"v{m}" for m in range(chance.randint(1, share))] for n in range(3)
        }
        held = {
            (who, name): await sessions.open_for(request(who, name))
            for who, names in victims.items()
            for name in names
        }
        opened: dict[str, int] = defaultdict(int)
        for number in range(chance.randint(66, 200)):
            clock.advance(chance.randint(0, 50))
            who = f"attacker{chance.randrange(attackers)}"
            await sessions.open_for(request(who, f"a{number}"))
            opened[who] += 1
            tried += 1
        lost += sum(not session.alive for session in held.values())
        assert len(sessions) <= MOST_SESSIONS
        await sessions.close()
    record_property("class", ["fair sandboxes: shares", tried, tried - lost])
    assert lost == 0


async def test_one_caller_cannot_take_every_place_with_commands_that_run(
    record_property: Callable[[str, object], None],
) -> None:
    sandbox = FakeSandbox()
    sessions = Sessions(sandbox, clock=FakeClock())
    running = []
    refused = 0
    for number in range(MOST_SESSIONS):
        try:
            session = await sessions.open_for(request("attacker", f"a{number}"))
        except NotStarted:
            refused += 1
            continue
        sandbox.opened[-1].gate.clear()
        running.append(asyncio.create_task(session.exec(Command("x"))))
        await asyncio.sleep(0)
    assert (len(running), refused) == (MOST_OF_ONE, MOST_SESSIONS - MOST_OF_ONE)
    others = MOST_SESSIONS - MOST_OF_ONE
    for number in range(others):
        assert (await sessions.open_for(request(f"other{number}", "s"))).alive
    record_property("class", ["fair sandboxes: quota", MOST_SESSIONS, MOST_SESSIONS])
    for task in running:
        task.cancel()


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    need("bwrap")
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY)
    given = {
        "TOOLGATE_HOME": str(tmp_path / "home"),
        "POLICY_FILE": str(policy),
        "HEARTBEAT": "",
        "OPERATOR_TOKEN": OPERATOR,
    }
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(aiohttp.ClientSession())
        installation = await start_everything(table.load({**ANY_PORT, **given}, environment={}))
        stack.push_async_callback(installation.stop)
        stack.push_async_callback(hang_up)
        yield House(installation.urls, StreamingRunner(), http)


async def in_session(device: Device, session: str, *words: str, number: str) -> dict[str, object]:
    args = {"command": words[0], "params": list(words[1:])}
    payload = {"action": "exec", "args": args, "sessionId": session}
    answer = await device.run("system", payload, request_id=number)
    assert answer["ok"], answer
    data: dict[str, object] = answer["data"]
    return data


@pytest.mark.timeout(180)
async def test_66_commands_of_another_device_take_no_workspace_and_a_lost_one_is_said_to_be_new(
    house: House, record_property: Callable[[str, object], None]
) -> None:
    victim, attacker = await pair(house, "victim"), await pair(house, "attacker")
    first = await in_session(victim, "mine", "touch", "notes", number="v1")
    assert first["workspace"] == "new"
    tried = MOST_SESSIONS + 2
    for number in range(2):  # each call of a command without a session has a sandbox of its own
        calls = [
            {"id": f"{each}", "name": "shell", "arguments": {"command": "pwd"}}
            for each in range(tried // 2)
        ]
        answer = await attacker.run("tool", {"toolCalls": calls}, request_id=f"a{number}")
        assert answer["ok"], answer
    await in_session(attacker, "s0", "pwd", number="first")
    for number in range(MOST_OF_ONE):
        await in_session(attacker, f"t{number}", "pwd", number=f"t{number}")
    left = await in_session(victim, "mine", "ls", number="v2")
    held = left["stdout"] == "notes\n"
    record_property("class", ["fair sandboxes: at the door", tried, tried if held else 0])
    assert held
    assert "workspace" not in left
    own = await in_session(attacker, "s0", "ls", number="again")
    assert own["workspace"] == "new", "its own is gone, and the answer says so"
