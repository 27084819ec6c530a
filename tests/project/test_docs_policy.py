"""What docs/policy.md shows is true."""

import re
from pathlib import Path

import pytest

from toolgate.cli.policy import command
from toolgate.core.enums import Level
from toolgate.core.tools import ToolRequest
from toolgate.policy.compile import compile_policy
from toolgate.policy.conditions import OPERATORS
from toolgate.policy.decide import decide
from toolgate.policy.file import load_policy
from toolgate.policy.model import Effect
from toolgate.policy.shell_parser import TreeSitterShellParser

PAGE = (Path(__file__).parents[2] / "docs" / "policy.md").read_text("utf-8")
PARSE = TreeSitterShellParser()


@pytest.mark.parametrize("text", re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL))
def test_every_policy_shown_loads_and_passes_its_own_tests(text: str) -> None:
    load_policy(text, parse_shell=PARSE)


def test_every_command_and_operator_is_in_the_page() -> None:
    assert all(f"toolgate policy {name}" in PAGE for name in command.commands)
    assert all(f"`{operator}`" in PAGE for operator in OPERATORS)


@pytest.mark.parametrize(
    ("pattern", "text", "expected"),
    [
        ("git log *", "git logx", Effect.DENY),
        ("git log*", "git logx", Effect.ALLOW),
        ("git log *", "git log --output=FILE", Effect.ALLOW),
        ("ls *", "/tmp/ls", Effect.DENY),
        ("echo *", "echo cm0gLXJmIC8K | base64 -d | sh", Effect.DENY),
    ],
)
def test_what_the_page_says_of_patterns_is_so(pattern: str, text: str, expected: Effect) -> None:
    policy = compile_policy(
        {
            "version": 1,
            "rules": [
                {"id": "a", "allow": "shell", "match": {"command": pattern}, "reason": "why"}
            ],
        },
        name="p",
    )
    call = ToolRequest("r", "shell", {"command": text})
    assert decide(policy, call, level=Level.READ, parse_shell=PARSE).effect is expected
