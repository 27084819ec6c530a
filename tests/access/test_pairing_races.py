"""Two words on one device at the same time: what was said last holds, on disk and in memory."""

import asyncio

import pytest

from tests.support.audit import SilentAudit, SilentEvidence
from toolgate.access.devices import Contact, Scope
from toolgate.access.pairing import PAIRINGS, Pairing
from toolgate.access.registry import Registry
from toolgate.journal.journal import Event, Operation
from toolgate.journal.local_bus import LocalBus
from toolgate.testing.clock import FakeClock
from toolgate.testing.journal import MemoryJournal

LAPTOP = Contact("laptop", "127.0.0.1")


class SlowJournal(MemoryJournal):
    """While it may not go on, it keeps what it is given, in order."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(clock=clock, bus=LocalBus())
        self.may_go_on = asyncio.Event()
        self.may_go_on.set()

    async def commit(self, *operations: Operation, durable: bool = True) -> list[Event]:
        await self.may_go_on.wait()
        return await super().commit(*operations, durable=durable)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def journal(clock: FakeClock) -> SlowJournal:
    return SlowJournal(clock)


def make(journal: SlowJournal, clock: FakeClock, *, auto_approve: bool = False) -> Pairing:
    registry = Registry(journal, clock)
    audit, evidence = SilentAudit(), SilentEvidence()
    return Pairing(journal, clock, registry, audit, evidence, auto_approve)


@pytest.mark.parametrize("was_revoked_before", [False, True])
@pytest.mark.parametrize("auto_approve", [False, True])
async def test_a_device_that_is_revoked_while_it_is_let_in_is_revoked(
    journal: SlowJournal, clock: FakeClock, auto_approve: bool, was_revoked_before: bool
) -> None:
    pairing = make(journal, clock, auto_approve=auto_approve and not was_revoked_before)
    if was_revoked_before:
        await pairing.registry.pair("laptop", Scope(), public_key="")
        await pairing.revoke("laptop", by="operator")
    if not pairing.auto_approve:
        await pairing.knock(LAPTOP)
    journal.may_go_on.clear()
    letting_in: asyncio.Task[object] = asyncio.create_task(
        pairing.knock(LAPTOP)
        if pairing.auto_approve
        else pairing.approve("laptop", None, by="operator")
    )
    await asyncio.sleep(0)
    revoking = asyncio.create_task(pairing.revoke("laptop", by="operator"))
    await asyncio.sleep(0)
    journal.may_go_on.set()
    async with asyncio.timeout(5):
        await asyncio.gather(letting_in, revoking)
    after_a_restart = make(journal, clock)
    await after_a_restart.registry.load()
    for known in (pairing, after_a_restart):
        assert known.registry.devices == []
        assert known.pending() == []


async def test_the_end_of_an_old_request_does_not_take_the_new_one_along(
    journal: SlowJournal, clock: FakeClock
) -> None:
    pairing = make(journal, clock)
    await pairing.knock(LAPTOP)
    (old,) = await journal.scan(PAIRINGS)
    clock.advance(600_000)
    await pairing.knock(LAPTOP)
    await pairing.on_due(old)  # as it was read before the second knock
    after_a_restart = make(journal, clock)
    await after_a_restart.load()
    assert [one.device_id for one in after_a_restart.pending()] == ["laptop"]
