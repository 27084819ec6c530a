"""`toolgate runner` and `toolgate doctor` as processes of their own."""

import contextlib
import errno
import json
import os
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tests.e2e.forked import start
from tests.support.engines import need
from toolgate.cli.doctor import check_disk, check_policy, hint_for
from toolgate.settings import Settings

TOKEN = "token-of-the-test"


class Command:
    """A forked command, with the methods of subprocess.Popen; it says less than a pipe holds."""

    def __init__(self, *words: str, **env: str) -> None:
        (out, to_out), (err, to_err) = os.pipe(), os.pipe()
        self.stdout, self.stderr = os.fdopen(out, "rb"), os.fdopen(err, "rb")
        with Path(os.devnull).open("rb") as nothing:
            self._process = start(words, given(env), None, (nothing, to_out, to_err))
        os.close(to_out)
        os.close(to_err)
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def terminate(self) -> None:
        self._process.terminate()

    def kill(self) -> None:
        self._process.kill()

    def communicate(self, timeout: float) -> tuple[bytes, bytes]:
        self._process.join(timeout)
        assert self.returncode is not None, "it goes on"
        with self.stdout, self.stderr:
            return self.stdout.read(), self.stderr.read()


def given(env: dict[str, str]) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "RUNNER_PORT": "0", "LOG_LEVEL": "error", **env}


def installed(*words: str, **env: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [sys.executable, "-m", "toolgate", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=given(env),
    )


Process = TypeVar("Process", Command, "subprocess.Popen[bytes]")


@contextlib.contextmanager
def until_ready(process: Process) -> Iterator[tuple[dict[str, Any], Process]]:
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        line = process.stdout.readline()
        assert line, process.stderr.read().decode()
        yield json.loads(line), process
    finally:
        process.terminate()
        if not process.stderr.closed:
            _, errors = process.communicate(timeout=20)
            assert process.returncode == 0, errors.decode()
    assert process.returncode == 0


def running(*words: str, **env: str) -> AbstractContextManager[tuple[dict[str, Any], Command]]:
    return until_ready(Command("runner", *words, **env))


def execute(url: str, tool: str, token: str = TOKEN, **args: Any) -> dict[str, Any]:
    body = {
        "call": {"name": tool, "args": args},
        "ctx": {"runId": "r", "sessionId": "s", "runtimeMode": "local"},
        "target": {"targetId": "t", "kind": "docker-runner", "tenantId": "tenant"},
    }
    request = urllib.request.Request(
        url, json.dumps(body).encode(), {"authorization": f"Bearer {token}"}
    )
    with urllib.request.urlopen(request, timeout=20) as response:
        answer: dict[str, Any] = json.load(response)
    result: dict[str, Any] = answer["result"]
    return result


def test_a_real_runner_isolates_serves_and_leaves_nothing(tmp_path: Path) -> None:
    need("bwrap")
    runner = installed("runner", RUNNER_AUTH_TOKEN=TOKEN, TOOLGATE_HOME=str(tmp_path))
    with until_ready(runner) as (ready, process):
        url = ready["urls"]["runner"]
        assert ready["isolation"] == "bwrap"
        groups = [str(path) for path in Path("/sys/fs/cgroup").glob(f"**/toolgate-{process.pid}")]
        assert groups
        assert execute(url, "bash.exec", cmd="id -u; export A=1")["output"] == "1000\n"
        assert execute(url, "bash.exec", cmd="echo $A")["output"] == "1\n"
        seen = execute(url, "bash.exec", cmd="env; cat /proc/*/environ")
        assert TOKEN not in json.dumps(seen)
        with pytest.raises(urllib.error.HTTPError):
            execute(url, "bash.exec", token="wrong", cmd="id")
    assert not any(Path(path).exists() for path in groups)
    assert list(Path("/tmp").glob(f"toolgate-sandbox-{process.pid}-*")) == []


def test_a_runner_that_is_killed_takes_its_sandboxes_with_it(tmp_path: Path) -> None:
    need("bwrap")
    process = Command("runner", TOOLGATE_HOME=str(tmp_path))
    ready = json.loads(process.stdout.readline())
    execute(ready["urls"]["runner"], "bash.exec", cmd="echo open")
    entrances = list(Path("/sys/fs/cgroup/").glob(f"**/toolgate-{process.pid}/*/cgroup.procs"))
    assert any(path.read_text() for path in entrances)
    process.kill()
    process.communicate(timeout=20)
    for _ in range(200):
        if not any(path.read_text() for path in entrances):
            break
        subprocess.run(["sleep", "0.02"], check=True)
    assert not any(path.read_text() for path in entrances)
    # The next one clears away what this one could not.
    with running(TOOLGATE_HOME=str(tmp_path)):
        assert not any(path.exists() for path in entrances)
        assert list(Path("/tmp").glob(f"toolgate-sandbox-{process.pid}-*")) == []


@pytest.mark.requirement("000/server/default-port")
def test_the_mock_runs_nothing_and_listens_where_it_is_told(tmp_path: Path) -> None:
    with running("--mock", TOOLGATE_HOME=str(tmp_path)) as (ready, _):
        assert ready["urls"]["runner"].startswith("http://127.0.0.1:")
        assert execute(ready["urls"]["runner"], "bash.exec")["output"] == "mock-runner:bash.exec"


@pytest.mark.parametrize(
    ("words", "env", "said"),
    [
        (["--backend", "process"], {}, "unsafe"),
        (["--mock"], {"HOST": "0.0.0.0"}, "RUNNER_AUTH_TOKEN"),
        (
            ["--backend", "docker", "--docker-url", "unix:///nowhere.sock"],
            {},
            "no Docker engine serves",
        ),
    ],
)
def test_a_runner_that_would_not_be_safe_does_not_start(
    words: list[str], env: dict[str, str], said: str
) -> None:
    process = Command("runner", *words, **env)
    out, errors = process.communicate(timeout=30)
    assert process.returncode != 0
    assert said in errors.decode()
    assert out == b""


def test_a_runner_that_still_starts_heeds_the_signal_to_stop(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as engine:  # one that never answers, as in a pull
        engine.settimeout(20)
        url = f"http://127.0.0.1:{engine.getsockname()[1]}"
        words = ("--backend", "docker", "--docker-url", url, "--image", "large")
        process = Command("runner", *words, TOOLGATE_HOME=str(tmp_path))
        try:
            asked, _ = engine.accept()
            with asked:
                assert asked.recv(1)
                process.terminate()
                out, errors = process.communicate(timeout=20)
        finally:
            process.kill()
    assert (process.returncode, out, errors) == (0, b"", b"")


def test_the_unsafe_backend_says_what_it_is(tmp_path: Path) -> None:
    with running("--backend", "process", "--unsafe", TOOLGATE_HOME=str(tmp_path)) as (ready, _):
        assert ready["isolation"] == "none"
        assert execute(ready["urls"]["runner"], "bash.exec", cmd="echo hi")["isolation"] == "none"


@pytest.mark.parametrize(("token", "is_told"), [("", True), (TOKEN, False)])
def test_a_runner_without_a_token_is_not_silent_about_it(token: str, *, is_told: bool) -> None:
    with running("--mock", LOG_LEVEL="warning", RUNNER_AUTH_TOKEN=token) as (_, process):
        process.terminate()
        _, said = process.communicate(timeout=30)
    assert (b"runner_auth_token_unset" in said) == is_told


def test_doctor_says_which_sandboxes_work_and_how_to_get_the_others() -> None:
    need("bwrap")
    process = Command("doctor", "--json", "--docker-url", "unix:///nowhere.sock")
    out, _ = process.communicate(timeout=30)
    found = {each["name"]: each for each in json.loads(out)}
    assert process.returncode == 0
    assert found["sandbox bwrap"]["ok"] is True
    assert found["sandbox docker"]["ok"] is False
    hint = found["sandbox docker"]["hint"]
    assert "systemctl start docker" in hint or "apt-get install" in hint


def test_the_hint_says_install_where_it_is_missing_and_start_where_it_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    for backend, package in (("bwrap", "bubblewrap"), ("docker", "docker.io")):
        assert "apt-get install" in hint_for(backend, "it failed")
        assert package in hint_for(backend, "it failed")
    for program in ("bwrap", "dockerd"):
        (tmp_path / program).write_text("#!/bin/sh\n")
        (tmp_path / program).chmod(0o755)
    for backend in ("bwrap", "docker"):
        assert "it is installed" in hint_for(backend, "it failed")


@pytest.mark.parametrize(
    ("backend", "said", "hinted"),
    [
        ("bwrap", "no cgroup can be made at /sys/fs/cgroup: Read-only file system", "delegated"),
        ("bwrap", "missing here: setpriv", "util-linux"),
        ("bwrap", "the sandbox did not start: No space left on device", "reason"),
        ("docker", "no Docker engine serves at unix:///nowhere.sock", "systemctl start docker"),
        ("docker", "the container did not start: unknown runtime specified runsc", "reason"),
    ],
)
def test_the_hint_is_about_what_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: str, said: str, hinted: str
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    for program in ("bwrap", "dockerd"):
        (tmp_path / program).write_text("#!/bin/sh\n")
        (tmp_path / program).chmod(0o755)
    words = ("delegated", "util-linux", "reason", "systemctl start docker")
    assert [word for word in words if word in hint_for(backend, said)] == [hinted]


def test_a_home_that_may_not_be_looked_into_is_a_finding_and_not_the_doctor_s_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "shut" / "home"
    stat = Path.stat

    def refuse(self: Path, *, follow_symlinks: bool = True) -> os.stat_result:
        if self.is_relative_to(home):
            raise PermissionError(errno.EACCES, "Permission denied", str(self))
        return stat(self, follow_symlinks=follow_symlinks)

    monkeypatch.setattr(Path, "stat", refuse)
    settings = Settings(home=home)
    for found in (check_disk(settings), check_policy(settings)):
        assert not found.ok
        assert "Permission denied" in found.detail
        assert "TOOLGATE_HOME" in found.hint
