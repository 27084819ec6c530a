"""How often: the generic cell rate algorithm, which keeps one number per caller.

`tat` is the theoretical arrival time: when everything allowed so far would have been used up at an
even pace. A full burst of `limit` may come at once; after that one per `window / limit`.
"""

from dataclasses import dataclass
from typing import Final

import msgspec

MINUTE_MS: Final = 60_000


@dataclass(frozen=True, slots=True)
class Rate:
    limit: int
    window_ms: int = MINUTE_MS

    def __post_init__(self) -> None:
        if self.limit < 1 or self.window_ms < 1:
            raise ValueError("a rate has a limit and a window of at least 1")


class Spent(msgspec.Struct, frozen=True):
    """What one more costs: whether it is let through, and where that leaves the caller."""

    allowed: bool
    tat: float
    limit: int
    remaining: int
    reset_ms: int  # until all are there again
    retry_ms: int  # until the next one is let through; 0 where this one is


def spend(rate: Rate, tat: float, *, now: int, cost: int = 1) -> Spent:
    """With cost 0: only look."""
    step = rate.window_ms / rate.limit
    if tat > now + rate.window_ms + 1:  # nobody can have used up more: the clock was set back
        tat = 0.0
    start = max(tat, float(now))
    after = start + cost * step
    over = after - now - rate.window_ms
    if over > 1e-6:
        remaining = int((rate.window_ms - (start - now)) / step + 1e-9)
        return Spent(False, start, rate.limit, remaining, _up(start - now), max(1, _up(over)))
    remaining = int((rate.window_ms - (after - now)) / step + 1e-9)
    return Spent(True, after, rate.limit, remaining, _up(after - now), 0)


def _up(ms: float) -> int:
    whole = int(ms)
    return whole if whole >= ms - 1e-6 else whole + 1
