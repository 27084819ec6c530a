"""The OpenAPI document: whole, true, and held against the running gateway by schemathesis."""

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.surfaces.gateway.conftest import ALL, OPERATOR, Door, open_door
from toolgate.contracts.gateway_v1 import ERROR_CODES, HEADERS, V2_METHODS
from toolgate.surfaces.gateway import routes

SEED = "20240229"
EXAMPLES = "4"  # per operation and phase; the whole run has a bound of its own
BOUND_S = 110


async def test_the_document_names_every_route_with_models_and_links(door: Door) -> None:
    document = (await door.ask("GET", "/openapi.json")).json
    assert document["openapi"].startswith("3.1")
    for path in ("/health", "/status", "/events/poll", "/pairing/approve", "/command/tool"):
        assert path in document["paths"]
    posted = document["paths"]["/command/tool"]["post"]
    assert {"200", "202", "400", "401", "403", "409", "413", "429", "500", "501"} == set(
        posted["responses"]
    )
    assert "state" in posted["responses"]["202"]["links"]
    assert "next" in document["paths"]["/events/poll"]["get"]["responses"]["200"]["links"]
    assert set(document["components"]["headers"]) == set(HEADERS)
    named = {
        operation["operationId"]
        for methods in document["paths"].values()
        for operation in methods.values()
    }
    assert len(named) == sum(len(methods) for methods in document["paths"].values())


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


async def test_every_v2_method_whose_route_is_here_is_served(door: Door) -> None:
    served = {route.v2: route.key for route in door.parts.gateway.table.routes if route.v2}
    assert served.items() <= V2_METHODS.items()


async def fuzz(door: Door, headers: dict[str, str], *only: str, tmp: Path) -> tuple[int, str]:
    """Run schemathesis in a process of its own; its exit code and what it said."""
    named = [part for name, value in headers.items() for part in ("-H", f"{name}: {value}")]
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "schemathesis.cli",
        "run",
        f"{door.url}/openapi.json",
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


# A check that does not fit: what may be done is decided by the token, which schemathesis does not
# know to be missing where another header proves who asks.
CHECKS = (
    "--checks",
    "not_a_server_error,status_code_conformance,content_type_conformance,"
    "response_headers_conformance,response_schema_conformance",
)


@pytest.mark.timeout(BOUND_S + 30)
async def test_schemathesis_finds_no_fault_in_a_devices_routes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes, "LONGEST_WAIT_S", 0.02)
    async with open_door(rate=10_000_000) as door:
        device: Any = await door.pair(**ALL)
        only = ("--include-path-regex", "^/(command|events|status|health|capabilities$)")
        code, said = await fuzz(door, device.headers, *only, *CHECKS, tmp=tmp_path)
        assert code == 0, said[-6000:]


@pytest.mark.timeout(BOUND_S + 30)
async def test_schemathesis_finds_no_fault_in_the_operators_routes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes, "LONGEST_WAIT_S", 0.02)
    async with open_door(rate=10_000_000) as door:
        only = ("--include-path-regex", "^/(pairing|capabilities|tokens|status|events)")
        headers = {"Authorization": f"Bearer {OPERATOR}"}
        code, said = await fuzz(door, headers, *only, *CHECKS, tmp=tmp_path)
        assert code == 0, said[-6000:]
