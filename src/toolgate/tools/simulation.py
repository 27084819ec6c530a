"""The calls of the past, put to another policy: from the evidence, so with secrets redacted."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from toolgate.contracts import executor_v0 as wire
from toolgate.core.enums import Level
from toolgate.core.errors import Damaged, NotFound
from toolgate.core.tools import Caller, ToolRequest
from toolgate.evidence.audit import STREAM, TOOL_RUN, decode_row
from toolgate.evidence.evidence import Evidence
from toolgate.journal.journal import Journal
from toolgate.policy.model import REQUEST_ID_CONFLICT, Effect, Policy
from toolgate.policy.shell import ParseShell
from toolgate.policy.simulate import Change, RecordedCall, simulate
from toolgate.tools.responses import Artifact

PAGE: Final = 200

_decode_object: Final = msgspec.json.Decoder(dict[str, Any]).decode


@dataclass(frozen=True, slots=True)
class Simulation:
    journal: Journal
    evidence: Evidence
    compile: Callable[[str], Policy]  # raises InvalidPolicy
    parse_shell: ParseShell

    async def run(self, text: str, *, limit: int) -> tuple[int, list[Change]]:
        """How many of the newest calls were looked at, and those that it decides otherwise."""
        # In threads: a large policy takes a while to read, and nothing else is to wait for it.
        candidate = await asyncio.to_thread(self.compile, text)
        recorded = [call async for call in self._recorded(limit)]
        return len(recorded), await asyncio.to_thread(self._changes, recorded, candidate)

    def _changes(self, recorded: Sequence[RecordedCall], candidate: Policy) -> list[Change]:
        return list(simulate(recorded, candidate, parse_shell=self.parse_shell))

    async def _recorded(self, limit: int) -> AsyncIterator[RecordedCall]:
        before: int | None = None
        left = limit
        while left > 0 and (
            page := await self.journal.read_back(STREAM, before=before, limit=PAGE)
        ):
            before = page[-1].seq
            for event in [event for event in page if event.type == TOOL_RUN][:left]:
                left -= 1
                call = await self._call(decode_row(event.data).metadata)
                if call is not None:
                    yield call

    async def _call(self, said: Mapping[str, Any]) -> RecordedCall | None:
        """None where the evidence of it is gone or was for another request."""
        request_id = said["requestId"]
        if said["ruleId"] == REQUEST_ID_CONFLICT:  # no policy has decided this one
            return None
        try:
            asked = await self._artifact(request_id, wire.Artifact.REQUEST)
            decided = await self._decision_of(request_id)
        except (NotFound, Damaged):
            return None
        request = ToolRequest(
            request_id=request_id,
            tool=asked["tool_id"],
            args=asked["args"],
            caller=msgspec.convert(asked["caller"], Caller),
            target_id=asked.get("target_id", ""),
            on_client=asked.get("on_client", False),
        )
        # Its tool may be described otherwise now, or by nobody: a server that is not connected.
        level = Level(said["riskLevel"])
        return RecordedCall(request, level, Effect(decided["decision"]), decided["rule_id"])

    async def _decision_of(self, request_id: str) -> dict[str, Any]:
        """The policy's decision of a call; `ask` also where a person has rejected it since."""
        with contextlib.suppress(NotFound):
            return await self._artifact(request_id, Artifact.APPROVAL_REQUEST)
        return await self._artifact(request_id, wire.Artifact.POLICY_DECISION)

    async def _artifact(self, request_id: str, name: str) -> dict[str, Any]:
        ref = wire.EVIDENCE_REF.format(request_id=request_id, artifact=name)
        return _decode_object(await self.evidence.fetch(ref))
