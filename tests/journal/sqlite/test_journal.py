"""The SQLite journal: the suite, then what only a file can do wrong."""

import asyncio
import resource
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest

from toolgate.core.errors import (
    Conflict,
    Damaged,
    Fenced,
    Invalid,
    Misconfigured,
    ToolgateError,
    Unavailable,
)
from toolgate.journal.batching import SETTLED_AT_ONCE
from toolgate.journal.journal import Append, Check, Delete, Fence, Head, Journal, NewEvent, Put
from toolgate.journal.local_bus import LocalBus
from toolgate.journal.sqlite import schema
from toolgate.journal.sqlite.clean_shutdown_marker import witness_path
from toolgate.journal.sqlite.journal import SqliteJournal
from toolgate.journal.sqlite.writer import Limits
from toolgate.testing.clock import FakeClock
from toolgate.testing.journal_suite import JournalSuite, said, seqs, texts


class TestSqliteJournal(JournalSuite):
    @pytest.fixture
    async def journal(
        self, clock: FakeClock, bus: LocalBus, tmp_path: Path
    ) -> AsyncIterator[Journal]:
        journal = await SqliteJournal.open(tmp_path / "journal.sqlite3", clock=clock, bus=bus)
        yield journal
        await journal.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "home" / "journal.sqlite3"


@asynccontextmanager
async def opened(
    path: Path, *, clock: FakeClock | None = None, limits: Limits | None = None
) -> AsyncIterator[SqliteJournal]:
    journal = await SqliteJournal.open(
        path, clock=clock or FakeClock(), bus=LocalBus(), limits=limits or Limits()
    )
    try:
        yield journal
    finally:
        await journal.close()


async def refusal(path: Path) -> ToolgateError:
    with pytest.raises(ToolgateError) as refused:
        async with opened(path):
            pass
    assert "\n" not in str(refused.value)
    assert str(path.parent) in str(refused.value)
    return refused.value


async def filled(path: Path, *, events: int = 200) -> str:
    """A closed journal with something in it; its epoch."""
    async with opened(path) as journal:
        for _ in range(events // 20):
            await journal.commit(Append("a", [said("x" * 200, subject="s") for _ in range(20)]))
        return journal.vouches_since


def edit_meta(path: Path, **values: str) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        for name, value in values.items():
            schema.write_meta(connection, name, value)


async def test_what_was_committed_is_there_when_it_is_opened_again(path: Path) -> None:
    async with opened(path) as journal:
        committed = await journal.commit(
            Append("a", [said("one"), said("two", subject="s")]),
            Put("runs", "r", b"v", due=9, expected=0),
        )
    async with opened(path) as journal:
        assert await journal.read("a") == committed
        assert await journal.last_position() == 2
        assert await journal.next_due() == 9
        following = await journal.commit(
            Append("a", [said("three")], expected_seq=2), Put("runs", "r", b"", expected=1)
        )
        assert (following[0].position, following[0].seq) == (3, 3)


async def test_a_position_is_never_given_twice_even_if_the_newest_was_forgotten(path: Path) -> None:
    async with opened(path) as journal:
        await journal.commit(Append("a", [said("one"), said("two")]))
        await journal.forget("a", through=2)
    async with opened(path) as journal:
        assert await journal.head("a") == Head(first=3, last=2)
        committed = await journal.commit(Append("a", [said("three")]))
        assert (committed[0].position, committed[0].seq) == (3, 3)


async def test_more_streams_rows_and_fences_than_are_remembered_are_read_from_the_file(
    path: Path,
) -> None:
    async with opened(path, limits=Limits(remembered=4)) as journal:
        for turn in range(3):
            for n in range(10):
                await journal.commit(
                    Append(f"s{n}", [said("")], expected_seq=turn),
                    Put("rows", f"r{n}", b"", expected=turn),
                    Fence(f"f{n}", turn),
                )
        with pytest.raises(Fenced):
            await journal.commit(Fence("f0", 1))
        assert await journal.head("s0") == Head(first=1, last=3)


async def test_a_row_that_is_there_refuses_a_new_one_and_leaves_the_rest_of_the_batch_alone(
    path: Path,
) -> None:
    async with opened(path) as journal:
        await journal.commit(Put("rows", "old", b"first", expected=0))
    async with opened(path) as journal:  # nothing is remembered
        outcomes = await asyncio.gather(
            journal.commit(Put("rows", "a", b"1", expected=0), Append("s", [said("a")])),
            journal.commit(Append("s", [said("lost")]), Put("rows", "old", b"2", expected=0)),
            journal.commit(Put("rows", "b", b"1", expected=0), Put("rows", "b", b"2", expected=1)),
            journal.commit(Put("rows", "a", b"2", expected=0)),
            journal.commit(Put("rows", "c", b"1", expected=0), Delete("rows", "c")),
            journal.commit(Append("s", [said("b")])),
            return_exceptions=True,
        )
        assert [isinstance(one, Conflict) for one in outcomes] == [
            False, True, False, True, False, False,
        ]  # fmt: skip
        assert texts(await journal.read("s")) == ["a", "b"]
        rows = {row.key: (row.version, row.value) for row in await journal.scan("rows")}
        assert rows == {"a": (1, b"1"), "b": (2, b"2"), "old": (1, b"first")}


async def test_a_check_is_decided_by_the_file_and_not_by_what_the_batch_assumed(
    path: Path,
) -> None:
    async with opened(path) as journal:
        await journal.commit(Put("rows", "old", b"1", expected=0))
        await journal.commit(Put("rows", "old", b"2", expected=1))
    async with opened(path) as journal:  # nothing is remembered
        outcomes = await asyncio.gather(
            journal.commit(Append("s", [said("a")])),
            journal.commit(Put("rows", "old", b"new", expected=0)),  # taken to be new at first
            journal.commit(Append("s", [said("b")]), Check("rows", "old", 1)),
            journal.commit(Append("s", [said("c")]), Check("rows", "old", 2)),
            journal.commit(Append("s", [said("d")]), Check("rows", "old", 0)),
            journal.commit(Append("s", [said("e")]), Check("rows", "none", 0)),
            return_exceptions=True,
        )
        assert [isinstance(one, Conflict) for one in outcomes] == [
            False, True, True, False, True, False,
        ]  # fmt: skip
        assert texts(await journal.read("s")) == ["a", "c", "e"]
        assert [(row.version, row.value) for row in await journal.scan("rows")] == [(2, b"2")]


async def test_of_several_conflicts_the_first_is_told(path: Path) -> None:
    async with opened(path) as journal:
        await journal.commit(Put("rows", "old", b"first", expected=0))
    async with opened(path) as journal:  # nothing is remembered
        with pytest.raises(Conflict, match="rows/old is at version 1, not at 0"):
            await journal.commit(
                Put("rows", "old", b"2", expected=0), Delete("rows", "none", expected=4)
            )


async def test_what_sqlite_cannot_hold_is_refused_alone(path: Path) -> None:
    async with opened(path) as journal:
        answers = await asyncio.gather(
            journal.commit(Append("a", [said("one")])),
            journal.commit(Append("a", [NewEvent("\ud800", b"")])),
            journal.commit(Append("\ud800", [said("")])),
            journal.commit(Put("rows", "r", b"", due=2**70, expected=0)),
            journal.commit(Append("a", [said("two")])),
            return_exceptions=True,
        )
        assert [type(answer) for answer in answers] == [list, Invalid, Invalid, Invalid, list]
        assert texts(await journal.read_all()) == ["one", "two"]


async def test_a_conflict_within_a_batch_that_had_to_be_split_is_still_a_conflict(
    path: Path,
) -> None:
    async with opened(path) as journal:
        answers = await asyncio.gather(
            journal.commit(Append("a", [said("one")], expected_seq=0)),
            journal.commit(Append("a", [said("late")], expected_seq=0)),
            journal.commit(Append("a", [NewEvent("\ud800", b"")])),
            return_exceptions=True,
        )
        assert [type(answer) for answer in answers] == [list, Conflict, Invalid]


async def test_a_raising_bus_does_not_keep_the_answer_from_the_committer(path: Path) -> None:
    class BrokenBus(LocalBus):
        def publish(self, events: object) -> None:
            raise RuntimeError("no")

    journal = await SqliteJournal.open(path, clock=FakeClock(), bus=BrokenBus())
    assert seqs(await journal.commit(Append("a", [said("one")]))) == [1]
    await journal.close()


async def test_closing_commits_what_waits_and_refuses_what_comes_later(path: Path) -> None:
    journal = await SqliteJournal.open(path, clock=FakeClock(), bus=LocalBus())
    waiting = [asyncio.ensure_future(journal.commit(Append("a", [said("")]))) for _ in range(50)]
    await asyncio.sleep(0)
    await journal.close()
    await journal.close()
    answers = await asyncio.gather(*waiting)
    assert [answer[0].seq for answer in answers] == list(range(1, 51))
    with pytest.raises(Unavailable):
        await journal.commit(Append("a", [said("late")]))
    with pytest.raises(Unavailable):
        await journal.read("a")
    assert not path.with_name(path.name + "-wal").exists()
    async with opened(path) as journal:
        assert await journal.head("a") == Head(first=1, last=50)


async def test_the_callers_of_a_large_batch_are_told_over_several_turns_of_the_loop(
    path: Path,
) -> None:
    loop = asyncio.get_running_loop()
    turn = 0
    told: list[int] = []

    def count_turns() -> None:
        nonlocal turn
        turn += 1
        if len(told) < 1000:
            loop.call_soon(count_turns)

    async def commit(number: int) -> None:
        await journal.commit(Append("run/1", [said(str(number))]))
        told.append(turn)

    async with opened(path) as journal:
        count_turns()
        await asyncio.gather(*(commit(number) for number in range(1000)))
        assert [event.seq for event in await journal.read("run/1")] == list(range(1, 1001))
    assert told == sorted(told)
    assert max(map(told.count, set(told))) <= SETTLED_AT_ONCE


async def test_the_log_does_not_grow_while_it_is_short(path: Path) -> None:
    log = path.with_name(path.name + "-wal")
    async with opened(path) as journal:
        size = log.stat().st_size
        assert size == schema.LOG_BYTES
        for number in range(50):
            await journal.commit(Append("a", [said(str(number))]))
        assert log.stat().st_size == size
        copied, copied_log = path.read_bytes(), log.read_bytes()
    path.write_bytes(copied)  # as after a kill: what is in the log alone is found there
    log.write_bytes(copied_log)
    async with opened(path) as journal:
        assert texts(await journal.read("a")) == [str(number) for number in range(50)]


async def test_a_disk_without_room_for_the_whole_log_still_opens(path: Path) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (schema.LOG_BYTES // 2, hard))
    try:
        async with opened(path) as journal:
            log = path.with_name(path.name + "-wal")
            assert log.stat().st_size < schema.LOG_BYTES // 4
            await journal.commit(Append("a", [said("one")]))
            assert texts(await journal.read("a")) == ["one"]
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))


async def test_a_disk_on_which_there_can_be_no_log_still_opens(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect = schema.connect

    def without_a_log(where: Path) -> sqlite3.Connection:
        connection = connect(where)
        connection.execute("PRAGMA journal_mode=DELETE")
        return connection

    monkeypatch.setattr(schema, "connect", without_a_log)
    async with opened(path) as journal:
        await journal.commit(Append("a", [said("one")]))
        assert texts(await journal.read("a")) == ["one"]


async def test_the_files_are_their_owners_alone(path: Path) -> None:
    async with opened(path) as journal:
        await journal.commit(Append("a", [said("one")]))
        assert path.parent.stat().st_mode & 0o777 == 0o700
        for file in path.parent.iterdir():
            assert file.stat().st_mode & 0o777 == 0o600, file


async def test_too_many_waiting_commits_are_refused_instead_of_piled_up(
    path: Path,
) -> None:
    async with opened(path, limits=Limits(backlog=5)) as journal:
        answers = await asyncio.gather(
            *(journal.commit(Append("a", [said("")])) for _ in range(8)), return_exceptions=True
        )
        assert [isinstance(answer, Unavailable) for answer in answers] == [False] * 6 + [True] * 2
        await journal.commit(Append("a", [said("")]))


class TestRetention:
    async def test_forgetting_much_lets_commits_pass_in_between(self, path: Path) -> None:
        async with opened(path, limits=Limits(forgotten_at_once=10)) as journal:
            await journal.commit(Append("old", [said("") for _ in range(500)]))
            forgetting = asyncio.ensure_future(journal.forget("old", through=500))
            await journal.commit(Append("new", [said("")]))
            assert not forgetting.done()
            await forgetting
            assert await journal.head("old") == Head(first=501, last=500)

    async def test_pruning_drops_what_is_too_old_and_what_is_too_much(self, path: Path) -> None:
        clock = FakeClock(1000)
        async with opened(path, clock=clock) as journal:
            await journal.commit(
                *(Append(f"session:{n}", [said("old")] * 3) for n in range(3)),
                Append("audit", [said("old")] * 3),
            )
            clock.advance(1000)
            await journal.commit(
                Append("session:1", [said("new")]), Append("session:2", [said("new")] * 5)
            )
            assert await journal.prune("session:", before=1500, keep=2) == 3 + 3 + 6
            assert await journal.head("session:0") == Head(first=4, last=3)
            assert await journal.head("session:1") == Head(first=4, last=4)
            assert await journal.head("session:2") == Head(first=7, last=8)
            assert await journal.head("audit") == Head(first=1, last=3)
            assert await journal.prune("session:", before=1500, keep=2) == 0

    async def test_pruning_keeps_what_is_young_before_an_event_that_met_a_wrong_clock(
        self, path: Path
    ) -> None:
        clock = FakeClock(1000)
        async with opened(path, clock=clock) as journal:
            await journal.commit(Append("session:1", [said("old")]))
            for ms in (1000, -1500, 1500):
                clock.advance(ms)
                await journal.commit(Append("session:1", [said("young")]))
            assert await journal.prune("session:", before=1500, keep=10) == 1
            assert await journal.head("session:1") == Head(first=2, last=4)

    async def test_pruning_walks_every_stream_and_every_page_of_a_long_one(
        self, path: Path
    ) -> None:
        async with opened(
            path, clock=FakeClock(1000), limits=Limits(forgotten_at_once=10)
        ) as journal:
            await journal.commit(
                *(Append(f"s{n:04}", [said("")]) for n in range(600)),
                Append("s0300", [said("")] * 35),
            )
            assert await journal.prune("s", before=1001, keep=10_000) == 635
            assert await journal.read_all() == []


class TestEpoch:
    async def test_it_stays_over_a_clean_stop(self, path: Path) -> None:
        first = await filled(path)
        async with opened(path) as journal:
            assert journal.vouches_since == first

    async def test_it_stays_when_only_the_process_died(self, path: Path) -> None:
        first = await filled(path)
        edit_meta(path, clean="0")
        async with opened(path) as journal:
            assert journal.vouches_since == first

    async def test_it_changes_when_the_machine_stopped_before_the_journal_did(
        self, path: Path
    ) -> None:
        first = await filled(path)
        edit_meta(path, clean="0", boot="another")
        async with opened(path) as journal:
            second = journal.vouches_since
            assert second != first
        async with opened(path) as journal:
            assert journal.vouches_since == second

    async def test_it_stays_when_the_machine_was_restarted_after_a_clean_stop(
        self, path: Path
    ) -> None:
        first = await filled(path)
        edit_meta(path, boot="another")
        async with opened(path) as journal:
            assert journal.vouches_since == first

    async def test_it_changes_when_the_file_was_put_back_from_a_copy(self, path: Path) -> None:
        first = await filled(path)
        copied = path.read_bytes()
        await filled(path)
        path.write_bytes(copied)
        async with opened(path) as journal:
            assert journal.vouches_since != first

    async def test_it_changes_when_the_file_was_put_back_from_a_copy_made_in_the_same_life(
        self, path: Path
    ) -> None:
        log = path.with_name(path.name + "-wal")
        async with opened(path) as journal:
            first = journal.vouches_since
            await journal.commit(Append("a", [said("one")]))
            copied, copied_log = path.read_bytes(), log.read_bytes()
            await journal.commit(Append("a", [said("two")]))
        path.write_bytes(copied)
        log.write_bytes(copied_log)
        async with opened(path) as journal:
            assert texts(await journal.read("a")) == ["one"]
            assert journal.vouches_since != first

    async def test_it_stays_when_the_newest_events_were_forgotten(self, path: Path) -> None:
        first = await filled(path)
        async with opened(path) as journal:
            await journal.forget("a", through=200)
        async with opened(path) as journal:
            assert journal.vouches_since == first

    @pytest.mark.parametrize("content", [b"", bytes(21), b"no number at all, and a longer line\n"])
    async def test_it_changes_once_when_what_the_witness_saw_cannot_be_read(
        self, path: Path, content: bytes
    ) -> None:
        first = await filled(path)
        witness_path(path).write_bytes(content)
        async with opened(path) as journal:
            second = journal.vouches_since
            assert second != first
        async with opened(path) as journal:
            assert journal.vouches_since == second

    async def test_it_changes_when_the_whole_home_was_put_back_from_a_copy(
        self, path: Path, tmp_path: Path
    ) -> None:
        first = await filled(path)
        path.parent.rename(tmp_path / "moved")
        path.parent.mkdir()
        for file in (tmp_path / "moved").iterdir():
            (path.parent / file.name).write_bytes(file.read_bytes())
        async with opened(path) as journal:
            assert journal.vouches_since != first


def overwrite(path: Path, *, at: int, content: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(content)


def cut(path: Path, *, to: int) -> None:
    with path.open("r+b") as file:
        file.truncate(to)


DAMAGES: dict[str, Callable[[Path], None]] = {
    "random bytes for a header": lambda path: overwrite(path, at=0, content=bytes(range(100))),
    "another kind of file": lambda path: overwrite(path, at=0, content=b"only text\n" * 1000),
    "cut in the middle": lambda path: cut(path, to=path.stat().st_size // 2),
    "cut within a page": lambda path: cut(path, to=path.stat().st_size - 1000),
    "emptied": lambda path: cut(path, to=0),
    "a page of zeros": lambda path: overwrite(path, at=3 * 4096, content=bytes(4096)),
    "a page of noise": lambda path: overwrite(path, at=5 * 4096, content=b"\xa5\x17" * 2048),
}


class TestRefusals:
    @pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
    @pytest.mark.parametrize("clean", [True, False], ids=["closed", "killed"])
    async def test_a_damaged_file_is_refused_and_left_as_it_is(
        self, path: Path, damage: Callable[[Path], None], clean: bool
    ) -> None:
        await filled(path)
        if not clean:
            edit_meta(path, clean="0")
        damage(path)
        before = path.read_bytes()
        assert isinstance(await refusal(path), Damaged)
        assert path.read_bytes() == before

    async def test_a_copy_that_was_put_back_beside_the_log_of_another_file_is_told_what_to_do(
        self, path: Path
    ) -> None:
        log = path.with_name(path.name + "-wal")
        await filled(path)
        copy = path.read_bytes()
        await filled(path)
        async with opened(path) as journal:
            await journal.commit(Append("a", [said("x" * 3000)] * 10))
            killed = log.read_bytes()
        path.write_bytes(copy)
        log.write_bytes(killed)
        error = await refusal(path)
        assert isinstance(error, Damaged)
        assert f"restore it from a copy and delete {log.name}" in str(error)
        path.write_bytes(copy)
        log.unlink()
        async with opened(path) as journal:
            assert len(await journal.read("a")) == 200

    async def test_a_log_without_its_file_is_refused_and_left_as_it_is(self, path: Path) -> None:
        log = path.with_name(path.name + "-wal")
        journal = await SqliteJournal.open(path, clock=FakeClock(), bus=LocalBus())
        await journal.commit(Append("a", [said("one")]))
        written = log.read_bytes()
        await journal.close()
        path.unlink()
        log.write_bytes(written)
        assert isinstance(await refusal(path), Damaged)
        assert log.read_bytes() == written
        assert not path.exists()

    @pytest.mark.parametrize("left", [None, b""], ids=["gone", "emptied"])
    async def test_a_file_that_lost_the_log_with_everything_in_it_is_refused_and_left_as_it_is(
        self, path: Path, left: bytes | None
    ) -> None:
        log = path.with_name(path.name + "-wal")
        journal = await SqliteJournal.open(path, clock=FakeClock(), bus=LocalBus())
        await journal.commit(Append("a", [said("one")]), Put("devices", "d", b"paired", expected=0))
        killed = path.read_bytes()  # as in a first life, before anything left the log
        await journal.close()
        path.write_bytes(killed)
        if left is not None:
            log.write_bytes(left)
        assert isinstance(await refusal(path), Damaged)
        assert path.read_bytes() == killed

    async def test_a_newer_file_is_refused_and_left_as_it_is(self, path: Path) -> None:
        await filled(path)
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("PRAGMA user_version=99")
        before = path.read_bytes()
        error = await refusal(path)
        assert isinstance(error, Misconfigured)
        assert "99" in str(error)
        assert path.read_bytes() == before

    async def test_somebody_elses_database_is_refused_and_left_as_it_is(self, path: Path) -> None:
        path.parent.mkdir()
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("CREATE TABLE songs (title TEXT)")
        before = path.read_bytes()
        assert isinstance(await refusal(path), Misconfigured)
        assert path.read_bytes() == before

    async def test_a_file_that_was_being_made_when_the_process_died_is_made_anew(
        self, path: Path
    ) -> None:
        path.parent.mkdir()
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("PRAGMA journal_mode=WAL")
        async with opened(path) as journal:
            await journal.commit(Append("a", [said("one")]))

    async def test_a_home_that_cannot_be_written_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("in the way")
        assert isinstance(await refusal(tmp_path / "file" / "journal.sqlite3"), Misconfigured)

    async def test_a_file_that_the_system_refuses_is_named_with_the_reason(
        self, path: Path, tmp_path: Path
    ) -> None:
        path.parent.mkdir()
        path.symlink_to(tmp_path / "not mounted" / path.name)
        error = await refusal(path)
        assert isinstance(error, Unavailable)
        assert "No such file or directory" in str(error)

    async def test_a_second_opening_is_refused_until_the_first_is_closed(self, path: Path) -> None:
        async with opened(path):
            await refusal(path)
        async with opened(path):
            pass

    async def test_a_second_process_is_told_who_holds_the_home(self, path: Path) -> None:
        script = (
            "import sys; from pathlib import Path; from toolgate.journal.sqlite.home_lock import HomeLock\n"
            "held = HomeLock.take(Path(sys.argv[1])); print('held', flush=True); sys.stdin.read()"
        )
        with subprocess.Popen(
            [sys.executable, "-c", script, str(path.parent)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as holder:
            assert holder.stdout is not None
            assert holder.stdout.readline() == b"held\n"
            error = await refusal(path)
            assert isinstance(error, Misconfigured)
            assert str(holder.pid) in str(error)
            holder.kill()
        async with opened(path):
            pass

    async def test_a_file_that_another_program_writes_to_is_not_a_fault_of_the_disk(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await filled(path)
        connect = schema.connect

        def impatient(where: Path) -> sqlite3.Connection:
            connection = connect(where)
            connection.execute("PRAGMA busy_timeout=1")
            return connection

        monkeypatch.setattr(schema, "connect", impatient)
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            error = await refusal(path)
            assert isinstance(error, Unavailable)
            assert "another program is writing" in str(error)
        async with opened(path):
            pass

    async def test_damage_that_is_met_while_it_runs_refuses_every_commit_from_then_on(
        self, path: Path
    ) -> None:
        await filled(path, events=2000)
        journal = await SqliteJournal.open(path, clock=FakeClock(), bus=LocalBus())
        size = path.stat().st_size
        overwrite(path, at=4096, content=b"\xa5" * (size - 4096))
        for _ in range(2):
            with pytest.raises(Damaged):
                await journal.commit(Append("unknown", [said("")]))
        await journal.close()


async def test_a_new_file_says_whose_and_which_version_it_is(path: Path) -> None:
    await filled(path)
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA application_id").fetchone()[0] == 0x54474A4C
        assert connection.execute("PRAGMA user_version").fetchone()[0] == schema.VERSION


@pytest.mark.parametrize("version", [1, schema.VERSION + 1])
async def test_a_file_of_another_version_is_refused_and_left_as_it_is(
    path: Path, version: int
) -> None:
    await filled(path)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA user_version={version}")
    before = path.read_bytes()
    assert isinstance(await refusal(path), Misconfigured)
    assert path.read_bytes() == before
