"""From a backend's name to the backend. There is no falling back from one to another."""

from typing import Final

from toolgate.core.errors import Misconfigured
from toolgate.sandbox.bwrap import BwrapSandbox
from toolgate.sandbox.process import ProcessSandbox
from toolgate.sandbox.sandbox import Limits, Sandbox

BWRAP: Final = "bwrap"
DOCKER: Final = "docker"
PROCESS: Final = "process"
BACKENDS: Final = (BWRAP, DOCKER, PROCESS)
DOCKER_URL: Final = "unix:///var/run/docker.sock"


def make_sandbox(
    backend: str,
    *,
    unsafe: bool = False,
    limits: Limits | None = None,
    docker_url: str = DOCKER_URL,
    image: str = "",
    runtime: str = "",
) -> Sandbox:
    """Raises Misconfigured for an unknown name, or `process` without the unsafe flag."""
    if backend == BWRAP:
        return BwrapSandbox(limits=limits)
    if backend == DOCKER:
        # Its client costs 50 ms and 2 MB, for those who use it.
        from toolgate.sandbox.docker import DockerSandbox  # noqa: PLC0415

        return DockerSandbox(limits=limits, url=docker_url, image=image, runtime=runtime)
    if backend == PROCESS:
        return ProcessSandbox(unsafe=unsafe, limits=limits)
    raise Misconfigured(f"the backend must be one of {', '.join(BACKENDS)}")
