"""The key of what is sealed: lost, it is told, and there is a way to go on without it."""

from pathlib import Path

import aiohttp
import pytest

from tests.e2e.harness import ANY_PORT, INTERNAL
from toolgate import settings as table
from toolgate.bootstrap.roles import start_orchestrator
from toolgate.bootstrap.sealing import KEY_FILE, LOST, open_seal
from toolgate.commands.records import KEYS
from toolgate.core.errors import Damaged
from toolgate.journal.journal import Put
from toolgate.journal.local_bus import LocalBus
from toolgate.runs.agents.registry import AGENTS
from toolgate.secrets.aesgcm_seal import KEY_BYTES, AesGcmSeal
from toolgate.testing.clock import FakeClock
from toolgate.testing.journal import MemoryJournal


async def journal_with(*rows: Put) -> MemoryJournal:
    journal = MemoryJournal(clock=FakeClock(), bus=LocalBus())
    await journal.commit(*rows)
    return journal


async def test_a_lost_key_is_told_and_not_replaced_until_its_owner_gives_it_up(
    tmp_path: Path,
) -> None:
    seal = await open_seal(tmp_path, await journal_with())
    journal = await journal_with(
        Put(AGENTS, "a", seal.close(b"a"), expected=0), Put("others", "o", b"o", expected=0)
    )
    assert (await open_seal(tmp_path, journal)).open(seal.close(b"x")) == b"x"

    (tmp_path / KEY_FILE).unlink()
    with pytest.raises(Damaged, match=f"{KEY_FILE} is gone.*{LOST}"):
        await open_seal(tmp_path, journal)
    assert not (tmp_path / KEY_FILE).exists()
    assert await journal.get(AGENTS, "a") is not None

    (tmp_path / LOST).touch()
    made = await open_seal(tmp_path, journal)
    assert await journal.get(AGENTS, "a") is None
    assert await journal.get("others", "o") is not None
    assert not (tmp_path / LOST).exists()  # it was said of that key, and not of the next
    assert (await open_seal(tmp_path, journal)).open(made.close(b"x")) == b"x"


async def test_a_wrong_key_is_told_and_can_be_given_up(tmp_path: Path) -> None:
    (tmp_path / KEY_FILE).write_bytes(b"w" * KEY_BYTES)
    journal = await journal_with(
        Put(AGENTS, "a", AesGcmSeal(b"k" * KEY_BYTES).close(b"a"), expected=0)
    )
    with pytest.raises(Damaged, match=f"rename it to .*{LOST}"):
        await open_seal(tmp_path, journal)
    (tmp_path / KEY_FILE).rename(tmp_path / LOST)
    await open_seal(tmp_path, journal)
    assert await journal.scan(AGENTS) == []


async def test_answers_that_are_kept_for_minutes_do_not_stand_in_the_way_of_a_start(
    tmp_path: Path,
) -> None:
    journal = await journal_with(
        Put(KEYS, "k", AesGcmSeal(b"k" * KEY_BYTES).close(b"answer"), expected=0)
    )
    await open_seal(tmp_path, journal)
    assert await journal.scan(KEYS) == []  # whoever asks again would meet what nobody can open


async def test_an_installation_whose_key_was_lost_starts_again(tmp_path: Path) -> None:
    settings = table.load(
        {**ANY_PORT, "TOOLGATE_HOME": str(tmp_path), "LOG_LEVEL": "error"},
        environment={},
    )
    agent = {"agent_id": "mine", "endpoint": "http://127.0.0.1:9/", "auth_token": "of-the-agent"}
    installation = await start_orchestrator(settings)
    try:
        url = f"{installation.urls['orchestrator']}/internal/agents"
        async with (
            aiohttp.ClientSession(headers=INTERNAL) as http,
            http.post(url, json=agent) as registered,
        ):
            assert registered.status == 201
    finally:
        await installation.stop()
    (tmp_path / KEY_FILE).unlink()
    with pytest.raises(Damaged):
        await start_orchestrator(settings)
    (tmp_path / LOST).touch()
    installation = await start_orchestrator(settings)
    try:
        url = f"{installation.urls['orchestrator']}/internal/agents"
        async with aiohttp.ClientSession(headers=INTERNAL) as http, http.get(url) as listed:
            assert "mine" not in await listed.text()
    finally:
        await installation.stop()
