"""A run's page: what its agent has said so far, and what it has taken back."""

import asyncio
import json
from types import SimpleNamespace
from typing import Any, cast

from starlette.requests import Request
from starlette.responses import StreamingResponse

from tests.runs.test_runs import Halting, House
from toolgate.contracts import gateway_v1 as wire
from toolgate.runs import deliveries
from toolgate.surfaces.console.context import ConsoleContext
from toolgate.surfaces.console.live import Live
from toolgate.surfaces.gateway.timelines import timeline_of
from toolgate.surfaces.gateway.translate import run_summary


def asked(*, query: str = "", **path: str) -> Request:
    scope = {"type": "http", "method": "GET", "path": "/", "headers": [], "path_params": path}
    return Request({**scope, "query_string": query.encode()})


def context_of(house: House) -> ConsoleContext:
    parts = {"journal": house.journal, "runs": house.runs, "bus": house.bus}
    return cast(ConsoleContext, SimpleNamespace(**parts, run_summary=run_summary))


async def said(house: House, run_id: str, times: int) -> None:
    async def so_often() -> bool:
        return [kind for kind, _ in await house.told(run_id)].count(deliveries.DELTA) == times

    await house.when(so_often)
    await house.dispatcher.drain(seconds=0)


async def go_on(house: House, run_id: str) -> None:
    house.start()
    house.dispatcher.dispatch(run_id)


async def test_what_an_interrupted_agent_took_back_is_not_shown_again() -> None:
    house = House(agents={"halting": Halting()})
    run_id = await house.invoke("x", "halting")
    await said(house, run_id, 1)
    await go_on(house, run_id)
    await said(house, run_id, 2)
    nothing = cast(Any, None)  # it calls no tool
    shown = await timeline_of(run_id, house.runs, nothing)
    texts = [one.content.text for one in shown.items if isinstance(one, wire.TimelineText)]
    assert texts == ["three "]


async def test_a_page_that_watches_is_told_to_look_again_when_words_are_taken_back() -> None:
    house = House(agents={"halting": Halting()})
    run_id = await house.invoke("x", "halting")
    await said(house, run_id, 1)
    live = Live(context_of(house), lambda _: True)
    answer = cast(StreamingResponse, await live.stream(asked(query=f"run={run_id}")))
    told: list[dict[str, Any]] = []
    async with asyncio.timeout(10):
        async for message in answer.body_iterator:
            text = cast(bytes, message).decode()
            if not told:
                await go_on(house, run_id)
            told.append(json.loads(text.partition("data: ")[2]))
            if any("said" in one for one in told):
                break
    assert run_id in [run["runId"] for one in told for run in one.get("runs", [])]
    live.close()
    await house.dispatcher.drain(seconds=0)
