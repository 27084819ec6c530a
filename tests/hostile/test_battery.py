"""The ways out, tried at every sandbox; and at a plain subprocess, to see that the judges see."""

import contextlib
import os
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import aiodocker
import pytest

from tests.engines import ISOLATING, need, why_not
from tests.hostile.battery import outer_limit, run_battery
from tests.hostile.cases import CASES
from tests.hostile.places import PlainPlace, SandboxPlace
from toolgate.adapters import cgroups
from toolgate.adapters.sandbox_bwrap import BwrapSandbox
from toolgate.adapters.sandbox_docker import DockerSandbox
from toolgate.ports.sandbox import Sandbox, SessionKey
from toolgate.testing import docker_engine

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


@pytest.fixture
def nothing_left() -> Iterator[None]:
    before = traces()
    yield
    left = traces() - before
    assert {path for path in left if not re.fullmatch(ENGINES_OWN, path)} == set()


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
    names = [case.name for case in CASES]
    assert len(names) == len(set(names)) >= 47


@pytest.mark.timeout(180)
@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("place", ISOLATING, indirect=True)
async def test_nothing_gets_out_and_the_sandbox_still_serves(place: SandboxPlace) -> None:
    rows = await run_battery(place)
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
