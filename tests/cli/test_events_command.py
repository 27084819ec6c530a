"""`toolgate events --no-follow`: all that is kept, however old the installation is."""

import asyncio
import json

import msgspec
from click.testing import CliRunner, Result

from tests.surfaces.gateway.conftest import OPERATOR, Door, open_door
from toolgate.cli.main import main
from toolgate.commands.records import gateway_event
from toolgate.contracts.gateway_v1 import EVENTS_KEPT_S, MAX_EVENTS, EventStatus, EventType
from toolgate.testing.clock import FakeClock


async def shown(door: Door, *options: str) -> Result:
    command = ["events", "--no-follow", "--json", *options]
    where = ["--url", door.url, "-s", f"OPERATOR_TOKEN={OPERATOR}"]
    return await asyncio.to_thread(CliRunner().invoke, main, [*command, *where])


async def happen(door: Door, *, often: int) -> None:
    one = gateway_event(EventType.HEALTH, EventStatus.SUCCEEDED, "all is well")
    await door.journal.commit(msgspec.structs.replace(one, events=[*one.events] * often))


async def test_what_is_kept_is_shown_where_the_first_events_are_gone() -> None:
    clock = FakeClock()
    async with open_door(clock=clock) as door:
        await happen(door, often=3)
        clock.advance((EVENTS_KEPT_S + 1) * 1000)
        await happen(door, often=2)
        await door.parts.events.forget_old()
        kept = await shown(door)
        assert kept.exit_code == 0, kept.output
        assert [json.loads(line)["id"] for line in kept.stdout.splitlines()] == [4, 5]
        for cursor in ("1", "6"):
            assert (await shown(door, "--since", cursor)).exit_code == 1


async def test_more_events_than_one_poll_holds_are_all_shown() -> None:
    async with open_door() as door:
        await happen(door, often=MAX_EVENTS + 1)
        every = await shown(door)
        assert every.stdout.count("\n") == MAX_EVENTS + 1
        some = await shown(door, "--since", str(MAX_EVENTS - 1))
        assert some.stdout.count("\n") == 2
