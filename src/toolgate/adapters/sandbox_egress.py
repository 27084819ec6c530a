"""The way out of a sandbox, where one is granted: a guarded proxy per session, on a socket of its own.

The sandbox has no network; its agent passes connections from its own loopback to this socket. Which
hosts may be reached is decided here, outside, and each connection is checked as every fetch is.
"""

import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from toolgate.adapters.egress_proxy import Client, Decided, EgressProxy, unnoted
from toolgate.adapters.web_guard import Guard
from toolgate.ports.sandbox import SessionKey

PORTS: Final = (80, 443)  # of a host that is listed without one


def allows(hosts: Sequence[str]) -> Callable[[str, int], bool]:
    """`name`, `*.suffix` or `name:port`; nothing else, and nothing by default."""
    entries = [_entry(host) for host in hosts]

    def allowed(host: str, port: int) -> bool:
        host = host.lower().rstrip(".")
        return any(_matches(host, name) and port in ports for name, ports in entries)

    return allowed


def _entry(text: str) -> tuple[str, tuple[int, ...]]:
    name, colon, port = text.strip().lower().rpartition(":")
    if colon and port.isdigit():
        return name, (int(port),)
    return text.strip().lower(), PORTS


def _matches(host: str, name: str) -> bool:
    return host.endswith(name[1:]) if name.startswith("*.") else host == name


class SandboxEgress:
    """An Egress (ports.sandbox): `hosts_for` says what a session may reach; nothing: no network."""

    def __init__(
        self,
        guard: Guard,
        *,
        hosts_for: Callable[[SessionKey], Sequence[str]],
        decided: Decided = unnoted,
    ) -> None:
        self._guard = guard
        self._hosts_for = hosts_for
        self._decided = decided
        self._folder: Path | None = None
        self._proxies: dict[SessionKey, EgressProxy] = {}

    async def open(self, key: SessionKey) -> Path | None:
        hosts = self._hosts_for(key)
        if not hosts:
            return None
        await self.close(key)
        client = Client(name=key.digest, allows=allows(hosts))
        proxy = EgressProxy(self._guard, default=client, decided=self._decided)
        path = self._place() / f"{key.digest}.sock"
        path.unlink(missing_ok=True)
        await proxy.listen_unix(path)
        path.chmod(0o666)  # the sandbox's user is nobody we know; only its sandbox has the socket
        self._proxies[key] = proxy
        return path

    async def close(self, key: SessionKey) -> None:
        proxy = self._proxies.pop(key, None)
        if proxy is not None:
            await proxy.close()
            if self._folder is not None:
                (self._folder / f"{key.digest}.sock").unlink(missing_ok=True)
            if not self._proxies and self._folder is not None:
                shutil.rmtree(self._folder, ignore_errors=True)
                self._folder = None

    def _place(self) -> Path:
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix=f"toolgate-egress-{os.getpid()}-"))
            self._folder.chmod(0o711)  # to be walked through by who knows the name, not listed
        return self._folder
