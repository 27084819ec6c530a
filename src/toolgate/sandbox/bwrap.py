"""Sandboxes by bubblewrap: namespaces, a system-call filter of our own, and a cgroup.

Each session is its own uid on the host, given up before bubblewrap starts: started by root it would
still be the host's uid 0 and could write the host's /proc/sys.
"""

import asyncio
import contextlib
import os
import platform
import shutil
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from toolgate.core.errors import Unavailable
from toolgate.core.scratch import make_scratch
from toolgate.sandbox import agent as sandbox_agent
from toolgate.sandbox import cgroups
from toolgate.sandbox import seccomp as sandbox_seccomp
from toolgate.sandbox.child import DESTROY_SECONDS, ChildSession
from toolgate.sandbox.sandbox import Limits, NotStarted, SessionKey, SessionSpec
from toolgate.sandbox.session import EGRESS_SOCKET, WORKSPACE, base_env

FIRST_UID: Final = 1_700_000_000  # far from any user, and from the ranges given to containers
UIDS_PER_PROCESS: Final = 1000
INNER_UID: Final = 1000
ENTER: Final = (  # into the cgroups first, then on: nothing is ever outside them
    'n=$1; shift; while [ "$n" -gt 0 ]; do echo $$ > "$1" || exit 125; shift; n=$((n-1)); done; '
    'exec "$@"'
)
SHARED_ETC: Final = ("alternatives", "ld.so.cache", "ssl/certs", "localtime", "mime.types")
ETC: Final = {
    "passwd": "root:x:0:0::/:/bin/false\nsandbox:x:1000:1000::/workspace:/bin/bash\n",
    "group": "root:x:0:\nsandbox:x:1000:\n",
    "hosts": "127.0.0.1 localhost sandbox\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
}
TOP_LEVEL: Final = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
MASKED_PROC: Final = (  # what tells of the machine, and what a container masks
    "bootconfig", "cmdline", "config.gz", "consoles", "diskstats", "interrupts", "iomem", "ioports",
    "kallsyms", "kcore", "key-users", "keys", "kmsg", "latency_stats", "locks", "modules",
    "partitions", "sched_debug", "schedstat", "slabinfo", "swaps", "timer_list", "timer_stats",
    "vmallocinfo", "zoneinfo",
)  # fmt: skip
REAP_SECONDS: Final = 3.0  # for bubblewrap to see that those inside are dead
MISSING: Final = "missing here"
INSTALL_HINT: Final = "apt-get install bubblewrap util-linux"


@dataclass(frozen=True, slots=True)
class Programs:
    bwrap: str
    setpriv: str
    prlimit: str
    python: str
    sh: str


def find_programs() -> Programs:
    """The programs that a sandbox needs; raises Unavailable with how to install the missing ones."""
    found = {name: shutil.which(name) for name in ("bwrap", "setpriv", "prlimit", "sh")}
    # Inside there is the system's /usr, so the agent needs the Python that lives there.
    pythons = ("/usr/bin/python3", "/usr/local/bin/python3")
    found["python"] = next((path for path in pythons if Path(path).exists()), None)
    missing = [name for name, path in found.items() if path is None]
    if missing:
        raise Unavailable(f"{MISSING}: {', '.join(missing)} ({INSTALL_HINT})")
    return Programs(**{name: path for name, path in found.items() if path is not None})


class BwrapSandbox:
    """Opens sessions; a running one costs a cgroup, a uid and about 5 MB."""

    isolation = "bwrap"

    def __init__(
        self,
        *,
        limits: Limits | None = None,
        groups: cgroups.Cgroups | None = None,
        programs: Programs | None = None,
    ) -> None:
        self.limits = limits or Limits()
        self.can_be_clean = True
        self._groups = groups
        self._programs = programs
        self._folder: Path | None = None
        self._free_uids: list[int] = []
        self._next_uid = FIRST_UID + os.getpid() % 10_000 * UIDS_PER_PROCESS
        self._sessions: set[BwrapSession] = set()
        self._instance = os.urandom(4).hex()  # in containers many have the same number as we
        self._opened = 0

    @property
    def sessions(self) -> int:
        """The number of open sessions."""
        return len(self._sessions)

    async def check(self) -> None:
        """Open a session and see from inside and outside that it is one; raises Unavailable."""
        try:
            session = await self.open(SessionSpec(SessionKey("", "", "self-test")))
        except NotStarted as refused:
            raise Unavailable(str(refused)) from refused
        try:
            await session.check()
            self.can_be_clean = await session.can_be_clean()
            session.see_limits()
        finally:
            await session.close()

    async def open(self, spec: SessionSpec) -> "BwrapSession":
        try:
            return await self._open(spec)
        except OSError as refused:  # a full disk, or one file too many
            raise NotStarted(f"the sandbox did not start: {refused}") from refused

    async def _open(self, spec: SessionSpec) -> "BwrapSession":
        self.prepare()
        group = self.make_group(spec.key.digest)
        try:
            session = BwrapSession(limits=self.limits, group=group, uid=self._take_uid())
        except OSError:
            group.remove()
            raise
        self._sessions.add(session)
        session.on_end = lambda: self._forget(session)
        try:
            await session.enter_and_start(lambda fds: self._arguments(spec, session, fds))
            way_out = EGRESS_SOCKET if spec.egress is not None else ""
            await session.begin(spec, env=base_env(spec), egress=way_out)
        except BaseException:  # whoever waited may have gone: a half-open session is nobody's
            await session.close()
            raise
        return session

    async def close(self) -> None:
        await asyncio.gather(*(session.close() for session in list(self._sessions)))
        if self._groups is not None:
            self._groups.close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def _forget(self, session: "BwrapSession") -> None:
        self._sessions.discard(session)
        self._free_uids.append(session.uid)

    def _take_uid(self) -> int:
        # The longest unused first, so that a uid is not soon somebody else's.
        if len(self._free_uids) > 64:
            return self._free_uids.pop(0)
        self._next_uid += 1
        return self._next_uid

    def make_group(self, name: str) -> cgroups.Group:
        """Make a cgroup with the limits of one session; raises Unavailable."""
        if self._groups is None or not self._groups.exist:
            self._groups = cgroups.find(f"toolgate-{os.getpid()}")
        self._opened += 1
        return self._groups.make(
            f"{name}-{self._instance}-{self._opened}",
            cgroups.Ceiling(self.limits.memory_bytes, self.limits.pids, self.limits.cpus),
        )

    def prepare(self) -> tuple[Programs, Path]:
        """Return the programs and the folder that all sessions share; raises Unavailable.

        The folder is made when the first session opens, and again if it was cleaned up.
        """
        self._programs = self._programs or find_programs()
        if self._folder is not None:
            if all((self._folder / name).exists() for name in ("seccomp", "agent", *ETC)):
                return self._programs, self._folder
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None
        if platform.machine() not in sandbox_seccomp.MACHINES:
            raise Unavailable(f"no system-call filter for {platform.machine()}")
        folder = make_scratch("sandbox")
        try:
            (folder / "seccomp").write_bytes(sandbox_seccomp.assemble(platform.machine()))
            (folder / "agent").write_bytes(Path(sandbox_agent.__file__).read_bytes())
            for name, content in ETC.items():
                (folder / name).write_text(content)
        except OSError:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        self._folder = folder
        return self._programs, folder

    def _arguments(
        self, spec: SessionSpec, session: "BwrapSession", fds: "Descriptors"
    ) -> list[str]:
        programs, folder = self.prepare()
        size = str(self.limits.disk_bytes)
        arguments = [*limits_first(programs, self.limits, session.uid), programs.bwrap]
        arguments += [*system_arguments(folder, fds), "--as-pid-1", "--clearenv"]
        if spec.egress is not None:
            arguments += ["--ro-bind", str(spec.egress), EGRESS_SOCKET]
        for where, mode in (("/workspace", "0700"), ("/tmp", "1777"), ("/dev/shm", "1777")):  # noqa: S108 - inside
            arguments += ["--perms", mode, "--size", size, "--tmpfs", where]
        arguments += ["--remount-ro", "/dev", "--remount-ro", "/", "--chdir", WORKSPACE, "--"]
        return [*arguments, programs.python, "-I", "-S", "/run/agent", WORKSPACE]


def system_arguments(folder: Path, fds: "Descriptors") -> list[str]:
    """The namespaces, the filter and the read-only system, which are the same in every sandbox."""
    arguments = ["--unshare-user", "--unshare-ipc", "--unshare-pid", "--unshare-net"]
    arguments += ["--unshare-uts", "--unshare-cgroup-try", "--disable-userns"]
    arguments += ["--uid", str(INNER_UID), "--gid", str(INNER_UID), "--hostname", "sandbox"]
    arguments += ["--die-with-parent", "--new-session"]
    arguments += ["--cap-drop", "ALL", "--seccomp", fds.open(folder / "seccomp")]
    arguments += ["--ro-bind", "/usr", "/usr", *_top_level(), *_shared_etc()]
    for name in ETC:
        arguments += ["--ro-bind-data", fds.open(folder / name), f"/etc/{name}"]
    arguments += ["--ro-bind-data", fds.open(folder / "agent"), "/run/agent"]
    return [*arguments, "--proc", "/proc", "--dev", "/dev", *_masked_proc()]


def limits_first(programs: Programs, limits: Limits, uid: int) -> list[str]:
    """The commands that set a session's user and resource limits, before the one they run."""
    arguments = []
    if os.geteuid() == 0:
        arguments += [programs.setpriv, f"--reuid={uid}", f"--regid={uid}", "--clear-groups"]
        arguments += ["--inh-caps=-all", "--bounding-set=-all", "--no-new-privs", "--"]
    arguments += [programs.prlimit, "--core=0", f"--nofile={limits.open_files}"]
    return [*arguments, f"--fsize={limits.disk_bytes}", "--memlock=65536", "--msgqueue=0", "--"]


def _top_level() -> list[str]:
    arguments = []
    for name in TOP_LEVEL:
        path = Path("/") / name
        if path.is_symlink():
            arguments += ["--symlink", str(path.readlink()), str(path)]
        elif path.is_dir():
            arguments += ["--ro-bind", str(path), str(path)]
    return arguments


def _shared_etc() -> list[str]:
    return [
        part for name in SHARED_ETC for part in ("--ro-bind-try", f"/etc/{name}", f"/etc/{name}")
    ]


def _masked_proc() -> list[str]:
    paths = [f"/proc/{name}" for name in MASKED_PROC]
    return [
        part for path in paths if Path(path).exists() for part in ("--ro-bind", "/dev/null", path)
    ]


class Descriptors:
    """Files opened for one start, each with an offset of its own."""

    def __init__(self) -> None:
        self.numbers: list[int] = []

    def open(self, path: Path) -> str:
        self.numbers.append(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
        return str(self.numbers[-1])

    def hold(self, content: bytes) -> str:
        """A descriptor from which the content can be read once; it stands in no file."""
        self.numbers.append(os.memfd_create("arguments"))
        os.write(self.numbers[-1], content)
        os.lseek(self.numbers[-1], 0, os.SEEK_SET)
        return str(self.numbers[-1])

    def close(self) -> None:
        for number in self.numbers:
            os.close(number)


MakeArguments = Callable[[Descriptors], list[str]]


class BwrapSession(ChildSession):
    def __init__(self, *, limits: Limits, group: cgroups.Group, uid: int) -> None:
        super().__init__(limits=limits)
        self.group = group
        self.uid = uid

    async def enter_and_start(self, arguments: MakeArguments) -> None:
        fds = Descriptors()
        try:
            entrances = [str(path) for path in self.group.entrances]
            enter = ["/bin/sh", "-c", ENTER, "enter", str(len(entrances)), *entrances]
            await self.start([*enter, *arguments(fds)], pass_fds=fds.numbers)
        finally:
            fds.close()

    def see_limits(self) -> None:
        """Check that the session's processes are in its cgroup, without root; raises Unavailable."""
        pids = self.group.pids()
        if not pids:
            raise Unavailable("the sandbox is in no cgroup")
        for pid in pids:
            status = Path(f"/proc/{pid}/status").read_text()
            uids = next(line for line in status.splitlines() if line.startswith("Uid:")).split()[1:]
            if "0" in uids:
                raise Unavailable("the sandbox runs as the host's root")

    async def _kill_inside(self) -> None:
        """Bubblewrap itself goes once it has taken in what was inside.

        Killed with it, it would leave a zombie to the first process, which in a container is us.
        """
        if self._process is None:
            return
        if not self.has_begun:  # it ends as soon as it speaks; half made, nobody would take it in
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._process.wait(), REAP_SECONDS)
        for pid in self.group.pids():
            if pid != self._process.pid:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._process.wait(), REAP_SECONDS)

    async def kill_all(self) -> None:
        deadline = asyncio.get_running_loop().time() + DESTROY_SECONDS
        await self._kill_inside()
        self.group.kill()
        await self.kill_child()
        pause = 0.001
        while not self.group.remove() and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(pause)
            pause = min(pause * 2, 0.1)
            self.group.kill()
