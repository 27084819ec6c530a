"""A place where foreign commands run: opened per session, warm between commands, gone afterwards.

`open(session) -> exec/stream/kill/files`. Who may run what was decided before; nothing here asks.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import sha256
from pathlib import Path
from typing import Final, Protocol

KIB: Final = 1024
MIB: Final = 1024 * KIB


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one session. The figures are the design's."""

    wall_seconds: float = 14.0  # inside the gateway's 15
    wall_cap_seconds: float = 175.0  # inside the gateway's 180
    drain_seconds: float = 2.0
    memory_bytes: int = 256 * MIB
    pids: int = 64
    cpus: float = 1.0
    disk_bytes: int = 64 * MIB
    disk_inodes: int = 16_384  # a command that makes more is refused them, or killed
    open_files: int = 1024
    stream_bytes: int = 256 * KIB  # of each stream, half from its head and half from its tail
    flood_bytes: int = 16 * MIB  # a command that writes more is killed
    idle_seconds: float = 15 * 60.0
    life_seconds: float = 2 * 3600.0


@dataclass(frozen=True, slots=True)
class SessionKey:
    """Whose session: two keys that differ never share a sandbox."""

    tenant: str
    workspace: str
    session: str

    @property
    def digest(self) -> str:
        """A name that is safe in any path, whatever characters a caller's ids hold."""
        parts = (self.tenant, self.workspace, self.session)
        text = "".join(f"{len(part)}:{part}" for part in parts)
        return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class SessionSpec:
    key: SessionKey
    env: Mapping[str, str] = field(default_factory=dict)
    egress: Path | None = None  # the unix socket of a guarded proxy; None: no network at all


class Interpreter(StrEnum):
    SHELL = "shell"
    PYTHON = "python"


@dataclass(frozen=True, slots=True)
class Command:
    """A text for an interpreter, or, with `argv`, a program and its words, run without one."""

    text: str = ""
    interpreter: Interpreter = Interpreter.SHELL
    cwd: str = ""  # relative to the workspace; empty: where the last command left off
    env: Mapping[str, str] = field(default_factory=dict)
    timeout_seconds: float | None = None
    links: bool = True  # whether there may be one in `cwd`
    argv: tuple[str, ...] = ()
    clean: bool = False  # the session's first environment, git without configuration of its own


class Stream(StrEnum):
    STDOUT = "stdout"
    STDERR = "stderr"


Piece = Callable[[Stream, bytes], None]  # a piece of output as it comes


def no_piece(_stream: Stream, _data: bytes) -> None:
    """For callers that only want the end."""


@dataclass(frozen=True, slots=True)
class Finished:
    """A command that ran to some end of its own or of ours."""

    exit_code: int  # 128 + signal where a signal ended it, as shells count
    stdout: bytes
    stderr: bytes
    stdout_total: int
    stderr_total: int
    timed_out: bool = False
    flooded: bool = False
    killed: bool = False
    crowded: bool = False  # it made more files than there may be
    cut: bool = False  # something is missing from the middle of a stream, and a note stands there


@dataclass(frozen=True, slots=True)
class Entry:
    path: str
    kind: str  # file | dir | link | other
    size: int


class SandboxError(Exception):
    """A sandbox could not do what was asked.

    SandboxError
    ├── NotStarted    nothing has run
    │   └── NoCwd     the command's directory is outside the workspace or cannot be entered
    ├── Lost          the sandbox died under the command, which may have run
    └── FileRefused   a path outside the workspace, or one that cannot be had
    """


class NotStarted(SandboxError):
    pass


class NoCwd(NotStarted):
    pass


class Lost(SandboxError):
    pass


class FileRefused(SandboxError):
    pass


class Files(Protocol):
    """The workspace's files. Every path is resolved beneath it, symlinks included."""

    async def read(self, path: str, *, limit: int, offset: int = 0) -> bytes:
        """At most `limit` bytes, from `offset` on; fewer where the file ends."""
        ...

    async def version(self, path: str) -> str:
        """Another one whenever the file or its content is another."""
        ...

    async def write(self, path: str, content: bytes, *, append: bool = False) -> int:
        """Write, making directories as needed; returns the file's size afterwards."""
        ...

    async def list(self, path: str, *, recursive: bool, limit: int) -> Sequence[Entry]: ...


class Session(Protocol):
    @property
    def alive(self) -> bool: ...

    @property
    def busy(self) -> bool:
        """True while a command or a file operation runs."""
        ...

    @property
    def files(self) -> Files: ...

    @property
    def unlinked_files(self) -> Files:
        """The same files, where a path with a link in it is refused, and a file of two names."""
        ...

    async def exec(self, command: Command, *, piece: Piece = no_piece) -> Finished:
        """Run one command, after those before it. Cancelling the task kills it.

        Raises NotStarted or Lost. Output comes to `piece` as it is written, up to the cap.
        """
        ...

    async def kill(self) -> None:
        """End the command that runs, if one does; the session goes on."""
        ...

    async def close(self) -> None:
        """Destroy the sandbox and everything in it."""
        ...


class Sandbox(Protocol):
    @property
    def isolation(self) -> str:
        """The name in evidence and health: `bwrap`, `docker`, `docker+runsc`, `none`."""
        ...

    @property
    def can_be_clean(self) -> bool:
        """False once the check has seen that a clean command's git could start other programs."""
        ...

    async def check(self) -> None:
        """Prove that the isolation holds here; raises Unavailable with the reason."""
        ...

    async def open(self, spec: SessionSpec) -> Session:
        """A new session; raises NotStarted."""
        ...

    async def close(self) -> None:
        """Destroy every session and leave nothing behind."""
        ...


class Egress(Protocol):
    """The sessions that may use the network, each through a proxy."""

    async def open(self, key: SessionKey) -> Path | None:
        """The socket of a guarded proxy that a sandbox may use; None: no network for this one."""
        ...

    async def close(self, key: SessionKey) -> None: ...
