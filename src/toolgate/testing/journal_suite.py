"""What every journal must do, as tests: subclass it and give it a fixture `journal`.

    class TestMyJournal(JournalSuite):
        @pytest.fixture
        async def journal(self, clock: FakeClock, bus: LocalBus) -> AsyncIterator[Journal]: ...

The journal must take its time from `clock` and tell `bus`.
"""

import asyncio
from collections.abc import Sequence

import pytest

from toolgate.core.errors import Conflict, Fenced
from toolgate.journal.journal import (
    Append,
    Check,
    Delete,
    Event,
    Fence,
    Head,
    Journal,
    NewEvent,
    Operation,
    Put,
    Row,
)
from toolgate.journal.local_bus import LocalBus
from toolgate.testing.clock import FakeClock


def said(text: str, *, subject: str = "") -> NewEvent:
    return NewEvent("said", text.encode(), subject)


def texts(events: Sequence[Event]) -> list[str]:
    return [event.data.decode() for event in events]


def seqs(events: Sequence[Event]) -> list[int]:
    return [event.seq for event in events]


def keys(rows: Sequence[Row]) -> list[str]:
    return [row.key for row in rows]


class JournalSuite:
    @pytest.fixture
    def clock(self) -> FakeClock:
        return FakeClock()

    @pytest.fixture
    def bus(self) -> LocalBus:
        return LocalBus()

    async def test_a_commit_answers_with_its_events_numbered_and_timed(
        self, journal: Journal, clock: FakeClock
    ) -> None:
        await journal.commit(Append("a", [said("one")]))
        clock.advance(5)
        committed = await journal.commit(
            Append("b", [said("two", subject="run_1"), said("three")]), Append("a", [said("four")])
        )
        now = clock.now_ms()
        assert committed == [
            Event(2, "b", 1, "said", now, b"two", "run_1"),
            Event(3, "b", 2, "said", now, b"three", ""),
            Event(4, "a", 2, "said", now, b"four", ""),
        ]
        assert await journal.read_all(after=1) == committed

    async def test_a_stream_is_read_forwards_from_a_number_and_a_page_at_a_time(
        self, journal: Journal
    ) -> None:
        await journal.commit(Append("a", [said(str(n)) for n in range(1, 8)]))
        await journal.commit(Append("ab", [said("another stream's")]))
        assert seqs(await journal.read("a")) == [1, 2, 3, 4, 5, 6, 7]
        assert seqs(await journal.read("a", after=2, limit=3)) == [3, 4, 5]
        assert await journal.read("a", after=7) == []
        assert await journal.read("never") == []

    async def test_a_stream_is_read_backwards_from_its_end_or_from_a_number(
        self, journal: Journal
    ) -> None:
        await journal.commit(Append("a", [said(str(n)) for n in range(1, 8)]))
        assert seqs(await journal.read_back("a", limit=3)) == [7, 6, 5]
        assert seqs(await journal.read_back("a", before=5, limit=3)) == [4, 3, 2]
        assert await journal.read_back("a", before=1) == []

    async def test_the_events_of_one_subject_are_read_alone(self, journal: Journal) -> None:
        await journal.commit(
            Append("a", [said("x1", subject="x"), said("y1", subject="y"), said("none")]),
            Append("a", [said("x2", subject="x")]),
            Append("b", [said("elsewhere", subject="x")]),
        )
        assert texts(await journal.read("a", subject="x")) == ["x1", "x2"]
        assert texts(await journal.read("a", subject="x", after=1)) == ["x2"]
        assert texts(await journal.read_back("a", subject="x", limit=1)) == ["x2"]
        assert await journal.read("a", subject="z") == []

    async def test_every_stream_is_read_in_the_order_of_positions(self, journal: Journal) -> None:
        for stream in ["a", "b", "a", "c"]:
            await journal.commit(Append(stream, [said(stream)]))
        assert texts(await journal.read_all()) == ["a", "b", "a", "c"]
        page = await journal.read_all(after=1, limit=2)
        assert [event.position for event in page] == [2, 3]
        assert await journal.last_position() == 4

    async def test_a_stream_that_never_was_has_an_empty_head(self, journal: Journal) -> None:
        assert await journal.head("never") == Head(first=1, last=0)
        assert await journal.last_position() == 0

    async def test_appending_nothing_makes_no_stream(self, journal: Journal) -> None:
        assert await journal.commit(Append("a", [])) == []
        assert await journal.head("a") == Head(first=1, last=0)

    async def test_an_expected_number_that_holds_lets_the_events_in(self, journal: Journal) -> None:
        await journal.commit(Append("a", [said("one")], expected_seq=0))
        await journal.commit(
            Append("a", [said("two")], expected_seq=1), Append("a", [said("three")], expected_seq=2)
        )
        assert await journal.head("a") == Head(first=1, last=3)

    async def test_an_expected_number_that_does_not_hold_is_a_conflict(
        self, journal: Journal
    ) -> None:
        await journal.commit(Append("a", [said("one")]))
        for expected in (0, 2):
            with pytest.raises(Conflict):
                await journal.commit(Append("a", [said("two")], expected_seq=expected))
        assert seqs(await journal.read("a")) == [1]

    async def test_a_refused_commit_leaves_nothing_of_itself(self, journal: Journal) -> None:
        await journal.commit(Put("runs", "r", b"before", expected=0))
        with pytest.raises(Conflict):
            await journal.commit(
                Append("a", [said("one")]),
                Put("runs", "r", b"after", expected=1),
                Put("runs", "new", b"", due=1, expected=0),
                Fence("r", 9),
                Append("b", [said("two")], expected_seq=7),
            )
        assert await journal.read_all() == []
        assert await journal.get("runs", "r") == Row("runs", "r", 1, b"before", None)
        assert await journal.get("runs", "new") is None
        assert await journal.next_due() is None
        assert await journal.epoch("r") == 0
        numbered = await journal.commit(Append("a", [said("one")]))
        assert (numbered[0].position, numbered[0].seq) == (1, 1)

    async def test_a_row_counts_its_versions_and_starts_again_once_deleted(
        self, journal: Journal
    ) -> None:
        await journal.commit(Put("runs", "r", b"1", expected=0))
        await journal.commit(Put("runs", "r", b"2", expected=1, due=50))
        assert await journal.get("runs", "r") == Row("runs", "r", 2, b"2", 50)
        await journal.commit(Delete("runs", "r"))
        assert await journal.get("runs", "r") is None
        await journal.commit(Delete("runs", "r"))
        await journal.commit(Put("runs", "r", b"3", expected=0))
        assert await journal.get("runs", "r") == Row("runs", "r", 1, b"3", None)

    async def test_a_row_is_changed_only_over_the_version_expected(self, journal: Journal) -> None:
        await journal.commit(Put("runs", "r", b"1", expected=0))
        refused: list[Operation] = [
            Put("runs", "r", b"x", expected=0),
            Put("runs", "r", b"x", expected=2),
            Put("runs", "other", b"x", expected=1),
            Delete("runs", "r", expected=2),
        ]
        for operation in refused:
            with pytest.raises(Conflict):
                await journal.commit(operation)
        await journal.commit(Put("runs", "r", b"2", expected=1))
        await journal.commit(Delete("runs", "r", expected=2))
        assert await journal.scan("runs") == []

    async def test_operations_of_one_commit_see_those_before_them(self, journal: Journal) -> None:
        await journal.commit(
            Put("runs", "r", b"1", expected=0),
            Put("runs", "r", b"2", expected=1),
            Delete("runs", "r", expected=2),
            Put("runs", "r", b"3", expected=0, due=7),
        )
        assert await journal.get("runs", "r") == Row("runs", "r", 1, b"3", 7)

    async def test_a_check_that_holds_lets_the_commit_through_and_writes_nothing(
        self, journal: Journal
    ) -> None:
        await journal.commit(Put("devices", "d", b"1", expected=0, due=9))
        await journal.commit(Put("devices", "d", b"2", expected=1, due=9))
        assert await journal.commit(Check("devices", "d", 2)) == []
        await journal.commit(Check("devices", "d", 2), Append("a", [said("one")]))
        assert texts(await journal.read("a")) == ["one"]
        assert await journal.scan("devices") == [Row("devices", "d", 2, b"2", 9)]

    async def test_a_check_that_does_not_hold_refuses_the_whole_commit(
        self, journal: Journal, bus: LocalBus
    ) -> None:
        heard: list[Event] = []
        await journal.commit(Put("devices", "d", b"1", expected=0))
        await journal.commit(Put("devices", "d", b"2", expected=1))
        bus.subscribe(None, heard.extend)
        for version in (0, 1, 3):
            with pytest.raises(Conflict):
                await journal.commit(
                    Append("a", [said("one")]),
                    Put("runs", "new", b"", expected=0, due=1),
                    Put("devices", "other", b"", expected=0),
                    Fence("r", 9),
                    Check("devices", "d", version),
                )
        assert await journal.read_all() == [] == heard
        assert await journal.scan("runs") == []
        assert keys(await journal.scan("devices")) == ["d"]
        assert await journal.next_due() is None
        assert await journal.epoch("r") == 0

    async def test_a_check_for_version_0_holds_only_where_there_is_no_row(
        self, journal: Journal
    ) -> None:
        await journal.commit(Check("devices", "d", 0), Append("a", [said("one")]))
        with pytest.raises(Conflict):
            await journal.commit(Check("devices", "d", 1))
        assert await journal.get("devices", "d") is None
        await journal.commit(Put("devices", "d", b"", expected=0))
        with pytest.raises(Conflict):
            await journal.commit(Check("devices", "d", 0), Append("a", [said("two")]))
        await journal.commit(Delete("devices", "d", expected=1))
        with pytest.raises(Conflict):
            await journal.commit(Check("devices", "d", 1), Append("a", [said("three")]))
        await journal.commit(Check("devices", "d", 0), Append("a", [said("four")]))
        assert texts(await journal.read("a")) == ["one", "four"]

    async def test_a_check_sees_what_its_own_commit_changed_before_it(
        self, journal: Journal
    ) -> None:
        await journal.commit(
            Check("devices", "d", 0),
            Put("devices", "d", b"1", expected=0),
            Check("devices", "d", 1),
            Put("devices", "d", b"2", expected=1),
            Check("devices", "d", 2),
        )
        with pytest.raises(Conflict):
            await journal.commit(
                Put("devices", "d", b"3", expected=2), Check("devices", "d", 2), Fence("r", 1)
            )
        assert await journal.get("devices", "d") == Row("devices", "d", 2, b"2", None)
        await journal.commit(
            Delete("devices", "d"), Check("devices", "d", 0), Append("a", [said("gone")])
        )
        assert await journal.get("devices", "d") is None
        assert await journal.epoch("r") == 0

    async def test_of_many_commits_at_once_only_those_with_a_stale_check_are_refused(
        self, journal: Journal
    ) -> None:
        await journal.commit(Put("devices", "d", b"paired", expected=0))
        await journal.commit(Put("devices", "e", b"paired", expected=0))

        async def call(n: int) -> bool:
            """Commit as device d in even calls, as e in odd ones; d is revoked halfway."""
            if n == 32:
                await journal.commit(Put("devices", "d", b"revoked", expected=1))
                return True
            device = "e" if n % 2 else "d"
            try:
                await journal.commit(
                    Append("calls", [said(f"{n}")]),
                    Put("keys", f"{n}", b"", expected=0),
                    Check("devices", device, 1),
                    Check("devices", "none", 0),
                )
            except Conflict:
                return False
            return True

        passed = await asyncio.gather(*(call(n) for n in range(64)))
        refused = [n for n in range(64) if not passed[n]]
        assert refused == list(range(34, 64, 2))
        called = await journal.read("calls")
        assert seqs(called) == list(range(1, len(called) + 1))
        assert texts(called) == [str(n) for n in range(64) if n != 32 and n not in refused]
        assert {int(key) for key in keys(await journal.scan("keys"))} == {
            n for n in range(64) if n != 32 and n not in refused
        }

    async def test_rows_are_scanned_in_the_order_of_their_keys(self, journal: Journal) -> None:
        await journal.commit(
            *(Put("runs", key, b"", expected=0) for key in ["c", "a", "B", "é", "b"])
        )
        await journal.commit(Put("other", "aa", b"", expected=0))
        assert keys(await journal.scan("runs")) == ["B", "a", "b", "c", "é"]
        assert keys(await journal.scan("runs", after="a", limit=2)) == ["b", "c"]
        assert keys(await journal.scan("runs", newest_first=True)) == ["é", "c", "b", "a", "B"]
        assert keys(await journal.scan("runs", after="c", newest_first=True, limit=2)) == ["b", "a"]

    async def test_rows_come_due_in_the_order_of_their_deadlines(self, journal: Journal) -> None:
        assert await journal.next_due() is None
        await journal.commit(
            Put("runs", "late", b"", due=30, expected=0),
            Put("approvals", "soon", b"", due=10, expected=0),
            Put("runs", "mid", b"", due=20, expected=0),
            Put("runs", "never", b"", expected=0),
        )
        assert await journal.next_due() == 10
        assert keys(await journal.due(until=20)) == ["soon", "mid"]
        assert keys(await journal.due(until=99, limit=1)) == ["soon"]
        await journal.commit(Put("approvals", "soon", b"", expected=1), Delete("runs", "mid"))
        assert await journal.next_due() == 30
        assert await journal.due(until=29) == []

    async def test_a_higher_epoch_takes_over_and_lower_ones_are_fenced(
        self, journal: Journal
    ) -> None:
        await journal.commit(Fence("run_1", 1), Append("a", [said("one")]))
        await journal.commit(Fence("run_1", 1), Append("a", [said("two")]))
        await journal.commit(Fence("run_1", 3))
        assert await journal.epoch("run_1") == 3
        with pytest.raises(Fenced):
            await journal.commit(Append("a", [said("late")]), Fence("run_1", 2))
        await journal.commit(Fence("run_2", 1))
        assert texts(await journal.read("a")) == ["one", "two"]

    async def test_forgetting_drops_the_oldest_and_numbers_go_on(self, journal: Journal) -> None:
        await journal.commit(Append("a", [said(str(n)) for n in range(1, 6)]))
        await journal.commit(Append("b", [said("kept")]))
        await journal.forget("a", through=3)
        assert await journal.head("a") == Head(first=4, last=5)
        assert seqs(await journal.read("a")) == [4, 5]
        await journal.forget("a", through=2)
        assert await journal.head("a") == Head(first=4, last=5)
        await journal.forget("a", through=99)
        assert await journal.head("a") == Head(first=6, last=5)
        assert texts(await journal.read_all()) == ["kept"]
        committed = await journal.commit(Append("a", [said("next")], expected_seq=5))
        assert (committed[0].seq, committed[0].position) == (6, 7)

    async def test_forgetting_what_never_was_does_nothing(self, journal: Journal) -> None:
        await journal.forget("never", through=10)
        assert await journal.head("never") == Head(first=1, last=0)

    async def test_commits_without_a_sync_are_read_like_the_others(self, journal: Journal) -> None:
        await journal.commit(Append("a", [said("one")]), durable=False)
        await journal.commit(Append("a", [said("two")]))
        await journal.commit(Append("a", [said("three")]), durable=False)
        assert texts(await journal.read("a")) == ["one", "two", "three"]

    async def test_the_bus_hears_of_events_in_their_order_before_the_committer_goes_on(
        self, journal: Journal, bus: LocalBus
    ) -> None:
        heard: list[int] = []
        bus.subscribe(None, lambda events: heard.extend(event.position for event in events))

        async def commit(stream: str) -> None:
            for _ in range(10):
                committed = await journal.commit(Append(stream, [said(""), said("")]))
                assert {event.position for event in committed} <= set(heard)

        await asyncio.gather(*(commit(f"s{n}") for n in range(8)))
        assert heard == list(range(1, 161))

    async def test_the_bus_hears_nothing_of_a_refused_commit(
        self, journal: Journal, bus: LocalBus
    ) -> None:
        heard: list[Event] = []
        bus.subscribe(None, heard.extend)
        with pytest.raises(Conflict):
            await journal.commit(Append("a", [said("one")]), Put("runs", "r", b"", expected=4))
        assert heard == []

    async def test_of_many_who_expect_the_same_number_exactly_one_is_let_in(
        self, journal: Journal
    ) -> None:
        answers = await asyncio.gather(
            *(journal.commit(Append("a", [said(str(n))], expected_seq=0)) for n in range(64)),
            return_exceptions=True,
        )
        let_in = [answer for answer in answers if isinstance(answer, list)]
        assert len(let_in) == 1
        assert sum(isinstance(answer, Conflict) for answer in answers) == 63
        assert await journal.read("a") == let_in[0]

    async def test_a_refused_commit_does_not_disturb_those_beside_it(
        self, journal: Journal
    ) -> None:
        await journal.commit(Put("runs", "r", b"", expected=0))

        async def commit(n: int) -> list[Event] | None:
            wrong = n % 3 == 0
            try:
                return await journal.commit(
                    Append("shared", [said(f"{n}")]),
                    Append(f"own{n}", [said(f"{n}")], expected_seq=0),
                    Put("runs", "r" if wrong else f"r{n}", b"", expected=0),
                )
            except Conflict:
                assert wrong
                return None

        answers = await asyncio.gather(*(commit(n) for n in range(64)))
        let_in = [answer for answer in answers if answer is not None]
        assert len(let_in) == 42
        shared = await journal.read("shared")
        assert seqs(shared) == list(range(1, 43))
        assert sorted(texts(shared), key=int) == [str(n) for n in range(64) if n % 3]
        everything = await journal.read_all()
        assert [event.position for event in everything] == list(range(1, 85))
        assert sorted(everything, key=lambda e: e.position) == sorted(
            (event for answer in let_in for event in answer), key=lambda e: e.position
        )

    async def test_a_cancelled_wait_does_not_take_the_commit_back(self, journal: Journal) -> None:
        waiting = asyncio.ensure_future(journal.commit(Append("a", [said("one")])))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await journal.commit(Append("a", [said("two")]))
        assert texts(await journal.read("a")) == ["one", "two"]

    async def test_it_says_since_when_it_vouches(self, journal: Journal) -> None:
        assert journal.vouches_since
        assert journal.vouches_since == journal.vouches_since
