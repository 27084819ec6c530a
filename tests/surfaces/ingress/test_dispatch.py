"""A client's command as a call of the orchestrator, and its failures as errors."""

from typing import Any

import pytest

from tests.support.people import by
from toolgate.contracts import ingress_v1 as wire
from toolgate.contracts.ingress_v1 import ErrorCode
from toolgate.core import errors
from toolgate.core.enums import Decision
from toolgate.runs.orchestrator import Accepted, Declined, UnknownAgent
from toolgate.surfaces.ingress.dispatch import CODES, client_tools, dispatch
from toolgate.testing.clock import FakeClock


class Recorder:
    """An orchestrator that remembers, or fails as told."""

    def __init__(self, failure: Exception | None = None) -> None:
        self.failure = failure
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []

    def __getattr__(self, name: str) -> Any:
        async def call(*args: Any, **kwargs: Any) -> str | Accepted:
            self.calls.append((name, args, kwargs))
            if self.failure is not None:
                raise self.failure
            return "run_1" if name == "invoke" else Accepted("run_1", "RUNNING")

        return call


COMMANDS: list[tuple[Any, str]] = [
    (wire.AgentInvoke("echo", wire.Message("user", "x"), "q"), "invoke"),
    (wire.ToolResult("tc_1", ok=True, run_id="run_1", result=5), "submit_result"),
    (wire.ApprovalDecision("ap_1", Decision.REJECT, "run_1"), "decide_approval"),
    (wire.CancelRun("run_1"), "cancel"),
]


CONFIRMED: dict[str, Any] = {
    "submit_result": {"tool_call_id": "tc_1", "accepted": True},
    "decide_approval": {"approval_id": "ap_1", "decision": "reject"},
    "cancel": {},
}


@pytest.mark.parametrize(("command", "name"), COMMANDS)
async def test_each_command_is_one_call_in_the_name_of_its_session(command: Any, name: str) -> None:
    orchestrator = Recorder()
    answer = await dispatch(
        command, orchestrator, session_id="s", identity=by("u"), clock=FakeClock()
    )
    if name == "invoke":
        assert answer == "run_1"
    else:
        assert isinstance(answer, wire.State)
        assert (answer.run_id, answer.state, answer.detail) == ("run_1", "RUNNING", CONFIRMED[name])
    ((called, args, kwargs),) = orchestrator.calls
    assert called == name
    session = args[0].session_id if name == "invoke" else kwargs["session_id"]
    assert session == "s"


@pytest.mark.requirement(
    "001/codes/internal-error", "001/codes/orchestrator-error", "001/messages/error-echoes-ids"
)
@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (errors.NotFound("run", "run_1"), ErrorCode.INVALID_MESSAGE),
        (errors.Conflict("too late"), ErrorCode.INVALID_MESSAGE),
        (errors.Unavailable("away"), ErrorCode.ORCHESTRATOR_ERROR),
        (Declined("the orchestrator answered 409"), ErrorCode.ORCHESTRATOR_ERROR),
        (UnknownAgent("nobody"), ErrorCode.ORCHESTRATOR_ERROR),
        (errors.Damaged("/home/secret/journal.db is broken"), ErrorCode.ORCHESTRATOR_ERROR),
        (errors.ToolgateError("inside"), ErrorCode.INTERNAL_ERROR),
        (
            RecursionError("inside, as of a result that is nested too deep"),
            ErrorCode.INTERNAL_ERROR,
        ),
    ],
)
async def test_a_failure_is_an_error_with_the_ids_it_is_about(
    failure: Exception, code: ErrorCode
) -> None:
    command = wire.CancelRun("run_1", request_id="q")
    answer = await dispatch(
        command, Recorder(failure), session_id="s", identity=by("u"), clock=FakeClock()
    )
    assert isinstance(answer, wire.Error)
    assert (answer.code, answer.run_id, answer.request_id) == (code, "run_1", "q")
    assert "secret" not in answer.message
    assert "inside" not in answer.message


async def test_an_unknown_agent_is_named_as_a_reason_that_no_retry_mends() -> None:
    command = wire.AgentInvoke("nobody", wire.Message("user", "x"), "q")
    failure = UnknownAgent("nobody")
    answer = await dispatch(
        command, Recorder(failure), session_id="s", identity=by("u"), clock=FakeClock()
    )
    assert isinstance(answer, wire.Error)
    assert answer.detail == {"reason": "unknown_agent", "retry": False}


def test_every_error_of_ours_has_a_code() -> None:
    kinds = [
        one
        for one in vars(errors).values()
        if isinstance(one, type) and one.__module__ == errors.__name__
    ]
    for kind in kinds:
        assert any(parent in CODES for parent in kind.__mro__), kind


def test_tools_are_told_by_name_or_in_full() -> None:
    hello = wire.Hello("u", "k", client_meta=wire.ClientMeta(tools=["a", wire.ClientTool("b")]))
    tools = client_tools(hello)
    assert tools is not None
    assert [tool.name for tool in tools] == ["a", "b"]
    assert client_tools(wire.Hello("u", "k")) is None
