"""What a person types and what a tool prints: no secret of theirs is found under TOOLGATE_HOME."""

import base64
import json
from pathlib import Path

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
