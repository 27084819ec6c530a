"""What a policy grants to sandboxes, and what it takes more than a wildcard to grant."""

from typing import Any

import pytest

from toolgate.core.tools import Caller
from toolgate.policy.compile import compile_policy
from toolgate.policy.egress import decide_connection, granting, may_reach_any
from toolgate.policy.model import Effect, InvalidPolicy, Policy

BUILD = Caller("t_1", "build", session="s_1")
PACKAGES = {"id": "packages", "hosts": ["pypi.org", "*.pythonhosted.org"], "reason": "Packages"}


def policy(*grants: Any, rules: Any = (), **more: Any) -> Policy:
    document = {"version": 1, "rules": list(rules), "egress": list(grants), **more}
    return granting(compile_policy(document, name="policy.default"))


def reaches(by: Policy, host: str, port: int = 443, caller: Caller = BUILD) -> bool:
    return decide_connection(by, caller, host=host, port=port).effect is Effect.ALLOW


def test_a_grant_is_its_hosts_on_the_web_s_ports() -> None:
    by = policy(PACKAGES)
    assert may_reach_any(by, BUILD)
    assert decide_connection(by, BUILD, host="pypi.org", port=443).rule_id == "packages"
    assert reaches(by, "files.pythonhosted.org", 80)
    for host, port in (
        ("pypi.org", 22),
        ("pypi.org", 8443),
        ("pythonhosted.org", 443),
        ("evilpypi.org", 443),
        ("127.0.0.1", 80),
        ("::1", 443),
        ("169.254.169.254", 80),
        ("", 443),
        ("a b", 443),
    ):
        assert not reaches(by, host, port), host


def test_ports_are_those_that_are_said() -> None:
    by = policy({**PACKAGES, "ports": [8443]})
    assert reaches(by, "pypi.org", 8443)
    assert not reaches(by, "pypi.org", 443)


def test_a_grant_may_be_for_one_workspace() -> None:
    by = policy({**PACKAGES, "for": {"workspace": "build"}})
    assert reaches(by, "pypi.org")
    for other in (Caller("t_1", "other"), Caller("t_1", "", session="build")):
        assert not may_reach_any(by, other)
        assert not reaches(by, "pypi.org", caller=other)


@pytest.mark.parametrize(
    "rules",
    [
        [],
        [{"id": "all", "allow": "*", "match": "any", "reason": "All tools"}],
        [{"id": "all", "allow": "sandbox.*", "match": "any", "reason": "All of the sandbox"}],
        [{"id": "asked", "ask": "*", "match": "otherwise", "reason": "A person"}],
        [{"id": "asked", "ask": "sandbox.egress", "reason": "Nobody can be asked"}],
    ],
)
def test_without_a_grant_by_name_there_is_no_network(rules: Any) -> None:
    by = policy(rules=rules)
    assert not reaches(by, "pypi.org")
    assert not may_reach_any(by, BUILD)


def test_a_deny_or_an_ask_takes_away_from_a_grant() -> None:
    denied = {"deny": "sandbox.egress", "match": {"url": {"host": "pypi.org"}}, "reason": "Not now"}
    by = policy(PACKAGES, rules=[{"id": "no", **denied}])
    assert not reaches(by, "pypi.org")
    assert reaches(by, "files.pythonhosted.org")
    asked = {"id": "a", "ask": "*", "match": {"url": {"host": "pypi.org"}}, "reason": "A person"}
    assert not reaches(policy(PACKAGES, rules=[asked]), "pypi.org")


def test_a_rule_that_names_it_grants_too() -> None:
    rule = {"allow": "sandbox.egress", "match": {"url": {"host": "git.test", "port": 22}}}
    by = policy(rules=[{"id": "git", **rule, "reason": "Sources"}])
    assert reaches(by, "git.test", 22)
    assert not reaches(by, "git.test", 443)


@pytest.mark.parametrize(
    "grant",
    [
        {},
        "pypi.org",
        {**PACKAGES, "id": ""},
        {**PACKAGES, "id": "default_deny"},
        {**PACKAGES, "id": "taken"},
        {**PACKAGES, "reason": ""},
        {**PACKAGES, "hosts": ["http://pypi.org/"]},
        {**PACKAGES, "hosts": ["pypi.org:443"]},
        {**PACKAGES, "hosts": ["2130706433"]},
        {**PACKAGES, "hosts": ["$nowhere"]},
        {**PACKAGES, "ports": [0]},
        {**PACKAGES, "ports": ["443"]},
        {**PACKAGES, "ports": [True]},
        {**PACKAGES, "for": {"role": "dev"}},
        {**PACKAGES, "for": {"agent": "coder"}},
        {**PACKAGES, "host": ["pypi.org"]},
    ],
)
def test_a_grant_that_is_not_understood_is_refused(grant: Any) -> None:
    taken = {"id": "taken", "allow": "echo", "match": "any", "reason": "Echo"}
    with pytest.raises(InvalidPolicy):
        policy(grant, rules=[taken])


def test_an_empty_list_of_hosts_grants_nothing_and_groups_are_unfolded() -> None:
    assert not reaches(policy({**PACKAGES, "hosts": []}), "pypi.org")
    by = policy({**PACKAGES, "hosts": ["$mirrors"]}, groups={"mirrors": ["mirror.test"]})
    assert reaches(by, "mirror.test")


def test_a_grant_changes_the_version_of_the_policy() -> None:
    with_it, without = policy(PACKAGES), policy()
    assert with_it.version != without.version
    assert with_it.version != policy({**PACKAGES, "ports": [8443]}).version
