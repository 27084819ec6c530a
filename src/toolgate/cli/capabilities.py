"""`toolgate capabilities`: list what can be called, register more, remove one."""

from typing import Any, Final

import click

from toolgate.cli.operator import Operator
from toolgate.cli.routes import command_of, request
from toolgate.evidence.audit import parse_time

TERMS: Final = ("scope", "level", "rateLimit", "version", "owner", "expiresAt")
NEVER: Final = "never"
NEW: Final = {"scope": "mcp", "level": "write"}  # where nothing is said of them
BOX: Final = ("mounts", "egress", "isolation")


def _registration(operator: Operator, given: dict[str, Any]) -> dict[str, Any]:
    """The body of a registration; raises UsageError."""
    program, url = given.pop("program", ()), given.pop("mcpUrl", "")
    box = {name: given.pop(name) for name in BOX if name in given}
    if program and program[0].startswith("-"):  # what follows a program's name is the program's
        raise click.NoSuchOption(program[0])
    if program and url:
        raise click.UsageError("a server is a program or --mcp-url, not both")
    if box and not program:
        raise click.UsageError("--mount, --egress and --isolation need a program after --")
    body = {**NEW, **_terms(operator, given["capabilityId"]), **given}
    if "expiresAt" in given:
        body["expiresAt"] = _time(given["expiresAt"])
    if url:
        body["server"] = {"url": url}
    elif program:
        body["server"] = {"command": program[0], "args": program[1:], **box}
    return body


def _terms(operator: Operator, capability_id: str) -> dict[str, Any]:
    """The terms in force: a registration must name all of them."""
    for one in operator.data("GET", "/capabilities")["items"]:
        if one["capabilityId"] == capability_id:
            return {name: one[name] for name in TERMS}
    return {}


def _removed(operator: Operator, members: dict[str, Any]) -> str:
    name = members["capabilityId"]
    stays = _terms(operator, name)
    return f"{name} is back to its own terms" if stays else f"{name} is removed"


def _time(text: str) -> int | None:
    try:
        return None if text == NEVER else parse_time(text)
    except (ValueError, OverflowError) as wrong:
        form = "write it as 2026-11-16T12:00:00Z, or never"
        raise click.BadParameter(form, param_hint="--expires") from wrong


CAPABILITY: Final = click.argument("capability_id")
register: Final = command_of(
    """Register CAPABILITY_ID, or change its terms; PROGRAM is its MCP server on stdio.

    A member that is left out keeps its value; the status is healthy until the next check.
    """,
    request("POST /capabilities/register", body=_registration, done="{capabilityId} is registered"),
    CAPABILITY,
    click.option("--scope", help="What it is about. [mcp]"),
    click.option(
        "--level",
        type=click.Choice(["read", "write", "sign"]),
        help="What a call of it does at most. [write]",
    ),
    click.option(
        "--rate",
        "rate_limit",
        type=click.IntRange(min=1),
        help="Calls a minute, of all callers.",
    ),
    click.option(
        "--expires",
        "expires_at",
        metavar="TIME",
        help="Not to be called from then on (ISO 8601), or never.",
    ),
    click.option("--mcp-url", help="Its MCP server, over HTTP."),
    click.option(
        "--mount",
        "mounts",
        metavar="HOST:INSIDE[:ro|rw]",
        multiple=True,
        help="A path of the gateway's machine that PROGRAM sees. [ro]",
    ),
    click.option(
        "--egress",
        metavar="HOST[:PORT]",
        multiple=True,
        help="A host that PROGRAM may reach, *.suffix for every subdomain. [none]",
    ),
    click.option(
        "--isolation",
        type=click.Choice(["sandbox", "none"]),
        help="none runs PROGRAM as the gateway's user, with all its files. [sandbox]",
    ),
    click.argument("program", nargs=-1, type=click.UNPROCESSED),
)
register.context_settings["ignore_unknown_options"] = True  # they are PROGRAM's
command = click.Group(
    help="List capabilities, register one, remove one.",
    commands={
        "list": command_of(
            "Every capability, with its level and its health.",
            request(
                "GET /capabilities",
                columns={
                    "capability": "capabilityId",
                    "scope": "scope",
                    "level": "level",
                    "health": "status",
                    "isolation": "isolation",
                    "why": "reason",
                    "at most": "rateLimit",
                    "expires": "expiresAt",
                    "version": "version",
                },
            ),
        ),
        "register": register,
        "remove": command_of(
            """Remove CAPABILITY_ID; its calls are refused from then on.

            One that is built in, or in MCP_FILE, stays: it goes back to its own terms.
            """,
            request("DELETE /capabilities/{capabilityId}", done=_removed),
            CAPABILITY,
        ),
    },
)
