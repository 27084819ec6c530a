"""The credentials of each listener, as the program makes, keeps and asks for them."""

import asyncio
import json
import os
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from subprocess import PIPE
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest
import pytest_asyncio
import websockets

from tests.e2e.harness import PATIENCE, Client, Program, running, started
from tests.e2e.test_foreign_orchestrator import PLAIN, foreign, sse
from tests.e2e.ways import eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")

requirement = pytest.mark.requirement
MADE = {"API_KEY": "", "INTERNAL_TOKEN": ""}
POLICY = """
version: 1
name: t
rules:
  - {id: asks, ask: shell, reason: a person must see it}
"""
NOBODY = 65534  # a uid without rights
TRY_TO_DECIDE = """
body='{"decision": "approve", "decided_by": "u1"}'
for token in "" guessed "$(cat "$4" 2>/dev/null)" "$(cat "$5" 2>/dev/null)"; do
  exec 3<>"/dev/tcp/$1/$2"
  printf 'POST %s HTTP/1.1\\r\\nHost: %s:%s\\r\\nAuthorization: Bearer %s\\r\\n' "$3" "$1" "$2" "$token" >&3
  printf 'Content-Length: %s\\r\\nConnection: close\\r\\n\\r\\n%s' "${#body}" "$body" >&3
  head -n 1 <&3
done
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def program(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Program]:
    """Everything in one process, with credentials that it makes itself."""
    at = tmp_path_factory.mktemp("credentials")
    (at / "policy.yaml").write_text(POLICY)
    given = {**MADE, "POLICY_FILE": str(at / "policy.yaml"), "OPERATOR_TOKEN": "the-operator"}
    async with running(at / "home", **given) as one:
        yield one


def kept(program: Program, name: str) -> str:
    path = program.home / name
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    return path.read_text()


async def close_code(url: str, api_key: str, **hello: Any) -> tuple[str, int]:
    """What a hello is answered, and how the connection ends."""
    async with websockets.connect(url) as socket, asyncio.timeout(PATIENCE):
        said = {"type": "hello", "ts": 1, "user_id": "u1", "api_key": api_key, **hello}
        await socket.send(json.dumps(said))
        answer = json.loads(await socket.recv())
        if answer["type"] == "hello_ack":
            return "hello_ack", 0
        await socket.wait_closed()
        return answer["code"], socket.close_code or 0


async def asked_for(client: Client, *, request_id: str) -> dict[str, Any]:
    """The approval that an agent's shell command waits for."""
    await client.invoke('[[tool:shell {"command": "id"}]]', agent="script", request_id=request_id)
    return (await client.hear_until("approval_required"))[-1]


@requirement("001/credentials/key-made", "001/handshake/no-key-says-so")
async def test_a_key_is_made_kept_and_asked_for_and_its_path_is_printed(program: Program) -> None:
    key, url = kept(program, "api.key"), program.urls["ingress_ws"]
    assert key.startswith("tg_key_")
    for wrong in ("", "k", key[:-1], kept(program, "internal.token")):
        assert await close_code(url, wrong) == ("auth_failed", 4401), wrong
    assert await close_code(url, key) == ("hello_ack", 0)
    log = program.log.read_text()
    assert str(program.home / "api.key") in log
    for name in ("api.key", "internal.token", "executor.token"):
        assert kept(program, name) not in log + json.dumps(program.urls), name


@requirement("001/credentials/internal-token")
async def test_a_process_of_another_user_decides_no_approval_at_8081(program: Program) -> None:
    client = await Client.connect(program.urls["ingress_ws"], api_key=kept(program, "api.key"))
    asked = await asked_for(client, request_id="other-uid")
    url = f"{program.urls['orchestrator']}/internal/approvals/{asked['approval_id']}/decide"
    at = urlsplit(url)
    other: dict[str, Any] = {"user": NOBODY, "group": NOBODY} if os.geteuid() == 0 else {}
    files = [str(program.home / name) for name in ("internal.token", "operator.token")]
    readable = files if other else ["", ""]  # this test's own user may read its home
    process = await asyncio.create_subprocess_exec(
        "bash", "-c", TRY_TO_DECIDE, "-", str(at.hostname), str(at.port), at.path, *readable,
        stdout=PIPE, cwd="/", **other,
    )  # fmt: skip
    told, _ = await asyncio.wait_for(process.communicate(), PATIENCE)
    assert [line.split()[1] for line in told.splitlines()] == [b"401"] * 4
    headers = {"Authorization": f"Bearer {kept(program, 'internal.token')}"}
    async with aiohttp.ClientSession(headers=headers) as http:
        body = {"decision": "reject", "decided_by": "u1"}
        async with http.post(url, json=body) as decided:
            assert (decided.status, (await decided.json())["status"]) == (200, "REJECTED")
        for url in (
            f"{program.urls['orchestrator']}/internal/agents",
            f"{program.urls['ingress_internal']}/internal/sessions/s/status",
        ):
            async with http.get(url) as known:
                assert known.status == 200
            for wrong in ({"Authorization": ""}, {"Authorization": "Bearer the-operator"}):
                async with http.get(url, headers=wrong) as refused:
                    assert refused.status == 401
    await client.close()


@requirement("001/credentials/any-key-loopback-only", "001/handshake/no-key-loopback-only")
async def test_any_key_is_accepted_on_loopback_only_and_says_so(tmp_path: Path) -> None:
    beyond = Program(tmp_path / "beyond", {**MADE, "API_KEY": "none", "HOST": "0.0.0.0"})
    with pytest.raises(AssertionError, match="API_KEY"):
        await beyond.start()
    assert beyond.process is not None
    assert await beyond.process.wait() == 2
    async with running(tmp_path / "home", API_KEY="none") as program:
        assert await close_code(program.urls["ingress_ws"], "any") == ("hello_ack", 0)
        assert "api_key_none" in program.log.read_text()
        assert not (program.home / "api.key").exists()


@requirement("001/credentials/foreign-orchestrator")
async def test_an_ingress_beside_a_foreign_orchestrator_needs_no_token_and_says_so(
    tmp_path: Path,
) -> None:
    async with foreign(sse(*PLAIN)) as orchestrator, aiohttp.ClientSession() as http:
        alone = Program(
            tmp_path / "home", {**MADE, "ORCHESTRATOR_URL": orchestrator.url}, role="ingress"
        )
        async with started(alone):
            internal = alone.urls["ingress_internal"]
            async with http.get(f"{internal}/health") as health:
                assert (await health.json())["internal_auth"] == "none"
            async with http.get(f"{internal}/internal/sessions/s/status") as status:
                assert status.status == 200
            assert "INTERNAL_TOKEN" in alone.log.read_text()
            assert not (alone.home / "internal.token").exists()
            key = kept(alone, "api.key")
            client = await Client.connect(alone.urls["ingress_ws"], api_key=key)
            await client.invoke("hi", agent="agent_a")
            assert (await client.hear_until("done", "error"))[-1]["type"] == "done"


@requirement("001/credentials/foreign-orchestrator", "001/credentials/internal-token")
async def test_our_orchestrator_refuses_an_ingress_without_its_token_which_logs_the_remedy(
    tmp_path: Path,
) -> None:
    ours = Program(tmp_path / "orchestrator", dict(MADE), role="orchestrator")
    async with started(ours):
        url = {"ORCHESTRATOR_URL": ours.urls["orchestrator"]}
        without = Program(tmp_path / "ingress", {**MADE, **url}, role="ingress")
        token = kept(ours, "internal.token")
        async with started(without):
            key = kept(without, "api.key")
            client = await Client.connect(without.urls["ingress_ws"], api_key=key)
            await client.invoke("hi")
            error = (await client.hear_until("done", "error"))[-1]
            assert (error["code"], error["type"]) == ("orchestrator_error", "error")

            async def logged() -> bool:
                return "orchestrator_refused status=401" in without.log.read_text()

            await eventually(logged)
        shared = {**MADE, **url, "INTERNAL_TOKEN": token}
        async with started(Program(tmp_path / "ingress", shared, role="ingress")) as given:
            health = f"{given.urls['ingress_internal']}/health"
            async with aiohttp.ClientSession() as http, http.get(health) as answer:
                assert "internal_auth" not in await answer.json()
            client = await Client.connect(given.urls["ingress_ws"], api_key=key)
            await client.invoke("hi")
            assert (await client.hear_until("done", "error"))[-1]["type"] == "done"
