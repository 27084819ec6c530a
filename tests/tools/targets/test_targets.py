"""Which target a call gets, what an upsert changes, how long a runner may take."""

import math
from typing import Any

import pytest

from toolgate.core.enums import TargetKind
from toolgate.core.errors import Invalid, Refused
from toolgate.tools.targets.targets import (
    BUILT_IN,
    LOCAL_DEFAULT,
    Breaker,
    Change,
    Target,
    TargetRefused,
    choose,
    displaced,
    read_timeout,
    upsert,
)


def target(name: str, workspace: str | None = None, **members: Any) -> Target:
    known: dict[str, Any] = {"tenant": "t_1", "kind": TargetKind.DOCKER_RUNNER} | members
    return Target(name, workspace=workspace, **known)


def chosen(*targets: Target, **words: str) -> str:
    where = {"tenant": "t_1", "workspace": "w_1"} | words
    return choose(targets, **where).id


@pytest.mark.requirement("000/timeout/default")
@pytest.mark.requirement("000/timeout/capped")
@pytest.mark.requirement("000/timeout/floored")
@pytest.mark.requirement("000/timeout/smallest")
@pytest.mark.requirement("000/timeout/not-positive")
@pytest.mark.requirement("000/timeout/not-a-number")
@pytest.mark.parametrize(
    ("asked", "given"),
    [
        (None, 15_000),
        (1, 1),
        (1500.9, 1500),
        (180_000, 180_000),
        (180_001, 180_000),
        (10**30, 180_000),
        (0, 15_000),
        (0.9, 15_000),
        (-1, 15_000),
        (math.nan, 15_000),
        (math.inf, 15_000),
        (-math.inf, 15_000),
        ("20000", 15_000),
        (True, 15_000),
        ([5], 15_000),
    ],
)
def test_the_deadline_of_a_target(asked: Any, given: int) -> None:
    assert read_timeout(asked) == given
    assert target("x", config={"timeoutMs": asked}).timeout_ms == given


@pytest.mark.requirement("000/targets/choice-explicit")
@pytest.mark.requirement("000/targets/choice-agent")
@pytest.mark.requirement("000/targets/choice-workspace-default")
@pytest.mark.requirement("000/targets/choice-tenant-default")
@pytest.mark.requirement("000/targets/choice-built-in")
@pytest.mark.requirement("000/targets/built-in")
def test_the_order_of_choice() -> None:
    everything = (
        target("named", "w_1"),
        target("agents"),
        target("workspace", "w_1", is_default=True),
        target("tenant", is_default=True),
        target("elsewhere", "w_2", is_default=True),
        target("stranger", tenant="t_2", is_default=True),
    )
    assert chosen(*everything, explicit="named", of_agent="agents") == "named"
    assert chosen(*everything, of_agent="agents") == "agents"
    assert chosen(*everything) == "workspace"
    assert chosen(*everything, workspace="w_3") == "tenant"
    assert chosen(*everything[:2]) == LOCAL_DEFAULT
    assert chosen(explicit=LOCAL_DEFAULT) == LOCAL_DEFAULT


@pytest.mark.requirement("000/targets/choice-unknown-refused")
@pytest.mark.parametrize("name", ["no-such", "other-tenant", "other-workspace"])
def test_a_target_that_is_not_the_caller_s_is_not_known(name: str) -> None:
    others = (target("other-tenant", tenant="t_2"), target("other-workspace", "w_2"))
    with pytest.raises(TargetRefused):
        chosen(*others, explicit=name)
    with pytest.raises(TargetRefused):
        chosen(*others, of_agent=name)


@pytest.mark.requirement("000/targets/disabled-denied")
def test_a_disabled_target_is_refused_and_never_passed_over() -> None:
    default = target("a", "w_1", is_default=True, enabled=False)
    built_in = upsert(LOCAL_DEFAULT, None, Change(enabled=False), now_ms=1)
    for targets, explicit in (
        ([default], ""),
        ([target("b", enabled=False)], "b"),
        ([built_in], ""),
    ):
        with pytest.raises(TargetRefused) as raised:
            chosen(*targets, explicit=explicit)
        assert raised.value.code == "POLICY_DENIED"


@pytest.mark.requirement("000/targets/upsert-keeps-omitted")
@pytest.mark.requirement("000/targets/upsert-version")
def test_an_upsert_keeps_what_it_leaves_out_and_counts() -> None:
    first = upsert(
        "a",
        None,
        Change("t_1", "w_1", "docker-runner", " http://x ", "token", config={"timeoutMs": 5}),
        now_ms=100,
    )
    assert (first.version, first.updated_at, first.endpoint) == (1, 100, "http://x")
    second = upsert("a", first, Change(enabled=False), now_ms=200)
    assert second == Target(
        "a", "t_1", "w_1", TargetKind.DOCKER_RUNNER, "http://x", "token",
        enabled=False, config={"timeoutMs": 5}, version=2, updated_at=200,
    )  # fmt: skip
    assert upsert("a", second, Change(auth_token=""), now_ms=300).auth_token == ""
    assert "token" not in repr(first)
    assert "token" not in repr(Change(auth_token="token")).replace("auth_token", "")


@pytest.mark.requirement("000/targets/kinds")
def test_what_an_upsert_may_not_say() -> None:
    with pytest.raises(Invalid):
        upsert("a", None, Change(kind="docker-runner"), now_ms=1)
    with pytest.raises(Invalid):
        upsert("a", None, Change("t_1", kind="kubernetes"), now_ms=1)
    with pytest.raises(Refused):
        upsert("a", target("a"), Change(tenant="t_2"), now_ms=1)
    with pytest.raises(Refused):
        upsert(LOCAL_DEFAULT, None, Change(kind="docker-runner"), now_ms=1)
    assert upsert(LOCAL_DEFAULT, None, Change(config={"a": 1}), now_ms=1).kind is BUILT_IN.kind


@pytest.mark.parametrize(
    "endpoint",
    ["ftp://lab/execute", "lab:18081/execute", "http://", "http://[1", "http://u:p@lab/"],
)
def test_an_endpoint_that_no_runner_can_have_is_not_taken(endpoint: str) -> None:
    change = Change(tenant="t", kind="docker-runner", endpoint=endpoint)
    with pytest.raises(Invalid, match="not an endpoint"):
        upsert("target_lab", None, change, now_ms=1)


@pytest.mark.requirement("000/targets/one-default")
def test_a_new_default_displaces_only_those_of_its_own_tenant_and_workspace() -> None:
    others = [
        target("same", "w_1", is_default=True),
        target("not", "w_1"),
        target("tenant", None, is_default=True),
        target("elsewhere", "w_2", is_default=True),
        target("stranger", "w_1", tenant="t_2", is_default=True),
    ]
    assert [each.id for each in displaced(target("new", "w_1", is_default=True), others)] == [
        "same"
    ]
    assert displaced(target("new", "w_1"), others) == []


def test_the_breaker_opens_after_five_failures_and_lets_one_try() -> None:
    breaker = Breaker()
    for _ in range(4):
        breaker.failed(0)
    assert breaker.allows(0)
    breaker.failed(0)
    assert not breaker.allows(1.9)
    assert breaker.allows(2)
    assert not breaker.allows(2.1)  # one is on its way
    breaker.succeeded()
    assert breaker.allows(2.2)
    breaker.failed(3)
    assert breaker.allows(3)


def test_a_workspace_that_is_taken_away_leaves_the_target_to_the_whole_tenant() -> None:
    """As a body says it with `workspaceId: null`, for a new target or one that had a workspace."""
    new = upsert("a", None, Change("t_1", "", "docker-runner"), now_ms=1)
    had = upsert("a", target("a", "w_1"), Change(workspace=""), now_ms=1)
    for each in (new, had):
        assert each.workspace is None
        assert chosen(each, workspace="w_2", explicit="a") == "a"
