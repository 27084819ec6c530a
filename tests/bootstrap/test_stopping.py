"""How a whole installation stops: who still waits at its doors is answered first."""

import asyncio
from pathlib import Path

import aiohttp

from toolgate import asgi
from toolgate import settings as table
from toolgate.bootstrap.roles import start_everything

OPERATOR = "operator-of-one-that-stops"
PORTS = ("WS_PORT", "HTTP_PORT", "ORCHESTRATOR_PORT", "GATEWAY_PORT")


async def test_who_waits_for_events_is_answered_and_does_not_hold_the_stop_up(
    tmp_path: Path,
) -> None:
    settings = table.load(
        {
            **dict.fromkeys(PORTS, "0"),
            "TOOLGATE_HOME": str(tmp_path / "home"),
            "OPERATOR_TOKEN": OPERATOR,
            "HEARTBEAT": "",
        },
        environment={},
    )
    installation = await start_everything(settings)
    gateway = installation.urls["gateway"]
    headers = {"Authorization": f"Bearer {OPERATOR}"}
    async with aiohttp.ClientSession(gateway, headers=headers) as http:

        async def poll() -> int:
            async with http.get("/events/poll", params={"wait": "30"}) as answer:
                await answer.read()
                return answer.status

        try:
            polling = asyncio.create_task(poll())
            stream = await http.get("/events/stream")
            await stream.content.readline()  # it has begun, and the poll before it
            begun = asyncio.get_running_loop().time()
        finally:
            await installation.stop()
        took = asyncio.get_running_loop().time() - begun
        assert await polling == 200
        await stream.read()  # to a proper end: it is not cut off
    assert took < asgi.DRAIN_S
