"""`toolgate events`: what happens, as it happens."""

import json
from collections.abc import Iterator
from typing import Final

import click

from toolgate.cli.operator import Operator, as_operator
from toolgate.cli.terminal import one_line

PAGE: Final = 1000


@click.command()
@click.option("--since", type=click.IntRange(min=0), help="From after this one; else what comes.")
@click.option("--follow/--no-follow", default=True, help="Go on until Ctrl-C.")
@as_operator
def command(operator: Operator, *, since: int | None, follow: bool, as_json: bool) -> None:
    """Show events, one a line."""
    if not follow:
        last = None
        for last in _kept(operator, since):
            _print(last, as_json=as_json)
        if last is None and not as_json:
            click.echo("no events; without --no-follow the next ones are shown as they come")
        return
    path = "/events/stream" if since is None else f"/events/stream?since={since}"
    for line in operator.lines(path):
        if line.startswith("data: "):
            _print(json.loads(line.removeprefix("data: ")), as_json=as_json)


def _kept(operator: Operator, since: int | None) -> Iterator[dict[str, object]]:
    """The events that there are now, page by page."""
    status = operator.ask("GET", "/status")
    cursor = status["oldestCursor"] if since is None else since
    while True:
        page = operator.ask("GET", f"/events/poll?limit={PAGE}&since={cursor}")
        yield from page["events"]
        cursor = page["cursor"]
        if not page["events"] or cursor >= status["cursor"]:
            return


def _print(event: dict[str, object], *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(event))
        return
    took = f" {event['durationMs']} ms" if "durationMs" in event else ""
    line = f"{event['id']} {event['type']} {event['source']}: {event['message']}{took}"
    click.echo(one_line(line))
