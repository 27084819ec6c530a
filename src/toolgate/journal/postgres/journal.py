"""The journal in a PostgreSQL database.

One connection writes: everything that waits is one call of `commit_v1` (`schema.sql`), in one transaction. A call
whose answer was lost is made again with its number, which the database remembers. Reads use a small pool.
"""

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from toolgate.core.clock import Clock
from toolgate.core.errors import Conflict, Invalid, Unavailable
from toolgate.journal.batching import Commit, GroupCommit
from toolgate.journal.bus import Bus
from toolgate.journal.journal import Event, Head, Operation, Row
from toolgate.journal.postgres import schema
from toolgate.journal.postgres.draft import Draft, Known, Unsure, touched

if TYPE_CHECKING:
    from asyncpg import Connection, Pool
    from asyncpg.prepared_stmt import PreparedStatement

log = logging.getLogger(__name__)

_PARAMETERS: Final = ", ".join(f"${number}" for number in range(1, 26))
_COMMIT: Final = f"SELECT * FROM toolgate.commit_v1({_PARAMETERS})"  # noqa: S608 - numbers
_EVENTS: Final = "SELECT position, stream, seq, type, at, data, subject FROM toolgate.events"
_ROWS: Final = "SELECT collection, key, version, value, due FROM toolgate.rows"
_NO_END: Final = 2**62  # above every number of a stream

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PostgresLimits:
    batch: int = 1024  # commits in one transaction
    backlog: int = 50_000  # commits that may wait
    readers: int = 4  # connections
    forgotten_at_once: int = 1000  # events per transaction, so that commits pass in between
    attempts: int = 20  # of a batch; each loses only to a commit of another node since its look
    wait_s: float = 15.0  # for a database that is away; then commits are refused
    retry_s: float = 0.2
    statement_s: float = 30.0


_DEFAULT_LIMITS: Final = PostgresLimits()


class PostgresJournal:
    """The journal; make it with `open`. `close` commits what waits."""

    def __init__(
        self, url: str, pool: "Pool", *, clock: Clock, bus: Bus, limits: PostgresLimits
    ) -> None:
        self._url = url
        self._pool = pool
        self._clock = clock
        self._limits = limits
        self._writer = secrets.token_hex(8)
        self._batch = 0
        self._connection: Connection | None = None
        self._commit: PreparedStatement | None = None
        self._epoch = ""
        self._fault = ""
        self._task: asyncio.Task[None] | None = None
        self._group = GroupCommit(self._begin, bus=bus, batch=limits.batch, backlog=limits.backlog)

    @classmethod
    async def open(
        cls, url: str, *, clock: Clock, bus: Bus, limits: PostgresLimits = _DEFAULT_LIMITS
    ) -> Self:
        """Connect to a database with our schema.

        Raises Misconfigured, with what to do, where it should not be used, and Unavailable where it
        cannot be reached.
        """
        import asyncpg  # noqa: PLC0415 - 60 ms, only with DATABASE_URL

        try:
            pool = await asyncpg.create_pool(
                url,
                min_size=1,
                max_size=limits.readers,
                command_timeout=limits.statement_s,
                timeout=limits.wait_s,
            )
        except (OSError, TimeoutError, ValueError, asyncpg.PostgresError) as refused:
            raise _unreachable(refused) from refused
        journal = cls(url, pool, clock=clock, bus=bus, limits=limits)
        try:
            async with pool.acquire() as connection:
                await schema.check(connection)
            await journal._connect()
        except BaseException as refused:
            await journal._disconnect()
            await pool.close()
            if isinstance(refused, OSError | asyncpg.PostgresError):
                raise _unreachable(refused) from refused
            raise
        return journal

    async def close(self) -> None:
        """Commit what waits, and leave the database."""
        if self._group.closing:
            return
        await self._group.drain()
        if self._connection is not None:
            with contextlib.suppress(Exception):  # only tidies up
                await self._connection.execute(
                    "DELETE FROM toolgate.writers WHERE writer = $1", self._writer
                )
        await self._disconnect()
        await self._pool.close()

    @property
    def vouches_since(self) -> str:
        return self._epoch

    @property
    def fault(self) -> str:
        return self._fault

    async def commit(self, *operations: Operation, durable: bool = True) -> list[Event]:
        return await self._group.commit(operations, durable=durable)

    async def read(
        self, stream: str, *, after: int = 0, limit: int = 1000, subject: str = ""
    ) -> list[Event]:
        if subject:
            return await self._events(
                "WHERE subject = $1 AND subject <> '' AND seq > $2 AND stream = $3"
                " ORDER BY seq LIMIT $4",
                *(subject, after, stream, limit),
            )
        return await self._events(
            "WHERE stream = $1 AND seq > $2 ORDER BY seq LIMIT $3", stream, after, limit
        )

    async def read_back(
        self, stream: str, *, before: int | None = None, limit: int = 1000, subject: str = ""
    ) -> list[Event]:
        end = _NO_END if before is None else before
        if subject:
            return await self._events(
                "WHERE subject = $1 AND subject <> '' AND seq < $2 AND stream = $3"
                " ORDER BY seq DESC LIMIT $4",
                *(subject, end, stream, limit),
            )
        return await self._events(
            "WHERE stream = $1 AND seq < $2 ORDER BY seq DESC LIMIT $3", stream, end, limit
        )

    async def read_all(self, *, after: int = 0, limit: int = 1000) -> list[Event]:
        return await self._events("WHERE position > $1 ORDER BY position LIMIT $2", after, limit)

    async def head(self, stream: str) -> Head:
        found = await self._fetch(
            "SELECT first, last FROM toolgate.streams WHERE stream = $1", stream
        )
        return Head(first=found[0][0], last=found[0][1]) if found else Head(first=1, last=0)

    async def last_position(self) -> int:
        return int((await self._fetch("SELECT position FROM toolgate.head"))[0][0])

    async def get(self, collection: str, key: str) -> Row | None:
        found = await self._rows("WHERE collection = $1 AND key = $2", collection, key)
        return found[0] if found else None

    async def scan(
        self, collection: str, *, after: str = "", limit: int = 1000, newest_first: bool = False
    ) -> list[Row]:
        if not newest_first:
            condition, order = "key > $2", "key"
        else:
            condition, order = ("key < $2" if after else "key >= $2"), "key DESC"
        return await self._rows(
            f"WHERE collection = $1 AND {condition} ORDER BY {order} LIMIT $3",
            *(collection, after, limit),
        )

    async def due(self, *, until: int, limit: int = 1000) -> list[Row]:
        return await self._rows(
            "WHERE due IS NOT NULL AND due <= $1 ORDER BY due, collection, key LIMIT $2",
            *(until, limit),
        )

    async def next_due(self) -> int | None:
        found = await self._fetch("SELECT min(due) FROM toolgate.rows WHERE due IS NOT NULL")
        return None if found[0][0] is None else int(found[0][0])

    async def epoch(self, name: str) -> int:
        found = await self._fetch("SELECT epoch FROM toolgate.fences WHERE name = $1", name)
        return int(found[0][0]) if found else 0

    async def forget(self, stream: str, *, through: int) -> None:
        first: int | None = 0
        while first is not None and first <= through:
            before = first
            found = await self._fetch(
                "SELECT toolgate.forget_v1($1, $2, $3)",
                *(stream, through, self._limits.forgotten_at_once),
            )
            first = found[0][0]
            if first == before:
                return

    async def prune(self, prefix: str, *, before: int, keep: int) -> int:
        """Delete the events of streams with this prefix that are older than `before`, and all but the
        newest `keep`; return their number."""
        forgotten = 0
        name = prefix
        while streams := await self._fetch(
            "SELECT stream, first, last FROM toolgate.streams WHERE stream >= $1 AND stream < $2"
            " AND first <= last ORDER BY stream LIMIT 500",
            *(name, f"{prefix}\U0010ffff"),
        ):
            for name, first, last in streams:
                young = await self._fetch(
                    "SELECT seq FROM toolgate.events WHERE stream = $1 AND at >= $2"
                    " ORDER BY seq LIMIT 1",
                    *(name, before),
                )
                through = max(young[0][0] - 1 if young else last, last - keep)
                if through >= first:
                    await self.forget(name, through=through)
                    forgotten += through - first + 1
            name += "\x01"  # above it, and below every other name
        return forgotten

    def _begin(self, batch: list[Commit]) -> None:
        self._task = asyncio.create_task(self._write(batch))

    async def _write(self, batch: list[Commit]) -> None:
        try:
            await self._write_batch(batch)
        except Invalid as unusable:
            if len(batch) == 1:
                batch[0].error = unusable
            else:
                for commit in batch:  # one of them is at fault; the others must not pay for it
                    commit.error, commit.events = None, []
                    try:
                        await self._write_batch([commit])
                    except (Invalid, Unavailable) as refused:
                        commit.error = refused
        except Unavailable as away:
            for commit in batch:
                commit.error, commit.events = Unavailable(str(away)), []
        except Exception as bug:
            log.exception("journal_write_failed commits=%d", len(batch))
            for commit in batch:
                commit.error = Unavailable(f"the journal failed: {bug!r}")
                commit.events = []
        self._group.settle(batch)

    async def _write_batch(self, batch: list[Commit]) -> None:
        known: Known | None = None
        for _ in range(self._limits.attempts):
            draft = Draft(known)
            try:
                placed = _add_all(draft, batch)
            except Unsure:
                known = await self._look(batch)
                continue
            if not placed:
                return
            durable = any(commit.durable for commit, _ in placed)
            now = self._clock.now_ms()
            answer = await self._call(durable, now, draft)
            if answer is None:
                known = await self._look(batch)
                continue
            base, lasts = answer
            last = dict(zip(draft.streams, lasts, strict=True))
            for commit, places in placed:
                commit.events = [
                    Event(
                        base + place + 1,
                        event.stream,
                        last[event.stream] + event.offset,
                        event.type,
                        now,
                        event.data,
                        event.subject,
                    )
                    for place in places
                    for event in [draft.events[place]]
                ]
            return
        raise Unavailable("other nodes change the same rows all the time: try later")

    async def _call(self, durable: bool, now: int, draft: Draft) -> tuple[int, list[int]] | None:
        """Commit the batch; None if one of its assumptions does not hold."""
        self._batch += 1
        values = (self._writer, self._batch, durable, now, *draft.values())

        async def call() -> tuple[bool, int, list[int]]:
            if self._commit is None:
                await self._connect()
            assert self._commit is not None
            written, base, lasts = await self._commit.fetchrow(
                *values, timeout=self._limits.statement_s
            )
            return written, base, lasts

        written, base, lasts = await self._persist(call)
        return (base, lasts) if written else None

    async def _look(self, batch: Sequence[Commit]) -> Known:
        """Read all states that a batch depends on."""
        streams, rows, fences = touched([commit.operations for commit in batch])

        async def look() -> Known:
            async with (
                self._pool.acquire() as connection,
                connection.transaction(isolation="repeatable_read", readonly=True),
            ):
                lasts = await connection.fetch(
                    "SELECT stream, last FROM toolgate.streams WHERE stream = ANY($1)", streams
                )
                versions = await connection.fetch(
                    "SELECT r.collection, r.key, r.version FROM unnest($1::text[], $2::text[]) q(c, k)"
                    " JOIN toolgate.rows r ON r.collection = q.c AND r.key = q.k",
                    *([row[0] for row in rows], [row[1] for row in rows]),
                )
                epochs = await connection.fetch(
                    "SELECT name, epoch FROM toolgate.fences WHERE name = ANY($1)", fences
                )
            return Known(
                dict(map(tuple, lasts)),
                {(collection, key): version for collection, key, version in versions},
                dict(map(tuple, epochs)),
            )

        return await self._persist(look)

    async def _persist(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Ask until the database answers, for `wait_s` at most."""
        import asyncpg  # noqa: PLC0415

        loop = asyncio.get_running_loop()
        until = loop.time() + self._limits.wait_s
        while True:
            try:
                answer = await ask()
            except (asyncpg.DataError, asyncpg.IntegrityConstraintViolationError) as unusable:
                raise Invalid(f"the journal cannot hold this: {unusable}") from unusable
            except (
                OSError,
                TimeoutError,
                asyncpg.InterfaceError,
                asyncpg.PostgresError,
            ) as failed:
                await self._disconnect()
                self._fail(_unreachable(failed))
                if loop.time() >= until:
                    raise Unavailable(self._fault) from failed
                await asyncio.sleep(self._limits.retry_s)
            else:
                self._work_again()
                return answer

    async def _connect(self) -> None:
        import asyncpg  # noqa: PLC0415

        connection = await asyncpg.connect(
            self._url, timeout=self._limits.wait_s, command_timeout=self._limits.statement_s
        )
        try:
            epoch = await connection.fetchval(
                "SELECT toolgate.enter_v1($1)", f"ep_{secrets.token_hex(8)}"
            )
            self._commit = await connection.prepare(_COMMIT)
        except BaseException:
            connection.terminate()
            raise
        self._connection = connection
        if self._epoch and epoch != self._epoch:
            log.warning("journal_epoch_changed epoch=%s", epoch)
        self._epoch = epoch

    async def _disconnect(self) -> None:
        connection, self._connection, self._commit = self._connection, None, None
        if connection is not None:
            with contextlib.suppress(Exception):
                await connection.close(timeout=1)

    def _fail(self, error: Unavailable) -> None:
        if not self._fault:
            log.error("journal_failing error=%s", error)
        self._fault = str(error)

    def _work_again(self) -> None:
        if self._fault:
            log.warning("journal_works_again")
            self._fault = ""

    async def _events(self, condition: str, *values: object) -> list[Event]:
        found = await self._fetch(f"{_EVENTS} {condition}", *values)
        return [Event(*row) for row in found]

    async def _rows(self, condition: str, *values: object) -> list[Row]:
        found = await self._fetch(f"{_ROWS} {condition}", *values)
        return [Row(*row) for row in found]

    async def _fetch(self, sql: str, *values: object) -> list[Any]:
        import asyncpg  # noqa: PLC0415

        if self._group.closing:
            raise Unavailable("the journal is closed")
        try:
            found: list[Any] = await self._pool.fetch(sql, *values)
        except asyncpg.DataError as unusable:
            raise Invalid(f"the journal cannot hold this: {unusable}") from unusable
        except (OSError, TimeoutError, asyncpg.InterfaceError, asyncpg.PostgresError) as failed:
            raise _unreachable(failed) from failed
        return found


def _add_all(draft: Draft, batch: Sequence[Commit]) -> list[tuple[Commit, list[int]]]:
    """Add the commits that hold; the others have their error."""
    placed = []
    for commit in batch:
        commit.error, commit.events = None, []
        try:
            placed.append((commit, draft.add(commit.operations)))
        except Conflict as refused:
            commit.error = refused
    return placed


def _unreachable(error: Exception) -> Unavailable:
    said = " ".join(str(error).split()) or type(error).__name__
    return Unavailable(f"the database cannot be used: {said}")
