"""`toolgate devices`: who is paired."""

import click

from toolgate.cli.routes import as_given, command_of, request

command = command_of(
    "List paired devices, or revoke one.",
    request(
        "GET /status",
        rows="devices",
        columns={
            "device": "deviceId",
            "may": "scope",
            "paired": "pairedAt",
            "last seen": "lastSeenAt",
        },
        none="no devices; pair one with `toolgate pair DEVICE_ID`",
    ),
    click.option(
        "--revoke",
        "device_id",
        metavar="DEVICE_ID",
        help="Take this device's token away, at once.",
    ),
    device_id=request("POST /pairing/revoke", body=as_given, done="{deviceId} is revoked"),
)
