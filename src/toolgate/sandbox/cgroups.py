"""Groups of processes with limits, by the kernel's own files: v1 hierarchies or the v2 tree.

A group is made below the one this process is in, so that limits set on us hold for what we start.
Every call here is a few writes to a memory file system, so none of it leaves the event loop.
"""

import contextlib
import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from toolgate.core.errors import Unavailable

PROCESSES: Final = "cgroup.procs"
PERIOD_US: Final = 100_000
# All sessions together weigh as much as this many ordinary processes; the kernel's default would
# weigh them as one, and a busy machine would starve them.
WEIGHT: Final = 8
V1_NEEDED: Final = ("memory", "pids", "cpu")
V2_NEEDED: Final = ("memory", "pids", "cpu")
# Without one of these a session would have no bounds; swap may be missing from a kernel.
LIMITS_NEEDED: Final = {
    1: ("memory.limit_in_bytes", "pids.max", "cpu.cfs_quota_us"),
    2: ("memory.max", "pids.max", "cpu.max"),
}

OWN_PROCESSES: Final = "toolgate-main"  # no number: it is nobody's parent of sessions
MOVES: Final = 10  # who is moved may have started another meanwhile


@dataclass(frozen=True, slots=True)
class Ceiling:
    memory_bytes: int
    pids: int
    cpus: float


class Group:
    """One group: in v1 a directory in each hierarchy, in v2 one directory."""

    def __init__(self, folders: Sequence[Path], *, unified: bool) -> None:
        self.folders = folders
        self._unified = unified

    @property
    def entrances(self) -> list[Path]:
        """The files that a process writes its pid to in order to be in the group."""
        return [folder / PROCESSES for folder in self.folders]

    def pids(self) -> list[int]:
        found: set[int] = set()
        for folder in self.folders:
            with contextlib.suppress(OSError):
                found.update(int(line) for line in (folder / PROCESSES).read_text().split())
        return sorted(found)

    def memory_bytes(self) -> int:
        """What the group uses now."""
        for folder in self.folders:
            for name in ("memory.current", "memory.usage_in_bytes"):
                with contextlib.suppress(OSError):
                    return int((folder / name).read_text())
        return 0

    def kill(self) -> None:
        """SIGKILL to everyone; call again until `remove` succeeds."""
        if self._unified:
            with contextlib.suppress(OSError):
                (self.folders[0] / "cgroup.kill").write_text("1")
                return
        for pid in self.pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def remove(self) -> bool:
        """Whether the group is gone; it cannot go while somebody is in it."""
        gone = True
        for folder in self.folders:
            try:
                folder.rmdir()
            except FileNotFoundError:
                continue
            except OSError:
                gone = False
        return gone


class Cgroups:
    """Makes groups, all below one parent of our own."""

    def __init__(self, parents: Sequence[Path], *, unified: bool) -> None:
        self.parents = parents
        self.version = 2 if unified else 1

    @property
    def exist(self) -> bool:
        """Whether the parents do; another process may have removed them, as its own."""
        return all(parent.is_dir() for parent in self.parents)

    def make(self, name: str, ceiling: Ceiling) -> Group:
        """A new group with its limits, every one that is needed; raises Unavailable."""
        group = Group([parent / name for parent in self.parents], unified=self.version == 2)
        set_here: set[str] = set()
        try:
            for folder in group.folders:
                self.make_folder(folder)
                for file, value in self.limits(ceiling).items():
                    if (folder / file).exists():
                        (folder / file).write_text(value)
                        set_here.add(file)
        except OSError as refused:
            group.remove()
            raise Unavailable(f"the cgroup {name} cannot be made: {refused}") from refused
        missing = [file for file in LIMITS_NEEDED[self.version] if file not in set_here]
        if missing:
            group.remove()
            raise Unavailable(f"the cgroup {name} has no {', '.join(missing)}")
        return group

    def make_folder(self, folder: Path) -> None:
        """The kernel fills it; on paper, a test does."""
        folder.mkdir()

    def limits(self, ceiling: Ceiling) -> dict[str, str]:
        """What is written to which file, in the words of the version."""
        if self.version == 2:
            return {
                "memory.max": str(ceiling.memory_bytes),
                "memory.swap.max": "0",
                "memory.oom.group": "0",
                "pids.max": str(ceiling.pids),
                "cpu.max": f"{int(ceiling.cpus * PERIOD_US)} {PERIOD_US}",
            }
        return {
            "memory.limit_in_bytes": str(ceiling.memory_bytes),
            "memory.memsw.limit_in_bytes": str(ceiling.memory_bytes),
            "memory.swappiness": "0",
            "pids.max": str(ceiling.pids),
            "cpu.cfs_period_us": str(PERIOD_US),
            "cpu.cfs_quota_us": str(int(ceiling.cpus * PERIOD_US)),
        }

    def close(self) -> None:
        """Remove the parents, and groups in them that are empty."""
        for parent in self.parents:
            if parent.is_dir():
                for child in parent.iterdir():
                    if child.is_dir():
                        with contextlib.suppress(OSError):
                            child.rmdir()
                with contextlib.suppress(OSError):
                    parent.rmdir()


def find(
    name: str,
    *,
    below: str = "",
    mounts: str | None = None,
    memberships: str | None = None,
) -> Cgroups:
    """Where groups can be made here, under a parent called `name`; raises Unavailable.

    `below` puts the parent into that subgroup of ours in every hierarchy. The texts of
    /proc/self/mounts and /proc/self/cgroup can be handed in.
    """
    mounts = Path("/proc/self/mounts").read_text() if mounts is None else mounts
    own = _memberships(
        Path("/proc/self/cgroup").read_text() if memberships is None else memberships
    )
    v1, v2 = _hierarchies(mounts)
    if all(controller in v1 for controller in V1_NEEDED):
        chosen = {v1[each]: own.get(each, "/") for each in (*V1_NEEDED, "freezer") if each in v1}
        folders = [_below(root, path) / below / name for root, path in chosen.items()]
        return Cgroups(_made(folders), unified=False)
    if v2 is not None:
        return Cgroups(_made([_delegated(v2, own.get("", "/")) / below / name]), unified=True)
    raise Unavailable("no cgroup hierarchy with memory, pids and cpu is mounted")


def _memberships(text: str) -> dict[str, str]:
    found = {}
    for line in text.splitlines():
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            found[controller] = path
    return found


def _hierarchies(mounts: str) -> tuple[dict[str, Path], Path | None]:
    v1: dict[str, Path] = {}
    v2 = None
    for line in mounts.splitlines():
        _, where, kind, options, *_ = line.split(" ")
        if kind == "cgroup":
            for option in options.split(","):
                v1.setdefault(option, Path(where))
        elif kind == "cgroup2":
            v2 = Path(where)
    return v1, v2


def _below(root: Path, path: str) -> Path:
    """Our own group; inside a container the path may be the host's, and then the root is ours."""
    own = root / path.lstrip("/")
    return own if own.is_dir() else root


def _delegated(root: Path, path: str) -> Path:
    """The nearest group, from ours upwards, whose children can have the controllers."""
    own = _in_tree(root, path)
    for folder in (own, own.parent) if path.strip("/") else (own,):  # "/" is our namespace's top
        if _gives_on(folder):
            return folder
    if _is_offered(own) and _is_emptied(own) and _gives_on(own):
        return own
    raise Unavailable(
        "no cgroup here may have children with limits: run as root, or in a delegated group "
        "(systemd-run --user --scope -p Delegate=yes)"
    )


def _in_tree(root: Path, path: str) -> Path:
    """Our own group. A path is our namespace's, and the tree may be the machine's: look for us."""
    own = _below(root, path)
    if not _holds_us(own):
        return next((each.parent for each in root.rglob(PROCESSES) if _holds_us(each.parent)), own)
    return own


def _holds_us(folder: Path) -> bool:
    try:
        return str(os.getpid()) in (folder / PROCESSES).read_text().split()
    except OSError:
        return False


def _is_offered(folder: Path) -> bool:
    """Whether a group has the controllers, and is ours to make others in."""
    try:
        offered = (folder / "cgroup.controllers").read_text().split()
    except OSError:
        return False
    return set(V2_NEEDED) <= set(offered) and os.access(folder, os.W_OK)


def _gives_on(folder: Path) -> bool:
    if not _is_offered(folder):
        return False
    control = folder / "cgroup.subtree_control"
    try:
        if not set(V2_NEEDED) <= set(control.read_text().split()):
            control.write_text(" ".join(f"+{controller}" for controller in V2_NEEDED))
    except OSError:
        return False
    return True


def _is_emptied(own: Path) -> bool:
    """Whether who is in our group, we too, could move below: it gives nothing on while it has anyone.

    A service is in the group that it was delegated, and so is a container's first process.
    """
    inner = own / OWN_PROCESSES
    try:
        inner.mkdir(exist_ok=True)
        for _ in range(MOVES):
            pids = (own / PROCESSES).read_text().split()
            if not pids:
                return True
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
                    (inner / PROCESSES).write_text(pid)
    except OSError:
        pass
    return False


def _made(folders: list[Path]) -> list[Path]:
    for folder in folders:
        _remove_abandoned(folder)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            control = folder / "cgroup.subtree_control"
            if control.exists():
                control.write_text(" ".join(f"+{controller}" for controller in V2_NEEDED))
            for file, value in (("cpu.shares", 1024 * WEIGHT), ("cpu.weight", 100 * WEIGHT)):
                if (folder / file).exists():
                    (folder / file).write_text(str(value))
        except OSError as refused:
            raise Unavailable(
                f"no cgroup can be made at {folder}: {refused}; run as root, or in a group of your own"
            ) from refused
    return folders


def _remove_abandoned(folder: Path) -> None:
    """Parents are named by the process that made them; those of dead ones are ours to remove."""
    stem, dash, _ = folder.name.rpartition("-")
    if not dash or not folder.parent.is_dir():
        return
    for other in folder.parent.glob(f"{stem}-*"):
        pid = other.name.rpartition("-")[2]
        if pid.isdigit() and not Path(f"/proc/{pid}").exists():
            Cgroups([other], unified=False).close()
