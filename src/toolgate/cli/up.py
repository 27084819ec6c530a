"""`toolgate up`: everything in one process."""

import asyncio
import gc
import json
import signal
import sys

import click
import uvloop

from toolgate import settings as table
from toolgate.bootstrap import start_everything
from toolgate.cli.options import with_settings


async def _serve(settings: table.Settings) -> None:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, stopped.set)
    installation = await start_everything(settings)
    gc.freeze()  # what was made at start lives on; the collector need not look at it again
    sys.stdout.write(json.dumps({"ready": True, "urls": installation.urls}) + "\n")
    sys.stdout.flush()
    sys.stderr.write(f"Console, signed in once by this link: {installation.console_link}\n")
    sys.stderr.flush()
    await stopped.wait()
    await installation.stop()


@click.command()
@with_settings
def command(settings: table.Settings) -> None:
    """Start ingress, orchestrator, gateway and console in one process.

    Prints one JSON line with every URL once it is ready; everything else goes to stderr. Stops
    cleanly on Ctrl-C and SIGTERM.
    """
    uvloop.run(_serve(settings))
