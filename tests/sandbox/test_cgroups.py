"""Groups of processes: the real ones of this machine, and the other version's on paper."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.engines import need
from toolgate.core.errors import Unavailable
from toolgate.sandbox import cgroups

CEILING = cgroups.Ceiling(memory_bytes=64 << 20, pids=8, cpus=0.5)


def v1_tree(root: Path, *, own: str = "/") -> tuple[str, str]:
    for name in ("memory", "pids", "cpu,cpuacct"):
        (root / name / own.lstrip("/")).mkdir(parents=True)
    mounts = "\n".join(
        f"cgroup {root}/{name} cgroup rw,{name} 0 0" for name in ("memory", "pids", "cpu,cpuacct")
    )
    return mounts, f"3:memory:{own}\n2:pids:{own}\n1:cpu,cpuacct:{own}\n"


def v2_tree(root: Path, *, offered: str = "cpu memory pids") -> tuple[str, str]:
    own = root / "user" / "app"
    own.mkdir(parents=True)
    for folder in (root, root / "user", own):
        (folder / "cgroup.controllers").write_text(offered)
        (folder / "cgroup.subtree_control").write_text("")
    return f"cgroup2 {root} cgroup2 rw 0 0", "0::/user/app\n"


def test_a_real_group_has_its_limits_and_ends_its_processes() -> None:
    need("bwrap")
    groups = cgroups.find(f"toolgate-test-{os.getpid()}")
    try:
        group = groups.make("one", CEILING)
        enter = " ".join(f"echo $$ > {path};" for path in group.entrances)
        process = subprocess.Popen(["/bin/sh", "-c", f"{enter} echo in; exec sleep 60"], stdout=-1)
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.close()
        assert group.pids() == [process.pid]
        assert group.memory_bytes() > 0
        assert not group.remove()
        group.kill()
        assert process.wait(10) == -9
        assert group.remove()
    finally:
        groups.close()
    assert not any(parent.exists() for parent in groups.parents)


def test_version_1_makes_a_folder_below_our_own_in_each_hierarchy(tmp_path: Path) -> None:
    mounts, own = v1_tree(tmp_path, own="/inner")
    groups = cgroups.find("toolgate-1", mounts=mounts, memberships=own)
    assert groups.version == 1
    assert {parent.relative_to(tmp_path).as_posix() for parent in groups.parents} == {
        "memory/inner/toolgate-1",
        "pids/inner/toolgate-1",
        "cpu,cpuacct/inner/toolgate-1",
    }


def test_version_2_uses_the_nearest_group_that_may_give_controllers_on(tmp_path: Path) -> None:
    mounts, own = v2_tree(tmp_path)
    groups = cgroups.find("toolgate-1", mounts=mounts, memberships=own)
    assert groups.version == 2
    assert groups.parents == [tmp_path / "user/app/toolgate-1"]
    wanted = (tmp_path / "user/app/cgroup.subtree_control").read_text()
    assert set(wanted.split()) == {"+memory", "+pids", "+cpu"}


def test_version_2_has_its_own_names_of_the_limits(tmp_path: Path) -> None:
    limits = cgroups.Cgroups([tmp_path], unified=True).limits(CEILING)
    assert limits["memory.max"] == str(64 << 20)
    assert limits["memory.swap.max"] == "0"
    assert limits["pids.max"] == "8"
    assert limits["cpu.max"] == "50000 100000"


class OnPaper(cgroups.Cgroups):
    """Groups in a plain directory; what the kernel would put into a new one is put there."""

    files: tuple[str, ...] = ()

    def make_folder(self, folder: Path) -> None:
        super().make_folder(folder)
        for name in ("cgroup.procs", "cgroup.kill", *self.files):
            (folder / name).write_text("")


V2_FILES = ("memory.max", "memory.swap.max", "memory.oom.group", "pids.max", "cpu.max")


def test_version_2_writes_every_limit_into_the_new_group(tmp_path: Path) -> None:
    groups = OnPaper([tmp_path], unified=True)
    groups.files = V2_FILES
    group = groups.make("session", CEILING)
    said = {name: (tmp_path / "session" / name).read_text() for name in V2_FILES}
    assert said == groups.limits(CEILING)
    assert group.entrances == [tmp_path / "session" / "cgroup.procs"]
    (tmp_path / "session" / "cgroup.procs").write_text("7\n8\n")
    (tmp_path / "session" / "memory.current").write_text("4096")
    assert group.pids() == [7, 8]
    assert group.memory_bytes() == 4096
    group.kill()
    assert (tmp_path / "session" / "cgroup.kill").read_text() == "1"


@pytest.mark.parametrize("missing", ["memory.max", "pids.max", "cpu.max"])
def test_a_group_that_cannot_have_a_limit_is_not_made(tmp_path: Path, missing: str) -> None:
    groups = OnPaper([tmp_path], unified=True)
    groups.files = tuple(name for name in V2_FILES if name != missing)
    with pytest.raises(Unavailable, match=missing):
        groups.make("session", CEILING)
    groups.files = tuple(name for name in V2_FILES if name != "memory.swap.max")
    groups.make("without-swap", CEILING)


def test_version_2_goes_up_where_our_own_group_may_give_nothing_on(tmp_path: Path) -> None:
    mounts, own = v2_tree(tmp_path)
    (tmp_path / "user" / "app" / "cgroup.controllers").write_text("")
    groups = cgroups.find("toolgate-1", mounts=mounts, memberships=own)
    assert groups.parents == [tmp_path / "user/toolgate-1"]


@pytest.fixture
def v2_root() -> Path:
    """The top of this machine's own tree, which may have few controllers."""
    mounted = [
        line.split()[1]
        for line in Path("/proc/mounts").read_text().splitlines()
        if " cgroup2 " in line
    ]
    if not mounted or os.geteuid() != 0:
        pytest.skip("no writable cgroup2 tree here")
    return Path(mounted[0])


@pytest.fixture
def service(v2_root: Path) -> Iterator[tuple[Path, str]]:
    """A group as a service with its own user has it, below one that is not its user's to change."""
    offered = (v2_root / "cgroup.controllers").read_text().split()
    control = v2_root / "cgroup.subtree_control"
    before = control.read_text().split()
    given = next((each for each in ("memory", "hugetlb") if each in offered), None)
    if given is None:
        pytest.skip("no controller here that a group with processes may not give on")
    own = v2_root / f"toolgate-test-slice-{os.getpid()}" / "toolgate.service"
    own.mkdir(parents=True)
    control.write_text(f"+{given}")
    (own.parent / "cgroup.subtree_control").write_text(f"+{given}")
    for path in (own, own / "cgroup.procs", own / "cgroup.subtree_control"):
        os.chown(path, SERVICE_UID, SERVICE_UID)
    try:
        yield own, given
    finally:
        for folder in sorted(own.parent.glob("**/"), reverse=True):
            folder.rmdir()
        if given not in before:
            control.write_text(f"-{given}")


SERVICE_UID = 1_600_000_002
# What is imported is read as root: the tests may be where that user may not read.
AS_A_SERVICE = """
import os, sys
from pathlib import Path
from toolgate.sandbox import cgroups
own, root, controller, uid = Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4])
(own / "cgroup.procs").write_text(str(os.getpid()))
os.setgroups([]); os.setresgid(uid, uid, uid); os.setresuid(uid, uid, uid)
cgroups.V2_NEEDED = (controller,)
for _ in range(2):  # it is where it moved itself to, the second time
    groups = cgroups.find("toolgate-1", mounts=f"cgroup2 {root} cgroup2 rw 0 0")
    inside = groups.parents[0] / "session"
    inside.mkdir()
    print(groups.parents[0].relative_to(own), (inside / "cgroup.controllers").read_text().strip())
    if not os.fork():
        (inside / "cgroup.procs").write_text(str(os.getpid()))
        os._exit(0)
    assert os.wait()[1] == 0
    inside.rmdir()
    groups.close()
"""


def test_version_2_makes_groups_in_a_service_s_own_which_holds_the_service(
    v2_root: Path, service: tuple[Path, str]
) -> None:
    own, controller = service
    given = [str(own), str(v2_root), controller, str(SERVICE_UID)]
    command = [sys.executable, "-c", AS_A_SERVICE, *given]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.stderr == ""
    assert done.stdout.splitlines() == [f"toolgate-1 {controller}"] * 2


def test_version_2_finds_its_own_group_in_the_machine_s_tree_from_a_namespace_of_its_own(
    v2_root: Path, service: tuple[Path, str]
) -> None:
    """A container that sees that tree: it may not be moved to where its namespace does not reach."""
    if shutil.which("unshare") is None:
        pytest.skip("no unshare here")
    own, controller = service
    given = [str(own), str(v2_root), controller, str(os.geteuid())]
    enter = 'echo $$ > "$0/cgroup.procs" && exec unshare --cgroup "$@"'
    command = ["/bin/sh", "-c", enter, str(own), sys.executable, "-c", AS_A_SERVICE, *given]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.stderr == ""
    assert done.stdout.splitlines() == [f"toolgate-1 {controller}"] * 2


def test_version_2_kills_a_real_group_in_one_write(v2_root: Path) -> None:
    folder = v2_root / f"toolgate-test-{os.getpid()}"
    folder.mkdir()
    group = cgroups.Group([folder], unified=True)
    enter = f"echo $$ > {folder}/cgroup.procs; echo in; sleep 60 & exec sleep 60"
    process = subprocess.Popen(["/bin/sh", "-c", enter], stdout=-1)
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    group.kill()
    assert process.wait(10) == -9
    for _ in range(500):
        if group.remove():
            break
        time.sleep(0.01)
    assert not folder.exists()


def test_a_machine_without_the_controllers_is_refused_with_a_way_out(tmp_path: Path) -> None:
    mounts, own = v2_tree(tmp_path, offered="hugetlb")
    with pytest.raises(Unavailable, match="systemd-run"):
        cgroups.find("toolgate-1", mounts=mounts, memberships=own)
    with pytest.raises(Unavailable, match="memory, pids and cpu"):
        cgroups.find("toolgate-1", mounts="", memberships="")


def test_groups_of_dead_processes_are_removed(tmp_path: Path) -> None:
    mounts, own = v1_tree(tmp_path)
    abandoned = tmp_path / "pids" / "toolgate-4999999"
    (abandoned / "session").mkdir(parents=True)
    ours = tmp_path / "pids" / f"toolgate-{os.getppid()}"
    ours.mkdir()
    cgroups.find(f"toolgate-{os.getpid()}", mounts=mounts, memberships=own)
    assert not abandoned.exists()
    assert ours.exists()
