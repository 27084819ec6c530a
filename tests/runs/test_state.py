"""The state machine of a run and of its tool calls: tables, reducer, decisions."""

import functools
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from msgspec.structs import replace

from toolgate.core.enums import CallStatus, RunStatus
from toolgate.core.errors import Conflict, NotFound
from toolgate.runs import state as runs
from toolgate.runs.state import (
    CallMoved,
    End,
    EndTurn,
    Fact,
    MoveCall,
    PlannedCall,
    RunEnded,
    RunStarted,
    RunState,
    decide,
    reduce,
)
from toolgate.tools.calls import TRANSITIONS as CALLS

STARTED = RunStarted("run_1", "sess_1", "echo", "u1", "r1", "user", "hi", 1000)
NO_MORE = EndTurn("said", (), 1, 2, 1500)


def with_calls(*call_ids: str) -> EndTurn:
    calls = tuple(PlannedCall(one, "tool", {}) for one in call_ids)
    return EndTurn("", calls, 0, 0, 1100)


def apply(state: RunState, command: runs.Command) -> RunState:
    for fact in decide(state, command):
        state = reduce(state, fact)
    return state


@pytest.mark.requirement("001/states/run-ends")
def test_the_ends_of_a_run_are_done_failed_and_cancelled() -> None:
    assert {RunStatus.DONE, RunStatus.FAILED, RunStatus.CANCELLED} == runs.TERMINAL


def test_every_status_has_a_row_in_its_table() -> None:
    assert runs.TRANSITIONS.keys() == set(RunStatus)
    assert CALLS.keys() == set(CallStatus)


def test_a_turn_without_calls_ends_the_run() -> None:
    state = apply(runs.begin(STARTED), NO_MORE)
    assert state.status is RunStatus.DONE
    assert (state.prompt_tokens, state.completion_tokens, state.ended_at) == (1, 2, 1500)


@pytest.mark.requirement("001/states/run-waits-tool")
def test_a_run_waits_for_its_tools_and_goes_on_when_all_have_ended() -> None:
    state = apply(runs.begin(STARTED), with_calls("a", "b"))
    assert state.status is RunStatus.PAUSED_WAITING_TOOL
    for call_id in ("a", "b"):
        for to in (CallStatus.POLICY_CHECKED, CallStatus.DISPATCHED, CallStatus.SUCCEEDED):
            assert state.status is RunStatus.PAUSED_WAITING_TOOL
            state = apply(state, MoveCall(call_id, to))
    assert state.status is RunStatus.RUNNING


@pytest.mark.requirement("001/states/run-waits-approval")
def test_a_run_waits_for_a_person_before_it_waits_for_a_tool() -> None:
    state = apply(runs.begin(STARTED), with_calls("a", "b"))
    state = apply(state, MoveCall("a", CallStatus.POLICY_CHECKED))
    state = apply(state, MoveCall("a", CallStatus.WAITING_APPROVAL, approval_id="ap_1"))
    assert state.status is RunStatus.PAUSED_WAITING_APPROVAL
    state = apply(state, MoveCall("a", CallStatus.REJECTED, error_code="rejected"))
    assert state.status is RunStatus.PAUSED_WAITING_TOOL
    assert state.call("a").approval_id == "ap_1"


@pytest.mark.requirement("001/states/run-illegal-moves")
@pytest.mark.parametrize("end", sorted(runs.TERMINAL))
@pytest.mark.parametrize("command", [NO_MORE, with_calls("c"), End(RunStatus.FAILED, "x", "y", 2)])
def test_an_ended_run_accepts_nothing(end: RunStatus, command: runs.Command) -> None:
    with pytest.raises(Conflict):
        decide(replace(runs.begin(STARTED), status=end), command)


@pytest.mark.requirement("001/states/tool-call-illegal-moves")
@pytest.mark.parametrize("status", CallStatus)
@pytest.mark.parametrize("to", CallStatus)
def test_a_call_moves_only_as_its_table_says(status: CallStatus, to: CallStatus) -> None:
    state = apply(runs.begin(STARTED), with_calls("a"))
    call = replace(state.call("a"), status=status)
    state = replace(state, turns=(replace(state.turns[0], calls=(call,)),))
    try:
        facts = decide(state, MoveCall("a", to, output="x"))
    except Conflict:
        assert to not in CALLS[status]
        return
    statuses = [status, *(fact.to for fact in facts if isinstance(fact, CallMoved))]
    assert statuses[-1] is to
    assert all(after in CALLS[before] for before, after in pairwise(statuses))
    assert set(statuses[1:-1]) <= {CallStatus.POLICY_CHECKED, CallStatus.DISPATCHED}, (
        "a call that waits or runs does so in a commit of its own"
    )
    assert len(facts) == 1 or to not in CALLS[status]


def test_a_turn_cannot_end_while_calls_are_open() -> None:
    with pytest.raises(Conflict):
        decide(apply(runs.begin(STARTED), with_calls("a")), NO_MORE)


def test_a_call_of_another_run_is_not_found() -> None:
    with pytest.raises(NotFound):
        decide(runs.begin(STARTED), MoveCall("elsewhere", CallStatus.FAILED))


def test_a_run_begins_with_its_start() -> None:
    with pytest.raises(Conflict):
        reduce(None, RunEnded(RunStatus.DONE, 1))


@given(st.text(), st.integers(0, 5))
def test_a_replay_of_the_facts_is_the_state_they_were_decided_on(text: str, calls: int) -> None:
    facts: list[Fact] = [STARTED]
    state = runs.begin(STARTED)
    commands = [EndTurn(text, with_calls(*map(str, range(calls))).calls, 1, 1, 5)]
    for command in commands:
        for fact in decide(state, command):
            facts.append(fact)
            state = reduce(state, fact)
    assert functools.reduce(reduce, facts, None) == state
    assert state.seq == len(facts)


class RunMachine(RuleBasedStateMachine):
    """Whatever is asked of a run, in whatever order: it only ever moves along its table."""

    def __init__(self) -> None:
        super().__init__()
        self.state = runs.begin(STARTED)
        self.facts: list[Fact] = [STARTED]
        self.calls = 0

    def ask(self, command: runs.Command) -> None:
        before = self.state
        try:
            facts = decide(self.state, command)
        except (Conflict, NotFound):
            assert self.state == before
            return
        for fact in facts:
            old = self.state.status
            self.state = reduce(self.state, fact)
            self.facts.append(fact)
            if self.state.status is not old:
                assert self.state.status in runs.TRANSITIONS[old]

    @rule(count=st.integers(0, 3))
    def end_turn(self, count: int) -> None:
        names = [f"c{self.calls + n}" for n in range(count)]
        self.calls += count
        self.ask(with_calls(*names))

    @rule(number=st.integers(0, 8), to=st.sampled_from(CallStatus))
    def move_call(self, number: int, to: CallStatus) -> None:
        self.ask(MoveCall(f"c{number}", to))

    @precondition(lambda self: self.calls > 3)
    @rule(status=st.sampled_from([RunStatus.FAILED, RunStatus.CANCELLED]))
    def end(self, status: RunStatus) -> None:
        self.ask(End(status, "code", "message", 9))

    @invariant()
    def the_state_is_what_the_facts_make(self) -> None:
        assert functools.reduce(reduce, self.facts, None) == self.state

    @invariant()
    def it_waits_exactly_while_calls_are_open(self) -> None:
        paused = self.state.status in (
            RunStatus.PAUSED_WAITING_TOOL,
            RunStatus.PAUSED_WAITING_APPROVAL,
        )
        if not self.state.ended:
            assert paused == bool(self.state.open_calls)


TestRunMachine = RunMachine.TestCase
