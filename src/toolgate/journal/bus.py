"""Who hears of an event once it is committed. A hint; the journal is the truth."""

from collections.abc import Callable, Sequence
from typing import Protocol

from toolgate.journal.journal import Event

Listener = Callable[[Sequence[Event]], None]


class Subscription(Protocol):
    def close(self) -> None: ...


class Bus(Protocol):
    def publish(self, events: Sequence[Event]) -> None:
        """Tell the listeners, in order, on the event loop."""
        ...

    def subscribe(self, stream: str | None, listener: Listener) -> Subscription:
        """Hear of one stream's events, or with None of all; a listener must not block or raise."""
        ...
