"""Sessions: who made one, and from where a returning device goes on."""

import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

import msgspec

from toolgate.core.clock import Clock
from toolgate.core.errors import Conflict, NotFound
from toolgate.core.ids import NewId
from toolgate.journal.journal import Delete, Journal, Put, Row
from toolgate.runs.retention import Sweep

SESSIONS: Final = "sessions"
SEEN_AGAIN_MS: Final = 24 * 3_600_000  # or each hello would be a write


def stream_of(session_id: str) -> str:
    return f"session/{session_id}"


class SessionRow(msgspec.Struct, frozen=True):
    user_id: str
    created_at: int
    seen_at: int = 0  # when it was last found to be in use, to about a day


_decode: Final = msgspec.json.Decoder(SessionRow).decode


def _last_seen(row: Row) -> int:
    session = _decode(row.value)
    return max(session.created_at, session.seen_at)


@dataclass(frozen=True, slots=True)
class Opening:
    """Where a connection of a session begins: past `after`, which a snapshot or a recall leads to."""

    session_id: str
    resumed: bool
    last_seq: int
    after: int
    snapshot: bool
    recall: bool = False  # the client did not say what it has seen


@dataclass(slots=True)
class Sessions:
    journal: Journal
    clock: Clock
    new_id: NewId
    _sweep: Sweep = field(init=False)

    def __post_init__(self) -> None:
        self._sweep = Sweep(self.journal, SESSIONS)

    async def open(
        self, *, user_id: str, session_id: str, last_seq: int | None, epoch: str
    ) -> Opening:
        """A new session, or the user's own again; another's raises NotFound."""
        if not session_id:
            return await self._make(user_id)
        row = await self.journal.get(SESSIONS, session_id)
        if row is None or _decode(row.value).user_id != user_id:
            raise NotFound("session", session_id)
        await self._see(row)
        head = await self.journal.head(stream_of(session_id))
        foreign = bool(epoch) and epoch != self.journal.vouches_since
        if last_seq is None and not foreign:
            return Opening(
                session_id,
                resumed=True,
                last_seq=head.last,
                after=head.last,
                snapshot=False,
                recall=True,
            )
        if foreign or last_seq is None or last_seq + 1 < head.first or last_seq > head.last:
            return Opening(
                session_id, resumed=False, last_seq=head.last, after=head.last, snapshot=True
            )
        return Opening(session_id, resumed=True, last_seq=head.last, after=last_seq, snapshot=False)

    async def knows(self, session_id: str) -> bool:
        """Whether it was made here, for a client; a device's or a schedule's was not."""
        return await self.journal.get(SESSIONS, session_id) is not None

    async def last_activity(self, session_id: str) -> int | None:
        """When something last happened in a session; None where there is no such session."""
        row = await self.journal.get(SESSIONS, session_id)
        latest = await self.journal.read_back(stream_of(session_id), limit=1)
        times = [event.at for event in latest]
        if row is not None:
            times.append(_decode(row.value).created_at)
        return max(times, default=None)

    async def forget(self, before: int, *, is_in_use: Callable[[str], Awaitable[bool]]) -> int:
        """The sessions that nobody was connected to, and nothing was told, since then."""
        forgotten = 0
        for row in await self._sweep.page():
            if _last_seen(row) >= before:
                continue
            with contextlib.suppress(Conflict, NotFound):  # someone came back meanwhile
                if await is_in_use(row.key):
                    await self._see(row)
                else:
                    await self.journal.commit(
                        Delete(SESSIONS, row.key, expected=row.version), durable=False
                    )
                    forgotten += 1
        return forgotten

    async def _see(self, row: Row) -> None:
        """Somebody uses it, so that it is not forgotten; NotFound where it just was."""
        now = self.clock.now_ms()
        if now - _last_seen(row) < SEEN_AGAIN_MS:
            return
        seen = msgspec.structs.replace(_decode(row.value), seen_at=now)
        try:
            await self.journal.commit(
                Put(SESSIONS, row.key, msgspec.json.encode(seen), expected=row.version)
            )
        except Conflict:  # by another device, or it is gone
            if not await self.knows(row.key):
                raise NotFound("session", row.key) from None

    async def _make(self, user_id: str) -> Opening:
        session_id = self.new_id("sess")
        row = msgspec.json.encode(SessionRow(user_id, self.clock.now_ms()))
        await self.journal.commit(Put(SESSIONS, session_id, row, expected=0))
        return Opening(session_id, resumed=False, last_seq=0, after=0, snapshot=False)
