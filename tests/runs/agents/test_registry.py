"""External agents, registered on two nodes that share a journal."""

import pytest

from tests.support.seal import PlainSeal
from toolgate.core.errors import NotFound
from toolgate.evidence.audit import AuditLog
from toolgate.journal.local_bus import LocalBus
from toolgate.runs.agents.agent import Agent
from toolgate.runs.agents.registry import AGENTS, Agents, External
from toolgate.secrets.patterns import SecretPatterns
from toolgate.testing.clock import FakeClock
from toolgate.testing.journal import MemoryJournal


def unreachable(agent: External) -> Agent:
    raise NotImplementedError


def two_nodes() -> tuple[MemoryJournal, Agents, Agents, list[str]]:
    journal = MemoryJournal(clock=FakeClock(), bus=LocalBus())
    audit = AuditLog(journal, redactor=SecretPatterns().redactor())
    learned: list[str] = []
    here, there = (
        Agents(
            journal,
            {},
            unreachable,
            PlainSeal(),
            audit,
            learn=lambda secret, _: learned.append(secret),
        )
        for _ in range(2)
    )
    return journal, here, there, learned


async def test_an_agent_that_was_registered_elsewhere_is_changed() -> None:
    journal, here, there, learned = two_nodes()
    await here.register(External("butler", "http://a/", auth_token="first"), by="test")
    await there.register(External("butler", "http://b/", auth_token="second"), by="test")
    await here.register(External("butler", "http://c/", auth_token="third"), by="test")
    (row,) = await journal.scan(AGENTS)
    assert row.version == 3
    assert [one.endpoint for one in await there.external()] == ["http://c/"]
    assert {"first", "second", "third"} <= set(learned)


async def test_an_agent_that_was_changed_elsewhere_is_removed_all_the_same() -> None:
    journal, here, there, _ = two_nodes()
    await here.register(External("butler", "http://a/"), by="test")
    await there.register(External("butler", "http://b/"), by="test")
    await here.remove("butler", by="test")
    assert await journal.scan(AGENTS) == []
    assert not here.knows("butler")
    with pytest.raises(NotFound):
        await there.remove("butler", by="test")
    assert not there.knows("butler")
    await there.register(External("butler", "http://c/"), by="test")
    assert there.knows("butler")
