"""Two who change the same capability at once."""

import asyncio

from tests.support.audit import SilentAudit
from tests.support.seal import PlainSeal
from toolgate.core.enums import HealthStatus, Level
from toolgate.journal.journal import Event, Operation
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
    assert await journal.scan(CAPABILITIES) == []


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
