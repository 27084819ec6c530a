"""What would change if another policy had decided the calls of the past."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from toolgate.core.enums import Level
from toolgate.core.tools import ToolRequest
from toolgate.policy.decide import decide
from toolgate.policy.model import Decision, Effect, Policy
from toolgate.policy.shell import ParseShell


@dataclass(frozen=True, slots=True)
class RecordedCall:
    call: ToolRequest
    level: Level
    effect: Effect  # as it was decided then
    rule_id: str


@dataclass(frozen=True, slots=True)
class Change:
    recorded: RecordedCall
    decision: Decision

    @property
    def loosens(self) -> bool:
        """Whether the candidate lets through more than was let through then."""
        order = [Effect.DENY, Effect.ASK, Effect.ALLOW]
        return order.index(self.decision.effect) > order.index(self.recorded.effect)


def simulate(
    recorded: Iterable[RecordedCall], candidate: Policy, *, parse_shell: ParseShell
) -> Iterator[Change]:
    """The calls that the candidate decides otherwise, in their order."""
    for each in recorded:
        decision = decide(candidate, each.call, level=each.level, parse_shell=parse_shell)
        if decision.effect is not each.effect:
            yield Change(each, decision)
