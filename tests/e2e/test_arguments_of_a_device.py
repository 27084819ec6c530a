"""A device receives an agent's arguments as the agent gave them; no secret in them reaches a disk."""

import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.e2e.harness import Client, Program, hang_up
from tests.e2e.test_no_secret_is_kept import (
    API_KEY,
    KEY,
    Model,
    files_with_a_secret,
    model_that_calls,
    rows_of,
)
from tests.e2e.ways import APART, TOGETHER
from toolgate.contracts.orchestrator_v1 import INVOKE_PATH, REVEAL_PATH
from toolgate.runs.originals import CALL_ARGS

CLIENT_KEY = "what clients of this test say"
OPERATOR_TOKEN = API_KEY  # known to the process that runs agents, and unknown to an ingress apart
FORM = "password=hunter2hunter2; touch PWN"  # neither known nor token-shaped: seen, not stored
ARGS = {"note": f"use {KEY} or {OPERATOR_TOKEN}", "page": "7", "form": FORM}
INTERNAL_TOKEN = "between us"
NAMED = "[secret: OPERATOR_TOKEN]"
PUSHED = "pushed"  # apart, and the run's events come by push
TOOLS = {"tools": ["desk.look", "payments.transfer"]}
POLICY = """\
version: 1
name: test
default: deny
rules:
  - {id: desk, allow: "desk.*", match: any, reason: The device's own}
  - {id: pay, ask: "payments.*", reason: Money needs a person}
"""


@dataclass
class Running:
    way: str
    programs: dict[str, Program]
    model: Model
    client: Client

    @property
    def homes(self) -> list[Path]:
        return [program.home for program in self.programs.values()]

    async def connect(self, **hello: Any) -> Client:
        (url,) = (one.urls["ingress_ws"] for one in self.programs.values() if takes_clients(one))
        return await Client.connect(url, api_key=CLIENT_KEY, client_meta=TOOLS, **hello)

    async def invoke(self) -> None:
        if self.way != PUSHED:
            await self.client.invoke("go on", agent="assistant")
            return
        asked = {
            "session_id": self.client.session_id,
            "agent_id": "assistant",
            "message": {"role": "user", "content": "go on"},
            "context": {"user_id": "u1"},
        }
        url = f"{self.programs['orchestrator'].urls['orchestrator']}{INVOKE_PATH}"
        headers = {"Authorization": f"Bearer {INTERNAL_TOKEN}"}
        async with (
            aiohttp.ClientSession(headers=headers) as http,
            http.post(url, json=asked) as answer,
        ):
            assert answer.status == 200, await answer.text()

    async def reveal(self, approval_id: str) -> str:
        (url,) = (
            p.urls["orchestrator"] for p in self.programs.values() if "orchestrator" in p.urls
        )
        path = REVEAL_PATH.format(approval_id=approval_id)
        headers = {"Authorization": f"Bearer {INTERNAL_TOKEN}"}
        async with (
            aiohttp.ClientSession(headers=headers) as http,
            http.post(f"{url}{path}") as answer,
        ):
            assert answer.status == 200, await answer.text()
            return await answer.text()

    async def again(self, **hello: Any) -> dict[str, Any]:
        """The tool request that the session's next device receives."""
        client = await self.connect(session_id=self.client.session_id, **hello)
        request = (await client.hear_until("tool_request"))[-1]
        await client.close()
        return request

    def check_disks(self, *, sealed: int | None) -> None:
        for home in self.homes:
            assert files_with_a_secret(home) == []
            journal = [home / "journal.db", home / "journal.db-wal"]
            assert not any(b"hunter2hunter2" in path.read_bytes() for path in journal)
            assert sealed in (None, rows_of(home, CALL_ARGS))
        logs = b"".join(program.log.read_bytes() for program in self.programs.values())
        assert KEY.encode() not in logs
        assert OPERATOR_TOKEN.encode() not in logs


def takes_clients(program: Program) -> bool:
    return program.role != "orchestrator"


@contextlib.asynccontextmanager
async def running(way: str, home: Path, *, tool: str) -> AsyncIterator[Running]:
    policy = home / "policy.yaml"
    policy.write_text(POLICY)
    async with contextlib.AsyncExitStack() as stack:
        model = await stack.enter_async_context(model_that_calls(tool, ARGS))
        agents = {
            "OPERATOR_TOKEN": OPERATOR_TOKEN,
            "POLICY_FILE": str(policy),
            "TOOLGATE_MODEL": f"{model.url}/v1#m",
        }
        shared = {"INTERNAL_TOKEN": INTERNAL_TOKEN, "LOG_LEVEL": "debug"}
        clients = {"API_KEY": CLIENT_KEY}
        if way == TOGETHER:
            programs = {"up": Program(home / "up", {**shared, **clients, **agents})}
        else:
            programs = {
                "orchestrator": Program(
                    home / "orchestrator", {**shared, **agents}, role="orchestrator"
                ),
                "ingress": Program(home / "ingress", {**shared, **clients}, role="ingress"),
            }
        stack.push_async_callback(hang_up)
        for program in programs.values():
            stack.push_async_callback(stopped, program)
            await program.start()
            if url := program.urls.get("orchestrator"):
                program.settings["ORCHESTRATOR_PORT"] = url.rpartition(":")[2]
                if way != TOGETHER:
                    programs["ingress"].settings["ORCHESTRATOR_URL"] = url
        if way == PUSHED:
            orchestrator, internal = programs["orchestrator"], programs["ingress"].urls
            await orchestrator.kill()
            orchestrator.settings["INGRESS_URL"] = internal["ingress_internal"]
            programs["ingress"].settings["HTTP_PORT"] = internal["ingress_internal"].rpartition(
                ":"
            )[2]
            await orchestrator.start()
        run = Running(way, programs, model, client=None)  # type: ignore[arg-type]
        run.client = await run.connect()
        yield run


async def stopped(program: Program) -> None:
    if program.process is not None:
        await program.kill()


@pytest.mark.parametrize("tool", ["desk.look", "payments.transfer"])
@pytest.mark.parametrize("way", [TOGETHER, APART, PUSHED])
async def test_a_device_receives_the_arguments_as_the_agent_gave_them_until_the_call_ends(
    tmp_path: Path, way: str, tool: str
) -> None:
    async with running(way, tmp_path, tool=tool) as run:
        client = run.client
        await run.invoke()
        heard = await client.hear_until("tool_request", "approval_required", "error", "done")
        if tool == "payments.transfer":
            asked = heard[-1]
            assert asked["type"] == "approval_required", asked
            assert KEY not in json.dumps(asked)
            assert OPERATOR_TOKEN not in json.dumps(asked)
            assert asked["args"]["note"] == f"use [hidden: {len(KEY)} characters] or {NAMED}"
            assert (asked["hidden"], asked["args"]["form"]) == (len(KEY), FORM)
            later = await run.connect(session_id=client.session_id)
            same = (await later.hear_until("approval_required"))[-1]
            assert (same["args"], same["args_summary"]) == (asked["args"], asked["args_summary"])
            assert "redacted_args" not in asked
            run.check_disks(sealed=None)
            ids = {"run_id": asked["run_id"], "approval_id": asked["approval_id"]}
            await client.say("approval_decision", **ids, decision="approve")
            error = (await client.hear_until("error"))[-1]
            assert error["detail"]["reason"] == "hidden_arguments"
            assert KEY in await run.reveal(asked["approval_id"])
            await client.say("approval_decision", **ids, decision="approve")
            heard = await client.hear_until("tool_request", "error", "done")
        request = heard[-1]
        assert request["type"] == "tool_request", request
        assert request["args"] == ARGS
        assert "redacted_args" not in request
        run.check_disks(sealed=1)
        assert await run.again(last_seq=request["seq"] - 1) == request
        assert (await run.again())["args"] == ARGS, "in the snapshot"

        for program in run.programs.values():
            await program.kill()
            run.check_disks(sealed=1)
            await program.start()
            assert await run.again(last_seq=request["seq"] - 1) == request

        client = await run.connect(session_id=client.session_id, last_seq=request["seq"])
        ids = {"run_id": request["run_id"], "tool_call_id": request["tool_call_id"]}
        await client.say("tool_result", **ids, ok=True, result="seen")
        ended = (await client.hear_until("error", "done"))[-1]
        assert ended["type"] == "done", ended
        run.check_disks(sealed=0)
        after = await run.again(last_seq=request["seq"] - 1)
        assert (after["seq"], after["args"]["page"]) == (request["seq"], "7")
        assert KEY not in json.dumps(after)
        assert OPERATOR_TOKEN not in json.dumps(after)
        received = json.dumps(run.model.asked)
        assert "seen" in received
        assert KEY not in received
        assert OPERATOR_TOKEN not in received


@pytest.mark.parametrize("way", [TOGETHER, APART])
async def test_the_sealed_arguments_go_with_a_run_that_is_cancelled(
    tmp_path: Path, way: str
) -> None:
    async with running(way, tmp_path, tool="desk.look") as run:
        client = run.client
        await run.invoke()
        request = (await client.hear_until("tool_request", "error", "done"))[-1]
        assert request["args"] == ARGS
        await client.say("cancel_run", run_id=request["run_id"])
        await client.hear_until("error", "done")
        run.check_disks(sealed=0)
        after = await run.again(last_seq=request["seq"] - 1)
        assert KEY not in json.dumps(after)
