"""`toolgate up`: everything in one process."""

import os

import click

from toolgate import settings as table
from toolgate.bootstrap.roles import start_everything
from toolgate.cli.options import gateway_url, with_settings
from toolgate.cli.serving import serve
from toolgate.core.errors import Misconfigured


@click.command()
@with_settings
def command(settings: table.Settings) -> None:
    """Start ingress, orchestrator, gateway and console in one process.

    Prints one JSON line with every URL once it is ready; everything else goes to stderr. Stops
    cleanly on Ctrl-C and SIGTERM. With ORCHESTRATOR_URL it uses that orchestrator and starts none of
    its own; `not_started` in the ready line says so.
    """
    if settings.gateway_port and not os.access(settings.home, os.F_OK):
        from toolgate.cli.operator import answers  # noqa: PLC0415 - only where a home is made

        url = gateway_url(settings, None)
        if answers(url):
            raise Misconfigured(
                f"a Toolgate with another home is running at {url}, and {settings.home.absolute()}"
                " does not exist: name the other home with --home, or set GATEWAY_PORT and the other"
                " ports to start a second one here (0: any)"
            )
    serve(start_everything, settings)
