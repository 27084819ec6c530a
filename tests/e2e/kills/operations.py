"""One request of a client: its id, its answer, and what the answer claims about each effect."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from toolgate.core.enums import Outcome


class Claim(StrEnum):
    """What an answer says about one effect."""

    THERE = "there"
    ABSENT = "absent"
    UNKNOWN = "unknown"


@dataclass
class Operation:
    """A request, sent again with the same id until it is answered."""

    id: str
    effects: tuple[str, ...] = ()  # in the order of the calls
    attempts: int = 0
    answer: Any = None  # the first one, compared with each later one
    claims: tuple[Claim, ...] = ()
    approval_id: str = ""
    is_stored: bool = True  # the answer is given again to the same id

    @property
    def is_acknowledged(self) -> bool:
        return self.answer is not None

    def acknowledge(self, answer: Any, claims: Iterable[Claim]) -> None:
        assert self.answer is None
        self.answer = answer
        self.claims = tuple(claims)

    @property
    def succeeded(self) -> bool:
        return all(claim is Claim.THERE for claim in self.claims)

    def __str__(self) -> str:
        return f"{self.id} ({self.attempts} attempts, {', '.join(self.claims)}): {self.answer!r}"


@dataclass
class Counts:
    """A row of the table."""

    acknowledged: int = 0
    repeated: int = 0  # sent again after a kill
    interrupted: int = 0  # answered as "may have executed"
    refused: int = 0  # answered as "not started"
    unanswered: int = 0  # without an id to repeat

    def add(self, operations: Iterable[Operation]) -> None:
        for one in operations:
            if not one.is_acknowledged:
                self.unanswered += 1
                continue
            self.acknowledged += 1
            self.repeated += one.attempts > 1
            self.interrupted += Claim.UNKNOWN in one.claims
            self.refused += not one.is_stored


def claim_of(*, ok: bool, outcome: object) -> Claim:
    if ok:
        return Claim.THERE
    return Claim.ABSENT if outcome == Outcome.NOT_STARTED else Claim.UNKNOWN
