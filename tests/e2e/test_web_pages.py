"""A web page that its user merely looks at: it reaches loopback, and must not speak for them there."""

from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import pytest

from tests.e2e.ways import APART, TOGETHER, Running, installed

NO_KEY = {"API_KEY": "none"}
NO_TOKEN = {"INTERNAL_TOKEN": ""}  # the orchestrator makes one, an ingress apart has none
FOREIGN = [
    "https://evil.example",
    "http://localhost.evil.example:8090",
    "http://192.0.2.7",
    "http://[",
    "null",
    "file://",
]


async def opens(running: Running, origin: str | None) -> bool:
    """Whether a page of that origin gets its WebSocket."""
    try:
        async with running.http.ws_connect(running.ws, origin=origin):
            return True
    except aiohttp.WSServerHandshakeError as refused:
        if refused.status != 403:
            raise
        return False


@pytest.mark.parametrize("way", [TOGETHER, APART])
async def test_where_there_is_no_key_only_pages_of_this_machine_may_connect(
    tmp_path: Path, way: str
) -> None:
    own = {**NO_KEY, "ALLOWED_HOSTS": "gate.example"}
    async with installed(way, tmp_path, **own) as running:
        for page in FOREIGN:
            assert not await opens(running, page), page
        port = urlsplit(running.orchestrator).port
        for origin in (
            None,
            f"http://127.0.0.1:{port}",  # as the console's chat does
            "http://localhost:3000",
            "http://[::1]:8787",
            "https://gate.example",
        ):
            assert await opens(running, origin), origin


async def test_a_page_that_can_know_the_key_may_connect_from_anywhere(tmp_path: Path) -> None:
    async with installed(TOGETHER, tmp_path) as running:
        assert await opens(running, "https://app.example")


@pytest.mark.parametrize(
    "sent", [{"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}]
)
async def test_a_page_cannot_start_runs_decide_or_push_where_there_is_no_token(
    tmp_path: Path, sent: dict[str, str]
) -> None:
    async with installed(APART, tmp_path, **NO_TOKEN) as running:
        said = {"role": "user", "content": "[[tool:echo {}]]"}
        asked = {"session_id": "s", "agent_id": "script", "message": said}
        event = {"type": "delta", "ts": 1, "run_id": "run_1", "text": "click here"}
        inside = f"{running.orchestrator}/internal"
        calls = [
            (f"{inside}/invoke", asked),
            (f"{inside}/agents", {"agent_id": "mine", "endpoint": "https://evil.example"}),
            (f"{inside}/approvals/ap_1/decide", {"decision": "approve"}),
            (f"{inside}/tool_calls/tc_1/submit", {"status": "SUCCEEDED"}),
            (f"{inside}/runs/run_1/cancel", {}),
            (f"{running.internal}/internal/send", {"session_id": "s", "event": event}),
        ]
        for url, body in calls:
            # As a page may send it without asking first.
            async with running.http.post(url, json=body, headers=sent) as refused:
                assert refused.status == 401, url
        status = f"{running.internal}/internal/sessions/s/status"
        async with running.http.get(status, headers={"Sec-Fetch-Site": "none"}) as typed_in:
            assert typed_in.status == 200


async def test_a_page_whose_name_is_made_to_stand_for_this_machine_reads_nothing(
    tmp_path: Path,
) -> None:
    """To the browser it is the page's own origin: it sends neither Origin nor Sec-Fetch-Site."""
    async with installed(APART, tmp_path, **NO_TOKEN) as running:
        url = f"{running.internal}/internal/sessions/s/status"
        port = urlsplit(url).port
        for host in (f"evil.example:{port}", "localhost.evil.example", "127.0.0.1.evil.example"):
            async with running.http.get(url, headers={"Host": host}) as refused:
                assert refused.status == 401, host
        for host in (f"localhost:{port}", "LOCALHOST.", f"127.0.0.1:{port}", f"[::1]:{port}"):
            async with running.http.get(url, headers={"Host": host}) as answered:
                assert answered.status == 200, host
