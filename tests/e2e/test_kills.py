"""Kills under load on every way in: nothing acknowledged is lost, and nothing happens twice.

Every client repeats what was not answered, with the same id. After a number of kills all of them
come to rest, and what the answers, events, approvals and audit rows say is compared with the
effects that the tools have counted.
"""

import asyncio
import contextlib
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import aiohttp
import pytest

from tests.e2e.harness import hang_up
from tests.e2e.kills.checks import Checks, verify
from tests.e2e.kills.commands import Client, command_clients
from tests.e2e.kills.installation import Installation, run_command
from tests.e2e.kills.operations import Counts
from tests.e2e.kills.sessions import GONE, session_clients
from tests.e2e.kills.tasks import task_clients
from tests.support.runner import FakeRunner

PHASES = 6
LONGEST_S = 1.2  # from ready to a kill
MOST_ANSWERS = 60  # from ready to a kill
IN_START = 0.1  # the share of kills that come before it is ready
LONGEST_START_S = 0.4
SETTLED_S = 120.0  # a bound, not an expectation
LOST = (*GONE, aiohttp.ClientError)
COLUMNS = ("acknowledged", "repeated", "interrupted", "refused", "unanswered")


async def kill_in_start(at: Installation, chance: random.Random) -> None:
    await at.program.launch()
    await asyncio.sleep(chance.uniform(0.0, LONGEST_START_S))
    await at.program.kill()


async def kill_under_load(
    at: Installation, clients: Sequence[Client], chance: random.Random
) -> None:
    """Kill it after a time, or as soon as a number of requests is answered."""
    await at.program.start()
    lives = [asyncio.create_task(client.live(at), name=client.name) for client in clients]
    enough = at.acknowledged + chance.choice([MOST_ANSWERS * 10, chance.randint(1, MOST_ANSWERS)])
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(chance.uniform(0.0, LONGEST_S)):
            while at.acknowledged < enough:
                await asyncio.sleep(0.001)
    await at.program.kill()
    outcomes = await asyncio.gather(*lives, return_exceptions=True)
    for outcome, client in zip(outcomes, clients, strict=True):
        if outcome is not None and not isinstance(outcome, LOST):
            raise AssertionError(client.name) from outcome


async def settle(at: Installation, clients: Sequence[Client], checks: Checks) -> None:
    """Let every client get its answers; check them; kill it, and verify what is on disk."""
    await at.program.start()
    async with asyncio.timeout(SETTLED_S):
        await asyncio.gather(*(client.settle(at) for client in clients))
    await checks.settled(clients)
    await at.program.kill()
    checks.problems += await asyncio.to_thread(verify, at)
    if checks.problems:
        pytest.fail("\n".join(checks.problems), pytrace=False)


def table(kills: int, clients: Sequence[Client], ticks: Counts) -> str:
    """The number of requests of each way in, and of the schedule's jobs, by their answers."""
    head = "".join(name.rjust(14) for name in COLUMNS)
    rows = [f"{f'{kills} kills':20}{head}"]
    total = Counts()
    for client in clients:
        counts = Counts()
        for each in (counts, total):
            each.add(client.operations)
        rows.append(_row(client.name, counts))
    return "\n".join([*rows, _row("schedule", ticks), _row("all", total)])


def _row(name: str, counts: Counts) -> str:
    return f"{name:20}" + "".join(str(getattr(counts, column)).rjust(14) for column in COLUMNS)


@pytest.mark.timeout(1800)
@pytest.mark.soak("kills", rounds=300, short=6)
@pytest.mark.requirement(
    "001/durability/invoke-survives",
    "001/durability/result-survives",
    "001/durability/decision-survives",
    "001/durability/tool-not-twice",
    "001/durability/seq-survives",
    "002/events/ends-survive-kill",
    "002/idempotency/survives-restart",
    "003/repeat/for-ever",
)
async def test_kills_on_every_way_in_lose_nothing_and_repeat_nothing(
    tmp_path: Path, rounds: int, record_property: Callable[[str, object], None]
) -> None:
    chance = random.Random(15)
    clients = [*command_clients(), *session_clients(), *task_clients()]
    jar = aiohttp.CookieJar(unsafe=True)
    async with aiohttp.ClientSession(cookie_jar=jar) as http, FakeRunner(run_command) as runner:
        at = Installation.at(tmp_path, http, runner)
        await at.program.start()
        await at.prepare()
        await at.program.kill()
        checks = Checks(at, chance)
        phases = min(PHASES, rounds // 6)
        for phase in range(phases):
            for _ in range(rounds * (phase + 1) // phases - rounds * phase // phases):
                if chance.random() < IN_START:
                    await kill_in_start(at, chance)
                else:
                    await kill_under_load(at, clients, chance)
            await settle(at, clients, checks)
    await hang_up()
    record_property("table", table(rounds, clients, checks.jobs()))
    for client in clients:  # a way in on which nothing succeeds would prove nothing
        done = [one for one in client.operations if one.is_acknowledged]
        assert any(one.succeeded for one in done), f"{client.name}: {done[:1]}"
