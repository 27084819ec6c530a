"""Every route there is, with every credential that is not good enough for it.

The routes are read from the gateway's own document, so that a new one is tried as well.
"""

import contextlib
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.surfaces.gateway.conftest import ALL, OPERATOR
from toolgate import settings as table
from toolgate.bootstrap.roles import start_everything
from toolgate.contracts.gateway_v1 import ErrorCode

Headers = dict[str, str]


@dataclass(frozen=True)
class Operation:
    method: str
    path: str
    opens: frozenset[str]  # which kinds of credentials its document names

    @property
    def is_for_devices(self) -> bool:
        return "deviceToken" in self.opens


def bearer(token: str) -> Headers:
    return {"Authorization": f"Bearer {token}"}


def operations(document: Any) -> Iterator[Operation]:
    for path, methods in document["paths"].items():
        for method, told in methods.items():
            named = frozenset(name for way in told["security"] for name in way)
            yield Operation(method.upper(), path.replace("{", "x").replace("}", ""), named)


@dataclass
class Gateway:
    url: str
    http: aiohttp.ClientSession

    async def ask(self, method: str, path: str, headers: Headers, body: Any = None) -> Any:
        sent = {"json": body} if method in ("POST", "PUT") else {}
        async with self.http.request(method, self.url + path, headers=headers, **sent) as answer:
            return answer.status, await answer.json()

    async def operator(self, method: str, path: str, body: Any = None) -> Any:
        status, told = await self.ask(method, path, bearer(OPERATOR), body)
        assert status == 200, told
        return told

    async def pair(self, device_id: str, **scope: Any) -> Headers:
        await self.ask("GET", "/status", {"X-Device-Id": device_id})
        wanted = {"deviceId": device_id, "scope": scope}
        told = await self.operator("POST", "/pairing/approve", wanted)
        return {"X-Device-Id": device_id, "X-Device-Token": told["data"]["deviceToken"]}


@contextlib.asynccontextmanager
async def opened(home: Path) -> AsyncIterator[Gateway]:
    ports = {f"{name}_PORT": "0" for name in ("WS", "HTTP", "ORCHESTRATOR", "GATEWAY")}
    settings = {"TOOLGATE_HOME": str(home), **ports, "OPERATOR_TOKEN": OPERATOR}
    running = await start_everything(table.load({**settings, "LOG_LEVEL": "error"}, environment={}))
    try:
        async with aiohttp.ClientSession() as http:
            yield Gateway(running.urls["gateway"], http)
    finally:
        await running.stop()


@pytest.mark.requirement("002/pairing/operator-only")
async def test_no_route_is_open_to_whoever_has_no_live_token_of_its_own(tmp_path: Path) -> None:
    async with opened(tmp_path) as gateway:
        mine, other = await gateway.pair("mine", **ALL), await gateway.pair("other", **ALL)
        gone = await gateway.pair("gone", **ALL)
        await gateway.operator("POST", "/pairing/revoke", {"deviceId": "gone"})
        service = await gateway.operator("POST", "/tokens", {"name": "script", "scope": ALL})
        script = bearer(service["data"]["token"])
        await gateway.operator("DELETE", "/tokens/script")
        unknown: list[Headers] = [
            {},
            {"X-Device-Token": mine["X-Device-Token"]},
            {"X-Device-Id": "stranger"},
            {"X-Device-Id": "stranger", "X-Device-Token": mine["X-Device-Token"]},
            {"Authorization": f"Basic {OPERATOR}"},
        ]
        wrong: list[Headers] = [
            {"X-Device-Id": "mine", "X-Device-Token": "wrong"},
            {"X-Device-Id": "mine", "X-Device-Token": other["X-Device-Token"]},
            {"X-Device-Id": "mine", "X-Device-Token": mine["X-Device-Token"][:-1]},
            gone,
        ]
        wrong_bearers: list[Headers] = [
            {**mine, **bearer("wrong")},
            bearer(mine["X-Device-Token"]),
            bearer(OPERATOR[:-1]),
            script,
        ]
        _, document = await gateway.ask("GET", "/openapi.json", {})
        tried = [one for one in operations(document) if one.opens]
        assert {"/status", "/command/tool", "/policy", "/audit/query"} <= {
            one.path for one in tried
        }
        for one in tried:
            of_device = ErrorCode.INVALID_TOKEN if one.is_for_devices else ErrorCode.AUTH_REQUIRED
            for cases, code in (
                (unknown, ErrorCode.AUTH_REQUIRED),
                (wrong, of_device),
                (wrong_bearers, ErrorCode.INVALID_TOKEN),
            ):
                for headers in cases:
                    status, told = await gateway.ask(one.method, one.path, headers, {})
                    assert (status, told["error"]["code"]) == (401, code), (one, headers)


async def test_what_is_the_operators_is_closed_to_devices_and_scripts(tmp_path: Path) -> None:
    async with opened(tmp_path) as gateway:
        device = await gateway.pair("mine", **ALL)
        made = await gateway.operator("POST", "/tokens", {"name": "script", "scope": ALL})
        script = bearer(made["data"]["token"])
        _, document = await gateway.ask("GET", "/openapi.json", {})
        tried = [one for one in operations(document) if one.opens and not one.is_for_devices]
        assert len(tried) > 10
        for one in tried:
            status, told = await gateway.ask(one.method, one.path, device, {})
            assert (status, told["error"]["code"]) == (401, ErrorCode.AUTH_REQUIRED), one
            if one.path != "/capabilities/register":  # which scripts may do
                status, told = await gateway.ask(one.method, one.path, script, {})
                assert (status, told["error"]["code"]) == (403, ErrorCode.PERMISSION_DENIED), one


async def test_a_command_is_never_the_operators(tmp_path: Path) -> None:
    async with opened(tmp_path) as gateway:
        for kind in ("agent", "tool", "system", "mcp"):
            status, told = await gateway.ask("POST", f"/command/{kind}", bearer(OPERATOR), {})
            assert (status, told["error"]["code"]) == (401, ErrorCode.AUTH_REQUIRED)


async def test_a_rebound_name_opens_no_route_whoever_asks(tmp_path: Path) -> None:
    async with opened(tmp_path) as gateway:
        _, document = await gateway.ask("GET", "/openapi.json", {})
        for one in operations(document):
            rebound = {"Host": "evil.example", **bearer(OPERATOR)}
            status, told = await gateway.ask(one.method, one.path, rebound, {})
            assert (status, told["error"]["code"]) == (403, ErrorCode.PERMISSION_DENIED), one
