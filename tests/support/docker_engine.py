"""A Docker engine of one's own, for tests and measurements; needs root, no systemd and no network."""

import contextlib
import fcntl
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TextIO

READY_SECONDS: Final = 30.0
STOP_SECONDS: Final = 20.0
LEFT_BEHIND: Final = ("/etc/docker/key.json", "/run/docker", "/run/containerd")
USERS: Final = "toolgate-engines.lock"  # held by each engine, as those paths are all engines' own


@dataclass(frozen=True, slots=True)
class Engine:
    url: str
    cgroup: str  # below which the engine's containers are, in every hierarchy


def why_not() -> str:
    """Why no engine can be started here; empty where one can."""
    missing = [name for name in ("dockerd", "containerd", "runc") if shutil.which(name) is None]
    if missing:
        return f"missing: {', '.join(missing)}"
    return "" if os.geteuid() == 0 else "needs root"


@contextlib.contextmanager
def private_engine() -> Iterator[Engine]:
    """Start one, and leave nothing of it behind."""
    with _last_sweeps():
        yield from _engine()


def _engine() -> Iterator[Engine]:
    folder = Path(tempfile.mkdtemp(prefix="toolgate-engine-"))
    engine = Engine(f"unix://{folder}/engine.sock", f"/toolgate-engine-{os.getpid()}")
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            _command(folder, engine), stdout=log, stderr=log, start_new_session=True
        )
    try:
        _wait_until_ready(process, folder)
        yield engine
    finally:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        remove_cgroup(engine.cgroup)
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _last_sweeps() -> Iterator[None]:
    """What engines leave outside of their folders goes with the last one, if no other had it before."""
    with (Path(tempfile.gettempdir()) / USERS).open("a+") as users:
        if _is_alone(users):
            users.truncate(0)
            users.write("\n".join(path for path in LEFT_BEHIND if not Path(path).exists()))
            users.flush()
        fcntl.flock(users, fcntl.LOCK_SH)
        try:
            yield
        finally:
            if _is_alone(users):
                users.seek(0)
                for path in users.read().splitlines():
                    shutil.rmtree(path, ignore_errors=True)
                    with contextlib.suppress(OSError):
                        Path(path).unlink()


def _is_alone(users: TextIO) -> bool:
    try:
        fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _command(folder: Path, engine: Engine) -> list[str]:
    return [
        shutil.which("dockerd") or "dockerd",
        "--storage-driver=overlay2",
        "--iptables=false",
        "--bridge=none",
        "--exec-opt=native.cgroupdriver=cgroupfs",
        f"--cgroup-parent={engine.cgroup}",
        f"--host={engine.url}",
        f"--data-root={folder}/data",
        f"--exec-root={folder}/exec",
        f"--pidfile={folder}/pid",
    ]


def _wait_until_ready(process: "subprocess.Popen[bytes]", folder: Path) -> None:
    deadline = time.monotonic() + READY_SECONDS
    log = folder / "log"
    while b"API listen on" not in log.read_bytes():
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"dockerd did not start: {log.read_text()[-2000:]}")
        time.sleep(0.02)


def remove_cgroup(name: str) -> None:
    """Remove a group and the empty ones in it, in every hierarchy."""
    for hierarchy in Path("/sys/fs/cgroup").iterdir():
        top = hierarchy / name.lstrip("/")
        if top.is_dir():
            for folder in sorted(top.rglob("*"), key=lambda path: -len(path.parts)):
                if folder.is_dir():
                    with contextlib.suppress(OSError):
                        folder.rmdir()
            with contextlib.suppress(OSError):
                top.rmdir()
