"""`toolgate token`: tokens for scripts, which need no pairing."""

import json
from typing import Any
from urllib.parse import quote

import click

from toolgate.cli.operator import Operator, as_operator, show
from toolgate.cli.pair import scope_options


@click.group()
def command() -> None:
    """Make and end tokens for scripts.

    A script sends its token as `Authorization: Bearer`.
    """


@command.command("list")
@as_operator
def listed(operator: Operator, *, as_json: bool) -> None:
    """The tokens that there are; none can be shown again."""
    tokens = operator.data("GET", "/tokens")["items"]
    columns = {"name": "name", "may": "scope", "made": "madeAt"}
    show(
        tokens,
        columns,
        as_json=as_json,
        none="there are no tokens; `toolgate token make` makes one",
    )


@command.command()
@click.argument("name")
@scope_options
@as_operator
def make(operator: Operator, *, name: str, as_json: bool, **scope: Any) -> None:
    """Make a token and print it, this once. The same NAME again ends the old one."""
    made = operator.data("POST", "/tokens", {"name": name, "scope": scope})
    click.echo(json.dumps(made) if as_json else made["token"])


@command.command()
@click.argument("name")
@as_operator
def end(operator: Operator, *, name: str, as_json: bool) -> None:
    """End a token, at once."""
    ended = operator.data("DELETE", f"/tokens/{quote(name, safe='')}")
    click.echo(json.dumps(ended) if as_json else f"{name} is ended")
