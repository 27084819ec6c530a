"""The ends of commands that were under way when the last process was stopped, and left no row.

A command that only reads costs no row of its own: what is left of it is the event of its start, with
none of an end after it. It began in the commit of its first call's decision, and the pipeline knows
since when a call may be without its end: no more than that is read. The pipeline ends those calls at a
start, before this; so since when is a row, until what this tells is on disk.
"""

import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from toolgate.commands.answers import Code, Problem, failure
from toolgate.commands.records import STREAM, gateway_event
from toolgate.commands.states import States
from toolgate.contracts import gateway_v1 as wire
from toolgate.core.clock import Clock
from toolgate.core.enums import Outcome
from toolgate.core.errors import Unavailable
from toolgate.evidence.evidence import STREAM as EVIDENCE
from toolgate.journal.journal import Append, Delete, Event, Journal, Operation, Put

log = logging.getLogger(__name__)

PAGE: Final = 200  # at a time: a record may have its artifacts with it
COMMAND: Final = "cmd_"  # how the ids of commands begin
FIRST: Final = "0"  # the number of a command's first call (`plans.call_id`)
UNTOLD: Final = "untold_ends"
SINCE: Final = "since"
_INTERRUPTED: Final = Problem(
    Code.INTERNAL,
    "the gateway was stopped while this ran; it only reads, and can be sent again",
    outcome=Outcome.MAY_HAVE_EXECUTED,
)
_decode: Final = msgspec.json.Decoder(dict[str, Any]).decode


async def note_untold(journal: Journal, finished_through: int) -> int:
    """The record since which ends may be untold, kept for the next start should this one be killed.

    To be called before calls are recovered: after that all of them have ended.
    """
    row = await journal.get(UNTOLD, SINCE)
    if row is not None:
        return int(row.value)
    await journal.commit(Put(UNTOLD, SINCE, str(finished_through).encode(), expected=0))
    return finished_through


@dataclass(frozen=True, slots=True)
class Interruptions:
    journal: Journal
    clock: Clock
    states: States
    redact: Callable[[str], str]
    finished_through: int  # the record up to which all calls had ended, and all ends were told

    async def load(self) -> None:
        """After those that have a row were told of: this tells of the rest."""
        untold = await self._untold()
        writes: list[Operation] = [Delete(UNTOLD, SINCE)]
        for event in untold:
            writes += await self._end(event)
        if untold:
            log.warning("commands_interrupted count=%d", len(untold))
        try:
            await self.journal.commit(*writes)
        except Unavailable as unavailable:  # the next start tells it
            log.error("not_recorded error=%s", unavailable)

    async def _untold(self) -> list[Event]:
        """The starts without an end, oldest first."""
        since = await self._since()
        if since is None:
            return []
        # Rows first: one that goes on meanwhile loses its row as the event of its end is written.
        ends = Counter(
            [self._key(c.who, c.request_id, c.trace_id) async for c in self.states.open()]
        )
        untold: list[Event] = []
        async for event in self._back_to(since):
            told = _decode(event.data)
            about = told["metadata"]
            if "command" not in about:
                continue
            key = (told["source"], about["requestId"], about["traceId"])
            if "durationMs" in told:
                ends[key] += 1
            elif told["status"] == wire.EventStatus.STARTED and ends[key]:
                ends[key] -= 1
            elif told["status"] == wire.EventStatus.STARTED:
                untold.append(event)
        return untold[::-1]

    async def _since(self) -> int | None:
        """The position before which no command began that has no end; None where none can be."""
        since: int | None = None
        first: set[str] = set()
        later: set[str] = set()
        after = self.finished_through
        while page := await self.journal.read(EVIDENCE, after=after, limit=PAGE):
            since = page[0].position if since is None else since
            after = page[-1].seq
            for record in page:
                command_id, _, number = record.subject.rpartition(".")
                if command_id.startswith(COMMAND):
                    (first if number == FIRST else later).add(command_id)
        for command_id in later - first:  # it began before, with a call that has ended
            subject = f"{command_id}.{FIRST}"
            for record in await self.journal.read(EVIDENCE, limit=1, subject=subject):
                since = record.position if since is None else min(since, record.position)
        return since

    async def _back_to(self, since: int) -> AsyncIterator[Event]:
        """The gateway's events, newest first."""
        before: int | None = None
        while page := await self.journal.read_back(STREAM, before=before, limit=PAGE):
            for event in page:
                if event.position < since:
                    return
                yield event
            before = page[-1].seq

    def _key(self, *names: str) -> tuple[str, ...]:
        """What the events of a command have in common, as they have it."""
        return tuple(map(self.redact, names))

    async def _end(self, event: Event) -> list[Operation]:
        """The event of its end, and what is answered to whoever asks for it by its name."""
        told = _decode(event.data)
        who, about = told["source"], told["metadata"]
        ends: list[Operation] = [self._event(event, told)]
        if await self.states.known_state(who, about["requestId"]) is None:
            body = failure(_INTERRUPTED, about["traceId"]).body
            ends.append(self.states.interrupted(who, about["requestId"], body))
        return ends

    def _event(self, event: Event, told: dict[str, Any]) -> Append:
        name = told["message"].removesuffix(f" {wire.EventStatus.STARTED}")
        return gateway_event(
            wire.EventType(event.type),
            wire.EventStatus.FAILED,
            f"{name} {wire.EventStatus.FAILED}",
            source=told["source"],
            duration_ms=max(0, self.clock.now_ms() - event.at),
            metadata=told["metadata"],
        )
