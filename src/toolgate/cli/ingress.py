"""`toolgate ingress`: the door for clients, alone."""

import click

from toolgate import settings as table
from toolgate.bootstrap.roles import start_ingress
from toolgate.cli.options import with_settings
from toolgate.cli.serving import serve


@click.command()
@with_settings
def command(settings: table.Settings) -> None:
    """Start the ingress alone: clients here, the orchestrator at ORCHESTRATOR_URL.

    It needs a TOOLGATE_HOME of its own.
    """
    serve(start_ingress, settings)
