"""The audit, and the evidence: rows, records, proofs, and a check of the whole log."""

from dataclasses import dataclass
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from toolgate.core.errors import Invalid
from toolgate.evidence.audit import AuditQuery
from toolgate.evidence.evidence import STREAM, record_of
from toolgate.surfaces.console.parts import MAX_PAGE, Answer, Parts, is_run, whole

MAX_INDEX: Final = 2**53


@dataclass(frozen=True, slots=True)
class RecordPages:
    parts: Parts

    async def audit(self, request: Request) -> Answer:
        page = await self.parts.audit.query(AuditQuery.parse(dict(request.query_params)))
        named = {str(row.metadata.get("runId", "")) for row in page.items}
        return {
            "items": page.items,
            "nextCursor": page.next_cursor,
            "runs": [run_id for run_id in named if await is_run(self.parts.journal, run_id)],
        }

    async def evidence(self, request: Request) -> Answer:
        """Records, newest first, from below `before`; of one subject where it is named."""
        limit = max(1, whole(request, "limit", default=50, most=MAX_PAGE))
        before = whole(request, "before", default=0, most=MAX_INDEX)
        events = await self.parts.journal.read_back(
            STREAM,
            before=before + 1 if before else None,
            limit=limit + 1,
            subject=request.query_params.get("subject", ""),
        )
        head = await self.parts.journal.head(STREAM)
        page = events[:limit]
        return {
            "size": head.last,
            "key": str(self.parts.evidence.key),
            "checkpoint": self.parts.evidence.checkpoint,
            "failure": self.parts.evidence.failure,
            "items": [
                {"index": event.seq - 1, "record": msgspec.Raw(record_of(event.data))}
                for event in page
            ],
            "next": page[-1].seq - 1 if len(events) > limit else None,
        }

    async def proof(self, request: Request) -> Answer:
        """A file that proves one record to whoever has the key."""
        text = request.path_params["index"]
        if not text.isascii() or not text.isdigit() or len(text) > 15:
            raise Invalid("a record has a number", field="index")
        proof = await self.parts.evidence.prove(int(text))
        disposition = f'attachment; filename="toolgate-record-{int(text)}.json"'
        return Response(
            proof,
            media_type="application/json",
            headers={"Content-Disposition": disposition, "Cache-Control": "no-store"},
        )

    async def verify(self, _: Request) -> Answer:
        started = self.parts.clock.monotonic()
        found = await self.parts.verify()
        took = self.parts.clock.monotonic() - started
        return {
            "size": found.size,
            "artifacts": found.artifacts,
            "problems": list(found.problems),
            "notes": list(found.notes),
            "took_ms": round(took * 1000),
        }
