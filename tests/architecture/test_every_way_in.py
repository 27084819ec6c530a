"""Every door calls the gate: a call that the policy denies is refused and recorded.

A door that is added must be on a way in, or be listed as one by which nothing can be called.
"""

from collections import Counter
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import pytest_asyncio

from tests.architecture.doors import LISTENERS, doors_of, not_a_call
from tests.architecture.ways_in import WAYS, Toolgate, denying_everything

pytestmark = pytest.mark.asyncio(loop_scope="module")

MCP = "the browser task tools of /mcp do not go through the gate"
CONSOLE = "a browser task of the console does not go through the gate"
ALONE = "`toolgate browser` serves browser tasks without a gate"
LETS_THROUGH = {  # why each way in does not refuse, or does not record
    "/mcp list_task_templates": MCP,
    "/mcp run_task_template": MCP,
    "/mcp get_task_run": MCP,
    "/mcp list_task_runs": MCP,
    "/mcp cancel_task_run": MCP,
    "/mcp get_artifact": MCP,
    "/mcp get_runtime_profile": MCP,
    "/mcp task of 2025-11-25": MCP,
    "/mcp task of 2026-07-28": MCP,
    "/mcp/sse": MCP,
    "console browser task": CONSOLE,
    "toolgate task": CONSOLE,
    "toolgate browser --stdio": ALONE,
    "toolgate browser --http": ALONE,
    "toolgate browser --sse": ALONE,
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gate(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Toolgate]:
    async with denying_everything(tmp_path_factory.mktemp("ways")) as started:
        yield started


def ways() -> Iterator[Any]:
    for name in WAYS:
        reason = LETS_THROUGH.get(name)
        fails = pytest.mark.xfail(strict=True, raises=AssertionError, reason=reason or "")
        yield pytest.param(name, marks=[fails] if reason else [])


@pytest.mark.parametrize("name", [*ways()])
async def test_a_denied_call_is_refused_and_recorded(gate: Toolgate, name: str) -> None:
    way = WAYS[name]
    before = await gate.denials(way.tool)
    told = await way.call(gate)
    assert told.refused, told.answer
    assert await gate.denials(way.tool) - before, "no audit row"


async def test_every_door_is_on_a_way_in_or_calls_nothing(gate: Toolgate) -> None:
    assert set(gate.urls) == LISTENERS, "the doors of a new listener are not read"
    listed = {door for way in WAYS.values() for door in way.doors} | set(not_a_call())
    found = await doors_of(gate)
    assert sorted(found - listed) == [], "add a way in to WAYS, or a line to NOT_A_CALL"
    assert sorted(listed - found) == [], "these are gone"


async def test_no_door_is_listed_twice() -> None:
    on_ways = {door for way in WAYS.values() for door in way.doors}
    assert [door for door, times in Counter([*not_a_call(), *on_ways]).items() if times > 1] == []


async def test_only_ways_that_exist_may_let_calls_through() -> None:
    assert sorted(LETS_THROUGH.keys() - WAYS.keys()) == []
