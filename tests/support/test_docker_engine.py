"""The private engine leaves nothing behind."""

from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support import docker_engine


@pytest.fixture(autouse=True)
def needs_docker() -> None:
    if docker_engine.why_not():
        pytest.skip(docker_engine.why_not())


def test_an_engine_starts_and_leaves_nothing() -> None:
    with docker_engine.private_engine() as engine:
        folder = Path(engine.url.removeprefix("unix://")).parent
        pid = int((folder / "pid").read_text())
        assert Path(f"/proc/{pid}").exists()
    assert not folder.exists()
    assert not Path(f"/proc/{pid}").exists()
    assert str(folder) not in Path("/proc/self/mounts").read_text()
    assert list(Path("/sys/fs/cgroup").glob(f"*{engine.cgroup}")) == []


def test_what_engines_share_stays_until_the_last_of_them_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared, there_before = tmp_path / "shared", tmp_path / "there_before"
    there_before.mkdir()
    monkeypatch.setattr(docker_engine, "LEFT_BEHIND", (str(shared), str(there_before)))
    monkeypatch.setattr(docker_engine, "USERS", str(tmp_path / "users.lock"))
    with ExitStack() as first, docker_engine.private_engine():
        first.enter_context(docker_engine.private_engine())
        shared.mkdir()
        first.close()
        assert shared.exists()
    assert not shared.exists()
    assert there_before.exists()
