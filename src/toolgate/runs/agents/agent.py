"""An agent takes one turn at a time: from all that was said, to what it says and wants next.

It keeps nothing between turns, so a run that waits costs nothing and a run that was interrupted
takes its turn again.
"""

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from toolgate.core.tools import JsonValue, Tool


@dataclass(frozen=True, slots=True)
class Said:
    role: str  # user | assistant
    content: str


@dataclass(frozen=True, slots=True)
class ToolAnswer:
    """A tool call of an earlier turn, with its end."""

    call_id: str
    tool: str
    args: dict[str, JsonValue]
    ok: bool
    output: str
    error_code: str = ""


@dataclass(frozen=True, slots=True)
class Transcript:
    run_id: str
    session_id: str
    agent_id: str
    history: Sequence[Said]  # earlier runs of the session, oldest first
    message: Said
    turns: Sequence["Turn"]  # what this run has already done
    tools: Sequence[Tool]
    context: Mapping[str, Any] = field(default_factory=dict)  # what the caller gave with it


@dataclass(frozen=True, slots=True)
class Turn:
    text: str
    answers: Sequence[ToolAnswer]


@dataclass(frozen=True, slots=True)
class Usage:
    prompt_tokens: int = 0
    completion_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True, slots=True)
class Say:
    text: str
    apart: bool = False  # delivered by itself, never joined with what comes before or after


@dataclass(frozen=True, slots=True)
class Note:
    """A state of the agent's own that its user may see."""

    state: str
    detail: dict[str, JsonValue] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Call:
    tool: str
    args: dict[str, JsonValue]


@dataclass(frozen=True, slots=True)
class EndTurn:
    """The last step of a turn: with calls, the agent wants their answers; without, it is done."""

    calls: Sequence[Call] = ()
    usage: Usage = Usage()


Step = Say | Note | EndTurn


class AgentFailed(Exception):
    """The agent cannot go on; the run ends with this code and message."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class Agent(Protocol):
    @property
    def repeats_itself(self) -> bool:
        """Whether a turn taken again says the same, so that what was delivered can be skipped."""
        ...

    @property
    def remembers(self) -> bool:
        """Whether it wants the session's earlier runs in its transcript."""
        ...

    def turn(self, transcript: Transcript) -> AsyncGenerator[Step, None]:
        """Closing it stops the agent."""
        ...
