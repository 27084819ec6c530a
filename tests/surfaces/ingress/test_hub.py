"""Who hears what, and what becomes of a session that nobody is connected to."""

import asyncio
import json
from collections.abc import Sequence

import pytest

from tests.support.seal import PlainSeal
from toolgate.journal.journal import Event
from toolgate.journal.local_bus import LocalBus
from toolgate.runs.deliveries import DELTA, TOOL_REQUEST
from toolgate.runs.originals import Originals
from toolgate.surfaces.ingress.hub import Channel, Hub
from toolgate.testing.clock import FakeClock
from toolgate.testing.journal import MemoryJournal


class Ear:
    """Live from the start, unless it is told to lag."""

    def __init__(self) -> None:
        self.heard: list[int] = []
        self.missed: list[int] = []
        self.fell_behind = 0
        self.given: int | None = None
        self.channel: Channel | None = None

    def listen(self, channel: Channel, *, cursor: int = 0) -> None:
        self.channel = channel
        assert channel.go_live(self, cursor, self._write)

    def _write(self, data: bytes) -> None:
        self.heard.append(json.loads(data)["seq"])

    def miss(self, event: Event, data: bytes) -> None:
        self.missed.append(event.seq)

    def fall_behind(self) -> None:
        assert self.channel is not None
        self.given = self.channel.leave_live(self)
        self.fell_behind += 1


def event(seq: int, *, session: str = "s", kind: str = DELTA) -> Event:
    return Event(seq, f"session/{session}", seq, kind, 1, b'{"run_id":"r"}', "r")


def a_hub(window_ms: int = 0) -> tuple[Hub, LocalBus]:
    bus = LocalBus()
    return Hub(
        bus,
        FakeClock(),
        Originals(MemoryJournal(clock=FakeClock(), bus=bus), PlainSeal()),
        resume_window_ms=window_ms,
    ), bus


@pytest.mark.requirement("001/devices/every-event-to-all", "001/devices/sessions-apart")
async def test_an_event_reaches_the_connections_of_its_session_alone() -> None:
    hub, bus = a_hub()
    one, two, other = Ear(), Ear(), Ear()
    for ear, session in ((one, "s"), (two, "s"), (other, "t")):
        ear.listen(hub.join(session, "u", ear))
    bus.publish([event(1), event(2), event(1, session="t")])
    assert (one.heard, two.heard, other.heard) == ([1, 2], [1, 2], [1])
    assert (hub.count("s"), hub.count_of_user("u"), hub.delivered) == (2, 3, 5)
    hub.close()


async def test_who_is_not_live_misses_and_a_gap_or_a_repeat_reaches_nobody() -> None:
    hub, bus = a_hub()
    live, late = Ear(), Ear()
    live.listen(hub.join("s", "u", live), cursor=4)
    channel = hub.join("s", "u", late)
    assert not channel.go_live(late, 3, late._write), "it lacks number 4"
    bus.publish([event(5), event(5), event(4)])
    assert (live.heard, late.missed) == ([5], [5])
    bus.publish([event(7)])  # 6 was lost on the way
    assert (live.heard, live.fell_behind) == ([5], 1)
    assert live.missed == late.missed[1:] == [7]
    hub.close()


@pytest.mark.requirement("001/resume/no-gap-to-live")
async def test_who_read_ahead_of_the_bus_takes_nothing_from_those_who_were_live() -> None:
    hub, bus = a_hub()
    live, back, fast = Ear(), Ear(), Ear()
    live.listen(hub.join("s", "u", live), cursor=4)
    back.listen(hub.join("s", "u", back), cursor=6)  # the journal had 5 and 6 already
    fast.listen(hub.join("s", "u", fast), cursor=7)
    bus.publish([event(5)])
    assert (live.heard, back.heard) == ([5], [])
    fast.fall_behind()
    assert fast.given == 7
    bus.publish([event(6), event(7)])
    assert (live.heard, back.heard) == ([5, 6, 7], [7])
    back.fall_behind()
    assert back.given == 7
    hub.close()


async def test_a_session_is_given_up_once_after_its_window_and_not_while_someone_is_there() -> None:
    hub, _ = a_hub(window_ms=30)
    gone: asyncio.Queue[str] = asyncio.Queue()
    hub.on_gone = lambda session_id, _: gone.put(session_id)
    one, two = Ear(), Ear()
    hub.join("s", "u", one)
    hub.join("s", "u", two)
    hub.leave("s", "u", one)
    hub.leave("s", "u", two)
    hub.join("s", "u", one)  # back in time
    hub.join("t", "u", two)
    hub.leave("t", "u", two)
    assert await asyncio.wait_for(gone.get(), 5) == "t"
    assert gone.empty()
    hub.leave("s", "u", one)
    hub.leave("s", "u", one)  # a second goodbye changes nothing
    assert await asyncio.wait_for(gone.get(), 5) == "s"
    assert hub.count_of_user("u") == 0
    hub.close()


@pytest.mark.requirement("001/offline/fails-at-once", "001/offline/window-off")
async def test_a_tool_request_for_nobody_is_handed_back() -> None:
    hub, bus = a_hub()
    back: asyncio.Queue[tuple[str, int]] = asyncio.Queue()

    async def undelivered(session_id: str, request: Event) -> None:
        await back.put((session_id, request.seq))

    hub.on_undelivered = undelivered
    bus.publish([event(1), event(2, kind=TOOL_REQUEST)])
    assert await asyncio.wait_for(back.get(), 5) == ("s", 2)
    hub.join("s", "u", Ear())
    bus.publish([event(3, kind=TOOL_REQUEST)])
    await asyncio.sleep(0)
    assert back.empty()
    hub.close()


@pytest.mark.requirement("001/offline/window-returns")
async def test_a_tool_request_that_was_taken_is_not_handed_back_when_its_taker_blinks() -> None:
    hub, bus = a_hub(window_ms=50)
    back: asyncio.Queue[int] = asyncio.Queue()

    async def undelivered(_: str, request: Event) -> None:
        await back.put(request.seq)

    hub.on_undelivered = undelivered
    bus.publish([event(1, kind=TOOL_REQUEST), event(1, session="t", kind=TOOL_REQUEST)])
    ear = Ear()
    hub.join("s", "u", ear)  # within the window: it has the request now
    hub.leave("s", "u", ear)
    bus.publish([event(2, session="t", kind=TOOL_REQUEST)])
    assert [await asyncio.wait_for(back.get(), 5) for _ in range(2)] == [1, 2]
    assert back.empty(), "that of t alone, whom nobody came for"
    hub.close()


async def test_a_hub_that_closes_gives_nobody_up() -> None:
    hub, bus = a_hub()
    gone: list[str] = []

    async def let_go(session_id: str, _: Sequence[Event]) -> None:
        gone.append(session_id)

    hub.on_gone = let_go
    ear = Ear()
    hub.join("s", "u", ear)
    hub.close()
    hub.leave("s", "u", ear)
    bus.publish([event(1)])
    for _ in range(5):
        await asyncio.sleep(0)
    assert (gone, ear.heard) == ([], [])
