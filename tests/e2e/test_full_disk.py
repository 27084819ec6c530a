"""A disk that is full: commands are refused, every listener says so, and all goes on with room."""

import itertools
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.e2e.ways import TOGETHER, Running, eventually, installed

STATES = ("journal_failing", "journal_works_again")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 24 MB of its own."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(disk)],
        capture_output=True,
        check=False,
    )
    if mount.returncode != 0:
        pytest.skip(f"NOT TESTED, a full disk needs root to mount one: {mount.stderr.decode()}")
    try:
        yield disk
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


OPERATOR = "token-of-the-operator"
numbers = itertools.count()


def fill(filler: Path) -> None:
    with filler.open("wb", buffering=0) as file:
        try:
            while file.write(bytes(4096)) == 4096:
                pass
        except OSError:
            return


async def conditions(running: Running) -> list[tuple[int, bool]]:
    """Of each listener with a journal: the status of /ready, and whether /health names a problem."""
    found = []
    for url in (running.orchestrator, running.internal):
        status, _ = await running.get(f"{url}/ready")
        _, health = await running.get(f"{url}/health")
        found.append((status, bool(health.get("problem"))))
    return found


async def device(
    running: Running, http: aiohttp.ClientSession
) -> Callable[[], Awaitable[tuple[int, Any]]]:
    """Pair a device with the gateway; returns a function that sends a command of its."""
    url = running.installations[0].urls["gateway"]
    known = {"X-Device-Id": "d"}
    async with http.get(f"{url}/status", headers=known):
        pass
    bearer = {"Authorization": f"Bearer {OPERATOR}"}
    async with http.post(
        f"{url}/pairing/approve", json={"deviceId": "d"}, headers=bearer
    ) as approved:
        known["X-Device-Token"] = approved.headers["X-Device-Token"]

    async def command() -> tuple[int, Any]:
        key = {**known, "Idempotency-Key": f"k{next(numbers)}"}
        body = {"payload": {"name": "echo", "args": {"text": "x" * 50_000}}}
        async with http.post(f"{url}/command/tool", json=body, headers=key) as answer:
            return answer.status, await answer.json()

    return command


@pytest.mark.requirement("002/codes/unavailable")
async def test_a_full_disk_shows_in_health_and_ready_and_passes(
    disk: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    given = {"LOG_LEVEL": "warning", "OPERATOR_TOKEN": OPERATOR}
    async with (
        installed(TOGETHER, disk / "home", **given) as running,
        aiohttp.ClientSession() as http,
    ):
        assert await conditions(running) == [(200, False)] * 2
        command = await device(running, http)
        assert (await command())[0] == 200
        client = await running.connect()
        fill(disk / "filler")

        async def fails() -> bool:
            await client.say("cancel_run", run_id="run_nowhere")
            await client.invoke("x" * 50_000, request_id=f"q{next(numbers)}")
            return await conditions(running) == [(503, True)] * 2

        await eventually(fails)
        await client.invoke("x" * 50_000, request_id="refused")
        heard = [await client.hear()]
        while heard[-1].get("request_id") != "refused":
            heard.append(await client.hear())
        assert heard[-1]["code"] == "orchestrator_error"
        status, refused = await command()
        assert (status, refused["error"]["code"]) == (503, "ERR_UNAVAILABLE")
        assert refused["data"] == {"outcome": "not_started"}
        assert await conditions(running) == [(503, True)] * 2
        (disk / "filler").unlink()

        async def works() -> bool:
            return (await command())[0] == 200

        await eventually(works)
        other = await running.connect(user="other")
        await other.invoke("still here", request_id="after")
        assert (await other.hear_until("done", "error"))[-1]["type"] == "done"
        assert await conditions(running) == [(200, False)] * 2
    lines = capfd.readouterr().err.splitlines()
    # A short commit may still fit after a long one did not, so the state may change more than once.
    states = [state for line in lines for state in STATES if f" {state}" in line]
    assert states == [*STATES] * (len(states) // 2) != [], lines
    assert len(lines) < 30, lines
