"""What the models promise beyond their types, and what every door can rely on when it reads."""

import json
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET

from toolgate.contracts import (
    executor_v0,
    gateway_v1,
    ingress_v1,
    orchestrator_v1,
    runner_v1,
    tasks_v1,
    wire,
)
from toolgate.core.enums import Decision, Level, LocatorMode

MODULES: Final = [runner_v1, ingress_v1, orchestrator_v1, gateway_v1, executor_v0, tasks_v1]
INVOKE: Final = {
    "type": "agent_invoke",
    "ts": 1,
    "request_id": "r",
    "agent_id": "a",
    "message": {"role": "user", "content": "hi"},
}


@pytest.mark.parametrize(
    ("unix_ms", "text"),
    [
        (0, "1970-01-01T00:00:00.000Z"),
        (1_771_070_400_000, "2026-02-14T12:00:00.000Z"),
        (1_771_070_400_007, "2026-02-14T12:00:00.007Z"),
        (-1, "1969-12-31T23:59:59.999Z"),
    ],
)
def test_a_time_as_text_has_three_digits_of_a_second_and_a_z(unix_ms: int, text: str) -> None:
    assert wire.to_iso_ms(unix_ms) == text
    assert wire.from_iso_ms(text) == unix_ms
    assert msgspec.convert(text, wire.IsoMs) == text


@given(st.integers(0, 253_402_300_799_999))
def test_a_time_survives_being_text(unix_ms: int) -> None:
    assert wire.from_iso_ms(wire.to_iso_ms(unix_ms)) == unix_ms


@pytest.mark.parametrize(
    ("text", "unix_ms"),
    [
        ("2026-02-14", 1_771_027_200_000),
        ("2026-02-14T12:00:00", 1_771_070_400_000),
        ("2026-02-14T13:00:00+01:00", 1_771_070_400_000),
        ("2026-02-14T12:00:00.0079Z", 1_771_070_400_007),
    ],
)
def test_other_forms_of_iso_8601_are_read_too(text: str, unix_ms: int) -> None:
    assert wire.from_iso_ms(text) == unix_ms


@pytest.mark.parametrize(
    "text", ["2026-02-14T12:00:00Z", "2026-02-14T12:00:00.000Z\n", "2026-02-14 12:00:00.000Z", ""]
)
def test_a_time_on_the_wire_has_one_form(text: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(text, wire.IsoMs)


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"ts": "1"}, "$.ts"),
        ({"ts": True}, "$.ts"),
        ({"ts": 1.0}, "$.ts"),
        ({"ts": 2**63}, "$.ts"),
        ({"agent_id": None}, "$.agent_id"),
        ({"agent_id": ""}, "$.agent_id"),
        ({"request_id": "r" * 257}, "$.request_id"),
        ({"message": "hi"}, "$.message"),
        ({"message": {"role": "user"}}, "$.message.content"),
        ({"message": {"role": "user", "content": 5}}, "$.message.content"),
        ({"type": "nonsense"}, "$.type"),
        ({"type": 5}, "$.type"),
    ],
)
def test_an_unreadable_message_names_the_member_however_deep(
    change: dict[str, Any], path: str
) -> None:
    with pytest.raises(msgspec.ValidationError) as error:
        ingress_v1.decode_client(json.dumps(INVOKE | change).encode())
    assert wire.field_of(error.value) == path


def test_a_message_without_a_type_names_the_type() -> None:
    untyped = {key: value for key, value in INVOKE.items() if key != "type"}
    with pytest.raises(msgspec.ValidationError) as error:
        ingress_v1.decode_client(json.dumps(untyped).encode())
    assert wire.field_of(error.value) == "$.type"


def test_an_error_that_is_about_no_member_is_about_the_whole() -> None:
    with pytest.raises(msgspec.ValidationError) as error:
        ingress_v1.decode_client(b"[]")
    assert wire.field_of(error.value) == "$"


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b'"hello"',
        b"{'type':'hello'}",
        b'{"type":"hello"} trailing',
        b'{"type":"cancel_run","ts":1,"run_id":"\xff"}',
        b'{"type":"cancel_run","ts":1,"run_id":"\\ud800"}',
        b'{"type":"cancel_run","ts":NaN,"run_id":"r"}',
        b'{"type":"tool_result","ts":1,"run_id":"r","tool_call_id":"t","ok":true,"result":'
        + b"[" * 20_000
        + b"]" * 20_000
        + b"}",
    ],
)
@pytest.mark.parametrize(
    "decode",
    [
        ingress_v1.decode_client,
        ingress_v1.decode_send,
        orchestrator_v1.decode_event,
        gateway_v1.decode_tool_command,
        gateway_v1.decode_client_frame,
        executor_v0.decode_request,
        runner_v1.decode_request,
    ],
)
def test_whatever_cannot_be_read_raises_one_of_the_unreadable(
    raw: bytes, decode: Callable[[bytes], Any]
) -> None:
    with pytest.raises(wire.UNREADABLE):
        decode(raw)


@pytest.mark.parametrize("spelt", ["approve", "APPROVE", "Approve"])
def test_a_decision_is_read_in_any_case(spelt: str) -> None:
    message = {"type": "approval_decision", "ts": 1, "run_id": "r", "approval_id": "a"}
    raw = json.dumps(message | {"decision": spelt}).encode()
    decided = ingress_v1.decode_client(raw)
    assert isinstance(decided, ingress_v1.ApprovalDecision)
    assert decided.decision is Decision.APPROVE
    body = json.dumps({"decision": spelt}).encode()
    assert orchestrator_v1.decode_decide(body).decision is Decision.APPROVE
    assert msgspec.json.decode(body, type=gateway_v1.ApprovalDecide).decision is Decision.APPROVE


@pytest.mark.parametrize("spelt", ["approved", "", "yes", " approve"])
def test_another_word_is_no_decision(spelt: str) -> None:
    with pytest.raises(msgspec.ValidationError) as error:
        orchestrator_v1.decode_decide(json.dumps({"decision": spelt}).encode())
    assert wire.field_of(error.value) == "$.decision"


@pytest.mark.parametrize("error", ["disk full", {"code": "ENOSPC", "message": "disk full"}])
def test_a_tool_results_error_is_text_or_an_object(error: Any) -> None:
    message = {"type": "tool_result", "ts": 1, "run_id": "r", "tool_call_id": "t", "ok": False}
    raw = json.dumps(message | {"error": error}).encode()
    assert json.loads(ingress_v1.encode(ingress_v1.decode_client(raw))) == message | {
        "error": error
    }


def test_a_result_of_null_is_not_the_same_as_none_at_all() -> None:
    message = {"type": "tool_result", "ts": 1, "run_id": "r", "tool_call_id": "t", "ok": True}
    without = ingress_v1.decode_client(json.dumps(message).encode())
    with_null = ingress_v1.decode_client(json.dumps(message | {"result": None}).encode())
    assert isinstance(without, ingress_v1.ToolResult)
    assert isinstance(with_null, ingress_v1.ToolResult)
    assert (without.result, with_null.result) == (UNSET, None)
    assert "result" in json.loads(ingress_v1.encode(with_null))


def test_a_detail_of_null_is_kept() -> None:
    raw = b'{"type":"state","ts":1,"state":"RUNNING","detail":null}'
    assert ingress_v1.encode(ingress_v1.decode_server(raw)) == raw


def test_what_an_event_does_not_have_is_left_out() -> None:
    delta = ingress_v1.Delta(ts=1, run_id="run_1", seq=4, event_id="e", text="")
    assert json.loads(ingress_v1.encode(delta)) == {
        "type": "delta",
        "ts": 1,
        "run_id": "run_1",
        "seq": 4,
        "event_id": "e",
        "text": "",
    }


def test_a_hello_may_resume_and_its_answer_says_how() -> None:
    hello = ingress_v1.decode_client(
        b'{"type":"hello","ts":1,"user_id":"u","api_key":"","session_id":"s","last_seq":0,"epoch":"e",'
        b'"client_meta":{"app":"web","tools":["camera",{"name":"disk","level":"read"}]}}'
    )
    assert isinstance(hello, ingress_v1.Hello)
    assert (hello.session_id, hello.last_seq, hello.epoch) == ("s", 0, "e")
    assert hello.tools == [
        ingress_v1.ClientTool("camera"),
        ingress_v1.ClientTool("disk", level=Level.READ),
    ]
    ack = ingress_v1.HelloAck(ts=2, session_id="s", resumed=False, seq=0, epoch="e")
    assert json.loads(ingress_v1.encode(ack)) == {
        "type": "hello_ack",
        "ts": 2,
        "session_id": "s",
        "resumed": False,
        "seq": 0,
        "epoch": "e",
    }


@pytest.mark.parametrize("meta", ["web", 3, 1.5, True, None, [1, {"tools": 1}], {"version": [2]}])
def test_client_meta_may_be_anything_and_comes_back_the_same(meta: Any) -> None:
    message = {"type": "hello", "ts": 1, "user_id": "u", "api_key": "k", "client_meta": meta}
    hello = ingress_v1.decode_client(json.dumps(message).encode())
    assert isinstance(hello, ingress_v1.Hello)
    assert hello.tools == []
    assert json.loads(ingress_v1.encode(hello)) == message


def test_a_client_tool_that_cannot_be_read_is_named() -> None:
    message = {"type": "hello", "ts": 1, "user_id": "u", "api_key": "k"}
    raw = json.dumps(message | {"client_meta": {"tools": ["ok", {"name": 5}]}}).encode()
    with pytest.raises(msgspec.ValidationError) as error:
        ingress_v1.decode_client(raw)
    assert wire.field_of(error.value) == "$.client_meta.tools[1].name"


def test_a_member_left_out_has_its_default() -> None:
    assert (wire.given(UNSET, 5), wire.given(0, 5), wire.given(None, 5)) == (5, 0, None)


@pytest.mark.parametrize("name", ["message", "input_message"])
def test_an_invoke_takes_its_message_by_either_name(name: str) -> None:
    body = {"session_id": "s", "agent_id": "a", name: {"role": "user", "content": "hi"}}
    invoke = orchestrator_v1.decode_invoke(json.dumps(body).encode())
    assert invoke.said == orchestrator_v1.Message("user", "hi")
    assert json.loads(orchestrator_v1.encode(invoke)) == body


def test_an_invoke_without_a_message_names_it() -> None:
    with pytest.raises(msgspec.ValidationError) as error:
        orchestrator_v1.decode_invoke(b'{"session_id":"s","agent_id":"a"}')
    assert wire.field_of(error.value) == "$.message"


def test_an_event_whose_type_is_in_its_name_alone_can_be_read() -> None:
    model = orchestrator_v1.EVENTS["delta"]
    assert msgspec.json.decode(b'{"text":"hi"}', type=model) == orchestrator_v1.Delta(text="hi")


@pytest.mark.parametrize(
    "request_id", ["", ".", "..", "a/b", "a..b", "a\n", "a\x00", "é", "a" * 129, "a b"]
)
def test_a_request_id_that_makes_no_path_is_refused(request_id: str) -> None:
    body = {"request_id": request_id, "tool_id": "echo", "args": {}}
    with pytest.raises(msgspec.ValidationError) as error:
        executor_v0.decode_request(json.dumps(body).encode())
    assert wire.field_of(error.value) == "$.request_id"


@pytest.mark.parametrize("ref", ["/etc/passwd", "requests/../x", "a" * 513, "", "a?b", "a\n"])
def test_a_ref_that_could_leave_the_evidence_is_refused(ref: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"ref": ref}, executor_v0.ArtifactQuery)


@pytest.mark.parametrize("path", ["/tmp/x", "../x", "a/../b", "a/..", "a\\b", ""])
def test_a_local_path_that_could_leave_the_project_is_refused(path: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(path, executor_v0.LocalPath)


DENIED: Final = {
    "ok": False,
    "policy_check": {"decision": "deny", "reason": "no"},
    "evidence_refs": ["requests/r/request.json"],
    "engine_ref": "e",
}


@pytest.mark.parametrize(
    "change",
    [
        {"ok": True},
        {"tool_result": {"exit_code": 0, "stdout": "", "stderr": ""}},
        {"evidence_refs": []},
    ],
)
def test_a_deny_that_ran_or_left_no_evidence_cannot_be_built(change: dict[str, Any]) -> None:
    executor_v0.decode_response(json.dumps(DENIED).encode())
    with pytest.raises(msgspec.ValidationError):
        executor_v0.decode_response(json.dumps(DENIED | change).encode())


RUN: Final = {
    "runId": "r",
    "templateId": "t",
    "sessionId": "s",
    "ownsSession": True,
    "progress": {"doneSteps": 0, "totalSteps": 1},
    "metrics": {"elapsedMs": 0},
    "artifactIds": [],
    "createdAt": 1,
    "updatedAt": 1,
}
WENT_WRONG: Final = {"errorCode": "RUN_TIMEOUT", "message": "too slow"}


@pytest.mark.parametrize(
    ("status", "result", "error", "legal"),
    [
        ("queued", None, None, True),
        ("queued", {}, None, False),
        ("running", None, WENT_WRONG, False),
        ("succeeded", {"x": 1}, None, True),
        ("partial_success", {"x": 1}, None, True),
        ("failed", None, WENT_WRONG, True),
        ("failed", None, None, False),
        ("canceled", None, None, False),
    ],
)
def test_a_browser_run_has_a_result_or_an_error_as_its_status_says(
    status: str, result: Any, error: Any, legal: bool
) -> None:
    run = RUN | {"status": status, "result": result, "error": error}
    raw = json.dumps(run).encode()
    if legal:
        assert json.loads(msgspec.json.encode(tasks_v1.decode_run(raw))) == run
    else:
        with pytest.raises(msgspec.ValidationError):
            tasks_v1.decode_run(raw)


@pytest.mark.parametrize("timeout_ms", [0, 600_001, 1.5, "x", None, True])
def test_a_time_out_outside_the_contract_is_refused(timeout_ms: Any) -> None:
    body = {"templateId": "t", "options": {"timeoutMs": timeout_ms}}
    with pytest.raises(msgspec.ValidationError) as error:
        msgspec.convert(body, tasks_v1.RunTaskTemplate)
    assert wire.field_of(error.value) == "$.options.timeoutMs"
    assert msgspec.convert(body, tasks_v1.UncheckedRunTaskTemplate).template_id == "t"


def test_a_password_is_not_in_a_repr() -> None:
    login = tasks_v1.LoginKeepSession(
        start_url="http://x",
        credentials=tasks_v1.Credentials("ann", "s3cret"),
        fields=tasks_v1.LoginFields(LocatorMode.SEMANTIC),
    )
    assert "s3cret" not in repr(login)


@pytest.mark.parametrize(
    "payload",
    [{}, {"name": "a", "args": {}, "toolCalls": [{"id": "1", "name": "a", "arguments": {}}]}],
)
def test_a_tool_command_is_one_call_or_several_not_both(payload: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError) as error:
        gateway_v1.decode_tool_command(json.dumps({"payload": payload}).encode())
    assert wire.field_of(error.value) == "$.payload"


def test_an_upsert_tells_a_member_left_out_from_one_taken_away() -> None:
    upsert = msgspec.convert({"authToken": None}, gateway_v1.TargetUpsert)
    assert (upsert.auth_token, upsert.endpoint) == (None, UNSET)
    assert json.loads(msgspec.json.encode(upsert)) == {"authToken": None}


def test_the_audits_query_spells_from_as_the_wire_does() -> None:
    query = msgspec.convert(
        {"from": "2026-02-14T12:00:00.000Z", "limit": "1"}, gateway_v1.AuditQuery, strict=False
    )
    assert (query.from_, query.limit) == ("2026-02-14T12:00:00.000Z", 1)


@pytest.mark.parametrize("module", MODULES)
def test_a_json_schema_can_be_drawn_from_every_model(module: ModuleType) -> None:
    models = [
        value
        for value in vars(module).values()
        if isinstance(value, type)
        and issubclass(value, wire.Wire)
        and value.__module__ == module.__name__
    ]
    schemas, components = msgspec.json.schema_components(models)
    assert len(list(schemas)) == len(models)
    assert len(components) >= len(models)
