"""An installation in this process: everything together, or ingress and orchestrator apart."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from tests.e2e.harness import PATIENCE, Client, hang_up
from toolgate import settings as table
from toolgate.bootstrap.installation import Installation
from toolgate.bootstrap.roles import start_everything, start_ingress, start_orchestrator
from toolgate.surfaces.ingress.server import Ingress

TOGETHER = "together"
APART = "apart"
API_KEY = "the key"
INTERNAL_TOKEN = "between us"

POLICY = """\
version: 1
name: test
default: deny
rules:
  - {id: desk, allow: "desk.*", match: any, reason: The device's own}
  - {id: shots, allow: browser.screenshot, match: any, reason: The device's own}
  - {id: plain, allow: [echo, math.add], match: any, reason: Harmless}
  - {id: sleep, allow: shell, match: {command: ["sleep *"]}, reason: Harmless}
  - {id: pay, ask: "payments.*", reason: Money needs a person}
"""


@dataclass
class Running:
    way: str
    ws: str
    internal: str
    orchestrator: str
    http: aiohttp.ClientSession
    installations: list[Installation]

    async def connect(self, *, user: str = "u1", **hello: object) -> Client:
        return await Client.connect(self.ws, user=user, **{"api_key": API_KEY, **hello})

    def ingress(self) -> Ingress:
        """The ingress itself, to set what no setting sets."""
        stops = (one for installation in self.installations for one in installation._stops)
        owners = (getattr(stop, "__self__", None) for stop in stops)
        return next(owner for owner in owners if isinstance(owner, Ingress))

    async def get(self, url: str) -> tuple[int, dict[str, object]]:
        async with self.http.get(url) as answer:
            return answer.status, await answer.json()

    async def post(self, url: str, body: object) -> tuple[int, dict[str, object]]:
        async with self.http.post(url, json=body) as answer:
            return answer.status, await answer.json()


async def eventually(holds: Callable[[], Awaitable[bool]], *, seconds: float = PATIENCE) -> None:
    """Until it holds; a bound, not an expectation."""
    async with asyncio.timeout(seconds):
        while not await holds():
            await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def installed(way: str, home: Path, **settings: str) -> AsyncIterator[Running]:
    """Started with any free ports; `settings` go to every part."""
    home.mkdir(parents=True, exist_ok=True)
    policy = home / "policy.yaml"
    policy.write_text(POLICY)
    given = {
        "API_KEY": API_KEY,
        "INTERNAL_TOKEN": INTERNAL_TOKEN,
        "POLICY_FILE": str(policy),
        "WS_PORT": "0",
        "HTTP_PORT": "0",
        "ORCHESTRATOR_PORT": "0",
        "GATEWAY_PORT": "0",
        "LOG_LEVEL": "error",
        **settings,
    }
    installations: list[Installation] = []
    try:
        if way == TOGETHER:
            installations.append(await start_everything(_settings(given, home / "all")))
        else:
            installations.append(await start_orchestrator(_settings(given, home / "orchestrator")))
            given["ORCHESTRATOR_URL"] = installations[0].urls["orchestrator"]
            installations.append(await start_ingress(_settings(given, home / "ingress")))
        urls = {name: url for one in installations for name, url in one.urls.items()}
        headers = {"Authorization": f"Bearer {given['INTERNAL_TOKEN']}"}
        async with aiohttp.ClientSession(headers=headers) as http:
            yield Running(
                way,
                urls["ingress_ws"],
                urls["ingress_internal"],
                urls["orchestrator"],
                http,
                installations,
            )
    finally:
        for one in reversed(installations):
            await one.stop()
        await hang_up()


def _settings(given: dict[str, str], home: Path) -> table.Settings:
    return table.load({**given, "TOOLGATE_HOME": str(home)}, environment={})
