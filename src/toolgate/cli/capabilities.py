"""`toolgate capabilities`: list what can be called, register more, remove one."""

import json
from typing import Any, Final
from urllib.parse import quote

import click

from toolgate.cli.operator import Operator, as_operator, show
from toolgate.evidence.audit import parse_time

TERMS: Final = ("scope", "level", "rateLimit", "version", "owner", "expiresAt")
NEVER: Final = "never"
NEW: Final = {"scope": "mcp", "level": "write"}  # where nothing is said of them


@click.group()
def command() -> None:
    """List capabilities, register one, remove one."""


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
        "isolation": "isolation",
        "why": "reason",
        "at most": "rateLimit",
        "expires": "expiresAt",
        "version": "version",
    }
    show(found, columns, as_json=as_json)


@command.command(context_settings={"ignore_unknown_options": True})
@click.argument("capability_id")
@click.option("--scope", help="What it is about. [mcp]")
@click.option(
    "--level",
    type=click.Choice(["read", "write", "sign"]),
    help="What a call of it does at most. [write]",
)
@click.option("--rate", type=click.IntRange(min=1), help="Calls a minute, of all callers.")
@click.option(
    "--expires", metavar="TIME", help="Not to be called from then on (ISO 8601), or never."
)
@click.option("--mcp-url", help="Its MCP server, over HTTP.")
@click.option(
    "--mount",
    "mounts",
    metavar="HOST:INSIDE[:ro|rw]",
    multiple=True,
    help="A path of the gateway's machine that PROGRAM sees. [ro]",
)
@click.option(
    "--egress",
    metavar="HOST[:PORT]",
    multiple=True,
    help="A host that PROGRAM may reach, *.suffix for every subdomain. [none]",
)
@click.option(
    "--isolation",
    type=click.Choice(["sandbox", "none"]),
    help="none runs PROGRAM as the gateway's user, with all its files. [sandbox]",
)
@click.argument("program", nargs=-1, type=click.UNPROCESSED)
@as_operator
def register(
    operator: Operator,
    *,
    capability_id: str,
    scope: str | None,
    level: str | None,
    rate: int | None,
    expires: str | None,
    mcp_url: str | None,
    mounts: tuple[str, ...],
    egress: tuple[str, ...],
    isolation: str | None,
    program: tuple[str, ...],
    as_json: bool,
) -> None:
    """Register CAPABILITY_ID, or change its terms; PROGRAM is its MCP server on stdio.

    A member that is left out keeps its value; the status is healthy until the next check.
    """
    if program and program[0].startswith("-"):  # what follows a program's name is the program's
        raise click.NoSuchOption(program[0])
    if program and mcp_url:
        raise click.UsageError("a server is a program or --mcp-url, not both")
    box = {"mounts": list(mounts), "egress": list(egress), "isolation": isolation}
    boxed = {name: value for name, value in box.items() if value}
    if boxed and not program:
        raise click.UsageError("--mount, --egress and --isolation need a program after --")
    given = {"scope": scope, "level": level, "rateLimit": rate}
    body: dict[str, Any] = {
        "capabilityId": capability_id,
        **NEW,
        **_terms(operator, capability_id),
        **{name: value for name, value in given.items() if value is not None},
    }
    if expires is not None:
        body["expiresAt"] = _time(expires)
    if mcp_url:
        body["server"] = {"url": mcp_url}
    elif program:
        body["server"] = {"command": program[0], "args": list(program[1:]), **boxed}
    kept = operator.data("POST", "/capabilities/register", body)
    click.echo(json.dumps(kept) if as_json else f"{capability_id} is registered")


@command.command()
@click.argument("capability_id")
@as_operator
def remove(operator: Operator, *, capability_id: str, as_json: bool) -> None:
    """Remove CAPABILITY_ID; its calls are refused from then on.

    One that is built in, or in MCP_FILE, stays: it goes back to its own terms.
    """
    gone = operator.data("DELETE", f"/capabilities/{quote(capability_id, safe='')}")
    stays = not as_json and _terms(operator, capability_id)
    told = f"{capability_id} is back to its own terms" if stays else f"{capability_id} is removed"
    click.echo(json.dumps(gone) if as_json else told)


def _terms(operator: Operator, capability_id: str) -> dict[str, Any]:
    """The terms in force: a registration must name all of them."""
    for one in operator.data("GET", "/capabilities")["items"]:
        if one["capabilityId"] == capability_id:
            return {name: one[name] for name in TERMS}
    return {}


def _time(text: str) -> int | None:
    if text == NEVER:
        return None
    try:
        return parse_time(text)
    except (ValueError, OverflowError) as wrong:
        form = "write it as 2026-11-16T12:00:00Z, or never"
        raise click.BadParameter(form, param_hint="--expires") from wrong
