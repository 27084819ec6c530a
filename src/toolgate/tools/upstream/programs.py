"""The start of an MCP server's program: in the sandbox, unless `isolation: none` is registered.

In the sandbox a program sees the read-only system, its own installation, its mounts and a workspace
of its own. What belongs to its installation is found by `installation`.
"""

import contextlib
import os
import re
import shutil
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from toolgate.core.enums import Isolation
from toolgate.sandbox.egress import SandboxEgress
from toolgate.sandbox.programs import Bind, Launch, NotIsolated, Program, ProgramSandbox
from toolgate.sandbox.sandbox import SessionKey
from toolgate.sandbox.session import PATH_ENV
from toolgate.tools.capabilities import Mount, Server

TENANT: Final = "t_default"
WORKSPACE: Final = "mcp"
LARGEST_WORKSPACE: Final = 1024 * 1024 * 1024  # bytes; each file also has the sandbox's limit
MOST_FILES: Final = 200_000
MOST_LINKS: Final = 16  # from one name of a program to the next
INTERPRETER: Final = re.compile(r"(python|node|deno|bun|ruby|perl|bash|sh)[0-9.]*")
PARTS: Final = ("bin", "lib", "lib64", "pyvenv.cfg")  # of a prefix that programs are installed in


def unboxed(server: Server) -> Launch:
    """A start as the gateway's user, with the few variables that the SDK passes on."""
    from mcp.client.stdio import get_default_environment  # noqa: PLC0415 - see mcp_session

    return Launch((server.command, *server.args), {**get_default_environment(), **dict(server.env)})


@dataclass(slots=True)
class Programs:
    """The way to start the program of a server, as it is registered."""

    sandbox: ProgramSandbox
    egress: Callable[[SessionKey, Sequence[str]], SandboxEgress]
    workspaces: Path
    protected: Sequence[Path]  # the gateway's own files: no program may see them
    _starts: int = field(default=0)

    @contextlib.asynccontextmanager
    async def start(self, name: str, server: Server) -> AsyncIterator[Launch]:
        """Raises NotIsolated."""
        if server.isolation is Isolation.NONE:
            yield unboxed(server)
            return
        self._starts += 1
        key = SessionKey(TENANT, WORKSPACE, f"{name}#{self._starts}")
        command = shutil.which(server.command)
        if command is None:
            raise NotIsolated(f"the program {server.command} was not found in PATH")
        workspace = self._workspace(name)
        own = Installation(command, server.args)
        binds = [*own.binds, *map(_mounted, server.mounts)]
        self._check(binds)
        env = {"PATH": ":".join([*own.path, PATH_ENV]), **dict(server.env)}
        egress = self.egress(key, server.egress) if server.egress else None
        try:
            way_out = None if egress is None else await egress.open(key)
            given = {bind.inside: bind for bind in binds}  # a mount counts, not our own guess
            program = Program(
                key, [command, *server.args], env, list(given.values()), workspace, way_out
            )
            async with self.sandbox.launch(program) as launch:
                yield launch
        finally:
            if egress is not None:
                await egress.close(key)

    def workspace_of(self, name: str) -> Path:
        return self.workspaces / SessionKey(TENANT, WORKSPACE, name).digest

    def _workspace(self, name: str) -> Path:
        workspace = self.workspace_of(name)
        try:
            workspace.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as refused:
            raise NotIsolated(f"the workspace {workspace} cannot be made: {refused}") from refused
        if is_full(workspace):
            raise NotIsolated(
                f"the workspace {workspace} holds more than {LARGEST_WORKSPACE >> 20} MiB or "
                f"{MOST_FILES} files: remove some"
            )
        return workspace

    def _check(self, binds: Sequence[Bind]) -> None:
        for bind in binds:
            source = Path(bind.source)
            for own in self.protected:
                if own.is_relative_to(source) or source.is_relative_to(own):
                    raise NotIsolated(
                        f"mount {bind.source}: Toolgate's own files are in it; mount a directory "
                        "beside them"
                    )


def _mounted(mount: Mount) -> Bind:
    """Raises NotIsolated, with what to register in its place."""
    real = os.path.realpath(mount.host)
    if real != mount.host:  # a link may lead elsewhere tomorrow
        raise NotIsolated(f"mount {mount.host}: it is a symbolic link; register {real}")
    try:
        found = Path(mount.host).stat()
    except OSError as missing:
        raise NotIsolated(f"mount {mount.host}: {missing.strerror}") from missing
    if mount.writable and os.geteuid() == 0 and found.st_uid == 0 and not found.st_mode & 0o002:
        raise NotIsolated(
            f"mount {mount.host}: it is root's, and a server may not write as root; give it to "
            "another user (chown), or mount it ro"
        )
    return Bind(mount.host, mount.inside, mount.writable)


def is_full(workspace: Path) -> bool:
    """True if a workspace holds more than it may."""
    size = files = 0
    for folder, _, names in os.walk(workspace):
        for name in names:
            with contextlib.suppress(OSError):
                size += os.lstat(f"{folder}/{name}").st_blocks * 512
        files += len(names) + 1
        if size > LARGEST_WORKSPACE or files > MOST_FILES:
            return True
    return False


class Installation:
    """The files of a program that it cannot run without, read-only, at the paths they have here.

    They are: the program, the prefix it is installed in, its interpreter's prefix, the node_modules
    it lies in, and the script that an interpreter is given.
    """

    def __init__(self, command: str, args: Sequence[str]) -> None:
        self._binds: dict[str, Bind] = {}
        self.path: list[str] = []
        self._add_program(command)
        if INTERPRETER.fullmatch(Path(command).name):
            script = next((argument for argument in args if not argument.startswith("-")), "")
            if script.startswith("/") and Path(script).is_file():
                self._add_file(script)

    @property
    def binds(self) -> list[Bind]:
        return list(self._binds.values())

    def _add_program(self, command: str) -> None:
        for name in _names(command):
            self._add_file(name)
            folder = str(Path(name).parent)
            if not _is_system(folder) and folder not in self.path:
                self.path.append(folder)
        if (interpreter := _interpreter(command, self.path)) is not None:
            self._add_program(interpreter)

    def _add_file(self, name: str) -> None:
        path = Path(name)
        if _is_system(name):
            return
        if "node_modules" in path.parts:
            outermost = path.parts.index("node_modules") + 1
            self._add(Path(*path.parts[:outermost]))
        elif path.parent.name == "bin":
            prefix = path.parent.parent
            for part in PARTS:
                self._add(prefix / part)
        else:
            self._add(path)

    def _add(self, path: Path) -> None:
        if path.exists() and not any(path.is_relative_to(known) for known in self._binds):
            self._binds[str(path)] = Bind(os.path.realpath(path), str(path))


def _names(command: str) -> Iterator[str]:
    """The path of a program, then those that its symbolic links lead to, one by one."""
    for _ in range(MOST_LINKS):
        yield command
        if not Path(command).is_symlink():
            return
        command = os.path.normpath(Path(command).parent / Path(command).readlink())


def _interpreter(command: str, path: Sequence[str]) -> str | None:
    """The program that runs a script, by its first line; None for a program of its own."""
    try:
        with Path(command).open("rb") as file:
            first = file.readline(1024).decode("utf-8", "replace")
    except OSError:
        return None
    if not first.startswith("#!"):
        return None
    words = first[2:].split()
    if words and Path(words[0]).name == "env":
        named = next((word for word in words[1:] if not word.startswith("-")), "")
        return shutil.which(named, path=":".join(path)) or shutil.which(named) if named else None
    return words[0] if words and Path(words[0]).is_absolute() else None


def _is_system(path: str) -> bool:
    """True if every sandbox has this path already."""
    return path.startswith("/usr/") or path.split("/")[1] in ("bin", "sbin", "lib", "lib64")
