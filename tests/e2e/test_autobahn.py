"""The Autobahn fuzzing client's cases, where `wstest` is on the path (it needs Python 2.7).

Its cases want an echo: ours is the ingress's own connection, whose frames, fragments, limits and
closes are what is tested, with the conversation behind it left out. What a text holds is for the
conversation to check, so that the cases of section 6 that send no UTF-8 are answered otherwise
than by a close (ingress contract: `invalid_message`, and the connection stays). 7.1.2 says goodbye
twice, and is told that this is a breach.
"""

import asyncio
import json
import shutil
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from picows import WSMsgType, WSUpgradeRequest

from tests.support.ids import CountingIds
from tests.support.seal import PlainSeal
from toolgate.core.system_clock import SystemClock
from toolgate.http import asgi
from toolgate.journal.local_bus import LocalBus
from toolgate.runs.originals import Originals
from toolgate.surfaces.ingress.connection import Connection, Options
from toolgate.surfaces.ingress.hub import Hub
from toolgate.surfaces.ingress.server import Ingress
from toolgate.surfaces.ingress.sessions import Sessions
from toolgate.testing.journal import MemoryJournal

WSTEST = shutil.which("wstest")
SECTIONS = ("1", "2", "3", "4", "5", "6", "7", "9.1", "9.2", "9.3", "9.5", "9.7", "10", "12", "13")
GOOD = {"OK", "NON-STRICT", "INFORMATIONAL", "UNIMPLEMENTED"}
LARGEST = 17 * 1024 * 1024  # the limits of section 9 go up to 16 MiB
LONG_MS = 3_600_000


class Echo(Connection):
    """Says again what it is told."""

    def take(self, message: bytes, *, binary: bool) -> None:
        assert self._transport is not None
        self._transport.send(WSMsgType.BINARY if binary else WSMsgType.TEXT, message)


class EchoIngress(Ingress):
    def _accept(self, request: WSUpgradeRequest) -> Connection:
        return Echo(self)


class NoRuns:
    async def open_runs(self, session_id: str = "") -> Sequence[tuple[str, str]]:
        return ()


@pytest.fixture
async def echo() -> AsyncIterator[str]:
    clock, bus = SystemClock(), LocalBus()
    journal = MemoryJournal(clock=clock, bus=bus)
    ingress = EchoIngress(
        options=Options(
            api_key="", max_message_bytes=LARGEST, write_wait_ms=LONG_MS, hello_wait_ms=LONG_MS
        ),
        hub=Hub(bus, clock, Originals(journal, PlainSeal()), resume_window_ms=0),
        sessions=Sessions(journal, clock, CountingIds()),
        journal=journal,
        orchestrator=NoRuns(),  # type: ignore[arg-type]
        clock=clock,
        ping_interval_ms=LONG_MS,
        pong_wait_ms=LONG_MS,
        cancel_when_gone=False,
        metrics=lambda: b"",
    )
    port = await ingress.start(asgi.bind("127.0.0.1", 0, setting="WS_PORT"))
    yield f"ws://127.0.0.1:{port}/ws"
    await ingress.stop()


def otherwise(case: str) -> bool:
    """Whether the contract wants something else than the case does: see above."""
    return case == "7.1.2" or case.startswith("6.")


@pytest.mark.skipif(WSTEST is None, reason="wstest is not installed")
@pytest.mark.timeout(900)
async def test_the_autobahn_cases_pass(echo: str, tmp_path: Path) -> None:
    spec = tmp_path / "spec.json"
    spec.write_text(
        json.dumps(
            {
                "outdir": str(tmp_path / "reports"),
                "servers": [{"agent": "ingress", "url": echo}],
                "cases": [f"{section}.*" for section in SECTIONS],
                "exclude-cases": [],
                "exclude-agent-cases": {},
            }
        )
    )
    process = await asyncio.create_subprocess_exec(
        str(WSTEST), "-m", "fuzzingclient", "-s", str(spec),
        stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL, cwd=tmp_path,
    )  # fmt: skip
    await process.wait()
    report: dict[str, dict[str, Any]] = json.loads(
        (tmp_path / "reports" / "index.json").read_text()
    )["ingress"]
    assert len(report) > 200
    bad = {
        case: (outcome["behavior"], outcome["behaviorClose"])
        for case, outcome in report.items()
        if not otherwise(case) and {outcome["behavior"], outcome["behaviorClose"]} - GOOD
    }
    assert bad == {}
