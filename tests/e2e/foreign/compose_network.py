"""The seed's compose block in a network of its own, where its ports and names are free.

Started by `test_compose.py` under `unshare --net --mount`; prints the names of the checks that hold.
"""

import asyncio
import fcntl
import json
import os
import re
import socket
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from tests.e2e.harness import PATIENCE, PROGRAM
from toolgate.testkit import ingress

ROOT = Path(__file__).parents[3]
SEED = ROOT / "docs/contracts/seeds/001_e4c0b4ef34486bea.txt"
SIOCSIFFLAGS, IFF_UP = 0x8914, 1


def seeds_block() -> dict[str, Any]:
    (block,) = re.findall(r"```yaml\n(ingress:\n.*?)```", SEED.read_text("utf-8"), re.DOTALL)
    found = yaml.safe_load(block)["ingress"]
    assert isinstance(found, dict)
    return found


def image() -> tuple[list[str], dict[str, str]]:
    """Command and environment of our image."""
    text = (ROOT / "Dockerfile").read_text()
    (command,) = re.findall(r"^CMD (\[.*\])", text, re.MULTILINE)
    (given,) = re.findall(r"^ENV (TOOLGATE_HOME=.*)", text, re.MULTILINE)
    return json.loads(command), dict(pair.split("=", 1) for pair in given.split())


def raise_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh", b"lo", IFF_UP))


def name_hosts(folder: Path) -> None:
    hosts = folder / "hosts"
    hosts.write_text("127.0.0.1 localhost orchestrator ingress\n")
    subprocess.run(["mount", "--bind", str(hosts), "/etc/hosts"], check=True)


async def healthy(check: list[str]) -> None:
    """Until the block's own health check says so."""
    assert check[0] == "CMD"
    async with asyncio.timeout(3 * PATIENCE):
        while True:
            asked = await asyncio.create_subprocess_exec(
                *check[1:], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
            if await asked.wait() == 0:
                return
            await asyncio.sleep(0.1)


async def main(folder: Path) -> dict[str, str]:
    raise_loopback()
    name_hosts(folder)
    block = seeds_block()
    command, of_image = image()
    of_block = dict(pair.split("=", 1) for pair in block["environment"])
    given = {**of_image, "TOOLGATE_HOME": str(folder / "data"), **of_block}
    played = ingress.OrchestratorPeer()
    await played.serve("127.0.0.1", 8081)
    program = await asyncio.create_subprocess_exec(
        str(PROGRAM),
        *command,
        env={"PATH": os.environ["PATH"], **given},
        stdout=subprocess.PIPE,
        cwd=folder,
    )
    try:
        await healthy(block["healthcheck"]["test"])
        assert program.stdout is not None
        ready = json.loads(await program.stdout.readline())
        assert ready["not_started"] == ["orchestrator"], ready
        async with aiohttp.ClientSession() as http:
            key = of_block["API_KEY"]
            urls = ("ws://ingress:8090/ws", "http://ingress:8091")
            peer = ingress.ClientPeer(urls[0], http, key, urls[1], orchestrator=played)
            peer.checks_key = True
            found = await ingress.KIT.run(peer, lambda _done, _total: None)
    finally:
        program.terminate()
        await program.wait()
        await played.close()
    return {one.name: f"{one.result} {one.detail}".strip() for one in found}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asyncio.run(main(Path(sys.argv[1])))))
