"""The time, as a thing that is handed in."""

from typing import Protocol


class Clock(Protocol):
    def now_ms(self) -> int:
        """Milliseconds since 1970, as the wall clock has them."""
        ...

    def monotonic(self) -> float:
        """Seconds from an arbitrary start that never go back; for durations."""
        ...
