"""The tests that a policy file carries: it becomes active only when it decides as it promises."""

from dataclasses import dataclass

from toolgate.policy.decide import decide
from toolgate.policy.model import Decision, Policy, PolicyTest
from toolgate.policy.shell import ParseShell


@dataclass(frozen=True, slots=True)
class TestResult:
    __test__ = False  # not one of pytest's

    test: PolicyTest
    decision: Decision

    @property
    def passed(self) -> bool:
        return self.decision.effect is self.test.expect and self.test.rule_id in {
            "",
            self.decision.rule_id,
        }

    def __str__(self) -> str:
        wanted = " by ".join(filter(None, (self.test.expect.value, self.test.rule_id)))
        got = f"{self.decision.effect.value} by {self.decision.rule_id}"
        return f"{self.test.where}: {self.test.call.tool} expected {wanted}, got {got}"


def run_tests(policy: Policy, *, parse_shell: ParseShell) -> list[TestResult]:
    return [
        TestResult(test, decide(policy, test.call, level=test.level, parse_shell=parse_shell))
        for test in policy.tests
    ]
