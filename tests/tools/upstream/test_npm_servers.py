"""MCP servers from npm in the sandbox, with no mount but the directory that they serve."""

import asyncio
import os
from pathlib import Path

import pytest

from tests.support.npm import node, npm_file
from tests.support.upstreams import mcp_upstreams, programs_in
from toolgate.core.tools import JsonValue, ToolOutput, ToolRequest
from toolgate.tools.capabilities import Mount, Server

EVERYTHING = "@modelcontextprotocol/server-everything/dist/index.js"
FILESYSTEM = "@modelcontextprotocol/server-filesystem/dist/index.js"


async def ask(server: Server, home: Path, action: str, **args: JsonValue) -> ToolOutput:
    programs = programs_in(home)
    sessions = mcp_upstreams(lambda _: server, report=lambda *_: None, programs=programs)
    try:
        async with asyncio.timeout(60):
            return await sessions.run(ToolRequest("r", f"mcp.test.{action}", args))
    finally:
        await sessions.close()
        await programs.sandbox.close()


async def test_the_server_with_everything_answers(tmp_path: Path) -> None:
    server = Server(command=node(), args=(str(npm_file(EVERYTHING)),))
    output = await ask(server, tmp_path, "echo", message="hello")
    assert output.stdout == "Echo: hello"


@pytest.mark.parametrize("how", ["by node", "by its name"])
async def test_the_filesystem_server_serves_its_directory_and_no_other(
    tmp_path: Path, how: str
) -> None:
    served = tmp_path / "served"
    served.mkdir()
    if os.geteuid() == 0:
        os.chown(served, 12345, 12345)
    mount = Mount(str(served), "/data", writable=True)
    script = npm_file(FILESYSTEM)
    by_name = npm_file(".bin/mcp-server-filesystem")
    command = (str(by_name),) if how == "by its name" else (node(), str(script))
    server = Server(command=command[0], args=(*command[1:], "/data"), mounts=(mount,))
    written = await ask(server, tmp_path / "home", "write_file", path="/data/a", content="text")
    assert written.ok, written.stderr
    assert (served / "a").read_text() == "text"
    other = await ask(server, tmp_path / "home", "read_text_file", path=str(served / "a"))
    assert not other.ok
