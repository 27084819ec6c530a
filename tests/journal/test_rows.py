"""Writing one row when only its newest value counts."""

import pytest

from toolgate.core.errors import Conflict
from toolgate.journal.journal import Append, Check, NewEvent, Put, Row
from toolgate.journal.local_bus import LocalBus
from toolgate.journal.rows import ATTEMPTS, store, version_of
from toolgate.testing.clock import FakeClock
from toolgate.testing.journal import MemoryJournal


class Contended(MemoryJournal):
    """Another writer changes each row right after it was read, a number of times."""

    def __init__(self, times: int = 0) -> None:
        super().__init__(clock=FakeClock(), bus=LocalBus())
        self.times = times

    async def get(self, collection: str, key: str) -> Row | None:
        row = await super().get(collection, key)
        if self.times:
            self.times -= 1
            expected = 0 if row is None else row.version
            await self.commit(Put(collection, key, b"theirs", expected))
        return row


async def test_a_row_is_stored_over_its_newest_version() -> None:
    journal = Contended()
    assert await version_of(journal, "kv", "k") == 0
    await store(journal, "kv", "k", b"1", due=7)
    await store(journal, "kv", "k", b"2", Append("a", [NewEvent("set", b"")]))
    assert await journal.get("kv", "k") == Row("kv", "k", 2, b"2", None)
    assert await version_of(journal, "kv", "k") == 2
    assert len(await journal.read("a")) == 1


async def test_a_row_that_changes_between_read_and_commit_is_read_again() -> None:
    journal = Contended(ATTEMPTS - 1)
    await store(journal, "kv", "k", b"mine", Append("a", [NewEvent("set", b"")]))
    assert await journal.get("kv", "k") == Row("kv", "k", ATTEMPTS, b"mine", None)
    assert len(await journal.read("a")) == 1


async def test_a_row_that_always_changes_is_a_conflict_in_the_end() -> None:
    journal = Contended(ATTEMPTS)
    with pytest.raises(Conflict):
        await store(journal, "kv", "k", b"mine")


async def test_an_operation_beside_the_row_that_does_not_hold_is_a_conflict() -> None:
    journal = Contended()
    with pytest.raises(Conflict):
        await store(journal, "kv", "k", b"mine", Check("kv", "other", 3))
    assert await journal.get("kv", "k") is None
