"""Idempotency keys: which command has one, and when it is free again."""

import pytest

from tests.commands.rows import COMMAND, ROWS, as_command, ended
from toolgate.access.refusals import KeyConflict
from toolgate.commands.plans import Command, Waiting
from toolgate.commands.records import ENDED, ENDED_KEPT_MS, KEY_KEPT_MS, KEYS, EndedCommand
from toolgate.commands.states import REMEMBERED_BODY, Keys
from toolgate.core.errors import Conflict
from toolgate.journal.journal import Row
from toolgate.journal.local_bus import LocalBus
from toolgate.testing.clock import FakeClock
from toolgate.testing.journal import MemoryJournal

KEYED = as_command(key="k")
LARGE = b"x" * (REMEMBERED_BODY + 1)  # not kept in memory


class Node:
    """Keys on a journal, with a clock that the test moves."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.journal = MemoryJournal(clock=self.clock, bus=LocalBus())
        self.keys = Keys(self.journal, self.clock, ROWS)

    async def run(self, command: Command, *, body: bytes = LARGE) -> EndedCommand:
        lock = self.keys.lock(command)
        end = ended(command, self.clock.now_ms(), body=body)
        await self.journal.commit(
            ROWS.use_key(command, expected=lock.version), ROWS.end(command.row_key, end)
        )
        self.keys.note_written(lock)
        self.keys.release(lock, end)
        return end

    async def due(self) -> Row:
        (row,) = await self.journal.due(until=self.clock.now_ms())
        return row


@pytest.fixture
def node() -> Node:
    return Node()


@pytest.mark.parametrize("body", [b"{}", LARGE])
async def test_a_key_gives_the_answer_of_its_command_for_600_seconds(
    node: Node, body: bytes
) -> None:
    end = await node.run(KEYED, body=body)
    node.clock.advance(KEY_KEPT_MS - 1)
    assert await node.keys.find(as_command(key="k", command_id="cmd_2")) == end
    node.clock.advance(1)
    assert await node.keys.find(as_command(key="k", command_id="cmd_2")) is None


async def test_a_key_of_another_request_is_a_conflict(node: Node) -> None:
    await node.run(KEYED)
    with pytest.raises(KeyConflict):
        await node.keys.find(as_command(key="k", request_hash="other"))


async def test_a_key_is_free_once_its_time_is_over_and_the_command_is_kept(node: Node) -> None:
    await node.run(KEYED)
    node.clock.advance(KEY_KEPT_MS)
    await node.keys.on_ended_due(await node.due())
    assert await node.journal.scan(KEYS) == []
    assert await node.keys.find(KEYED) is None
    (kept,) = await node.journal.scan(ENDED)
    node.clock.advance(ENDED_KEPT_MS - KEY_KEPT_MS)
    assert kept.due == node.clock.now_ms()
    await node.keys.on_ended_due(await node.due())
    assert await node.journal.scan(ENDED) == []


async def test_a_command_whose_request_id_nobody_knows_is_forgotten_with_its_key(
    node: Node,
) -> None:
    end = ended(KEYED, node.clock.now_ms())
    unnamed = EndedCommand(200, b"{}", "hash", 0, end.ended_at, "k", is_unnamed=True)
    await node.journal.commit(ROWS.use_key(KEYED, expected=0), ROWS.end(KEYED.row_key, unnamed))
    node.clock.advance(KEY_KEPT_MS)
    await node.keys.on_ended_due(await node.due())
    assert await node.journal.scan(ENDED) == []
    assert await node.journal.scan(KEYS) == []


async def test_a_key_that_was_used_anew_outlives_the_deadline_of_its_first_command(
    node: Node,
) -> None:
    await node.run(KEYED)
    node.clock.advance(KEY_KEPT_MS)
    due = await node.due()
    later = as_command(key="k", command_id="cmd_2")
    assert await node.keys.find(later) is None
    end = await node.run(later)
    await node.keys.on_ended_due(due)
    assert await node.keys.find(as_command(key="k", command_id="cmd_3")) == end


async def test_a_key_that_another_node_has_used_is_not_begun_and_found_at_the_next_look(
    node: Node,
) -> None:
    other = Keys(node.journal, node.clock, ROWS)
    lock = node.keys.lock(KEYED)
    theirs = as_command(key="k", command_id="cmd_other")
    await node.journal.commit(
        ROWS.use_key(theirs, expected=other.lock(theirs).version),
        ROWS.open(theirs, Waiting(), expected=0),
    )
    with pytest.raises(Conflict):
        await node.journal.commit(ROWS.use_key(KEYED, expected=lock.version))
    node.keys.note_unknown(lock)
    node.keys.release(lock, None)
    found = await node.keys.find(KEYED)
    assert isinstance(found, Row)
    assert found.key == theirs.row_key


async def test_the_keys_in_use_are_known_after_a_start(node: Node) -> None:
    end = await node.run(KEYED)
    again = Keys(node.journal, node.clock, ROWS)
    await again.load()
    assert await again.find(KEYED) == end
    assert await again.find(as_command(key="new")) is None
    assert COMMAND.slot not in again._versions
