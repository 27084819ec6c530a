"""The process is killed at random points under load, again and again: nothing acknowledged is lost."""

import asyncio
import contextlib
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed, InvalidHandshake

from tests.e2e.harness import Client, Program

LANES = 2  # homes that are worked on side by side
DEVICES = 4  # in each lane
GONE = (ConnectionClosed, InvalidHandshake, OSError, asyncio.TimeoutError, EOFError)


@dataclass
class Device:
    """Talks without pause, comes back after each kill, and remembers all it was told."""

    name: str
    session_id: str = ""
    last_seq: int = 0
    asked: dict[str, str] = field(default_factory=dict)  # request_id: text
    started: dict[str, str] = field(default_factory=dict)  # run_id: request_id
    said: dict[str, str] = field(default_factory=dict)  # run_id: text so far
    ended: dict[str, int] = field(default_factory=dict)  # run_id: how often

    async def live(self, url: str) -> None:
        """Until the connection breaks: ask, listen, ask again."""
        hello: dict[str, Any] = {}
        if self.session_id:
            hello = {"session_id": self.session_id, "last_seq": self.last_seq}
        client = await Client.connect(url, user=self.name, **hello)
        if self.session_id:
            assert client.ack["resumed"] is True, "a replay is due, not a snapshot"
        self.session_id = client.session_id
        try:
            while True:
                if not self._open():
                    await self._ask(client)
                self._take(await client.hear())
                self.last_seq = client.last_seq
        finally:
            with contextlib.suppress(*GONE):
                await client.close()

    async def settle(self, url: str) -> None:
        """After the last kill: every run that was acknowledged comes to its end."""
        client = await Client.connect(
            url, user=self.name, session_id=self.session_id, last_seq=self.last_seq
        )
        while self._open():
            self._take(await client.hear())
        await client.close()

    def _open(self) -> bool:
        return len(self.ended) < len(self.started)

    async def _ask(self, client: Client) -> None:
        request_id = f"req_{len(self.asked)}"
        self.asked[request_id] = f"{self.name} {request_id} " * 8
        await client.invoke(self.asked[request_id], request_id=request_id)
        while request_id not in self.started.values():
            self._take(await client.hear())
            self.last_seq = client.last_seq

    def _take(self, message: dict[str, Any]) -> None:
        run_id = message.get("run_id", "")
        match message["type"]:
            case "run_started":
                assert run_id not in self.started
                self.started[run_id] = message["request_id"]
            case "delta":
                assert run_id not in self.ended, "a delta after the end"
                self.said[run_id] = self.said.get(run_id, "") + message["text"]
            case "done":
                self.ended[run_id] = self.ended.get(run_id, 0) + 1
            case other:
                raise AssertionError(f"unexpected {other}: {message}")

    def check(self) -> None:
        assert set(self.ended.values()) <= {1}
        assert self.ended.keys() == self.started.keys()
        for run_id, request_id in self.started.items():
            assert self.said[run_id] == self.asked[request_id]


async def lane(home: Path, *, seed: int, kills: int) -> int:
    chance = random.Random(seed)
    settings = {"RESUME_WINDOW_MS": "60000", "LOG_LEVEL": "warning"}
    program = Program(home, settings)
    devices = [Device(f"{home.name}-u{number}") for number in range(DEVICES)]
    for _ in range(kills):
        await program.start()
        url = program.urls["ingress_ws"]
        lives = [asyncio.create_task(one.live(url)) for one in devices]
        await asyncio.sleep(chance.uniform(0.01, 0.25))  # the random point
        await program.kill()
        for outcome in await asyncio.gather(*lives, return_exceptions=True):
            assert isinstance(outcome, GONE), outcome
    installed = await Program(home, settings, installed=True).start()
    try:
        for device in devices:
            await device.settle(installed.urls["ingress_ws"])
            device.check()
    finally:
        await installed.kill()
    return sum(len(device.started) for device in devices)


@pytest.mark.timeout(1200)
@pytest.mark.soak("kills", rounds=LANES * 100, short=LANES * 10)
@pytest.mark.requirement("001/durability/invoke-survives", "001/durability/seq-survives")
async def test_kills_under_load_lose_nothing_that_was_acknowledged(
    tmp_path: Path, rounds: int
) -> None:
    kills = rounds // LANES
    lanes = (lane(tmp_path / f"home{n}", seed=n, kills=kills) for n in range(LANES))
    runs = await asyncio.gather(*lanes)
    assert all(count >= kills / 2 for count in runs), f"too little load to mean much: {runs}"
