"""How many modules a reader meets on the road of `POST /command/tool`."""

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, Final

import aiohttp
import pytest

from tests.e2e.harness import ANY_PORT, hang_up
from toolgate import settings as table
from toolgate.bootstrap.installation import Installation
from toolgate.bootstrap.roles import start_everything

MOST: Final = 20
OURS: Final = "toolgate."
VOCABULARY: Final = "toolgate.core."  # ids, clock, enums: every module uses them
BUS: Final = "toolgate.journal.local_bus"  # the road ends here: behind it are other readers
OPERATOR: Final = "operator-token-of-the-road"
READ: Final = {"payload": {"name": "echo", "args": {"text": "x"}}}


# The road begins where the request is read, where the gate runs the tool in a task of its own, and
# where the journal reports a commit. Other work of the loop begins elsewhere and is not counted.
BEGINS: Final = frozenset(
    {
        "toolgate.http.asgi",
        "toolgate.surfaces.gateway.server",
        "toolgate.tools.gate",
        "toolgate.journal.sqlite.journal",
    }
)


class Road:
    """The modules of ours that have called a function of another one, by a profile of this thread."""

    def __init__(self) -> None:
        self.passed: dict[str, set[str]] = {}

    def __enter__(self) -> "Road":
        sys.setprofile(self._note)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _note(self, frame: FrameType, event: str, _argument: Any) -> None:
        if event != "call" or not (called := _module(frame)).startswith(OURS):
            return
        ours = [module for module in _callers(frame) if module.startswith(OURS)]
        if not ours or ours[-1] not in BEGINS or BUS in ours[1:]:
            return
        if (calling := ours[0]) == called:
            return
        if not called.startswith(VOCABULARY) and not calling.startswith(VOCABULARY):
            self.passed.setdefault(calling, set()).add(called)


def _callers(frame: FrameType) -> Iterator[str]:
    """The modules of the frames below, the nearest first."""
    below = frame.f_back
    while below is not None:
        yield _module(below)
        below = below.f_back


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


class Device:
    def __init__(self, url: str, http: aiohttp.ClientSession) -> None:
        self.url, self.http = url, http
        self.headers = {"X-Device-Id": "phone"}

    async def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Any:
        sent = headers or self.headers
        async with self.http.request(method, self.url + path, json=body, headers=sent) as answer:
            return await answer.json()

    async def pair(self) -> None:
        await self.ask("GET", "/status")
        operator = {"Authorization": f"Bearer {OPERATOR}"}
        body = {"deviceId": "phone", "scope": {"tools": "write"}}
        approved = await self.ask("POST", "/pairing/approve", body, **operator)
        self.headers["X-Device-Token"] = approved["data"]["deviceToken"]

    async def command(self, **headers: str) -> None:
        answer = await self.ask("POST", "/command/tool", READ, **self.headers, **headers)
        assert answer["data"]["results"][0]["success"] is True, answer


@pytest.fixture
async def device(tmp_path: Path) -> AsyncIterator[Device]:
    given = {**ANY_PORT, "TOOLGATE_HOME": str(tmp_path), "OPERATOR_TOKEN": OPERATOR}
    installation: Installation = await start_everything(table.load(given, environment={}))
    try:
        async with aiohttp.ClientSession() as http:
            device = Device(installation.urls["gateway"], http)
            await device.pair()
            yield device
    finally:
        await installation.stop()
        await hang_up()


@pytest.mark.parametrize("keyed", [False, True])
async def test_a_command_passes_few_modules(device: Device, keyed: bool) -> None:
    for number in range(3):  # what is made once is there
        await device.command(**({"Idempotency-Key": f"first-{number}"} if keyed else {}))
    await asyncio.sleep(0)
    with Road() as road:
        await device.command(**({"Idempotency-Key": "second"} if keyed else {}))
    shown = "\n".join(f"{name} -> {sorted(road.passed[name])}" for name in sorted(road.passed))
    assert len(road.passed) <= MOST, shown
