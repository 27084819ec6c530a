"""`toolgate restore`: go on with a home that was put back from a copy."""

import asyncio

import click

from toolgate import settings as table
from toolgate.bootstrap.restoring import accept_restore
from toolgate.cli.options import with_settings


@click.group(name="restore")
def command() -> None:
    """Go on with a home that was put back from a copy."""


@command.command()
@with_settings
def accept(settings: table.Settings) -> None:
    """Accept that the home does not continue what its mark in STATE_DIR says.

    Toolgate must be stopped. The home gets a new epoch, so that clients get a snapshot instead of a
    replay, and a record of the restore in the evidence.
    """
    mark = asyncio.run(accept_restore(settings))
    if mark is None:
        click.echo("nothing to accept: the home continues what its mark says")
    else:
        click.echo(
            f"accepted: {settings.home} goes on from position {mark.position}, as"
            f" {mark.installation}, under the new epoch {mark.epoch}"
        )
