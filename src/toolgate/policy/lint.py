"""The checks of a policy: the tests that it carries, and warnings about what it allows.

A policy becomes active only when its tests pass. A warning does not hinder it.
"""

from dataclasses import dataclass

from toolgate.policy.decide import decide
from toolgate.policy.model import Decision, Effect, Policy, PolicyTest
from toolgate.policy.programs import RUNS_FILES, RUNS_OTHERS
from toolgate.policy.shell import SHELL_ONLY, SUBCOMMANDS, WRAPPERS, ParseShell, base_name


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


def warnings(policy: Policy) -> list[str]:
    """The allow patterns whose programs run others, or that no shell command matches."""
    return [
        f"{rule.id}: `{pattern}`: {why}"
        for rule in policy.rules
        if rule.effect is Effect.ALLOW and rule.commands is not None
        for pattern in rule.commands.patterns
        if (why := _warning(pattern))
    ]


def _warning(pattern: str) -> str:
    words = pattern.split()
    program = base_name(words[0])
    is_open = any("*" in word or word == "?" for word in words[1:])
    if program in SHELL_ONLY:
        return f"bash may evaluate the words of {program}, so only `exec` is allowed to run it"
    if program in WRAPPERS and any(base_name(word) in SUBCOMMANDS for word in words[1:]):
        return f"behind {program}, git may start the programs that a repository names"
    if program in SUBCOMMANDS and is_open and ("*" in words[1] or words[1] == "?"):
        return f"it allows every subcommand of {program}, except after options such as -c and -C"
    if program in RUNS_FILES:
        return f"{program} {RUNS_FILES[program]}"
    if program in RUNS_OTHERS and is_open and program not in SUBCOMMANDS:
        return f"{program} {RUNS_OTHERS[program]}"
    return ""
