"""Updates of a running call: collected, and written in batches of a bounded rate and size.

A surface gives an `Updates` to `Allowed.run` and closes it before it writes the call's end. A tool
that floods it costs at most `LIMIT` characters; it never waits for whoever reads.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Final, NamedTuple

from toolgate.core.clock import Clock
from toolgate.core.errors import ToolgateError

log = logging.getLogger(__name__)

PAUSE_S: Final = 0.05  # between two batches, unless one is full
BATCH: Final = 16 * 1024  # characters of a full batch, and of one piece at most
LIMIT: Final = 1024 * 1024  # characters of one call
PIECE_COST: Final = 64  # characters that a piece counts beside its text: its event is kept too
MOST_PIECES: Final = 32  # of one batch with a time of their own; more are joined
STOPPED: Final = "\n[toolgate: too much output to follow; the rest is only in the result]\n"


class TimedText(str):
    """A piece of output with the time that its source gave it, in Unix ms."""

    __slots__ = ("at",)
    at: int

    def __new__(cls, text: str, *, at: int) -> "TimedText":
        piece = super().__new__(cls, text)
        piece.at = at
        return piece


def with_time_of(text: str, source: str) -> str:
    """The text, with the time of the piece that it was made from, if that has one."""
    return TimedText(text, at=source.at) if isinstance(source, TimedText) else text


class Piece(NamedTuple):
    text: str
    at: int  # Unix ms


class _Waiting:
    """Pieces of one time, until they are written."""

    __slots__ = ("at", "is_timed", "texts")

    def __init__(self, text: str, at: int, *, is_timed: bool) -> None:
        self.texts = [text]
        self.at = at
        self.is_timed = is_timed

    def pieces(self) -> Iterator[Piece]:
        text = "".join(self.texts)
        for start in range(0, len(text), BATCH):
            yield Piece(text[start : start + BATCH], self.at)


Write = Callable[[Sequence[Piece]], Awaitable[None]]


class Updates:
    """An `Update` that hands what it takes to `write`, in order, one batch at a time."""

    def __init__(self, write: Write, clock: Clock, *, limit: int = LIMIT) -> None:
        self._write = write
        self._clock = clock
        self._left = limit
        self._waiting: list[_Waiting] = []
        self._size = 0  # characters that wait
        self._hurry = asyncio.Event()  # write now: a batch is full, or the call has ended
        self._closed = False
        self._writing: asyncio.Task[None] | None = None

    def __call__(self, text: str) -> None:
        if not text or self._closed or self._left <= 0:
            return
        self._take(text[: self._left], source=text)
        if self._left <= 0:
            self._take(STOPPED, source=text)
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write_all())

    def _take(self, text: str, *, source: str) -> None:
        is_timed = isinstance(source, TimedText)
        at = source.at if isinstance(source, TimedText) else self._clock.now_ms()
        last = self._waiting[-1] if self._waiting else None
        joins = last is not None and (
            len(self._waiting) >= MOST_PIECES
            or last.at == at
            or (not is_timed and not last.is_timed)
        )
        if last is not None and joins:
            last.texts.append(text)
            last.at = at
        else:
            self._waiting.append(_Waiting(text, at, is_timed=is_timed))
            self._left -= PIECE_COST
        self._left -= len(text)
        self._size += len(text)
        if self._size >= BATCH:
            self._hurry.set()

    async def close(self) -> None:
        """Write what waits; what comes later is dropped."""
        self._closed = True
        if self._writing is not None:
            self._hurry.set()
            await self._writing

    async def _write_all(self) -> None:
        while self._waiting:
            waiting, self._waiting, self._size = self._waiting, [], 0
            if not self._closed:
                self._hurry.clear()
            try:
                await self._write([piece for one in waiting for piece in one.pieces()])
            except ToolgateError as lost:
                # The result says it all: a call does not fail because nobody could follow it.
                log.info("updates_lost error=%s", lost)
                self._closed = True
                self._waiting = []
                return
            await self._pause()

    async def _pause(self) -> None:
        try:
            async with asyncio.timeout(PAUSE_S):
                await self._hurry.wait()
        except TimeoutError:
            return
