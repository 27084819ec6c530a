"""MCP servers from a file in the form that MCP clients share: `{"mcpServers": {name: {...}}}`."""

from pathlib import Path

import msgspec

from toolgate.core.enums import Isolation, Level
from toolgate.core.errors import Invalid, Misconfigured
from toolgate.tools.capabilities import (
    BROWSER_CAPABILITY,
    PLAYWRIGHT_CAPABILITY,
    PLAYWRIGHT_SCOPE,
    Capability,
    Mount,
    Server,
)

PREFIX = "mcp."


class _Server(msgspec.Struct, frozen=True):
    command: str = ""
    args: list[str] = []
    env: dict[str, str] = {}
    url: str = ""
    headers: dict[str, str] = {}
    mounts: list[str] = []
    egress: list[str] = []
    isolation: Isolation = Isolation.SANDBOX


class _File(msgspec.Struct, frozen=True, rename="camel"):
    mcp_servers: dict[str, _Server]


def read_servers(path: Path) -> list[Capability]:
    """Read the servers, each as the capability `mcp.<name>`; raises Misconfigured."""
    try:
        named = msgspec.json.decode(path.read_bytes(), type=_File).mcp_servers
        found = [_capability(name, one) for name, one in named.items()]
    except (OSError, ValueError, Invalid) as wrong:
        raise Misconfigured(f"MCP_FILE {path}: {wrong}") from wrong
    names = [one.capability_id for one in found]
    if BROWSER_CAPABILITY in names:
        raise Misconfigured(
            f"MCP_FILE {path}: {BROWSER_CAPABILITY} is Toolgate's own browser tasks"
        )
    if len(set(names)) != len(names):
        raise Misconfigured(f"MCP_FILE {path}: a server is there twice, with {PREFIX} and without")
    return found


def _capability(name: str, server: _Server) -> Capability:
    capability_id = name if name.startswith(PREFIX) else PREFIX + name
    return Capability(
        capability_id=capability_id,
        scope=PLAYWRIGHT_SCOPE if capability_id == PLAYWRIGHT_CAPABILITY else "mcp",
        level=Level.WRITE,
        updated_at=0,
        server=Server(
            command=server.command,
            args=tuple(server.args),
            env=tuple(server.env.items()),
            url=server.url,
            headers=tuple(server.headers.items()),
            mounts=tuple(map(Mount.parse, server.mounts)),
            egress=tuple(server.egress),
            isolation=server.isolation,
        ),
    )
