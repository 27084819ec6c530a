"""A clock that goes only where a test moves it."""

from typing import Final

START_MS: Final = 1_700_000_000_000


class FakeClock:
    def __init__(self, now_ms: int = START_MS) -> None:
        self._start = now_ms
        self._now = now_ms

    def now_ms(self) -> int:
        return self._now

    def monotonic(self) -> float:
        return (self._now - self._start) / 1000

    def advance(self, ms: int) -> None:
        self._now += ms
