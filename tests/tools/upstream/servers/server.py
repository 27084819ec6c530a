"""An MCP server on the official SDK: `server.py stdio`, or `server.py http PORT`."""

import os
import sys
import time

from mcp.server import MCPServer
from mcp.types import ToolAnnotations

server = MCPServer("test")


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def echo(text: str) -> str:
    return text


@server.tool()
def write(text: str) -> str:
    return f"wrote {text}"


@server.tool(annotations=ToolAnnotations(destructive_hint=True))
def destroy() -> str:
    return "gone"


@server.tool(annotations=ToolAnnotations(read_only_hint=False))
def change() -> str:
    return "changed"


@server.tool()
def fail() -> str:
    raise ValueError("it broke")


@server.tool()
def die() -> str:
    os._exit(3)


@server.tool()
def hang() -> str:
    time.sleep(600)
    return ""


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def big(megabytes: int) -> str:
    return "x" * (megabytes * 1_000_000)


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def pid() -> str:
    return str(os.getpid())


if __name__ == "__main__":
    if sys.argv[1] == "stdio":
        server.run("stdio")
    else:
        server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[2]))
