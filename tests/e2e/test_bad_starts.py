"""What a user may get wrong at the start: one line that says what to do, and nothing lost."""

import asyncio
import os
import shutil
import socket
import subprocess
from pathlib import Path

import aiohttp
import pytest

from tests.e2e.forked import fork
from tests.e2e.harness import ANY_PORT, PATIENCE, Client, environment, running


async def refused(home: Path, *arguments: str, **settings: str) -> tuple[int, str]:
    """Start it where it must not start; its exit code and what it says."""
    process = await fork(
        "up",
        *arguments,
        env=environment({**ANY_PORT, "TOOLGATE_HOME": str(home), **settings}),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd=home.parent if home.parent.is_dir() else home.parent.parent,
    )
    out, err = await asyncio.wait_for(process.communicate(), PATIENCE)
    assert out == b"", "nothing is ready"
    lines = [line for line in err.decode().splitlines() if line.startswith("toolgate: ")]
    assert len(lines) == 1, err.decode()
    assert "Traceback" not in err.decode()
    assert process.returncode is not None
    return process.returncode, lines[0]


async def test_an_unknown_setting_is_named_with_the_nearest_known_one(tmp_path: Path) -> None:
    code, said = await refused(tmp_path / "home", "--set", "WS_PROT=1")
    assert code == 2
    assert "WS_PROT" in said
    assert "WS_PORT" in said


async def test_an_unknown_setting_of_ours_in_the_environment_is_named(tmp_path: Path) -> None:
    code, said = await refused(tmp_path / "home", TOOLGATE_HOUSE="x")
    assert (code, "TOOLGATE_HOUSE" in said) == (2, True)


async def test_a_setting_of_the_wrong_type_is_named_with_what_it_must_be(tmp_path: Path) -> None:
    code, said = await refused(tmp_path / "home", WS_PORT="eighty")
    assert (code, "WS_PORT" in said, "whole number" in said) == (2, True, True)


async def test_a_setting_out_of_range_is_named_with_its_range(tmp_path: Path) -> None:
    code, said = await refused(tmp_path / "home", HTTP_PORT="65536")
    assert (code, "65535" in said) == (2, True)


async def test_a_broken_config_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "toolgate.toml").write_text("WS_PORT = = 1")
    code, said = await refused(tmp_path / "home")
    assert (code, "toolgate.toml" in said) == (2, True)


async def test_a_port_in_use_is_named_with_its_setting(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code, said = await refused(tmp_path / "home", GATEWAY_PORT=str(port))
    assert (code, str(port) in said, "GATEWAY_PORT" in said) == (2, True, True)


async def test_a_home_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    code, said = await refused(tmp_path / "file" / "home")
    assert (code, "TOOLGATE_HOME" in said) == (2, True)


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to change the user: run the tests as root")
async def test_a_home_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", str(home)], check=True)
    try:
        code, said = await refused(home)
    finally:
        subprocess.run(["umount", str(home)], check=True)
    assert code != 0
    assert str(home) in said


async def test_a_second_process_on_the_same_home_is_refused_and_harms_nothing(
    tmp_path: Path,
) -> None:
    async with running(tmp_path / "home") as program:
        client = await Client.connect(program.urls["ingress_ws"])
        code, said = await refused(tmp_path / "home")
        assert program.process is not None
        assert code != 0
        assert str(program.process.pid) in said
        await client.invoke("still here")
        assert (await client.hear_until("done", "error"))[-1]["type"] == "done"


async def test_a_damaged_journal_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    home = tmp_path / "home"
    async with running(home) as program:
        client = await Client.connect(program.urls["ingress_ws"])
        await client.invoke("precious")
        await client.hear_until("done")
        await program.stop()
    journal = home / "journal.db"
    whole = journal.read_bytes()
    journal.write_bytes(b"\0" * 100 + whole[100:])
    code, said = await refused(home)
    assert (code != 0, "journal.db" in said) == (True, True)
    assert journal.read_bytes() == b"\0" * 100 + whole[100:]
    journal.write_bytes(whole)
    async with running(home) as program:
        again = await Client.connect(
            program.urls["ingress_ws"], session_id=client.session_id, last_seq=0
        )
        assert (await again.hear_until("done"))[-1]["type"] == "done"


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to mount a small disk: run as root")
async def test_a_full_disk_is_told_loses_nothing_and_passes(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(home)], check=True)
    ballast = home / "ballast"
    try:
        async with running(home) as program:
            client = await Client.connect(program.urls["ingress_ws"])
            await client.invoke("before", request_id="r1")
            before = await client.hear_until("done")
            free = shutil.disk_usage(home).free
            ballast.write_bytes(b"\0" * (free - free % 4096))
            for number in range(40):
                await client.invoke("x" * 60_000, request_id=f"full{number}")
                if (await client.hear_until("done", "error"))[-1]["type"] == "error":
                    break
            else:
                raise AssertionError("the disk never filled")
            ballast.unlink()
            async with asyncio.timeout(10):
                number = 0
                while True:
                    number += 1
                    await client.invoke("after", request_id=f"after{number}")
                    if (await client.hear_until("done", "error"))[-1]["type"] == "done":
                        break
            again = await Client.connect(
                program.urls["ingress_ws"], session_id=client.session_id, last_seq=0
            )
            assert [await again.hear() for _ in before] == before
    finally:
        subprocess.run(["umount", str(home)], check=True)


async def test_a_token_file_that_a_power_cut_has_left_empty_lets_nobody_in(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    for name in ("operator.token", "executor.token"):
        (home / name).write_text("")
    async with running(home) as program:
        async with aiohttp.ClientSession(headers={"X-Toolgate-Console": "1"}) as http:
            for method, url in (
                ("POST", f"{program.urls['console']}/api/links"),
                ("GET", f"{program.urls['gateway']}/execution-targets"),
            ):
                for given in ({}, {"Authorization": "Bearer "}):
                    async with http.request(method, url, headers=given) as answer:
                        assert answer.status in {401, 403}, url
        assert len((home / "operator.token").read_text()) > 20
        assert len((home / "executor.token").read_text()) > 20
        assert (home / "operator.token").stat().st_mode & 0o777 == 0o600


async def test_a_policy_that_is_not_there_or_cannot_be_read_is_named(tmp_path: Path) -> None:
    code, said = await refused(tmp_path / "home", POLICY_FILE=str(tmp_path / "none.yaml"))
    assert (code, "POLICY_FILE" in said, "none.yaml" in said) == (2, True, True)
    (tmp_path / "latin.yaml").write_bytes(b"\xe9")
    code, said = await refused(tmp_path / "home", POLICY_FILE=str(tmp_path / "latin.yaml"))
    assert (code, "POLICY_FILE" in said, "latin.yaml" in said) == (2, True, True)


async def test_ctrl_c_while_it_starts_ends_it_without_a_traceback(tmp_path: Path) -> None:
    async with running(tmp_path / "home") as program:
        assert program.process is not None
        program.process.send_signal(2)
        assert await asyncio.wait_for(program.process.wait(), 10) == 0
        assert "Traceback" not in program.log.read_text()
