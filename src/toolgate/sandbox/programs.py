"""Long-lived programs in the bubblewrap sandbox, on pipes of the caller: MCP servers on stdio.

The namespaces, the filter and the limits are those of a session (`bwrap.py`). A program has no agent
inside: its caller talks to it directly. Its workspace is a directory of the host that stays.
"""

import asyncio
import contextlib
import hashlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from toolgate.core.errors import Unavailable
from toolgate.sandbox import launcher
from toolgate.sandbox.bwrap import BwrapSandbox, Descriptors, limits_first, system_arguments
from toolgate.sandbox.cgroups import Group
from toolgate.sandbox.child import DESTROY_SECONDS, NO_ENVIRONMENT
from toolgate.sandbox.sandbox import SessionKey, SessionSpec
from toolgate.sandbox.session import EGRESS_SOCKET, WORKSPACE, base_env

FIRST_UID: Final = 1_800_000_000  # above the uids of sessions, and far from any user
UIDS: Final = 200_000_000
REAP_SECONDS: Final = 3.0  # for bubblewrap to see that those inside are dead
# Starts the agent's forwarder in a child, then becomes the program.
WITH_EGRESS: Final = """
import os, sys, time
agent = {"__name__": "agent"}
exec(compile(open("/run/agent").read(), "agent", "exec"), agent)
ready, made = os.pipe()
if os.fork() == 0:
    null = os.open("/dev/null", os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)
    agent["forward"](sys.argv[1])
    os.write(made, b"+")
    while True:
        time.sleep(3600)
os.read(ready, 1)
os.execvp(sys.argv[2], sys.argv[2:])
"""


class NotIsolated(Unavailable):
    """A program that cannot be isolated here as it is registered; the text says what to change."""


@dataclass(frozen=True, slots=True)
class Bind:
    """A file or directory of the host, and the path by which the program finds it."""

    source: str
    inside: str
    writable: bool = False


@dataclass(frozen=True, slots=True)
class Program:
    key: SessionKey
    command: Sequence[str]
    env: Mapping[str, str]
    binds: Sequence[Bind]
    workspace: Path
    egress: Path | None = None  # the socket of a guarded proxy; None: no network


@dataclass(frozen=True, slots=True)
class Launch:
    """A command to be started with pipes, and what to pass to it."""

    command: Sequence[str]
    env: Mapping[str, str]
    pass_fds: Sequence[int] = ()
    group: Group | None = None

    async def kill(self, pid: int, ended: asyncio.Future[None]) -> None:
        """Kill the program and everything it has started, and wait until it has ended."""
        if self.group is not None:
            for inner in self.group.pids():
                if inner != pid:  # bubblewrap itself ends once it has reaped those inside
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(inner, signal.SIGKILL)
            await asyncio.wait({ended}, timeout=REAP_SECONDS)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
        await ended


class ProgramSandbox:
    """Prepares the start of programs; the caller starts them and ends them."""

    def __init__(self, bwrap: BwrapSandbox) -> None:
        self._bwrap = bwrap

    async def close(self) -> None:
        await self._bwrap.close()

    @contextlib.asynccontextmanager
    async def launch(self, program: Program) -> AsyncIterator[Launch]:
        """Whatever the program has started is gone when the block ends. Raises NotIsolated."""
        try:
            self._bwrap.prepare()
            uid = _own_uid(program.workspace) if os.geteuid() == 0 else 0
            group = self._bwrap.make_group(program.key.digest)
        except (OSError, Unavailable) as refused:
            raise NotIsolated(f"the sandbox cannot be set up: {refused}") from refused
        fds = Descriptors()
        try:
            command = self._command(program, uid, group, fds)
            yield Launch(command, NO_ENVIRONMENT, fds.numbers, group)
        finally:
            fds.close()
            await _remove(group)

    def _command(self, program: Program, uid: int, group: Group, fds: Descriptors) -> list[str]:
        programs, folder = self._bwrap.prepare()
        limits = self._bwrap.limits
        binds = [Bind(os.path.realpath(program.workspace), WORKSPACE, writable=True)]
        if program.egress is not None:
            binds.append(Bind(os.path.realpath(program.egress), EGRESS_SOCKET))
        # A path inside another's comes after it.
        binds += sorted(program.binds, key=lambda bind: bind.inside.count("/"))
        arguments = system_arguments(folder, fds)
        size = str(limits.disk_bytes)
        for where in ("/tmp", "/dev/shm"):  # noqa: S108 - inside
            arguments += ["--perms", "1777", "--size", size, "--tmpfs", where]
        for number, bind in enumerate(binds):
            source = f"{launcher.STAGE}/{number}" if uid else bind.source
            arguments += ["--bind" if bind.writable else "--ro-bind", source, bind.inside]
        arguments += ["--remount-ro", "/dev", "--remount-ro", "/", "--chdir", WORKSPACE]
        arguments.append("--clearenv")
        for name, value in _env(program).items():
            arguments += ["--setenv", name, value]
        inner = [*program.command]
        if program.egress is not None:
            inner = [programs.python, "-I", "-S", "-c", WITH_EGRESS, EGRESS_SOCKET, *inner]
        # By a descriptor: the environment holds secrets, and every user can read command lines.
        options = fds.hold("\0".join(arguments).encode())
        outer = [*limits_first(programs, limits, uid), programs.bwrap, "--args", options, "--"]
        plan = {
            "entrances": [str(path) for path in group.entrances],
            "uid": uid,
            "sources": [(bind.source, bind.writable) for bind in binds],
            "command": [*outer, *inner],
        }
        return [sys.executable, "-I", "-S", launcher.__file__, json.dumps(plan)]


def _env(program: Program) -> dict[str, str]:
    env = base_env(SessionSpec(program.key, egress=program.egress))
    if program.egress is not None:
        env["NODE_USE_ENV_PROXY"] = "1"  # Node alone does not look at the proxy variables
    return env | dict(program.env)


def _own_uid(workspace: Path) -> int:
    """The uid of a workspace's program: the workspace's owner, once it has one of its own."""
    owner = workspace.stat().st_uid
    if FIRST_UID <= owner < FIRST_UID + UIDS:
        return owner
    taken = {other.stat().st_uid for other in workspace.parent.iterdir()}
    digest = hashlib.sha256(str(workspace).encode()).hexdigest()
    uid = FIRST_UID + int(digest[:8], 16) % UIDS
    while uid in taken:
        uid += 1
    os.chown(workspace, uid, uid)
    return uid


async def _remove(group: Group) -> None:
    deadline = asyncio.get_running_loop().time() + DESTROY_SECONDS
    pause = 0.001
    group.kill()
    while not group.remove() and asyncio.get_running_loop().time() < deadline:
        await asyncio.sleep(pause)
        pause = min(pause * 2, 0.1)
        group.kill()
