"""`toolgate capabilities`: what can be called, and registering more."""

import json
from typing import Any

import click

from toolgate.cli.operator import Operator, as_operator, show


@click.group()
def command() -> None:
    """List capabilities, and register one."""


@command.command("list")
@as_operator
def listed(operator: Operator, *, as_json: bool) -> None:
    """Every capability, with its level and its health."""
    found = operator.data("GET", "/capabilities")["items"]
    columns = {
        "capability": "capabilityId",
        "scope": "scope",
        "level": "level",
        "health": "status",
        "at most": "rateLimit",
        "version": "version",
    }
    show(found, columns, as_json=as_json)


@command.command(context_settings={"ignore_unknown_options": True})
@click.argument("capability_id")
@click.option("--scope", default="mcp", help="What it is about.")
@click.option(
    "--level",
    type=click.Choice(["read", "write", "sign"]),
    default="write",
    show_default=True,
    help="What a call of it does at most.",
)
@click.option("--rate", type=click.IntRange(min=1), help="Calls a minute, of all callers.")
@click.option("--mcp-url", help="Its MCP server, over HTTP.")
@click.argument("program", nargs=-1, type=click.UNPROCESSED)
@as_operator
def register(
    operator: Operator,
    *,
    capability_id: str,
    scope: str,
    level: str,
    rate: int | None,
    mcp_url: str | None,
    program: tuple[str, ...],
    as_json: bool,
) -> None:
    """Register CAPABILITY_ID, or change its terms; PROGRAM is its MCP server on stdio."""
    if program and program[0].startswith("-"):  # what follows a program's name is the program's
        raise click.NoSuchOption(program[0])
    if program and mcp_url:
        raise click.UsageError("a server is a program or --mcp-url, not both")
    body: dict[str, Any] = {"capabilityId": capability_id, "scope": scope, "level": level}
    if rate is not None:
        body["rateLimit"] = rate
    if mcp_url:
        body["server"] = {"url": mcp_url}
    elif program:
        body["server"] = {"command": program[0], "args": list(program[1:])}
    kept = operator.data("POST", "/capabilities/register", body)
    click.echo(json.dumps(kept) if as_json else f"{capability_id} is registered")
