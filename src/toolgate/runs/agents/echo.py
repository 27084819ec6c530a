"""The agent that answers with what it was told. Needs nothing; good for a first hello."""

from collections.abc import AsyncGenerator
from typing import Final

from toolgate.runs.agents.agent import EndTurn, Say, Step, Transcript

PIECE: Final = 5  # characters


class EchoAgent:
    repeats_itself = True
    remembers = False

    async def turn(self, transcript: Transcript) -> AsyncGenerator[Step, None]:
        text = transcript.message.content
        for start in range(0, len(text), PIECE):
            yield Say(text[start : start + PIECE], apart=True)
        yield EndTurn()
