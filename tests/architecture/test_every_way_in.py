"""Every door calls the gate: a denied call is refused, recorded and answered with one text.

A door that is added must be on a way in, or be listed as one by which nothing can be called.
"""

from collections import Counter
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.architecture.doors import LISTENERS, doors_of, not_a_call
from tests.architecture.ways_in import WAYS, Toolgate, denying_everything
from toolgate.policy.model import DEFAULT_DENY, Effect
from toolgate.policy.refusal_texts import refusal_text

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gate(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Toolgate]:
    async with denying_everything(tmp_path_factory.mktemp("ways")) as started:
        yield started


def text_of_denial(tool: str) -> str:
    """The text that every surface gives for a call that no rule of the policy allows."""
    return refusal_text(
        tool=tool,
        rule_id=DEFAULT_DENY,
        reason=f"Tool {tool} not in allowlist (default deny)",
        effect=Effect.DENY,
    )


@pytest.mark.requirement("002/codes/one-text-denied")
@pytest.mark.requirement("003/pipeline/one-way")
@pytest.mark.parametrize("name", WAYS)
async def test_a_denied_call_is_refused_and_recorded_and_answered_with_the_one_text(
    gate: Toolgate, name: str
) -> None:
    way = WAYS[name]
    before = await gate.denials(way.tool)
    told = await way.call(gate)
    assert told.refused, told.answer
    assert await gate.denials(way.tool) - before, "no audit row"
    assert text_of_denial(way.tool) in str(told.answer)


async def test_every_door_is_on_a_way_in_or_calls_nothing(gate: Toolgate) -> None:
    assert set(gate.urls) == LISTENERS, "the doors of a new listener are not read"
    listed = {door for way in WAYS.values() for door in way.doors} | set(not_a_call())
    found = await doors_of(gate)
    assert sorted(found - listed) == [], "add a way in to WAYS, or a line to NOT_A_CALL"
    assert sorted(listed - found) == [], "these are gone"


async def test_no_door_is_listed_twice() -> None:
    on_ways = {door for way in WAYS.values() for door in way.doors}
    assert [door for door, times in Counter([*not_a_call(), *on_ways]).items() if times > 1] == []
