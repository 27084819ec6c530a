"""Serving a role: a ready line on stdout, then until a signal."""

import asyncio
import gc
import json
import signal
import sys
from collections.abc import Awaitable, Callable

from toolgate.bootstrap.installation import Installation, tell
from toolgate.http import accepting
from toolgate.settings import Settings


def serve(start: Callable[[Settings], Awaitable[Installation]], settings: Settings) -> None:
    """Start, print one JSON line with every URL, and stop cleanly on Ctrl-C and SIGTERM."""
    accepting.run(_serve(start, settings))


async def _serve(start: Callable[[Settings], Awaitable[Installation]], settings: Settings) -> None:
    stopped = stop_on_signals()
    installation = await start(settings)
    try:
        collect_seldom()
        line: dict[str, object] = {"ready": True, "urls": installation.urls}
        if installation.not_started:
            line["not_started"] = installation.not_started
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()
        if installation.console_link and sys.stderr.isatty():
            tell(settings, f"Console, signed in once by this link: {installation.console_link}")
        elif installation.console_link:  # a log is no place for what signs the operator in
            tell(settings, "Console: `toolgate console` prints a link that signs in once")
        await stopped.wait()
    finally:
        await installation.stop()


def stop_on_signals() -> asyncio.Event:
    """Set by Ctrl-C and SIGTERM. Ctrl-C after that ends the process, however long stopping takes."""
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()

    def stop() -> None:
        stopped.set()
        loop.remove_signal_handler(signal.SIGINT)
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, stop)
    return stopped


def collect_seldom() -> None:
    """Collect garbage seldom: objects made at start stay, and later ones are rarely in cycles."""
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)  # objects more than before, then collections of the younger
