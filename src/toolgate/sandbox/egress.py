"""The way out of a sandbox, where one is granted: a guarded proxy per session, on a socket of its own.

The sandbox has no network; its agent passes connections from its own loopback to this socket. Which
hosts may be reached is decided here, outside, and each connection is checked as every fetch is.
"""

import shutil
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from toolgate.core.scratch import make_scratch
from toolgate.sandbox.egress_hosts import Allows, allows
from toolgate.sandbox.sandbox import SessionKey
from toolgate.web.egress_proxy import Client, EgressDecision, EgressProxy
from toolgate.web.guard import Guard

Note = Callable[[SessionKey, EgressDecision], Awaitable[None] | None]


def unnoted(_key: SessionKey, _decision: EgressDecision) -> None:
    """For sessions whose connections nobody records."""


def same_for_all(hosts: Sequence[str]) -> Callable[[SessionKey], Allows | None]:
    """One list for every session, as a runner has it."""
    allowed = allows(hosts) if hosts else None
    return lambda _: allowed


def _name(key: SessionKey) -> str:
    """Short: the path of a socket has room for 107 characters, and some are the machine's."""
    return key.digest[:16]


class SandboxEgress:
    """An Egress (`sandbox.sandbox`): `grants` says what a session may reach; None: no network."""

    def __init__(
        self,
        guard: Guard,
        *,
        grants: Callable[[SessionKey], Allows | None],
        note: Note = unnoted,
        closed: Callable[[SessionKey], None] = lambda _: None,
    ) -> None:
        self._guard = guard
        self._grants = grants
        self._note = note
        self._closed = closed
        self._folder: Path | None = None
        self._proxies: dict[SessionKey, EgressProxy] = {}

    async def open(self, key: SessionKey) -> Path | None:
        granted = self._grants(key)
        if granted is None:
            return None
        await self.close(key)
        client = Client(name=key.digest, allows=granted)
        proxy = EgressProxy(
            self._guard, default=client, decided=lambda decision: self._note(key, decision)
        )
        path = self._place() / _name(key)
        path.unlink(missing_ok=True)
        self._proxies[key] = proxy  # from here on the folder is in use
        await proxy.listen_unix(path)
        path.chmod(0o666)  # the sandbox's user is nobody we know; only its sandbox has the socket
        return path

    async def close(self, key: SessionKey) -> None:
        proxy = self._proxies.pop(key, None)
        if proxy is not None:
            await proxy.close()
            self._closed(key)
            if self._folder is not None:
                (self._folder / _name(key)).unlink(missing_ok=True)
            if not self._proxies and self._folder is not None:
                shutil.rmtree(self._folder, ignore_errors=True)
                self._folder = None

    def _place(self) -> Path:
        if self._folder is None or not self._folder.is_dir():  # it may have been cleaned up
            self._folder = make_scratch("egress")
            self._folder.chmod(0o711)  # to be walked through by who knows the name, not listed
        return self._folder
