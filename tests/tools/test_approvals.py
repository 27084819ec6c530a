"""An approval goes one way, once, for one call, by someone else."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.people import by
from toolgate.core.enums import ApprovalStatus
from toolgate.core.errors import Conflict, Refused
from toolgate.core.tools import Caller
from toolgate.tools.approvals import TRANSITIONS, USE_WINDOW_MS, Approval, askers, binding_of

ASKED = Approval(
    approval_id="apr_r1",
    request_id="r1",
    binding="b",
    tool="pay",
    summary="pay 5",
    reason="Money",
    rule_id="pay",
    policy_version="v1",
    asked_by=("agent:a", "a"),
    asked_at=1000,
    expires_at=2000,
)


@pytest.mark.requirement("001/states/approval-moves")
def test_only_a_pending_approval_can_be_decided() -> None:
    others = set(ApprovalStatus) - {ApprovalStatus.PENDING}
    assert TRANSITIONS[ApprovalStatus.PENDING] == others
    moves = {status: after for status, after in TRANSITIONS.items() if status in others and after}
    assert moves == {ApprovalStatus.APPROVED: {ApprovalStatus.REJECTED}}


@pytest.mark.requirement("001/states/approval-overtaken")
def test_an_approval_is_overtaken_only_before_it_is_used() -> None:
    approved = ASKED.decide(approve=True, decided_by=by("user:u"), now=1500)
    overtaken = approved.overtake(now=1600, note="Frozen")
    assert (overtaken.status, overtaken.decided_by) == (ApprovalStatus.REJECTED, "policy")
    assert overtaken.note == "Frozen"
    with pytest.raises(Conflict):
        approved.use("b", now=1600).overtake(now=1700, note="Frozen")
    for closed in (overtaken, ASKED.decide(approve=False, decided_by=by("user:u"), now=1500)):
        with pytest.raises(Conflict):
            closed.overtake(now=1700, note="Frozen")
    with pytest.raises(Conflict):
        approved.close(by="run", now=1600, note="The run has ended")


@pytest.mark.parametrize(
    ("approve", "status"), [(True, ApprovalStatus.APPROVED), (False, ApprovalStatus.REJECTED)]
)
def test_a_decision_says_who_made_it_and_when(approve: bool, status: ApprovalStatus) -> None:
    decided = ASKED.decide(approve=approve, decided_by=by("user:u"), now=1500, note="fine")
    assert (decided.status, decided.decided_by, decided.decided_at) == (status, "user u", 1500)
    with pytest.raises(Conflict):
        decided.decide(approve=True, decided_by=by("user:v"), now=1600)


@pytest.mark.parametrize("who", ["a", "agent:a"])
def test_nobody_decides_what_they_asked_for(who: str) -> None:
    for approve in (True, False):
        with pytest.raises(Refused):
            ASKED.decide(approve=approve, decided_by=by(who), now=1500)


def test_an_approval_expires_on_the_moment() -> None:
    assert ASKED.at(1999).status is ApprovalStatus.PENDING
    assert ASKED.at(2000).status is ApprovalStatus.EXPIRED
    with pytest.raises(Conflict):
        ASKED.decide(approve=True, decided_by=by("user:u"), now=2000)


def test_an_approval_is_used_once_for_its_own_call_and_soon() -> None:
    approved = ASKED.decide(approve=True, decided_by=by("user:u"), now=1500)
    with pytest.raises(Refused):
        ASKED.use("b", now=1500)
    with pytest.raises(Refused):
        approved.use("other", now=1500)
    with pytest.raises(Refused):
        approved.use("b", now=1500 + USE_WINDOW_MS + 1)
    used = approved.use("b", now=1500 + USE_WINDOW_MS)
    with pytest.raises(Refused):
        used.use("b", now=1501)


JSON = st.recursive(
    st.none() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(), JSON, max_size=4), st.dictionaries(st.text(), JSON, max_size=4))
def test_two_calls_are_bound_alike_only_where_they_are_alike(
    one: dict[str, None], other: dict[str, None]
) -> None:
    first = binding_of("t", one, target="", rule="v")
    assert (binding_of("t", other, target="", rule="v") == first) == (one == other)
    assert binding_of("t", one, target="x", rule="v") != first
    assert binding_of("t", one, target="", rule="w") != first
    assert binding_of("u", one, target="", rule="v") != first


def test_an_agents_call_is_asked_for_by_the_agent_and_a_devices_by_the_device() -> None:
    whole = Caller(device="d", user="u", agent="a")
    assert askers(whole) == ("a", "agent:a")
    assert set(askers(replace(whole, agent=""))) == {"d", "device:d", "u", "user:u"}
    assert askers(Caller()) == ()


def test_a_program_that_started_a_run_asked_for_its_calls_and_a_person_did_not() -> None:
    for user, session, is_asker in (
        ("phone", "gw:phone:s", True),
        ("service:ci", "gw:service%3Aci", True),
        ("agent:bot", "sess_1", True),
        ("user:anna", "gw:user%3Aanna", False),
        ("anna", "sess_1", False),
    ):
        names = askers(Caller(user=user, agent="a", session=session))
        assert (user in names, f"user:{user}" in names) == (is_asker, is_asker), user


def test_the_operator_may_confirm_their_own_call_and_nobody_else_theirs() -> None:
    own = replace(ASKED, asked_by=("operator", "device:operator"))
    confirmed = own.decide(approve=True, decided_by=by("operator"), now=1)
    assert (confirmed.status, confirmed.confirmation) == (ApprovalStatus.APPROVED, "self")
    others = replace(ASKED, asked_by=("laptop", "device:laptop"))
    assert others.decide(approve=True, decided_by=by("operator"), now=1).confirmation == ""
    for name in ("laptop",):
        with pytest.raises(Refused):
            others.decide(approve=True, decided_by=by(name), now=1)
