"""The local bus tells whoever listens, and nobody else."""

from collections.abc import Sequence

import pytest

from toolgate.journal.journal import Event
from toolgate.journal.local_bus import LocalBus, LocalSubscription


def event(position: int, stream: str) -> Event:
    return Event(position, stream, position, "said", 0, b"", "")


def test_a_listener_hears_its_stream_and_a_global_one_hears_all_in_order() -> None:
    bus = LocalBus()
    heard: dict[str, list[int]] = {"a": [], "b": [], "all": []}
    bus.subscribe("a", lambda events: heard["a"].extend(e.position for e in events))
    bus.subscribe("b", lambda events: heard["b"].extend(e.position for e in events))
    bus.subscribe(None, lambda events: heard["all"].extend(e.position for e in events))
    bus.publish([event(1, "a"), event(2, "b"), event(3, "a"), event(4, "c")])
    bus.publish([event(5, "b")])
    assert heard == {"a": [1, 3], "b": [2, 5], "all": [1, 2, 3, 4, 5]}


def test_a_listener_that_raises_does_not_hurt_the_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bus = LocalBus()
    heard: list[Event] = []

    def raise_always(events: Sequence[Event]) -> None:
        raise ValueError("mine")

    bus.subscribe("a", raise_always)
    bus.subscribe(None, raise_always)
    bus.subscribe("a", heard.extend)
    bus.publish([event(1, "a")])
    bus.publish([event(2, "a")])
    assert [e.position for e in heard] == [1, 2]
    assert "listener_failed" in caplog.text


def test_a_closed_subscription_hears_nothing_more_and_closing_twice_is_fine() -> None:
    bus = LocalBus()
    heard: list[Event] = []
    subscription = bus.subscribe("a", heard.extend)
    bus.publish([event(1, "a")])
    subscription.close()
    subscription.close()
    bus.publish([event(2, "a")])
    assert [e.position for e in heard] == [1]


def test_one_listener_may_close_another_that_has_not_heard_yet() -> None:
    bus = LocalBus()
    heard: list[Event] = []
    later: list[LocalSubscription] = []

    def close_the_other(events: Sequence[Event]) -> None:
        later[0].close()

    bus.subscribe("a", close_the_other)
    later.append(bus.subscribe("a", heard.extend))
    bus.publish([event(1, "a")])
    assert heard == []


def test_one_who_subscribes_while_events_are_told_hears_the_next_ones() -> None:
    bus = LocalBus()
    heard: list[Event] = []
    first = bus.subscribe("a", lambda events: subscribe_once())

    def subscribe_once() -> None:
        first.close()
        bus.subscribe("a", heard.extend)

    bus.publish([event(1, "a")])
    bus.publish([event(2, "a")])
    assert [e.position for e in heard] == [2]
