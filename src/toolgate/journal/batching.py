"""Group commit: everything that waits goes to the store in one batch, one batch at a time.

Shared by the journals. A store writes a batch and calls `settle` with it, on the event loop.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from toolgate.core.errors import ToolgateError, Unavailable
from toolgate.journal.bus import Bus
from toolgate.journal.journal import Event, Operation

log = logging.getLogger(__name__)

# Turns of the loop before the next batch: a caller that is woken ends its task, whose waiter begins the
# next one, which commits. Without them half of the callers would miss each batch.
TURNS: Final = 3
SETTLED_AT_ONCE: Final = 64  # commits; a thousand would keep the loop for tens of milliseconds


class Forget(NamedTuple):
    """Drop a stream's events up to and including a number; only retention does this."""

    stream: str
    through: int


class NewEpoch(NamedTuple):
    """From this commit on the journal vouches under another name; only a restore does this."""

    name: str


class Commit:
    """Operations on their way to the disk, and their result."""

    __slots__ = ("added", "done", "durable", "error", "events", "operations")

    def __init__(
        self,
        operations: Sequence[Operation | Forget | NewEpoch],
        *,
        durable: bool,
        done: asyncio.Future[list[Event]],
    ) -> None:
        self.operations = operations
        self.durable = durable
        self.done = done
        self.events: list[Event] = []
        self.added: list[Event] = []  # for the bus, not for the caller: the summary of its batch
        self.error: ToolgateError | None = None


class GroupCommit:
    """Commits that wait, the batch that is written, and the callers of those that are written."""

    def __init__(
        self, write: Callable[[list[Commit]], object], *, bus: Bus, batch: int, backlog: int
    ) -> None:
        """`write` begins to write a batch of at most `batch` commits; `backlog` of them may wait."""
        self._write = write
        self._bus = bus
        self._batch = batch
        self._backlog = backlog
        self._loop = asyncio.get_running_loop()
        self._arrived: list[Commit] = []  # since the last batch
        self._writing = False
        self._alone = True  # whether the last batch was a single commit
        self._drained: asyncio.Future[None] | None = None
        self.closing = False

    async def commit(
        self, operations: Sequence[Operation | Forget | NewEpoch], *, durable: bool = True
    ) -> list[Event]:
        if self.closing:
            raise Unavailable("the journal is closed")
        if len(self._arrived) >= self._backlog:
            raise Unavailable(f"{len(self._arrived)} commits wait for the journal: try later")
        commit = Commit(operations, durable=durable, done=self._loop.create_future())
        self._arrived.append(commit)
        if not self._writing and self._alone:
            self._hand_over()  # otherwise `settle` does it
        return await commit.done

    async def drain(self) -> None:
        """Take no more commits, and wait until those that wait are settled."""
        self.closing = True
        if self._writing or self._arrived:
            self._drained = self._loop.create_future()
            await self._drained

    def settle(self, batch: list[Commit]) -> None:
        """Resolve the futures of the callers, a part in each turn of the loop."""
        batch, later = batch[:SETTLED_AT_ONCE], batch[SETTLED_AT_ONCE:]
        events = [event for commit in batch for event in (*commit.events, *commit.added)]
        if events:
            try:
                # Before the callers go on, so that no subscriber receives a later event first.
                self._bus.publish(events)
            except Exception:
                log.exception("publish_failed position=%d", events[0].position)
        for commit in batch:
            if commit.done.done():  # its caller was cancelled; the commit stands
                continue
            if commit.error is None:
                commit.done.set_result(commit.events)
            else:
                commit.done.set_exception(commit.error)
        if later:
            self._loop.call_soon(self.settle, later)
            return
        self._writing = False
        if self._arrived or self.closing or not self._alone:
            # After the callers that were just woken, so that their next commits go into one batch
            # with those that came meanwhile.
            self._alone = False
            self._loop.call_soon(self._hand_over, TURNS)

    def _hand_over(self, turns: int = 0) -> None:
        """Write everything that waits if nothing is being written, after so many turns of the loop."""
        if self._writing:
            return
        if turns:
            self._loop.call_soon(self._hand_over, turns - 1)
            return
        if self._arrived:
            batch, self._arrived = self._arrived[: self._batch], self._arrived[self._batch :]
            self._writing = True
            self._alone = len(batch) == 1
            self._write(batch)
        else:
            self._alone = True
            if self._drained is not None and not self._drained.done():
                self._drained.set_result(None)
