"""The private engine leaves nothing behind."""

from pathlib import Path

import pytest

from toolgate.testing import docker_engine


def test_an_engine_starts_and_leaves_nothing() -> None:
    if docker_engine.why_not():
        pytest.skip(docker_engine.why_not())
    before = Path("/proc/self/mounts").read_text()
    with docker_engine.private_engine() as engine:
        folder = Path(engine.url.removeprefix("unix://")).parent
        pid = int((folder / "pid").read_text())
        assert Path(f"/proc/{pid}").exists()
    assert not folder.exists()
    assert not Path(f"/proc/{pid}").exists()
    assert Path("/proc/self/mounts").read_text() == before
    assert list(Path("/sys/fs/cgroup").glob(f"*{engine.cgroup}")) == []
