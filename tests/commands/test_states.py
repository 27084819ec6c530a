"""Where a command stands, asked for while that changes."""

import asyncio

import msgspec
import pytest
from toolgate.commands.reading import Entered

from tests.support.seal import PlainSeal
from toolgate.access.devices import Identity, Who
from toolgate.commands.plans import Waiting
from toolgate.commands.states import OPEN, STATE_KEPT_MS, STATES, States
from toolgate.contracts.gateway_v1 import CommandStatus
from toolgate.core.enums import CommandKind
from toolgate.core.errors import NotFound
from toolgate.journal.journal import Row
from toolgate.journal.local_bus import LocalBus
from toolgate.testing.clock import FakeClock
from toolgate.testing.journal import MemoryJournal

LAPTOP = Identity(Who.DEVICE, "laptop")
ANSWER = b'{"ok":true,"data":"done","traceId":"t"}'
ENTERED = Entered(
    kind=CommandKind.TOOL,
    identity=LAPTOP,
    raw=b"{}",
    command=None,
    level=None,
    command_id="cmd_1",
    request_id="r",
    named=True,
    key="",
    request_hash="",
    trace_id="t",
    at=0,
    started=0.0,
)


class SlowJournal(MemoryJournal):
    """Has found a command's row, and keeps it until it may go on."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(clock=clock, bus=LocalBus())
        self.found = asyncio.Event()
        self.may_go_on = asyncio.Event()

    async def get(self, collection: str, key: str) -> Row | None:
        row = await super().get(collection, key)
        if collection == STATES and not self.found.is_set():
            self.found.set()
            await self.may_go_on.wait()
        return row


@pytest.mark.parametrize("waited", [True, False])
async def test_an_end_that_comes_while_the_state_is_read_is_told(waited: bool) -> None:
    clock = FakeClock()
    journal = SlowJournal(clock)
    states = States(journal, LocalBus(), clock, PlainSeal())
    if waited:
        await journal.commit(*states.wait(ENTERED, Waiting("appr_1"), due=None))
    states.enter(ENTERED, "pay", "")
    asked = asyncio.create_task(states.state(LAPTOP, "r", wait=60))
    await journal.found.wait()
    await journal.commit(*states.end(ENTERED, ANSWER, waited=waited))
    states.leave(ENTERED)
    journal.may_go_on.set()
    async with asyncio.timeout(5):
        assert (await asked).status is CommandStatus.DONE


async def test_a_command_that_ended_as_its_approval_expired_is_not_opened_again() -> None:
    clock = FakeClock()
    journal = MemoryJournal(clock=clock, bus=LocalBus())
    states = States(journal, LocalBus(), clock, PlainSeal())
    await journal.commit(*states.wait(ENTERED, Waiting("appr_1"), due=clock.now_ms()))
    (due,) = [row for row in await journal.due(until=clock.now_ms()) if row.collection == OPEN]
    await journal.commit(*states.end(ENTERED, ANSWER, waited=True))
    await states.on_open_due(due)
    assert await journal.scan(OPEN) == []


async def test_a_command_that_ends_leaves_a_later_one_of_the_same_request_id_running() -> None:
    clock = FakeClock()
    journal = MemoryJournal(clock=clock, bus=LocalBus())
    states = States(journal, LocalBus(), clock, PlainSeal())
    later = msgspec.structs.replace(ENTERED, command_id="cmd_2")
    states.enter(ENTERED, "pay", "")
    states.enter(later, "pay", "")
    states.leave(ENTERED)
    assert (await states.state(LAPTOP, "r", wait=0)).status is CommandStatus.RUNNING
    states.leave(later)
    with pytest.raises(NotFound):
        await states.state(LAPTOP, "r", wait=0)


async def test_a_command_is_forgotten_a_day_after_it_ended() -> None:
    clock = FakeClock()
    journal = MemoryJournal(clock=clock, bus=LocalBus())
    states = States(journal, LocalBus(), clock, PlainSeal())
    await journal.commit(*states.end(ENTERED, ANSWER, waited=False))
    clock.advance(STATE_KEPT_MS - 1)
    assert await journal.due(until=clock.now_ms()) == []
    clock.advance(1)
    (due,) = await journal.due(until=clock.now_ms())
    await states.on_state_due(due)
    with pytest.raises(NotFound):
        await states.state(LAPTOP, "r", wait=0)


async def test_a_command_that_ends_as_an_older_one_of_its_name_is_forgotten_is_not() -> None:
    clock = FakeClock()
    journal = MemoryJournal(clock=clock, bus=LocalBus())
    states = States(journal, LocalBus(), clock, PlainSeal())
    await journal.commit(*states.end(ENTERED, ANSWER, waited=False))
    clock.advance(STATE_KEPT_MS)
    (due,) = await journal.due(until=clock.now_ms())
    later = msgspec.structs.replace(ENTERED, command_id="cmd_2")
    await journal.commit(*states.end(later, ANSWER, waited=False))
    await states.on_state_due(due)
    assert (await states.state(LAPTOP, "r", wait=0)).status is CommandStatus.DONE
