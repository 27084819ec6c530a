"""The bus within one process: a commit's events are told to whoever listens, in order."""

import logging
from collections.abc import Sequence

from toolgate.journal.bus import Listener
from toolgate.journal.journal import Event

log = logging.getLogger(__name__)


class LocalSubscription:
    def __init__(self, bus: "LocalBus", stream: str | None, listener: Listener) -> None:
        self._bus = bus
        self.stream = stream
        self.listener = listener
        self.open = True

    def close(self) -> None:
        if self.open:
            self.open = False
            self._bus.drop(self)


class LocalBus:
    def __init__(self) -> None:
        self._listeners: dict[str | None, list[LocalSubscription]] = {}

    def subscribe(self, stream: str | None, listener: Listener) -> LocalSubscription:
        subscription = LocalSubscription(self, stream, listener)
        self._listeners.setdefault(stream, []).append(subscription)
        return subscription

    def drop(self, subscription: LocalSubscription) -> None:
        remaining = self._listeners[subscription.stream]
        remaining.remove(subscription)
        if not remaining:
            del self._listeners[subscription.stream]

    def publish(self, events: Sequence[Event]) -> None:
        if not events or not self._listeners:
            return
        self._tell(None, events)
        by_stream: dict[str, list[Event]] = {}
        for event in events:
            if event.stream in self._listeners:
                by_stream.setdefault(event.stream, []).append(event)
        for stream, its_events in by_stream.items():
            self._tell(stream, its_events)

    def _tell(self, stream: str | None, events: Sequence[Event]) -> None:
        listeners = self._listeners.get(stream, ())
        for subscription in tuple(listeners):  # one may close itself, or another, as it hears
            if subscription.open:
                try:
                    subscription.listener(events)
                except Exception:
                    log.exception(
                        "listener_failed stream=%s position=%d",
                        stream or "*",
                        events[0].position,
                    )
