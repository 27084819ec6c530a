"""`toolgate orchestrator`: runs and their tools, alone."""

import click

from toolgate import settings as table
from toolgate.bootstrap.roles import start_orchestrator
from toolgate.cli.options import with_settings
from toolgate.cli.serving import serve


@click.command()
@with_settings
def command(settings: table.Settings) -> None:
    """Start the orchestrator alone: runs and tools here, clients at an ingress elsewhere.

    It needs a TOOLGATE_HOME of its own. INGRESS_URL is where events go for an ingress that does
    not ask for a stream.
    """
    serve(start_orchestrator, settings)
