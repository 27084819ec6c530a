"""What only a Docker engine does: volumes of images, sockets of hosts, containers of the dead."""

import hashlib
import io
import json
import platform
import tarfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiodocker
import pytest

from tests.support import docker_engine
from toolgate.core.errors import Unavailable
from toolgate.sandbox import docker as sandbox_docker
from toolgate.sandbox.docker import LABEL, DockerSandbox, host_image_name
from toolgate.sandbox.sandbox import Command, NotStarted, SessionKey, SessionSpec

SPEC = SessionSpec(SessionKey("t", "w", "s"))


@pytest.fixture
async def docker(engine: docker_engine.Engine) -> AsyncIterator[aiodocker.Docker]:
    docker = aiodocker.Docker(url=engine.url)
    try:
        yield docker
    finally:
        await docker.close()


class OfThisMachine(DockerSandbox):
    """An image of one's own with this machine's programs in it."""

    def _binds(self) -> list[str]:
        return ["/usr:/usr:ro"]


def tar(folders: dict[str, int], files: dict[str, bytes], links: tuple[str, ...] = ()) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, mode in folders.items():
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, mode
            archive.addfile(entry)
        for name in links:
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = tarfile.SYMTYPE, f"usr/{name}"
            archive.addfile(entry)
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), 0o644
            archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


async def load_image(docker: aiodocker.Docker, name: str, **config: Any) -> None:
    folders = dict.fromkeys(("usr", "proc", "sys", "dev", "etc", "run", "workspace"), 0o755)
    content = {"data/kept": b"of the image", "etc/passwd": b"root:x:0:0::/:/bin/false\n"}
    links = ("bin", "lib", "lib64", "sbin")
    layer = tar({**folders, "tmp": 0o1777, "data": 0o1777}, content, links)
    machine = {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()]
    digest = f"sha256:{hashlib.sha256(layer).hexdigest()}"
    described = {
        "architecture": machine,
        "os": "linux",
        "config": config,
        "rootfs": {"type": "layers", "diff_ids": [digest]},
    }
    manifest = [{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]
    files = {"config.json": json.dumps(described).encode(), "layer.tar": layer}
    whole = tar({}, {**files, "manifest.json": json.dumps(manifest).encode()})

    async def sent() -> AsyncIterator[bytes]:
        yield whole

    async for _ in docker.images.import_image(sent(), stream=True):
        pass


@pytest.mark.requirement("000/workspace/disk-quota")
async def test_what_an_image_calls_a_volume_is_no_way_around_the_quota(
    engine: docker_engine.Engine, docker: aiodocker.Docker
) -> None:
    await load_image(docker, "volumes:1", Volumes={"/data/": {}, "/tmp": {}, "/workspace": {}})
    sandbox = OfThisMachine(url=engine.url, image="volumes:1", cgroup_parent=engine.cgroup)
    try:
        session = await sandbox.open(SPEC)
        for place in ("/data", "/tmp", "."):
            fill = f"for n in 1 2; do head -c 40000000 /dev/zero > {place}/f$n; done; rm {place}/f*"
            done = await session.exec(Command(fill))
            assert b"No space left on device" in done.stderr
    finally:
        await sandbox.close()
    listed = await docker._query_json("volumes")
    assert not listed["Volumes"]


async def test_a_way_out_that_the_engine_does_not_see_opens_nothing(
    engine: docker_engine.Engine, tmp_path: Path
) -> None:
    """The engine of a runner in a container, or of one elsewhere, has another file system."""
    sandbox = DockerSandbox(url=engine.url, cgroup_parent=engine.cgroup)
    unseen = tmp_path / "socket"
    try:
        with pytest.raises(NotStarted, match=str(unseen)):
            await sandbox.open(SessionSpec(SPEC.key, egress=unseen))
    finally:
        await sandbox.close()
    assert not unseen.exists()


async def test_a_container_that_its_dead_runner_never_started_is_removed_after_a_while(
    engine: docker_engine.Engine, docker: aiodocker.Docker, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox = DockerSandbox(url=engine.url, cgroup_parent=engine.cgroup)
    try:
        await sandbox.open(SessionSpec(SessionKey("t", "w", "1")))
        config: dict[str, Any] = {
            "Image": host_image_name(),
            "Cmd": ["true"],
            "Labels": {LABEL: "another-1"},
        }
        made = await docker.containers.create(config)
        await sandbox.open(SessionSpec(SessionKey("t", "w", "2")))
        assert (await made.show())["State"]["Status"] == "created"  # its runner may live
        monkeypatch.setattr(sandbox_docker, "UNSTARTED_SECONDS", 0.0)
        await sandbox.open(SessionSpec(SessionKey("t", "w", "3")))
        with pytest.raises(aiodocker.DockerError):
            await made.show()
        assert sandbox.sessions == 3
    finally:
        await sandbox.close()


@pytest.mark.parametrize("url", ["/var/run/docker.sock", "docker.example", "ssh://machine"])
async def test_an_address_that_no_engine_can_have_is_told_with_one_that_can(url: str) -> None:
    sandbox = DockerSandbox(url=url)
    with pytest.raises(Unavailable, match=f"{url}.*unix:///"):
        await sandbox.check()
    await sandbox.close()


async def test_where_an_image_cannot_be_had_the_engine_is_not_blamed(
    engine: docker_engine.Engine,
) -> None:
    sandbox = DockerSandbox(url=engine.url, image="127.0.0.1:1/none:latest")
    with pytest.raises(Unavailable, match="none:latest") as refused:
        await sandbox.check()
    assert engine.url not in str(refused.value)
    await sandbox.close()
