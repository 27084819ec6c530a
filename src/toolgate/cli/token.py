"""`toolgate token`: named tokens of users, agents and services, which need no pairing."""

import json
import re
from typing import Any, Final
from urllib.parse import quote

import click

from toolgate.cli.operator import Operator, as_operator, show
from toolgate.cli.options import known_token, with_settings
from toolgate.cli.pair import scope_options
from toolgate.secrets.own_tokens import TokenKind
from toolgate.settings import ANY_KEY, Settings

SHOWN: Final = {
    "api-key": TokenKind.API_KEY,
    "internal": TokenKind.INTERNAL,
    "executor": TokenKind.EXECUTOR,
}
_UNITS: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION: Final = re.compile(r"([1-9]\d{0,5})([smhd])")


def _duration(_: click.Context, __: click.Parameter, value: str | None) -> int | None:
    """A duration as a person writes it, in milliseconds."""
    if value is None:
        return None
    found = _DURATION.fullmatch(value)
    if found is None:
        raise click.BadParameter(f"{value!r} is not a duration, such as 90d, 12h or 30m")
    return int(found[1]) * _UNITS[found[2]]


@click.group()
def command() -> None:
    """Make, list and revoke named tokens, and show the keys that Toolgate made.

    A token is sent as `Authorization: Bearer` to the gateway, `/tool/run` and `/mcp`, and as
    `api_key` over the WebSocket.
    """


@command.command("list")
@as_operator
def listed(operator: Operator, *, as_json: bool) -> None:
    """The tokens that there are; none can be shown again."""
    tokens = operator.data("GET", "/tokens")["items"]
    columns = {
        "name": "name",
        "kind": "kind",
        "may": "scope",
        "made": "madeAt",
        "expires": "expiresAt",
    }
    show(
        tokens,
        columns,
        as_json=as_json,
        none="there are no tokens; `toolgate token make` makes one",
    )


@command.command()
@click.argument("name")
@click.option(
    "--kind",
    type=click.Choice(["user", "agent", "service"]),
    default="service",
    show_default=True,
    help="Whose it is. A user may talk to agents, and approve what these ask for.",
)
@scope_options
@click.option(
    "--expires", callback=_duration, metavar="D", help="When it ends: 90d, 12h, 30m. Unset: never."
)
@as_operator
def make(
    operator: Operator, *, name: str, kind: str, expires: int | None, as_json: bool, **scope: Any
) -> None:
    """Make a token and print it, this once. The same NAME again ends the old one."""
    body: dict[str, Any] = {"name": name, "kind": kind, "scope": scope}
    if expires is not None:
        body["expiresInMs"] = expires
    made = operator.data("POST", "/tokens", body)
    click.echo(json.dumps(made) if as_json else made["token"])


@command.command()
@click.argument("name")
@as_operator
def revoke(operator: Operator, *, name: str, as_json: bool) -> None:
    """End a token, at once."""
    ended = operator.data("DELETE", f"/tokens/{quote(name, safe='')}")
    click.echo(json.dumps(ended) if as_json else f"{name} is revoked")


@command.command("show")
@click.argument("name", type=click.Choice(list(SHOWN)))
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
@with_settings
def shown(settings: Settings, *, name: str, as_json: bool) -> None:
    """Print a key that is set, or that Toolgate made and keeps in its home."""
    if settings.any_key and name == "api-key":
        token = ANY_KEY
    else:
        token = known_token(settings, SHOWN[name])
    click.echo(json.dumps({"token": token}) if as_json else token)
