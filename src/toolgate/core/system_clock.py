"""The machine's clock."""

import threading
import time


class SystemClock:
    """The wall clock, which never decreases: where somebody sets it back it goes at half its pace
    until the time has come again. Were it to stand still, nothing would be due for so long."""

    def __init__(self) -> None:
        self._latest = 0
        self._at = 0  # what the monotonic clock said then
        self._lock = threading.Lock()  # the journal's writer asks from its own thread

    def now_ms(self) -> int:
        now = time.time_ns() // 1_000_000
        if now == self._latest:  # as most calls of a busy millisecond are
            return now
        with self._lock:
            at = time.monotonic_ns() // 1_000_000
            if now >= self._latest:
                self._latest, self._at = now, at
            else:
                steps = (at - self._at) // 2
                self._latest += steps
                self._at += 2 * steps
            return self._latest

    def monotonic(self) -> float:
        return time.monotonic()
