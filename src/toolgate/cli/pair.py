"""`toolgate pair`: who waits, and letting one in."""

from typing import Any, Final

import click

from toolgate.cli.operator import Operator
from toolgate.cli.routes import command_of, request

RIGHTS: Final = {
    "system": "May run system commands.",
    "mcp": "May call MCP servers.",
    "agent": "May talk to agents.",
    "approve": "May approve calls that need a person.",
}


def scope_options(command: Any) -> Any:
    """Add the options for the scope of a device or script."""
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


def _approval(_: Operator, given: dict[str, Any]) -> dict[str, Any]:
    scope = {name: given[name] for name in ("tools", *RIGHTS)}
    body = {"deviceId": given["deviceId"]}
    return body if given["keepScope"] else {**body, "scope": scope}


command = command_of(
    """List the devices that wait, or approve DEVICE_ID and print its token.

    Compare the code with the one that the device shows. Approving a paired device again gives it
    another token, and ends the old one.
    """,
    request(
        "GET /pairing/pending",
        rows="pending",
        columns={"device": "deviceId", "code": "code", "from": "ip", "program": "userAgent"},
        none="no device waits to be paired; a device waits after its first request to the gateway",
    ),
    click.argument("device_id", required=False),
    click.option("--keep-scope", is_flag=True, help="Only another token; the scope stays."),
    scope_options,
    device_id=request("POST /pairing/approve", body=_approval, done="{deviceToken}"),
)
