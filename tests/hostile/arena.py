"""The host's side of an attack: what must stay secret, what must not be reached, who is watching."""

import asyncio
import contextlib
import os
import secrets
import shutil
import signal
import socket
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.hostile.places import PLAIN_UID, Place, Ran
from toolgate.sandbox.sandbox import MIB

SAMPLE_SECONDS: Final = 0.03
TICKS: Final = os.sysconf("SC_CLK_TCK")
PAGE: Final = os.sysconf("SC_PAGE_SIZE")


@dataclass(slots=True)
class Seen:
    """The worst that a watcher saw of an attack's processes."""

    most: int = 0
    most_bytes: int = 0
    cpu_seconds: float = 0.0
    as_root: bool = False
    traced: bool = False
    userns: set[str] = field(default_factory=set)
    priorities: set[int] = field(default_factory=set)


class Arena:
    """Made anew for each case."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.token = secrets.token_hex(8)
        self.secret = f"canary-{secrets.token_hex(16)}"
        self.folder = Path(tempfile.mkdtemp(prefix=f"hostile-{self.token}-"))
        self.folder.chmod(0o777)
        self.canary = self.folder / "canary"
        self.canary.write_text(self.secret)
        self.canary.chmod(0o644)
        self.reached: list[str] = []
        self.ports: dict[str, int] = {}
        self.victim: asyncio.subprocess.Process | None = None
        self._sockets: list[socket.socket] = []
        self._tasks: list[asyncio.Task[None]] = []

    async def open(self) -> None:
        """A victim of the attacker's own uid, and listeners on every way to the host."""
        self.victim = await asyncio.create_subprocess_exec(
            "setpriv", f"--reuid={PLAIN_UID}", f"--regid={PLAIN_UID}", "--clear-groups",
            "/bin/bash", "-c", 'exec -a "$0" sleep 600', f"victim-{self.secret}",
            env={"VICTIM": self.secret, "PATH": "/usr/bin:/bin"},
            start_new_session=True,
        )  # fmt: skip
        await self._until_the_victim_sleeps()
        self.listen("loopback", socket.AF_INET, ("127.0.0.1", 0))
        self.listen("anywhere", socket.AF_INET, ("0.0.0.0", 0))
        with contextlib.suppress(OSError):
            self.listen("loopback6", socket.AF_INET6, ("::1", 0))
        self.listen("unix", socket.AF_UNIX, str(self.folder / "host.sock"))
        self.listen("docker", socket.AF_UNIX, str(self.folder / "docker.sock"))
        self.listen("abstract", socket.AF_UNIX, f"\0hostile-{self.token}")
        self.listen("dns", socket.AF_INET, ("127.0.0.1", 0), kind=socket.SOCK_DGRAM)

    async def _until_the_victim_sleeps(self) -> None:
        """Before that it is setpriv, then bash: another user's, or with another memory map."""
        assert self.victim is not None
        async with asyncio.timeout(10):
            while host_text(f"/proc/{self.victim.pid}/comm") != "sleep\n":
                await asyncio.sleep(0.002)

    def listen(
        self,
        name: str,
        family: int,
        address: object,
        *,
        kind: int = socket.SOCK_STREAM,
    ) -> None:
        bound = socket.socket(family, kind)
        bound.bind(address)  # type: ignore[arg-type]
        bound.setblocking(False)
        if kind == socket.SOCK_STREAM:
            bound.listen()
        if family == socket.AF_UNIX and isinstance(address, str) and not address.startswith("\0"):
            Path(address).chmod(0o777)
        if family in (socket.AF_INET, socket.AF_INET6):
            self.ports[name] = bound.getsockname()[1]
        self._sockets.append(bound)
        self._tasks.append(asyncio.create_task(self._note(name, bound, kind)))

    async def _note(self, name: str, bound: socket.socket, kind: int) -> None:
        loop = asyncio.get_running_loop()
        while True:
            if kind == socket.SOCK_DGRAM:
                await loop.sock_recv(bound, 2048)
            else:
                connection, _ = await loop.sock_accept(bound)
                connection.close()
            self.reached.append(name)

    async def attack(
        self, text: str, *, python: bool = False, seconds: float = 4.0, **env: str
    ) -> Ran:
        marked = {"HOSTILE_TOKEN": self.token, **env}
        return await self.place.run(text, python=python, seconds=seconds, env=marked)

    async def control(self) -> str:
        """Afterwards an ordinary command must work as if nothing had been."""
        word = secrets.token_hex(6)
        ran = await self.place.run(f"echo {word}", python=False, seconds=10, env={})
        return "" if ran.text.strip() == word else f"the control answered {ran.text!r} {ran.failed}"

    def processes(self) -> list[int]:
        """The attack's processes, wherever they are: the mark is in their environment."""
        mark = f"HOSTILE_TOKEN={self.token}".encode()
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    if mark in (entry / "environ").read_bytes():
                        found.append(int(entry.name))
        return found

    async def survivors(self) -> list[int]:
        """Who is left, once the kernel has had a moment to bury the dead."""
        for _ in range(20):
            if not self.processes():
                return []
            await asyncio.sleep(0.02)
        return self.processes()

    @contextlib.asynccontextmanager
    async def watching(self) -> AsyncIterator[Seen]:
        seen = Seen()
        task = asyncio.create_task(self._watch(seen))
        try:
            yield seen
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def _watch(self, seen: Seen) -> None:
        spent: dict[int, float] = {}
        while True:
            self._look(seen, spent)
            seen.cpu_seconds = sum(spent.values())
            await asyncio.sleep(SAMPLE_SECONDS)

    def _look(self, seen: Seen, spent: dict[int, float]) -> None:
        pids = self.processes()
        seen.most = max(seen.most, len(pids))
        total = 0
        for pid in pids:
            with contextlib.suppress(OSError, IndexError, ValueError):
                folder = Path(f"/proc/{pid}")
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
                spent[pid] = (int(fields[11]) + int(fields[12])) / TICKS
                seen.priorities.add(int(fields[16]))
                total += int((folder / "statm").read_text().split()[1]) * PAGE
                status = (folder / "status").read_text()
                uids = status.partition("\nUid:")[2].partition("\n")[0].split()
                seen.as_root |= "0" in uids
                seen.userns.add(str((folder / "ns/user").readlink()))
        seen.most_bytes = max(seen.most_bytes, total)
        if self.victim is not None:
            with contextlib.suppress(OSError):
                status = Path(f"/proc/{self.victim.pid}/status").read_text()
                seen.traced |= "TracerPid:\t0\n" not in status

    def victim_lives(self) -> bool:
        return self.victim is not None and Path(f"/proc/{self.victim.pid}/exe").exists()

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for bound in self._sockets:
            bound.close()
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if self.victim is not None:
            with contextlib.suppress(ProcessLookupError):
                if self.victim.returncode is None:
                    os.kill(self.victim.pid, signal.SIGKILL)
            await self.victim.wait()
        self._sweep()

    def _sweep(self) -> None:
        for folder in ("/tmp", "/dev/shm"):
            for stray in Path(folder).glob(f"*{self.token}*"):
                shutil.rmtree(stray, ignore_errors=True)
                stray.unlink(missing_ok=True)


MEMORY_ALLOWED: Final = 256 * MIB + 64 * MIB


def host_text(path: str) -> str:
    """What the host's file says; empty where there is none."""
    with contextlib.suppress(OSError):
        return Path(path).read_text()
    return ""


def host_has(path: str) -> bool:
    return Path(path).exists()
