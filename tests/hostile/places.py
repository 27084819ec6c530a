"""Where an attack is run: in a sandbox, or, to see what the judges see, in a plain subprocess."""

import asyncio
import contextlib
import os
import shutil
import signal
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from toolgate.sandbox.cgroups import Group
from toolgate.sandbox.sandbox import (
    MIB,
    Command,
    Finished,
    Interpreter,
    Sandbox,
    SandboxError,
    Session,
    SessionKey,
    SessionSpec,
)

PLAIN_UID: Final = 1_600_000_001
FLOOD: Final = 16 * MIB


@dataclass(frozen=True, slots=True)
class Ran:
    """What an attack could show of itself."""

    output: bytes
    exit_code: int
    seconds: float
    failed: str = ""

    @property
    def text(self) -> str:
        return self.output.decode("utf-8", "replace")


class Place(Protocol):
    name: str

    async def run(
        self, text: str, *, python: bool, seconds: float, env: Mapping[str, str]
    ) -> Ran: ...

    async def read(self, path: str) -> bytes: ...

    async def write(self, path: str, content: bytes) -> None: ...

    async def kill(self) -> None: ...

    async def another(self, key: SessionKey) -> "Place": ...

    async def close(self) -> None: ...


class SandboxPlace:
    """A session; one that an attack has ended is opened anew."""

    def __init__(self, sandbox: Sandbox, key: SessionKey) -> None:
        self.name = sandbox.isolation
        self._sandbox = sandbox
        self._key = key
        self._session: Session | None = None
        self._others: list[SandboxPlace] = []

    async def session(self) -> Session:
        if self._session is None or not self._session.alive:
            self._session = await self._sandbox.open(SessionSpec(self._key))
        return self._session

    async def run(self, text: str, *, python: bool, seconds: float, env: Mapping[str, str]) -> Ran:
        loop = asyncio.get_running_loop()
        interpreter = Interpreter.PYTHON if python else Interpreter.SHELL
        session = await self.session()
        started = loop.time()
        try:
            done: Finished = await session.exec(
                Command(text, interpreter, env=env, timeout_seconds=seconds)
            )
        except SandboxError as failed:
            return Ran(b"", -1, loop.time() - started, failed=str(failed))
        return Ran(done.stdout + done.stderr, done.exit_code, loop.time() - started)

    async def read(self, path: str) -> bytes:
        with contextlib.suppress(SandboxError):
            return await (await self.session()).files.read(path, limit=4096)
        return b""

    async def write(self, path: str, content: bytes) -> None:
        with contextlib.suppress(SandboxError):
            await (await self.session()).files.write(path, content)

    async def kill(self) -> None:
        await (await self.session()).kill()

    async def another(self, key: SessionKey) -> Place:
        other = SandboxPlace(self._sandbox, key)
        self._others.append(other)
        return other

    async def close(self) -> None:
        for place in self._others:
            await place.close()
        if self._session is not None:
            await self._session.close()


class PlainPlace:
    """The usual thing: another user, rlimits, a deadline, and killpg at the end."""

    name = "plain"

    def __init__(self, outer: Group, root: Path | None = None, uid: int = PLAIN_UID) -> None:
        self._outer = outer
        self._own_root = root is None
        self._root = root or Path(tempfile.mkdtemp(prefix="hostile-plain-"))
        self._root.chmod(0o711)
        self._uid = uid
        self.workspace = self._root / f"w{len(list(self._root.iterdir()))}"
        self.workspace.mkdir()
        os.chown(self.workspace, uid, uid)
        self._running: asyncio.subprocess.Process | None = None

    async def run(self, text: str, *, python: bool, seconds: float, env: Mapping[str, str]) -> Ran:
        loop = asyncio.get_running_loop()
        started = loop.time()
        doors = [str(path) for path in self._outer.entrances]
        enter = (
            'n=$1; shift; while [ $n -gt 0 ]; do echo $$ > "$1"; shift; n=$((n-1)); done; exec "$@"'
        )
        command = ["/bin/sh", "-c", enter, "enter", str(len(doors)), *doors]
        command += ["setpriv", f"--reuid={self._uid}", f"--regid={self._uid}", "--clear-groups"]
        command += [
            "prlimit",
            "--core=0",
            "--nofile=1024",
            f"--as={512 * MIB}",
            f"--fsize={64 * MIB}",
        ]
        command += ["--nproc=64", *(["/usr/bin/python3"] if python else ["/bin/bash"]), "-c", text]
        read_end, write_end = os.pipe()  # asyncio's own pipe would make wait() wait for daemons too
        try:
            self._running = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=write_end,
                stderr=write_end,
                cwd=self.workspace,
                env={"PATH": "/usr/bin:/bin", "HOME": str(self.workspace), **env},
                start_new_session=True,
            )
        except (OSError, ValueError) as failed:
            os.close(read_end)
            return Ran(b"", -1, loop.time() - started, failed=str(failed))
        finally:
            os.close(write_end)
        reader = asyncio.StreamReader()
        pipe, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(read_end, "rb")
        )
        output = bytearray()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while len(output) < FLOOD and (part := await reader.read(65536)):
                    output += part
                await self._running.wait()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._running.pid, signal.SIGKILL)
        code = await self._running.wait()
        pipe.close()
        return Ran(bytes(output), code, loop.time() - started)

    async def read(self, path: str) -> bytes:
        with contextlib.suppress(OSError, ValueError):
            whole = self.workspace / path
            return whole.read_bytes()[:4096] if whole.is_file() else b""
        return b""

    async def write(self, path: str, content: bytes) -> None:
        with contextlib.suppress(OSError, ValueError):
            (self.workspace / path).write_bytes(content)

    async def kill(self) -> None:
        if self._running is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._running.pid, signal.SIGKILL)

    async def another(self, key: SessionKey) -> Place:
        return PlainPlace(self._outer, self._root, self._uid)

    async def close(self) -> None:
        if self._own_root:
            shutil.rmtree(self._root, ignore_errors=True)
