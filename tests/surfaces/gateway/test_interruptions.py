"""What a process that was killed has left of commands without a row, and what the next makes of it."""

import json
from typing import Any

import msgspec
import pytest
from toolgate.commands.interruptions import PAGE, Interruptions
from toolgate.commands.reading import Entered

from tests.support.audit import SilentAudit, SilentEvidence
from tests.support.seal import PlainSeal
from toolgate.access.devices import Identity, Who
from toolgate.commands.plans import Waiting
from toolgate.commands.records import STREAM, Records
from toolgate.commands.states import States
from toolgate.contracts.gateway_v1 import EventStatus
from toolgate.core.enums import CommandKind
from toolgate.evidence.evidence import STREAM as EVIDENCE
from toolgate.journal.journal import Append, NewEvent
from toolgate.journal.local_bus import LocalBus
from toolgate.surfaces.gateway.events import schedule_event
from toolgate.testing.clock import FakeClock
from toolgate.testing.journal import MemoryJournal

STARTED, SUCCEEDED, PENDING = EventStatus.STARTED, EventStatus.SUCCEEDED, EventStatus.PENDING
SECRET = "sk-secret"


class Past:
    """Commands as they are written down: how they begin with their first call's decision."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.journal = MemoryJournal(clock=self.clock, bus=LocalBus())
        self.records = Records(SilentAudit(), SilentEvidence(), self.clock, self.redact)
        self.states = States(self.journal, LocalBus(), self.clock, PlainSeal())

    def redact(self, text: str) -> str:
        return text.replace(SECRET, "[redacted]")

    def command(self, command_id: str, request_id: str = "") -> Entered:
        return Entered(
            kind=CommandKind.TOOL,
            identity=Identity(Who.DEVICE, "laptop"),
            raw=b"{}",
            command=None,
            level=None,
            command_id=command_id,
            request_id=request_id or command_id,
            named=bool(request_id),
            key="",
            request_hash="",
            trace_id="t",
            at=self.clock.now_ms(),
            started=self.clock.monotonic(),
        )

    async def begin(self, entered: Entered) -> None:
        await self.journal.commit(
            self.record("decision", entered, 0), self.records.event(entered, "look", STARTED)
        )

    async def end(self, entered: Entered, number: int = 0) -> None:
        await self.journal.commit(
            self.record("result", entered, number), self.records.event(entered, "look", SUCCEEDED)
        )

    async def call(self, entered: Entered, number: int) -> None:
        """One that is not its last."""
        for kind in ("decision", "result") if number else ("result",):
            await self.journal.commit(self.record(kind, entered, number))

    def record(self, kind: str, entered: Entered, number: int) -> Append:
        return Append(EVIDENCE, [NewEvent(kind, b"{}", f"{entered.command_id}.{number}")])

    async def start_again(self, finished_through: int = 0) -> list[dict[str, Any]]:
        """What is told of it then."""
        known = (await self.journal.head(STREAM)).last
        for _ in range(2):  # what was told once is not told again
            await Interruptions(
                self.journal, self.clock, self.states, self.redact, finished_through
            ).load()
        return [json.loads(e.data) for e in await self.journal.read(STREAM, after=known)]


@pytest.fixture
def past() -> Past:
    return Past()


async def test_a_start_without_an_end_is_told_to_have_failed_with_its_names_and_its_time(
    past: Past,
) -> None:
    await past.begin(past.command("cmd_1", "mine"))
    past.clock.advance(1_500)
    assert await past.start_again() == [
        {
            "status": EventStatus.FAILED,
            "source": "laptop",
            "message": "look failed",
            "durationMs": 1_500,
            "metadata": {"requestId": "mine", "command": "tool", "traceId": "t"},
        }
    ]


async def test_what_has_ended_and_what_is_no_command_is_not_told_of(past: Past) -> None:
    ended = past.command("cmd_1")
    await past.begin(ended)
    await past.end(ended)
    await past.journal.commit(schedule_event("cron", "tick", status="started", duration_ms=None))
    assert await past.start_again() == []


async def test_a_command_that_was_between_two_of_its_calls_is_told_of(past: Past) -> None:
    several = past.command("cmd_1")
    await past.begin(several)
    await past.call(several, 0)
    await past.call(several, 1)
    assert len(await past.start_again()) == 1


async def test_a_command_that_began_before_all_that_is_read_of_calls_is_told_of(past: Past) -> None:
    several = past.command("cmd_1")
    await past.begin(several)
    await past.call(several, 0)
    for number in range(PAGE):
        other = past.command(f"cmd_other{number}")
        await past.begin(other)
        await past.end(other)
    finished = (await past.journal.head(EVIDENCE)).last
    await past.call(several, 1)
    (told,) = await past.start_again(finished)
    assert told["metadata"]["requestId"] == "cmd_1"


async def test_no_more_is_read_than_calls_may_be_without_an_end(past: Past) -> None:
    await past.begin(past.command("cmd_1"))
    finished = (await past.journal.head(EVIDENCE)).last
    assert await past.start_again(finished) == []
    await past.begin(past.command("cmd_2"))
    (told,) = await past.start_again(finished)
    assert told["metadata"]["requestId"] == "cmd_2"


@pytest.mark.parametrize("name", ["mine", f"mine-{SECRET}"])
async def test_a_command_that_waits_is_not_told_to_have_ended(past: Past, name: str) -> None:
    waits = past.command("cmd_1", name)
    await past.begin(waits)
    await past.journal.commit(
        past.records.event(waits, "look", PENDING),
        *past.states.wait(waits, Waiting("appr_1"), due=None),
    )
    assert await past.start_again() == []
    again = msgspec.structs.replace(waits, command_id="cmd_2")  # the same name once more
    await past.begin(again)
    assert len(await past.start_again()) == 1


async def test_of_commands_under_one_name_each_has_its_end(past: Past) -> None:
    for number in range(3):
        await past.begin(past.command(f"cmd_{number}", "mine"))
    await past.end(past.command("cmd_1", "mine"))
    assert len(await past.start_again()) == 2
