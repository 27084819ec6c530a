"""Browser tasks over MCP on the gateway's port of the installed program, behind its doors."""

from pathlib import Path

import aiohttp
import pytest

from tests.e2e.harness import running

INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    },
}
JSON = {"Accept": "application/json, text/event-stream"}


async def test_mcp_needs_a_token_and_an_origin_of_ours(tmp_path: Path) -> None:
    home = tmp_path / "home"
    async with running(home) as program, aiohttp.ClientSession(headers=JSON) as http:
        url = program.urls["mcp"]
        assert (await http.post(url, json=INITIALIZE)).status == 401
        wrong = {"Authorization": "Bearer nonsense"}
        assert (await http.post(url, json=INITIALIZE, headers=wrong)).status == 401
        right = {"Authorization": f"Bearer {(home / 'operator.token').read_text()}"}
        foreign = {**right, "Origin": "https://evil.example"}
        assert (await http.post(url, json=INITIALIZE, headers=foreign)).status == 403
        rebound = {**right, "Host": "evil.example"}
        assert (await http.post(url, json=INITIALIZE, headers=rebound)).status == 403
        answer = await http.post(url, json=INITIALIZE, headers=right)
        assert answer.status == 200
        assert "serverInfo" in await answer.text()


async def test_a_stock_client_lists_the_seven_tools_through_the_gateway(tmp_path: Path) -> None:
    mcp = pytest.importorskip("mcp.client.streamable_http")
    from mcp import ClientSession  # noqa: PLC0415 - heavy, and only here

    home = tmp_path / "home"
    async with running(home) as program:
        token = (home / "operator.token").read_text()
        import httpx2  # noqa: PLC0415 - what the SDK speaks HTTP with

        async with (
            httpx2.AsyncClient(headers={"Authorization": f"Bearer {token}"}) as http,
            mcp.streamable_http_client(program.urls["mcp"], http_client=http) as streams,
            ClientSession(streams[0], streams[1]) as session,
        ):
            await session.initialize()
            tools = await session.list_tools()
            assert len(tools.tools) == 7
