"""What an ingress that runs apart is pushed, also by the next process."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import msgspec
import pytest
from aiohttp import web

from tests.support.ids import CountingIds
from tests.support.seal import PlainSeal
from toolgate.contracts import ingress_v1 as wire
from toolgate.core.enums import RunStatus
from toolgate.core.errors import Unavailable
from toolgate.journal.dispatcher import Dispatcher
from toolgate.journal.journal import Append, Delete, Event, Operation, Put
from toolgate.journal.local_bus import LocalBus
from toolgate.runs import deliveries, records
from toolgate.runs.deliveries import Delivery
from toolgate.runs.originals import CALL_ARGS, Originals
from toolgate.runs.remote.orchestrator import HttpOrchestrator
from toolgate.runs.remote.records import RemoteRuns
from toolgate.runs.state import End, RunStarted, decide, reduce
from toolgate.surfaces.ingress.frames import delivery_of
from toolgate.surfaces.orchestrator.ingress_push import PUSHES, SEND_PATH, IngressPush, PushRow
from toolgate.testing.clock import FakeClock
from toolgate.testing.journal import MemoryJournal


async def nobody(_run_id: str, _call_id: str) -> None: ...


@contextlib.asynccontextmanager
async def ingress(
    take: Callable[[web.Request], Awaitable[web.StreamResponse]],
) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_post(SEND_PATH, take)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


def a_run(*said: str) -> list[Delivery]:
    return [
        Delivery(deliveries.RUN_STARTED, "run_1", {"run_id": "run_1"}),
        *(deliveries.delta("run_1", one) for one in said),
        Delivery(deliveries.DONE, "run_1", {"run_id": "run_1", "usage": {}}),
    ]


async def is_over(journal: MemoryJournal) -> None:
    async with asyncio.timeout(10):
        while await journal.scan(PUSHES):
            await asyncio.sleep(0.001)


async def test_a_client_that_is_gone_is_waited_for_once_and_not_with_each_event() -> None:
    clock, bus = FakeClock(), LocalBus()
    journal = MemoryJournal(clock=clock, bus=bus)
    tried: list[str] = []

    async def away(request: web.Request) -> web.StreamResponse:
        tried.append((await request.json())["event"]["type"])
        clock.advance(500)
        return web.json_response({"ok": False}, status=409)

    async with ingress(away) as url:
        push = IngressPush(
            url, journal, bus, clock, Originals(journal, PlainSeal()), nobody, window_ms=1000
        )
        await journal.commit(records.delivery_append("s", a_run("a", "b")))
        await push.start()
        await push("run_1", "s")
        await is_over(journal)
        await push.stop()
    assert tried == ["run_started", "run_started", "delta", "delta", "done"]


class Refusing(MemoryJournal):
    """A disk that refuses to keep how far a push has come, once."""

    refusals = 1

    async def commit(self, *operations: Operation, durable: bool = True) -> list[Event]:
        cursor = any(isinstance(one, Put) and one.collection == PUSHES for one in operations)
        if cursor and not durable and self.refusals:
            self.refusals -= 1
            raise Unavailable("the disk is full")
        return await super().commit(*operations, durable=durable)


async def test_a_run_is_pushed_on_though_the_disk_refuses_to_keep_how_far_it_came() -> None:
    clock, bus = FakeClock(), LocalBus()
    journal = Refusing(clock=clock, bus=bus)
    pushed: asyncio.Queue[str] = asyncio.Queue()

    async def take(request: web.Request) -> web.StreamResponse:
        await pushed.put((await request.json())["event"]["type"])
        return web.json_response({"ok": True})

    async with ingress(take) as url:
        push = IngressPush(
            url, journal, bus, clock, Originals(journal, PlainSeal()), nobody, window_ms=1000
        )
        await journal.commit(records.delivery_append("s", a_run("a")))
        await push.start()
        await push("run_1", "s")
        heard = [await asyncio.wait_for(pushed.get(), 5) for _ in range(3)]
        await is_over(journal)
        await push.stop()
    assert heard == ["run_started", "delta", "done"]
    assert not journal.refusals


async def test_a_tool_request_is_pushed_with_the_original_arguments_until_its_call_ends() -> None:
    clock, bus = FakeClock(), LocalBus()
    journal = MemoryJournal(clock=clock, bus=bus)
    originals = Originals(journal, PlainSeal())
    pushed: list[dict[str, Any]] = []

    async def take(request: web.Request) -> web.StreamResponse:
        pushed.append((await request.json())["event"])
        if pushed[-1]["type"] != deliveries.TOOL_REQUEST:
            return web.json_response({"ok": True})
        if "redacted_args" in pushed[-1]:  # refused until the call has ended
            originals.follow([Delete(CALL_ARGS, "tc_1")])
            return web.Response(status=503)
        return web.json_response({"ok": True})

    members = {"run_id": "run_1", "tool_call_id": "tc_1", "args": {"key": "***"}}
    started, done = a_run()
    asked = Delivery(deliveries.TOOL_REQUEST, "run_1", members)
    originals.follow([originals.put("tc_1", "run_1", {"key": "SECRET"})])
    async with ingress(take) as url:
        push = IngressPush(url, journal, bus, clock, originals, nobody, window_ms=1000)
        await journal.commit(records.delivery_append("s", [started]))
        await push("run_1", "s")
        await push.start()
        await journal.commit(records.delivery_append("s", [asked]))
        async with asyncio.timeout(10):
            while len(pushed) < 3:
                await asyncio.sleep(0.001)
        await journal.commit(records.delivery_append("s", [done]))
        await is_over(journal)
        await push.stop()
    assert [one["type"] for one in pushed] == ["run_started", *2 * ["tool_request"], "done"]
    assert [(one["args"], one.get("redacted_args")) for one in pushed[1:3]] == [
        ({"key": "SECRET"}, {"key": "***"}),
        ({"key": "***"}, None),
    ]


async def test_a_run_of_which_nothing_was_pushed_yet_is_pushed_after_a_restart() -> None:
    clock, bus = FakeClock(), LocalBus()
    journal = MemoryJournal(clock=clock, bus=bus)
    pushed: asyncio.Queue[str] = asyncio.Queue()
    refused = asyncio.Event()
    is_up = False

    async def take(request: web.Request) -> web.StreamResponse:
        if not is_up:
            refused.set()
            return web.Response(status=503)
        await pushed.put((await request.json())["event"]["type"])
        return web.json_response({"ok": True})

    app = web.Application()
    app.router.add_post(SEND_PATH, take)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"

    def a_push() -> IngressPush:
        return IngressPush(
            url, journal, bus, clock, Originals(journal, PlainSeal()), nobody, window_ms=60_000
        )

    told = [
        Delivery(deliveries.RUN_STARTED, "run_1", {"run_id": "run_1"}),
        Delivery(deliveries.DONE, "run_1", {"run_id": "run_1", "usage": {}}),
    ]
    await journal.commit(records.delivery_append("s", told))
    first = a_push()
    await first.start()
    await first("run_1", "s")
    await asyncio.wait_for(refused.wait(), 5)
    await first.stop()
    is_up = True
    second = a_push()
    await second.start()
    heard = [await asyncio.wait_for(pushed.get(), 5) for _ in told]
    assert heard == ["run_started", "done"]
    await second.stop()
    await runner.cleanup()


async def pushed_through(
    answers: list[int], *, window_ms: int, monkeypatch: pytest.MonkeyPatch
) -> tuple[list[str], list[str]]:
    """What an ingress took of a run, and what it was asked to, where each answer takes 40 s."""
    monkeypatch.setattr("toolgate.surfaces.orchestrator.ingress_push.PAUSE_S", 0.001)
    clock, bus = FakeClock(), LocalBus()
    journal = MemoryJournal(clock=clock, bus=bus)
    tried: list[str] = []
    taken: list[str] = []
    known_by: list[tuple[str, str]] = []

    async def take(request: web.Request) -> web.StreamResponse:
        clock.advance(40_000)
        event = (await request.json())["event"]
        tried.append(event["type"])
        known_by.append((event["event_id"], event["type"]))
        status = answers.pop(0) if answers else 200
        if status == 200:
            taken.append(tried[-1])
        return web.json_response({}, status=status)

    async with ingress(take) as url:
        push = IngressPush(
            url, journal, bus, clock, Originals(journal, PlainSeal()), nobody, window_ms=window_ms
        )
        await journal.commit(records.delivery_append("s", a_run("a")))
        await push.start()
        await push("run_1", "s")
        await is_over(journal)
        await push.stop()
    assert len(dict(known_by)) == len(set(known_by)) == 3, "a repeat could not be told from another"
    return taken, tried


async def test_an_ingress_that_restarts_is_waited_for_longer_than_a_client(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    taken, _ = await pushed_through([200, 503, 502, 503], window_ms=0, monkeypatch=monkeypatch)
    assert taken == ["run_started", "delta", "done"]


async def test_an_ingress_that_stays_away_is_waited_for_once_and_not_with_each_event(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    taken, tried = await pushed_through([503] * 100, window_ms=0, monkeypatch=monkeypatch)
    assert taken == []
    assert tried == [*["run_started"] * 8, "delta", "done"]  # five minutes


async def test_what_an_ingress_cannot_read_is_not_pushed_again_and_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, tried = await pushed_through([200, 400], window_ms=600_000, monkeypatch=monkeypatch)
    assert tried == ["run_started", "delta", "done"]


class Unreadable(MemoryJournal):
    """A disk whose second and third read of a session fail."""

    reads = 0
    failure: Exception = Unavailable("the disk does not answer")

    async def read(
        self, stream: str, *, after: int = 0, limit: int = 1000, subject: str = ""
    ) -> list[Event]:
        self.reads += 1
        if self.reads in (2, 3):
            raise self.failure
        return await super().read(stream, after=after, limit=limit, subject=subject)


@pytest.mark.parametrize("failure", [Unreadable.failure, ValueError("a fault of ours")])
async def test_a_run_is_pushed_on_though_the_journal_could_not_be_read_for_a_while(
    monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    for pause in ("PAUSE_S", "LOOK_S"):
        monkeypatch.setattr(f"toolgate.surfaces.orchestrator.ingress_push.{pause}", 0.001)
    clock, bus = FakeClock(), LocalBus()
    journal = Unreadable(clock=clock, bus=bus)
    journal.failure = failure
    pushed: list[str] = []

    async def take(request: web.Request) -> web.StreamResponse:
        pushed.append((await request.json())["event"]["type"])
        return web.json_response({"ok": True})

    async with ingress(take) as url:
        push = IngressPush(
            url, journal, bus, clock, Originals(journal, PlainSeal()), nobody, window_ms=1000
        )
        await journal.commit(records.delivery_append("s", a_run("a")))
        await push.start()
        await push("run_1", "s")
        await is_over(journal)
        await push.stop()
    assert pushed == ["run_started", "delta", "done"]


async def test_a_run_that_has_ended_is_told_again_but_asks_for_nothing_any_more() -> None:
    clock, bus = FakeClock(), LocalBus()
    journal = MemoryJournal(clock=clock, bus=bus)
    pushed: list[str] = []

    async def take(request: web.Request) -> web.StreamResponse:
        pushed.append((await request.json())["event"]["type"])
        return web.json_response({"ok": True})

    call = {"run_id": "run_1", "tool_call_id": "tc_1", "tool_name": "pay", "args": {}}
    started, *rest = a_run("paid")
    asked = Delivery(deliveries.TOOL_REQUEST, "run_1", call)
    async with ingress(take) as url:
        push = IngressPush(
            url, journal, bus, clock, Originals(journal, PlainSeal()), nobody, window_ms=1000
        )
        await push.start()
        await push("run_1", "s")
        await journal.commit(records.delivery_append("s", [started, asked]))
        async with asyncio.timeout(10):
            while len(pushed) < 2:
                await asyncio.sleep(0.001)
        await journal.commit(records.delivery_append("s", rest))
        async with asyncio.timeout(10):
            while push._tasks:
                await asyncio.sleep(0.001)
        await push("run_1", "s")  # the request that began it was said a second time
        await is_over(journal)
        await push.stop()
    assert pushed[:4] == ["run_started", "tool_request", "delta", "done"]
    assert pushed[4:] == ["run_started", "delta", "done"]


async def an_ended_run(journal: MemoryJournal) -> None:
    """What a run that was cancelled at once leaves, both in its own stream and its session's."""
    started = RunStarted("run_1", "s", "echo", "u", "", "user", "hello", at=1)
    state = reduce(None, started)
    facts = [started, *decide(state, End(RunStatus.CANCELLED, "cancelled", "no more", 2))]
    told = [Delivery(deliveries.RUN_STARTED, "run_1", {"run_id": "run_1"})]
    for fact in facts[1:]:
        told += deliveries.of_fact(state, fact, state := reduce(state, fact))
    await journal.commit(
        Append(records.run_stream("run_1"), records.fact_events("run_1", facts)),
        records.delivery_append("s", told),
    )


async def forget(journal: MemoryJournal, stream: str) -> None:
    await journal.forget(stream, through=(await journal.head(stream)).last)


@pytest.mark.parametrize("is_kept", [True, False])
async def test_a_run_whose_end_the_session_has_forgotten_is_not_waited_for_for_ever(
    *, is_kept: bool
) -> None:
    clock, bus = FakeClock(), LocalBus()
    journal = MemoryJournal(clock=clock, bus=bus)
    pushed: list[dict[str, object]] = []

    async def take(request: web.Request) -> web.StreamResponse:
        pushed.append((await request.json())["event"])
        return web.json_response({"ok": True})

    await an_ended_run(journal)
    row = msgspec.json.encode(PushRow("s", 1))
    await journal.commit(Put(PUSHES, "run_1", row, expected=0))  # it was told of its start only
    await forget(journal, records.session_stream("s"))
    if not is_kept:  # nor is the run itself, after a month
        await forget(journal, records.run_stream("run_1"))
    async with ingress(take) as url:
        push = IngressPush(
            url, journal, bus, clock, Originals(journal, PlainSeal()), nobody, window_ms=1000
        )
        await push.start()
        await is_over(journal)
        await push.stop()
    ends = [(one["type"], one["run_id"]) for one in pushed]
    assert ends == ([("done", "run_1")] if is_kept else [])


async def test_a_run_whose_end_is_forgotten_while_its_ingress_is_away_is_ended_there_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("toolgate.surfaces.orchestrator.ingress_push.PAUSE_S", 0.001)
    monkeypatch.setattr("toolgate.surfaces.orchestrator.ingress_push.LOOK_S", 0.01, raising=False)
    clock, deaf = FakeClock(), LocalBus()  # too much came at once for it to be kept
    journal = MemoryJournal(clock=clock, bus=LocalBus())
    pushed: list[str] = []

    async def take(request: web.Request) -> web.StreamResponse:
        pushed.append((await request.json())["event"]["type"])
        if len(pushed) == 1:
            await an_ended_run(journal)
            await forget(journal, records.session_stream("s"))  # more came than is kept
            return web.Response(status=503)
        return web.json_response({"ok": True})

    async with ingress(take) as url:
        push = IngressPush(
            url, journal, deaf, clock, Originals(journal, PlainSeal()), nobody, window_ms=1000
        )
        await push.start()
        await journal.commit(records.delivery_append("s", a_run()[:1]))
        await push("run_1", "s")
        await is_over(journal)
        await push.stop()
    assert pushed == ["run_started", "run_started", "done"]


class Volatile(MemoryJournal):
    """Loses, when the power is cut, what was not synced with it or after it."""

    async def commit(self, *operations: Operation, durable: bool = True) -> list[Event]:
        events = await super().commit(*operations, durable=durable)
        if durable:
            self._synced = self._state
        return events

    def cut(self) -> None:
        self._state = self._synced


async def test_what_takes_the_place_of_something_that_a_power_cut_took_is_told_as_new() -> None:
    clock, bus = FakeClock(), LocalBus()
    journal, there = Volatile(clock=clock, bus=bus), MemoryJournal(clock=clock, bus=LocalBus())
    remote = RemoteRuns(there, clock, Dispatcher(there, clock), Originals(there, PlainSeal()))
    ingress_side = HttpOrchestrator("http://127.0.0.1:9", remote, CountingIds())

    async def take(request: web.Request) -> web.StreamResponse:
        event = msgspec.convert((await request.json())["event"], wire.AnySessionEvent)
        await ingress_side.receive("s", delivery_of(event))
        return web.json_response({"ok": True})

    async def told() -> list[str]:
        events = await there.read(records.session_stream("s"))
        return [msgspec.json.decode(one.data).get("text", one.type) for one in events]

    members = {"run_id": "run_1", "request_id": "", "session_id": "s", "agent_id": "echo"}
    started = Delivery(deliveries.RUN_STARTED, "run_1", members)
    _, first, _ = a_run("Hel")
    _, *anew = a_run("Good day")
    async with ingress(take) as url:
        push = IngressPush(
            url, journal, bus, clock, Originals(journal, PlainSeal()), nobody, window_ms=1000
        )
        await push.start()
        await journal.commit(records.delivery_append("s", [started]))
        await push("run_1", "s")
        await journal.commit(records.delivery_append("s", [first]), durable=False)
        async with asyncio.timeout(10):
            while await told() != ["run_started", "Hel"]:
                await asyncio.sleep(0.001)
        await push.stop()
        journal.cut()
        clock.advance(60_000)
        await journal.commit(records.delivery_append("s", anew))
        push = IngressPush(
            url, journal, bus, clock, Originals(journal, PlainSeal()), nobody, window_ms=1000
        )
        await push.start()
        await is_over(journal)
        await push.stop()
    assert await told() == ["run_started", "Hel", "Good day", "done"]


async def test_a_run_is_pushed_though_an_earlier_push_left_its_row() -> None:
    clock, bus = FakeClock(), LocalBus()
    journal = MemoryJournal(clock=clock, bus=bus)
    pushed: asyncio.Queue[str] = asyncio.Queue()

    async def take(request: web.Request) -> web.StreamResponse:
        await pushed.put((await request.json())["event"]["type"])
        return web.json_response({"ok": True})

    async with ingress(take) as url:
        push = IngressPush(
            url, journal, bus, clock, Originals(journal, PlainSeal()), nobody, window_ms=1000
        )
        await push.start()
        await journal.commit(Put(PUSHES, "run_1", b"{}", expected=0))
        await journal.commit(records.delivery_append("s", a_run("a")))
        await push("run_1", "s")
        heard = [await asyncio.wait_for(pushed.get(), 5) for _ in range(3)]
        await is_over(journal)
        await push.stop()
    assert heard == ["run_started", "delta", "done"]
