"""What a person types and what a tool prints: no secret of theirs is found under TOOLGATE_HOME."""

import base64
import contextlib
import hashlib
import json
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from tests.e2e.harness import INTERNAL, Client, Program, running
from toolgate.runs.originals import CALL_ARGS
from toolgate.tools.approval_records import ASKED_ARGS

KEY = "sk-proj-a8Kd02mXq71LzR5vWc93TnYb64HsJu"
GITHUB = "ghp_16C7e42F292c6912E7710c838347Ae178B4a"
API_KEY = "the very secret key of this installation"
FORMS = [
    *(text.encode() for text in (KEY, GITHUB, API_KEY)),
    base64.b64encode(API_KEY.encode()),
    API_KEY.encode().hex().encode(),
]


async def test_secrets_in_messages_arguments_and_results_do_not_reach_the_disk(
    tmp_path: Path,
) -> None:
    home, policy = tmp_path / "home", tmp_path / "policy.yaml"
    policy.write_text(ASKS.replace('ask: "shell"', 'allow: "*"'))
    settings = {"API_KEY": API_KEY, "POLICY_FILE": str(policy), "LOG_LEVEL": "debug"}
    async with running(home, **settings) as program:
        tools = {"tools": ["browser.look"]}
        client = await Client.connect(
            program.urls["ingress_ws"], api_key=API_KEY, client_meta=tools
        )
        args = json.dumps({"text": f"{KEY} {API_KEY} {API_KEY.encode().hex()}"})
        script = f"use {GITHUB} [[tool:echo {args}]] then [[tool:browser.look {{}}]]"
        await client.invoke(script, agent="script")
        heard = await client.hear_until("tool_request", "done", "error")
        if heard[-1]["type"] == "tool_request":
            await client.say(
                "tool_result",
                run_id=heard[-1]["run_id"],
                tool_call_id=heard[-1]["tool_call_id"],
                ok=True,
                result={"seen": f"token={KEY}"},
            )
            heard += await client.hear_until("done", "error")
        assert heard[-1]["type"] == "done", heard[-1]
        await program.stop()
        log = program.log.read_bytes()
    written = {path: path.read_bytes() for path in home.rglob("*") if path.is_file()}
    assert any(b"[[tool:echo" in content for content in written.values()), "looking at nothing"
    for form in FORMS:
        assert form not in log
        assert [path.name for path, content in written.items() if form in content] == []


async def test_secrets_in_the_context_of_an_invocation_do_not_reach_the_disk(
    tmp_path: Path,
) -> None:
    home = tmp_path / "home"
    async with running(home) as program, aiohttp.ClientSession() as http:
        asked = {
            "session_id": "s_1",
            "agent_id": "echo",
            "message": {"role": "user", "content": "hello"},
            "context": {"page": f"https://x.example/?key={KEY}", "password": GITHUB, "tab": "seen"},
        }
        url = f"{program.urls['orchestrator']}/internal/invoke"
        async with http.post(url, json=asked, headers=INTERNAL) as told:
            assert told.status == 200, await told.text()
        await program.stop()
    written = [path.read_bytes() for path in home.rglob("*") if path.is_file()]
    assert any(b'"tab":"seen"' in content for content in written), "looking at nothing"
    for form in (KEY, GITHUB):
        assert not any(form.encode() in content for content in written)


async def test_tokens_that_must_be_sent_as_they_are_lie_sealed(tmp_path: Path) -> None:
    home = tmp_path / "home"
    tokens = ["runner token 7c41a90be2", "agent token 55d0e7f1c3"]
    async with running(home) as program, aiohttp.ClientSession() as http:
        operator = {"Authorization": f"Bearer {(home / 'operator.token').read_text()}"}
        url = f"{program.urls['gateway']}/execution-targets/far"
        target = {
            "tenantId": "t_default",
            "kind": "docker-runner",
            "endpoint": "http://127.0.0.1:9/execute",
            "authToken": tokens[0],
        }
        put = await http.put(url, json=target, headers=operator)
        assert put.status == 200, await put.text()
        assert tokens[0] not in await put.text()
        agent = {"agent_id": "far", "endpoint": "http://127.0.0.1:9", "auth_token": tokens[1]}
        posted = await http.post(
            f"{program.urls['orchestrator']}/internal/agents", json=agent, headers=INTERNAL
        )
        assert posted.status == 201, await posted.text()
        await program.stop()
        await program.start()
        url = f"{program.urls['orchestrator']}/internal/agents"
        listed = await (await http.get(url, headers=INTERNAL)).text()
        assert '"far"' in listed
        assert tokens[1] not in listed
        await program.stop()
        log = program.log.read_bytes()
    for token in tokens:
        assert token.encode() not in log
        found = [p for p in home.rglob("*") if p.is_file() and token.encode() in p.read_bytes()]
        assert found == []


class Model:
    """A model's server whose first answer is one tool call, and whose later answers are text."""

    def __init__(self, tool: str, args: dict[str, str]) -> None:
        self.tool, self.args = tool, args
        self.asked: list[dict[str, Any]] = []
        self.url = ""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(await request.json())
        function = {"name": self.tool, "arguments": json.dumps(self.args)}
        call = {"index": 0, "id": "c1", "type": "function", "function": function}
        is_first = all(said["role"] != "tool" for said in self.asked[-1]["messages"])
        delta = {"tool_calls": [call]} if is_first else {"content": "done"}
        finish = "tool_calls" if is_first else "stop"
        chunk = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for choice in (
            {"index": 0, "delta": {"role": "assistant", **delta}, "finish_reason": None},
            {"index": 0, "delta": {}, "finish_reason": finish},
        ):
            line = json.dumps({**chunk, "choices": [choice]})
            await response.write(f"data: {line}\n\n".encode())
        await response.write(b"data: [DONE]\n\n")
        return response


@contextlib.asynccontextmanager
async def model_that_calls(tool: str, args: dict[str, str]) -> AsyncIterator[Model]:
    model = Model(tool, args)
    app = web.Application()
    app.router.add_post("/v1/chat/completions", model.handle)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    model.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield model
    finally:
        await runner.cleanup()


def files_with_a_secret(home: Path) -> list[str]:
    written = {path: path.read_bytes() for path in home.rglob("*") if path.is_file()}
    assert written, "looking at nothing"
    return sorted(
        {path.name for path, content in written.items() for form in FORMS if form in content}
    )


ASKS = """\
version: 1
name: test
default: deny
rules:
  - {id: ask, ask: "shell", match: any, reason: For the test}
"""


@pytest.mark.parametrize("decision", ["approve", "reject", "cancel"])
async def test_secrets_in_the_arguments_of_an_agents_call_are_sealed_while_it_waits_and_then_gone(
    tmp_path: Path, decision: str
) -> None:
    home, policy = tmp_path / "home", tmp_path / "policy.yaml"
    policy.write_text(ASKS)
    command = f"printf %s '{KEY} {API_KEY}' | sha256sum"
    digest = hashlib.sha256(f"{KEY} {API_KEY}".encode()).hexdigest()
    async with model_that_calls("shell", {"command": command}) as model:
        settings = {"API_KEY": API_KEY, "POLICY_FILE": str(policy), "LOG_LEVEL": "debug"}
        async with running(home, TOOLGATE_MODEL=f"{model.url}/v1#m", **settings) as program:
            client = await Client.connect(program.urls["ingress_ws"], api_key=API_KEY)
            await client.invoke("go on", agent="assistant")
            asked = (await client.hear_until("approval_required", "error", "done"))[-1]
            assert asked["type"] == "approval_required", asked
            assert files_with_a_secret(home) == []
            await program.kill()
            assert files_with_a_secret(home) == []
            assert rows_of(home, CALL_ARGS) == 1
            await program.start()
            client = await Client.connect(
                program.urls["ingress_ws"],
                api_key=API_KEY,
                session_id=client.session_id,
                last_seq=client.last_seq,
            )
            ids = {"run_id": asked["run_id"]}
            if decision == "cancel":
                await client.say("cancel_run", **ids)
            else:
                ids["approval_id"] = asked["approval_id"]
                assert KEY in await revealed(program, home, asked["approval_id"])
                assert files_with_a_secret(home) == []
                await client.say("approval_decision", decision=decision, **ids)
            await client.hear_until("done", "error")
            await program.stop()
    assert files_with_a_secret(home) == []
    assert rows_of(home, CALL_ARGS) == rows_of(home, ASKED_ARGS) == 0
    received = json.dumps(model.asked)
    assert KEY not in received
    assert API_KEY not in received, "the agent sees its own arguments redacted"
    assert (digest in received) is (decision == "approve"), "the tool receives the original"


async def revealed(program: Program, home: Path, approval_id: str) -> str:
    """What the operator sees who reveals the hidden characters of a call."""
    headers = {"Authorization": f"Bearer {(home / 'operator.token').read_text()}"}
    url = f"{program.urls['gateway']}/approvals/{approval_id}/reveal"
    async with aiohttp.ClientSession(headers=headers) as http, http.post(url, json={}) as answer:
        assert answer.status == 200, await answer.text()
        return await answer.text()


def rows_of(home: Path, collection: str) -> int:
    with contextlib.closing(sqlite3.connect(home / "journal.db")) as journal:
        count = journal.execute("SELECT count(*) FROM rows WHERE collection = ?", [collection])
        return int(count.fetchone()[0])
