"""How a role is served: what is put away where its ready line reaches nobody."""

import asyncio
import io
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import aiohttp
import pytest

from toolgate.bootstrap.installation import Installation
from toolgate.bootstrap.roles import start_everything, start_ingress, start_orchestrator
from toolgate.cli.serving import serve
from toolgate.core.errors import Damaged, Misconfigured, Unavailable
from toolgate.settings import Settings, load


class Closed(io.StringIO):
    def write(self, text: str) -> int:
        raise BrokenPipeError(32, "Broken pipe")


def test_what_was_started_is_stopped_where_its_ready_line_reaches_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stopped: list[str] = []

    async def start(_: Settings) -> Installation:
        installation = Installation(urls={"gateway": "http://127.0.0.1:1"})
        installation.on_stop_soon(lambda: stopped.append("sandboxes"))
        return installation

    monkeypatch.setattr("sys.stdout", Closed())
    with pytest.raises(BrokenPipeError):
        serve(start, Settings())
    assert stopped == ["sandboxes"]


async def test_work_in_the_background_that_fails_is_told_when_it_does_and_not_at_the_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def watch() -> None:
        raise ValueError("nothing is watched any more")

    installation = Installation()
    installation.keep_running(watch())
    async with asyncio.timeout(5):
        while "nothing is watched any more" not in caplog.text:
            await asyncio.sleep(0)
    await installation.stop()


@pytest.mark.parametrize(
    ("name", "url"),
    [("DATABASE_URL", "postgresql://toolgate@db/toolgate"), ("NATS_URL", "nats://nats:4222")],
)
@pytest.mark.parametrize("start", [start_everything, start_ingress, start_orchestrator])
async def test_a_store_that_is_not_there_in_this_version_is_refused_and_not_ignored(
    name: str, url: str, start: Callable[[Settings], Awaitable[Installation]], tmp_path: Path
) -> None:
    home = tmp_path / "home"
    given = {"TOOLGATE_HOME": str(home), "ORCHESTRATOR_URL": "http://127.0.0.1:1", name: url}
    with pytest.raises(Misconfigured, match=f"{name} is set, .* unset it"):
        await start(load(given, environment={}))
    assert not home.exists()


async def test_what_was_being_stored_when_the_process_died_is_gone_after_the_next_start(
    tmp_path: Path,
) -> None:
    left = [tmp_path / "blobs" / ".new-a", tmp_path / "blobs" / "tasks" / ".new-b"]
    for file in left:
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(bytes(1000))
    given = {"TOOLGATE_HOME": str(tmp_path), "ORCHESTRATOR_PORT": "0", "LOG_LEVEL": "error"}
    installation = await start_orchestrator(load(given, environment={}))
    await installation.stop()
    assert not any(file.exists() for file in left)


HANGING = """
import asyncio
from toolgate.bootstrap.installation import Installation
from toolgate.cli.serving import serve
from toolgate.settings import Settings

async def start(_):
    async def hang():
        print("stopping", flush=True)
        while True:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                pass
    installation = Installation()
    installation.on_stop(hang)
    return installation

serve(start, Settings())
"""


@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_ends_a_stop_that_hangs(first: signal.Signals) -> None:
    with subprocess.Popen([sys.executable, "-c", HANGING], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert b"ready" in process.stdout.readline()
            process.send_signal(first)
            assert process.stdout.readline() == b"stopping\n"
            process.send_signal(signal.SIGINT)
            assert process.wait(20) == -signal.SIGINT  # which a shell calls 130
        finally:
            process.kill()


@pytest.mark.parametrize("start", [start_everything, start_orchestrator])
@pytest.mark.parametrize("name", ["seal.key", "keys/evidence.key"])
async def test_a_file_of_the_home_that_cannot_be_used_is_named_in_one_line(
    name: str, start: Callable[[Settings], Awaitable[Installation]], tmp_path: Path
) -> None:
    (tmp_path / name).mkdir(mode=0o700, parents=True)
    ports = ("HTTP_PORT", "ORCHESTRATOR_PORT", "GATEWAY_PORT", "WS_PORT")
    given = {"TOOLGATE_HOME": str(tmp_path), "LOG_LEVEL": "error", **dict.fromkeys(ports, "0")}
    with pytest.raises(Unavailable, match=f"it cannot start: .*{name}"):
        await start(load(given, environment={}))


@pytest.mark.parametrize("name", ["operator.token", "executor.token"])
@pytest.mark.parametrize("content", [b"\xff\xfe of another program", b"two\nlines"])
async def test_a_token_that_nobody_could_send_is_named_in_one_line(
    name: str, content: bytes, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(content)
    ports = ("HTTP_PORT", "ORCHESTRATOR_PORT", "GATEWAY_PORT", "WS_PORT")
    given = {"TOOLGATE_HOME": str(tmp_path), "LOG_LEVEL": "error", **dict.fromkeys(ports, "0")}
    with pytest.raises(Damaged, match=f"{name} .*delete it") as refused:
        await start_everything(load(given, environment={}))
    assert "lines" not in str(refused.value)  # it may be one all the same
    assert (tmp_path / name).read_bytes() == content


async def test_all_roles_in_one_make_the_token_of_their_internal_doors(tmp_path: Path) -> None:
    ports = ("HTTP_PORT", "ORCHESTRATOR_PORT", "GATEWAY_PORT", "WS_PORT")
    beyond = {"HOST": "0.0.0.0", "API_KEY": "a-key-of-clients", "TOOLGATE_HOME": str(tmp_path)}
    given = {**beyond, "LOG_LEVEL": "error", **dict.fromkeys(ports, "0")}
    installation = await start_everything(load(given, environment={}))
    doors = (
        installation.urls["orchestrator"] + "/internal/agents",
        installation.urls["ingress_internal"] + "/internal/sessions/s/status",
    )
    made = (tmp_path / "internal.token").read_text().strip()
    try:
        async with aiohttp.ClientSession() as http:
            for url in doors:
                here = url.replace("0.0.0.0", "127.0.0.1")
                async with http.get(here) as refused:
                    assert refused.status == 401
                async with http.get(here, headers={"Authorization": f"Bearer {made}"}) as let_in:
                    assert let_in.status == 200
    finally:
        await installation.stop()
