"""What was said in a session, for the agent whose turn it is."""

import asyncio
from dataclasses import dataclass
from typing import Final

import msgspec

from toolgate.domain.deliveries import DELTA, RUN_STARTED
from toolgate.orchestration import records
from toolgate.ports.agents import Said
from toolgate.ports.journal import Journal

HISTORY_CHARACTERS: Final = 24_000  # about 6,000 tokens of earlier conversation
HISTORY_RUNS: Final = 50


class _Text(msgspec.Struct):
    text: str


_decode_text: Final = msgspec.json.Decoder(_Text).decode


@dataclass(slots=True)
class Conversations:
    journal: Journal

    async def said(self, session_id: str, run_id: str) -> int:
        """How many characters of a run's text its session has been given."""
        stream = records.session_stream(session_id)
        total = after = 0
        while events := await self.journal.read(stream, after=after, subject=run_id):
            total += sum(len(_decode_text(one.data).text) for one in events if one.type == DELTA)
            after = events[-1].seq
        return total

    async def history(self, session_id: str, *, before: str) -> list[Said]:
        """The session's earlier runs, oldest first, as many as the budget holds."""
        earlier = await self._earlier_runs(session_id, before=before)
        states = await asyncio.gather(*(records.load(self.journal, run) for run in earlier))
        turns: list[Said] = []
        room = HISTORY_CHARACTERS
        for state in states:
            if state is None or not state.ended:
                continue
            answer = "".join(turn.text for turn in state.turns)
            room -= len(state.content) + len(answer)
            if room < 0:
                break
            turns += [Said("assistant", answer), Said(state.role, state.content)]
        return turns[::-1]

    async def _earlier_runs(self, session_id: str, *, before: str) -> list[str]:
        """Newest first. Starts are found by walking back; a page of deltas costs one read."""
        found: list[str] = []
        stream = records.session_stream(session_id)
        number: int | None = None
        while len(found) < HISTORY_RUNS:
            events = await self.journal.read_back(stream, before=number, limit=500)
            if not events:
                break
            starts = [one.subject for one in events if one.type == RUN_STARTED]
            found += [run for run in starts if run != before]
            number = events[-1].seq
        return found[:HISTORY_RUNS]
