"""The ways out, tried at every sandbox; and at a plain subprocess, to see that the judges see."""

import contextlib
import os
import re
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import aiodocker
import pytest

from tests.hostile.battery import outer_limit, run_battery
from tests.hostile.cases import CASES
from tests.hostile.places import PlainPlace, SandboxPlace
from tests.support import docker_engine
from tests.support.batteries import chosen
from tests.support.engines import ISOLATING, need, why_not
from toolgate.sandbox import cgroups
from toolgate.sandbox.bwrap import BwrapSandbox
from toolgate.sandbox.docker import DockerSandbox
from toolgate.sandbox.sandbox import Sandbox, SessionKey

ENGINES_OWN = r"/tmp/toolgate-engine-[^/]+/data"  # mounted for as long as the engine runs
KEY = SessionKey("hostile", "battery", "session")

# What a plain subprocess cannot keep in; if a judge stops seeing it, the judge is broken.
SEEN_AT_PLAIN = {
    "disk-fill",
    "file-left-in-tmp",
    "setsid-daemon",
    "double-fork-daemon",
    "daemon-that-survives-the-deadline",
    "stopped-processes",
    "kill-everyone",
    "kill-by-pid",
    "command-lines-of-others",
    "environments-of-others",
    "memory-of-another",
    "ipc-with-the-host",
    "network-to-loopback",
    "network-to-the-host",
    "dns",
    "unix-socket-of-the-host",
    "docker-socket",
    "abstract-unix-socket",
    "files-of-the-host",
    "symlink-out-of-the-workspace",
    "symlink-written-through",
    "dots-in-paths",
    "absolute-paths",
}

# Seconds of work for a limit that another case tries too; a soak run takes them as well.
LONG = {
    "memory-bomb-of-many",  # memory-bomb
    "fork-bomb-of-daemons",  # fork-bomb
    "cpu-spin",  # sleep-past-the-deadline
    "sigterm-ignored",  # daemon-that-survives-the-deadline
    "processes-of-another-session",  # files-of-another-session, command-lines-of-others
    "many-open-files",  # inode-fill
}
NAMES = [each.name for each in CASES]
SHORT = [name for name in NAMES if name not in LONG]


# The attacks that were promised, each with the cases that try it.
PROMISED = {
    "fork bomb": {"fork-bomb", "fork-bomb-of-daemons"},
    "memory bomb": {"memory-bomb", "memory-bomb-of-many"},
    "output flood": {"output-flood", "output-flood-on-stderr", "output-flood-by-a-daemon"},
    "disk fill": {"disk-fill", "shared-memory-fill"},
    "inode fill": {"inode-fill"},
    "many open files": {"many-open-files"},
    "CPU spin": {"cpu-spin"},
    "sleep past the deadline": {"sleep-past-the-deadline"},
    "setsid daemons": {"setsid-daemon"},
    "double-fork daemons": {"double-fork-daemon"},
    "daemons surviving time-out": {"daemon-that-survives-the-deadline"},
    "SIGTERM ignored": {"sigterm-ignored"},
    "stopped processes": {"stopped-processes"},
    "zombies": {"zombies"},
    "/proc writes, core_pattern": {"sysctl-writes", "core-dump"},
    "/sys writes": {"sysfs-writes"},
    "other users' /proc": {"command-lines-of-others", "environments-of-others"},
    "ptrace": {"ptrace-another"},
    "io_uring": {"io-uring"},
    "keyctl": {"keyring"},
    "mount": {"mount-something"},
    "unshare": {"new-user-namespace", "namespace-by-clone3"},
    "chroot": {"chroot-out"},
    "raw sockets": {"raw-and-packet-sockets"},
    "network to loopback": {"network-to-loopback", "network-to-loopback-by-ipv6"},
    "network to the host": {"network-to-the-host"},
    "network to the metadata address": {"network-to-the-metadata-address"},
    "DNS": {"dns"},
    "unix sockets of the host": {"unix-socket-of-the-host", "abstract-unix-socket"},
    "docker.sock": {"docker-socket"},
    "symlink out of the workspace": {"symlink-out-of-the-workspace", "symlink-written-through"},
    "hard link out of the workspace": {"hard-link-out-of-the-workspace"},
    "races on symlinks": {"race-on-symlinks"},
    "`..` in session ids": {"dots-in-session-ids"},
    "`..` in paths": {"dots-in-paths", "absolute-paths"},
    "device nodes": {"device-nodes"},
    "setuid binaries": {"setuid-programs"},
    "env secrets": {"secrets-in-the-environment"},
    "the runner's memory and token": {"memory-and-token-of-the-runner"},
    "huge argv and env": {"huge-argv", "huge-environment"},
    "NUL and non-UTF-8 output": {"bytes-that-are-no-text"},
    "terminal escapes": {"terminal-escapes-and-typing"},
    "200 kB commands": {"command-of-200-kilobytes"},
    "concurrent kill": {"killed-while-killing"},
    "two sessions reading each other": {"files-of-another-session", "processes-of-another-session"},
}
PAGE = Path(__file__).parents[2] / "docs" / "security" / "isolation.md"


@pytest.fixture(autouse=True)
def secret_in_our_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOOLGATE_HOSTILE_SECRET", "of the runner")


def traces() -> set[str]:
    """What a sandbox of ours could leave: mounts, groups, files, and processes in those groups."""
    ours = f"hostile-{os.getpid()}"
    found = {line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()}
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and ours in (entry / "cgroup").read_text():
                found.add(f"process {entry.name}")
    found |= {str(path) for path in Path("/tmp").glob(f"toolgate-sandbox-{os.getpid()}-*")}
    return found | {str(path) for path in Path("/sys/fs/cgroup").glob(f"**/{ours}*")}


def is_anothers(path: str, own: str) -> bool:
    """Whether tests beside us have mounted it: in a folder of theirs, or an engine of theirs has."""
    theirs = rf"{re.escape(tempfile.gettempdir())}/(pytest-of|toolgate-engine)-"
    return re.match(theirs, path) is not None and not path.startswith(own)


@pytest.fixture
def nothing_left(request: pytest.FixtureRequest) -> Iterator[None]:
    own = "no engine of ours"
    if "docker" in request.node.name:
        need("docker")
        engine: docker_engine.Engine = request.getfixturevalue("engine")
        own = f"{Path(engine.url.removeprefix('unix://')).parent}/"
    before = traces()
    yield
    left = {path for path in traces() - before if not is_anothers(path, own)}
    assert {path for path in left if not re.fullmatch(ENGINES_OWN, path)} == set()


def test_of_mounts_only_those_of_other_tests_and_their_engines_are_let_be() -> None:
    folder = tempfile.gettempdir()
    own = f"{folder}/toolgate-engine-own/"
    assert is_anothers(f"{folder}/toolgate-engine-other/data/overlay2/1/merged", own)
    assert is_anothers(f"{folder}/pytest-of-root/pytest-1/disk", own)
    assert not is_anothers(f"{own}data/overlay2/1/merged", own)
    assert not is_anothers("/workspace", own)


async def containers(url: str) -> list[str]:
    async with aiodocker.Docker(url=url) as docker:
        return [each.id for each in await docker.containers.list(all=True)]


@pytest.fixture
async def place(request: pytest.FixtureRequest) -> AsyncIterator[SandboxPlace]:
    backend: str = request.param
    need(backend)
    async with outer_limit() as (_, name):
        sandbox: Sandbox
        engine: docker_engine.Engine
        if backend == "bwrap":
            sandbox = BwrapSandbox(groups=cgroups.find("inner", below=name))
        else:
            engine = request.getfixturevalue("engine")
            sandbox = DockerSandbox(url=engine.url, cgroup_parent=f"/{name}")
        place = SandboxPlace(sandbox, KEY)
        try:
            yield place
        finally:
            await place.close()
            await sandbox.close()
            if backend == "docker":
                assert await containers(engine.url) == []
    docker_engine.remove_cgroup(name)


def test_at_least_one_engine_was_there_to_be_attacked() -> None:
    reasons = {backend: why_not(backend) for backend in ISOLATING}
    assert not all(reasons.values()), reasons


def test_the_battery_has_at_least_the_47_cases_it_promises() -> None:
    assert len(NAMES) == len(set(NAMES)) >= 47
    assert len(SHORT) == len(NAMES) - len(LONG) >= 47


def test_every_attack_that_was_promised_is_tried() -> None:
    names = set(NAMES)
    assert {attack: cases - names for attack, cases in PROMISED.items() if cases - names} == {}


def test_the_page_tells_of_every_case_and_of_no_escape() -> None:
    """It is drawn by tools/isolation.py; a case that is not in it was not run there."""
    rows = re.findall(r"^\| ([^|*]+) \| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", PAGE.read_text(), re.M)
    told = {name.replace(" ", "-"): (bwrap, docker) for name, bwrap, docker, _ in rows}
    kept_in = {name for name, columns in told.items() if columns == (".", ".")}
    assert kept_in == set(NAMES)


@pytest.mark.timeout(180)
@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("place", ISOLATING, indirect=True)
async def test_nothing_gets_out_and_the_sandbox_still_serves(
    place: SandboxPlace, record_property: Callable[[str, object], None]
) -> None:
    rows = await run_battery(place, only=chosen(NAMES, SHORT))
    held = sum(not row.escaped for row in rows)
    record_property("class", [f"out of the sandbox ({place.name})", len(rows), held])
    assert {row.case: row.escaped for row in rows if row.escaped} == {}
    assert {row.case: row.control for row in rows if row.control} == {}


@pytest.mark.timeout(180)
@pytest.mark.usefixtures("nothing_left")
async def test_the_judges_see_what_gets_out_of_a_plain_subprocess() -> None:
    need("bwrap")
    async with outer_limit() as (group, _):
        place = PlainPlace(group)
        try:
            rows = await run_battery(place, only=SEEN_AT_PLAIN)
        finally:
            await place.close()
    assert {row.case for row in rows if row.escaped} == SEEN_AT_PLAIN
