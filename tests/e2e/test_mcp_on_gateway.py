"""Browser tasks over MCP on the gateway's port of the installed program, behind its doors."""

from collections.abc import AsyncIterator

import aiohttp
import pytest
import pytest_asyncio

from tests.e2e.harness import Program, running

pytestmark = pytest.mark.asyncio(loop_scope="module")

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


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def program(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Program]:
    async with running(tmp_path_factory.mktemp("mcp") / "home") as started:
        yield started


@pytest.mark.parametrize(
    ("method", "path"),
    [("POST", ""), ("GET", ""), ("DELETE", ""), ("GET", "/sse"), ("POST", "/message?sessionId=x")],
)
async def test_every_door_of_mcp_needs_a_token_and_an_origin_of_ours(
    program: Program, method: str, path: str
) -> None:
    url = program.urls["mcp"] + path
    right = {"Authorization": f"Bearer {(program.home / 'operator.token').read_text()}"}
    async with aiohttp.ClientSession(headers=JSON) as http:

        async def status(headers: dict[str, str]) -> int:
            async with http.request(method, url, json=INITIALIZE, headers=headers) as answer:
                return answer.status

        assert await status({}) == 401
        assert await status({"Authorization": "Bearer nonsense"}) == 401
        assert await status({"Authorization": "Basic nonsense"}) == 401
        for stranger in ("https://evil.example", "null", f"{program.urls['mcp']}.evil.example"):
            assert await status({**right, "Origin": stranger}) == 403
        assert await status({**right, "Host": "evil.example"}) == 403
        own = {**right, "Origin": program.urls["gateway"]}
        assert await status(own) == {"": {"POST": 200}, "/sse": {"GET": 200}}.get(path, {}).get(
            method, 400
        )


async def test_a_stock_client_lists_the_seven_tools_through_the_gateway(program: Program) -> None:
    mcp = pytest.importorskip("mcp.client.streamable_http")
    from mcp import ClientSession  # noqa: PLC0415 - heavy, and only here

    token = (program.home / "operator.token").read_text()
    import httpx2  # noqa: PLC0415 - what the SDK speaks HTTP with

    async with (
        httpx2.AsyncClient(headers={"Authorization": f"Bearer {token}"}) as http,
        mcp.streamable_http_client(program.urls["mcp"], http_client=http) as streams,
        ClientSession(streams[0], streams[1]) as session,
    ):
        await session.initialize()
        tools = await session.list_tools()
        assert len(tools.tools) == 7
