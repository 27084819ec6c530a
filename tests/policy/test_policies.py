"""The policy as the pipeline asks it."""

from pathlib import Path

from tests.support.policies import PARSE, open_policy
from toolgate.core.enums import Level
from toolgate.core.tools import Caller, Tool
from toolgate.policy.compile import compile_policy
from toolgate.policy.file import default_policy_text
from toolgate.policy.policies import Policies

POLICY = compile_policy(
    {
        "version": 1,
        "name": "test",
        "default": "deny",
        "rules": [
            {"id": "other", "ask": "shell", "match": "otherwise", "reason": "It may change things"},
            {
                "id": "ops",
                "allow": "deploy",
                "match": "any",
                "for": {"role": ["ops"]},
                "reason": "x",
            },
            {"id": "never", "deny": "wipe", "reason": "Never"},
            {"id": "wipe", "allow": "wipe", "match": "any", "reason": "But for the rule above"},
        ],
    },
    name="test",
)


def visible(tool: str, **caller: str) -> bool:
    policies = Policies(lambda _: POLICY, PARSE, lambda _: Level.WRITE)
    shown = Tool(tool, "", Level.WRITE, {}, repeatable=False)
    return policies.may_pass(shown, Caller(role=caller.get("role", "")))


def test_an_agent_sees_a_tool_that_is_asked_about_where_nothing_allows_it() -> None:
    assert visible("shell")


def test_an_agent_sees_only_what_its_own_role_could_be_allowed() -> None:
    assert visible("deploy", role="ops")
    assert not visible("deploy", role="dev")


def test_an_agent_does_not_see_what_is_always_denied_or_never_spoken_of() -> None:
    assert not visible("wipe")
    assert not visible("unheard.of")


async def test_the_row_version_is_that_of_the_policy_in_force(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(default_policy_text())
    file = await open_policy(path)
    policies = Policies(file.find, PARSE, lambda _: Level.WRITE, lambda: file.row_version)
    assert policies.row_version == 1
    await file.replace("version: 1\nrules: []\n")
    assert policies.row_version == 2


def test_a_policy_that_is_in_no_journal_has_no_row() -> None:
    assert Policies(lambda _: POLICY, PARSE, lambda _: Level.WRITE).row_version == 0
