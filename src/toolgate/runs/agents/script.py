"""The agent that does what its message spells out. Needs no model; how the contracts are shown.

Each `[[tool:NAME {json}]]` is called in its turn; the text around it comes back as it is; each
result comes back as a line `NAME: output`.
"""

import json
import re
from collections.abc import AsyncGenerator, Iterator
from typing import Any, Final

import msgspec

from toolgate.runs.agents.agent import (
    AgentFailed,
    Call,
    EndTurn,
    Say,
    Step,
    ToolAnswer,
    Transcript,
)

_OPEN: Final = re.compile(r"\[\[tool:([A-Za-z0-9_.:-]+)\s*")
_CLOSE: Final = "]]"
_CLOSED: Final = re.compile(r"\s*\]\]")
_decoder: Final = json.JSONDecoder()


def pieces(message: str) -> Iterator[str | Call]:
    """The message as text and calls, in order."""
    at = 0
    while found := _OPEN.search(message, at):
        if found.start() > at:
            yield message[at : found.start()]
        args, end = _arguments(message, found)
        yield Call(found[1], args)
        at = end
    if at < len(message):
        yield message[at:]


def _arguments(message: str, found: re.Match[str]) -> tuple[dict[str, Any], int]:
    start = found.end()
    if message.startswith(_CLOSE, start):
        return {}, start + len(_CLOSE)
    try:
        _, end = _decoder.raw_decode(message, start)
        args = msgspec.json.decode(message[start:end])  # which takes no more than can be kept
    except (ValueError, RecursionError) as bad:
        raise AgentFailed("invalid_script", f"{found[1]}: the arguments are not JSON") from bad
    if not isinstance(args, dict):
        raise AgentFailed("invalid_script", f"{found[1]}: the arguments must be an object")
    closed = _CLOSED.match(message, end)
    if closed is None:
        raise AgentFailed("invalid_script", f"{found[1]}: ]] is missing after the arguments")
    return args, closed.end()


class ScriptAgent:
    repeats_itself = True
    remembers = False

    async def turn(self, transcript: Transcript) -> AsyncGenerator[Step, None]:
        """Go on behind the call that the last turn ended with."""
        script = list(pieces(transcript.message.content))
        taken = len(transcript.turns)
        if taken:
            for answer in transcript.turns[-1].answers:
                yield Say(_line(answer))
        calls = 0
        for piece in script:
            if isinstance(piece, Call):
                calls += 1
                if calls > taken:
                    yield EndTurn(calls=[piece])
                    return
            elif calls == taken:
                yield Say(piece)
        yield EndTurn()


def _line(answer: ToolAnswer) -> str:
    output = answer.output if answer.ok else f"error {answer.error_code}: {answer.output}"
    return f"{answer.tool}: {output}\n"
