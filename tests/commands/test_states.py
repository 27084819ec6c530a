"""The state of a command, asked for while it changes."""

import asyncio

import pytest

from tests.commands.rows import COMMAND, LAPTOP, ROWS, as_command, ended
from toolgate.commands.plans import Command, Waiting
from toolgate.commands.records import ENDED, ENDED_KEPT_MS, OPEN
from toolgate.commands.states import Keys, States
from toolgate.contracts.gateway_v1 import CommandStatus
from toolgate.core.errors import NotFound
from toolgate.core.ids import Owner
from toolgate.journal.journal import Delete, Operation, Row
from toolgate.journal.local_bus import LocalBus
from toolgate.testing.clock import FakeClock
from toolgate.testing.journal import MemoryJournal


class SlowJournal(MemoryJournal):
    """A journal that holds back the first command's row that it finds."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(clock=clock, bus=LocalBus())
        self.found = asyncio.Event()
        self.may_go_on = asyncio.Event()

    async def scan(
        self, collection: str, *, after: str = "", limit: int = 1000, newest_first: bool = False
    ) -> list[Row]:
        rows = await super().scan(collection, after=after, limit=limit, newest_first=newest_first)
        if collection == ENDED and not self.found.is_set():
            self.found.set()
            await self.may_go_on.wait()
        return rows


def states_on(journal: MemoryJournal, clock: FakeClock) -> States:
    return States(journal, LocalBus(), clock, ROWS)


def end(command: Command, at: int, *, version: int = 0) -> list[Operation]:
    writes: list[Operation] = [ROWS.end(command.row_key, ended(command, at))]
    return [*writes, Delete(OPEN, command.row_key, version)] if version else writes


@pytest.mark.parametrize("waited", [True, False])
async def test_an_end_that_comes_while_the_state_is_read_is_returned(waited: bool) -> None:
    clock = FakeClock()
    journal = SlowJournal(clock)
    states = states_on(journal, clock)
    if waited:
        await journal.commit(ROWS.open(COMMAND, Waiting("appr_1"), expected=0))
    states.enter(COMMAND, "pay", "")
    asked = asyncio.create_task(states.state(LAPTOP, "r", wait=60))
    await journal.found.wait()
    await journal.commit(*end(COMMAND, 0, version=int(waited)))
    states.leave(COMMAND)
    journal.may_go_on.set()
    async with asyncio.timeout(5):
        assert (await asked).status is CommandStatus.DONE


async def test_a_command_that_ends_leaves_a_later_one_of_the_same_request_id_running() -> None:
    clock = FakeClock()
    journal = MemoryJournal(clock=clock, bus=LocalBus())
    states = states_on(journal, clock)
    later = as_command(command_id="cmd_2")
    states.enter(COMMAND, "pay", "")
    states.enter(later, "pay", "")
    states.leave(COMMAND)
    assert (await states.state(LAPTOP, "r", wait=0)).status is CommandStatus.RUNNING
    states.leave(later)
    with pytest.raises(NotFound):
        await states.state(LAPTOP, "r", wait=0)


async def test_the_newest_command_of_a_request_id_is_found() -> None:
    clock = FakeClock()
    journal = MemoryJournal(clock=clock, bus=LocalBus())
    states = states_on(journal, clock)
    later = as_command(command_id="cmd_2")
    await journal.commit(ROWS.open(later, Waiting("appr_1"), expected=0), *end(COMMAND, 0))
    states.in_flight[later.row_key] = (later.kind, None)  # type: ignore[assignment]
    assert (await states.state(LAPTOP, "r", wait=0)).status is CommandStatus.PENDING
    await journal.commit(*end(later, 1, version=1))
    assert (await states.state(LAPTOP, "r", wait=0)).status is CommandStatus.DONE
    with pytest.raises(NotFound):
        await states.state(LAPTOP, "r2", wait=0)


async def test_an_unkeyed_command_is_forgotten_a_day_after_it_ended() -> None:
    clock = FakeClock()
    journal = MemoryJournal(clock=clock, bus=LocalBus())
    await journal.commit(*end(COMMAND, clock.now_ms()))
    clock.advance(ENDED_KEPT_MS - 1)
    assert await journal.due(until=clock.now_ms()) == []
    clock.advance(1)
    (due,) = await journal.due(until=clock.now_ms())
    await Keys(journal, clock, ROWS).on_ended_due(due)
    with pytest.raises(NotFound):
        await states_on(journal, clock).state(LAPTOP, "r", wait=0)


async def test_a_start_resumes_what_earlier_starts_of_this_node_left_open_and_no_other() -> None:
    clock = FakeClock()
    journal = MemoryJournal(clock=clock, bus=LocalBus())
    for number, owner in enumerate((Owner("local", "inc_1"), Owner("other", "inc_1"))):
        command = as_command(command_id=f"cmd_{number}")
        opened = ROWS.__class__(ROWS.seal, owner).open(command, Waiting(), expected=0)
        await journal.commit(opened)
    resumed: list[str] = []
    done = asyncio.Event()

    async def resume(row: Row) -> None:
        resumed.append(row.key)
        done.set()

    await states_on(journal, clock).load(resume)
    async with asyncio.timeout(5):
        await done.wait()
    assert resumed == [as_command(command_id="cmd_0").row_key]


async def test_equal_requests_to_resume_a_command_share_one_attempt() -> None:
    clock = FakeClock()
    journal = MemoryJournal(clock=clock, bus=LocalBus())
    await journal.commit(ROWS.open(COMMAND, Waiting("appr_1"), expected=0))
    states = states_on(journal, clock)
    attempts, may_end = 0, asyncio.Event()

    async def resume(_: Row) -> None:
        nonlocal attempts
        attempts += 1
        await may_end.wait()

    states._resume = resume
    both = [asyncio.create_task(states.resume(COMMAND.row_key)) for _ in range(2)]
    async with asyncio.timeout(5):
        while not attempts:
            await asyncio.sleep(0)
        may_end.set()
        await asyncio.gather(*both)
    assert attempts == 1


async def test_a_command_that_could_not_be_resumed_is_tried_again_later() -> None:
    clock = FakeClock()
    journal = MemoryJournal(clock=clock, bus=LocalBus())
    await journal.commit(ROWS.open(COMMAND, Waiting("appr_1"), expected=0))
    states = states_on(journal, clock)

    async def resume(_: Row) -> None:
        raise RuntimeError("not now")

    states._resume = resume
    with pytest.raises(RuntimeError):
        await states.resume(COMMAND.row_key)
    assert (await journal.next_due() or 0) > clock.now_ms()
