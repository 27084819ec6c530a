"""Sandboxes by a Docker engine: one container per session, spoken to over its attached stdio.

Never through `docker exec`: killing its client leaves the process running. Without an image of its
own choice the container gets this machine's /usr, read-only, on an empty root; that needs the engine
to be on this machine. An image given by name needs `python3` and a shell in it.
"""

import asyncio
import contextlib
import functools
import hashlib
import io
import json
import math
import os
import platform
import posixpath
import tarfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import aiodocker
import aiohttp
from aiodocker.containers import DockerContainer
from aiodocker.stream import Stream

from toolgate.core.errors import Unavailable
from toolgate.sandbox import agent as sandbox_agent
from toolgate.sandbox import seccomp as sandbox_seccomp
from toolgate.sandbox.bwrap import ETC, SHARED_ETC, TOP_LEVEL
from toolgate.sandbox.sandbox import Limits, NotStarted, SessionKey, SessionSpec
from toolgate.sandbox.session import EGRESS_SOCKET, WORKSPACE, AgentSession, base_env

EXAMPLE_URL: Final = "unix:///var/run/docker.sock"
FIRST_UID: Final = 1_800_000_000
UIDS_PER_PROCESS: Final = 1000
LABEL: Final = "toolgate.instance"
DESTROY_SECONDS: Final = 15.0
UNSTARTED_SECONDS: Final = 300.0  # that no living runner leaves a container before it starts it
HIGHEST_FAMILY: Final = 46  # AF_MCTP and one to come
GONE: Final = 404
UNREACHABLE: Final = 900  # aiodocker's own status for an engine that cannot be connected to
FROM_THE_ENGINE: Final = (aiodocker.DockerError, aiohttp.ClientError, TimeoutError)
EMPTY_FOLDERS: Final = ("usr", "proc", "sys", "dev", "etc", "run", "tmp", "workspace")


class DockerSandbox:
    """Opens sessions on one engine; `runtime` may name another one, such as runsc (gVisor)."""

    def __init__(
        self,
        *,
        limits: Limits | None = None,
        url: str = EXAMPLE_URL,
        image: str = "",
        runtime: str = "",
        cgroup_parent: str = "",
    ) -> None:
        self.limits = limits or Limits()
        self.isolation = f"docker+{runtime}" if runtime else "docker"
        self.can_be_clean = True
        self._url = url
        self._image = image
        self._runtime = runtime
        self._cgroup_parent = cgroup_parent
        self._docker: aiodocker.Docker | None = None
        self._instance = f"{os.getpid()}-{os.urandom(4).hex()}"
        self._sessions: set[DockerSession] = set()
        self._remains: set[DockerContainer] = set()  # that the engine would not remove
        self._unstarted: dict[str, float] = {}  # containers of others, and since when we see them
        self._opened = 0

    @property
    def sessions(self) -> int:
        """How many there are now."""
        return len(self._sessions)

    async def check(self) -> None:
        try:
            session = await self.open(SessionSpec(SessionKey("", "", "self-test")))
        except NotStarted as refused:
            raise Unavailable(str(refused)) from refused
        try:
            await session.check()
            self.can_be_clean = await session.can_be_clean()
        finally:
            await session.close()

    async def open(self, spec: SessionSpec) -> "DockerSession":
        docker = await self._engine()
        self._opened += 1
        session = DockerSession(limits=self.limits)
        self._sessions.add(session)
        session.on_end = lambda: self._forget(session)
        name = f"toolgate-{spec.key.digest}-{self._instance}-{self._opened}"
        try:
            await self._have_image(docker)  # it may have been pruned since the last one
            await self._remove_remains()
            await self._remove_abandoned(docker)
            volumes = await _volumes(docker, self._image) if self._image else []
            await session.start(docker, self._config(spec, volumes), name=name)
            way_out = EGRESS_SOCKET if spec.egress is not None else ""
            await session.begin(spec, env=base_env(spec), egress=way_out)
        except BaseException as failed:  # whoever waited may have gone: it is nobody's then
            await session.close()
            if isinstance(failed, FROM_THE_ENGINE):
                raise NotStarted(f"the container did not start: {failed}") from failed
            raise
        return session

    async def close(self) -> None:
        await asyncio.gather(*(session.close() for session in list(self._sessions)))
        await self._remove_remains()
        if self._docker is not None:
            await self._docker.close()
            self._docker = None

    def _forget(self, session: "DockerSession") -> None:
        self._sessions.discard(session)
        if session.container is not None and not session.removed:
            self._remains.add(session.container)

    async def _remove_remains(self) -> None:
        for container in list(self._remains):
            if await _is_removed(container):
                self._remains.discard(container)

    async def _remove_abandoned(self, docker: aiodocker.Docker) -> None:
        """An agent that has exited never comes back, nor is one started that was not for so long."""
        filters = {"label": [LABEL], "status": ["exited", "dead", "created"]}
        found = await docker.containers.list(all=True, filters=json.dumps(filters))
        others = [each for each in found if each["Labels"].get(LABEL) != self._instance]
        now = asyncio.get_running_loop().time()
        self._unstarted = {
            each.id: self._unstarted.get(each.id, now)
            for each in others
            if each["State"] == "created"
        }
        for container in others:
            if now - self._unstarted.get(container.id, -math.inf) >= UNSTARTED_SECONDS:
                with contextlib.suppress(*FROM_THE_ENGINE):
                    await container.delete(force=True, v=True)

    async def _engine(self) -> aiodocker.Docker:
        if self._docker is None:
            try:
                docker = aiodocker.Docker(url=self._url)
            except (ValueError, aiodocker.DockerError) as unusable:
                reason = f"{self._url} is no address of an engine, as {EXAMPLE_URL} is: {unusable}"
                raise NotStarted(reason) from unusable
            try:
                await docker.version()
            except BaseException as failed:
                await docker.close()
                if isinstance(failed, (*FROM_THE_ENGINE, OSError)):
                    reason = f"no Docker engine serves at {self._url}"
                    if not _is_unreachable(failed):
                        reason += f": {failed}"
                    raise NotStarted(reason) from failed
                raise
            self._docker = docker
        return self._docker

    async def _have_image(self, docker: aiodocker.Docker) -> None:
        try:
            await (_pull(docker, self._image) if self._image else _load_host_image(docker))
        except FROM_THE_ENGINE as failed:
            image = self._image or host_image_name()
            raise NotStarted(f"the image {image} cannot be had: {failed}") from failed

    def _config(self, spec: SessionSpec, volumes: list[str]) -> dict[str, Any]:
        limits = self.limits
        uid = FIRST_UID + os.getpid() % 10_000 * UIDS_PER_PROCESS
        uid += self._opened % UIDS_PER_PROCESS
        tmpfs = f"size={limits.disk_bytes},nr_inodes={limits.disk_inodes},nosuid,nodev,exec"
        anyone_s = f"{tmpfs},mode=1777"
        return {
            "Image": self._image or host_image_name(),
            "Entrypoint": ["python3", "-I", "-S", "-c", _agent_source(), WORKSPACE],
            "User": f"{uid}:{uid}",
            "Hostname": "sandbox",
            "WorkingDir": WORKSPACE,
            "Labels": {LABEL: self._instance},
            "OpenStdin": True,
            "StdinOnce": True,  # where we die, the agent sees the end of its input and goes
            "AttachStdin": True,
            "AttachStdout": True,
            "AttachStderr": True,
            "Tty": False,
            "HostConfig": {
                # Not NetworkDisabled as well: then there is no /etc/hosts, and no localhost.
                "NetworkMode": "none",
                "ExtraHosts": ["sandbox:127.0.0.1"],
                "Dns": ["127.0.0.1"],  # there is none; not the machine's own, with its domains
                "DnsSearch": ["."],
                "IpcMode": "private",
                "ReadonlyRootfs": True,
                "Privileged": False,
                "CapDrop": ["ALL"],
                "SecurityOpt": ["no-new-privileges", f"seccomp={seccomp_profile()}"],
                "PidsLimit": limits.pids,
                "Memory": limits.memory_bytes,
                "MemorySwap": limits.memory_bytes,
                "NanoCpus": int(limits.cpus * 1e9),
                "ShmSize": limits.disk_bytes,
                "Tmpfs": {
                    **dict.fromkeys(volumes, anyone_s),  # they would be as large as the disk
                    WORKSPACE: f"{tmpfs},mode=0700,uid={uid},gid={uid}",
                    "/tmp": anyone_s,  # noqa: S108 - inside
                },
                "Binds": self._binds(),
                "Mounts": _way_out(spec),
                "Ulimits": [
                    {"Name": "core", "Soft": 0, "Hard": 0},
                    {"Name": "nofile", "Soft": limits.open_files, "Hard": limits.open_files},
                    {"Name": "fsize", "Soft": limits.disk_bytes, "Hard": limits.disk_bytes},
                ],
                "LogConfig": {"Type": "none"},
                **({"Runtime": self._runtime} if self._runtime else {}),
                **({"CgroupParent": self._cgroup_parent} if self._cgroup_parent else {}),
            },
        }

    def _binds(self) -> list[str]:
        if self._image:
            return []
        shared = [path for name in SHARED_ETC if Path(path := f"/etc/{name}").exists()]
        return [f"{path}:{path}:ro" for path in ("/usr", *shared)]


class DockerSession(AgentSession):
    def __init__(self, *, limits: Limits) -> None:
        super().__init__(limits=limits, destroy=self._end, explain=self._stderr)
        self.on_end = _nothing
        self.container: DockerContainer | None = None
        self.removed = False
        self._stream: Stream | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._outgoing: asyncio.Queue[bytes] = asyncio.Queue()
        self._said = bytearray()

    async def start(self, docker: aiodocker.Docker, config: dict[str, Any], *, name: str) -> None:
        creating = asyncio.ensure_future(docker.containers.create(config, name=name))
        try:
            self.container = await asyncio.shield(creating)
        except asyncio.CancelledError:  # the engine makes it all the same: to be removed, then
            with contextlib.suppress(*FROM_THE_ENGINE):
                self.container = await asyncio.wait_for(creating, DESTROY_SECONDS)
            raise
        self._stream = self.container.attach(stdin=True, stdout=True, stderr=True)
        await self._stream.__aenter__()
        self.send = self._outgoing.put_nowait
        self._tasks = [asyncio.create_task(self._read()), asyncio.create_task(self._write_out())]
        await self.container.start()

    async def _read(self) -> None:
        """Drains to the very end: the engine cannot remove a container that nobody listens to."""
        assert self._stream is not None
        with contextlib.suppress(aiohttp.ClientError, OSError):
            while (message := await self._stream.read_out()) is not None:
                if message.stream == 1:
                    self.receive(message.data)
                elif len(self._said) < 4096:
                    self._said += message.data[:4096]
        self.lost()

    async def _write_out(self) -> None:
        assert self._stream is not None
        with contextlib.suppress(aiohttp.ClientError, OSError, RuntimeError):
            while True:
                await self._stream.write_in(await self._outgoing.get())

    def _stderr(self) -> str:
        return self._said.decode("utf-8", "replace")

    async def _end(self) -> None:
        if self.container is not None:
            self.removed = await _is_removed(self.container)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._stream is not None:
            with contextlib.suppress(AssertionError, aiohttp.ClientError):
                await self._stream.close()
        self.on_end()


def _way_out(spec: SessionSpec) -> list[dict[str, Any]]:
    """As a mount and no bind: for one that it does not see the engine would make a directory."""
    if spec.egress is None:
        return []
    source, target = str(spec.egress), EGRESS_SOCKET
    return [{"Type": "bind", "Source": source, "Target": target, "ReadOnly": True}]


async def _is_removed(container: DockerContainer) -> bool:
    try:
        async with asyncio.timeout(DESTROY_SECONDS):
            await container.delete(force=True, v=True)
    except aiodocker.DockerError as refused:
        return refused.status == GONE
    except (aiohttp.ClientError, TimeoutError):
        return False
    return True


def _is_unreachable(failed: BaseException) -> bool:
    return isinstance(failed, aiodocker.DockerError) and failed.status == UNREACHABLE


def _nothing() -> None:
    pass


def _agent_source() -> str:
    return Path(sandbox_agent.__file__).read_text()


def seccomp_profile() -> str:
    """The same filter as bubblewrap's, as far as the engine's words for it reach."""
    seccomp = sandbox_seccomp
    machine = {"x86_64": "SCMP_ARCH_X86_64", "aarch64": "SCMP_ARCH_AARCH64"}[platform.machine()]
    rules = [_rule(*seccomp.REFUSED), _rule("clone3", errno=seccomp.ENOSYS)]
    for bit in range(32):
        if seccomp.NEW_NAMESPACES >> bit & 1:
            rules.append(_rule("clone", where=[_masked(0, 1 << bit, 1 << bit)]))
    rules += [_rule("ioctl", where=[_masked(1, 0xFFFFFFFF, op)]) for op in seccomp.TTY_INJECTION]
    known = {seccomp.AF_UNIX, seccomp.AF_INET, seccomp.AF_INET6, seccomp.AF_NETLINK}
    for family in set(range(HIGHEST_FAMILY + 1)) - known:
        where = [_masked(0, 0xFFFFFFFF, family)]
        rules.append(_rule("socket", where=where, errno=seccomp.EAFNOSUPPORT))
    for family in (seccomp.AF_INET, seccomp.AF_INET6):
        for kind in seccomp.RAW_TYPES:
            raw = _masked(1, seccomp.SOCK_TYPE_MASK, kind)
            rules.append(_rule("socket", where=[_masked(0, 0xFFFFFFFF, family), raw]))
    other_netlink = {"index": 2, "value": seccomp.NETLINK_ROUTE, "op": "SCMP_CMP_NE"}
    rules.append(_rule("socket", where=[_masked(0, 0xFFFFFFFF, seccomp.AF_NETLINK), other_netlink]))
    return json.dumps(
        {"defaultAction": "SCMP_ACT_ALLOW", "architectures": [machine], "syscalls": rules}
    )


def _rule(
    *names: str, where: list[dict[str, Any]] | None = None, errno: int = sandbox_seccomp.EPERM
) -> dict[str, Any]:
    action = {"names": names, "action": "SCMP_ACT_ERRNO", "errnoRet": errno}
    return action | ({"args": where} if where else {})


def _masked(index: int, mask: int, value: int) -> dict[str, Any]:
    return {"index": index, "value": mask, "valueTwo": value, "op": "SCMP_CMP_MASKED_EQ"}


async def _pull(docker: aiodocker.Docker, image: str) -> None:
    """Where the engine does not have it yet."""
    try:
        await docker.images.inspect(image)
    except aiodocker.DockerError:
        await docker.images.pull(image)


async def _volumes(docker: aiodocker.Docker, image: str) -> list[str]:
    """Where an image wants volumes, which a container gets whether it is asked for them or not."""
    described = await docker.images.inspect(image)
    volumes = (described.get("Config") or {}).get("Volumes") or {}
    return sorted({posixpath.normpath(path) for path in volumes})


async def _load_host_image(docker: aiodocker.Docker) -> None:
    """An image with nothing in it but the places where the machine's own files go."""
    with contextlib.suppress(aiodocker.DockerError):
        await docker.images.inspect(host_image_name())
        return

    async def content() -> AsyncIterator[bytes]:
        yield host_image()

    async for _ in docker.images.import_image(content(), stream=True):
        pass


@functools.cache
def host_image_name() -> str:
    """By its content, so that another version of ours makes another image."""
    return f"toolgate-host:{hashlib.sha256(_layer()).hexdigest()[:12]}"


def host_image() -> bytes:
    layer = _layer()
    machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    config = json.dumps(
        {
            "architecture": machine,
            "os": "linux",
            "config": {},
            "rootfs": {
                "type": "layers",
                "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"],
            },
        }
    ).encode()
    name = f"{hashlib.sha256(config).hexdigest()}.json"
    manifest = [{"Config": name, "RepoTags": [host_image_name()], "Layers": ["layer.tar"]}]
    files = {name: config, "layer.tar": layer, "manifest.json": json.dumps(manifest).encode()}
    return _tar(files)


def _layer() -> bytes:
    links = {
        name: str((Path("/") / name).readlink())
        for name in TOP_LEVEL
        if (Path("/") / name).is_symlink()
    }
    return _tar(
        {f"etc/{name}": content.encode() for name, content in ETC.items()},
        folders=EMPTY_FOLDERS,
        links=links,
    )


def _tar(
    files: dict[str, bytes], *, folders: tuple[str, ...] = (), links: dict[str, str] | None = None
) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for folder in folders:
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(entry)
        for link, target in (links or {}).items():
            entry = tarfile.TarInfo(link)
            entry.type, entry.linkname = tarfile.SYMTYPE, target
            archive.addfile(entry)
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), 0o644
            archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()
