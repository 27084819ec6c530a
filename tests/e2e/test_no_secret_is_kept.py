"""What a person types and what a tool prints: no secret of theirs is found under TOOLGATE_HOME."""

import base64
import json
from pathlib import Path

import aiohttp

from tests.e2e.harness import Client, running

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
    home = tmp_path / "home"
    async with running(home, API_KEY=API_KEY, LOG_LEVEL="debug") as program:
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
        async with http.post(f"{program.urls['orchestrator']}/internal/invoke", json=asked) as told:
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
        posted = await http.post(f"{program.urls['orchestrator']}/internal/agents", json=agent)
        assert posted.status == 201, await posted.text()
        await program.stop()
        await program.start()
        listed = await (await http.get(f"{program.urls['orchestrator']}/internal/agents")).text()
        assert '"far"' in listed
        assert tokens[1] not in listed
        await program.stop()
        log = program.log.read_bytes()
    for token in tokens:
        assert token.encode() not in log
        found = [p for p in home.rglob("*") if p.is_file() and token.encode() in p.read_bytes()]
        assert found == []
