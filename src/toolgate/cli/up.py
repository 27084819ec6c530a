"""`toolgate up`: everything in one process."""

import click

from toolgate import settings as table
from toolgate.bootstrap.roles import start_everything
from toolgate.cli.options import with_settings
from toolgate.cli.serving import serve


@click.command()
@with_settings
def command(settings: table.Settings) -> None:
    """Start ingress, orchestrator, gateway and console in one process.

    Prints one JSON line with every URL once it is ready; everything else goes to stderr. Stops
    cleanly on Ctrl-C and SIGTERM.
    """
    serve(start_everything, settings)
