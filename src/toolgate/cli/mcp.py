"""`toolgate mcp`: the tools of MCP servers as they are pinned, and accepting a change."""

import difflib
import json
from collections.abc import Iterator, Sequence
from typing import Any, Final
from urllib.parse import quote

import click

from toolgate.cli.operator import Operator, as_operator
from toolgate.cli.routes import command_of, request
from toolgate.core.errors import Refused

COLUMNS: Final = {
    "tool": "name",
    "level": "level",
    "definition": "status",
    "pinned": "pinnedAt",
    "accepted by": "acceptedBy",
}


@click.group()
def command() -> None:
    """Show the tools of MCP servers, and accept those that a server has changed.

    A tool whose definition has changed is not offered, and its calls are refused, until the change
    is accepted.
    """


command.add_command(
    command_of(
        "List every tool of every MCP server, with its level.",
        request(
            "GET /definitions",
            columns=COLUMNS,
            none="no MCP server has listed its tools; `toolgate capabilities register` adds one",
        ),
    ),
    "list",
)


@command.command("show")
@click.argument("name")
@click.argument("tool", required=False)
@as_operator
def shown(operator: Operator, *, name: str, tool: str | None, as_json: bool) -> None:
    """Show the definitions of NAME (a server, or SERVER.TOOL), and what has changed in them."""
    found = _find(operator, name, tool)
    if as_json:
        click.echo(json.dumps(found))
        return
    for one in found:
        click.echo("\n".join(_difference(one) if "changed" in one else _lines(one["definition"])))


@command.command()
@click.argument("name")
@click.argument("tool", required=False)
@click.option("--yes", is_flag=True, help="Do not ask after the difference is shown.")
@as_operator
def accept(operator: Operator, *, name: str, tool: str | None, yes: bool, as_json: bool) -> None:
    """Show what has changed in the tools of NAME (a server, or SERVER.TOOL), and accept it."""
    changed = [one for one in _find(operator, name, tool) if "changed" in one]
    accepted = []
    for one in changed:
        if not as_json:
            click.echo("\n".join(_difference(one)))
        if not yes:
            click.confirm(f"Accept the definition of {_plain(one['name'])}?", abort=True, err=True)
        body = {
            "capabilityId": one["capabilityId"],
            "tool": one["tool"],
            "digest": one["changedDigest"],
        }
        accepted.append(operator.data("POST", "/definitions/accept", body))
    if as_json:
        click.echo(json.dumps(accepted))
        return
    for one in accepted:
        click.echo(f"{_plain(one['name'])} is accepted")
    if not changed:
        click.echo("nothing has changed")


def _find(operator: Operator, name: str, tool: str | None) -> list[Any]:
    """The tools that are meant, in full; raises Refused if there are none."""
    known = operator.data("GET", "/definitions")["items"]
    wanted = {
        (one["capabilityId"], one["tool"])
        for one in known
        if name in (one["capabilityId"], one["name"]) and tool in (None, one["tool"])
    }
    if not wanted:
        raise Refused(f"no MCP server has listed {name}{f' {tool}' if tool else ''}")
    servers = sorted({server for server, _ in wanted})
    return [
        one
        for server in servers
        for one in operator.data("GET", f"/definitions?capabilityId={quote(server, safe='')}")[
            "items"
        ]
        if (one["capabilityId"], one["tool"]) in wanted
    ]


def _difference(one: Any) -> Iterator[str]:
    return difflib.unified_diff(
        _lines(one["definition"]),
        _lines(one["changed"]),
        f"{_plain(one['name'])} (accepted)",
        f"{_plain(one['name'])} (now)",
        lineterm="",
        n=1_000_000,
    )


def _lines(definition: Any) -> Sequence[str]:
    """A definition in ASCII, so that no character of it is hidden."""
    return json.dumps(definition, indent=2, sort_keys=True).splitlines()


def _plain(text: str) -> str:
    return json.dumps(text)[1:-1]
