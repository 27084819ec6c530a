"""The machine's clock."""

import threading
import time


class SystemClock:
    """The wall clock, held still while somebody sets it back: `now_ms` never decreases."""

    def __init__(self) -> None:
        self._latest = 0
        self._lock = threading.Lock()  # the journal's writer asks from its own thread

    def now_ms(self) -> int:
        with self._lock:
            now = time.time_ns() // 1_000_000
            if now > self._latest:
                self._latest = now
            return self._latest

    def monotonic(self) -> float:
        return time.monotonic()
