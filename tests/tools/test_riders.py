"""What a caller has written in the commits of its call."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.pipelines import Rig, open_rig
from toolgate.core.enums import Level
from toolgate.core.errors import Unavailable
from toolgate.core.tools import Caller, ToolRequest
from toolgate.journal.journal import Event, Operation, Put
from toolgate.tools.gate import Answer, Denied, Pending, Ran, Rider


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    async with open_rig(tmp_path) as rig:
        yield rig


def rider() -> Rider:
    def end(answer: Answer) -> list[Put]:
        return [Put("notes", "end", type(answer).__name__.encode())]

    return Rider([Put("notes", "begin", b"begun", expected=0)], end)


def call(tool: str) -> ToolRequest:
    return ToolRequest("r1", tool, {}, Caller(user="u", level=Level.WRITE))


async def notes(rig: Rig) -> dict[str, bytes]:
    return {row.key: row.value for row in await rig.journal.scan("notes")}


async def test_the_beginning_is_on_disk_before_the_tool_runs_and_the_end_with_its_result(
    rig: Rig,
) -> None:
    aboard = rider()
    running = asyncio.create_task(rig.pipeline.run(call("hang"), rider=aboard))
    await asyncio.wait_for(rig.engine.begun.wait(), 5)
    assert await notes(rig) == {"begin": b"begun"}
    assert (aboard.began, aboard.ended) == (True, False)
    rig.engine.gate.set()
    await running
    assert await notes(rig) == {"begin": b"begun", "end": Ran.__name__.encode()}
    assert (aboard.began, aboard.ended) == (True, True)


async def test_a_refused_call_takes_both_along(rig: Rig) -> None:
    aboard = rider()
    assert isinstance(await rig.pipeline.run(call("denied"), rider=aboard), Denied)
    assert await notes(rig) == {"begin": b"begun", "end": Denied.__name__.encode()}
    assert (aboard.began, aboard.ended) == (True, True)


async def test_a_call_that_waits_or_was_answered_before_takes_nothing_along(rig: Rig) -> None:
    waiting = rider()
    assert isinstance(await rig.pipeline.run(call("ask.once"), rider=waiting), Pending)
    assert (waiting.began, waiting.ended) == (False, False)
    await rig.pipeline.run(ToolRequest("r2", "count", {}))
    late = rider()
    await rig.pipeline.run(ToolRequest("r2", "count", {}), rider=late)
    assert (late.began, late.ended) == (False, False)
    assert await notes(rig) == {}


async def test_what_began_before_is_not_written_again(rig: Rig) -> None:
    aboard = rider()
    aboard.began = True
    await rig.pipeline.run(call("count"), rider=aboard)
    assert await notes(rig) == {"end": Ran.__name__.encode()}


async def test_where_nothing_can_be_written_nothing_runs(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def full(*_: Operation, durable: bool = True) -> list[Event]:
        raise Unavailable("the disk is full")

    monkeypatch.setattr(rig.journal, "commit", full)
    aboard = rider()
    with pytest.raises(Unavailable):
        await rig.pipeline.run(call("fail"), rider=aboard)
    assert rig.engine.runs["fail"] == 0
    assert (aboard.began, aboard.ended) == (False, False)
