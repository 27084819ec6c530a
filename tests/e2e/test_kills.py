"""Toolgate is killed under load on every way in: nothing acknowledged is lost, nothing happens twice."""

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

PHASES = 6  # the clients come to rest and all is checked after each
LONGEST_S = 0.7  # from ready to a kill
IN_START = 0.1  # the share of kills that do not wait until it is ready
LONGEST_START_S = 0.4
LOST = (*GONE, aiohttp.ClientError)


async def kill_in_start(at: Installation, chance: random.Random) -> None:
    await at.program.launch()
    await asyncio.sleep(chance.uniform(0.0, LONGEST_START_S))
    await at.program.kill()


async def kill_under_load(
    at: Installation, clients: Sequence[Client], chance: random.Random
) -> None:
    """By time, or as soon as a number of requests is answered."""
    await at.program.start()
    lives = [asyncio.create_task(client.live(at), name=client.name) for client in clients]
    if chance.random() < 0.5:
        await asyncio.sleep(chance.uniform(0.0, LONGEST_S))
    else:
        enough = at.acknowledged + chance.randint(1, 60)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LONGEST_S):
                while at.acknowledged < enough:
                    await asyncio.sleep(0)
    await at.program.kill()
    outcomes = await asyncio.gather(*lives, return_exceptions=True)
    for outcome, client in zip(outcomes, clients, strict=True):
        if outcome is not None and not isinstance(outcome, LOST):
            raise AssertionError(client.name) from outcome


async def settle(at: Installation, clients: Sequence[Client], checks: Checks) -> None:
    import time; t=time.monotonic()
    await at.program.start()
    await asyncio.gather(*(client.settle(at) for client in clients))
    print("settled", time.monotonic()-t)
    await checks.settled(clients)
    print("checked", time.monotonic()-t)
    await at.program.kill()
    checks.problems += await asyncio.to_thread(verify, at)


def table(clients: Sequence[Client]) -> str:
    lines = [f"{'way in':20}{'acknowledged':>14}{'repeated':>10}{'interrupted':>13}{'refused':>9}"]
    total = Counts()
    for client in clients:
        counts = Counts()
        counts.add(client.operations)
        total.add(client.operations)
        lines.append(_row(client.name, counts))
    return "\n".join([*lines, _row("all", total)])


def _row(name: str, counts: Counts) -> str:
    return (
        f"{name:20}{counts.acknowledged:14}{counts.repeated:10}"
        f"{counts.interrupted:13}{counts.refused:9}"
    )


@pytest.mark.timeout(1800)
@pytest.mark.soak("kills", rounds=300, short=6)
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
        phases = min(PHASES, rounds // 3)
        for phase in range(phases):
            for _ in range(rounds * (phase + 1) // phases - rounds * phase // phases - 1):
                if chance.random() < IN_START:
                    await kill_in_start(at, chance)
                else:
                    await kill_under_load(at, clients, chance)
            await settle(at, clients, checks)
            print(table(clients))
            assert not checks.problems, "\n".join(checks.problems[:40])
    await hang_up()
    record_property("table", table(clients))
    assert all(one.operations for one in clients), table(clients)
