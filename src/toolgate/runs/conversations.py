"""The earlier text of a session, for the agent's next turn."""

import asyncio
from dataclasses import dataclass
from typing import Final

import msgspec

from toolgate.journal.journal import Journal
from toolgate.journal.paging import all_events
from toolgate.runs import records
from toolgate.runs.agents.agent import Said
from toolgate.runs.deliveries import DELTA, RETRACTED, STATE

HISTORY_CHARACTERS: Final = 24_000  # about 6,000 tokens of earlier conversation
HISTORY_RUNS: Final = 50


class _Text(msgspec.Struct):
    text: str


_decode_text: Final = msgspec.json.Decoder(_Text).decode


@dataclass(slots=True)
class Conversations:
    journal: Journal

    async def length_of(self, session_id: str, run_id: str) -> int:
        """The number of characters of a run's text in its session's stream, without retracted ones."""
        stream = records.session_stream(session_id)
        total = 0
        async for event in all_events(self.journal, stream, subject=run_id):
            if event.type == DELTA:
                total += len(_decode_text(event.data).text)
            elif event.type == STATE:
                total -= retracted(event.data)
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
            asked, answer = state.content, "".join(turn.text for turn in state.turns)
            if not turns:  # the latest run is always included, cut to the budget
                asked = asked[-(HISTORY_CHARACTERS // 2) :]
                answer = answer[-(HISTORY_CHARACTERS - len(asked)) :]
            room -= len(asked) + len(answer)
            if room < 0:
                break
            turns += [Said("assistant", answer), Said(state.role, asked)]
        return turns[::-1]

    async def _earlier_runs(self, session_id: str, *, before: str) -> list[str]:
        """Newest first; ids sort by the time they were made."""
        rows = await self.journal.scan(
            records.SESSION_RUNS,
            after=records.session_key(session_id, before),
            limit=HISTORY_RUNS,
            newest_first=True,
        )
        owners = [records.session_and_run(row.key) for row in rows]
        return [run for owner, run in owners if owner == session_id]


def retracted(state: bytes) -> int:
    """The number of characters that a state retracts."""
    match records.decode_members(state):
        case {"detail": dict(detail)} if isinstance(detail.get(RETRACTED), int):
            return int(detail[RETRACTED])
        case _:
            return 0
