"""A PostgreSQL that crashes, goes away, or should not be used."""

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest

from tests.support.postgres import Postgres, a_postgres, with_schema
from toolgate.core.errors import Invalid, Misconfigured, ToolgateError, Unavailable
from toolgate.journal.journal import Append, Check, Event, NewEvent, Put
from toolgate.journal.local_bus import LocalBus
from toolgate.journal.postgres.journal import PostgresJournal, PostgresLimits
from toolgate.testing.clock import FakeClock
from toolgate.testing.journal_suite import said, texts

CALLERS = 8


@pytest.fixture
def own_server() -> Iterator[Postgres]:
    with a_postgres("shared_buffers=16MB") as server:
        yield server


@asynccontextmanager
async def opened(url: str, **limits: float) -> AsyncIterator[PostgresJournal]:
    journal = await PostgresJournal.open(
        url,
        clock=FakeClock(),
        bus=LocalBus(),
        limits=PostgresLimits(**limits),  # type: ignore[arg-type]
    )
    try:
        yield journal
    finally:
        await journal.close()


@pytest.mark.soak("faults", rounds=10)
async def test_commits_under_crashes_are_neither_lost_nor_written_twice(
    own_server: Postgres, rounds: int
) -> None:
    url = await with_schema(own_server.empty_database())
    acknowledged: list[Event] = []
    async with opened(url, wait_s=60) as journal:
        ended = asyncio.Event()

        async def commit_all_the_time(caller: int) -> None:
            number = 0
            while not ended.is_set():
                number += 1
                acknowledged.extend(
                    await journal.commit(
                        Append("shared", [said(f"{caller}/{number}")]),
                        Put("c", f"{caller}/{number}", b"v", 0),
                    )
                )

        callers = [asyncio.create_task(commit_all_the_time(n)) for n in range(CALLERS)]
        for _ in range(max(rounds, 2)):
            seen = len(acknowledged)
            while len(acknowledged) < seen + 20 * CALLERS:
                await asyncio.sleep(0.01)
            await asyncio.to_thread(own_server.stop, signal.SIGQUIT)
            await asyncio.to_thread(own_server.start)
        ended.set()
        await asyncio.gather(*callers)

        stored: list[Event] = []
        while page := await journal.read_all(after=len(stored)):
            stored += page
        # Nothing is lost, and nothing stands twice: each is where its caller was told.
        assert stored == sorted(acknowledged, key=lambda event: event.position)
        assert [event.position for event in stored] == list(range(1, len(stored) + 1))
        assert len(set(texts(stored))) == len(stored)


async def test_a_commit_that_was_written_is_not_written_again_when_its_answer_is_lost(
    postgres: Postgres,
) -> None:
    async with opened(await with_schema(postgres.empty_database())) as journal:
        await journal.commit(Append("s", [said("first")]))
        answer = journal._commit
        assert answer is not None

        answered: Any = answer

        class LosesTheAnswer:
            async def fetchrow(self, *values: object, **options: float) -> None:
                await answered.fetchrow(*values, **options)
                raise ConnectionResetError("gone")

        journal._commit = LosesTheAnswer()
        [event] = await journal.commit(Append("s", [said("second")]))
        assert (event.position, event.seq) == (2, 2)
        assert texts(await journal.read("s")) == ["first", "second"]


async def test_a_database_that_is_away_refuses_commits_and_says_so_until_it_is_back(
    own_server: Postgres,
) -> None:
    async with opened(await with_schema(own_server.empty_database()), wait_s=0.5) as journal:
        await journal.commit(Append("s", [said("before")]))
        own_server.stop()
        with pytest.raises(Unavailable):
            await journal.commit(Append("s", [said("meanwhile")]))
        with pytest.raises(Unavailable):
            await journal.read("s")
        assert "cannot be used" in journal.fault
        own_server.start()
        await journal.commit(Append("s", [said("after")]))
        assert journal.fault == ""
        assert texts(await journal.read("s")) == ["before", "after"]


async def test_a_crash_after_commits_without_a_sync_makes_a_new_epoch_and_others_do_not(
    own_server: Postgres,
) -> None:
    url = await with_schema(own_server.empty_database())
    epochs = []
    for durable in (True, False, True):
        async with opened(url) as journal:
            epochs.append(journal.vouches_since)
            await journal.commit(Append("s", [said("x")]), durable=durable)
        own_server.stop(signal.SIGQUIT)
        own_server.start()
    assert epochs[0] == epochs[1] != epochs[2]


async def test_a_value_that_text_of_the_database_cannot_hold_is_refused_alone(
    postgres: Postgres,
) -> None:
    async with opened(await with_schema(postgres.empty_database())) as journal:
        results = await asyncio.gather(
            *(
                journal.commit(Append("s", [NewEvent("said", b"x", subject)]))
                for subject in ("one", "nul\0", "half\ud800", "two")
            ),
            return_exceptions=True,
        )
        assert [isinstance(result, Invalid) for result in results] == [False, True, True, False]
        assert [event.subject for event in await journal.read("s")] == ["one", "two"]


async def test_two_nodes_on_one_database_keep_one_order_and_see_each_others_rows(
    postgres: Postgres,
) -> None:
    url = await with_schema(postgres.empty_database())
    async with opened(url) as one, opened(url) as other:
        nodes = [one, other] * CALLERS

        async def count_up(journal: PostgresJournal) -> int:
            won = 0
            for _ in range(10):
                row = await journal.get("c", "number")
                version = 0 if row is None else row.version
                try:
                    await journal.commit(
                        Put("c", "number", b"", version), Append("s", [said(str(version))])
                    )
                    won += 1
                except ToolgateError:
                    await journal.commit(Append("lost", [said("x")]))
            return won

        won = sum(await asyncio.gather(*map(count_up, nodes)))
        events = await one.read_all(limit=10_000)
        assert [event.position for event in events] == list(range(1, len(events) + 1))
        assert texts(await other.read("s")) == [str(number) for number in range(won)]
        row = await other.get("c", "number")
        assert row is not None
        assert row.version == won
        await one.commit(Check("c", "number", won))


async def test_a_database_that_should_not_be_used_is_refused_with_what_to_do(
    own_server: Postgres,
) -> None:
    async def refusal() -> str:
        with pytest.raises(Misconfigured) as refused:
            async with opened(own_server.url):
                pass
        return str(refused.value)

    own_server.empty_database()
    assert "toolgate db init" in await refusal()
    await with_schema(own_server.url)
    connection = await asyncpg.connect(own_server.url)
    await connection.execute("UPDATE toolgate.meta SET value = '99' WHERE name = 'schema'")
    assert "99" in await refusal()
    await connection.execute("UPDATE toolgate.meta SET value = '1' WHERE name = 'schema'")
    await connection.close()
    for setting in ("fsync=off", "synchronous_commit=off"):
        own_server.stop()
        own_server.start(setting)
        assert setting in await refusal()


async def test_a_server_that_is_not_there_is_unavailable() -> None:
    with pytest.raises(Unavailable, match="cannot be used"):
        async with opened("postgresql://nobody@/nothing?host=/nowhere", wait_s=1):
            pass
