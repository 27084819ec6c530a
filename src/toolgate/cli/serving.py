"""How a role serves: ready line on stdout, until a signal."""

import asyncio
import gc
import json
import signal
import sys
from collections.abc import Awaitable, Callable
from typing import Final

import uvloop

from toolgate.bootstrap.installation import Installation, tell
from toolgate.settings import Settings

COLLECT: Final = (
    20_000,
    20,
    50,
)  # objects, and collections, between two looks for cycles: few are left


def serve(start: Callable[[Settings], Awaitable[Installation]], settings: Settings) -> None:
    """Start, print one JSON line with every URL, and stop cleanly on Ctrl-C and SIGTERM."""
    uvloop.run(_serve(start, settings))


async def _serve(start: Callable[[Settings], Awaitable[Installation]], settings: Settings) -> None:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, stopped.set)
    installation = await start(settings)
    gc.freeze()  # what was made at start lives on; the collector need not look at it again
    gc.set_threshold(*COLLECT)
    sys.stdout.write(json.dumps({"ready": True, "urls": installation.urls}) + "\n")
    sys.stdout.flush()
    if installation.console_link:
        tell(settings, f"Console, signed in once by this link: {installation.console_link}")
    await stopped.wait()
    await installation.stop()
