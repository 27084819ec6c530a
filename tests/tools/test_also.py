"""What a caller adds to the gate's commits: in the same commit, once, or not at all."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from tests.support.pipelines import Rig, open_rig
from toolgate.core.enums import Level
from toolgate.core.errors import Conflict, Unavailable
from toolgate.core.tools import Caller, ToolRequest
from toolgate.journal.journal import Event, Operation, Put
from toolgate.tools.outcomes import Allowed, Begun, Denied, Pending


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    async with open_rig(tmp_path) as rig:
        yield rig


def begun(outcome: Begun) -> list[Operation]:
    kind = type(outcome) if isinstance(outcome, Denied | Pending) else Allowed
    return [Put("notes", "begin", kind.__name__.encode(), expected=0)]


END = Put("notes", "end", b"ended", expected=0)


def call(tool: str, call_id: str = "r1") -> ToolRequest:
    return ToolRequest(call_id, tool, {}, Caller(user="u", level=Level.WRITE))


async def notes(rig: Rig) -> dict[str, bytes]:
    return {row.key: row.value for row in await rig.journal.scan("notes")}


async def allow(rig: Rig, request: ToolRequest) -> Allowed:
    outcome = await rig.gate.begin(request, also=begun)
    assert not isinstance(outcome, Denied | Pending)
    return outcome


async def test_the_caller_s_operations_go_with_the_decision_and_with_the_result(rig: Rig) -> None:
    allowed = await allow(rig, call("count"))
    assert await notes(rig) == {"begin": b"Allowed"}
    assert rig.engine.runs["count"] == 0
    output = await allowed.run()
    assert await notes(rig) == {"begin": b"Allowed"}
    await allowed.finish(output, also=[END])
    assert await notes(rig) == {"begin": b"Allowed", "end": b"ended"}


@pytest.mark.parametrize(("tool", "kind"), [("denied", Denied), ("ask.once", Pending)])
async def test_a_call_that_does_not_run_takes_them_along_too(
    rig: Rig, tool: str, kind: type
) -> None:
    assert isinstance(await rig.gate.begin(call(tool), also=begun), kind)
    assert await notes(rig) == {"begin": kind.__name__.encode()}
    again = await rig.gate.begin(call(tool), also=begun)  # would conflict, were it committed again
    assert isinstance(again, kind)
    assert again.known


async def test_a_call_that_has_ended_runs_no_more_and_adds_only_to_its_finish(rig: Rig) -> None:
    first = await allow(rig, call("count"))
    await first.finish(await first.run())
    again = await allow(rig, call("count"))
    assert again.known
    output = await again.run()
    await again.finish(output, also=[END])
    assert (output.stdout, rig.engine.runs["count"]) == ("1", 1)
    assert await notes(rig) == {"begin": b"Allowed", "end": b"ended"}


async def test_operations_that_conflict_stop_the_call_and_leave_nothing(rig: Rig) -> None:
    await rig.journal.commit(Put("notes", "begin", b"taken", expected=0))
    with pytest.raises(Conflict):
        await rig.gate.begin(call("count"), also=begun)
    assert rig.engine.runs["count"] == 0
    assert await rig.journal.read("evidence") == []


async def test_a_finish_that_conflicts_can_be_tried_again(rig: Rig) -> None:
    allowed = await allow(rig, call("count"))
    output = await allowed.run()
    await rig.journal.commit(END)
    with pytest.raises(Conflict):
        await allowed.finish(output, also=[END])
    await allowed.finish(output)
    assert rig.engine.runs["count"] == 1
    assert allowed.response is not None
    assert allowed.response.ok


async def test_a_caller_that_is_cancelled_still_finishes_the_call(rig: Rig) -> None:
    async def through() -> None:
        allowed = await allow(rig, call("hang"))
        output = await allowed.run()
        await allowed.finish(output, also=[END])

    running = asyncio.create_task(through())
    await asyncio.wait_for(rig.engine.begun.wait(), 5)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert (await notes(rig))["end"] == b"ended"
    known = await allow(rig, call("hang"))
    assert (await known.run()).stderr == "Cancelled"


@pytest.mark.parametrize("step", ["begin", "finish"])
@pytest.mark.parametrize("submitted", [True, False])
async def test_a_caller_that_is_cancelled_in_a_commit_leaves_no_call_open(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, *, step: str, submitted: bool
) -> None:
    """A commit that was submitted goes on without its caller."""
    commit, committing = rig.journal.commit, asyncio.Event()

    async def slow(*operations: Operation, durable: bool = True) -> list[Event]:
        monkeypatch.setattr(rig.journal, "commit", commit)
        under_way = asyncio.create_task(commit(*operations, durable=durable)) if submitted else None
        committing.set()
        await asyncio.sleep(10)
        assert under_way is not None
        return await under_way

    async def through() -> None:
        if step == "begin":
            monkeypatch.setattr(rig.journal, "commit", slow)
        allowed = await allow(rig, call("count"))
        output = await allowed.run()
        if step == "finish":
            monkeypatch.setattr(rig.journal, "commit", slow)
        await allowed.finish(output, also=[END])

    running = asyncio.create_task(through())
    await committing.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    began = step == "finish" or submitted
    assert rig.engine.runs["count"] == (1 if step == "finish" else 0)
    assert await notes(rig) == ({"begin": b"Allowed", "end": b"ended"} if began else {})
    assert await rig.gate.recover() == 0


async def test_where_nothing_can_be_written_nothing_runs(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def full(*_: Operation, durable: bool = True) -> Sequence[Event]:
        raise Unavailable("the disk is full")

    monkeypatch.setattr(rig.journal, "commit", full)
    with pytest.raises(Unavailable):
        await rig.gate.begin(call("fail"), also=begun)
    assert rig.engine.runs["fail"] == 0
