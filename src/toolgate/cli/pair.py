"""`toolgate pair`: who waits, and letting one in."""

import json
from typing import Any, Final

import click

from toolgate.cli.operator import Operator, as_operator, show

RIGHTS: Final = {
    "system": "May run system commands.",
    "mcp": "May call MCP servers.",
    "agent": "May talk to agents.",
    "approve": "May approve calls that need a person.",
}


def scope_options(command: Any) -> Any:
    """What a device or a script may do."""
    for name, means in reversed(RIGHTS.items()):
        command = click.option(f"--{name}", is_flag=True, help=means)(command)
    levels = click.Choice(["read", "write", "sign"])
    return click.option(
        "--tools",
        type=levels,
        default="read",
        show_default=True,
        help="May call tools up to this level.",
    )(command)


@click.command()
@click.argument("device_id", required=False)
@click.option("--keep-scope", is_flag=True, help="Only another token; the scope stays.")
@scope_options
@as_operator
def command(
    operator: Operator,
    *,
    device_id: str | None,
    keep_scope: bool,
    as_json: bool,
    **scope: Any,
) -> None:
    """List the devices that wait, or approve DEVICE_ID and print its token.

    Compare the code with the one that the device shows. Approving a paired device again gives it
    another token, and ends the old one.
    """
    if device_id is None:
        waiting = operator.data("GET", "/pairing/pending")["pending"]
        columns = {"device": "deviceId", "code": "code", "from": "ip", "program": "userAgent"}
        show(waiting, columns, as_json=as_json, none="no device waits to be paired")
        return
    body = {"deviceId": device_id} if keep_scope else {"deviceId": device_id, "scope": scope}
    approved = operator.data("POST", "/pairing/approve", body)
    click.echo(json.dumps(approved) if as_json else approved["deviceToken"])
