"""Which sandboxes can be tried here, and one of each kind for a test.

A machine without one of them skips its tests; `tests/hostile` fails where there is none at all.
"""

import contextlib
import shutil
from collections.abc import AsyncIterator, Iterator
from functools import cache

import pytest

from tests.support import docker_engine
from toolgate.core.errors import Unavailable
from toolgate.sandbox import cgroups
from toolgate.sandbox.bwrap import BwrapSandbox, find_programs
from toolgate.sandbox.docker import DockerSandbox
from toolgate.sandbox.process import ProcessSandbox
from toolgate.sandbox.sandbox import Limits, Sandbox

ISOLATING = ("bwrap", "docker")
EVERY = (*ISOLATING, "process")


@cache
def why_not(backend: str) -> str:
    """Why a backend cannot be tried here; empty where it can."""
    if backend == "docker":
        return docker_engine.why_not()
    if backend == "bwrap":
        if shutil.which("bwrap") is None:
            return "missing: bwrap"
        try:
            find_programs()
            cgroups.find("toolgate-probe").close()
        except Unavailable as unavailable:
            return str(unavailable)
    return ""


def need(backend: str) -> None:
    reason = why_not(backend)
    if reason:
        pytest.skip(f"{backend}: {reason}")


@pytest.fixture(scope="session")
def engine() -> Iterator[docker_engine.Engine]:
    need("docker")
    with docker_engine.private_engine() as running:
        yield running


@contextlib.asynccontextmanager
async def sandbox_of(
    backend: str, request: pytest.FixtureRequest, *, limits: Limits | None = None
) -> AsyncIterator[Sandbox]:
    need(backend)
    sandbox: Sandbox
    if backend == "bwrap":
        sandbox = BwrapSandbox(limits=limits)
    elif backend == "docker":
        running: docker_engine.Engine = request.getfixturevalue("engine")
        sandbox = DockerSandbox(limits=limits, url=running.url, cgroup_parent=running.cgroup)
    else:
        sandbox = ProcessSandbox(unsafe=True, limits=limits)
    try:
        yield sandbox
    finally:
        await sandbox.close()
