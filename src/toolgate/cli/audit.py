"""`toolgate audit`: query the audit log, with the server running or gone."""

import asyncio
from pathlib import Path
from typing import Any

import click
import msgspec

from toolgate import settings
from toolgate.cli.terminal import one_line, plain
from toolgate.core.errors import Invalid
from toolgate.evidence.audit import FILTERS, AuditPage, AuditQuery, search
from toolgate.journal.sqlite.read_only import JOURNAL_FILE, ClosedJournal


@click.group(name="audit")
def command() -> None:
    """Query the audit log."""


def _filters(query: Any) -> Any:
    for name, meaning in reversed(FILTERS.items()):
        help_text = f"{meaning[0].upper()}{meaning[1:]}."
        query = click.option(f"--{name.removesuffix('Id')}", name, help=help_text)(query)
    return query


@command.command()
@_filters
@click.option("--limit", type=click.IntRange(1, 500), help="How many rows. [50]")
@click.option("--cursor", type=click.IntRange(1), help="Only rows with a smaller id than this.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document, as over HTTP.")
@click.option("--home", type=click.Path(path_type=Path), help="Where the data is. [TOOLGATE_HOME]")
def query(as_json: bool, home: Path | None, **filters: str | int | None) -> None:
    """Print rows, newest first."""
    given = {name: str(value) for name, value in filters.items() if value is not None}
    place = home if home is not None else settings.load().home
    try:
        wanted = AuditQuery.parse(given)
    except Invalid as wrong:
        form = ": write it as 2026-11-16T12:00:00Z" if wrong.field in {"from", "to"} else ""
        raise Invalid(f"--{wrong}{form}", field=wrong.field) from wrong
    with ClosedJournal(place / JOURNAL_FILE) as journal:
        page = asyncio.run(search(journal, wanted))
    if as_json:
        click.echo(msgspec.json.encode(page).decode())
    else:
        _print(page)


def _print(page: AuditPage) -> None:
    if not page.items:
        click.echo("no rows match")
        return
    for row in page.items:
        resource = "/".join(part for part in (row.resource_type, row.resource_id) if part)
        facts = (str(row.id), f"{row.created_at[:19]}Z", row.action, row.actor, resource)
        click.echo("  ".join(map(one_line, filter(None, facts))))
        # Not in a table: what is folded there cannot be copied or searched for.
        click.echo(f"    {plain(msgspec.json.encode(row.metadata).decode())}")
    if page.next_cursor is not None:
        click.echo(f"more: --cursor {page.next_cursor}", err=True)
