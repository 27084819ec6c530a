"""The gateway's end against runners that are good, bad, slow, dead and malicious."""

import asyncio
import datetime
import gzip
import ipaddress
import json
import ssl
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519

from tests.support.runner import Answer, FakeRunner, whole
from toolgate.core.enums import Outcome, TargetKind
from toolgate.core.system_clock import SystemClock
from toolgate.core.tools import Caller, ToolOutput, ToolRequest
from toolgate.testing.clock import FakeClock
from toolgate.tools.engines.remote_runner import (
    AT_ONCE,
    HEALTH_EVERY_S,
    IDLE_SECONDS,
    LARGEST_HEALTH,
    MOST_UPDATES,
    Delta,
    DockerRunners,
    read_answer,
)
from toolgate.tools.targets.targets import Target

FAILED = "TOOL_EXEC_FAILED"
OK = whole({"ok": True, "output": "fine"})
BOUND = 10.0


def a_target(url: str, **members: Any) -> Target:
    known: dict[str, Any] = {"workspace": "w_1", "endpoint": url} | members
    return Target("target_1", "t_1", kind=TargetKind.DOCKER_RUNNER, **known)


def a_call(**members: Any) -> ToolRequest:
    known: dict[str, Any] = {"caller": Caller("t_1", "w_1", session="s_1"), "run_id": "run_1"}
    return ToolRequest("tool_1", "bash.exec", {"cmd": "printf hello"}, **(known | members))


def error_of(output: ToolOutput) -> Mapping[str, Any]:
    assert isinstance(output.data, dict)
    error = output.data["error"]
    assert isinstance(error, dict)
    return error


@pytest.fixture
async def runners() -> AsyncIterator[DockerRunners]:
    made = DockerRunners(clock=SystemClock(), largest_answer=200_000)
    yield made
    await made.close()


async def ask(
    runners: DockerRunners, answer: Answer, *, updates: list[str] | None = None, **members: Any
) -> ToolOutput:
    async with FakeRunner(answer) as runner:
        engine = runners.engine(a_target(runner.url, **members))
        kept = [] if updates is None else updates
        return await asyncio.wait_for(engine.run(a_call(), update=kept.append), BOUND)


async def exchange(runners: DockerRunners, call: ToolRequest, **members: Any) -> Any:
    async with FakeRunner(OK) as runner:
        await runners.engine(a_target(runner.url, **members)).run(call)
        return runner.asked[0]


@pytest.mark.requirement("000/request/post")
@pytest.mark.requirement("000/request/content-type")
@pytest.mark.requirement("000/request/body-shape")
@pytest.mark.requirement("000/request/camel-case")
@pytest.mark.requirement("000/request/call-name")
@pytest.mark.requirement("000/request/call-args-object")
@pytest.mark.requirement("000/request/ctx-ids")
@pytest.mark.requirement("000/request/ctx-tool-call-id")
@pytest.mark.requirement("000/request/target-snapshot")
@pytest.mark.requirement("000/endpoint/from-target")
async def test_the_request_is_the_seed_s(runners: DockerRunners) -> None:
    asked = await exchange(runners, a_call())
    assert (asked.method, asked.target) == ("POST", "/execute")
    assert asked.headers["content-type"] == "application/json"
    assert asked.body == {
        "call": {"name": "bash.exec", "args": {"cmd": "printf hello"}},
        "ctx": {
            "runId": "run_1",
            "sessionId": "s_1",
            "runtimeMode": "local",
            "toolCallId": "tool_1",
        },
        "target": {
            "targetId": "target_1",
            "kind": "docker-runner",
            "tenantId": "t_1",
            "workspaceId": "w_1",
        },
    }


@pytest.mark.requirement("000/request/target-no-workspace")
async def test_a_tenant_s_target_and_a_call_without_id_leave_members_out(
    runners: DockerRunners,
) -> None:
    call = ToolRequest("", "echo", {}, Caller("t_1", session="s_1"), run_id="run_1")
    asked = await exchange(runners, call, workspace=None)
    assert "workspaceId" not in asked.body["target"]
    assert "toolCallId" not in asked.body["ctx"]


@pytest.mark.requirement("000/request/bearer-when-token")
@pytest.mark.requirement("000/request/no-bearer-without-token")
async def test_the_bearer_is_sent_where_there_is_a_token(runners: DockerRunners) -> None:
    with_token = await exchange(runners, a_call(), auth_token="abc")
    without = await exchange(runners, a_call())
    assert with_token.headers["authorization"] == "Bearer abc"
    assert "authorization" not in without.headers


@pytest.mark.requirement("000/endpoint/trimmed")
@pytest.mark.requirement("000/endpoint/blank-uses-config")
@pytest.mark.requirement("000/endpoint/query-kept")
async def test_the_endpoint_is_trimmed_falls_back_to_config_and_keeps_its_query(
    runners: DockerRunners,
) -> None:
    async with FakeRunner(OK) as runner:
        url = f"{runner.url}?zone=a%20b&x=1"
        await runners.engine(a_target(f"  {url}\n")).run(a_call())
        await runners.engine(a_target(" ", config={"endpoint": f" {url} "})).run(a_call())
        assert [asked.target for asked in runner.asked] == ["/execute?zone=a%20b&x=1"] * 2


@pytest.mark.requirement("000/endpoint/missing-fails")
@pytest.mark.requirement("000/endpoint/missing-makes-no-call")
@pytest.mark.parametrize("endpoint", ["", "  ", "ftp://x/", "not a url", "http://", "unix:///x"])
async def test_without_a_usable_endpoint_nothing_starts(
    runners: DockerRunners, endpoint: str
) -> None:
    outputs = [await runners.engine(a_target(endpoint)).run(a_call()) for _ in range(7)]
    assert {error_of(output)["code"] for output in outputs} == {FAILED}
    assert {output.outcome for output in outputs} == {Outcome.NOT_STARTED}
    (message,) = {error_of(output)["message"] for output in outputs}  # however often it is tried
    assert "endpoint" in message


def certificate(folder: Path) -> Path:
    """One for 127.0.0.1 that signs for itself, with its key, in one file."""
    key = ed25519.Ed25519PrivateKey.generate()
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "runner")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), True)
        .sign(key, None)
    )
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    path = folder / "runner.pem"
    path.write_bytes(made.public_bytes(serialization.Encoding.PEM) + private)
    return path


@pytest.mark.requirement("000/endpoint/http-and-https")
async def test_https_is_spoken_with_a_runner_that_is_trusted_and_with_no_other(
    runners: DockerRunners, tmp_path: Path
) -> None:
    path = certificate(tmp_path)
    serving = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    serving.load_cert_chain(path)
    trusting = DockerRunners(clock=SystemClock(), tls=ssl.create_default_context(cafile=path))
    async with FakeRunner(OK, tls=serving) as runner:
        assert runner.url.startswith("https://")
        assert (await trusting.engine(a_target(runner.url)).run(a_call())).stdout == "fine"
        stranger = await runners.engine(a_target(runner.url)).run(a_call())
        assert stranger.outcome is Outcome.NOT_STARTED
        assert len(runner.asked) == 1
    await trusting.close()


@pytest.mark.requirement("000/answer/direct-success")
@pytest.mark.requirement("000/answer/2xx-parsed")
@pytest.mark.parametrize("status", [200, 201, 202, 299])
async def test_any_2xx_is_read_as_a_result(runners: DockerRunners, status: int) -> None:
    output = await ask(runners, whole({"ok": True, "output": "done"}, status=status))
    assert (output.ok, output.stdout, output.outcome) == (True, "done", Outcome.EXECUTED)


@pytest.mark.requirement("000/answer/direct-failure")
@pytest.mark.requirement("000/answer/error-code-kept")
@pytest.mark.requirement("000/answer/error-code-default")
@pytest.mark.requirement("000/answer/no-policy-from-runner")
@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        ({"code": "DISK_FULL", "message": "no room"}, "DISK_FULL", "no room"),
        ({"message": "no code"}, FAILED, "no code"),
        ({"code": 7, "message": 8}, FAILED, ""),
        ({"code": "POLICY_DENIED", "message": "says who"}, FAILED, "says who"),
        ("text", FAILED, ""),
        (None, FAILED, ""),
        ([], FAILED, ""),
    ],
)
async def test_a_failure_keeps_its_code_unless_it_is_not_the_runner_s_to_say(
    runners: DockerRunners, error: Any, code: str, message: str
) -> None:
    output = await ask(runners, whole({"ok": False, "error": error}))
    assert error_of(output) == {"code": code, "message": message}
    assert output.exit_code == 1
    assert output.outcome is Outcome.MAY_HAVE_EXECUTED


async def test_a_failure_of_our_own_runner_keeps_what_the_tool_said(runners: DockerRunners) -> None:
    told = {
        "exitCode": 3,
        "stdout": "a",
        "stderr": "b",
        "outcome": "executed",
        "isolation": "bwrap",
    }
    error = {"code": FAILED, "message": "exit code 3"}
    output = await ask(runners, whole({"result": {"ok": False, "error": error, **told}}))
    assert (output.exit_code, output.stdout, output.stderr) == (3, "a", "b")
    assert output.outcome is Outcome.EXECUTED
    assert output.isolation == "runner:bwrap"


@pytest.mark.parametrize(
    "lie", [{"exitCode": 0}, {"exitCode": "3"}, {"exitCode": True}, {"exitCode": 1e9}]
)
async def test_a_failure_never_looks_like_a_success(
    runners: DockerRunners, lie: dict[str, Any]
) -> None:
    output = await ask(runners, whole({"ok": False, "outcome": ["executed"], **lie}))
    assert output.exit_code == 1


@pytest.mark.requirement("000/answer/wrapped")
@pytest.mark.requirement("000/updates/forwarded")
@pytest.mark.requirement("000/updates/in-order-before-result")
@pytest.mark.requirement("000/updates/plain-string")
@pytest.mark.requirement("000/updates/without-delta-skipped")
async def test_updates_are_forwarded_in_order(runners: DockerRunners) -> None:
    updates: list[str] = []
    entries = [
        {"delta": "1", "at": "2026-02-14T12:00:00.000Z"},
        "2",
        {"delta": 3},
        {},
        None,
        4,
        {"delta": "5"},
    ]
    answer = whole({"updates": entries, "result": {"ok": True, "output": "end"}})
    output = await ask(runners, answer, updates=updates)
    assert updates == ["1", "2", "5"]
    assert output.stdout == "end"


@pytest.mark.requirement("000/updates/at-kept")
@pytest.mark.requirement("000/updates/at-defaults-to-now")
def test_an_update_keeps_its_time_or_gets_the_present_one() -> None:
    body = {"updates": [{"delta": "a", "at": "then"}, {"delta": "b", "at": 5}, "c"], "ok": True}
    answer = read_answer(json.dumps(body).encode(), now="now", target=a_target("http://x"))
    assert answer.updates == (Delta("a", "then"), Delta("b", "now"), Delta("c", "now"))


@pytest.mark.parametrize("ok", [True, False])
def test_no_half_of_a_token_is_left_of_what_a_runner_calls_its_isolation(ok: bool) -> None:
    token = "a-token-that-is-longer-than-the-name-of-an-isolation"
    body = json.dumps({"ok": ok, "isolation": f"bwrap {token}"}).encode()
    target = a_target("http://x", auth_token=token)
    assert read_answer(body, now="now", target=target).output.isolation == "runner:bwrap ***"


@pytest.mark.requirement("000/answer/wrapped-without-updates")
@pytest.mark.requirement("000/answer/result-wins")
@pytest.mark.requirement("000/answer/output-absent")
@pytest.mark.requirement("000/answer/output-from-updates")
@pytest.mark.requirement("000/answer/unknown-members")
@pytest.mark.requirement("000/updates/not-an-array")
@pytest.mark.parametrize(
    ("body", "output"),
    [
        ({"result": {"ok": True, "output": "in"}}, "in"),
        ({"result": {"ok": True, "output": "in"}, "ok": False, "output": "out"}, "in"),
        ({"result": "no object", "ok": True, "output": "out"}, "out"),
        ({"ok": True}, ""),
        ({"ok": True, "updates": ["a", {"delta": "b"}]}, "ab"),
        ({"ok": True, "output": "said", "updates": ["a"]}, "said"),
        ({"ok": True, "output": "x", "updates": {"delta": "a"}}, "x"),
        ({"ok": True, "output": "x", "more": {"deep": [1]}, "exitCode": 9}, "x"),
    ],
)
async def test_both_shapes_are_understood(
    runners: DockerRunners, body: dict[str, Any], output: str
) -> None:
    done = await ask(runners, whole(body))
    assert (done.ok, done.stdout) == (True, output)


@pytest.mark.requirement("000/answer/not-json")
@pytest.mark.requirement("000/answer/not-an-object")
@pytest.mark.requirement("000/answer/wrong-structure")
@pytest.mark.requirement("000/answer/ok-must-be-boolean")
@pytest.mark.requirement("000/answer/output-must-be-string")
@pytest.mark.requirement("000/answer/never-raises")
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"not json",
        b"[1, 2]",
        b'"text"',
        b"null",
        b"\xff\xfe",
        b'{"ok": true',
        b"[" * 150_000,
        b'{"ok": "true"}',
        b'{"ok": 1}',
        b'{"ok": null}',
        b"{}",
        b'{"result": {}, "ok": true}',
        b'{"ok": true, "output": 5}',
        b'{"ok": true, "output": null}',
        b'{"ok": true, "output": ["x"]}',
        b'{"ok": true, "output": "\xff"}',
    ],
)
async def test_an_answer_that_is_none_is_a_failure_that_may_have_run(
    runners: DockerRunners, body: bytes
) -> None:
    output = await ask(runners, whole(body))
    assert error_of(output)["code"] == FAILED
    assert output.outcome is Outcome.MAY_HAVE_EXECUTED


async def test_an_unreadable_body_is_quoted_for_120_characters(runners: DockerRunners) -> None:
    output = await ask(runners, whole(b"<html>\n\n   " + b"y" * 500))
    assert "<html> " + "y" * 113 in error_of(output)["message"]
    assert "y" * 114 not in error_of(output)["message"]


@pytest.mark.requirement("000/answer/non-2xx")
@pytest.mark.requirement("000/answer/non-2xx-message")
@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        (400, Outcome.NOT_STARTED),
        (401, Outcome.NOT_STARTED),
        (404, Outcome.NOT_STARTED),
        (500, Outcome.MAY_HAVE_EXECUTED),
        (502, Outcome.MAY_HAVE_EXECUTED),
        (199 + 400, Outcome.MAY_HAVE_EXECUTED),
    ],
)
async def test_other_statuses_fail_and_quote_240_characters(
    runners: DockerRunners, status: int, outcome: Outcome
) -> None:
    output = await ask(runners, whole(b"oh\n\t no " + b"z" * 500, status=status))
    message = error_of(output)["message"]
    assert error_of(output)["code"] == FAILED
    assert str(status) in message
    assert "oh no " + "z" * 234 in message
    assert "z" * 235 not in message
    assert output.outcome is outcome


@pytest.mark.requirement("000/request/no-redirects")
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_redirects_are_never_followed(runners: DockerRunners, status: int) -> None:
    async with FakeRunner(OK) as elsewhere:
        output = await ask(runners, whole({"ok": True}, status=status, location=elsewhere.url))
        assert error_of(output)["code"] == FAILED
        assert elsewhere.asked == []


async def hang(_writer: asyncio.StreamWriter) -> None:
    await asyncio.sleep(60)


async def drip(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n")
    while True:
        writer.write(b" ")
        await asyncio.sleep(0.02)


async def drip_headers(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n")
    while True:
        writer.write(b"x: y\r\n")
        await asyncio.sleep(0.02)


@pytest.mark.requirement("000/timeout/fails")
@pytest.mark.requirement("000/timeout/override")
@pytest.mark.requirement("000/timeout/total-deadline")
@pytest.mark.parametrize("answer", [hang, drip, drip_headers])
async def test_the_deadline_is_over_the_whole_exchange(
    runners: DockerRunners, answer: Answer
) -> None:
    output = await ask(runners, answer, config={"timeoutMs": 200})
    assert error_of(output)["code"] == FAILED
    assert output.outcome is Outcome.MAY_HAVE_EXECUTED


async def endless(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000000\r\n\r\n")
    while True:
        writer.write(b"x" * 65536)
        await writer.drain()


async def endless_lines(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/x-ndjson\r\n\r\n")
    while True:
        writer.write(b'{"delta":"xxxxxxxxxxxxxxxxxxxxxxxx"}\n' * 500)
        await writer.drain()


@pytest.mark.parametrize("answer", [endless, endless_lines])
async def test_an_answer_without_end_is_cut_off(runners: DockerRunners, answer: Answer) -> None:
    output = await ask(runners, answer)
    assert "too large" in error_of(output)["message"]
    assert output.outcome is Outcome.MAY_HAVE_EXECUTED


async def test_a_compressed_answer_is_not_unfolded(runners: DockerRunners) -> None:
    bomb = gzip.compress(b'{"ok": true, "output": "' + b"x" * 50_000_000 + b'"}')
    head = f"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: {len(bomb)}\r\n\r\n"

    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(head.encode() + bomb)

    async with FakeRunner(answer) as runner:
        output = await runners.engine(a_target(runner.url)).run(a_call())
        assert runner.asked[0].headers["accept-encoding"] == "identity"
    assert error_of(output)["code"] == FAILED
    assert len(str(output)) < 5_000


async def break_off(writer: asyncio.StreamWriter) -> None:
    writer.write(b'HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{"ok": tr')
    await writer.drain()
    writer.transport.abort()


async def no_http(writer: asyncio.StreamWriter) -> None:
    writer.write(b"SSH-2.0-OpenSSH_9.2\r\n")


async def hang_up(writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()


@pytest.mark.requirement("000/failure/connection")
@pytest.mark.parametrize("answer", [break_off, no_http, hang_up])
async def test_a_broken_connection_may_have_run_it(runners: DockerRunners, answer: Answer) -> None:
    output = await ask(runners, answer)
    assert error_of(output)["code"] == FAILED
    assert output.outcome is Outcome.MAY_HAVE_EXECUTED


async def test_a_dead_runner_has_not_started_anything(runners: DockerRunners) -> None:
    async with FakeRunner(OK) as runner:
        url = runner.url
    output = await runners.engine(a_target(url)).run(a_call())
    assert error_of(output)["code"] == FAILED
    assert output.outcome is Outcome.NOT_STARTED


async def streamed(writer: asyncio.StreamWriter) -> None:
    writer.write(
        b"HTTP/1.1 200 OK\r\ncontent-type: application/x-ndjson\r\nconnection: close\r\n\r\n"
    )
    for piece in (
        b'{"delta":"a"}\n{"del',
        b'ta":"b"}\n\n',
        b'"skipped":1}'[:0],
        b'{"nothing":1}\n',
    ):
        writer.write(piece)
        await writer.drain()
        await asyncio.sleep(0.01)
    writer.write(b'{"result":{"ok":true,"output":"ab"}}\n{"delta":"too late"}\n')
    await writer.drain()
    writer.close()


async def test_lines_are_forwarded_as_they_come(runners: DockerRunners) -> None:
    updates: list[str] = []
    output = await ask(runners, streamed, updates=updates)
    assert updates == ["a", "b"]
    assert output.stdout == "ab"


async def lines_without_result(writer: asyncio.StreamWriter) -> None:
    writer.write(
        b"HTTP/1.1 200 OK\r\ncontent-type: application/x-ndjson\r\nconnection: close\r\n\r\n"
    )
    writer.write(b'{"delta":"a"}\n')
    await writer.drain()
    writer.close()


async def test_a_stream_that_ends_without_a_result_is_a_failure(runners: DockerRunners) -> None:
    updates: list[str] = []
    output = await ask(runners, lines_without_result, updates=updates)
    assert updates == ["a"]
    assert error_of(output)["code"] == FAILED
    assert output.outcome is Outcome.MAY_HAVE_EXECUTED


@pytest.mark.requirement("000/request/cancel-aborts")
async def test_cancelling_the_call_hangs_up_and_a_late_answer_goes_nowhere(
    runners: DockerRunners,
) -> None:
    updates: list[str] = []
    async with FakeRunner(hang) as runner:
        task = asyncio.create_task(
            runners.engine(a_target(runner.url)).run(a_call(), update=updates.append)
        )
        await asyncio.wait_for(runner.heard.wait(), BOUND)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(runner.gone.wait(), BOUND)
        runner.answer = OK
        again = await runners.engine(a_target(runner.url)).run(a_call())
    assert updates == []
    assert again.stdout == "fine"


async def test_connections_are_reused(runners: DockerRunners) -> None:
    async with FakeRunner(OK) as runner:
        for _ in range(5):
            assert (await runners.engine(a_target(runner.url)).run(a_call())).ok
        assert runner.connections == 1


async def test_a_connection_that_its_runner_may_be_closing_is_not_used_again() -> None:
    """What is sent on it would be lost, and nobody could say whether it was run."""
    assert uvicorn.Config("").timeout_keep_alive > IDLE_SECONDS  # as servers have it unless told
    runners = DockerRunners(clock=SystemClock(), idle_seconds=0.05)
    async with FakeRunner(OK) as runner:
        assert (await runners.engine(a_target(runner.url)).run(a_call())).ok
        await asyncio.wait_for(runner.gone.wait(), BOUND)
        assert (await runners.engine(a_target(runner.url)).run(a_call())).ok
        assert runner.connections == 2
    await runners.close()


@pytest.mark.requirement("000/failure/isolated-targets")
async def test_a_runner_that_does_not_answer_is_left_alone_and_no_other_is() -> None:
    clock = FakeClock()
    runners = DockerRunners(clock=clock)
    async with FakeRunner(hang_up) as bad, FakeRunner(OK) as good:
        broken = a_target(bad.url)
        healthy = Target("target_2", "t_1", None, TargetKind.DOCKER_RUNNER, good.url)
        for _ in range(5):
            await runners.engine(broken).run(a_call())
        reached = len(bad.asked)
        output = await runners.engine(broken).run(a_call())
        assert len(bad.asked) == reached
        assert output.outcome is Outcome.NOT_STARTED
        assert (await runners.engine(healthy).run(a_call())).ok
        bad.answer = OK
        clock.advance(2_000)
        assert (await runners.engine(broken).run(a_call())).ok
        assert (await runners.engine(broken).run(a_call())).ok
    await runners.close()


async def test_two_gateways_may_use_one_runner(runners: DockerRunners) -> None:
    other = DockerRunners(clock=SystemClock())
    async with FakeRunner(OK) as runner:
        outputs = await asyncio.gather(
            *(each.engine(a_target(runner.url)).run(a_call()) for each in (runners, other) * 8)
        )
    await other.close()
    assert all(output.ok for output in outputs)


async def test_a_runner_that_sends_the_token_back_does_not_get_it_into_a_message(
    runners: DockerRunners,
) -> None:
    token = "a-very-secret-token"
    for answer in (
        whole(token.encode(), status=500),
        whole(f"no json {token}".encode()),
        whole({"ok": False, "error": {"message": f"got {token}"}, "stderr": token}),
    ):
        output = await ask(runners, answer, auth_token=token)
        assert token not in repr(output)


@pytest.mark.requirement("000/health/no-health")
async def test_health_says_what_is_wrong_and_never_raises(runners: DockerRunners) -> None:
    """A body of another form, or 404, is a runner that is well; only its calls tell more."""
    body = {"ok": True, "backend": "bwrap", "usage": {"cpuPercent": 1}}
    async with FakeRunner(whole(body)) as runner:
        for number, (answer, is_well) in enumerate(
            (
                (whole(body), True),
                (whole(b"no such page", status=404, content_type="text/plain"), True),
                (whole(b"fine", content_type="text/plain"), True),
                (whole({"status": "up"}), True),
                (whole({**body, "ok": False}), False),
                (whole(b"\xff", status=500), False),
                (whole(b"[" * 60_000, status=500), False),
            )
        ):
            runner.answer = answer
            health = await runners.health(a_target(runner.url, version=number))
            assert health["ok"] is is_well, number
        assert {each.target for each in runner.asked} == {"/health"}
        url = runner.url
    assert (await runners.health(a_target(url, version=100)))["ok"] is False
    assert (await runners.health(a_target("nonsense")))["ok"] is False


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("/execute", "/health"),
        ("/lab/one%20two/execute?zone=a", "/lab/one%20two/health"),
        ("/lab/run", "/lab/health"),
        ("/other", "/health"),
        ("", "/health"),
    ],
)
async def test_health_is_asked_for_beside_the_endpoint(
    runners: DockerRunners, path: str, asked: str
) -> None:
    """As behind a proxy that serves several runners, each under a path of its own."""
    async with FakeRunner(whole({"ok": True})) as runner:
        url = runner.url.removesuffix("/execute") + path
        assert (await runners.health(a_target(url)))["ok"] is True
        assert [each.target for each in runner.asked] == [asked]


def in_pieces(body: bytes, *, first: int, status: int = 200) -> Answer:
    async def answer(writer: asyncio.StreamWriter) -> None:
        head = f"HTTP/1.1 {status} X\r\ncontent-type: text/plain\r\ncontent-length: {len(body)}"
        writer.write(head.encode() + b"\r\n\r\n" + body[:first])
        await writer.drain()
        await asyncio.sleep(0.05)  # time for the other side to take the first piece for all
        writer.write(body[first:])

    return answer


async def test_health_that_comes_in_pieces_is_read_to_its_end(runners: DockerRunners) -> None:
    body = json.dumps({"ok": True, "backend": "bwrap"}).encode()
    async with FakeRunner(in_pieces(body, first=5)) as runner:
        health = await runners.health(a_target(runner.url))
        assert (health["ok"], health["backend"]) == (True, "bwrap")


async def test_a_proxy_that_compresses_what_may_be_does_not_hide_what_a_runner_says_of_itself(
    runners: DockerRunners,
) -> None:
    told = {"ok": True, "backend": "bwrap", "noLinks": True}
    packed = whole(gzip.compress(json.dumps(told).encode()))
    async with FakeRunner(OK) as runner:

        async def health(writer: asyncio.StreamWriter) -> None:
            wanted = runner.asked[-1].headers["accept-encoding"]
            await (packed if "gzip" in wanted else whole(told))(writer)

        runner.answer = by_path(runner, health=health)
        target = a_target(runner.url)
        assert (await runners.health(target))["backend"] == "bwrap"
        await runners.engine(target).run(WITHOUT_LINKS)
        assert runner.asked[-1].body["call"]["noLinks"] is True


async def test_a_refusal_that_comes_in_pieces_is_quoted_as_a_whole_and_without_its_token(
    runners: DockerRunners,
) -> None:
    token = "a-token-that-nobody-may-see"
    body = f"no: {token} is not for you".encode()
    output = await ask(runners, in_pieces(body, first=12, status=500), auth_token=token)
    assert error_of(output)["message"].endswith("500: no: *** is not for you")


async def test_a_refusal_without_end_says_at_least_its_status(runners: DockerRunners) -> None:
    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 503 X\r\ncontent-length: 100\r\n\r\n")
        await asyncio.sleep(60)

    async with FakeRunner(answer) as runner:
        output = await asyncio.wait_for(runners.engine(a_target(runner.url)).run(a_call()), BOUND)
    assert "503" in error_of(output)["message"]


@pytest.mark.parametrize("status", [200, 500])
async def test_not_even_a_part_of_its_token_comes_back_where_an_answer_is_cut(
    runners: DockerRunners, status: int
) -> None:
    token = "a-token-that-nobody-may-see"
    for padding in range(90, 250, 5):
        body = b"x" * padding + token.encode() * 3
        output = await ask(runners, whole(body, status=status), auth_token=token)
        assert "a-token" not in error_of(output)["message"]


WITHOUT_LINKS = a_call(no_links=True)


def by_path(runner: FakeRunner, *, health: Answer) -> Answer:
    async def answer(writer: asyncio.StreamWriter) -> None:
        await (health if runner.asked[-1].target == "/health" else OK)(writer)

    return answer


@pytest.mark.parametrize(
    "health",
    [whole({"ok": True, "noLinks": True}), whole({"ok": False, "noLinks": True}, status=500)],
)
async def test_a_call_that_may_follow_no_link_says_so_to_a_runner_that_heeds_it(
    runners: DockerRunners, health: Answer
) -> None:
    async with FakeRunner(OK) as runner:
        runner.answer = by_path(runner, health=health)
        engine = runners.engine(a_target(runner.url))
        await runners.health(a_target(runner.url))
        assert (await engine.run(WITHOUT_LINKS)).stdout == "fine"
        assert [each.target for each in runner.asked] == ["/health", "/execute"]
        assert runner.asked[1].body["call"]["noLinks"] is True
        assert (await engine.run(a_call())).stdout == "fine"
        assert runner.asked[2].body["call"].keys() == {"name", "args"}


@pytest.mark.parametrize(
    "health",
    [
        whole({"ok": True, "service": "docker-runner"}),
        whole({"ok": True, "noLinks": False}),
        whole({"ok": True, "noLinks": "true"}),
        whole({"ok": False, "error": {"code": "NOT_FOUND", "message": "?"}}, status=404),
        whole(b"not found", content_type="text/plain", status=404),
        whole(b"", status=405),
        whole(b"healthy", content_type="text/plain"),
        whole([{"noLinks": True}]),
    ],
)
async def test_a_runner_that_does_not_say_that_it_refuses_links_is_called_as_contracted(
    runners: DockerRunners, health: Answer
) -> None:
    async with FakeRunner(OK) as runner:
        runner.answer = by_path(runner, health=health)
        engine = runners.engine(a_target(runner.url))
        await runners.health(a_target(runner.url))
        for _ in range(2):
            assert (await engine.run(WITHOUT_LINKS)).stdout == "fine"
            assert runner.asked[-1].body["call"].keys() == {"name", "args"}
        refused = await engine.run(a_call(clean=True))
        assert refused.outcome is Outcome.NOT_STARTED
        assert [each.target for each in runner.asked] == ["/health", "/execute", "/execute"]


@pytest.mark.parametrize(
    "health",
    [
        whole({"ok": False, "error": {"code": "INTERNAL_ERROR", "message": "?"}}, status=500),
        whole(b"<html>Bad Gateway</html>", content_type="text/html", status=502),
        whole(b"", status=503),
        whole({"ok": False}, status=429),
        whole(b"", status=302, location="/login"),
        whole(b"\xff"),
        whole(b'{"ok": true, "noLin'),
        whole(b'{"ok": true, "noLinks": true, "more": "' + b"x" * LARGEST_HEALTH + b'"}'),
        whole(gzip.compress(b'{"ok": true, "noLinks": true}')),
    ],
)
async def test_a_runner_whose_health_cannot_be_read_is_not_given_a_call_that_may_follow_no_link(
    runners: DockerRunners, health: Answer
) -> None:
    async with FakeRunner(OK) as runner:
        runner.answer = by_path(runner, health=health)
        target = a_target(runner.url)
        for _ in range(6):
            refused = await runners.engine(target).run(WITHOUT_LINKS)
            assert refused.outcome is Outcome.NOT_STARTED
            assert error_of(refused)["code"] == FAILED
        await runners.health(target)
        assert [each.target for each in runner.asked] == ["/health"]
        assert not runners.breaker(target).is_open
        assert (await runners.engine(target).run(a_call())).stdout == "fine"


@pytest.mark.requirement("000/health/no-call-waits")
async def test_health_is_asked_for_at_most_every_30_seconds_and_no_call_waits_for_it() -> None:
    clock = FakeClock()
    runners = DockerRunners(clock=clock)
    async with FakeRunner(OK) as runner:
        runner.answer = by_path(runner, health=whole({"ok": True, "noLinks": True}))

        async def asked(**members: Any) -> list[str]:
            runner.asked.clear()
            target = a_target(runner.url, promises=("noLinks",), **members)
            for _ in range(3):
                await runners.engine(target).run(WITHOUT_LINKS)
                await runners.health(target)
            calls = [each.body["call"] for each in runner.asked if each.body]
            assert [each.get("noLinks") for each in calls] == [True] * 3
            return [each.target for each in runner.asked]

        assert await asked() == ["/execute", "/health", "/execute", "/execute"]
        clock.advance(int(HEALTH_EVERY_S) * 1000 - 1)
        assert await asked() == ["/execute"] * 3
        clock.advance(1)
        assert await asked() == ["/execute", "/health", "/execute", "/execute"]
        assert await asked(version=2) == ["/execute", "/health", "/execute", "/execute"]
    await runners.close()


async def test_what_a_runner_says_unasked_is_the_answer_to_no_call(runners: DockerRunners) -> None:
    """As of one that answers twice: the next call may be of somebody else."""
    again, said = asyncio.Event(), asyncio.Event()

    async def answer(writer: asyncio.StreamWriter) -> None:
        cmd = runner.asked[-1].body["call"]["args"]["cmd"]
        await whole({"ok": True, "output": cmd})(writer)
        await again.wait()
        again.clear()
        await whole({"ok": True, "output": f"{cmd} again"})(writer)
        said.set()

    async with FakeRunner(answer) as runner, FakeRunner(OK) as other:
        engine = runners.engine(a_target(runner.url))
        for cmd in ("first", "second", "third"):
            output = await engine.run(a_call()._replace(args={"cmd": cmd}))
            assert output.stdout == cmd
            again.set()
            await asyncio.wait_for(said.wait(), BOUND)
            said.clear()
            await runners.health(a_target(other.url))  # by now it has come
        assert len(runner.asked) == 3


async def test_a_call_on_a_connection_that_breaks_is_not_made_again(runners: DockerRunners) -> None:
    async with FakeRunner(OK) as runner:
        engine = runners.engine(a_target(runner.url))
        assert (await engine.run(a_call())).ok
        runner.answer = hang_up
        broken = await engine.run(a_call())
        assert broken.outcome is Outcome.MAY_HAVE_EXECUTED
        assert (runner.connections, len(runner.asked)) == (1, 2)


async def test_an_answer_may_be_as_large_as_the_limit_and_not_a_byte_larger(
    runners: DockerRunners,
) -> None:
    bare = len(json.dumps({"ok": True, "output": ""}))
    for content_type in ("application/json", "application/x-ndjson"):
        for over in (0, 1):
            body = {"ok": True, "output": "x" * (runners.largest_answer - bare + over)}
            output = await ask(runners, whole(body, content_type=content_type))
            assert output.ok is not over, (content_type, over)


async def test_a_long_line_that_comes_byte_by_byte_does_not_use_up_the_time_of_the_call() -> None:
    runners = DockerRunners(clock=SystemClock())

    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/x-ndjson\r\n\r\n")
        writer.write(b'{"delta":"' + b"x" * 7_000_000)
        for _ in range(10_000):
            await writer.drain()
            writer.write(b"x")
            await asyncio.sleep(0)
        writer.write(b'"}\n{"ok":true}\n')

    output = await ask(runners, answer)
    assert (output.ok, len(output.stdout)) == (True, 7_010_000)
    await runners.close()


async def test_many_updates_of_an_answer_in_one_piece_are_joined(runners: DockerRunners) -> None:
    updates: list[str] = []
    entries = [str(n) for n in range(20_000)]
    output = await ask(runners, whole({"ok": True, "updates": entries}), updates=updates)
    assert len(updates) <= MOST_UPDATES
    assert "".join(updates) == output.stdout == "".join(entries)


async def test_many_lines_at_once_leave_others_their_turn(runners: DockerRunners) -> None:
    turns = 0
    seen: list[int] = []

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    taking = asyncio.create_task(others())
    lines = b'{"delta":"x"}\n' * 5_000 + b'{"ok":true}\n'
    async with FakeRunner(whole(lines, content_type="application/x-ndjson")) as runner:
        engine = runners.engine(a_target(runner.url))
        output = await engine.run(a_call(), update=lambda _: seen.append(turns))
    taking.cancel()
    assert len(output.stdout) == len(seen) == 5_000
    assert max(seen.count(turn) for turn in set(seen)) <= AT_ONCE
