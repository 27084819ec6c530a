"""The ends of commands that were under way when the last process was stopped, and left no row.

A command that only reads costs no row of its own: what is left of it is the event of its start, with
none of an end after it. It began in the commit of its first call's decision, and the pipeline knows
since when a call may be without its end: no more than that is read.
"""

import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from toolgate.contracts import gateway_v1 as wire
from toolgate.domain.errors import Unavailable
from toolgate.ports.clock import Clock
from toolgate.ports.evidence import STREAM as EVIDENCE
from toolgate.ports.journal import Append, Event, Journal
from toolgate.surfaces.gateway.command_records import STREAM
from toolgate.surfaces.gateway.command_states import States
from toolgate.surfaces.gateway.events import gateway_event

log = logging.getLogger(__name__)

PAGE: Final = 200  # at a time: a record may have its artifacts with it
COMMAND: Final = "cmd_"  # how the ids of commands begin
FIRST: Final = "0"  # the number of a command's first call (`plans.call_id`)
_decode: Final = msgspec.json.Decoder(dict[str, Any]).decode


@dataclass(frozen=True, slots=True)
class Interruptions:
    journal: Journal
    clock: Clock
    states: States
    redact: Callable[[str], str]
    finished_through: int  # the record up to which all calls had ended when this process started

    async def load(self) -> None:
        """After those that have a row were told of: this tells of the rest."""
        since = await self._since()
        if since is None:
            return
        # Rows first: one that goes on meanwhile loses its row as the event of its end is written.
        ends = Counter(
            [self._key(c.who, c.request_id, c.trace_id) async for c in self.states.open()]
        )
        untold: list[Append] = []
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
                untold.append(self._end(event, told))
        if not untold:
            return
        log.warning("commands_interrupted count=%d", len(untold))
        try:
            await self.journal.commit(*reversed(untold))
        except Unavailable as unavailable:
            log.error("not_recorded error=%s", unavailable)

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

    def _end(self, event: Event, told: dict[str, Any]) -> Append:
        name = told["message"].removesuffix(f" {wire.EventStatus.STARTED}")
        return gateway_event(
            wire.EventType(event.type),
            wire.EventStatus.FAILED,
            f"{name} {wire.EventStatus.FAILED}",
            source=told["source"],
            duration_ms=max(0, self.clock.now_ms() - event.at),
            metadata=told["metadata"],
        )
