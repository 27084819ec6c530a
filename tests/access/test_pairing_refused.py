"""Pairing on a disk that refuses: what could not be written can be asked for again."""

import pytest

from tests.support.audit import SilentAudit, SilentEvidence
from tests.support.people import known_to
from toolgate.access.devices import Contact, Scope
from toolgate.access.pairing import PAIRINGS, Pairing
from toolgate.access.refusals import InvalidToken
from toolgate.access.registry import Credentials, Registry
from toolgate.core.errors import NotFound, Unavailable
from toolgate.journal.journal import Event, Operation
from toolgate.journal.local_bus import LocalBus
from toolgate.testing.clock import FakeClock
from toolgate.testing.journal import MemoryJournal

LAPTOP = Contact("laptop", "192.0.2.1")


class Full(MemoryJournal):
    """A disk that refuses everything while it is full."""

    is_full = False

    async def commit(self, *operations: Operation, durable: bool = True) -> list[Event]:
        if self.is_full:
            raise Unavailable("the disk is full")
        return await super().commit(*operations, durable=durable)


@pytest.fixture
def journal() -> Full:
    return Full(clock=FakeClock(), bus=LocalBus())


def make(journal: Full) -> Pairing:
    registry = Registry(journal, FakeClock())
    return Pairing(journal, FakeClock(), registry, SilentAudit(), SilentEvidence())


async def test_a_request_that_could_not_be_turned_down_waits_on(journal: Full) -> None:
    pairing = make(journal)
    await pairing.knock(LAPTOP)
    journal.is_full = True
    with pytest.raises(Unavailable):
        await pairing.revoke("laptop", by="operator")
    journal.is_full = False
    assert [one.device_id for one in pairing.pending()] == ["laptop"]
    await pairing.revoke("laptop", by="operator")
    assert pairing.pending() == []
    assert await journal.scan(PAIRINGS) == []
    with pytest.raises(NotFound):
        await pairing.revoke("laptop", by="operator")


async def test_a_stranger_under_a_paired_name_who_could_not_be_turned_down_waits_on(
    journal: Full,
) -> None:
    pairing = make(journal)
    token = await pairing.registry.pair("laptop", Scope(), public_key="")
    await pairing.knock(LAPTOP)
    journal.is_full = True
    with pytest.raises(Unavailable):
        await pairing.reject("laptop", by="operator")
    journal.is_full = False
    assert [one.device_id for one in pairing.pending()] == ["laptop"]
    await pairing.reject("laptop", by="operator")
    assert (pairing.pending(), await journal.scan(PAIRINGS)) == ([], [])
    assert known_to(pairing.registry).device(Credentials("laptop", token)).name == "laptop"
    with pytest.raises(NotFound):
        await pairing.reject("laptop", by="operator")


async def test_a_device_that_knocks_after_its_revocation_was_refused_is_revoked_for_good(
    journal: Full,
) -> None:
    pairing = make(journal)
    token = await pairing.registry.pair("laptop", Scope(), public_key="")
    journal.is_full = True
    with pytest.raises(Unavailable):
        await pairing.revoke("laptop", by="operator")
    journal.is_full = False
    await pairing.knock(LAPTOP)
    await pairing.revoke("laptop", by="operator")
    after_a_restart = make(journal).registry
    await after_a_restart.load()
    with pytest.raises(InvalidToken):
        known_to(after_a_restart).device(Credentials("laptop", token))
