"""`toolgate audit`: query the audit log, with the server running or gone."""

import asyncio
from pathlib import Path

import click
import msgspec

from toolgate import settings
from toolgate.cli.terminal import one_line, plain
from toolgate.core.errors import Invalid
from toolgate.evidence.audit import AuditPage, AuditQuery, search
from toolgate.journal.sqlite.read_only import JOURNAL_FILE, ClosedJournal


@click.group(name="audit")
def command() -> None:
    """Query the audit log."""


@command.command()
@click.option("--tenant", "tenantId", help="Only this tenant.")
@click.option("--workspace", "workspaceId", help="Only this workspace.")
@click.option("--action", help="Only this action, exactly.")
@click.option("--device", "deviceId", help="Only this device.")
@click.option("--run", "runId", help="Only this run.")
@click.option("--decision", help="Only this decision.")
@click.option("--from", "from", help="Not before this time (ISO 8601).")
@click.option("--to", help="Not after this time (ISO 8601).")
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
