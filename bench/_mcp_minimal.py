"""The SDK's own server at its smallest, on stdio: one tool that answers with a fixed JSON."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import mcp_types as types
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server


async def serve(answer: dict[str, Any]) -> None:
    text = json.dumps(answer)

    async def list_tools(_ctx: Any, _params: Any) -> types.ListToolsResult:
        tool = types.Tool(name="get_task_run", input_schema={"type": "object"})
        return types.ListToolsResult(tools=[tool])

    async def call_tool(_ctx: Any, _params: Any) -> types.CallToolResult:
        return types.CallToolResult(
            content=[types.TextContent(type="text", text=text)], structured_content=answer
        )

    server: Server[Any] = Server("minimal", on_list_tools=list_tools, on_call_tool=call_tool)
    async with stdio_server() as (incoming, outgoing):
        await server.run(incoming, outgoing, server.create_initialization_options())


if __name__ == "__main__":
    asyncio.run(serve(json.loads(Path(sys.argv[1]).read_text())))
