"""A tool that a client's own device runs leaves evidence of what it was allowed and what came of it."""

import json
from pathlib import Path

from tests.e2e.harness import Client, running
from toolgate.evidence.check import ClosedHome

ALLOWS = """\
version: 1
name: test
default: deny
rules:
  - {id: all, allow: "*", match: any, reason: For the test}
"""


async def test_what_a_device_answers_is_on_record_like_any_result(tmp_path: Path) -> None:
    home, policy = tmp_path / "home", tmp_path / "policy.yaml"
    policy.write_text(ALLOWS)
    async with running(home, POLICY_FILE=str(policy)) as program:
        client = await Client.connect(
            program.urls["ingress_ws"], client_meta={"tools": ["browser.look"]}
        )
        await client.invoke("[[tool:browser.look {}]]", agent="script")
        request = (await client.hear_until("tool_request", "done", "error"))[-1]
        assert request["type"] == "tool_request", request
        ids = {name: request[name] for name in ("run_id", "tool_call_id")}
        await client.say("tool_result", **ids, ok=True, result={"seen": "a page"})
        assert (await client.hear_until("done", "error"))[-1]["type"] == "done"
        await program.stop()
    with ClosedHome(home) as closed:
        records = [json.loads(record) for _, record in closed.about(ids["tool_call_id"])]
        assert [record["kind"] for record in records] == ["decision", "result"]
        ref = f"requests/{ids['tool_call_id']}/tool_result.json"
        result = json.loads(closed.artifact(ref, records[-1]["artifacts"][ref]))
    assert (result["stdout"], result["isolation"]) == ('{"seen":"a page"}', "device")
