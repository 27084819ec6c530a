"""The original arguments of open calls: in sealed rows, in memory, and in what a device receives."""

import json
from typing import Any

import msgspec

from tests.support.seal import PlainSeal
from toolgate.journal.journal import Delete, Event
from toolgate.journal.local_bus import LocalBus
from toolgate.runs import deliveries
from toolgate.runs.deliveries import Delivery
from toolgate.runs.originals import CALL_ARGS, Originals
from toolgate.testing.clock import FakeClock
from toolgate.testing.journal import MemoryJournal

ARGS: dict[str, Any] = {"key": "SECRET", "page": 1}
STORED: dict[str, Any] = {"run_id": "r", "tool_call_id": "tc_1", "args": {"key": "***", "page": 1}}
DELTA = Event(1, "session/s", 1, deliveries.DELTA, 1, b'{"run_id":"r","text":"tc_1"}', "r")
REQUEST = Event(2, "session/s", 2, deliveries.TOOL_REQUEST, 1, json.dumps(STORED).encode(), "r")


def in_memory() -> tuple[Originals, MemoryJournal]:
    journal = MemoryJournal(clock=FakeClock(), bus=LocalBus())
    return Originals(journal, PlainSeal()), journal


async def test_a_request_of_an_open_call_has_the_original_and_other_events_stay_as_they_are() -> (
    None
):
    originals, _ = in_memory()
    events = [DELTA, REQUEST]
    assert originals.restored(events) is events
    originals.follow([originals.put("tc_1", "r", ARGS)])
    delta, request = originals.restored(events)
    assert delta is DELTA
    assert msgspec.structs.replace(request, data=b"") == msgspec.structs.replace(REQUEST, data=b"")
    assert json.loads(request.data) == {**STORED, "args": ARGS}
    _, request = originals.restored(events, keep_redacted=True)
    assert json.loads(request.data) == {**STORED, "args": ARGS, "redacted_args": STORED["args"]}
    other = msgspec.structs.replace(
        REQUEST, data=json.dumps({**STORED, "tool_call_id": "tc_2"}).encode()
    )
    assert originals.restored([other]) == [other]
    originals.follow([Delete(CALL_ARGS, "tc_1")])
    assert originals.restored(events) is events


async def test_a_snapshot_has_the_original_of_an_open_call() -> None:
    originals, _ = in_memory()
    request = Delivery(deliveries.TOOL_REQUEST, "r", STORED)
    assert originals.restore(request) is request
    originals.follow([originals.put("tc_1", "r", ARGS)])
    shown = originals.restore(request)
    assert json.loads(bytes(shown.members["args"])) == ARGS
    assert originals.restore(deliveries.delta("r", "x")) == deliveries.delta("r", "x")


async def test_the_next_process_has_the_originals_of_the_calls_that_are_open() -> None:
    before, journal = in_memory()
    await journal.commit(before.put("tc_1", "r", ARGS), before.put("tc_2", "r2", {}))
    after = Originals(journal, PlainSeal())
    await after.load()
    assert (after.of_run("r"), after.of_run("r2")) == (["tc_1"], ["tc_2"])
    assert await after.read("tc_1") == ARGS


async def test_the_copies_equal_the_rows_after_a_commit_that_failed() -> None:
    originals, journal = in_memory()
    await journal.commit(originals.put("tc_1", "r", ARGS))
    puts = [originals.put("tc_1", "other", {}), originals.put("tc_2", "r", {})]
    originals.follow(puts)
    await originals.reload(puts)
    assert (originals.of_run("r"), originals.of_run("other")) == (["tc_1"], [])
