"""The text of a refused or waiting call: reason, rule, remedy; and nothing in it that is not there."""

import re
import shlex
from pathlib import Path

import click
import pytest

import toolgate
from toolgate import settings
from toolgate.cli.main import COMMANDS, LazyGroup
from toolgate.policy.model import DEFAULT_DENY, RESERVED_IDS, Effect
from toolgate.policy.refusal_texts import (
    REMEDIES,
    refusal_text,
)

NOT_REFUSALS = {"tool_allowlist_match", "default_allow"}
DENIED = [
    refusal_text(tool="shell", rule_id=rule_id, reason="Why", effect=Effect.DENY)
    for rule_id in [*REMEDIES, "never-destroy"]
]
ASKED = [
    refusal_text(tool="shell", rule_id="a", reason="Why", effect=Effect.ASK, approval_id=approval)
    for approval in ("", "apr_x")
]


def test_the_default_deny_names_the_command_that_explains_it() -> None:
    text = refusal_text(
        tool="shell",
        rule_id=DEFAULT_DENY,
        reason="Tool shell not in allowlist (default deny)",
        effect=Effect.DENY,
    )
    assert text == (
        "Tool shell not in allowlist (default deny) [rule default_deny]. "
        "To allow it, change the policy: toolgate policy explain --tool shell"
    )


def test_a_rule_of_the_policy_is_named_as_what_to_change() -> None:
    text = refusal_text(
        tool="shell", rule_id="never-destroy", reason="Cannot be undone.", effect=Effect.DENY
    )
    assert text == (
        "Cannot be undone [rule never-destroy]. "
        "To allow it, change this rule of the policy: toolgate policy explain --tool shell"
    )


def test_what_waits_names_its_approval_and_where_to_decide_it() -> None:
    text = refusal_text(
        tool="shell", rule_id="a", reason="It pushes", effect=Effect.ASK, approval_id="apr_x"
    )
    assert text == (
        "It pushes [rule a]. Waiting for approval apr_x: decide it on the console's Approvals "
        "page (toolgate console) or by POST /approvals/apr_x/decide"
    )


def test_every_refusal_that_no_rule_of_a_file_makes_has_its_own_remedy() -> None:
    assert REMEDIES.keys() >= RESERVED_IDS - NOT_REFUSALS
    assert len(set(REMEDIES.values())) == len(REMEDIES)


@pytest.mark.parametrize("text", [*DENIED, *ASKED])
def test_a_text_is_one_line_without_a_placeholder_of_ours(text: str) -> None:
    assert text.isprintable()
    assert not re.search(r"\{(?!id\})", text)


@pytest.mark.parametrize("text", [*DENIED, *ASKED])
def test_every_command_and_option_of_a_text_exists(text: str) -> None:
    for found in re.findall(r"toolgate ([a-z]+(?: (?!or\b)(?:--)?[a-z]+)*)", text):
        words = found.split()
        assert words[0] in COMMANDS
        context = click.Context(LazyGroup())
        command = LazyGroup().get_command(context, words.pop(0))
        if isinstance(command, click.Group) and words:
            command = command.get_command(context, words.pop(0))
        assert command is not None
        known = {option for one in command.params for option in one.opts} | {"--help"}
        assert {word for word in words if word.startswith("-")} <= known


@pytest.mark.parametrize("text", [*DENIED, *ASKED])
def test_every_setting_page_and_route_of_a_text_exists(text: str) -> None:
    known = {entry.name for entry in settings.table()}
    assert set(re.findall(r"\b[A-Z]+(?:_[A-Z]+)+\b", text)) <= known
    surfaces = Path(toolgate.__file__).parent / "surfaces"
    pages = (surfaces / "console" / "static" / "app.js").read_text()
    for page in re.findall(r"console's (\w+) page", text):
        assert f'"{page}"' in pages
    if "POST" in text:
        assert '"/approvals/{approvalId}/decide"' in (surfaces / "gateway/approvals.py").read_text()


@pytest.mark.parametrize(
    ("tool", "named"),
    [("a b; rm -rf /", "'a b; rm -rf /'"), ("x\ny", "TOOL"), ("{tool}", "'{tool}'"), ("", "''")],
)
def test_a_tool_with_any_name_is_safe_to_paste_into_a_shell(tool: str, named: str) -> None:
    text = refusal_text(tool=tool, rule_id="a", reason="Why", effect=Effect.DENY)
    assert text.endswith(f"--tool {named}")
    assert shlex.split(text.rpartition("--tool ")[2]) in ([tool], ["TOOL"])


def test_a_reason_of_several_lines_stays_on_one() -> None:
    text = refusal_text(
        tool="t", rule_id="", reason="Rejected by ann: no\nway.", effect=Effect.DENY
    )
    assert text.startswith("Rejected by ann: no way. ")
