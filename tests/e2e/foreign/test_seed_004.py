"""A foreign MCP client against our browser tasks, over each transport."""

from pathlib import Path

import aiohttp
import pytest

from tests.e2e.foreign import a_client, holds
from tests.e2e.harness import PROGRAM, Program, environment, running, started
from toolgate.testkit import browser

OPERATOR = "token-of-the-operator"


async def a_token(up: Program, http: aiohttp.ClientSession) -> str:
    """A credential of the client's own: the operator's is not for MCP."""
    url = f"{up.urls['gateway']}/tokens"
    body = {"name": "testkit", "scope": {"tools": "write", "mcp": True}}
    bearer = {"Authorization": f"Bearer {OPERATOR}"}
    async with http.post(url, json=body, headers=bearer) as answer:
        return str((await answer.json())["data"]["token"])


@pytest.mark.parametrize("role", ["up", "http", "sse", "stdio"])
async def test_a_client_that_knows_only_the_seed_uses_our_browser(
    tmp_path: Path, role: str
) -> None:
    home = tmp_path / "home"
    async with a_client() as http, browser.serving_page() as page:
        peer = browser.McpClientPeer(http, page)
        try:
            if role == "up":
                async with running(home, OPERATOR_TOKEN=OPERATOR) as up:
                    peer.url = up.urls["mcp"]
                    peer.token = await a_token(up, http)
                    await peer.open()
                    await holds(browser.KIT, peer)
            elif role in ("http", "sse"):
                more = (f"--{role}", "--port=0")
                async with started(Program(home, role="browser", more=more)) as alone:
                    peer.url = alone.urls["mcp_sse" if role == "sse" else "mcp"]
                    await peer.open()
                    await holds(browser.KIT, peer)
            else:
                given = environment({"TOOLGATE_HOME": str(home), "LOG_LEVEL": "error"})
                words = ["env", "-i", *(f"{name}={value}" for name, value in given.items())]
                await peer.open(*words, str(PROGRAM), "browser", "--stdio")
                await holds(browser.KIT, peer)
        finally:
            await peer.close()
