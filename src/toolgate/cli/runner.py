"""`toolgate runner`: tools of other installations, run in sandboxes of this machine."""

import asyncio
import contextlib
import json
import sys

import click

from toolgate import settings as table
from toolgate.bootstrap.installation import configure_logs
from toolgate.bootstrap.runner import MOCK, Backend, serving
from toolgate.cli.options import with_settings
from toolgate.cli.serving import stop_on_signals
from toolgate.http import accepting
from toolgate.sandbox.choice import BACKENDS, DOCKER_URL


async def _serve(settings: table.Settings, backend: Backend) -> None:
    stopped = stop_on_signals()
    started = asyncio.Event()
    life = asyncio.create_task(_live(settings, backend, started=started, stopped=stopped))
    stopping = asyncio.create_task(stopped.wait())
    await asyncio.wait({life, stopping}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if not started.is_set():
        life.cancel()  # the first pull of an image may take minutes
    with contextlib.suppress(asyncio.CancelledError):
        await life


async def _live(
    settings: table.Settings, backend: Backend, *, started: asyncio.Event, stopped: asyncio.Event
) -> None:
    async with serving(settings, backend) as ready:
        started.set()
        sys.stdout.write(json.dumps(ready) + "\n")
        sys.stdout.flush()
        await stopped.wait()


@click.command()
@click.option(
    "--backend",
    type=click.Choice(BACKENDS),
    default=BACKENDS[0],
    show_default=True,
    help="What isolates the commands. There is no falling back to another.",
)
@click.option("--mock", is_flag=True, help="Answer every call as seed 000 §8 does; run nothing.")
@click.option("--unsafe", is_flag=True, help="Let `process` run commands without any isolation.")
@click.option("--docker-url", default=DOCKER_URL, show_default=True, help="The Docker engine.")
@click.option("--image", default="", help="The image of a sandbox. Unset: this machine's /usr.")
@click.option("--runtime", default="", help="Docker's runtime, such as runsc for gVisor.")
@click.option(
    "--egress",
    multiple=True,
    metavar="HOST",
    help="A host that sandboxes may reach, as name, *.suffix or name:port. Unset: none.",
)
@with_settings
def command(
    settings: table.Settings,
    *,
    backend: str,
    mock: bool,
    unsafe: bool,
    docker_url: str,
    image: str,
    runtime: str,
    egress: tuple[str, ...],
) -> None:
    """Run tools for gateways elsewhere, each session in a sandbox of its own.

    Listens on HOST:RUNNER_PORT; RUNNER_AUTH_TOKEN is the bearer that a gateway's target must have.
    Prints one JSON line once it is ready, and stops cleanly on Ctrl-C and SIGTERM.
    """
    configure_logs(settings)
    name = MOCK if mock else backend
    accepting.run(_serve(settings, Backend(name, unsafe, docker_url, image, runtime, egress)))
