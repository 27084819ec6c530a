"""`/evidence`: records, their proofs, and a check of the whole log. For the operator alone."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
from msgspec import UNSET

from toolgate.commands.answers import Code, Extra, Problem, Result
from toolgate.contracts import gateway_v1 as wire
from toolgate.contracts.wire import MAX_INT
from toolgate.core.clock import Clock
from toolgate.evidence.check import LogReport
from toolgate.evidence.evidence import STREAM, record_of
from toolgate.evidence.log import EvidenceLog
from toolgate.journal.journal import Journal
from toolgate.surfaces.gateway.routes import (
    CURSOR,
    PAGE_LIMIT,
    Access,
    Call,
    Parameter,
    Route,
    page_limit,
    whole,
)

MAX_INDEX_DIGITS: Final = 15  # exact in a double


@dataclass(frozen=True, slots=True)
class EvidenceRoutes:
    log: EvidenceLog
    journal: Journal
    clock: Clock
    verify: Callable[[], Awaitable[LogReport]]

    def routes(self) -> Sequence[Route]:
        return (
            Route(
                "GET",
                "/evidence",
                Access.OPERATOR,
                "The evidence records, newest first, and the signed checkpoint.",
                self._list,
                wire.EvidencePage,
                query=(
                    Parameter("subject", "only the records of this call or device"),
                    Parameter("limit", "records at most", PAGE_LIMIT),
                    CURSOR,
                ),
            ),
            Route(
                "GET",
                "/evidence/{index}/proof",
                Access.OPERATOR,
                "A file that proves one record to a holder of the log's key.",
                self._prove,
                wire.EvidenceProof,
                statuses=(200, 404),
                bare=True,
            ),
            Route(
                "POST",
                "/evidence/verify",
                Access.OPERATOR,
                "Check every record, tile and artifact on disk.",
                self._verify,
                wire.EvidenceVerified,
            ),
        )

    async def _list(self, call: Call) -> Result:
        limit = page_limit(call.query)
        before = whole(call.query, "cursor", default=0, least=0, most=MAX_INT - 1)
        events = await self.journal.read_back(
            STREAM,
            before=before + 1 if before else None,
            limit=limit + 1,
            subject=call.query.get("subject", ""),
        )
        items = [
            wire.EvidenceItem(index=event.seq - 1, record=msgspec.Raw(record_of(event.data)))
            for event in events[:limit]
        ]
        page = wire.EvidencePage(
            size=(await self.journal.head(STREAM)).last,
            key=str(self.log.key),
            checkpoint=self.log.checkpoint,
            failure=self.log.failure,
            items=items,
            next_cursor=items[-1].index if len(events) > limit else UNSET,
        )
        return Result(page)

    async def _prove(self, call: Call) -> Result:
        text = call.path["index"]
        if not (text.isascii() and text.isdigit() and len(text) <= MAX_INDEX_DIGITS):
            raise Problem(Code.INVALID_REQUEST, "index must be the number of a record")
        return Result(msgspec.Raw(await self.log.prove(int(text))), Extra(bare=True))

    async def _verify(self, _: Call) -> Result:
        started = self.clock.monotonic()
        found = await self.verify()
        return Result(
            wire.EvidenceVerified(
                size=found.size,
                artifacts=found.artifacts,
                problems=list(found.problems),
                notes=list(found.notes),
                took_ms=round((self.clock.monotonic() - started) * 1000),
            )
        )
