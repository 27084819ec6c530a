"""`toolgate doctor` beside a Toolgate that runs, and beside another program at its port."""

import asyncio
import http.server
import threading
from pathlib import Path
from urllib.parse import urlsplit

from tests.e2e.harness import running
from toolgate.cli.doctor import check_ports
from toolgate.settings import Settings


def port_of(url: str) -> int:
    return urlsplit(url).port or 0


async def test_the_ports_of_a_toolgate_that_runs_are_its_own_and_nothing_is_amiss(
    tmp_path: Path,
) -> None:
    async with running(tmp_path / "home") as program:
        settings = Settings(
            ws_port=port_of(program.urls["ingress_ws"]),
            http_port=port_of(program.urls["ingress_internal"]),
            orchestrator_port=port_of(program.urls["orchestrator"]),
            gateway_port=port_of(program.urls["gateway"]),
            runner_port=0,
        )
        found = await asyncio.to_thread(lambda: list(check_ports(settings)))
    assert [one.ok for one in found] == [True] * 5
    assert ["Toolgate" in one.detail for one in found] == [True] * 4 + [False]


def test_another_program_at_a_port_is_in_the_way() -> None:
    with http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler) as stranger:
        serving = threading.Thread(target=stranger.serve_forever, daemon=True)
        serving.start()
        settings = Settings(
            ws_port=0, http_port=0, orchestrator_port=0, gateway_port=stranger.server_port
        )
        found = {one.name: one for one in check_ports(settings)}["GATEWAY_PORT"]
        stranger.shutdown()
        serving.join(5)
    assert not found.ok
    assert "GATEWAY_PORT" in found.hint
