"""Lists of hosts that may be reached from a sandbox: `name`, `*.suffix`, `name:port`."""

import re
from collections.abc import Callable, Sequence
from typing import Final

from toolgate.core.errors import Misconfigured

PORTS: Final = (80, 443)  # of a host that is listed without one

# A name as proxies see it, or an address; one that is not ASCII is written xn--.
_ENTRY: Final = re.compile(
    r"(?P<name>(\*\.)?[a-z0-9_-]+(\.[a-z0-9_-]+)*)\.?(:(?P<port>[0-9]{1,5}))?"
)

Allows = Callable[[str, int], bool]


def allows(hosts: Sequence[str]) -> Allows:
    """`name`, `*.suffix` or `name:port`; nothing by default. Raises Misconfigured for others."""
    entries = [_entry(host) for host in hosts]

    def allowed(host: str, port: int) -> bool:
        host = host.lower().rstrip(".")
        return any(_matches(host, name) and port in ports for name, ports in entries)

    return allowed


def _entry(text: str) -> tuple[str, tuple[int, ...]]:
    read = _ENTRY.fullmatch(text.strip().lower())
    if read is None or not 0 < int(read["port"] or PORTS[0]) < 65536:
        raise Misconfigured(
            f"egress to {text!r} cannot be granted: use name, *.suffix or name:port"
        )
    return read["name"], (int(read["port"]),) if read["port"] else PORTS


def _matches(host: str, name: str) -> bool:
    return host.endswith(name[1:]) if name.startswith("*.") else host == name
