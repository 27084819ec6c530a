"""Who works on what: each run has one owner at a time, and a wait is a row, not a task."""

from collections.abc import Awaitable, Callable
from typing import Protocol

Advance = Callable[[str], Awaitable[None]]


class Dispatcher(Protocol):
    def dispatch(self, run_id: str) -> None:
        """Have `advance(run_id)` called soon; calls for one run never overlap."""
        ...

    def interrupt(self, run_id: str) -> None:
        """Cancel the call of `advance` that is under way for this run, if there is one."""
        ...

    def wake_at(self, due: int) -> None:
        """There is a row with this deadline now."""
        ...
