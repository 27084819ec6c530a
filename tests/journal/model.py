"""Random commits to a journal and to the one in memory: both hold the same."""

import asyncio
from typing import Protocol

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from toolgate.core.errors import Conflict
from toolgate.journal.journal import (
    Append,
    Check,
    Delete,
    Event,
    Fence,
    Journal,
    NewEvent,
    Operation,
    Overwrite,
    Put,
)
from toolgate.journal.local_bus import LocalBus
from toolgate.testing.clock import FakeClock
from toolgate.testing.journal import MemoryJournal

STREAMS = ["a", "b", "ab", "é"]
COLLECTIONS = ["c", "d"]
KEYS = ["k", "l", "kk"]
SUBJECTS = ["", "s", "t"]

new_events = st.builds(
    NewEvent,
    type=st.sampled_from(["said", "done"]),
    data=st.binary(max_size=8),
    subject=st.sampled_from(SUBJECTS),
)
expectations = st.one_of(st.none(), st.integers(0, 4))
operations: st.SearchStrategy[Operation] = st.one_of(
    st.builds(
        Append,
        stream=st.sampled_from(STREAMS),
        events=st.lists(new_events, max_size=3),
        expected_seq=expectations,
    ),
    st.builds(
        Put,
        collection=st.sampled_from(COLLECTIONS),
        key=st.sampled_from(KEYS),
        value=st.binary(max_size=4),
        due=st.one_of(st.none(), st.integers(0, 9)),
        expected=st.integers(0, 4),
    ),
    st.builds(
        Overwrite,
        collection=st.sampled_from(COLLECTIONS),
        key=st.sampled_from(KEYS),
        value=st.binary(max_size=4),
        due=st.one_of(st.none(), st.integers(0, 9)),
    ),
    st.builds(
        Delete,
        collection=st.sampled_from(COLLECTIONS),
        key=st.sampled_from(KEYS),
        expected=expectations,
    ),
    st.builds(
        Check,
        collection=st.sampled_from(COLLECTIONS),
        key=st.sampled_from(KEYS),
        version=st.integers(0, 4),
    ),
    st.builds(Fence, name=st.sampled_from(["f", "g"]), epoch=st.integers(0, 4)),
)
commits = st.lists(operations, min_size=1, max_size=4)


async def outcome(journal: Journal, commit: list[Operation], *, durable: bool) -> object:
    try:
        return await journal.commit(*commit, durable=durable)
    except Conflict as refused:
        return type(refused), str(refused)


async def contents(journal: Journal) -> list[object]:
    found: list[object] = [
        await journal.read_all(),
        await journal.last_position(),
        await journal.next_due(),
        await journal.due(until=5, limit=3),
    ]
    for stream in STREAMS:
        found.append(await journal.head(stream))
        for subject in SUBJECTS:
            found.append(await journal.read(stream, after=1, limit=2, subject=subject))
            found.append(await journal.read_back(stream, before=5, limit=2, subject=subject))
    for collection in COLLECTIONS:
        found.append(await journal.scan(collection))
        found.append(await journal.scan(collection, newest_first=True, after="kk", limit=1))
    found += [await journal.epoch(name) for name in ["f", "g"]]
    return found


class OpenJournal(Journal, Protocol):
    async def close(self) -> None: ...


class TwoJournals(RuleBasedStateMachine):
    """Subclass it with `open`, and `prepare` and `clean_up` where there is something to do."""

    def prepare(self) -> None:
        """Make a place for the journal."""

    def clean_up(self) -> None:
        """Remove it."""

    @initialize()
    def start(self) -> None:
        self.runner = asyncio.Runner()
        self.prepare()
        self.clock = FakeClock()
        self.heard: dict[str, list[Event]] = {"memory": [], "other": []}
        self.buses = {name: LocalBus() for name in self.heard}
        for name, bus in self.buses.items():
            bus.subscribe(None, self.heard[name].extend)
        self.memory = MemoryJournal(clock=self.clock, bus=self.buses["memory"])
        self.other = self.runner.run(self.open())

    async def open(self) -> OpenJournal:
        """The journal that is compared, with small limits."""
        raise NotImplementedError

    @rule(together=st.lists(commits, min_size=1, max_size=5), durable=st.booleans())
    def commit(self, together: list[list[Operation]], durable: bool) -> None:
        async def on(journal: Journal) -> list[object]:
            return await asyncio.gather(*(outcome(journal, c, durable=durable) for c in together))

        self.clock.advance(1)
        assert self.runner.run(on(self.other)) == self.runner.run(on(self.memory))

    @rule(
        puts=st.lists(
            st.tuples(
                st.sampled_from(COLLECTIONS), st.sampled_from(KEYS), st.sampled_from([1, 1, 2])
            ),
            min_size=1,
            max_size=6,
        ),
    )
    def put_whatever_was_there(self, puts: list[tuple[str, str, int]]) -> None:
        """Each row alone, so that the writer has forgotten most when it puts them again."""

        async def on(journal: Journal) -> None:
            for collection, key, times in puts:
                await journal.commit(*[Overwrite(collection, key, b"over")] * times, durable=False)

        self.runner.run(on(self.other))
        self.runner.run(on(self.memory))

    @rule(stream=st.sampled_from(STREAMS), through=st.integers(0, 8))
    def forget(self, stream: str, through: int) -> None:
        self.runner.run(self.other.forget(stream, through=through))
        self.runner.run(self.memory.forget(stream, through=through))

    @rule()
    def open_again(self) -> None:
        self.runner.run(self.other.close())
        self.other = self.runner.run(self.open())

    @invariant()
    def they_hold_the_same(self) -> None:
        assert self.runner.run(contents(self.other)) == self.runner.run(contents(self.memory))
        assert self.heard["other"] == self.heard["memory"]

    def teardown(self) -> None:
        self.runner.run(self.other.close())
        self.runner.close()
        self.clean_up()
