"""New ids from the clock and the system's randomness."""

import threading

from toolgate.core import ids
from toolgate.core.clock import Clock
from toolgate.core.randomness import Randomness


class RandomIds:
    """Ids that sort in the order they were made, also within one millisecond."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._now = 0
        self._chance = 0
        self._random = Randomness()

    def __call__(self, prefix: str, /) -> str:
        with self._lock:
            now = self._clock.now_ms()
            if now > self._now:
                self._now = now
                self._chance = self._fresh_chance()
            else:
                # A step of chance, not of one: an id must not tell what the next one is.
                self._chance += 1 + int.from_bytes(self._random.take(8))
                if self._chance >> ids.CHANCE_BITS:  # the clock stands still for long
                    self._now += 1
                    self._chance = self._fresh_chance()
            return ids.make(prefix, now_ms=self._now, chance=self._chance)

    def _fresh_chance(self) -> int:
        """79 of the 80 bits: the top one is left free for the steps within a millisecond."""
        return int.from_bytes(self._random.take(ids.CHANCE_BITS // 8)) >> 1
