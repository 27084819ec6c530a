"""MCP servers from a file in the form that MCP clients share: `{"mcpServers": {name: {...}}}`."""

from pathlib import Path

import msgspec

from toolgate.domain.capabilities import Capability, Server
from toolgate.domain.errors import Invalid, Misconfigured
from toolgate.domain.tools import Level

PREFIX = "mcp."


class _Server(msgspec.Struct, frozen=True):
    command: str = ""
    args: list[str] = []
    env: dict[str, str] = {}
    url: str = ""
    headers: dict[str, str] = {}


class _File(msgspec.Struct, frozen=True, rename="camel"):
    mcp_servers: dict[str, _Server]


def read_servers(path: Path) -> list[Capability]:
    """Each as the capability `mcp.<name>`; raises Misconfigured."""
    try:
        named = msgspec.json.decode(path.read_bytes(), type=_File).mcp_servers
        return [
            Capability(
                capability_id=name if name.startswith(PREFIX) else PREFIX + name,
                scope="browser" if name in ("playwright", "browser") else "mcp",
                level=Level.WRITE,
                updated_at=0,
                server=Server(
                    command=one.command,
                    args=tuple(one.args),
                    env=tuple(one.env.items()),
                    url=one.url,
                    headers=tuple(one.headers.items()),
                ),
            )
            for name, one in named.items()
        ]
    except (OSError, ValueError, Invalid) as wrong:
        raise Misconfigured(f"MCP_FILE {path}: {wrong}") from wrong
