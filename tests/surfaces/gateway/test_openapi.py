"""The OpenAPI document: whole, true, and held against the running gateway by schemathesis."""

import asyncio
import contextlib
import re
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from tests.surfaces.gateway.conftest import ALL, OPERATOR, Door
from toolgate import settings as table
from toolgate.bootstrap.roles import start_everything
from toolgate.contracts.gateway_v1 import ERROR_CODES, HEADERS, V2_METHODS
from toolgate.surfaces.gateway import routes

SEED = "20240229"
EXAMPLES = "3"  # per operation and phase; the whole run has a bound of its own
BOUND_S = 240  # for a machine that does much else; alone it takes a fraction


async def test_the_document_names_every_route_with_models_and_links(door: Door) -> None:
    document = (await door.ask("GET", "/openapi.json")).json
    assert document["openapi"].startswith("3.1")
    for path in ("/health", "/status", "/events/poll", "/pairing/approve", "/command/tool"):
        assert path in document["paths"]
    posted = document["paths"]["/command/tool"]["post"]
    statuses = (200, 202, 400, 401, 403, 409, 413, 429, 500, 501, 502, 503)
    assert {str(status) for status in statuses} == set(posted["responses"])
    assert "state" in posted["responses"]["202"]["links"]
    assert "next" in document["paths"]["/events/poll"]["get"]["responses"]["200"]["links"]
    assert set(document["components"]["headers"]) == set(HEADERS)
    named = {
        operation["operationId"]
        for methods in document["paths"].values()
        for operation in methods.values()
    }
    assert len(named) == sum(len(methods) for methods in document["paths"].values())


async def test_each_stateful_answer_is_linked_to_the_request_that_follows_it(
    tmp_path: Path,
) -> None:
    async with (
        installed(tmp_path) as url,
        aiohttp.ClientSession() as http,
        http.get(f"{url}/openapi.json") as answer,
    ):
        paths = (await answer.json())["paths"]
    links = {
        f"{method.upper()} {path} {status}": sorted(response["links"])
        for path, methods in paths.items()
        for method, operation in methods.items()
        for status, response in operation["responses"].items()
        if "links" in response
    }
    commands = [f"POST /command/{kind}" for kind in ("agent", "tool", "system", "mcp")]
    assert links == {
        "GET /approvals 200": ["decide"],
        "GET /events/poll 200": ["next"],
        "GET /pairing/pending 200": ["approve"],
        "POST /pairing/approve 200": ["revoke"],
        "POST /tokens 200": ["end"],
        "PUT /execution-targets/{targetId} 200": ["delete", "read"],
        **{f"{command} 200": ["state"] for command in commands},
        **{f"{command} 202": ["decide", "state"] for command in commands},
    }


async def test_the_docs_page_is_readable_and_asks_nothing_of_others(door: Door) -> None:
    page = await door.ask("GET", "/docs")
    assert page.status == 200
    text = page.body.decode()
    for code in ERROR_CODES:
        assert code in text
    for header in HEADERS:
        assert header in text
    assert "<script" not in text
    assert "http://" not in text.replace(door.url, "")
    assert "https://" not in text


async def test_the_docs_page_shows_what_to_send_and_what_comes_back(door: Door) -> None:
    document = (await door.ask("GET", "/openapi.json")).json
    text = (await door.ask("GET", "/docs")).body.decode()
    linked = set(re.findall(r'href="#([^"]+)"', text))
    assert linked <= set(re.findall(r'id="([^"]+)"', text))
    for path, methods in document["paths"].items():
        for operation in methods.values():
            if "requestBody" in operation:
                sent = operation["requestBody"]["content"]["application/json"]["schema"]
                assert sent["$ref"].rpartition("/")[2] in linked, path
            for parameter in operation["parameters"]:
                assert parameter["name"] in text, path
    for name, schema in document["components"]["schemas"].items():
        for member in schema.get("properties", ()):
            assert f"<code>{member}</code>" in text, name
        for value in schema.get("enum", ()):
            assert f"<code>{value}</code>" in text, name


async def test_every_v2_method_whose_route_is_here_is_served(door: Door) -> None:
    served = {route.v2: route.key for route in door.parts.gateway.table.routes if route.v2}
    assert served.items() <= V2_METHODS.items()


# A check that does not fit: what may be done is decided by the token, which schemathesis does not
# know to be missing where another header proves who asks.
CHECKS = (
    "--checks",
    "not_a_server_error,status_code_conformance,content_type_conformance,"
    "response_headers_conformance,response_schema_conformance",
)


async def fuzz(url: str, headers: dict[str, str], *only: str, tmp: Path) -> tuple[int, str]:
    """Run schemathesis in a process of its own; its exit code and what it said."""
    named = [part for name, value in headers.items() for part in ("-H", f"{name}: {value}")]
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "schemathesis.cli",
        "run",
        f"{url}/openapi.json",
        "--seed",
        SEED,
        "--max-examples",
        EXAMPLES,
        "--phases",
        "examples,coverage,fuzzing,stateful",
        "--no-color",
        "--generation-deterministic",
        "--request-timeout",
        "20",
        *named,
        *only,
        *CHECKS,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        cwd=tmp,
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(BOUND_S):
            said = await process.stdout.read()
            return await process.wait(), said.decode()
    except TimeoutError:
        process.kill()
        await process.wait()
        raise


DEVICES = "^/(command|events|status|health)"  # the others are the operator's
ENDLESS = "^/events/stream$"  # its answer has no end to wait for; see test_events


@contextlib.asynccontextmanager
async def installed(home: Path) -> AsyncIterator[str]:
    """Everything that `toolgate up` starts, with nothing faked."""
    ports = {f"{name}_PORT": "0" for name in ("WS", "HTTP", "ORCHESTRATOR", "GATEWAY")}
    rest = {"OPERATOR_TOKEN": OPERATOR, "GATEWAY_RATE": "1000000", "LOG_LEVEL": "error"}
    settings = {"TOOLGATE_HOME": str(home), **ports, **rest}
    running = await start_everything(table.load(settings, environment={}))
    try:
        yield running.urls["gateway"]
    finally:
        await running.stop()


@pytest.mark.parametrize("who", ["device", "operator"])
@pytest.mark.timeout(BOUND_S + 30)
async def test_schemathesis_finds_no_fault_in_the_whole_document(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, who: str
) -> None:
    """Every route as whoever may use it; together they are all the routes there are."""
    monkeypatch.setattr(routes, "LONGEST_WAIT_S", 0.02)
    async with installed(tmp_path / "home") as url, aiohttp.ClientSession() as http:
        operator = {"Authorization": f"Bearer {OPERATOR}"}
        device = {"X-Device-Id": "fuzzed"}
        await http.get(f"{url}/status", headers=device)
        wanted = {"deviceId": "fuzzed", "scope": ALL}
        async with http.post(f"{url}/pairing/approve", json=wanted, headers=operator) as approved:
            device["X-Device-Token"] = (await approved.json())["data"]["deviceToken"]
        async with http.get(f"{url}/openapi.json") as told:
            paths = (await told.json())["paths"]
        if who == "device":
            only = ("--include-path-regex", DEVICES, "--exclude-path-regex", ENDLESS)
            code, said = await fuzz(url, device, *only, tmp=tmp_path)
        else:
            code, said = await fuzz(url, operator, "--exclude-path-regex", DEVICES, tmp=tmp_path)
    mine = sum(
        len(methods)
        for path, methods in paths.items()
        if bool(re.match(DEVICES, path)) is (who == "device") and not re.match(ENDLESS, path)
    )
    assert code == 0, said[-6000:]
    assert mine > 5
    assert f"Tested: {mine}\n" in said, said[-3000:]
