"""`toolgate settings`: every setting, its default and its meaning."""

import json

import click
from rich.text import Text

from toolgate import settings as table
from toolgate.cli.terminal import print_table, table_of


@click.command()
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def command(*, as_json: bool) -> None:
    """List every setting. The environment comes first, then toolgate.toml, then the default."""
    entries = list(table.table())
    if as_json:
        rows = [
            {"name": one.name, "default": one.default, "meaning": one.meaning} for one in entries
        ]
        click.echo(json.dumps(rows))
        return
    shown = table_of("setting", "default", "meaning")
    for one in entries:
        shown.add_row(*map(Text, (one.name, one.default, one.meaning)))
    print_table(shown)
