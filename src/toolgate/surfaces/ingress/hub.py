"""The connections of each session, and the delivery of events to them.

Every event of a session is in the journal first. The bus publishes it to the hub, which makes its frame
once and writes it to each connection of the session. A connection that is behind reads the journal.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Final, Protocol

from toolgate.core.clock import Clock
from toolgate.journal.bus import Bus
from toolgate.journal.journal import Event
from toolgate.runs.deliveries import TOOL_REQUEST, frame
from toolgate.runs.originals import Originals
from toolgate.surfaces.ingress.sessions import stream_of

log = logging.getLogger(__name__)

SESSION_PREFIX: Final = stream_of("")

# A session that did not come back, with the tool requests that no connection has taken.
Gone = Callable[[str, Sequence[Event]], Awaitable[None]]
Undelivered = Callable[[str, Event], Awaitable[None]]  # a tool request that nobody could take


Write = Callable[[bytes], None]


class Listener(Protocol):
    """A connection, for the hub."""

    def miss(self, event: Event, data: bytes) -> None:
        """Note an event that was not written; the connection reads it from the journal later."""
        ...

    def fall_behind(self) -> None:
        """Stop being live, because events were missed, and read the journal."""
        ...


@dataclass(slots=True, eq=False)
class Channel:
    """The connections of one session. Everything up to `last_seq` was written to the live ones.

    A connection may be `ahead`: it has read events from the journal that the bus publishes later.
    """

    connections: set[Listener] = field(default_factory=set)
    live: dict[Listener, Write] = field(default_factory=dict)
    ahead: dict[Listener, int] = field(default_factory=dict)  # of the live: the last they read
    last_seq: int = 0  # the highest number that was told of since the channel was made

    def go_live(self, connection: Listener, cursor: int, write: Write) -> bool:
        """Make a connection live; False if there are events after its cursor."""
        if cursor < self.last_seq:
            return False
        if not self.live:
            self.last_seq = cursor
        elif cursor > self.last_seq:
            self.ahead[connection] = cursor
        self.live[connection] = write
        return True

    def given(self, connection: Listener) -> int | None:
        """The number of the last event that was written to a connection; None if it is not live."""
        return self.ahead.get(connection, self.last_seq) if connection in self.live else None

    def leave_live(self, connection: Listener) -> int | None:
        """The same as `given`; the connection is not live afterwards."""
        given = self.given(connection)
        self.live.pop(connection, None)
        self.ahead.pop(connection, None)
        return given

    def deliver(self, event: Event, data: bytes) -> None:
        if self.live and event.seq != self.last_seq + 1:
            if event.seq <= self.last_seq:
                return  # told before
            for connection in tuple(self.live):
                connection.fall_behind()
        self.last_seq = event.seq
        for write in self._lacking(event.seq) if self.ahead else tuple(self.live.values()):
            write(data)
        if len(self.live) < len(self.connections):
            for connection in self.connections - self.live.keys():
                connection.miss(event, data)

    def _lacking(self, seq: int) -> Sequence[Write]:
        ahead = self.ahead
        lacking = [write for one, write in self.live.items() if ahead.get(one, 0) < seq]
        self.ahead = {one: cursor for one, cursor in ahead.items() if cursor > seq}
        return lacking


class Hub:
    def __init__(
        self, bus: Bus, clock: Clock, originals: Originals, *, resume_window_ms: int
    ) -> None:
        self.originals = originals
        self._clock = clock
        self.resume_window_ms = resume_window_ms
        self._channels: dict[str, Channel] = {}
        self._active_at: dict[str, int] = {}
        self._away: dict[str, asyncio.TimerHandle] = {}
        self._untaken: dict[str, dict[asyncio.TimerHandle, Event]] = {}  # by session
        self._users: Counter[str] = Counter()
        self._work: set[asyncio.Task[None]] = set()
        self._subscription = bus.subscribe(None, self._heard)
        self._closed = False
        self.on_gone: Gone | None = None
        self.on_undelivered: Undelivered | None = None
        self.delivered = 0

    def join(self, session_id: str, user_id: str, connection: Listener) -> Channel:
        stream = stream_of(session_id)
        channel = self._channels.get(stream)
        if channel is None:
            channel = self._channels[stream] = Channel()
        channel.connections.add(connection)
        self._users[user_id] += 1
        self.touch(session_id)
        away = self._away.pop(session_id, None)
        if away is not None:
            away.cancel()
        for untaken in self._untaken.pop(session_id, ()):
            untaken.cancel()  # it reads what waits for it
        return channel

    def leave(self, session_id: str, user_id: str, connection: Listener) -> None:
        stream = stream_of(session_id)
        channel = self._channels.get(stream)
        if channel is None or connection not in channel.connections:
            return
        channel.connections.discard(connection)
        channel.leave_live(connection)
        self._users[user_id] -= 1
        if not self._users[user_id]:
            del self._users[user_id]
        if not channel.connections:
            del self._channels[stream]
            self.expect(session_id)

    def expect(self, session_id: str) -> None:
        """Give a session without connections its resume window, then report it as gone.

        A restart calls this for every session with open runs.
        """
        if self._closed or session_id in self._away or self.is_online(session_id):
            return
        loop = asyncio.get_running_loop()
        self._away[session_id] = loop.call_later(
            self.resume_window_ms / 1000, self._let_go, session_id
        )

    def touch(self, session_id: str) -> None:
        self._active_at[session_id] = self._clock.now_ms()

    def last_activity(self, session_id: str) -> int | None:
        return self._active_at.get(session_id)

    def count(self, session_id: str) -> int:
        return len(self.connections(session_id))

    def connections(self, session_id: str) -> set[Listener]:
        channel = self._channels.get(stream_of(session_id))
        return channel.connections if channel else set()

    def count_of_user(self, user_id: str) -> int:
        return self._users.get(user_id, 0)

    def is_online(self, session_id: str) -> bool:
        return stream_of(session_id) in self._channels

    def close(self) -> None:
        """Stop, without reporting any session as gone: the process stops, not the sessions."""
        self._closed = True
        self._subscription.close()
        for timer in (*self._away.values(), *chain.from_iterable(self._untaken.values())):
            timer.cancel()
        for task in self._work:
            task.cancel()

    def _heard(self, events: Sequence[Event]) -> None:
        channels = self._channels
        for event in self.originals.restored(events):
            channel = channels.get(event.stream)
            if channel is not None:
                self.delivered += len(channel.connections)
                channel.deliver(event, frame(event))
            elif event.type == TOOL_REQUEST and event.stream.startswith(SESSION_PREFIX):
                self._wait_for_taker(event)

    def _wait_for_taker(self, event: Event) -> None:
        session_id = event.stream.removeprefix(SESSION_PREFIX)

        def give_up() -> None:
            waiting = self._untaken[session_id]
            del waiting[timer]
            if not waiting:
                del self._untaken[session_id]
            if self.on_undelivered is not None:
                self._start(self.on_undelivered(session_id, event))

        timer = asyncio.get_running_loop().call_later(self.resume_window_ms / 1000, give_up)
        self._untaken.setdefault(session_id, {})[timer] = event

    def _let_go(self, session_id: str) -> None:
        self._away.pop(session_id, None)
        if self.is_online(session_id):
            return
        self._active_at.pop(session_id, None)
        untaken = self._untaken.pop(session_id, {})
        for timer in untaken:
            timer.cancel()
        if self.on_gone is not None:
            log.info("session_gone session_id=%s", session_id)
            self._start(self.on_gone(session_id, tuple(untaken.values())))

    def _start(self, work: Awaitable[None]) -> None:
        task = asyncio.create_task(_awaited(work))
        self._work.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._work.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("hub_work_failed", exc_info=task.exception())


async def _awaited(work: Awaitable[None]) -> None:
    await work
