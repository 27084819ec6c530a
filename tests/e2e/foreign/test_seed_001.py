"""Foreign clients, orchestrators and ingresses against ours, together and apart."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.foreign import a_client, holds
from tests.e2e.ways import API_KEY, INTERNAL_TOKEN, TOGETHER, installed
from toolgate import settings as table
from toolgate.bootstrap.installation import Installation
from toolgate.bootstrap.roles import start_everything, start_ingress, start_orchestrator
from toolgate.client.sessions import connect
from toolgate.client.toolbox import Toolbox, ToolFailed
from toolgate.testkit import client, ingress, orchestrator

requirement = pytest.mark.requirement
NEEDS_ITS_ORCHESTRATOR = {
    "submits_a_result",
    "sends_a_decision_on",
    "confirms_commands",
    "passes_an_error_on",
    "sends_a_cancel_on",
    "passes_a_failure_on",
    "recalls_what_was_missed",
}
NEEDS_MESSAGES = {
    "goes_on_after_a_result",
    "goes_on_after_an_approval",
    "goes_on_after_a_rejection",
    "cancels",
}
POLICY = """\
version: 1
name: test
default: deny
rules:
  - {id: desk, allow: "desk.*", match: any, reason: The device's own}
  - {id: sums, ask: math.add, match: any, reason: To be asked}
"""


async def test_clients_that_know_only_the_seed_use_toolgate_up(tmp_path: Path) -> None:
    async with installed(TOGETHER, tmp_path) as running, a_client() as http:
        peer = ingress.ClientPeer(
            running.ws, http, API_KEY, running.internal, INTERNAL_TOKEN, "echo", checks_key=True
        )
        await holds(ingress.KIT, peer, but=NEEDS_ITS_ORCHESTRATOR)
        its = orchestrator.IngressPeer(running.orchestrator, http, INTERNAL_TOKEN)
        await holds(orchestrator.KIT, its, but=NEEDS_MESSAGES | {"pushes_events"})


@contextlib.asynccontextmanager
async def beside(url: str, home: Path, *, role: str) -> AsyncIterator[Installation]:
    """Our ingress, alone or of `toolgate up`, in front of a foreign orchestrator."""
    ports = {f"{name}_PORT": "0" for name in ("WS", "HTTP", "ORCHESTRATOR", "GATEWAY")}
    given = {"API_KEY": API_KEY, "ORCHESTRATOR_URL": url, "TOOLGATE_HOME": str(home)}
    loaded = table.load({**ports, **given, "LOG_LEVEL": "error"}, environment={})
    start = start_ingress if role == "ingress" else start_everything
    installation = await start(loaded)
    try:
        yield installation
    finally:
        await installation.stop()


@requirement(
    "001/codes/uniform",
    "001/compose/up-beside-an-orchestrator",
    "001/dispatch/confirmation-or-error",
    "001/m4/errors-uniform",
    "001/m5/short-reconnect",
    "001/offline/no-cache",
    "001/tools/error-is-a-string",
)
@pytest.mark.parametrize("role", ["ingress", "up"])
async def test_our_ingress_stands_between_foreign_clients_and_a_foreign_orchestrator(
    tmp_path: Path, role: str
) -> None:
    played = ingress.OrchestratorPeer()
    url = await played.serve("127.0.0.1", 0)
    try:
        async with beside(url, tmp_path, role=role) as ours, a_client() as http:
            urls = ours.urls
            peer = ingress.ClientPeer(
                urls["ingress_ws"],
                http,
                API_KEY,
                urls["ingress_internal"],
                orchestrator=played,
                checks_key=True,
            )
            await holds(ingress.KIT, peer)
            if role == "up":
                assert urls["orchestrator"] == url
                assert ours.not_started == ["orchestrator"]
    finally:
        await played.close()


async def test_an_ingress_that_knows_only_the_seed_uses_our_orchestrator(tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY)
    async with a_client() as http:
        peer = orchestrator.IngressPeer("", http, INTERNAL_TOKEN, "script", session="sess_testkit")
        pushes = await peer.serve("127.0.0.1", 0)
        given = {
            "TOOLGATE_HOME": str(tmp_path / "home"),
            "ORCHESTRATOR_PORT": "0",
            "INTERNAL_TOKEN": INTERNAL_TOKEN,
            "INGRESS_URL": f"http://127.0.0.1:{pushes.addresses[0][1]}",
            "POLICY_FILE": str(policy),
            "LOG_LEVEL": "error",
        }
        ours = await start_orchestrator(table.load(given, environment={}))
        try:
            peer.url = ours.urls["orchestrator"]
            peer.tool_message = 'Look: [[tool:desk.look {"at": "sky"}]]'
            peer.approval_message = 'Sum: [[tool:math.add {"a": 1, "b": 2}]]'
            path = "/internal/sessions/sess_testkit/tools"
            assert (await peer.post(path, {"tools": ["desk.look"]})).is_success
            await holds(orchestrator.KIT, peer)
        finally:
            await ours.stop()
            await pushes.cleanup()


@requirement("001/tools/error-is-a-string")
@pytest.mark.parametrize("fails", [False, True])
async def test_our_client_uses_an_ingress_that_knows_only_the_seed(*, fails: bool) -> None:
    tools = Toolbox()

    @tools.tool("browser.screenshot")
    async def shoot(args: dict[str, Any]) -> dict[str, Any]:
        if fails:
            raise ToolFailed("no screen", code="no_screen")
        return {"file_path": "x.png", "of": args["url"]}

    async def decide(_: object) -> bool:
        return not fails

    peer = client.SmallIngress()
    address: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def step(text: str) -> None:
        if not address.done():
            address.set_result(text.split()[5])

    visit = asyncio.ensure_future(peer.visit("127.0.0.1", 0, wait_s=30, step=step))
    joined = connect(await address, user_id="u1", api_key="k", toolbox=tools, decide=decide)
    try:
        async with joined as session:
            assert await session.ask("你好", agent_id="agent_a") == "你好完成"
            await visit
        await holds(client.KIT, peer)
    finally:
        visit.cancel()
    (result,) = peer.of_type("tool_result")
    assert result["ok"] is not fails
    if fails:
        assert result["error"] == "no_screen: no screen"
