"""The seed's appendix A, word for word, ids and times aside, for two devices at once; and examples."""

import asyncio
import json
import re
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.e2e.harness import API_KEY, PATIENCE, PROGRAM, Client, Program, environment, running
from tests.e2e.ways import POLICY

requirement = pytest.mark.requirement
pytestmark = pytest.mark.asyncio(loop_scope="module")

ROOT = Path(__file__).parents[2]
SEED = next((ROOT / "docs" / "contracts").rglob("001*"))
OURS = {
    "seq",
    "event_id",
    "deadline_ts",
    "reason",
    "message",
    "args",
}  # what we add beyond the seed
MADE = {"ts", "run_id", "session_id", "tool_call_id", "approval_id", "deadline_ts"}
TOOLS = {"tools": ["browser.screenshot", "payments.transfer"]}


def flow(title: str) -> list[tuple[str, dict[str, Any]]]:
    """The lines of one flow of the appendix, as (who speaks, what is said)."""
    text = SEED.read_text().split("附录 A", 2)[-1].split(f"### {title}", 1)[1]
    block = text.split("```", 2)[1]
    lines = re.findall(r"^(CLIENT|SERVER) → \w+: (\{.*\})$", block, re.MULTILINE)
    return [(who, json.loads(said)) for who, said in lines]


def assert_said(heard: dict[str, Any], seed: dict[str, Any], **instead: Any) -> None:
    """Every member of the seed's message is there, with its value; ids and times by their kind."""
    assert seed.keys() <= heard.keys()
    assert heard.keys() - seed.keys() <= OURS | {"resumed", "seq", "epoch"}
    for name, value in seed.items():
        if name in MADE:
            assert type(heard[name]) is type(value), name
        else:
            assert heard[name] == instead.get(name, value), name


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def program(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Program]:
    home = tmp_path_factory.mktemp("flows")
    policy = home / "policy.yaml"
    policy.write_text(POLICY)
    async with running(home / "home", POLICY_FILE=str(policy)) as one:
        yield one
        await one.stop()


async def two_devices(program: Program, hello: dict[str, Any]) -> tuple[Client, Client]:
    url = program.urls["ingress_ws"]
    meta = {"client_meta": TOOLS}
    first = await Client.connect(url, user=hello["user_id"], **meta)
    second = await Client.connect(url, user=hello["user_id"], session_id=first.session_id)
    return first, second


async def both_hear(devices: tuple[Client, Client]) -> dict[str, Any]:
    one, two = [await device.hear() for device in devices]
    assert one == two
    return one


@requirement("001/flows/agent")
async def test_the_seeds_agent_flow(program: Program) -> None:
    (_, hello), (_, ack), (_, invoke), (_, started), *deltas, (_, done) = flow(
        "成功调用 Agent 流程"
    )
    devices = await two_devices(program, hello)
    assert_said(devices[0].ack, ack)
    said = "".join(delta["text"] for _, delta in deltas)
    message = {**invoke["message"], "content": said}  # echo answers with what it is told
    invocation = {**invoke, "session_id": devices[0].session_id, "message": message}
    await devices[0].socket.send(json.dumps({**invocation, "agent_id": "echo"}))
    assert_said(await both_hear(devices), started, agent_id="echo")
    text = ""
    while (event := await both_hear(devices))["type"] == "delta":
        assert_said(event, deltas[0][1], text=event["text"])
        text += event["text"]
    assert text == said
    assert event["type"] == "done"
    assert event.keys() - OURS == done.keys()
    assert done["usage"].keys() <= event["usage"].keys()
    for device in devices:
        await device.close()


@requirement("001/flows/client-tool")
async def test_the_seeds_client_tool_flow(program: Program) -> None:
    (_, request), (_, result), (_, delta) = flow("Client Tool 流程")
    devices = await two_devices(program, flow("成功调用 Agent 流程")[0][1])
    call = f"[[tool:{request['tool_name']} {json.dumps(request['args'])}]]{delta['text']}"
    await devices[0].invoke(call, agent="script")
    assert (await both_hear(devices))["type"] == "run_started"
    asked = await both_hear(devices)
    assert_said(asked, request)
    assert abs(asked["deadline_ts"] - asked["ts"] - 60_000) < 2_000  # as in the seed
    ids = {"run_id": asked["run_id"], "tool_call_id": asked["tool_call_id"]}
    await devices[1].socket.send(json.dumps({**result, **ids}))
    following = await both_hear(devices)
    assert_said(following, delta, text=following["text"])
    assert following["text"].endswith(delta["text"])
    assert result["result"]["file_path"] in following["text"]
    assert (await both_hear(devices))["type"] == "done"
    for device in devices:
        await device.close()


@requirement("001/flows/approval")
async def test_the_seeds_approval_flow(program: Program) -> None:
    (_, required), (_, decision), (_, state) = flow("审批流程")
    devices = await two_devices(program, flow("成功调用 Agent 流程")[0][1])
    args = json.dumps({"to": "xxx", "amount": "¥100"}, ensure_ascii=False)
    await devices[0].invoke(f"[[tool:{required['tool_name']} {args}]]", agent="script")
    assert (await both_hear(devices))["type"] == "run_started"
    asked = await both_hear(devices)
    assert_said(asked, required, args_summary=asked["args_summary"])
    assert "¥100" in asked["args_summary"]
    ids = {"run_id": asked["run_id"], "approval_id": asked["approval_id"]}
    await devices[1].socket.send(json.dumps({**decision, **ids}))
    assert_said(await both_hear(devices), state)
    assert (await both_hear(devices))["type"] == "tool_request"
    for device in devices:
        await device.close()


@requirement("001/durability/result-survives", "001/durability/decision-survives",
             "001/durability/waiting-goes-on")  # fmt: skip
async def test_a_waiting_run_its_decision_and_its_result_survive_kill_9(tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY)
    async with running(tmp_path / "home", POLICY_FILE=str(policy)) as program:
        client = await Client.connect(program.urls["ingress_ws"], client_meta=TOOLS)
        await client.invoke("[[tool:payments.transfer {}]] after", agent="script")
        asked = (await client.hear_until("approval_required"))[-1]
        await program.kill()
        await program.start()

        async def back() -> Client:
            return await Client.connect(
                program.urls["ingress_ws"], session_id=client.session_id, last_seq=client.last_seq
            )

        client = await back()
        ids = {"run_id": asked["run_id"], "approval_id": asked["approval_id"]}
        await client.say("approval_decision", **ids, decision="approve")
        await client.hear_until("state")
        await program.kill()
        await program.start()
        client = await back()
        request = (await client.hear_until("tool_request"))[-1]
        await client.say(
            "tool_result",
            run_id=request["run_id"],
            tool_call_id=request["tool_call_id"],
            ok=True,
            result="kept",
        )
        heard = await client.hear_until("delta", "error")
        await program.kill()
        await program.start()
        client = await back()
        heard += await client.hear_until("done", "error")
        text = "".join(one.get("text", "") for one in heard)
        assert text == "payments.transfer: kept\n after"
        await client.close()


async def run(*command: str, said: bytes = b"") -> str:
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environment({}),
    )
    out, err = await asyncio.wait_for(process.communicate(said), 3 * PATIENCE)
    assert process.returncode == 0, err.decode()
    return out.decode()


async def test_the_examples_run_and_are_short(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = program.urls["ingress_ws"]
    (tmp_path / ".toolgate").mkdir()
    (tmp_path / ".toolgate" / "api.key").write_text(API_KEY)
    monkeypatch.chdir(tmp_path)
    for name, expected in (
        ("first_run.py", "Hello, brave new world"),
        ("own_tool.py", "the gate costs 12 coins"),
    ):
        path = ROOT / "examples" / name
        assert len(path.read_text().splitlines()) < 40
        assert expected in await run(sys.executable, str(path), url)


async def test_chat_streams_and_asks_for_approvals_inline(program: Program) -> None:
    url = program.urls["ingress_ws"]
    chat = (str(PROGRAM), "chat", "--url", url, "--user", "u1")
    assert await run(*chat, "hello", "there") == "hello there\n"
    said = await run(*chat, "--agent", "script", said=b"[[tool:payments.transfer {}]]\nn\n")
    assert "approve? [y/N]" in said
    assert "error rejected" in said
