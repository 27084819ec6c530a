"""`toolgate devices`: who is paired."""

import json

import click

from toolgate.cli.operator import Operator, as_operator, show


@click.command()
@click.option("--revoke", metavar="DEVICE_ID", help="Take this device's token away, at once.")
@as_operator
def command(operator: Operator, *, revoke: str | None, as_json: bool) -> None:
    """List paired devices, or revoke one."""
    if revoke is not None:
        answer = operator.data("POST", "/pairing/revoke", {"deviceId": revoke})
        click.echo(json.dumps(answer) if as_json else f"{revoke} is revoked")
        return
    devices = operator.ask("GET", "/status")["devices"]
    columns = {
        "device": "deviceId",
        "may": "scope",
        "paired": "pairedAt",
        "last seen": "lastSeenAt",
    }
    show(devices, columns, as_json=as_json, none="no device is paired; `toolgate pair` pairs one")
