"""Two who change the same capability at once."""

import asyncio

import pytest

from tests.support.audit import SilentAudit
from tests.support.seal import PlainSeal
from toolgate.core.enums import HealthStatus, Level
from toolgate.core.errors import Conflict
from toolgate.journal.journal import Append, Check, Event, NewEvent, Operation
from toolgate.journal.local_bus import LocalBus
from toolgate.testing.clock import FakeClock
from toolgate.testing.journal import MemoryJournal
from toolgate.tools.capabilities import Capability, Server
from toolgate.tools.capability_registry import CAPABILITIES, Capabilities


class Held(MemoryJournal):
    """Commits once it may."""

    def __init__(self) -> None:
        super().__init__(clock=FakeClock(), bus=LocalBus())
        self.may = asyncio.Event()
        self.waiting = 0

    async def commit(self, *operations: Operation, durable: bool = True) -> list[Event]:
        self.waiting += 1
        await self.may.wait()
        return await super().commit(*operations, durable=durable)


async def test_a_capability_that_is_removed_twice_at_once_is_removed_once() -> None:
    journal = Held()
    capabilities = Capabilities(journal, FakeClock(), PlainSeal(), SilentAudit())
    journal.may.set()
    await capabilities.register(Capability("weather", "Weather", Level.READ, 1), by="operator")
    journal.may.clear()
    journal.waiting = 0
    removals = [asyncio.create_task(capabilities.remove("weather", by=who)) for who in "ab"]
    async with asyncio.timeout(5):
        while journal.waiting < 2:
            await asyncio.sleep(0)
        journal.may.set()
        await asyncio.gather(*removals)
    assert capabilities.get("weather") is None
    (row,) = await journal.scan(CAPABILITIES)
    assert (row.version, row.value) == (2, b"null")
    after_a_restart = Capabilities(journal, FakeClock(), PlainSeal(), SilentAudit())
    await after_a_restart.load()
    assert after_a_restart.all() == []


async def test_terms_that_come_while_a_server_is_registered_leave_it_there() -> None:
    journal = Held()
    capabilities = Capabilities(journal, FakeClock(), PlainSeal(), SilentAudit())
    with_server = Capability("weather", "Weather", Level.READ, 1, server=Server(url="http://w/"))
    terms = Capability("weather", "Weather", Level.READ, 2, status=HealthStatus.DEGRADED)
    both = [
        asyncio.create_task(capabilities.register(one, by="operator"))
        for one in (with_server, terms)
    ]
    async with asyncio.timeout(5):
        while not journal.waiting:
            await asyncio.sleep(0)
        journal.may.set()
        await asyncio.gather(*both)
    again = Capabilities(journal, FakeClock(), PlainSeal(), SilentAudit())
    await again.load()
    for known in (capabilities.get("weather"), again.get("weather")):
        assert known is not None
        assert (known.server, known.status) == (with_server.server, HealthStatus.DEGRADED)


def two_nodes(*built_in: Capability) -> tuple[MemoryJournal, Capabilities, Capabilities]:
    journal = MemoryJournal(clock=FakeClock(), bus=LocalBus())
    here, there = (
        Capabilities(journal, FakeClock(), PlainSeal(), SilentAudit(), built_in=built_in)
        for _ in range(2)
    )
    return journal, here, there


WEATHER = Capability("weather", "Weather", Level.READ, 1)


async def test_the_check_of_a_capability_holds_until_its_terms_change() -> None:
    journal, capabilities, _ = two_nodes()
    assert capabilities.check_of("weather") is None
    await capabilities.register(WEATHER, by="operator")
    check = capabilities.check_of("weather")
    assert check == Check(CAPABILITIES, "weather", 1)
    await journal.commit(check)
    after_a_restart = Capabilities(journal, FakeClock(), PlainSeal(), SilentAudit())
    await after_a_restart.load()
    assert after_a_restart.check_of("weather") == check
    await capabilities.register(WEATHER, by="operator")
    with pytest.raises(Conflict):
        await journal.commit(check, Append("a", [NewEvent("called", b"")]))
    assert capabilities.check_of("weather") == Check(CAPABILITIES, "weather", 2)


async def test_the_check_of_a_built_in_capability_is_that_nobody_registered_terms() -> None:
    journal, here, there = two_nodes(WEATHER)
    await here.load()
    await there.load()
    check = here.check_of("weather")
    assert check == Check(CAPABILITIES, "weather", 0)
    await there.register(Capability("weather", "Weather", Level.SIGN, 2), by="operator")
    with pytest.raises(Conflict):
        await journal.commit(check)


async def test_the_check_of_removed_terms_does_not_hold_for_new_ones() -> None:
    journal, capabilities, _ = two_nodes()
    await capabilities.register(WEATHER, by="operator")
    check = capabilities.check_of("weather")
    assert check is not None
    await capabilities.remove("weather", by="operator")
    assert capabilities.check_of("weather") is None
    await capabilities.register(WEATHER, by="operator")
    with pytest.raises(Conflict):
        await journal.commit(check)
    now = capabilities.check_of("weather")
    assert now is not None
    await journal.commit(now)


async def test_a_capability_that_was_changed_on_another_node_is_read_again() -> None:
    _, here, there = two_nodes()
    served = Capability("weather", "Weather", Level.READ, 1, server=Server(url="http://w/"))
    await there.register(served, by="operator")
    kept = await here.register(WEATHER, by="operator")
    assert kept.server == served.server
    await there.remove("weather", by="operator")
    assert there.get("weather") is None
    await here.remove("weather", by="operator")
    assert here.get("weather") is None
