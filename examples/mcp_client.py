"""Use Toolgate's browser from the official MCP SDK, over streamable HTTP.

toolgate up &
TOKEN=$(toolgate token make me --kind agent --tools write --mcp)
python examples/mcp_client.py http://127.0.0.1:8787/mcp "$TOKEN"
"""

import asyncio
import sys

import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

TASK = {
    "templateId": "batch_extract_pages",
    "inputs": {"urls": ["http://pages.toolgate.example/"]},
    "options": {"mode": "sync"},
}


async def main(url: str, token: str) -> None:
    headers = {"Authorization": f"Bearer {token}"}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=60) as http,
        Client(streamable_http_client(url, http_client=http)) as client,
    ):
        for tool in (await client.list_tools()).tools:
            print(tool.name)
        answer = await client.call_tool("run_task_template", TASK)
        for item in (answer.structured_content or {})["result"]["items"]:
            print(item["url"], item["title"])


asyncio.run(main(sys.argv[1], sys.argv[2]))
